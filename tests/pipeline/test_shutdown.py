"""However a pipeline ends, no thread and no pin stays, nothing is lost, and the loop is told why.

Above it: pytest. Below it: scenario.py, tests/front.py.
"""

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.pipeline.clock import StageClock
from hps.pipeline.work import StageWork
from hps.reader import ReaderConfig, open_reader
from tests.front import around_pins, one_feature_batch, open_server, wait_until
from tests.lab import Lab, keys_of, table
from tests.logs import write_criteo
from tests.pipeline.scenario import Scenario, run


@pytest.fixture(params=[0, 1, 4])
def depth(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def log_of(num_batches: int) -> Iterator[hps.Batch]:
    for number in range(num_batches):
        yield one_feature_batch([number, number + 1], number + 1)


def stage_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hps ")]


def is_main_thread_in(function: str) -> bool:
    """True while the main thread is in a function of that name, or in what that calls."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def is_main_thread_asleep() -> bool:
    """True while it waits in the system, and not for a processor."""
    return Path("/proc/self/stat").read_text().rpartition(") ")[2][0] == "S"


def interrupt_main_thread_in(function: str) -> None:
    """Once it sleeps there: Python would not wake it for an interrupt that came just before."""
    wait_until(lambda: is_main_thread_in(function))
    time.sleep(0.1)
    wait_until(lambda: is_main_thread_asleep() and is_main_thread_in(function))
    os.kill(os.getpid(), signal.SIGINT)


def train(server: Any, batches: Any) -> Iterator[hps.Batch]:
    """Steps over batches, yielding each after its step."""
    embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
    for batch in batches:
        embedding(batch).sum().backward()
        optimizer.step()
        yield batch


def test_threads_live_as_long_as_the_block(tmp_path: Path, depth: int) -> None:
    with open_server(tmp_path) as server:
        with hps.Pipeline(log_of(50), server, depth) as batches:
            next(batches)
            assert len(stage_threads()) == (0 if depth == 0 else 2)
        assert stage_threads() == [] and server.pins == 0


def test_with_a_gpu_cache_each_of_the_four_stages_has_its_thread(tmp_path: Path) -> None:
    scenario = Scenario(seed=3)
    lab = Lab("gpu", tmp_path)
    with lab.server(*scenario.tables(), scale=1.0) as server:
        with hps.Pipeline(scenario.batches(), server, 4) as batches:
            next(batches)
            assert stage_threads() == ["hps network", "hps copy", "hps fetch"]
            seconds = batches.seconds()
            assert all(seconds[stage]["busy_seconds"] > 0 for stage in ("fetch", "copy"))
            time.sleep(0.05)  # fetches are under way, or wait for a release
        assert stage_threads() == [] and server.pins == 0
        assert server.stats()["gpu_cache"]["misses"] > 0


def test_what_waits_in_dram_is_let_go_once_it_is_above(tmp_path: Path) -> None:
    lab = Lab("gpu", tmp_path)
    with lab.server(table(name="ads"), scale=4.0) as server:
        server.push("ads", keys_of(1, 2), np.ones((2, 4), np.float32))
    with lab.server(table(name="ads"), scale=4.0) as server:
        work = StageWork(log_of(2), server, StageClock(), accumulate=1)
        prepared = work.read()
        assert prepared is not None
        work.warm(prepared)
        assert sum(rows.num_rows for rows in prepared.warm.values()) == 1  # key 1 is stored
        work.pin(prepared)
        work.place(prepared)
        assert sum(rows.num_rows for rows in prepared.warm.values()) == 0
        assert server.pins == 2
        prepared.release()
        assert server.pins == 0


def test_end_of_data_stays_the_end(tmp_path: Path, depth: int) -> None:
    with open_server(tmp_path) as server, hps.Pipeline(log_of(3), server, depth) as batches:
        assert len(list(batches)) == 3
        assert next(batches, None) is None and next(batches, None) is None
    with open_server(tmp_path) as server, hps.Pipeline([], server, depth) as batches:
        assert list(batches) == []


def test_error_of_the_reader_comes_after_the_batches_before_it(tmp_path: Path, depth: int) -> None:
    def broken() -> Iterator[hps.Batch]:
        yield from log_of(3)
        raise KeyError("line 17")

    with open_server(tmp_path) as server:
        with hps.Pipeline(broken(), server, depth) as batches:
            with pytest.raises(KeyError, match="line 17") as raised:
                for _ in train(server, batches):
                    pass
            assert raised.value.__notes__ == [
                "raised in pipeline stage 'network', batch 4 (from 1)"
            ]
            assert batches.state_dict() == {"batch": 3}
            with pytest.raises(KeyError, match="line 17"):
                next(batches)
        assert server.num_rows("ads") == 4 and server.pins == 0 and stage_threads() == []


def test_error_of_a_fetch_comes_after_the_batches_before_it(tmp_path: Path, depth: int) -> None:
    with open_server(tmp_path) as server:
        calls = []

        def broken_pin(pin: Callable[[], Any], keys: list[int]) -> Any:
            calls.append(keys)
            if len(calls) == 3:
                raise hps.StoreError("no space")
            return pin()

        around_pins(server, broken_pin)
        with hps.Pipeline(log_of(6), server, depth) as batches:
            with pytest.raises(hps.StoreError, match="no space") as raised:
                for _ in train(server, batches):
                    pass
            assert raised.value.__notes__ == ["raised in pipeline stage 'fetch', batch 3 (from 1)"]
            assert batches.state_dict() == {"batch": 2}
        assert server.num_rows("ads") == 3 and server.pins == 0


@pytest.mark.parametrize("how", ["break", "error"])
def test_batches_fetched_and_never_trained_leave_no_trace(
    tmp_path: Path, depth: int, how: str
) -> None:
    with open_server(tmp_path / "whole") as server:
        with hps.Pipeline(log_of(3), server, depth) as batches:
            for _ in train(server, batches):
                pass
        wanted = server.digest("ads"), server.num_rows("ads")
    with open_server(tmp_path / "left") as server:
        pinned = _keep_pinned(server)
        ends = contextlib.nullcontext() if how == "break" else pytest.raises(KeyError, match="user")
        with ends, hps.Pipeline(log_of(20), server, depth) as batches:
            for batch in train(server, batches):
                if batch.position == {"batch": 3}:
                    _wait_until_prepared(server, batches)
                    if how == "break":
                        break
                    raise KeyError("a user's error")
        assert server.pins == 0 and stage_threads() == []
        assert len(pinned) >= 2 * (3 + depth) and all(rows.is_released for rows in pinned)
        assert (server.digest("ads"), server.num_rows("ads")) == wanted
        assert batches.state_dict() == {"batch": 3}
        info = server.checkpoint()
        assert info["rows_written"] == wanted[1]


def _keep_pinned(server: Any) -> list[Any]:
    """The rows that are pinned from now on, held: those that are dropped let go by themselves."""
    pinned: list[Any] = []

    def kept_pin(pin: Callable[[], Any], keys: list[int]) -> Any:
        rows = pin()
        pinned.extend([rows, *rows.of_tables().values()])
        return rows

    around_pins(server, kept_pin)
    return pinned


def _wait_until_prepared(server: Any, batches: hps.Pipeline) -> None:
    """Until as many batches are pinned ahead as may be: the premise of having some to drop."""
    wait_until(lambda: server.pins == 2 * batches.depth)


@pytest.mark.parametrize("has_gradient", [False, True])
def test_error_between_forward_and_step_leaves_the_last_step(
    tmp_path: Path, depth: int, has_gradient: bool
) -> None:
    digests = []
    for name in ("whole", "broken"):
        with open_server(tmp_path / name) as server:
            embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
            is_broken = name == "broken"
            ends = pytest.raises(KeyError, match="user") if is_broken else contextlib.nullcontext()
            with ends, hps.Pipeline(log_of(10), server, depth) as batches:
                for number, batch in enumerate(batches):
                    if not is_broken and number == 3:
                        break
                    loss = embedding(batch).sum()
                    if number < 3 or has_gradient:
                        loss.backward()
                    if is_broken and number == 3:
                        raise KeyError("a user's error")
                    optimizer.step()
            assert server.pins == 0
            digests.append(server.digest("ads"))
    assert digests[0] == digests[1]


def test_ctrl_c_while_the_loop_waits_ends_everything(tmp_path: Path, depth: int) -> None:
    is_reached, is_over = threading.Event(), threading.Event()

    def slow() -> Iterator[hps.Batch]:
        yield from log_of(2)
        is_reached.set()
        is_over.wait(60)
        yield from log_of(2)

    def interrupt() -> None:
        wait_until(lambda: is_reached.is_set() and server.num_rows("ads") == 3)
        interrupt_main_thread_in("take_ready" if depth else "slow")
        wait_until(lambda: depth == 0 or is_main_thread_in("join"))
        is_over.set()  # the reader returns; at depth 0 the interrupt came out of it

    with open_server(tmp_path) as server:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt), hps.Pipeline(slow(), server, depth) as batches:
            for _ in train(server, batches):
                pass
        thread.join()
        assert server.pins == 0 and stage_threads() == [] and server.num_open_pipelines == 0
        assert server.num_rows("ads") == 3


def test_second_ctrl_c_does_not_wait_for_a_reader_that_blocks(tmp_path: Path) -> None:
    may_end = threading.Event()

    def blocked() -> Iterator[hps.Batch]:
        yield from log_of(1)
        may_end.wait(30)

    def interrupt() -> None:
        for place in ("take_ready", "join"):
            interrupt_main_thread_in(place)

    with open_server(tmp_path) as server:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt), hps.Pipeline(blocked(), server, 2) as batches:
            for _ in train(server, batches):
                pass
        thread.join()
        assert not may_end.is_set() and server.pins == 0
        may_end.set()


def test_waiting_costs_no_processor_time_and_nobody_looks_whether_it_is_over(
    tmp_path: Path,
) -> None:
    """Beside what the process costs that sleeps as long."""

    def slow() -> Iterator[hps.Batch]:
        yield from log_of(1)
        time.sleep(0.5)
        yield from log_of(1)

    def cost(wait: Callable[[], object]) -> tuple[float, int]:
        before = resource.getrusage(resource.RUSAGE_SELF)
        wait()
        after = resource.getrusage(resource.RUSAGE_SELF)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return seconds, after.ru_nvcsw - before.ru_nvcsw

    with open_server(tmp_path) as server:
        for _ in range(9):  # threads of other tests may be at work beside one of them
            asleep = cost(lambda: time.sleep(0.5))
            with hps.Pipeline(slow(), server, 4) as batches:
                next(batches)
                waiting = cost(lambda: next(batches))
            # A thread that spins takes half a second.
            # One that looks every five milliseconds goes to sleep 100 times.
            if waiting[0] < asleep[0] + 0.1 and waiting[1] < asleep[1] + 40:
                return
    pytest.fail(f"to wait costs {waiting}, to sleep {asleep}")


def test_only_one_thread_touches_the_batches(tmp_path: Path, depth: int) -> None:
    class Touchy:
        """As an iterable over a connection that belongs to a thread."""

        def __init__(self) -> None:
            self.threads: set[int] = set()

        def __iter__(self) -> Iterator[hps.Batch]:
            for batch in log_of(6):
                self.threads.add(threading.get_ident())
                yield batch

    touchy = Touchy()
    with open_server(tmp_path) as server, hps.Pipeline(touchy, server, depth) as batches:
        assert len(list(batches)) == 6
    assert len(touchy.threads) == 1
    assert (threading.get_ident() in touchy.threads) == (depth == 0)


@pytest.mark.parametrize("how", ["break", "stop_reading"])
def test_reader_goes_on_where_the_loop_stood(tmp_path: Path, depth: int, how: str) -> None:
    log = write_criteo(tmp_path / "log.txt", 200)
    with open_server(tmp_path) as server:
        config = ReaderConfig(format="criteo", batch_size=10)
        tables = [hps.TableConfig(name="ads", dim=4)]
        reader = open_reader(log, tables=tables, config=config)
        whole = [batch.labels.tolist() for batch in reader]
        labels = []
        while len(labels) < len(whole):
            with hps.Pipeline(reader, server, depth) as batches:
                for batch in batches:
                    labels.append(batch.labels.tolist())
                    if len(labels) % 3 == 0 and how == "break":
                        break
                    if how == "stop_reading":
                        batches.stop_reading()
            assert reader.state_dict()["examples"] == 10 * len(labels)
    assert labels == whole


def test_a_reader_that_was_set_before_the_block_is_put_back_to_there(
    tmp_path: Path, depth: int
) -> None:
    log = write_criteo(tmp_path / "log.txt", 200)
    tables = [hps.TableConfig(name="ads", dim=4)]
    reader = open_reader(log, tables=tables, config=ReaderConfig(format="criteo", batch_size=10))
    states = []
    for _ in reader:
        states.append(reader.state_dict())
    with open_server(tmp_path) as server:
        batches = hps.Pipeline(reader, server, depth)
        reader.load_state_dict(states[4])
        with batches:
            assert batches.state_dict() == states[4]
            wait_until(lambda: depth == 0 or server.pins > 0)  # premise: it has read
        assert reader.state_dict() == states[4]


def test_a_step_that_cannot_be_pinned_as_one_is_refused(tmp_path: Path, depth: int) -> None:
    scenario = Scenario(seed=3, accumulate=4, has_turns=False, num_batches=8)
    with pytest.raises(hps.CapacityError, match=r"distinct keys.*slots.*accumulate") as raised:
        run(scenario, tmp_path, depth, scale=1.0)
    assert any("stage 'fetch'" in note for note in raised.value.__notes__)


def test_a_batch_larger_than_the_cache_is_refused_and_the_reader_put_back(
    tmp_path: Path, depth: int
) -> None:
    class Numbered:
        """Two batches that fit, then one that does not."""

        def __init__(self) -> None:
            self.loaded: dict[str, Any] | None = None

        def __iter__(self) -> Iterator[hps.Batch]:
            yield from log_of(2)
            yield one_feature_batch(list(range(100_000)), 3)

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.loaded = state

    batches = Numbered()
    with open_server(tmp_path, dim=16, dram="1MiB") as server:
        with (
            pytest.raises(hps.CapacityError, match="100000 distinct"),
            hps.Pipeline(batches, server, depth) as prepared,
        ):
            for _ in train(server, prepared):
                pass
        assert server.pins == 0 and server.num_rows("ads") == 3
    assert batches.loaded == {"batch": 2}


def test_a_stage_that_fails_outside_a_batch_is_told_to_the_loop(tmp_path: Path) -> None:
    class Work(StageWork):
        def queueing(self) -> Any:
            raise MemoryError("no stream to be had")

    class Broken(hps.Pipeline):
        _work_type = Work

    with open_server(tmp_path) as server:
        with Broken(log_of(3), server, 2) as batches:
            for _ in range(2):
                with pytest.raises(MemoryError, match="no stream") as raised:
                    next(batches)
            assert raised.value.__notes__ == ["raised in pipeline stage 'fetch'"]
        assert server.pins == 0 and stage_threads() == []


def test_a_batch_refused_above_keeps_nothing_below(tmp_path: Path, depth: int) -> None:
    lab = Lab("gpu", tmp_path)
    with lab.server(table(name="ads")) as server:
        keys = np.arange(3000, dtype=np.uint64)
        server.assign("ads", keys, np.ones((3000, 4), np.float32))
        server.checkpoint("start")
        log = [one_feature_batch([1, 2], 1), one_feature_batch(keys.tolist(), 2)]
        fetches = server.stats()["dram_cache"]["misses"]
        try:
            with hps.Pipeline(log, server, depth) as batches:
                for _ in batches:
                    pass
        except hps.CapacityError as error:  # which holds what the stage held, while it lives
            assert "3000 distinct" in str(error)
            assert server.stats()["dram_cache"]["misses"] > fetches  # premise: it was warmed
            assert server.pins == 0
            server.restore("start")
        else:
            pytest.fail("the second batch fits")


def test_an_interrupt_behind_a_pin_leaves_no_pin(tmp_path: Path) -> None:
    pins = []

    class Work(StageWork):
        def place(self, prepared: Any) -> None:
            pins.append(server.pins)
            raise KeyboardInterrupt

    class Interrupted(hps.Pipeline):
        _work_type = Work

    with open_server(tmp_path) as server:
        try:
            with Interrupted(log_of(3), server, 0) as batches:
                next(batches)
        except KeyboardInterrupt:  # which holds the frames that it went through, while it lives
            assert server.pins == 0 and pins == [2]
        else:
            pytest.fail("the interrupt did not come out of the block")


def test_a_block_left_by_another_thread_ends_the_iteration(tmp_path: Path) -> None:
    may_go_on = threading.Event()

    def slow() -> Iterator[hps.Batch]:
        yield from log_of(1)
        may_go_on.wait(60)

    with open_server(tmp_path) as server, hps.Pipeline(slow(), server, 2) as batches:
        assert len(next(batches)) == 2
        timer = threading.Timer(0.2, batches.__exit__, (None, None, None))
        timer.start()
        threading.Timer(0.4, may_go_on.set).start()
        assert list(batches) == []
        timer.join()
        assert server.pins == 0 and server.num_open_pipelines == 0


def test_pins_of_another_thread_refuse_a_batch_at_any_depth_and_no_batch_is_lost(
    tmp_path: Path, depth: int
) -> None:
    """They are not waited for; once they are gone a new pipeline goes on, to the same rows."""
    log = write_criteo(tmp_path / "log.txt", 200)
    tables = [hps.TableConfig(name="ads", dim=4, optimizer=hps.Adagrad(lr=0.1))]
    config = ReaderConfig(format="criteo", batch_size=10)
    digests = []
    for is_disturbed in (False, True):
        lab = Lab("native", tmp_path / str(is_disturbed))
        reader = open_reader(log, tables=tables, config=config)
        with lab.server(*tables, scale=4.0) as server:
            refused: list[str] = []
            while True:
                own: list[Any] = []
                if is_disturbed and not refused:
                    other = threading.Thread(target=_pin_most, args=(server, own))
                    other.start()
                    other.join()
                try:
                    with hps.Pipeline(reader, server, depth) as batches:
                        for _ in train(server, batches):
                            pass
                    break
                except hps.CapacityError as error:
                    refused.append(str(error))
                    assert server.pins == len(own)
                    for rows in own:
                        rows.release()
            assert len(refused) == is_disturbed and server.pins == 0
            digests.append(server.digest("ads"))
    assert digests[0] == digests[1]


def _pin_most(server: Any, own: list[Any]) -> None:
    capacity = server.stats()["dram_cache"]["capacity_rows"]
    for key in range(2**40, 2**40 + 20 * capacity):
        with contextlib.suppress(hps.CapacityError):
            own.append(server.pin("ads", np.array([key], np.uint64)))
    assert server.pins > 0.95 * capacity
