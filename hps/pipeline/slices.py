"""Where a pipeline's slices go while it runs: the newest of them, or several places at once.

Above it: `hps.Pipeline`, hps/train/run_metrics.py. Below it: nothing; trace.py writes a file.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

MOST_SLICES = 1024


class SliceSink(Protocol):
    """Takes slices from any thread."""

    first_number: int
    """Batches of earlier pipelines of the run."""

    def add(self, stage: str, number: int, start: float, end: float) -> None:
        """A stage worked on batch `number` from `start` to `end`, both of time.perf_counter()."""

    def add_wait(self, stage: str, side: str, start: float, end: float) -> None:
        """A stage waited for "input" or "output"."""

    def flush(self, at_least: int = ...) -> None:
        """Writes what has been collected, if there is so much; for one thread."""


class Slice(NamedTuple):
    """A stage's work on a batch, or, with `batch` 0, its wait for "input" or "output"."""

    stage: str
    side: str
    batch: int
    start: float
    end: float


class RecentSlices:
    """Keeps the newest slices in memory.

    Args:
        most: that are kept.

    >>> recent = RecentSlices(most=2)
    >>> for number in (1, 2, 3):
    ...     recent.add("fetch", number, number, number + 0.5)
    >>> [one.batch for one in recent.slices()]
    [2, 3]
    """

    def __init__(self, most: int = MOST_SLICES) -> None:
        self.first_number = 0
        # append is atomic, so that stages need no lock.
        self._slices: deque[Slice] = deque(maxlen=most)

    def add(self, stage: str, number: int, start: float, end: float) -> None:
        """As SliceSink."""
        self._slices.append(Slice(stage, "", self.first_number + number, start, end))

    def add_wait(self, stage: str, side: str, start: float, end: float) -> None:
        """As SliceSink."""
        self._slices.append(Slice(stage, side, 0, start, end))

    def flush(self, at_least: int = 0) -> None:
        """Nothing is written."""

    def slices(self) -> list[Slice]:
        """Those that are kept, in the order in which they ended."""
        return list(self._slices)  # one step of the interpreter, beside those that append


class EachSink:
    """Hands slices to several sinks.

    Args:
        sinks: in turn.
    """

    def __init__(self, sinks: Sequence[SliceSink]) -> None:
        self._sinks = sinks

    @property
    def first_number(self) -> int:
        """The same of all of them."""
        return self._sinks[0].first_number

    @first_number.setter
    def first_number(self, number: int) -> None:
        for sink in self._sinks:
            sink.first_number = number

    def add(self, stage: str, number: int, start: float, end: float) -> None:
        """As SliceSink."""
        for sink in self._sinks:
            sink.add(stage, number, start, end)

    def add_wait(self, stage: str, side: str, start: float, end: float) -> None:
        """As SliceSink."""
        for sink in self._sinks:
            sink.add_wait(stage, side, start, end)

    def flush(self, at_least: int | None = None) -> None:
        """As SliceSink; without a number each by its own rule."""
        for sink in self._sinks:
            if at_least is None:
                sink.flush()
            else:
                sink.flush(at_least)


def one_sink(sinks: Sequence[SliceSink]) -> SliceSink | None:
    """What stands for all of them; None for none."""
    if len(sinks) < 2:
        return sinks[0] if sinks else None
    return EachSink(sinks)
