"""Messages with arrays, framed by hand: arrays are views on the message, or written in place.

Above it: in_place.py, the service's handlers and its client. Below it: protobuf, for all that is
small.
A generated message would copy each array twice and hold it once more; at 100,000 keys that costs
more than the look-up. The bytes are those of proto/hps/v1: any protobuf library reads and writes
them. What comes in is from strangers: nothing is allocated by a length that a message claims.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import DTypeLike

from hps.common.arrays import HostArray
from hps.errors import ConfigError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_FIELDS = 64  # top-level fields of one message, also those that this version does not know
MAX_HEAD_BYTES = 2**16  # all but the arrays
PADDING = 12  # the number of the field `padding`, in every message that has arrays
ALIGNMENT = 8  # of arrays within a message; its own beginning lies at a multiple of 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_TAG_BYTES, _MAX_LENGTH_BYTES, _MAX_VARINT_BYTES = 5, 5, 10

M = TypeVar("M", bound=Message)
Array = bytes | bytearray | memoryview | HostArray


class FramingError(ConfigError):
    """Bytes that are no message of the kind that is expected."""


@dataclass(frozen=True)
class Incoming(Generic[M]):
    """A message that was received: its small fields, and where its arrays lie.

    Args:
        head: all fields but the arrays, which are empty in it.
        data: the message's bytes; kept alive by every view.
        places: field number -> (first byte, number of bytes) of each array that is there.
    """

    head: M
    data: bytes
    places: dict[int, tuple[int, int]]

    def num_bytes(self, number: int) -> int:
        """Bytes of an array; 0 if it is not there."""
        return self.places.get(number, (0, 0))[1]

    def place(self, number: int) -> slice:
        """Where an array's bytes lie in `data`."""
        first, num_bytes = self.places.get(number, (0, 0))
        return slice(first, first + num_bytes)

    def array(self, number: int, dtype: DTypeLike, what: str) -> HostArray:
        """An array as [n], read-only: a view, or a copy where it does not begin at its alignment.

        Raises:
            FramingError: its bytes are no whole number of elements.
        """
        kind = np.dtype(dtype)
        first, num_bytes = self.places.get(number, (0, 0))
        if num_bytes % kind.itemsize:
            raise FramingError(
                f"{what} has {num_bytes} bytes; {kind.name} needs a multiple of {kind.itemsize}"
            )
        view: HostArray = np.frombuffer(self.data, kind, num_bytes // kind.itemsize, first)
        return view if view.flags.aligned else view.copy()


AnyIncoming = Incoming[Any]  # a message of any kind


class Frame(Generic[M]):
    """How messages of one kind are taken apart and put together.

    Args:
        kind: the generated class.
        arrays: the numbers of its fields that are arrays, ascending.

    >>> from hps.v1.parameter_server_pb2 import PullRequest
    >>> frame = Frame(PullRequest, (15,))
    >>> message = frame.join(PullRequest(table="ads"), [np.array([7, 8], np.uint64)])
    >>> incoming = frame.split(message)
    >>> incoming.head.table, incoming.array(15, np.uint64, "keys")
    ('ads', array([7, 8], dtype=uint64))
    """

    def __init__(self, kind: type[M], arrays: tuple[int, ...]) -> None:
        self._kind = kind
        self._arrays = arrays
        self._known = frozenset(field.number for field in kind.DESCRIPTOR.fields)

    def split(self, data: bytes) -> Incoming[M]:
        """Takes a message apart, its fields in any order.

        Raises:
            FramingError: truncated, a field that occurs twice, too many fields, a wrong wire type.

        Cost: a few microseconds; nothing is copied but the head, 64 KiB at most.
        """
        places: dict[int, tuple[int, int]] = {}
        pieces: list[tuple[int, int]] = []  # of the head
        seen: set[int] = set()
        at = 0
        for _ in range(MAX_FIELDS):
            if at >= len(data):
                break
            start = at
            number, first, at = _field(data, at)
            if number in self._known and number != PADDING:
                if number in seen:
                    raise FramingError(f"field {number} of {self._name} appears twice")
                seen.add(number)
            if number not in self._arrays:
                pieces.append((start, at))
            elif first < 0:
                raise FramingError(f"field {number} of {self._name} must be bytes")
            else:
                places[number] = (first, at - first)
        else:
            if at < len(data):
                raise FramingError(f"{self._name} has more than {MAX_FIELDS} fields")
        return Incoming(self._parse_head(data, pieces), data, places)

    def _parse_head(self, data: bytes, pieces: list[tuple[int, int]]) -> M:
        num_bytes = sum(end - start for start, end in pieces)  # asked before they are copied
        if num_bytes > MAX_HEAD_BYTES:
            raise FramingError(
                f"{self._name} has {num_bytes} bytes beside its arrays; {MAX_HEAD_BYTES} at most"
            )
        return read_small(self._kind, b"".join([data[start:end] for start, end in pieces]))

    def join(self, head: M, arrays: Sequence[Array]) -> bytes:
        """The message of a head and its arrays, which are copied once.

        Args:
            head: its arrays and padding are empty.
            arrays: one for each of the frame's, in their order; contiguous. Each will lie at a
                multiple of 8 bytes.
        """
        pieces: list[bytes | memoryview] = [head.SerializeToString()]
        size = len(pieces[0])
        for number, array in zip(self._arrays, arrays, strict=True):
            view = _flat(array)
            if not len(view):
                continue  # as protobuf leaves it out
            opening = opening_of(number, len(view))
            before = padding_before(size + len(opening), ALIGNMENT) + opening
            pieces += [before, view]
            size += len(before) + len(view)
        return b"".join(pieces)

    @property
    def _name(self) -> str:
        return str(self._kind.DESCRIPTOR.name)


def read_small(kind: type[M], data: bytes, most: int = MAX_HEAD_BYTES) -> M:
    """A message without arrays.

    Raises:
        FramingError: more than `most` bytes, or no such message.
    """
    if len(data) > most:
        raise FramingError(f"{kind.DESCRIPTOR.name} has {len(data)} bytes; {most} at most")
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise FramingError(f"these bytes are not a {kind.DESCRIPTOR.name}") from error
    return message


def _field(data: bytes, at: int) -> tuple[int, int, int]:
    """(number, first byte of its contents or -1 if they are no bytes, first byte after it)."""
    tag, at = _varint(data, at, _MAX_TAG_BYTES)
    number, kind = tag >> 3, tag & 7
    if not 0 < number < 2**29:
        raise FramingError(f"byte {at}: there is no field number {number}")
    first = -1
    if kind == _BYTES:
        length, first = _varint(data, at, _MAX_LENGTH_BYTES)
        at = first + length
    elif kind == _VARINT:
        _, at = _varint(data, at, _MAX_VARINT_BYTES)
    elif kind in (_FIXED32, _FIXED64):
        at += 4 if kind == _FIXED32 else 8
    else:
        raise FramingError(f"byte {at}: field {number} has the unknown wire type {kind}")
    if at > len(data):
        raise FramingError(
            f"the message ends at byte {len(data)}, within field {number}, which ends at {at}"
        )
    return number, first, at


def _varint(data: bytes, at: int, most: int) -> tuple[int, int]:
    """(value, first byte after it) of a varint of at most `most` bytes."""
    value = 0
    for idx, byte in enumerate(data[at : at + most]):
        value |= (byte & 0x7F) << 7 * idx
        if byte < 0x80:
            return value, at + idx + 1
    raise FramingError(f"byte {at}: a number that does not end within {most} bytes")


def opening_of(number: int, num_bytes: int) -> bytes:
    """Tag and length of a field of bytes."""
    opening = bytearray()
    for value in (number << 3 | _BYTES, num_bytes):
        while value >= 0x80:
            opening.append(value & 0x7F | 0x80)
            value >>= 7
        opening.append(value)
    return bytes(opening)


def _flat(array: Array) -> memoryview:
    """An array's bytes; memoryview casts no empty one of two dimensions."""
    view = memoryview(cast("Buffer", array))  # so are all of these
    return view.cast("B") if view.nbytes else memoryview(b"")


def padding_before(num_bytes: int, alignment: int) -> bytes:
    """A field that brings `num_bytes` to a multiple of `alignment`; nothing if they are at one."""
    gap = -num_bytes % alignment
    return padding_of((gap - 2) % alignment) if gap else b""


def padding_of(num_bytes: int) -> bytes:
    """A field of padding with so many bytes, fewer than 128."""
    return bytes((PADDING << 3 | _BYTES, num_bytes)) + bytes(num_bytes)
