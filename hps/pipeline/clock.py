"""Where a pipeline's time goes: busy and wait seconds of each stage.

Above it: `hps.Pipeline`. Below it: nothing.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

STAGES = ("network", "fetch", "copy", "compute")


class StageClock:
    """Sums busy seconds, and seconds spent waiting for a neighbour, by stage."""

    def __init__(self) -> None:
        self._busy = dict.fromkeys(STAGES, 0.0)
        self._wait = dict.fromkeys(STAGES, 0.0)
        self._computing_since: float | None = None

    @contextmanager
    def busy(self, stage: str) -> Iterator[None]:
        """Counts the block's duration as work of a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._busy[stage] += time.perf_counter() - start

    def start_compute(self) -> None:
        """A batch has been handed to the training loop."""
        self._computing_since = time.perf_counter()

    def stop_compute(self) -> None:
        """The training loop has asked for more, or is done."""
        if self._computing_since is not None:
            self._busy["compute"] += time.perf_counter() - self._computing_since
            self._computing_since = None

    def seconds(self) -> dict[str, dict[str, float]]:
        """{"network": {"busy_seconds": ..., "wait_seconds": ...}, ...}."""
        return {
            stage: {"busy_seconds": self._busy[stage], "wait_seconds": self._wait[stage]}
            for stage in STAGES
        }
