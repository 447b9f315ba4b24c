"""RowCodec: weights of rows as a published version has them, in one of five types.

Above it: publisher.py, which encodes, and followers, which decode. Below it: numpy. Arithmetic that
trains is float32; these are formats for serving.
"""

from dataclasses import dataclass

import numpy as np

from hps.common.bfloat16 import LARGEST_ROUNDED, narrowed, widened
from hps.common.row_layout import Floats, Images, Keys
from hps.errors import ConfigError, NonFiniteError

FLOAT32, FLOAT16, BFLOAT16, INT8, INT4 = "float32", "float16", "bfloat16", "int8", "int4"
DTYPES = (FLOAT32, FLOAT16, BFLOAT16, INT8, INT4)

_SCALE_BYTES = 4
_STEPS = {INT8: 127, INT4: 7}  # from 0 to the largest weight of a row
_LARGEST = {FLOAT16: float(np.finfo(np.float16).max), BFLOAT16: LARGEST_ROUNDED}


@dataclass(frozen=True)
class RowCodec:
    """How the weights of one row become bytes, and back.

    float16 and bfloat16 are rounded to the nearest. int8 and int4 are whole multiples of a scale of
    the row, its largest weight by 127 or by 7, which comes first as a float32: a weight is off by
    half of it at most. Two weights of int4 share a byte, the first one its lower half.

    Args:
        dtype: one of DTYPES.
        dim: weights of a row.

    Raises:
        ConfigError: another type.

    >>> RowCodec("float32", 16).row_bytes, RowCodec("int8", 16).row_bytes
    (64, 20)
    >>> codec = RowCodec("int4", 3)
    >>> codec.row_bytes, codec.decode(codec.encode(np.array([[7, -3.4, 0]], np.float32))).tolist()
    (6, [[7.0, -3.0, 0.0]])
    """

    dtype: str
    dim: int

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r} must be one of {list(DTYPES)}")

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        if self.dtype == INT8:
            return _SCALE_BYTES + self.dim
        if self.dtype == INT4:
            return _SCALE_BYTES + (self.dim + 1) // 2
        return self.dim * (4 if self.dtype == FLOAT32 else 2)

    def check(self, keys: Keys, weights: Floats, table: str) -> None:
        """Refuses weights that the type cannot hold.

        Raises:
            NonFiniteError: names table and key.
        """
        largest = _LARGEST.get(self.dtype)
        if largest is None or not len(weights):
            return
        rows = np.flatnonzero(np.abs(weights).max(axis=1) > largest)
        if len(rows):
            raise NonFiniteError(
                f"table {table!r}: key {int(keys[rows[0]])} has a weight beyond {largest:.6g}, the "
                f"largest of {self.dtype}; publish with dtype='float32'"
            )

    def encode(self, weights: Floats) -> Images:
        """float32 [n, dim], contiguous -> uint8 [n, row_bytes]."""
        if self.dtype == FLOAT32:
            return weights.view(np.uint8)
        if self.dtype == FLOAT16:
            return weights.astype(np.float16).view(np.uint8)
        if self.dtype == BFLOAT16:
            return narrowed(weights).view(np.uint8)
        rows = np.empty((len(weights), self.row_bytes), np.uint8)
        scales = np.abs(weights).max(axis=1, keepdims=True) / np.float32(_STEPS[self.dtype])
        rows[:, :_SCALE_BYTES] = scales.astype(np.float32).view(np.uint8)
        # A row of zeros, or of numbers too small for a scale, is zeros.
        safe = np.where(scales > 0, scales, np.float32(1))
        steps = np.rint(weights / safe).clip(-_STEPS[self.dtype], _STEPS[self.dtype])
        steps[scales[:, 0] == 0] = 0
        whole = steps.astype(np.int8)
        if self.dtype == INT8:
            rows[:, _SCALE_BYTES:] = whole.view(np.uint8)
            return rows
        halves = np.zeros((len(weights), (self.dim + 1) // 2 * 2), np.uint8)
        halves[:, : self.dim] = whole.view(np.uint8) & 15
        rows[:, _SCALE_BYTES:] = halves[:, ::2] | halves[:, 1::2] << 4
        return rows

    def decode(self, rows: Images) -> Floats:
        """uint8 [n, row_bytes], contiguous -> float32 [n, dim]."""
        if self.dtype == FLOAT32:
            return rows.view(np.float32)
        if self.dtype == FLOAT16:
            return rows.view(np.float16).astype(np.float32)
        if self.dtype == BFLOAT16:
            return widened(rows.view(np.uint16))
        scales = np.ascontiguousarray(rows[:, :_SCALE_BYTES]).view(np.float32)
        if self.dtype == INT8:
            return np.ascontiguousarray(rows[:, _SCALE_BYTES:]).view(np.int8) * scales
        pairs = rows[:, _SCALE_BYTES:]
        halves = np.empty((len(rows), 2 * pairs.shape[1]), np.int8)
        halves[:, ::2], halves[:, 1::2] = pairs & 15, pairs >> 4
        signed = (halves[:, : self.dim] ^ 8) - 8  # of four bits with a sign
        return signed * scales
