"""Bfloat16 in numpy: the upper half of a float32, as bits.

Above it: row_layout.py, wire.py, table/row_checks.py. Below it: numpy, which has no such type. The
twin of csrc/common/bfloat16.h.
"""

import numpy as np
from numpy.typing import NDArray

# The largest float32 that is finite when it is rounded to the nearest bfloat16.
LARGEST_ROUNDED = float(np.uint32(0x7F7F7FFF).view(np.float32))


def narrowed(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Float32 values to the nearest bfloat16, to the even one of two that are as near.

    Args:
        values: float32, any shape, contiguous. NaN is 0x7fc0.

    Returns:
        uint16 of the same shape.

    >>> narrowed(np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8], np.float32)).tolist()
    [16256, 16256, 16258]
    """
    bits = values.view(np.uint32)
    rounded = bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))
    halves: NDArray[np.uint16] = (rounded >> 16).astype(np.uint16)
    is_nan = np.isnan(values)
    if is_nan.any():
        halves[is_nan] = 0x7FC0
    return halves


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Bfloat16 values as float32, exactly.

    >>> widened(np.array([16256], np.uint16)).tolist()
    [1.0]
    """
    wide = bits.astype(np.uint32)
    wide <<= 16
    floats: NDArray[np.float32] = wide.view(np.float32)
    return floats
