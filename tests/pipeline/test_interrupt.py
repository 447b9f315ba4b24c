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
from tests.front import open_server
from tests.logs import write_criteo

pytestmark = pytest.mark.timeout(60)

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
