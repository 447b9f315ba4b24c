"""However ranks leave a pipeline, none hangs, no pin and no thread stays, and all stand alike.

Above it: pytest. Below it: tests/cluster/ranks.py, whose watchdog fails the test where a rank
hangs.
"""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.world.halts import Halt
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import (
    PATIENCE_SECONDS,
    Failure,
    Model,
    Task,
    cluster_server,
    rows_of,
    run_ranks,
    stage_threads,
    successes,
)


@pytest.fixture(params=[0, 1, 4])
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Log:
    """A reader with a position; it takes a while at batches of its own choice."""

    def __init__(self, task: Task, rank: int, size: int, seed: int = 0) -> None:
        self._batches = list(task.batches(rank, size))
        self._chance = random.Random(1000 * seed + rank)
        self._next = 0

    def __iter__(self) -> Iterator[hps.Batch]:
        while self._next < len(self._batches):
            time.sleep(0.004 * self._chance.random())
            self._next += 1
            yield self._batches[self._next - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"batch": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["batch"]


def test_after_a_break_every_reader_stands_where_the_loop_stood(tmp_path: Path, depth: int) -> None:
    task = Task(num_batches=40)

    def body(world: LocalWorld) -> Any:
        numbers = []
        with cluster_server(task, world, tmp_path) as server:
            log, model = Log(task, world.rank, 3, seed=depth), Model(server, 3)
            optimizer = hps.RowOptimizer(server)
            for stop in (5, 6, 17):  # three pipelines, one after the other
                with hps.Pipeline(log, server, depth) as batches:
                    for batch in batches:
                        model.loss(batch).backward()
                        optimizer.step()
                        numbers.append(batch.position["batch"])
                        if len(numbers) == stop:
                            break
                assert server.pins == 0
                assert log.state_dict() == {"batch": stop}
            return numbers

    for numbers in successes(run_ranks(3, body)):
        assert numbers == list(range(1, 18))
    assert stage_threads() == []


def test_all_end_where_the_shortest_log_ends(tmp_path: Path, depth: int) -> None:
    task = Task(num_batches=12)

    def body(world: LocalWorld) -> Any:
        own = Task(num_batches=(12, 7, 9)[world.rank])
        log = Log(own, world.rank, 3)
        with cluster_server(task, world, tmp_path) as server:
            model, optimizer = Model(server, 3), hps.RowOptimizer(server)
            with hps.Pipeline(log, server, depth) as batches:
                for batch in batches:
                    model.loss(batch).backward()
                    optimizer.step()
            return batches.state_dict(), log.state_dict(), batches.is_exhausted

    results = successes(run_ranks(3, body))
    assert [result[0] for result in results] == [{"batch": 7}] * 3
    assert [result[1] for result in results] == [{"batch": 7}] * 3
    assert [result[2] for result in results] == [False, True, False]


def test_stop_reading_ends_all_ranks_after_the_same_batch(tmp_path: Path, depth: int) -> None:
    task = Task(num_batches=30)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            log, model = Log(task, world.rank, 2, seed=1), Model(server, 2)
            optimizer, numbers = hps.RowOptimizer(server), []
            with hps.Pipeline(log, server, depth) as batches:
                for batch in batches:
                    model.loss(batch).backward()
                    optimizer.step()
                    numbers.append(batch.position["batch"])
                    if len(numbers) == 6:
                        batches.stop_reading()
            return numbers, log.state_dict()

    first, second = successes(run_ranks(2, body))
    assert first == second and 6 <= len(first[0]) <= 8 + 2 * depth


@pytest.mark.parametrize(
    "error", [ValueError("its own"), KeyboardInterrupt(), hps.DataError("line 7")], ids=repr
)
@pytest.mark.parametrize("where", ["loop", "reader"])
def test_an_error_on_one_rank_ends_the_others(
    tmp_path: Path, depth: int, error: BaseException, where: str
) -> None:
    task = Task(num_batches=40)

    def failing(batches: Iterator[hps.Batch], rank: int) -> Iterator[hps.Batch]:
        for number, batch in enumerate(batches):
            if where == "reader" and rank == 1 and number == 8:
                raise error
            yield batch

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            model, optimizer = Model(server, 3), hps.RowOptimizer(server)
            try:
                log = failing(task.batches(world.rank, 3), world.rank)
                with hps.Pipeline(log, server, depth) as batches:
                    for number, batch in enumerate(batches):
                        if where == "loop" and world.rank == 1 and number == 8:
                            raise error
                        model.loss(batch).backward()
                        optimizer.step()
            finally:
                assert server.pins == 0

    started = time.monotonic()
    results = run_ranks(3, body)
    assert time.monotonic() - started < PATIENCE_SECONDS / 2
    assert isinstance(results[1], Failure) and results[1].error is error
    for rank in (0, 2):
        assert isinstance(results[rank], Failure)
        told = results[rank].error
        assert isinstance(told, hps.ClusterError)
        assert f"rank {rank}: " in str(told) and "rank 1" in str(told)
        assert type(error).__name__ in str(told)
    assert stage_threads() == []


def test_a_rank_that_never_comes_is_named_after_the_timeout(tmp_path: Path) -> None:
    task = Task(num_batches=6)
    done = threading.Event()

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            model, optimizer = Model(server, 2), hps.RowOptimizer(server)
            with hps.Pipeline(task.batches(world.rank, 2), server, 2) as batches:
                for number, batch in enumerate(batches):
                    if world.rank == 1 and number == 3:
                        done.wait(60)
                        return
                    model.loss(batch).backward()
                    optimizer.step()

    def first_ends(world: LocalWorld) -> Any:
        try:
            return body(world)
        finally:
            done.set()

    results = run_ranks(2, first_ends, timeout_seconds=5.0)
    assert isinstance(results[0], Failure)
    assert isinstance(results[0].error, hps.ClusterError)
    assert "waited 5 s for ranks [1]" in str(results[0].error)


@pytest.mark.parametrize("how", ["pipeline", "block", "close", "close-of-owner"])
def test_a_rank_whose_loop_ends_earlier_is_named_at_once(tmp_path: Path, how: str) -> None:
    task, stops = Task(num_batches=20), (5, 9, 9)

    def loop(server: Any, rank: int) -> int:
        model, optimizer = Model(server, 3), hps.RowOptimizer(server)
        log = task.batches(rank, 3)
        with hps.Pipeline(log, server, 4) if how == "pipeline" else nullcontext(log) as batches:
            for number, batch in enumerate(batches):
                if number == stops[rank]:
                    # Meanwhile the others have read as far as they have room.
                    time.sleep(0.2 if rank == 0 else 0)
                    break
                model.loss(batch).backward()
                optimizer.step()
        if how.startswith("close"):
            server._is_owner = (
                how == "close-of-owner"
            )  # as where torchrun's ranks are joined for it
            server.close()
        return stops[rank]

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            return loop(server, world.rank)

    started = time.monotonic()
    results = run_ranks(3, body)
    assert time.monotonic() - started < PATIENCE_SECONDS / 2
    said = {"pipeline": "left its pipeline", "block": "left the training"}
    what = said.get(how, "closed its server")
    assert results[0] == 5 or isinstance(results[0].error, hps.ClusterError)
    for result in results[1:]:  # whichever noticed first has told the other
        assert isinstance(result.error, hps.ClusterError)
        assert f"rank 0 has {what}" in str(result.error)
        assert "after 5 step(s)" in str(result.error)
    assert stage_threads() == []


def test_who_waits_where_a_halted_rank_has_been_goes_on() -> None:
    """Over a network a collective may end later on the others than on the rank that then halts."""
    halt = Halt(rank=2, words="has left", number=0, entered={"rows": 7, "control": 9})
    assert Halt.from_text(halt.to_text()) == halt
    for channel, number in (("rows", 7), ("control", 1), ("keys", 99)):
        halt.refuse(0, channel, number)
    for channel, number in (("rows", 8), ("control", 10)):
        with pytest.raises(hps.ClusterError, match=f"rank 0: rank 2 has left, .* {channel}"):
            halt.refuse(0, channel, number)


def test_a_rank_whose_collective_has_failed_keeps_no_other_waiting() -> None:
    def body(world: LocalWorld) -> Any:
        if world.rank == 0:
            world.halt("has ended")
        try:
            (world.keys if world.rank == 0 else world.control).barrier()
        finally:
            assert world.is_aborted

    started = time.monotonic()
    for result in run_ranks(3, body):
        assert isinstance(result.error, hps.ClusterError) and "rank 0 has ended" in str(
            result.error
        )
    assert time.monotonic() - started < PATIENCE_SECONDS / 2


def test_where_all_loops_end_together_nobody_is_named(tmp_path: Path) -> None:
    """However far apart the ranks are in time when they end."""
    task = Task(num_batches=6)

    def body(world: LocalWorld) -> Any:
        chance = random.Random(world.rank)
        with cluster_server(task, world, tmp_path) as server:
            model, optimizer, counts = Model(server, 3), hps.RowOptimizer(server), []
            for _ in range(12):
                with hps.Pipeline(task.batches(world.rank, 3), server, 2) as batches:
                    for batch in islice(batches, 2):
                        model.loss(batch).backward()
                        optimizer.step()
                        time.sleep(0.004 * chance.random())
                counts.append(server.num_rows("ads"))
                server.pull("ads", np.arange(3, dtype=np.uint64))
            return counts

    first, *others = successes(run_ranks(3, body))
    assert len(first) == 12 and others == [first, first]


def test_a_second_pipeline_beside_the_first_is_refused(tmp_path: Path) -> None:
    task = Task(num_batches=5)

    def body(world: LocalWorld) -> Any:
        with (
            cluster_server(task, world, tmp_path) as server,
            hps.Pipeline(task.batches(world.rank, 2), server, 1) as batches,
        ):
            next(batches)
            second = hps.Pipeline(task.batches(world.rank, 2), server, 1)
            with pytest.raises(hps.ConfigError, match="one is open already"):
                second.__enter__()
            return sum(1 for _ in batches)  # the first one goes on

    assert successes(run_ranks(2, body)) == [4, 4]


def test_batches_of_different_tables_are_refused_on_every_rank(tmp_path: Path, depth: int) -> None:
    task = Task(num_batches=8)

    def uneven(rank: int) -> Iterator[hps.Batch]:
        for number, batch in enumerate(task.batches(rank, 2)):
            if rank == 1 and number == 5:
                batch.features = {"ads": batch.features["ads"]}
            yield batch

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            model, optimizer, num_steps = Model(server, 2), hps.RowOptimizer(server), 0
            with (
                pytest.raises(hps.ConfigError, match=r"ranks \[1\] have no table 'users'"),
                hps.Pipeline(uneven(world.rank), server, depth) as batches,
            ):
                for batch in batches:
                    model.loss(batch).backward()
                    optimizer.step()
                    num_steps += 1
            # No rank is out of step: they can go on.
            assert server.pins == 0
            return num_steps, server.num_rows("ads"), rows_of(server)

    first, second = successes(run_ranks(2, body))
    assert first[0] == second[0] == 5
    assert first[1] == second[1] > 20


def test_a_generator_around_the_pipeline_that_is_dropped_is_no_error(tmp_path: Path) -> None:
    task = Task(num_batches=20)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:

            def batches() -> Iterator[hps.Batch]:
                with hps.Pipeline(task.batches(world.rank, 2), server, 2) as pipeline:
                    yield from pipeline

            log = batches()
            assert next(log) is not next(log)
            log.close()
            return server.num_rows("ads")  # the ranks are still in step

    assert successes(run_ranks(2, body)) == [0, 0]
