"""PinnedPool: pinned memory of the host, in pieces that are used again; PinnedPiece: one of them,
which kernels read and write at its address.

Above it: answers.py, device_reserve.py, host_arrays.py. Below it: device.py. A piece is in use as
long as anyone holds it, or an array of it, and until all work that was queued over it is done: it
comes back with an event behind that work, and is given out again once the event has come. Nobody
waits, but who ends the pool.
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from operator import setitem
from typing import Any, cast

import numpy as np
import torch

from hps.common.arrays import HostArray
from hps.gpu_cache.device import Device, DeviceEvent, VerbOrder

_ALIGNMENT = 4096
_MOST_IDLE = 8  # pieces that are kept although a larger one was needed


class _Memory:
    """What a piece lies in.

    Args:
        pinned: all of it.
    """

    def __init__(self, pinned: torch.Tensor) -> None:
        self.pinned = pinned
        self.num_bytes = len(pinned)
        self.used: DeviceEvent | None = None  # behind the work of its last use

    @property
    def is_free(self) -> bool:
        """True if that work is done."""
        return self.used is None or self.used.query()


class PinnedPool:
    """Pieces of pinned memory of a device. Any thread may take one.

    Args:
        device: whose.
        order: of its verbs.
    """

    def __init__(self, device: Device, order: VerbOrder) -> None:
        self.device = device
        self.order = order
        # Each step on them is whole by itself: pieces come back at any time, in any thread.
        self._idle: deque[_Memory] = deque()
        # What an interrupted __del__ of a piece leaves stays here: work may use it.
        self._in_use: set[_Memory] = set()

    def take(self, num_bytes: int) -> "PinnedPiece":
        """Uninitialised memory of so many bytes. ConfigError if the host has not that much."""
        free = [one for one in list(self._idle) if one.is_free]
        for memory in sorted(free, key=lambda one: one.num_bytes):
            if memory.num_bytes >= num_bytes and self._forget(memory):
                return self._piece(memory, num_bytes)
        for memory in sorted(free, key=lambda one: one.num_bytes)[: max(0, len(free) - _MOST_IDLE)]:
            self._forget(memory)
        most = num_bytes + num_bytes // 8  # batches are not all of one size
        pinned = self.device.empty_pinned(-(-most // _ALIGNMENT) * _ALIGNMENT)
        return self._piece(_Memory(pinned), num_bytes)

    def give_back(self, memory: _Memory) -> None:
        """Nobody holds a piece of it any more."""
        self._idle.append(memory)
        self._in_use.discard(memory)

    def _piece(self, memory: _Memory, num_bytes: int) -> "PinnedPiece":
        self._in_use.add(memory)
        return PinnedPiece(self, memory, num_bytes)

    def _forget(self, memory: _Memory) -> bool:
        """False if another thread has."""
        try:
            self._idle.remove(memory)
        except ValueError:
            return False
        return True

    def __del__(self) -> None:
        for memory in self._idle:
            if memory.used is not None:
                memory.used.synchronize()


class PinnedPiece:
    """Pinned memory, from where it was taken until nobody holds it or an array of it."""

    # What an interrupted __init__ leaves.
    _memory: _Memory | None = None
    _open: Sequence[bool] = ()

    def __init__(self, pool: PinnedPool, memory: _Memory, num_bytes: int) -> None:
        self._pool = pool
        self._num_bytes = num_bytes
        # Whether work was queued that no event is behind.
        self._open = is_open = [False]
        # Builtins; the first is to be called with the queueing: no interrupt comes between.
        self.note_queued = partial(setitem, is_open, 0, True)
        self._note_behind = partial(setitem, is_open, 0, False)
        self.address: int = memory.pinned.data_ptr()
        self._memory = memory

    def note_point(self) -> DeviceEvent:
        """The point behind all work that `note_queued` was called with."""
        memory = self._held()
        if any(self._open) or memory.used is None:
            with self._pool.order.verb():
                memory.used = self._pool.device.event()
            self._note_behind()
        return memory.used

    def array(self) -> HostArray:
        """uint8 [num_bytes]; it, and every view of it, holds the piece."""
        array: HostArray = np.asarray(cast("Any", self))
        return array

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """As numpy asks for it; the array keeps whom it has asked."""
        data = (self.address, False)
        return {"shape": (self._num_bytes,), "typestr": "|u1", "data": data, "version": 3}

    def _held(self) -> _Memory:
        assert self._memory is not None
        return self._memory

    def __del__(self) -> None:
        if self._memory is not None:
            if any(self._open):  # an interrupt came before the event
                self.note_point()
            self._pool.give_back(self._memory)
