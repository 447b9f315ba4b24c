"""Chunks: pinned memory, which verbs use in turns to bring a device what kernels are given, and the
place of it there; Scratch: memory of a device that each verb writes before it reads it.

Above it: device_batch.py, peers.py. Below it: arena.py; hps._C.BlockRing, which divides a chunk
among verbs. All verbs of a device are in one order, so what a verb writes to the device comes after
all work of the verbs before it: one place there is enough. The host is in no such order: it writes
pinned memory at once, and must not while a copy has still to take what is there. So a chunk has an
event behind its last use, and a new one is taken as long as that has not come: nobody waits.
"""

from collections import deque

import torch

from hps import _C
from hps.errors import BatchMemoryError
from hps.gpu_cache.arena import DeviceArena, Plans
from hps.gpu_cache.device import Device, DeviceEvent, VerbOrder

_CHUNK_BYTES = 2**18  # of 26 tables, what some twenty verbs are given
_LEAST_CHUNK_BYTES = 2**14
_CHUNKS_OF_AN_ARENA = 32  # a chunk takes no more of a small one than that part
_ALIGNMENT = 256
_LEAST_SCRATCH = 2**16  # that a device always has, unless its arena is small
_SCRATCHES_OF_AN_ARENA = 32


class _Chunk:
    def __init__(self, device: Device, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.pinned = device.empty_pinned(num_bytes)
        self.used: DeviceEvent | None = None

    @property
    def address(self) -> int:
        """Where it begins, on the host."""
        address: int = self.pinned.data_ptr()
        return address


class Chunks:
    """Chunks of a device, one of them in use.

    Args:
        device: whose.
        arena: of its memory.
        order: of the verbs.

    Copies from pinned memory are queued by the driver's own functions: who gives that memory out
    does not know of them, so that what was used is given back when they have been done.
    """

    _is_new = True  # what an interrupted __init__ leaves, too

    def __init__(self, device: Device, arena: DeviceArena, order: VerbOrder) -> None:
        self._device = device
        self._order = order
        self._arena = arena
        most = max(_LEAST_CHUNK_BYTES, arena.num_bytes // _CHUNKS_OF_AN_ARENA)
        self.num_bytes = min(_CHUNK_BYTES, most // _ALIGNMENT * _ALIGNMENT)
        self._part = arena.take(self.num_bytes, from_end=True)
        self._current = _Chunk(device, self.num_bytes)
        self._used: deque[_Chunk] = deque()  # oldest first

    def next(self, num_bytes: int, goes_there: bool) -> tuple[int, int, int]:
        """The chunk to use from now on, of so many bytes at least: its addresses in pinned memory
        and on the device, and its bytes. Within a verb.

        Args:
            goes_there: what is first written to it has its place on the device there, too; else all
                of the chunk is for that, which goes to another place.

        Raises:
            BatchMemoryError: the device has no such place.
        """
        if goes_there and num_bytes > self._part.num_bytes:
            self._part = self._arena.take(num_bytes, from_end=True)
        self.num_bytes = self._part.num_bytes
        if self._is_new and num_bytes <= self._current.num_bytes:  # nobody has used it
            self._is_new = False
        else:
            self._is_new = False
            self._current.used = self._device.event()
            self._used.append(self._current)
            self._current = self._take(num_bytes)
        usable = min(self._current.num_bytes, self.num_bytes) if goes_there else num_bytes
        return self._current.address, self._part.address, usable

    def __del__(self) -> None:
        if not self._is_new:
            with self._order.verb():
                last = self._device.event()
            last.synchronize()

    def _take(self, num_bytes: int) -> _Chunk:
        """One whose use is over, or another."""
        oldest = self._used[0]
        if oldest.used is None or not oldest.used.query():
            return _Chunk(self._device, max(self.num_bytes, num_bytes))
        self._used.popleft()
        # A large one, of keys that came from the host, is not kept.
        if num_bytes <= oldest.num_bytes <= self.num_bytes:
            return oldest
        return _Chunk(self._device, max(self.num_bytes, num_bytes))


class Scratch:
    """One part of a device's memory, which grows as verbs need it.

    Args:
        arena: of the device.
    """

    num_bytes: int  # that it has now
    _part: _C.ArenaPart | None
    _address: int
    _memory: torch.Tensor

    def __init__(self, arena: DeviceArena) -> None:
        self._arena = arena
        num_bytes = min(_LEAST_SCRATCH, arena.num_bytes // _SCRATCHES_OF_AN_ARENA)
        self._hold(arena.take(num_bytes, from_end=True))

    def _hold(self, part: _C.ArenaPart | None) -> None:
        # What many verbs ask for, each of which asks a part but once.
        self.num_bytes, self._part = 0, part
        if part is not None:
            self._address, self._memory = part.address, part.memory
            self.num_bytes = part.num_bytes  # the last: an interrupt leaves nothing to take

    def take(self, *sizes: int, plans: Plans = ()) -> list[int]:
        """Addresses of pieces of so many bytes. Within a verb, once.

        Args:
            plans: that are being worked on.

        Raises:
            BatchMemoryError: there is not as much; nothing is queued by then.
        """
        offsets, end = [], 0
        for size in sizes:
            offsets.append(end)
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        if end > self.num_bytes:
            self._grow(end, plans)
        base = self._address
        return [base + offset for offset in offsets]

    def _grow(self, num_bytes: int, plans: Plans) -> None:
        kept = self.let_go()  # what is there is nobody's any more
        try:
            more = num_bytes + num_bytes // 8
            self._hold(self._arena.take(more, num_bytes, plans=plans, from_end=True))
        except BatchMemoryError:
            self.take_again(kept)
            raise

    def let_go(self) -> int:
        """Gives its part back; how many bytes that had. Within a verb that has no piece of it."""
        kept = self.num_bytes
        self._hold(None)
        return kept

    def take_again(self, num_bytes: int) -> None:
        """As much as it had, which is free."""
        self._hold(self._arena.find(num_bytes, from_end=True))

    def tensor(self, address: int, num_bytes: int) -> torch.Tensor:
        """uint8 view of a piece."""
        start = address - self._address
        return self._memory[start : start + num_bytes]
