"""torch.compile over SparseEmbeddings: one graph, the same rows, its own bits again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from benchmarks.common.jagged import JaggedTensor
from hps.models import FactorizationMachine
from hps.nn import look_up_op

TABLES = {"ads": 2, "users": 1}
NUM_EXAMPLES = (32, 32, 20, 32)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def open_server(folder: Path) -> hps.ParameterServer:
    tables = [
        hps.TableConfig(name="ads", dim=4, optimizer=hps.Adagrad(lr=0.5)),
        hps.TableConfig(name="users", dim=4, optimizer=hps.SGD(lr=0.5)),
    ]
    return hps.ParameterServer(hps.Config(path=folder, tables=tables))


def batches(is_weighted: bool = False) -> Iterator[hps.Batch]:
    """Bags of 0 to 3 keys; the last batch but one is smaller."""
    generator = np.random.default_rng(5)
    for num_examples in NUM_EXAMPLES:
        features = {}
        for table, count in TABLES.items():
            lengths = torch.from_numpy(generator.integers(0, 4, count * num_examples))
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            keys = torch.from_numpy(generator.integers(0, 40, int(offsets[-1])))
            weights = torch.rand(len(keys)) if is_weighted and table == "ads" else None
            features[table] = hps.Ids(keys, offsets, weights)
        labels = torch.from_numpy(generator.integers(0, 2, num_examples)).float()
        yield hps.Batch(features, torch.ones(num_examples, 2), labels)


def jagged(batch: hps.Batch) -> JaggedTensor:
    """The same in one tensor of all features."""
    own = list(batch.features.values())
    lengths = torch.cat([ids.offsets.diff() for ids in own])
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    names = ["ads.0", "ads.1", "users.0"]
    return JaggedTensor(names, torch.cat([ids.keys_L for ids in own]), offsets)


def trained(
    folder: Path, compiled: bool, how: str = "batches", is_weighted: bool = False
) -> tuple[list[torch.Tensor], list[str]]:
    """The outputs of each step and the digests at the end; gradients are what eager ones are."""
    generator = torch.Generator().manual_seed(1)
    outputs = []
    torch.manual_seed(3)
    with open_server(folder) as server:
        module = hps.SparseEmbeddings(server, TABLES)
        optimizer = hps.RowOptimizer(server)
        # Torch's own kernels stay what they are, so that gradients have the same bits.
        forward = torch.compile(module, fullgraph=True, backend="aot_eager") if compiled else module

        def step(ids: Any) -> None:
            output = forward(ids)
            outputs.append(output.detach().clone())
            factors = torch.randn(output.shape, generator=generator)
            (output * factors).sum().backward()
            optimizer.step()

        if how == "pipeline":
            with hps.Pipeline(batches(is_weighted), server, depth=2) as source:
                for batch in source:
                    step(batch)
        else:
            for batch in batches(is_weighted):
                step(jagged(batch) if how == "jagged" else batch)
        assert server.pins == 0
        return outputs, [server.digest(table) for table in TABLES]


@pytest.mark.parametrize("how", ["batches", "jagged", "pipeline"])
def test_rows_are_read_and_stepped_as_without_it(tmp_path: Path, how: str) -> None:
    outputs, digests = trained(tmp_path / "eager", False, how)
    compiled, compiled_digests = trained(tmp_path / "compiled", True, how)
    assert all(map(torch.equal, outputs, compiled)) and digests == compiled_digests


def test_weights_of_bags_pass_through_the_operator(tmp_path: Path) -> None:
    outputs, digests = trained(tmp_path / "eager", False, is_weighted=True)
    compiled, compiled_digests = trained(tmp_path / "compiled", True, is_weighted=True)
    assert all(map(torch.equal, outputs, compiled)) and digests == compiled_digests


def test_pinned_rows_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hps.parameter_server.joint_batches import JointBatches

    monkeypatch.delattr(JointBatches, "look_up")
    trained(tmp_path, True, "pipeline")


def test_backward_after_many_other_forwards_looks_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(tmp_path / "first", True)[1]
    monkeypatch.setattr(look_up_op, "_MAX_KEPT", 0)
    assert trained(tmp_path / "second", True)[1] == expected


def test_nothing_is_kept_in_eval_mode(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        module = hps.SparseEmbeddings(server, TABLES).eval()
        forward = torch.compile(module, fullgraph=True, backend="aot_eager")
        batch = next(batches())
        assert torch.equal(forward(batch), module(batch))
        assert len(module.kept) == 0


def test_what_is_wrong_is_told_as_without_it(tmp_path: Path) -> None:
    with open_server(tmp_path) as server:
        module = hps.SparseEmbeddings(server, TABLES)
        forward = torch.compile(module, fullgraph=True, backend="aot_eager")
        batch = next(batches())
        forward(batch)
        batch.features["ads"].offsets[-1] += 1
        with pytest.raises(hps.ConfigError, match=r"table 'ads'.*offsets"):
            forward(batch)


def test_a_compiled_model_repeats_its_bits(tmp_path: Path) -> None:
    """By torch's own code generator, whose rounding is not that of eager code."""

    def run(folder: Path, compiled: bool) -> tuple[list[float], list[str]]:
        torch.manual_seed(7)
        losses = []
        with open_server(folder) as server:
            model = FactorizationMachine(server, TABLES, num_dense=2)
            forward = torch.compile(model, fullgraph=True, dynamic=True) if compiled else model
            rows = hps.RowOptimizer(server)
            dense = torch.optim.SGD(model.parameters(), lr=0.1)
            for batch in batches():
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    forward(batch), batch.labels
                )
                dense.zero_grad()
                loss.backward()
                rows.step()
                dense.step()
                losses.append(loss.item())
            return losses, [server.digest(table) for table in TABLES]

    first = run(tmp_path / "first", True)
    torch._dynamo.reset()
    assert run(tmp_path / "second", True) == first
    eager, _ = run(tmp_path / "eager", False)
    assert max(abs(a - b) for a, b in zip(first[0], eager, strict=True)) < 1e-5
