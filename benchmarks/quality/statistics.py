"""What pairs of runs say: the mean difference and its 95 % interval.

Above it: the rows of the benchmarks. Below it: nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t at 0.975 for 1, 2, ... 30 degrees of freedom; beyond, the last one, a little wide.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def mean(values: Sequence[float]) -> float:
    """The arithmetic one."""
    return math.fsum(values) / len(values)


@dataclass(frozen=True)
class Interval:
    """A mean difference and the 95 % interval of Student's t around it; None of a single pair."""

    difference: float
    low: float | None
    high: float | None

    def reaches(self, bar: float) -> bool:
        """True unless it is shown to be below the bar: the upper end is above it."""
        return (self.difference if self.high is None else self.high) > bar


def paired(values: Sequence[float], others: Sequence[float]) -> Interval:
    """Of values minus others, pair by pair.

    >>> paired([0.75, 0.77, 0.79], [0.74, 0.75, 0.76])
    Interval(difference=0.02, low=-0.005, high=0.045)
    """
    differences = [one - other for one, other in zip(values, others, strict=True)]
    center = mean(differences)
    if len(differences) < 2:
        return Interval(round(center, 9), None, None)
    degrees = len(differences) - 1
    variance = math.fsum((one - center) ** 2 for one in differences) / degrees
    half = _T[min(degrees, len(_T)) - 1] * math.sqrt(variance / len(differences))
    return Interval(round(center, 9), round(center - half, 9), round(center + half, 9))
