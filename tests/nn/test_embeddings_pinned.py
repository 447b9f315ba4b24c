"""A pipeline's batch that is asked for otherwise than it was pinned, and rows let go of early.

Above it: pytest. Below it: tests/front.py. The same compiled: test_compiled_rows.py.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.nn.gradients import pending_of
from tests.front import open_server
from tests.nn.embeddings_lab import slope_of

TABLES = ("a", "b")
Change = Callable[[hps.Batch], hps.Batch]
Outcome = tuple[list[list[float]], list[str]]


def ids_of(*bags: list[int], weights: list[float] | None = None) -> hps.Ids:
    """One feature's bags."""
    keys = torch.tensor([key for bag in bags for key in bag], dtype=torch.int64)
    ends = torch.tensor([0, *map(len, bags)]).cumsum(0)
    return hps.Ids(keys, ends, None if weights is None else torch.tensor(weights))


def batch_of(num_examples: int, **features: hps.Ids) -> hps.Batch:
    return hps.Batch(features, torch.zeros(num_examples, 0), torch.ones(num_examples))


def drawn(tables: Sequence[str] = TABLES) -> hps.Batch:
    """Keys that repeat, and weights; no bag of 3 examples is that of another."""
    a = ids_of([7, 8], [8], [9, 7], weights=[0.5, 2.0, 1.0, -1.0, 4.0])
    b = ids_of([8], [], [2, 3], weights=[0.25, 3.0, -2.0])
    own = {"a": a, "b": b}
    return batch_of(3, **{table: own[table] for table in tables})


# How a module is asked for the keys of a pipeline's batch.


def with_ids(batch: hps.Batch, change: Callable[[hps.Ids], hps.Ids]) -> hps.Batch:
    """A batch of its own, which no pipeline has made."""
    features = {table: change(ids) for table, ids in batch.features.items()}
    return hps.Batch(features, batch.dense, batch.labels)


def flipped(weights: torch.Tensor | None) -> torch.Tensor:
    assert weights is not None
    return weights.flip(0)


def all_in_one(offsets: torch.Tensor) -> torch.Tensor:
    """Offsets by which the first example has all keys."""
    moved = torch.full_like(offsets, int(offsets[-1]))
    moved[0] = 0
    return moved


def other_weights(batch: hps.Batch) -> hps.Batch:
    return with_ids(batch, lambda ids: replace(ids, weights_L=flipped(ids.weights_L)))


def no_weights(batch: hps.Batch) -> hps.Batch:
    return with_ids(batch, lambda ids: replace(ids, weights_L=None))


def other_offsets(batch: hps.Batch) -> hps.Batch:
    return with_ids(batch, lambda ids: replace(ids, offsets=all_in_one(ids.offsets)))


def prefix(batch: hps.Batch) -> hps.Batch:
    """The first two examples, in the same memory."""

    def first(ids: hps.Ids) -> hps.Ids:
        assert ids.weights_L is not None
        count = int(ids.offsets[2])
        return hps.Ids(ids.keys_L[:count], ids.offsets[:3], ids.weights_L[:count])

    return replace(with_ids(batch, first), dense=batch.dense[:2], labels=batch.labels[:2])


