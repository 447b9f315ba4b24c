"""Rows of several tables on a device are read into one output and stepped by its one gradient, with
the bits of the host.

Above it: pytest. Below it: embeddings_lab.py; a server over the CUDA cache's launcher, on a device
of host memory.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.common import bags
from hps.contracts.joint import JointUpdate
from hps.nn import embeddings
from hps.tiers.placed_rows import PlacedRows
from tests.gpu_cache.launched import LaunchedServer
from tests.nn import embeddings_lab as lab

# A table's features side by side, the tables in another order than in batches; the columns of all
# but the first begin at odd places.
FEATURES = {
    name: table for table in ("one", "most", "twenty", "four", "many") for name in lab.NAMES[table]
}
APART = {"a": "one", "d": "four", "b": "one", "e": "four", "c": "one"}


Launch = Callable[[], LaunchedServer]


def launched_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchedServer:
    """One of the lab's tables."""
    gpu = hps.GpuCacheConfig(bytes="8MiB", device="cpu")
    return LaunchedServer(lab.config_of(folder, gpu=gpu), monkeypatch)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Opens one; servers whose rows lie in DRAM cannot be used from then on."""
    with ExitStack() as stack:

        def open_one() -> LaunchedServer:
            own = launched_at(tmp_path / "device", monkeypatch)
            stack.enter_context(own.server)
            return own

        yield open_one


@pytest.fixture
def launched(launch: Launch) -> LaunchedServer:
    return launch()


def measured(batch: hps.Batch) -> hps.Batch:
    """With bags, as `Batch.to` makes them."""
    for table, ids in batch.features.items():
        ids.bags = bags.make_bags(ids.offsets, len(ids.keys_L), table)
        ids.offsets = ids.bags.offsets
    return batch


def batches(count: int = 6) -> list[hps.Batch]:
    return [measured(lab.draw_batch(seed)) for seed in range(count)]


def module_of(server: Any, features: Any = None, dtype: torch.dtype = torch.float32) -> Any:
    return hps.SparseEmbeddings(server, features or FEATURES, lab.POOLING, dtype)


Run = Callable[[Any], Any]


def alike(folder: Path, launch: Launch, run: Run) -> LaunchedServer:
    """Asserts that something has the same bits where rows lie in DRAM and on a device."""
    with lab.open_tables(folder / "plain") as server:
        expected = run(server)
    launched = launch()
    assert run(launched.server) == expected
    return launched


def digests_of(server: Any) -> dict[str, str]:
    return {name: server.digest(name) for name in server.tables}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("depth", "accumulate"), [(0, 1), (3, 1), (2, 2)])
def test_tables_side_by_side_have_the_bits_of_the_host(
    tmp_path: Path,
    launch: Launch,
    monkeypatch: pytest.MonkeyPatch,
    depth: int,
    accumulate: int,
    dtype: torch.dtype,
) -> None:
    def run(server: Any) -> Any:
        if server.queued is not None:
            monkeypatch.delattr(embeddings, "look_up_tables")  # which goes table by table
        own = module_of(server, dtype=dtype)
        return lab.train(server, own, batches(), depth=depth, accumulate=accumulate)

    launched = alike(tmp_path, launch, run)
    assert launched.launches("Pool") == 6
    assert launched.launches("SumRun") == 6 // accumulate


def test_features_apart_go_table_by_table_with_the_same_bits(
    tmp_path: Path, launch: Launch
) -> None:
    def run(server: Any) -> Any:
        return lab.train(server, module_of(server, APART), batches(), depth=2)

    alike(tmp_path, launch, run)


def test_gradients_that_are_looked_at_have_the_same_bits(tmp_path: Path, launch: Launch) -> None:
    """By `param_groups`, as clipping does: then each table has its own."""

    def run(server: Any) -> Any:
        module, optimizer = module_of(server), hps.RowOptimizer(server)
        with hps.Pipeline(batches(), server, 1) as given:
            for batch in given:
                output = module(batch)
                output.backward(lab.slope_of(output))
                for group in optimizer.param_groups:
                    [parameter] = group["params"]
                    if parameter.grad is not None:
                        parameter.grad.mul_(0.5)
                optimizer.step()
        return digests_of(server)

    alike(tmp_path, launch, run)


def test_a_second_forward_of_a_batch_sums_into_one_step(tmp_path: Path, launch: Launch) -> None:
    def run(server: Any) -> Any:
        module, optimizer = module_of(server), hps.RowOptimizer(server)
        with hps.Pipeline(batches(2), server, 0) as given:
            for batch in given:
                for output in (module(batch), module(batch)):
                    output.backward(lab.slope_of(output))
                optimizer.step()
        return digests_of(server)

    alike(tmp_path, launch, run)


def test_a_backward_through_a_kept_graph_after_the_step_finds_its_rows_anew(
    tmp_path: Path, launch: Launch
) -> None:
    def run(server: Any) -> Any:
        module, optimizer = module_of(server), hps.RowOptimizer(server)
        with hps.Pipeline(batches(1), server, 0) as given:
            [output] = [module(batch) for batch in given]
            slope = lab.slope_of(output)
            for _ in range(2):
                output.backward(slope, retain_graph=True)
                optimizer.step()
        return digests_of(server)

    alike(tmp_path, launch, run)


def pinned(launched: LaunchedServer, batch: hps.Batch) -> PlacedRows:
    queued = launched.server.queued
    assert queued is not None
    rows = queued.pin_joint(batch.features, len(batch))
    assert isinstance(rows, PlacedRows)
    return rows


def test_rows_that_were_released_are_refused(launched: LaunchedServer) -> None:
    batch = measured(lab.draw_batch(0))
    rows, module = pinned(launched, batch), module_of(launched.server)
    places = module.layout.places
    out = torch.empty(len(batch), places.width)
    rows.pool(places, out)
    rows.of_tables()["four"].release()
    assert rows.is_released and not rows.are_of(batch.features, len(batch))
    with pytest.raises(hps.ConfigError, match="were released"):
        rows.pool(places, out)
    queued: Any = launched.server.queued
    assert not queued.apply_joint(JointUpdate(rows, places, out))
    rows.release()
    assert launched.server.pins == 0


def test_rows_that_nobody_has_any_more_are_let_go_at_once(launched: LaunchedServer) -> None:
    rows = pinned(launched, measured(lab.draw_batch(0)))
    assert launched.server.pins > 0
    parts = rows.of_tables()
    assert parts["four"].joint is rows
    del rows
    assert parts["four"].joint is None
    del parts
    assert launched.server.pins == 0


def test_tensors_that_were_changed_in_place_are_looked_up_anew(
    tmp_path: Path, launch: Launch
) -> None:
    batch = measured(lab.draw_batch(0))
    with lab.open_tables(tmp_path / "plain") as server:
        batch.features["four"].keys_L.add_(1)
        expected = module_of(server).eval()(batch)
        batch.features["four"].keys_L.sub_(1)
    launched = launch()
    rows = pinned(launched, batch)
    batch.rows = dict(rows.of_tables())
    batch.features["four"].keys_L.add_(1)
    assert not rows.are_of(batch.features, len(batch))
    assert torch.equal(module_of(launched.server).eval()(batch), expected)
    rows.release()


def test_what_the_caller_does_to_weights_later_does_not_count(launched: LaunchedServer) -> None:
    batch = measured(lab.draw_batch(0))
    rows, module = pinned(launched, batch), module_of(launched.server)
    places = module.layout.places
    before, after = torch.empty(2, len(batch), places.width)
    rows.pool(places, before)
    assert batch.features["four"].weights_L is not None
    batch.features["four"].weights_L.zero_()
    rows.pool(places, after)
    assert torch.equal(before, after) and before.count_nonzero() > 0
    rows.release()


def test_rows_of_another_server_are_refused(
    launched: LaunchedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = measured(lab.draw_batch(0))
    with launched_at(tmp_path / "other", monkeypatch).server as other:
        rows, places = pinned(launched, batch), module_of(other).layout.places
        queued: Any = other.queued
        with pytest.raises(hps.ConfigError, match="of another server"):
            queued.apply_joint(JointUpdate(rows, places, torch.ones(len(batch), places.width)))
        rows.release()


def test_a_gradient_that_is_not_finite_changes_no_table(launched: LaunchedServer) -> None:
    server, batch = launched.server, measured(lab.draw_batch(0))
    module, optimizer = module_of(server), hps.RowOptimizer(server)
    module(batch).backward(torch.ones(len(batch), sum(module.widths)))
    optimizer.step()
    before = {name: server.digest(name) for name in server.tables}
    with hps.Pipeline([batch], server, 0) as given:
        for one in given:
            output = module(one)
            slope = torch.ones_like(output)
            slope[:, -1] = float("nan")
            output.backward(slope)
            with pytest.raises(hps.NonFiniteError, match="'many'"):
                optimizer.step()
                server.pull("many", batch.features["many"].keys_L)
            optimizer.zero_grad()
    assert {name: server.digest(name) for name in server.tables} == before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda ids: ids.weights_L.__setitem__(3, float("nan")), "weights must be finite"),
        (lambda ids: setattr(ids, "weights_L", ids.weights_L[1:]), r"float32 \[\d+\] is needed"),
        (lambda ids: setattr(ids, "weights_L", ids.weights_L.double()), "are torch.float64"),
        (lambda ids: setattr(ids, "offsets", ids.offsets + 1), "offsets run from 1"),
    ],
)
def test_a_bad_batch_is_refused_and_nothing_is_pinned(
    launched: LaunchedServer, spoil: Any, message: str
) -> None:
    batch = lab.draw_batch(0)
    spoil(batch.features["four"])
    queued: Any = launched.server.queued
    with pytest.raises(hps.ConfigError, match=message):
        queued.pin_joint(batch.features, len(batch))
    assert launched.server.pins == 0


def test_other_numbers_of_features_are_told(launched: LaunchedServer) -> None:
    """The batch has three features of a table that the module takes to have two."""
    batch = measured(lab.draw_batch(0))
    rows = pinned(launched, batch)
    batch.rows = dict(rows.of_tables())
    table = lab.tables()[0]
    module = hps.SparseEmbeddings(launched.server, {name: table.name for name in ("a", "b", "c")})
    places = module.layout.places  # type: ignore[union-attr]
    two = type(places).of(("one",), (1,), (False,), ((0, 1),), ((0, 1),))
    with pytest.raises(ValueError, match="bags of F features"):
        rows.pool(two, torch.empty(len(batch), 2))
    with pytest.raises(ValueError, match="columns in"):
        rows.pool(places, torch.empty(len(batch), 2))
    rows.release()


def test_a_batch_without_examples_has_no_rows(launched: LaunchedServer) -> None:
    empty = measured(lab.draw_batch(0, 0))
    module, optimizer = module_of(launched.server), hps.RowOptimizer(launched.server)
    with hps.Pipeline([empty], launched.server, 0) as given:
        for batch in given:
            output = module(batch)
            assert output.shape == (0, sum(module.widths))
            output.backward(output)
            optimizer.step()
    assert not any(map(launched.server.num_rows, launched.server.tables))
