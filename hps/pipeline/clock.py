"""Where a pipeline's time goes: busy and wait seconds of each stage.

Above it: the stages and `hps.Pipeline`. Below it: trace.py, which keeps the single slices if a
trace is asked for; NVTX, by which NVIDIA's profilers show what a stage has asked a GPU for. Each
stage's numbers are written by its own thread only.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from hps.pipeline.slices import SliceSink

STAGES = ("network", "fetch", "copy", "compute")
INPUT, OUTPUT = "input", "output"


class Ranges(Protocol):
    """As torch.cuda.nvtx: ranges of a thread, one within the other."""

    def range_push(self, msg: str) -> Any:
        """Begins one."""

    def range_pop(self) -> Any:
        """Ends the last one."""


def ranges_of(device: str) -> Ranges | None:
    """Where a pipeline over rows on a device names its phases; None unless that is a GPU."""
    if not device.startswith("cuda"):
        return None
    import torch

    ranges: Ranges = torch.cuda.nvtx
    return ranges


class StageClock:
    """Sums busy seconds, and seconds spent waiting for a neighbour, by stage.

    Waiting for input is for the stage before; for output, for room behind it or for pins to be
    released.

    Args:
        trace: which keeps the single slices.
        ranges: where the stages' work is named, batch by batch.
    """

    def __init__(self, trace: "SliceSink | None" = None, ranges: Ranges | None = None) -> None:
        self._trace = trace
        self._ranges = ranges
        self._busy = dict.fromkeys(STAGES, 0.0)
        self._waits = {side: dict.fromkeys(STAGES, 0.0) for side in (INPUT, OUTPUT)}
        self._computing_since: float | None = None
        self._computing = 0

    @contextmanager
    def busy(self, stage: str, number: int) -> Iterator[None]:
        """Counts the block's duration as a stage's work on batch `number`."""
        if self._ranges is not None:
            self._ranges.range_push(f"hps {stage} {number}")
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self._busy[stage] += end - start
            if self._ranges is not None:
                self._ranges.range_pop()
            if self._trace is not None:
                self._trace.add(stage, number, start, end)

    @contextmanager
    def waiting(self, stage: str, side: str) -> Iterator[None]:
        """Counts the block's duration as a stage's wait."""
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self._waits[side][stage] += end - start
            if self._trace is not None:
                self._trace.add_wait(stage, side, start, end)

    def start_compute(self, number: int) -> None:
        """Batch `number` has been handed to the training loop."""
        self._computing = number
        if self._ranges is not None:
            self._ranges.range_push(f"hps compute {number}")
        self._computing_since = time.perf_counter()

    def stop_compute(self) -> None:
        """The training loop has asked for more, or is done."""
        since, self._computing_since = self._computing_since, None
        if since is not None:
            end = time.perf_counter()
            self._busy["compute"] += end - since
            if self._ranges is not None:
                self._ranges.range_pop()
            if self._trace is not None:
                self._trace.add("compute", self._computing, since, end)

    def seconds(self) -> dict[str, dict[str, float]]:
        """Stage -> busy_seconds, wait_seconds and its parts wait_input_ and wait_output_seconds."""
        return {
            stage: {
                "busy_seconds": self._busy[stage],
                "wait_seconds": self._waits[INPUT][stage] + self._waits[OUTPUT][stage],
                "wait_input_seconds": self._waits[INPUT][stage],
                "wait_output_seconds": self._waits[OUTPUT][stage],
            }
            for stage in STAGES
        }


def add_seconds(
    total: dict[str, dict[str, float]], seconds: Mapping[str, Mapping[str, float]]
) -> None:
    """Adds the seconds of one pipeline to those of a run's others.

    >>> total = {"fetch": {"busy_seconds": 1.0}}
    >>> add_seconds(total, {"fetch": {"busy_seconds": 0.5}})
    >>> total
    {'fetch': {'busy_seconds': 1.5}}
    """
    for stage, times in seconds.items():
        sums = total.setdefault(stage, dict.fromkeys(times, 0.0))
        for name, value in times.items():
            sums[name] += value
