"""Pipeline at any depth: pins, the rule against a forgotten step, positions, accumulation."""

from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from tests.front import one_feature_batch, open_server

KEYS = [[1, 2], [2, 3], [3, 4]]


@pytest.fixture(params=[0, 1, 2, 8])
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Loop:
    """A server, an embedding, its optimizer and a pipeline over three batches."""

    def __init__(self, folder: Path, depth: int = 0, accumulate: int = 1, **options: Any) -> None:
        self.server = open_server(folder, **options)
        self.embedding = hps.SparseEmbedding(self.server, "ads")
        self.optimizer = hps.RowOptimizer(self.server)
        self.log = [one_feature_batch(keys, number + 1) for number, keys in enumerate(KEYS)]
        self.pipeline = hps.Pipeline(self.log, self.server, depth=depth, accumulate=accumulate)

    def __enter__(self) -> "Loop":
        self.server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.__exit__(None, None, None)

    def backward(self, batch: hps.Batch) -> None:
        self.embedding(batch).sum().backward()

    @property
    def pins(self) -> int:
        return pins_of(self.server)

    @property
    def held(self) -> int:
        """Distinct keys pinned for batches that were handed out; others are pinned ahead."""
        rows = [rows for batch in self.log for rows in (batch.rows or {}).values()]
        held = sum(one.plan.num_unique for one in rows)
        assert held == self.pins if self.pipeline.depth == 0 else held <= self.pins
        return held


def pins_of(server: Any) -> int:
    return int(server.pins)


