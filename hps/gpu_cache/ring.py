"""Chunks: pinned memory and a device's beside it, which verbs use in turns; Scratch: memory of a
device that each verb writes before it reads it.

Above it: device_batch.py. Below it: device.py; hps._C.BlockRing, which divides a chunk among verbs.
All verbs of a device are in one order, so what a verb writes to the device comes after all work of
the verbs before it. The host is in no such order: it writes pinned memory at once, and must not
while a copy has still to take what is there. So a chunk has an event behind its last use, and a new
one is taken as long as that has not come: nobody waits.
"""

from collections import deque

import torch

from hps.gpu_cache.device import Device, DeviceEvent, Memory, VerbOrder

_CHUNK_BYTES = 2**18  # of 26 tables, what some twenty verbs are given
_ALIGNMENT = 256


class _Chunk:
    def __init__(self, device: Device, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.pinned = device.empty_pinned(num_bytes)
        self.piece = Memory(device.empty(num_bytes))
        self.used: DeviceEvent | None = None

    @property
    def place(self) -> tuple[int, int, int]:
        """As hps._C.BlockRing takes it."""
        return self.pinned.data_ptr(), self.piece.memory.data_ptr(), self.num_bytes


class Chunks:
    """Chunks of a device, one of them in use.

    Args:
        device: whose.
        order: of the verbs.

    Copies from pinned memory are queued by the driver's own functions: who gives that memory out
    does not know of them, so that what was used is given back when they have been done.
    """

    _is_new = True  # what an interrupted __init__ leaves, too

    def __init__(self, device: Device, order: VerbOrder) -> None:
        self._device = device
        self._order = order
        self._current = _Chunk(device, _CHUNK_BYTES)
        self._used: deque[_Chunk] = deque()  # oldest first

    @property
    def piece(self) -> Memory:
        """The memory on the device of the chunk in use."""
        return self._current.piece

    def next(self, num_bytes: int) -> tuple[int, int, int]:
        """The chunk to use from now on, of so many bytes at least: its addresses in pinned memory
        and on the device, and its bytes. Within a verb."""
        if self._is_new:  # nobody has used it
            self._is_new = False
            if num_bytes <= self._current.num_bytes:
                return self._current.place
        self._current.used = self._device.event()
        self._used.append(self._current)
        self._current = self._take(num_bytes)
        with self._order.verb(self._current.piece):
            return self._current.place

    def __del__(self) -> None:
        if not self._is_new:
            with self._order.verb():
                last = self._device.event()
            last.synchronize()

    def _take(self, num_bytes: int) -> _Chunk:
        """One whose use is over, or another."""
        oldest = self._used[0]
        if oldest.used is None or not oldest.used.query():
            return _Chunk(self._device, max(_CHUNK_BYTES, num_bytes))
        self._used.popleft()
        # A large one, of keys that came from the host, is not kept.
        if num_bytes <= oldest.num_bytes <= _CHUNK_BYTES:
            return oldest
        return _Chunk(self._device, max(_CHUNK_BYTES, num_bytes))


class Scratch:
    """One piece of a device's memory, which grows as verbs need it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.piece = Memory(device.empty(_ALIGNMENT))
        self._num_bytes = _ALIGNMENT

    def take(self, *sizes: int) -> list[int]:
        """Offsets of parts of so many bytes. Within a verb, once."""
        offsets, end = [], 0
        for size in sizes:
            offsets.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        if end > self._num_bytes:
            num_bytes = end + end // 8
            self.piece = Memory(self._device.empty(num_bytes))  # may find none
            self._num_bytes = num_bytes
        return offsets

    @property
    def address(self) -> int:
        """Where it begins."""
        address: int = self.piece.memory.data_ptr()
        return address

    def tensor(self, offset: int, num_bytes: int) -> torch.Tensor:
        """uint8 view of a part."""
        part: torch.Tensor = self.piece.memory[offset : offset + num_bytes]
        return part
