"""The logarithm of dense values, of the readers that have numbers as floats.

Above it: the text reader, records.py. Below it: csrc/reader/signed_log.h, which the parser of
criteo and what a features file makes of a batch use, too.
"""

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import HostArray

# Stands for a missing number under "signed_log1p": log1p of no whole number, nor minus it.
MISSING = float(_C.MISSING_DENSE)


def signed_log1p(
    values: HostArray, is_missing: NDArray[np.bool_] | None = None
) -> NDArray[np.float32]:
    """log1p(x) of numbers from 0 on, -log1p(-x) below, and MISSING of those that are missing.

    >>> signed_log1p(np.array([0.0, -1.718281828459045, 9.0]), np.array([False, False, True]))
    array([ 0. , -1. , -0.5], dtype=float32)
    """
    wide = np.ascontiguousarray(values, np.float64)
    logs = np.empty(wide.shape, np.float32)
    _C.signed_log1p(wide.reshape(-1), logs.reshape(-1))
    if is_missing is not None:
        logs[is_missing] = MISSING
    return logs
