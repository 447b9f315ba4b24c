"""Rows count the same, to the bit, whatever the depth, the budget, the threads, the instructions
and the tiers; and what they count is what a recount of the batches says.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps import _C

NUM_BATCHES, SIZE, FEATURES, DIM, NUM_KEYS = 24, 64, 3, 6, 900
RATE = 0.3  # of the examples without a click
HOT = 7  # a key of most examples, with more occurrences a batch than a run has
ALL = np.arange(NUM_KEYS, dtype=np.uint64)


def make_batches() -> list[hps.Batch]:
    """Bags of up to four keys, with weights; a table that counts and one that does not."""
    generator = np.random.default_rng(11)
    batches = []
    for _ in range(NUM_BATCHES):
        lengths = generator.integers(0, 5, FEATURES * SIZE)
        offsets = np.concatenate([[0], lengths.cumsum()])
        keys = (NUM_KEYS * generator.random(offsets[-1]) ** 3).astype(np.int64)
        keys[generator.random(len(keys)) < 0.3] = HOT
        weights = generator.random(len(keys)).astype(np.float32)
        ads = hps.Ids(*(torch.from_numpy(one) for one in (keys, offsets, weights)))
        users = hps.Ids(torch.from_numpy(keys[:SIZE].copy()), torch.arange(SIZE + 1))
        labels = torch.from_numpy(generator.integers(0, 2, SIZE).astype(np.float32))
        batches.append(hps.Batch({"ads": ads, "users": users}, torch.zeros(SIZE, 0), labels))
    return batches


BATCHES = make_batches()


def tables(statistics: bool = True) -> list[hps.TableConfig]:
    optimizer = hps.Adagrad(lr=0.1)
    ads = hps.TableConfig(
        name="ads",
        dim=DIM,
        optimizer=optimizer,
        features=[f"a{place}" for place in range(FEATURES)],
        statistics=statistics,
        negative_rate=RATE if statistics else 1.0,
    )
    return [ads, hps.TableConfig(name="users", dim=DIM, optimizer=optimizer, features=["u"])]


def run(path: Path, depth: int = 0, accumulate: int = 1, **changes: Any) -> dict[str, Any]:
    """Trains two periods; the digests, the counts, and how many rows were evicted."""
    config = hps.Config(path=path, tables=tables(), **{"threads": 1, **changes})
    with hps.ParameterServer(config) as server:
        embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
        for part in (BATCHES[: NUM_BATCHES // 2], BATCHES[NUM_BATCHES // 2 :]):
            server.advance_period()
            with hps.Pipeline(part, server, depth=depth, accumulate=accumulate) as pipeline:
                for place, batch in enumerate(pipeline):
                    output = embeddings(batch)
                    (output.square().mean() + output.mean()).backward()
                    if (place + 1) % accumulate == 0:
                        optimizer.step()
        tier = "dram_cache" if config.gpu is None else "gpu_cache"
        return {
            "digests": [server.digest("ads"), server.digest("users")],
            "counts": {name: part.tolist() for name, part in server.statistics("ads", ALL).items()},
            "evictions": server.stats()[tier]["evictions"],
        }


def skip_without(instruction_set: str | None) -> None:
    """Skips a test on a processor that lacks it."""
    if instruction_set is not None:
        try:
            _C.ShardPlan([0], instruction_set)
        except ValueError:
            pytest.skip(f"this processor lacks {instruction_set}")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("store"))


def test_counts_are_those_of_a_recount(expected: dict[str, Any]) -> None:
    show, click = np.zeros(NUM_KEYS, np.float32), np.zeros(NUM_KEYS)
    more = np.float32(1 / RATE - 1)
    last = np.full(NUM_KEYS, -1)
    for number, batch in enumerate(BATCHES):
        ids = batch.features["ads"]
        example = np.tile(np.arange(SIZE), FEATURES)
        of_occurrence = np.repeat(example, np.diff(ids.offsets.numpy()))
        keys = ids.keys_L.numpy()
        labels = batch.labels.numpy()[of_occurrence]
        each = np.bincount(keys, minlength=NUM_KEYS).astype(np.float32)
        clicked = np.bincount(keys, labels, NUM_KEYS).astype(np.float32)
        show += each + more * (each - clicked)
        click += clicked
        last[keys] = 1 + number // (NUM_BATCHES // 2)
    assert expected["counts"]["show"] == show.tolist()
    assert expected["counts"]["click"] == click.tolist()
    assert expected["counts"]["last_period"] == last.tolist()
    assert show[HOT] > 2 * 32 * NUM_BATCHES and -1 in last


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 1},
        {"depth": 4},
        {"depth": 2, "accumulate": 2, "compares": "counts"},
        {"threads": 4},
        {"instruction_set": "plain"},
        {"instruction_set": "avx2"},
        {"dram": hps.DramCacheConfig(bytes=90_000), "evicts": True},
        {"dram": hps.DramCacheConfig(bytes=90_000), "depth": 2, "threads": 3, "evicts": True},
        {"gpu": hps.GpuCacheConfig(bytes="4MiB", device="cpu")},
        {
            "ssd": hps.SsdStoreConfig(engine="rocksdb"),
            "dram": hps.DramCacheConfig(bytes=90_000),
            "depth": 2,
            "evicts": True,
        },
        {
            "gpu": hps.GpuCacheConfig(bytes=110_000, device="cpu"),
            "dram": hps.DramCacheConfig(bytes=90_000),
            "depth": 2,
            "threads": 2,
            "evicts": True,
        },
    ],
    ids=lambda changes: "-".join(str(name) for name in changes),
)
def test_counts_do_not_depend_on_how(
    expected: dict[str, Any], tmp_path: Path, changes: dict[str, Any]
) -> None:
    skip_without(changes.get("instruction_set"))
    if "ssd" in changes:
        pytest.importorskip("rocksdict")
    given = {name: value for name, value in changes.items() if name not in ("evicts", "compares")}
    found = run(tmp_path / "store", **given)
    if changes.get("compares") == "counts":  # another sum of gradients, and of counts
        shows = expected["counts"]["show"]
        assert found["counts"].pop("show") == pytest.approx(shows)
        assert {**found["counts"], "show": shows} == expected["counts"]
    else:
        assert found["digests"] == expected["digests"]
        assert found["counts"] == expected["counts"]
    assert (found["evictions"] > 0) == changes.get("evicts", False)


def test_counting_changes_no_weight(tmp_path: Path) -> None:
    found = []
    for statistics in (False, True):
        config = hps.Config(path=tmp_path / str(statistics), tables=tables(statistics), threads=2)
        with hps.ParameterServer(config) as server:
            embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
            for batch in BATCHES:
                embeddings(batch).square().sum().backward()
                optimizer.step()
            found.append((server.pull("ads", ALL), server.digest("users")))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
