"""The dense transform of the readers that have numbers as floats; that of criteo is native.

Above it: the text reader, records.py. Below it: numpy.
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
    wide = np.asarray(values, np.float64)
    logs = np.copysign(np.log1p(np.abs(wide)), wide)
    if is_missing is not None:
        logs[is_missing] = MISSING
    return logs.astype(np.float32)
