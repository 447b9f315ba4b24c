"""Two tables whose features have the very same ids: what is shared of their plans changes no bit.

Above it: pytest. Below it: hps.Pipeline, csrc/table_batch.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps

NUM_FEATURES, NUM_KEYS = 3, 5000


def ids_of(seed: int, size: int, *, is_skewed: bool) -> hps.Ids:
    generator = np.random.default_rng(seed)
    draws = generator.random(NUM_FEATURES * size) ** (4 if is_skewed else 1)
    keys = torch.from_numpy((NUM_KEYS * draws).astype(np.int64))
    return hps.Ids(keys, torch.arange(len(keys) + 1))


def trained(
    folder: Path, size: int, shares: tuple[float, float], *, same: bool | None, **more: Any
) -> Any:
    """Digests after steps on batches of both tables, whose ids are one object, copies, or in turn
    (None)."""
    tables = [
        hps.TableConfig(name=name, dim=dim, optimizer=hps.Adagrad(lr=0.1), share=share)
        for name, dim, share in (("ads", 4, shares[0]), ("weights", 1, shares[1]))
    ]
    batches = []
    for seed in range(4):
        ids = ids_of(seed, size, is_skewed=seed % 2 == 0)
        is_same = seed % 2 == 0 if same is None else same
        other = ids if is_same else hps.Ids(ids.keys_L.clone(), ids.offsets.clone())
        labels = torch.zeros(size)
        batches.append(hps.Batch({"ads": ids, "weights": other}, torch.zeros(size, 0), labels))
    with hps.ParameterServer(hps.Config(path=folder, tables=tables, **more)) as server:
        module = hps.SparseEmbeddings(server, {"ads": NUM_FEATURES}, beside={"ads": "weights"})
        optimizer = hps.RowOptimizer(server)
        for _ in range(2):  # the second time with all rows in place
            with hps.Pipeline(batches, server, depth=1) as pipeline:
                for batch in pipeline:
                    output = module(batch)
                    (output.square().sum() + output.sum()).backward()
                    optimizer.step()
        hits = server.stats()["dram_cache"]["hits"]
        return [server.digest(name) for name in server.tables], hits


@pytest.mark.parametrize("size", [40, 4000])  # on one thread, and on several
@pytest.mark.parametrize("shares", [(1.0, 1.0), (1.0, 0.01), (0.01, 1.0)])
def test_the_same_ids_have_the_bits_of_copies(
    tmp_path: Path, size: int, shares: tuple[float, float]
) -> None:
    more: dict[str, Any] = {"dram": hps.DramCacheConfig(bytes="64MiB")}
    expected = trained(tmp_path / "copies", size, shares, same=False, threads=1, **more)
    for threads, same in ((1, True), (3, True), (3, None)):
        path = tmp_path / f"{threads}-{same}"
        assert trained(path, size, shares, same=same, threads=threads, **more) == expected


def test_other_ids_and_ids_that_are_no_bags_are_told_apart(tmp_path: Path) -> None:
    tables = [hps.TableConfig(name=name, dim=2) for name in ("ads", "users")]
    keys, right = torch.arange(4), torch.tensor([0, 1, 2, 3, 4])
    wrong = torch.tensor([0, 3, 2, 3, 4])
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=tables)) as server:
        joint = server.joint
        assert joint is not None
        for bad in tables:
            offsets = {table.name: wrong if table is bad else right for table in tables}
            features = {name: hps.Ids(keys, own) for name, own in offsets.items()}
            with pytest.raises(hps.ConfigError, match=f"table '{bad.name}'"):
                joint.pin(features, 4)
        # As many keys are not the same keys.
        rows = joint.pin({"ads": hps.Ids(keys, right), "users": hps.Ids(keys + 9, right)}, 4)
        found = {name: own.unique_keys().tolist() for name, own in rows.of_tables().items()}
        assert found == {"ads": [0, 1, 2, 3], "users": [9, 10, 11, 12]}
        rows.release()


def test_tables_that_shared_a_plan_of_few_keys_have_all_keys_of_the_next(tmp_path: Path) -> None:
    tables = [hps.TableConfig(name=name, dim=2) for name in ("ads", "users")]
    many, few, one = 20_000, 3, 1
    dram = hps.DramCacheConfig(bytes="64MiB")
    with hps.ParameterServer(
        hps.Config(path=tmp_path, tables=tables, dram=dram, threads=2)
    ) as server:
        joint = server.joint
        assert joint is not None

        def ids(first: int, count: int) -> hps.Ids:
            return hps.Ids(torch.arange(first, first + count), torch.tensor([0, count]))

        def check(batch: dict[str, hps.Ids]) -> None:
            rows = joint.pin(batch, 1)
            for name, own in rows.of_tables().items():
                expected = sorted(batch[name].keys_L.tolist())
                assert sorted(own.unique_keys().tolist()) == expected, name
            rows.release()

        same = ids(7, few)
        for batch in (
            {"ads": ids(0, many), "users": ids(0, one)},  # spreads the parts of one table
            {"ads": same, "users": same},
            {"ads": ids(0, one), "users": ids(many, many)},
        ):
            for _ in range(3):
                check(batch)


def test_a_batch_that_is_on_its_device_is_itself_however_that_is_said() -> None:
    """Lightning and torch's own loops say a torch.device."""
    ids = hps.Ids(torch.tensor([7, 8]), offsets=torch.tensor([0, 1, 2]))
    batch = hps.Batch({"ads": ids}, torch.zeros(2, 0), torch.ones(2))
    assert batch.to("cpu") is batch and batch.to(torch.device("cpu")) is batch
    assert ids.to(torch.device("cpu")) is ids
    moved = batch.to(torch.device("meta"))
    assert str(moved.labels.device) == str(moved.features["ads"].keys_L.device) == "meta"
