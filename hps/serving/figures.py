"""ScoreFigures: what a server has scored: rows, batches, waits, and scores by version.

Above it: batcher.py counts, metrics.py shows. Below it: numpy.
"""

import threading
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from hps.common.row_layout import Floats

# Upper ends of buckets.
ROWS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
REQUESTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
SCORES = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_MOST_VERSIONS = 8  # that are told of: a server that follows a training sees thousands


@dataclass
class Histogram:
    """Values counted by buckets.

    >>> sizes = Histogram((1.0, 4.0))
    >>> sizes.add(3.0)
    >>> sizes.counts, sizes.total
    ([0, 1, 0], 3.0)
    """

    ends: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.ends) + 1)

    def add(self, value: float) -> None:
        """One value."""
        self.counts[bisect_left(self.ends, value)] += 1
        self.total += value

    def add_all(self, values: Floats) -> None:
        """Several values, float32 [n]."""
        places = np.searchsorted(np.asarray(self.ends, np.float32), values)
        for place, count in enumerate(np.bincount(places, minlength=len(self.counts)).tolist()):
            self.counts[place] += count
        self.total += float(values.sum(dtype=np.float64))

    def copy(self) -> "Histogram":
        """As it is now."""
        return Histogram(self.ends, self.total, list(self.counts))


@dataclass(frozen=True)
class Snapshot:
    """The figures at one moment."""

    rows: Histogram
    requests: Histogram
    waits: Histogram
    scores: dict[str, Histogram]
    num_rows: int


class ScoreFigures:
    """Counts since the server was started; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = Histogram(ROWS)
        self._requests = Histogram(REQUESTS)
        self._waits = Histogram(SECONDS)
        self._scores: dict[str, Histogram] = {}
        self._num_rows = 0

    def add_batch(self, waits: list[float], scores: Floats, version: str) -> None:
        """One batch that was scored.

        Args:
            waits: seconds from the arrival of each of its requests to its beginning.
            scores: float32 [rows].
            version: that scored.
        """
        with self._lock:
            self._num_rows += len(scores)
            self._rows.add(float(len(scores)))
            self._requests.add(float(len(waits)))
            for wait in waits:
                self._waits.add(wait)
            known = self._scores.pop(version, None) or Histogram(SCORES)
            known.add_all(scores)
            self._scores[version] = known  # the last one is the newest
            if len(self._scores) > _MOST_VERSIONS:
                del self._scores[next(iter(self._scores))]

    def snapshot(self) -> Snapshot:
        """A copy of the figures."""
        with self._lock:
            return Snapshot(
                self._rows.copy(),
                self._requests.copy(),
                self._waits.copy(),
                {version: one.copy() for version, one in self._scores.items()},
                self._num_rows,
            )
