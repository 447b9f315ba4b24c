"""Tensors of the Open Inference Protocol: from bytes, typed fields or JSON to arrays, and back.

Above it: inference_handlers.py, json_messages.py, inputs.py. Below it: numpy. What comes in is from
strangers: no array is made of a length that a shape claims, only of bytes that are there.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hps.serving.refusals import invalid

BYTES = "BYTES"
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
MAX_RANK = 2
_MAX_ELEMENTS = 2**31
_LENGTH = struct.Struct("<I")

Elements = NDArray[Any] | list[bytes] | list[str]


@dataclass(frozen=True)
class Tensor:
    """One input of a request.

    Args:
        name: as the client gave it.
        datatype: a name of DTYPES, or BYTES.
        shape: one or two lengths.
        elements: row-major [product of the shape]; a list where they are BYTES.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: Elements

    @property
    def rows(self) -> int:
        """Its first length: that of the batch, unless it is ragged."""
        return self.shape[0]


def check_shape(name: str, datatype: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor, if there can be one like it.

    Raises:
        Refusal: an unknown type, more than two dimensions, a negative length.
    """
    shown = name[:80]
    if datatype != BYTES and datatype not in DTYPES:
        raise invalid(
            f"input {shown!r}: datatype {datatype[:20]!r} is not one of {[*DTYPES, BYTES]}"
        )
    if not 1 <= len(shape) <= MAX_RANK:
        raise invalid(f"input {shown!r} has shape {list(shape)[:8]}; give [B] or [B, n]")
    if min(shape) < 0 or prod(shape) > _MAX_ELEMENTS:
        raise invalid(f"input {shown!r} has shape {list(shape)}: no tensor has that many elements")
    return tuple(shape)


def of_raw(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
    """A tensor of its bytes: little-endian, row-major; of BYTES each element is its length as
    uint32, then itself.

    Raises:
        Refusal: as `check_shape`; bytes that are not those of so many elements.

    >>> of_raw("C1", "BYTES", [2], b"\\x01\\0\\0\\0a\\0\\0\\0\\0").elements
    [b'a', b'']
    """
    lengths = check_shape(name, datatype, shape)
    count = prod(lengths)
    if datatype == BYTES:
        return Tensor(name, datatype, lengths, _texts(name, bytes(data), count))
    dtype = DTYPES[datatype]
    if len(data) != count * dtype.itemsize:
        raise invalid(
            f"input {name[:80]!r} has {len(data)} bytes; {list(shape)} of {datatype} has "
            f"{count * dtype.itemsize}"
        )
    return Tensor(name, datatype, lengths, np.frombuffer(data, dtype))


def of_values(name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]) -> Tensor:
    """A tensor of plain values, as JSON or typed fields have them; row-major, not nested.

    Raises:
        Refusal: as `check_shape`; another number of values, or one that the type does not hold.
    """
    lengths = check_shape(name, datatype, shape)
    if len(values) != prod(lengths):
        raise invalid(
            f"input {name[:80]!r} has {len(values)} values; its shape {list(shape)} has "
            f"{prod(lengths)}"
        )
    if datatype == BYTES:
        for value in values:
            if not isinstance(value, str | bytes):
                raise invalid(f"input {name[:80]!r}: {value!r} is no text, which BYTES are")
        check_text(name, values)
        return Tensor(name, datatype, lengths, list(values))
    return Tensor(name, datatype, lengths, _numbers(name, datatype, values))


def check_text(name: str, values: Sequence[Any]) -> None:
    """Refuses text that JSON can write and UTF-8 cannot: half of a pair of surrogates."""
    for value in values:
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise invalid(f"input {name[:80]!r}: {value[:80]!r} is no text of UTF-8") from None


def to_raw(values: NDArray[Any]) -> bytes:
    """The bytes of a numeric tensor."""
    return np.ascontiguousarray(values).tobytes()


def _numbers(name: str, datatype: str, values: Sequence[Any]) -> NDArray[Any]:
    dtype = DTYPES[datatype]
    kinds: tuple[type, ...] = (bool,) if dtype.kind == "b" else (int,)
    if dtype.kind == "f":
        kinds = (int, float)
    for value in values:
        if not isinstance(value, kinds) or (dtype.kind != "b" and isinstance(value, bool)):
            raise invalid(f"input {name[:80]!r}: {value!r} is no {datatype}")
    try:
        with np.errstate(over="ignore"):
            return np.array(values, dtype)
    except OverflowError:
        raise invalid(f"input {name[:80]!r}: a value is beyond what {datatype} holds") from None


def _texts(name: str, data: bytes, count: int) -> list[bytes]:
    """The elements of BYTES."""
    alike = _texts_of_one_length(data, count)
    if alike is not None:
        return alike
    found: list[bytes] = []
    at, size = 0, len(data)
    unpack = _LENGTH.unpack_from
    while at < size:
        begin = at + 4
        end = begin + unpack(data, at)[0] if begin <= size else size + 1
        if end > size:
            raise invalid(
                f"input {name[:80]!r}: element {len(found)} does not end within its bytes; each "
                "is its length as a little-endian uint32, then itself"
            )
        found.append(data[begin:end])
        at = end
    if len(found) != count:
        raise invalid(f"input {name[:80]!r} has {len(found)} elements; its shape has {count}")
    return found


def _texts_of_one_length(data: bytes, count: int) -> list[bytes] | None:
    """The elements where all are of the length of the first; None where they are not."""
    if count < 2 or len(data) < 5 or len(data) % count:
        return None
    length = int(_LENGTH.unpack_from(data)[0])
    if len(data) != count * (4 + length):
        return None
    whole = np.frombuffer(data, np.dtype([("length", "<u4"), ("text", f"V{length}")]))
    if not (whole["length"] == length).all():
        return None
    texts: list[bytes] = whole["text"].tolist()
    return texts
