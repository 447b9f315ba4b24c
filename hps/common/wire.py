"""How the floats of rows and gradients travel: float32, float16, bfloat16 or int8 a row.

Above it: the service's client and server. Below it: wire_format.py, bfloat16.py, numpy. Arithmetic
is float32 on both sides; a narrower format rounds once, on the way. How much is lost, for a value x
of a row whose largest magnitude is m:

    float32    nothing
    float16    |x| / 2^11, or 2^-25 where that is more; beyond 65504 it is infinite
    bfloat16   |x| / 2^8, or 2^-134 where that is more
    int8       m / 254, and a millionth of that; a row below 2^-126 may lose 2^-142
"""

import numpy as np
from numpy.typing import NDArray

from hps.common.arrays import HostArray
from hps.common.bfloat16 import narrowed, widened
from hps.common.row_layout import Floats
from hps.common.wire_format import Wire as Wire
from hps.errors import ConfigError, NonFiniteError

Bytes = NDArray[np.uint8]
_ROWS_A_PIECE_FLOATS = 2**16  # temporaries stay in a near cache
_LARGEST_CODE = 127
_LARGEST_FLOAT16 = 65504.0


def encode(rows: Floats, wire: Wire, out: Bytes | None = None) -> Bytes:
    """Rows as they travel.

    Args:
        rows: float32 [n, dim], contiguous.
        wire: the format.
        out: uint8 [wire.num_bytes(n, dim)] to write into; None makes one, or for float32 gives a
            view of the rows.

    Raises:
        NonFiniteError: int8 cannot carry a row that is not finite.
    """
    num_rows, dim = rows.shape
    if wire is Wire.FLOAT32 and out is None:
        return rows.reshape(-1).view(np.uint8)
    if out is None:
        out = np.empty(wire.num_bytes(num_rows, dim), np.uint8)
    piece = max(1, _ROWS_A_PIECE_FLOATS // dim)
    for first in range(0, num_rows, piece):
        part = rows[first : first + piece]
        if wire is Wire.INT8:
            _encode_int8(part, first, num_rows, out)
            continue
        width = wire.num_bytes(1, dim)
        target = out[first * width : (first + len(part)) * width]
        if wire is Wire.FLOAT32:
            target[:] = part.reshape(-1).view(np.uint8)
        elif wire is Wire.FLOAT16:
            with np.errstate(over="ignore"):  # beyond 65504 is infinite, as the format says
                target[:] = part.astype(np.float16).reshape(-1).view(np.uint8)
        else:
            target[:] = narrowed(part).reshape(-1).view(np.uint8)
    return out


def decode(
    data: bytes | bytearray | memoryview | HostArray, num_rows: int, dim: int, wire: Wire
) -> Floats:
    """Rows as float32 [num_rows, dim]; of float32 a view where the bytes are aligned for it.

    Args:
        data: bytes-like; wire.num_bytes(num_rows, dim) of them.

    Raises:
        ConfigError: another number of bytes.
    """
    num_bytes = wire.num_bytes(num_rows, dim)
    raw = np.frombuffer(data, np.uint8)
    if len(raw) != num_bytes:
        raise ConfigError(
            f"{num_rows} rows of dim {dim} as {wire.name.lower()} take {num_bytes} bytes, not "
            f"{len(raw)}"
        )
    if wire is Wire.FLOAT32:
        floats: Floats = np.frombuffer(raw, np.float32).reshape(num_rows, dim)
        return floats if floats.flags.aligned else floats.copy()
    if wire is Wire.FLOAT16:
        return np.frombuffer(raw, np.float16).astype(np.float32).reshape(num_rows, dim)
    if wire is Wire.BFLOAT16:
        return widened(np.frombuffer(raw, np.uint16)).reshape(num_rows, dim)
    scales = np.frombuffer(raw[: 4 * num_rows], np.float32)
    rows = np.frombuffer(raw[4 * num_rows :], np.int8).astype(np.float32).reshape(num_rows, dim)
    rows *= scales[:, None]
    return rows


def check_range(grads: Floats, wire: Wire) -> int:
    """The first row that the format would make infinite, or -1.

    Args:
        grads: float32 [n, dim], finite.
    """
    limit = {Wire.FLOAT16: 65520.0, Wire.BFLOAT16: 2.0**128 - 2.0**119}.get(wire)
    if limit is None or not grads.size or max(grads.max(), -grads.min()) < limit:
        return -1
    return int(np.flatnonzero((np.abs(grads) >= np.float32(limit)).any(axis=1))[0])


def _encode_int8(part: Floats, first: int, num_rows: int, out: Bytes) -> None:
    dim = part.shape[1]
    # Of two zeros either may be the larger one: the scale of a row of zeros has no sign.
    scales = np.abs(np.maximum(part.max(axis=1), -part.min(axis=1))) / np.float32(_LARGEST_CODE)
    if not np.isfinite(scales).all():
        bad = first + int(np.flatnonzero(~np.isfinite(scales))[0])
        raise NonFiniteError(f"row {bad} is not finite, which int8 cannot carry; use bfloat16")
    codes = part / np.where(scales > 0, scales, np.float32(np.inf))[:, None]
    np.rint(codes, out=codes)
    np.clip(codes, -_LARGEST_CODE, _LARGEST_CODE, out=codes)
    out[4 * first : 4 * (first + len(part))] = scales.view(np.uint8)
    begin = 4 * num_rows + first * dim
    out[begin : begin + len(part) * dim] = codes.astype(np.int8).reshape(-1).view(np.uint8)