def test_batches_are_the_readers_own_with_rows_in_place(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop:
        with loop.pipeline as batches:
            for batch, original in zip(batches, loop.log, strict=True):
                assert batch is original
                assert batch.rows is not None and loop.held == 2
                self_read = loop.embedding(batch)
                assert torch.equal(self_read, batch.rows["ads"].gather())
        assert loop.pins == 0 and all(batch.rows is None for batch in loop.log)


def test_training_equals_a_loop_without_pipeline(tmp_path: Path) -> None:
    digests = []
    for name in ("with", "without"):
        with Loop(tmp_path / name) as loop:
            if name == "with":
                with loop.pipeline as batches:
                    for batch in batches:
                        loop.backward(batch)
                        loop.optimizer.step()
            else:
                for batch in loop.log:
                    loop.backward(batch)
                    loop.optimizer.step()
            digests.append(loop.server.digest("ads"))
            assert loop.server.num_rows("ads") == 4
    assert digests[0] == digests[1]


def test_step_releases_the_pins(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop, loop.pipeline as batches:
        batch = next(iter(batches))
        loop.backward(batch)
        loop.optimizer.step()
        assert loop.held == 0 and batch.rows is None
        loop.backward(batch)  # once more over the same batch: its rows are found by key
        loop.optimizer.step()


def test_next_batch_with_a_pending_gradient_is_refused(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop:
        with loop.pipeline as batches:
            loop.backward(next(batches.__iter__()))
            with pytest.raises(hps.PendingGradientError, match=r"step\(\).*zero_grad\(\)"):
                next(batches.__iter__())
            loop.optimizer.step()
            assert next(batches.__iter__()) is loop.log[1]
        assert loop.pins == 0


def test_batch_without_backward_updates_nothing_and_releases(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop:
        with loop.pipeline as batches:
            for batch in batches:
                loop.embedding(batch)
                assert loop.held == 2
        assert loop.pins == 0
        assert loop.server.num_rows("ads") == 0


def test_zero_grad_lets_the_next_batch_come(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop:
        with loop.pipeline as batches:
            for batch in batches:
                loop.backward(batch)
                loop.optimizer.zero_grad()
        assert loop.pins == 0 and loop.server.num_rows("ads") == 0


@pytest.mark.parametrize("how", ["break", "exception", "pending"])
def test_leaving_early_releases_the_pins(tmp_path: Path, depth: int, how: str) -> None:
    with Loop(tmp_path, depth) as loop:
        try:
            with loop.pipeline as batches:
                for batch in batches:
                    loop.embedding(batch)
                    if how == "break":
                        break
                    if how == "pending":
                        loop.backward(batch)
                        break
                    raise KeyError("a user's error")
        except KeyError:
            assert how == "exception"
        else:
            assert how != "exception"
        assert loop.pins == 0
        loop.optimizer.step()  # what was pending still finds its rows
        assert loop.server.num_rows("ads") == (2 if how == "pending" else 0)


def test_position_is_that_of_the_last_applied_batch(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop, loop.pipeline as batches:
        assert batches.state_dict() == {}
        iterator = iter(batches)
        loop.backward(next(iterator))
        assert batches.state_dict() == {}
        loop.optimizer.step()
        assert batches.state_dict() == {"batch": 1}
        next(iterator)
        assert batches.state_dict() == {"batch": 1}
        next(iterator)  # batch 2 left no gradient: it is done
        assert batches.state_dict() == {"batch": 2}
        assert next(iterator, None) is None
        assert batches.state_dict() == {"batch": 3}


def test_accumulated_batches_are_one_step(tmp_path: Path, depth: int) -> None:
    digests = []
    for accumulate in (4, 1):
        with Loop(
            tmp_path / str(accumulate), depth, accumulate, optimizer=hps.Adagrad(lr=0.1)
        ) as loop:
            if accumulate == 4:
                with loop.pipeline as batches:
                    for batch in batches:
                        loop.backward(batch)
                    assert loop.held == 6 and batches.state_dict() == {}
                    loop.optimizer.step()
                    assert loop.pins == 0 and batches.state_dict() == {"batch": 3}
            else:
                keys = [key for keys in KEYS for key in keys]
                loop.backward(one_feature_batch(keys))
                loop.optimizer.step()
            digests.append(loop.server.digest("ads"))
    assert digests[0] == digests[1]


def test_more_pending_batches_than_accumulate_are_refused(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth, accumulate=2) as loop, loop.pipeline as batches:
        iterator = iter(batches)
        loop.backward(next(iterator))
        loop.backward(next(iterator))
        with pytest.raises(hps.PendingGradientError, match="accumulate=2"):
            next(iterator)


def test_gradient_from_before_the_pipeline_is_refused(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop:
        loop.backward(loop.log[0])
        with loop.pipeline as batches, pytest.raises(hps.PendingGradientError):
            next(iter(batches))


def test_skipped_amp_step_lets_the_loop_go_on(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with loop.pipeline as batches:
            for number, batch in enumerate(batches):
                loss = loop.embedding(batch).sum() * (float("inf") if number == 0 else 1.0)
                scaler.scale(loss).backward()
                scaler.step(loop.optimizer)
                scaler.update()
        assert loop.server.num_rows("ads") == 3  # keys 2, 3, 4: the first batch was skipped


def test_refused_batch_takes_nothing(tmp_path: Path, depth: int) -> None:
    too_many = one_feature_batch(list(range(100_000)))
    with open_server(tmp_path, dim=16, dram="1MiB") as server:
        with (
            hps.Pipeline([too_many], server, depth) as batches,
            pytest.raises(hps.CapacityError),
        ):
            next(iter(batches))
        assert pins_of(server) == 0
        embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
        embedding(one_feature_batch([1])).sum().backward()
        optimizer.step()
        assert server.num_rows("ads") == 1


@pytest.mark.parametrize(
    "wrong", [{"depth": 9}, {"depth": -1}, {"depth": 1.0}, {"accumulate": 0}, {"accumulate": True}]
)
def test_depth_and_accumulate_have_limits(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with open_server(tmp_path) as server:
        ((name, value),) = wrong.items()
        with pytest.raises(hps.ConfigError, match=f"{name}={value!r}"):
            hps.Pipeline([], server, **wrong)


def test_batches_come_only_inside_the_block(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop:
        with pytest.raises(hps.ConfigError, match="with"):
            next(iter(loop.pipeline))
        with loop.pipeline as batches:
            next(iter(batches))
        assert next(iter(loop.pipeline), None) is None
        with pytest.raises(hps.ConfigError, match="twice"):
            loop.pipeline.__enter__()


def test_restore_is_refused_while_a_pipeline_is_open(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop:
        loop.server.checkpoint(tag="start")
        with loop.pipeline as batches:
            loop.backward(next(iter(batches)))
            loop.optimizer.step()
            with pytest.raises(hps.ConfigError, match="pipeline"):
                loop.server.restore("start")
        loop.server.restore("start")
        assert loop.server.num_rows("ads") == 0


def test_stages_report_their_seconds(tmp_path: Path, depth: int) -> None:
    with Loop(tmp_path, depth) as loop, loop.pipeline as batches:
        for batch in batches:
            loop.backward(batch)
            loop.optimizer.step()
        seconds = batches.seconds()
        assert list(seconds) == ["network", "fetch", "copy", "compute"]
        assert seconds["compute"]["busy_seconds"] > 0 and seconds["fetch"]["busy_seconds"] > 0
