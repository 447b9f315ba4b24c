"""Interrupts that strike in the middle of the pipeline's own work: no batch gets lost unseen.

Above it: pytest. Below it: hps/pipeline/{pipeline,work}.py. A tracer raises KeyboardInterrupt at a
call in the loop's thread, where one of the operating system would be raised as well.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import hps
from hps.reader import ReaderConfig, open_reader
from tests.contracts.test_interrupt_points import IN_A_DEL, struck_at
from tests.front import one_feature_batch, open_server, wait_until
from tests.lab import Lab, table
from tests.logs import write_criteo
from tests.pipeline.test_shutdown import stage_threads

# An interrupt in a generator that is being dropped is told of, no more.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

BATCHES = 10

# At which call in hps an interrupt strikes, by where it is made and what is called.
PLACES = {
    "behind the reader": (0, "read", "__exit__"),
    "behind the pin": (0, "next", "place"),
    "at depth 0, before it is handed out": (0, "__next__", "_hand_out"),
    "behind the queue": (2, "__next__", "_hand_out"),
    "while it is handed out": (2, "_hand_out", "start_compute"),
}


def strike(caller: str, called: str, may: Callable[[], bool]) -> Callable[..., None]:
    """A tracer that interrupts once, at such a call, when it may."""

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        back = frame.f_back
        at = back is not None and (back.f_code.co_name, frame.f_code.co_name) == (caller, called)
        if at and back is not None and "pipeline" in back.f_code.co_filename and may():
            sys.settrace(None)
            raise KeyboardInterrupt

    return trace


def log_reader(folder: Path) -> Any:
    """A reader of ten batches of ten examples."""
    log = write_criteo(folder / "log.txt", 10 * BATCHES)
    tables = [hps.TableConfig(name="ads", dim=4)]
    return open_reader(log, tables=tables, config=ReaderConfig(format="criteo", batch_size=10))


@pytest.mark.parametrize("place", PLACES)
def test_a_new_pipeline_goes_on_where_the_interrupted_one_stood(tmp_path: Path, place: str) -> None:
    depth, caller, called = PLACES[place]
    whole = [batch.labels.tolist() for batch in log_reader(tmp_path)]
    reader, labels = log_reader(tmp_path), []
    with open_server(tmp_path) as server:
        try:
            with hps.Pipeline(reader, server, depth) as batches:
                sys.settrace(strike(caller, called, lambda: len(labels) == 3))
                for batch in batches:
                    labels.append(batch.labels.tolist())
        except KeyboardInterrupt:
            assert len(labels) == 3 and server.pins == 0
        finally:
            sys.settrace(None)
        assert len(labels) == 3  # premise: it has struck
        with hps.Pipeline(reader, server, depth) as batches:
            labels += [batch.labels.tolist() for batch in batches]
    assert labels == whole


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("struck_after", [3, BATCHES - 1])
def test_a_pipeline_that_lost_a_batch_says_so(
    tmp_path: Path, place: str, struck_after: int
) -> None:
    depth, caller, called = PLACES[place]
    labels: list[Any] = []
    with open_server(tmp_path) as server:
        with hps.Pipeline(log_reader(tmp_path), server, depth) as batches:
            sys.settrace(strike(caller, called, lambda: len(labels) == struck_after))
            try:
                with pytest.raises(KeyboardInterrupt):
                    for batch in batches:
                        labels.append(batch.labels)
            finally:
                sys.settrace(None)
            for _ in range(2):
                with pytest.raises(hps.ConfigError, match=r"after an interrupt.*new pipeline"):
                    next(batches)
        assert server.pins == 0


@pytest.mark.parametrize("kind", ["native", "gpu"])
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_an_interrupt_anywhere_on_the_way_out_leaves_no_thread_and_no_pin(
    tmp_path: Path, kind: str, depth: int
) -> None:
    reader, labels = log_reader(tmp_path), []
    whole = [batch.labels.tolist() for batch in log_reader(tmp_path)]
    with Lab(kind, tmp_path).server(table(), scale=20.0) as server:
        for number in range(1, 1000):
            batches = hps.Pipeline(reader, server, depth).__enter__()
            labels.append(next(batches).labels.tolist())
            error = struck_at(number, lambda batches=batches: batches.__exit__(None, None, None))
            assert server.pins == 0 and server.num_open_pipelines == 0, f"call {number}"
            if error is None:
                break
            assert stage_threads() == [], f"call {number}"
            assert next(batches, None) is None
            if len(labels) == BATCHES:
                assert labels == whole  # the reader was put back each time
                reader, labels = log_reader(tmp_path), []
        assert number > 5 and labels == whole[: len(labels)] and stage_threads() == []


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_an_interrupt_anywhere_on_the_way_in_leaves_no_thread_and_no_pin(
    tmp_path: Path, depth: int
) -> None:
    reader = log_reader(tmp_path)
    first = next(iter(log_reader(tmp_path))).labels.tolist()
    with open_server(tmp_path) as server:
        for number in range(1, 1000):
            batches = hps.Pipeline(reader, server, depth)
            error = struck_at(number, batches.__enter__)
            if error is None:
                assert next(batches).labels.tolist() == first
                batches.__exit__(None, None, None)
                break
            if IN_A_DEL in error.args:  # of what other tests have left
                batches.__exit__(None, None, None)
            assert server.num_open_pipelines == 0 and server.pins == 0, f"call {number}"
            wait_until(lambda: not stage_threads())  # one that was just being started ends, too
        assert number > 3 and server.pins == 0


def test_what_a_reader_raises_when_it_is_put_back_is_told_once(tmp_path: Path) -> None:
    class Stubborn(list[hps.Batch]):
        calls = 0

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.calls += 1
            raise OSError(f"call {self.calls}")

    log = Stubborn(one_feature_batch([number], number + 1) for number in range(6))
    with open_server(tmp_path) as server:
        with pytest.raises(OSError, match="call 1"), hps.Pipeline(log, server, 2) as batches:
            next(batches)
            wait_until(lambda: server.pins == 3)
        assert server.pins == 0 and stage_threads() == [] and server.num_open_pipelines == 0