def weights_replaced(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        ids.weights_L = flipped(ids.weights_L)
    return batch


def weights_of_one_replaced(batch: hps.Batch) -> hps.Batch:
    ids = batch.features[list(batch.features)[-1]]
    ids.weights_L = flipped(ids.weights_L)
    return batch


def weights_dropped(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        ids.weights_L = None
    return batch


def weights_doubled_in_place(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        assert ids.weights_L is not None
        ids.weights_L.mul_(2)
    return batch


def offsets_replaced(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        ids.offsets = all_in_one(ids.offsets)
    return batch


def offsets_moved_in_place(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        ids.offsets.copy_(all_in_one(ids.offsets))
    return batch


def weights_of_other_memory(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        assert ids.weights_L is not None
        ids.weights_L.data = flipped(ids.weights_L)
    return batch


def offsets_of_other_memory(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        ids.offsets.data = all_in_one(ids.offsets)
    return batch


def keys_replaced(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        ids.keys_L = ids.keys_L + 1
    return batch


def keys_changed_in_place(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        ids.keys_L.add_(1)
    return batch


def keys_of_other_memory(batch: hps.Batch) -> hps.Batch:
    for ids in batch.features.values():
        ids.keys_L.data = ids.keys_L + 1
    return batch


def keys_of_other_memory_again(batch: hps.Batch) -> hps.Batch:
    """The second memory would lie where the first one did, were that not kept."""
    for ids in batch.features.values():
        for _ in range(8):
            ids.keys_L.data = ids.keys_L + 1
    return batch


OF_THEIR_OWN: list[Change] = [other_weights, no_weights, other_offsets, prefix]
CHANGED: list[Change] = [
    weights_replaced,
    weights_of_one_replaced,
    weights_dropped,
    weights_doubled_in_place,
    weights_of_other_memory,
    offsets_replaced,
    offsets_moved_in_place,
    offsets_of_other_memory,
]
OF_OTHER_KEYS: list[Change] = [
    keys_replaced,
    keys_changed_in_place,
    keys_of_other_memory,
    keys_of_other_memory_again,
]


# What asks.


def all_tables(server: Any) -> torch.nn.Module:
    return hps.SparseEmbeddings(server, {"a": 1, "b": 1}, {"a": "sum", "b": "mean"})


def one_table(server: Any) -> torch.nn.Module:
    return hps.SparseEmbedding(server, "a", "mean")


def one_narrow_table(server: Any) -> torch.nn.Module:
    return hps.SparseEmbedding(server, "a", "mean", dtype=torch.bfloat16)


def outcome(
    folder: Path,
    change: Change,
    *,
    is_pinned: bool,
    make: Callable[[Any], torch.nn.Module] = all_tables,
    wrap: Callable[[torch.nn.Module], Any] = lambda module: module,
    keeps_rows: bool = False,
) -> Outcome:
    """What a module makes of a changed batch, and the digests after its step.

    Args:
        is_pinned: the batch comes from a pipeline, and the module has read it before the change.
        keeps_rows: what is asked has the pinned rows of that batch.
    """
    tables = TABLES if make is all_tables else TABLES[:1]
    with (
        open_server(folder, hps.SGD(lr=1.0), names=tables) as server,
        contextlib.ExitStack() as stack,
    ):
        forward, optimizer, batch = wrap(make(server)), hps.RowOptimizer(server), drawn(tables)
        if is_pinned:
            batch = next(stack.enter_context(hps.Pipeline([batch], server, 1)))
            assert batch.rows
        forward(batch)
        asked = change(batch)
        if keeps_rows:
            asked.rows = batch.rows
        output = forward(asked)
        output.backward(slope_of(output))
        optimizer.step()
        digests = [server.digest(table) for table in tables]
        assert server.pins == 0 or asked is not batch  # whose step does not let go of the other's
        return output.detach().tolist(), digests


@pytest.mark.parametrize("make", [all_tables, one_table, one_narrow_table])
@pytest.mark.parametrize("change", OF_THEIR_OWN)
def test_another_batch_of_pinned_keys_is_looked_up_by_what_it_says(
    tmp_path: Path, make: Callable[[Any], torch.nn.Module], change: Change
) -> None:
    expected = outcome(tmp_path / "alone", change, is_pinned=False, make=make)
    assert outcome(tmp_path / "pinned", change, is_pinned=True, make=make) == expected


@pytest.mark.parametrize("make", [all_tables, one_table, one_narrow_table])
@pytest.mark.parametrize("change", [other_weights, no_weights, other_offsets])
def test_another_batch_with_pinned_rows_is_looked_up_by_what_it_says(
    tmp_path: Path, make: Callable[[Any], torch.nn.Module], change: Change
) -> None:
    expected = outcome(tmp_path / "alone", change, is_pinned=False, make=make)
    found = outcome(tmp_path / "pinned", change, is_pinned=True, make=make, keeps_rows=True)
    assert found == expected


@pytest.mark.parametrize("make", [all_tables, one_table, one_narrow_table])
def test_fewer_examples_with_pinned_rows_never_get_the_output_of_all(
    tmp_path: Path, make: Callable[[Any], torch.nn.Module]
) -> None:
    expected = outcome(tmp_path / "alone", prefix, is_pinned=False, make=make)
    with contextlib.suppress(hps.ConfigError):  # it may be refused
        found = outcome(tmp_path / "pinned", prefix, is_pinned=True, make=make, keeps_rows=True)
        assert found == expected


@pytest.mark.parametrize("make", [all_tables, one_table, one_narrow_table])
@pytest.mark.parametrize("change", CHANGED)
def test_a_pinned_batch_that_was_changed_is_looked_up_as_it_is(
    tmp_path: Path, make: Callable[[Any], torch.nn.Module], change: Change
) -> None:
    expected = outcome(tmp_path / "alone", change, is_pinned=False, make=make)
    assert outcome(tmp_path / "pinned", change, is_pinned=True, make=make) == expected


@pytest.mark.parametrize("change", OF_OTHER_KEYS)
def test_a_pinned_batch_of_other_keys_is_looked_up_anew_with_all_its_tables(
    tmp_path: Path, change: Change
) -> None:
    expected = outcome(tmp_path / "alone", change, is_pinned=False, make=all_tables)
    assert outcome(tmp_path / "pinned", change, is_pinned=True, make=all_tables) == expected


@pytest.mark.parametrize("make", [one_table, one_narrow_table])
@pytest.mark.parametrize("change", OF_OTHER_KEYS)
def test_a_pinned_batch_of_other_keys_is_refused(
    tmp_path: Path, make: Callable[[Any], torch.nn.Module], change: Change
) -> None:
    with pytest.raises(hps.ConfigError, match="other keys"):
        outcome(tmp_path, change, is_pinned=True, make=make)


def test_every_change_of_a_batch_changes_what_comes_out(tmp_path: Path) -> None:
    outputs = [
        outcome(tmp_path / change.__name__, change, is_pinned=False)[0]
        for change in [lambda batch: batch, *OF_THEIR_OWN, *CHANGED]
    ]
    assert all(output != outputs[0] for output in outputs[1:])


# Steps, and what becomes of the pins.

Look = Callable[[list[torch.Tensor]], object]


def nothing(parameters: list[torch.Tensor]) -> None:
    pass


def read(parameters: list[torch.Tensor]) -> None:
    assert all(parameter.grad is not None for parameter in parameters)


def clip(parameters: list[torch.Tensor]) -> None:
    assert 1 < torch.nn.utils.clip_grad_norm_(parameters, 100.0) < 100


def clip_short(parameters: list[torch.Tensor]) -> None:
    assert torch.nn.utils.clip_grad_norm_(parameters, 0.5) > 1


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("look", [nothing, read, clip, clip_short])
def test_a_step_after_the_pipeline_was_left_is_that_of_one_inside(
    tmp_path: Path, look: Look, depth: int
) -> None:
    digests = []
    for is_left in (False, True):
        with open_server(tmp_path / str(is_left), hps.Adagrad(lr=0.5), names=TABLES) as server:
            module, optimizer = all_tables(server), hps.RowOptimizer(server)
            with hps.Pipeline([drawn()], server, depth) as batches:
                output = module(next(batches))
                output.backward(slope_of(output))
                look([q for group in optimizer.param_groups for q in group["params"]])
                if not is_left:
                    optimizer.step()
            if is_left:
                assert server.pins == 0
                optimizer.step()
            assert pending_of(server).is_empty and server.pins == 0
            assert [server.num_rows(table) for table in TABLES] == [3, 3]
            digests.append([server.digest(table) for table in TABLES])
    assert digests[0] == digests[1]


def test_rows_of_one_table_that_were_released_can_be_erased(tmp_path: Path) -> None:
    """Those of the others stay; and each pin is dropped once."""
    with open_server(tmp_path, names=TABLES) as server:
        batch = drawn()
        keys = {table: ids.keys_L for table, ids in batch.features.items()}
        for table in TABLES:
            server.pull(table, keys[table], create=True)
        with hps.Pipeline([batch], server, 1) as batches:
            own = next(batches)
            assert own.rows is not None
            with pytest.raises(hps.ConfigError, match="pinned"):
                server.erase("a", keys["a"])
            own.rows["a"].release()
            assert torch.as_tensor(server.erase("a", keys["a"])).any()
            assert server.num_rows("a") == 0
            with pytest.raises(hps.ConfigError, match="pinned"):
                server.erase("b", keys["b"])
            another = server.pin("a", keys["a"])
            own.rows["a"].release()
        with pytest.raises(hps.ConfigError, match="pinned"):
            server.erase("a", keys["a"])
        another.release()
        assert server.pins == 0 and torch.as_tensor(server.erase("b", keys["b"])).any()


# Batches that a pipeline passes on as they are.


@pytest.mark.parametrize("depth", [0, 2])
def test_a_batch_without_features_is_yielded_in_its_turn(tmp_path: Path, depth: int) -> None:
    digests = []
    for is_pinned in (False, True):
        with open_server(tmp_path / str(is_pinned), names=TABLES) as server:
            module, optimizer = all_tables(server), hps.RowOptimizer(server)
            found = []
            with contextlib.ExitStack() as stack:
                source: Any = [drawn(), batch_of(2), drawn(), batch_of(0)]
                if is_pinned:
                    source = stack.enter_context(hps.Pipeline(source, server, depth))
                for batch in source:
                    found.append((len(batch), len(batch.features)))
                    if batch.features:
                        module(batch).sum().backward()
                        optimizer.step()
            assert found == [(3, 2), (2, 0), (3, 2), (0, 0)] and server.pins == 0
            digests.append([server.digest(table) for table in TABLES])
    assert digests[0] == digests[1]


@pytest.mark.parametrize("depth", [0, 2])
def test_keys_that_no_example_has_to_itself_are_read_unpooled(tmp_path: Path, depth: int) -> None:
    results = []
    for is_pinned in (False, True):
        with open_server(tmp_path / str(is_pinned)) as server, contextlib.ExitStack() as stack:
            module = hps.SparseEmbedding(server, "ads", pooling=None)
            optimizer, outputs = hps.RowOptimizer(server), []
            source: Any = [batch_of(2, ads=ids_of([1, 2, first])) for first in (3, 4)]
            if is_pinned:
                source = stack.enter_context(hps.Pipeline(source, server, depth))
            for batch in source:
                output = module(batch)
                output.backward(slope_of(output))
                optimizer.step()
                outputs.append(output.tolist())
            results.append((outputs, server.digest("ads")))
    assert len(results[0][0][0]) == 3 and results[0] == results[1]
