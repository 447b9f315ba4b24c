"""History: the figures of one target over eight hours, in memory that does not grow.

Above it: collector.py. Below it: numpy. New points are kept as they come, older ones as means: of
half a minute, then of four. A figure takes one number in each point of each level, whether it was
there or not, so the memory is known before the first point comes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hps.common.json_text import Json

HOURS = 8
# (seconds that a point stands for, points): 0 is each as it comes.
LEVELS = ((0.0, 180), (30.0, 240), (240.0, 120))
MOST_FIGURES = 256  # of a target
POINTS = sum(points for _, points in LEVELS)
MOST_BYTES = (MOST_FIGURES + 1) * POINTS * 8  # of a target, with the times: 1.1 MB

Column = NDArray[np.float64]


@dataclass
class _Mean:
    """Of a figure within the point that is being made."""

    total: float = 0.0
    count: int = 0


class _Level:
    """Points of one width, in a ring.

    Args:
        seconds: that a point stands for; 0: each as it comes.
        points: that are kept.
    """

    def __init__(self, seconds: float, points: int) -> None:
        self.seconds = seconds
        self._points = points
        self._num_done = 0
        self._number = -1  # of the point that is being made
        self._open: dict[str, _Mean] = {}
        self.times: Column = np.full(points, np.nan)
        self.columns: dict[str, Column] = {}

    def add(self, time: float, values: Mapping[str, float]) -> None:
        if not self.seconds:
            self._put(time, values)
            return
        number = int(time // self.seconds)
        if number != self._number:
            if self._number >= 0:
                self._close()
            self._number = number
        for name, value in values.items():
            mean = self._open.setdefault(name, _Mean())
            mean.total += value
            mean.count += 1

    def _close(self) -> None:
        means = {name: one.total / one.count for name, one in self._open.items()}
        self._put((self._number + 0.5) * self.seconds, means)
        self._open = {}

    def _put(self, time: float, values: Mapping[str, float]) -> None:
        place = self._num_done % self._points
        for column in self.columns.values():
            column[place] = np.nan
        for name, value in values.items():
            if name not in self.columns:
                self.columns[name] = np.full(self._points, np.nan)
            self.columns[name][place] = value
        self.times[place] = time
        self._num_done += 1

    def in_order(self) -> NDArray[np.int64]:
        """Places of the points, the oldest first."""
        count = min(self._num_done, self._points)
        return np.arange(self._num_done - count, self._num_done) % self._points

    def forget(self, name: str) -> None:
        self.columns.pop(name, None)
        self._open.pop(name, None)

    def nbytes(self) -> int:
        return self.times.nbytes + sum(column.nbytes for column in self.columns.values())


class History:
    """Figures by name, oldest first. One thread at a time.

    Beyond `MOST_FIGURES` names one that was not seen for eight hours gives way; is there none, the
    new one is left out and counted.

    Attributes:
        num_left_out: names that there was no room for.

    >>> history = History()
    >>> history.add(1000.0, {"auc": 0.5})
    >>> history.add(1005.0, {"auc": 0.7, "loss": 0.4})
    >>> history.to_json()
    {'times': [1000.0, 1005.0], 'series': {'auc': [0.5, 0.7], 'loss': [None, 0.4]}}
    """

    def __init__(self) -> None:
        self._levels = [_Level(seconds, points) for seconds, points in LEVELS]
        self._seen: dict[str, float] = {}  # when it was seen last
        self._left_out: set[str] = set()
        self._last = -math.inf

    @property
    def num_left_out(self) -> int:
        return len(self._left_out)

    def add(self, time: float, values: Mapping[str, float]) -> None:
        """Takes the figures of one moment; one that is no later than the last is passed over, and
        one that never comes.

        Args:
            time: seconds since 1970.
            values: by name; those that are not finite are left out. None at all: a gap.
        """
        if not self._last < time < math.inf:
            return
        self._last = time
        kept = {
            name: float(value)
            for name, value in values.items()
            if math.isfinite(value) and self._has_room(name, time)
        }
        for level in self._levels:
            level.add(time, kept)

    def _has_room(self, name: str, time: float) -> bool:
        if name not in self._seen and len(self._seen) >= MOST_FIGURES:
            oldest = min(self._seen, key=lambda one: self._seen[one])
            if time - self._seen[oldest] < HOURS * 3600:
                if len(self._left_out) < MOST_FIGURES:  # a set that grew would be no bound
                    self._left_out.add(name)
                return False
            del self._seen[oldest]
            for level in self._levels:
                level.forget(oldest)
        self._seen[name] = time
        return True

    def to_json(self) -> Json:
        """`times`, and `series` by name beside them; None where a figure was not there."""
        parts: list[tuple[_Level, NDArray[np.int64]]] = []
        before = math.inf
        for level in self._levels:  # from the finest on
            places = level.in_order()
            # A coarse point is told where all of it is older than what is told already.
            places = places[level.times[places] + level.seconds / 2 < before]
            if len(places):
                before = float(level.times[places[0]])
                parts.insert(0, (level, places))
        if not parts:
            return {"times": [], "series": {}}
        times = np.concatenate([level.times[places] for level, places in parts])
        is_young = times >= self._last - HOURS * 3600
        series = {}
        for name in self._seen:
            found = np.concatenate(
                [
                    level.columns[name][places]
                    if name in level.columns
                    else np.full(len(places), np.nan)
                    for level, places in parts
                ]
            )
            series[name] = _plain(found[is_young])
        return {"times": _plain(times[is_young]), "series": series}

    def nbytes(self) -> int:
        """Bytes of all points; `MOST_BYTES` at most."""
        return sum(level.nbytes() for level in self._levels)


def _plain(values: Column) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
