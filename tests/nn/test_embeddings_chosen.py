"""SparseEmbeddings of some features of a table reads those alone, and lets them alone learn.

Above it: pytest. Below it: embeddings_lab.py. What it must do is said by a SparseEmbedding a table
that is handed the keys of those features.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from tests.nn.embeddings_lab import (
    DIMS,
    NAMES,
    POOLING,
    Jagged,
    draw_batch,
    open_tables,
    slope_of,
    train,
)

# Not in the order of their tables; of two tables some features, of two others all.
CHOSEN = {"k": "most", "c": "one", "g": "twenty", "a": "one", "i": "many", "h": "twenty"}
BATCHES = range(6)


def handed(batch: hps.Batch) -> dict[str, tuple[Any, ...]]:
    """Of each table that is read: keys, offsets and weights of the chosen features, in the order
    of its list, and their number."""
    found = {}
    for table in dict.fromkeys(CHOSEN.values()):
        names = [name for name in NAMES[table] if name in CHOSEN]
        features = {own: batch.features[own] for own in (table,)}
        jagged = Jagged(replace(batch, features=features), names)
        found[table] = (
            jagged.values(),
            jagged.offsets(),
            jagged.weights_or_none(),
            len(names),
        )
    return found


class Handed(torch.nn.Module):
    """The chosen features by a SparseEmbedding a table."""

    def __init__(self, server: Any) -> None:
        super().__init__()
        self._modules |= {
            table: hps.SparseEmbedding(server, table, POOLING.get(table, "sum"))
            for table in dict.fromkeys(CHOSEN.values())
        }

    def forward(self, batch: hps.Batch) -> torch.Tensor:
        parts = {}
        for table, (*tensors, count) in handed(batch).items():
            output = self._modules[table](*tensors, num_features=count)  # type: ignore[misc]
            names = [name for name in NAMES[table] if name in CHOSEN]
            parts |= zip(names, output.split(DIMS[table], dim=1), strict=True)
        return torch.cat([parts[name] for name in CHOSEN], dim=1)


def chosen(server: Any) -> hps.SparseEmbeddings:
    return hps.SparseEmbeddings(server, CHOSEN, POOLING)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_tables(tmp_path_factory.mktemp("handed"), threads=1) as server:
        return train(server, Handed(server), [draw_batch(seed) for seed in BATCHES])


def test_some_features_have_the_bits_of_being_handed_alone(tmp_path: Path, expected: Any) -> None:
    with open_tables(tmp_path) as server:
        module = chosen(server)
        assert module.feature_names == tuple(CHOSEN)
        assert module.widths == tuple(DIMS[table] for table in CHOSEN.values())
        assert train(server, module, [draw_batch(seed) for seed in BATCHES]) == expected
        # Nothing but what was read has a row.
        assert server.num_rows("four") == server.num_rows("sixteen") == 0


@pytest.mark.parametrize("depth", [0, 3])
def test_in_a_pipeline_outputs_are_the_same_and_all_other_rows_are_new(
    tmp_path: Path, expected: Any, depth: int
) -> None:
    """A pipeline fetches, and so makes, the rows of all features of its batches."""
    batches = [draw_batch(seed) for seed in BATCHES]
    with open_tables(tmp_path) as server:
        outputs, _ = train(server, chosen(server), batches, depth=depth)
        assert outputs == expected[0]
        learnt = {table: dict(_rows(server, table)) for table in NAMES}
    with open_tables(tmp_path / "alone", threads=1) as server:
        train(server, Handed(server), batches)
        for table in NAMES:
            alone = dict(_rows(server, table))
            assert alone.items() <= learnt[table].items()
            others = learnt[table].keys() - alone.keys()
            keys = torch.tensor(sorted(others), dtype=torch.int64)
            fresh = server.pull(table, keys)
            for key, row in zip(keys.tolist(), fresh, strict=True):
                assert learnt[table][key] == row.numpy().tobytes()


def _rows(server: Any, table: str) -> list[tuple[int, bytes]]:
    found = []
    for keys, rows in server.items(table):
        found += [
            (int(key), row.tobytes()) for key, row in zip(keys.view("int64"), rows, strict=True)
        ]
    return found


@pytest.mark.parametrize("kind", ["gpu", "twins", "compiled", "evaluation"])
def test_other_paths_have_the_same_bits(tmp_path: Path, expected: Any, kind: str) -> None:
    batches = [draw_batch(seed) for seed in BATCHES]
    with open_tables(tmp_path, kind=kind) as server:
        module: Any = chosen(server)
        if kind == "compiled":
            module = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
        if kind == "evaluation":
            outputs = [module.eval()(batch).numpy().tobytes() for batch in batches[:1]]
            assert outputs == expected[0][:1]
            assert all(server.num_rows(table) == 0 for table in NAMES)
            return
        assert train(server, module, batches) == expected


def test_weights_that_learn_get_the_gradients_of_their_own_features(tmp_path: Path) -> None:
    batch = draw_batch(3)
    weights = batch.features["most"].weights_L
    assert weights is not None
    weights.requires_grad_()
    with open_tables(tmp_path) as server:
        output = chosen(server)(batch)
        output.backward(slope_of(output))
        found = weights.grad
        assert found is not None
        place = NAMES["most"].index("k") * len(batch)
        first = int(batch.features["most"].offsets[place])
        assert not found[:first].any() and found[first:].any()
        weights.grad = None
        hps.RowOptimizer(server).zero_grad()
        again = Handed(server)(batch)
        again.backward(slope_of(again))
        assert weights.grad is not None and torch.equal(weights.grad, found)


def test_a_jagged_tensor_has_the_chosen_features_alone(tmp_path: Path) -> None:
    batch = draw_batch(2)
    with open_tables(tmp_path) as server:
        module = chosen(server)
        alone = module(Jagged(batch, list(CHOSEN)))
        assert torch.equal(alone, module(batch))
        with pytest.raises(hps.ConfigError, match=r"has features \['b'\], which the module has no"):
            module(Jagged(batch, [*CHOSEN, "b"]))


def test_a_batch_without_examples_and_bad_offsets(tmp_path: Path) -> None:
    with open_tables(tmp_path) as server:
        module = chosen(server)
        assert module(draw_batch(0, 0)).shape == (0, sum(module.widths))
        batch = draw_batch(1)
        ids = batch.features["one"]
        fewer = hps.Ids(ids.keys_L, ids.offsets[: 2 * len(batch) + 1])
        with pytest.raises(hps.ConfigError, match="48 bags of table 'one'; 3 features of 24"):
            module(replace(batch, features=batch.features | {"one": fewer}))
        offsets = ids.offsets.clone()
        offsets[5] = 10_000
        with pytest.raises(hps.ConfigError, match=r"^SparseEmbeddings: "):
            bad = hps.Ids(ids.keys_L, offsets)
            module(replace(batch, features=batch.features | {"one": bad}))
