"""KeyLaw: how many distinct keys a number of examples is expected to have, under Zipf laws.

Above it: hps.plan. Below it: numpy. The expectation is exact but for the tail of a law, whose ranks
are taken together in runs of nearly equal probability.
"""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_HEAD_RANKS = 1 << 10  # that stand for themselves
_RUN_GROWTH = 1.02  # from the first to the last rank of a run of the tail
_NEARLY_ONE = 1 - 2.0**-50  # a caller that has one key has it in every example
_MOST_DRAWS = 2.0**100
_BISECTIONS = 40


class KeyLaw:
    """Examples of one key a feature and id, each drawn from its feature's Zipf law.

    Args:
        cardinalities: keys of each feature; features share none.
        alpha: exponent, P(rank) ~ rank^-alpha; 0 is uniform.
        ids: keys that an example has of each feature.

    >>> law = KeyLaw([1000], alpha=0.0)
    >>> law.unique(0), round(law.unique(1), 6), round(law.unique(1e9))
    (0.0, 1.0, 1000)
    """

    def __init__(self, cardinalities: Sequence[int], alpha: float, ids: int = 1) -> None:
        # Features of equal size have equal laws, of which one is enough.
        laws = [(*_zipf(size, alpha), number) for size, number in Counter(cardinalities).items()]
        probabilities = np.concatenate([probability for probability, _, _ in laws])
        self._log_absent = ids * np.log1p(-np.minimum(probabilities, _NEARLY_ONE))
        self._counts = np.concatenate([number * counts for _, counts, number in laws])
        self.num_keys = float(self._counts.sum())

    def unique(self, examples: float) -> float:
        """Distinct keys expected in so many examples."""
        if examples <= 0:
            return 0.0
        return float(-(self._counts * np.expm1(examples * self._log_absent)).sum())

    def examples_for(self, keys: float) -> float:
        """Examples in which so many distinct keys are expected; infinite if there are no more."""
        if keys >= self.num_keys:
            return math.inf
        low, high = 0.0, 1.0
        while self.unique(high) < keys:
            if high > _MOST_DRAWS:
                return math.inf
            low, high = high, 2 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.unique(middle) < keys else (low, middle)
        return high

    def misses(self, batch: float, cached: float) -> float:
        """Distinct keys of a batch that the `cached` keys used last are expected to lack.

        A cache of the keys used last holds the distinct keys of the examples before: of so many, T,
        that there are `cached` of them. A batch adds to them what T and the batch have more.
        """
        before = self.examples_for(cached)
        return 0.0 if math.isinf(before) else self.unique(before + batch) - self.unique(before)


def _zipf(size: int, alpha: float) -> tuple[Floats, Floats]:
    """Probabilities, falling, and how many ranks have each."""
    head = np.arange(1, min(size, _HEAD_RANKS) + 1, dtype=np.float64)
    weights, counts = head**-alpha, np.ones(len(head))
    if size > _HEAD_RANKS:
        num_runs = math.ceil(math.log((size + 0.5) / (_HEAD_RANKS + 0.5)) / math.log(_RUN_GROWTH))
        ends = np.geomspace(_HEAD_RANKS + 0.5, size + 0.5, num_runs + 1)
        counts = np.concatenate([counts, np.diff(ends)])
        weights = np.concatenate([weights, np.diff(_integral(ends, alpha)) / np.diff(ends)])
    return weights / (weights * counts).sum(), counts


def _integral(x: Floats, alpha: float) -> Floats:
    """The integral of t^-alpha up to x, but for a constant."""
    result: Floats = np.log(x) if alpha == 1.0 else x ** (1.0 - alpha) / (1.0 - alpha)
    return result
