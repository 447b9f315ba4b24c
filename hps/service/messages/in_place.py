"""Messages whose arrays are written where they will lie, so that nothing is copied to frame them.

Above it: service/server/row_handlers.py, whose replies are Outgoing; the client, whose pushes are
OpenMessages. Below it: framing.py. CPython lets the maker of a bytes object fill it while nobody
else reads it; all that rests on this is here.
"""

import ctypes
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from hps.service.messages.framing import ALIGNMENT, opening_of, padding_before, padding_of

Bytes = NDArray[np.uint8]
_MEMORY_ALIGNMENT = 64  # of rows that are written in place: whole cache lines can be streamed
_MOST_MESSAGES = 8
_MOST_MESSAGE_BYTES = 2**25
# An Identity at its longest, whose client_id has 64 bytes, as a field.
_MOST_IDENTITY_BYTES = 2 + 2 + 64 + 2 * 11
_LEAST_PADDING = 2

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t)
_address_of = ctypes.pythonapi.PyBytes_AsString
_address_of.restype = ctypes.c_void_p
_address_of.argtypes = (ctypes.py_object,)


def writable(data: bytes) -> Bytes:
    """The memory of bytes that the caller alone has, uint8 [len(data)]; keeps them alive.

    >>> data = bytes(bytearray(b"abc"))
    >>> writable(data)[1] = ord("x")
    >>> data
    b'axc'
    """
    memory: Any = (ctypes.c_char * len(data)).from_address(_address_of(data))
    memory.owner = data
    return np.frombuffer(memory, np.uint8)


class Outgoing:
    """A message whose one array is written after the bytes have been allocated: no copy at all.

    `message` must not be read before `rows` is filled, and `rows` not be touched once `message` has
    been handed on.

    Args:
        head: the small fields; the array and the padding are empty in it.
        number: of the array's field.
        num_bytes: of the array, which will lie at a multiple of 64 bytes of memory.

    >>> from hps.v1.parameter_server_pb2 import PullReply
    >>> reply = Outgoing(PullReply(dim=1), 15, 4)
    >>> reply.rows[:] = 7
    >>> PullReply.FromString(reply.message).rows
    b'\\x07\\x07\\x07\\x07'
    """

    def __init__(self, head: Message, number: int, num_bytes: int) -> None:
        small, opening = head.SerializeToString(), opening_of(number, num_bytes)
        size = len(small) + len(opening) + num_bytes + _MEMORY_ALIGNMENT + 4
        # Its length is fixed before its address is known: what the array moves on leaves the
        # padding behind it.
        self.message: bytes = _new_bytes(None, size)
        before = -(_address_of(self.message) + len(small) + 2 + len(opening)) % _MEMORY_ALIGNMENT
        start = small + padding_of(before) + opening
        end = padding_of(_MEMORY_ALIGNMENT - before)
        whole = writable(self.message)
        whole[: len(start)] = np.frombuffer(start, np.uint8)
        whole[len(start) + num_bytes :] = np.frombuffer(end, np.uint8)
        self.rows: Bytes = whole[len(start) : len(start) + num_bytes]


class MessagePool:
    """Memory of messages that is used again, as OutputPool's buffers are: once nobody but the pool
    refers to it. Fresh memory for each would cost as much in page faults as the copy into it.

    Thread-safe. Keeps eight messages of 32 MiB at most. It serves messages of equal length again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Bytes of their own: CPython shares the shortest ones with everybody.
        self._messages: list[bytes] = [_new_bytes(None, _MEMORY_ALIGNMENT)]
        self._idle_references = self._references(0)

    def _references(self, idx: int) -> int:
        return sys.getrefcount(self._messages[idx])

    def take(self, num_bytes: int) -> bytes:
        """Bytes of that length, contents undefined; the caller's until it drops them."""
        with self._lock:
            idle = -1
            for idx in range(len(self._messages)):
                if self._references(idx) != self._idle_references:
                    continue
                if len(self._messages[idx]) == num_bytes:
                    return self._messages[idx]
                idle = idx
            made: bytes = _new_bytes(None, num_bytes)
            if num_bytes > _MOST_MESSAGE_BYTES:
                return made
            if len(self._messages) < _MOST_MESSAGES:
                self._messages.append(made)
            elif idle >= 0:
                self._messages[idle] = made
            return made


class OpenMessage:
    """A message whose arrays are written in place first, and its head last, when it is known.

    Args:
        head: its small fields but for the identity; arrays and padding are empty in it.
        arrays: number and bytes of each array's field. Each lies at a multiple of 8 bytes.
        pool: gives the memory.

    >>> from hps.v1.parameter_server_pb2 import PushRequest
    >>> push = OpenMessage(PushRequest(table="ads"), [(14, 8), (15, 4)], MessagePool())
    >>> push.arrays[0][:], push.arrays[1][:] = 7, 8
    >>> whole = PushRequest.FromString(push.finish(PushRequest(table="ads", ack=1)))
    >>> whole.table, whole.ack, whole.keys == b"\\x07" * 8, whole.grads
    ('ads', 1, True, b'\\x08\\x08\\x08\\x08')
    """

    def __init__(self, head: Message, arrays: Sequence[tuple[int, int]], pool: MessagePool) -> None:
        openings, places, at = [], [], 0
        for number, num_bytes in arrays:
            opening = opening_of(number, num_bytes)
            opening = padding_before(at + len(opening), ALIGNMENT) + opening
            openings.append((at, opening))
            places.append((at + len(opening), num_bytes))
            at += len(opening) + num_bytes
        self._head_at = at
        self.num_bytes = at + head.ByteSize() + _MOST_IDENTITY_BYTES + _LEAST_PADDING
        self._message: bytes = pool.take(self.num_bytes)
        self._whole = writable(self._message)
        for first, opening in openings:
            self._whole[first : first + len(opening)] = np.frombuffer(opening, np.uint8)
        self.arrays = [self._whole[first : first + num_bytes] for first, num_bytes in places]

    def finish(self, head: Message) -> bytes:
        """The message; nothing of it may be written any more.

        Args:
            head: as it was given, and its identity.
        """
        small = head.SerializeToString()
        gap = self.num_bytes - self._head_at - len(small)
        end = small + padding_of(gap - _LEAST_PADDING)
        self._whole[self._head_at :] = np.frombuffer(end, np.uint8)
        return self._message
