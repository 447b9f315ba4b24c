"""How many values the bags of a generated log hold: a law of lengths from its mean.

Above it: config.py, planted.py. Below it: numpy.
"""

import math

import numpy as np
import numpy.typing as npt

ZIPF, FIXED = "zipf", "fixed"
BAG_LENGTHS = (ZIPF, FIXED)
MAX_BAG = 1024
# The longest bag of a Zipf-like law has this many times the mean.
LONGEST_RATIO = 8
_STEEPEST = 64.0
_BISECTIONS = 100


def longest_bag(mean: float, lengths: str) -> int:
    """Values of the longest bag.

    >>> longest_bag(2.5, "zipf"), longest_bag(3.0, "fixed"), longest_bag(1.0, "zipf")
    (20, 3, 1)
    """
    if lengths == FIXED or mean == 1.0:
        return int(mean)
    return math.ceil(LONGEST_RATIO * mean)


def length_law(mean: float, lengths: str) -> npt.NDArray[np.float64]:
    """The probabilities of a bag of at most 1, 2, ... values, float64 [longest].

    A Zipf-like length n has a probability ~ n^-a, with the a whose mean is the one asked for.

    >>> length_law(3.0, "fixed")
    array([0., 0., 1.])
    """
    sizes = np.arange(1.0, longest_bag(mean, lengths) + 1)
    if lengths == FIXED:
        return np.asarray(sizes == sizes[-1], np.float64)
    low, high = 0.0, _STEEPEST
    for _ in range(_BISECTIONS):
        exponent = (low + high) / 2
        weights = sizes**-exponent
        is_long = weights @ sizes > mean * weights.sum()
        low, high = (exponent, high) if is_long else (low, exponent)
    law: npt.NDArray[np.float64] = np.cumsum(sizes**-high)
    law /= law[-1]
    return law
