"""Interleaved repetitions and their spread.

Above it: every benchmark. Below it: the clock. A machine drifts over minutes, so contenders take
turns (hps, peer, peer, hps, ...) and ratios compare neighbours in time.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Samples:
    """One figure a repetition, in order.

    >>> Samples((1.0, 5.0, 3.0)).median
    3.0
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> list[float]:
        """Smallest and largest."""
        return [min(self.values), max(self.values)]

    def over(self, other: "Samples") -> "Samples":
        """Ratios of repetitions that stood side by side."""
        pairs = zip(self.values, other.values, strict=True)
        return Samples(tuple(mine / theirs for mine, theirs in pairs))


def interleave(
    contenders: Mapping[str, Callable[[], float]], repetitions: int
) -> dict[str, Samples]:
    """Runs every contender once a repetition, in turn; each call returns its figure."""
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, measure in contenders.items():
            figures[name].append(measure())
    return {name: Samples(tuple(values)) for name, values in figures.items()}


class StepTimer:
    """Times steps over batches that are cycled; keeps its place between repetitions.

    Args:
        step: does one step on the batch of that index.
        num_batches: distinct batches.
        steps: timed steps a repetition. Untimed ones come first, at least two and for a while: they
            refill the caches, and the threads of a peer that had its turn before go to sleep, which
            OpenMP's do some milliseconds after their last work.
    """

    WARM_UP = 2
    WARM_UP_SECONDS = 0.05

    def __init__(self, step: Callable[[int], object], num_batches: int, steps: int) -> None:
        self._step = step
        self._num_batches = num_batches
        self._steps = steps
        self._next = 0
        self.slowest_seconds = 0.0
        self.total_seconds = 0.0
        self.total_steps = 0

    def median_seconds(self) -> float:
        """The median step of one repetition; rare stalls are thereby left out."""
        warm_at = time.perf_counter() + self.WARM_UP_SECONDS
        num_before = 0
        while num_before < self.WARM_UP or time.perf_counter() < warm_at:
            self._one_step()
            num_before += 1
        seconds = [self._one_step() for _ in range(self._steps)]
        self.slowest_seconds = max(self.slowest_seconds, *seconds)
        self.total_seconds += sum(seconds)
        self.total_steps += len(seconds)
        return statistics.median(seconds)

    def _one_step(self) -> float:
        """The next step's seconds."""
        idx = self._next % self._num_batches
        self._next += 1
        start = time.perf_counter()
        self._step(idx)
        return time.perf_counter() - start
