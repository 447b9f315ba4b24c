"""What a DeviceCache asks of a device, and arrays on their way between it and the host.

Above it: arena.py, device_plan.py, device_cache.py. Below it: cuda_device.py keeps this contract on
a GPU; in tests a device of host memory does, which runs the same kernels through hps._C.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import torch

from hps import _C
from hps.common.arrays import HostArray
from hps.gpu_cache.kernels import KernelArgs


class DeviceEvent(Protocol):
    """A point in the queue of work."""

    def synchronize(self) -> None:
        """Blocks until everything before the point is done."""

    def query(self) -> bool:
        """True if everything before the point is done."""


# A piece of a device's memory that many verbs work on: its tensor, and for which streams the
# allocator knows that they work on it, too.
Memory = _C.DeviceMemory


class VerbOrder(Protocol):
    """Orders the verbs of the caches of a device, whichever streams they are issued on."""

    def verb(
        self, *memory: Memory | torch.Tensor, plans: "Sequence[_C.DevicePlanState]" = ()
    ) -> AbstractContextManager[object]:
        """What is queued inside comes after all earlier verbs; `memory` outlives it, and so does
        that of the plans, of their tables and of their sums."""


class Device(Protocol):
    """Memory, and a queue of work over it: each call returns once its work is queued."""

    torch_device: torch.device
    args: KernelArgs
    launcher: _C.Launcher  # of kernels, and of copies of what they are given

    def stream(self) -> int:
        """The current stream's number, as the launcher takes it. Within a verb."""

    def empty(self, num_bytes: int) -> torch.Tensor:
        """Uninitialised uint8 [num_bytes] on the device. ConfigError if it has not that much."""

    def empty_pinned(self, num_bytes: int) -> torch.Tensor:
        """Uninitialised uint8 [num_bytes] of host memory that copies can be queued from and to, and
        that kernels can read and write at its address. ConfigError if there is not that much."""

    def launch(self, kernel: str, args: HostArray, count: int) -> None:
        """A kernel over items [0, count); `args` may be changed as soon as this returns."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copies; a host side of it must be pinned and stay as it is until the work is done."""

    def fill(self, target: torch.Tensor, value: int) -> None:
        """Sets every element."""

    def prefix_sum(self, target: torch.Tensor) -> None:
        """Inclusive, in place; int32 [n]."""

    def sort(self, ids: torch.Tensor, in_order: torch.Tensor, positions: torch.Tensor) -> None:
        """Stable: ids [n] in order, int32, and the positions, int64, that they came from."""

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Whether two arrays of one shape are; waits."""

    def event(self) -> DeviceEvent:
        """A point behind all that this thread has queued on the current stream."""

    def order(self) -> VerbOrder:
        """A new order of verbs, for caches that are worked on together."""


class HostOutput:
    """Pinned memory that kernels write where it lies, for arrays on their way to the host.

    Args:
        device: whose kernels.
        order: of its verbs.
        num_bytes: of it.

    Kernels that are queued have the address: the memory is kept until they are done.
    """

    _is_given = False  # what an interrupted __init__ leaves

    def __init__(self, device: Device, order: VerbOrder, num_bytes: int) -> None:
        self._device = device
        self._order = order
        self._num_bytes = num_bytes
        self._event: DeviceEvent | None = None
        self._memory = device.empty_pinned(max(1, num_bytes))

    @property
    def address(self) -> int:
        """Where it begins, for kernels that are queued next."""
        self._event = None
        self._is_given = True
        address: int = self._memory.data_ptr()
        return address

    def put(self, array: HostArray) -> None:
        """What is there before: as many bytes as it has."""
        self._memory.numpy()[: self._num_bytes] = array.reshape(-1).view(np.uint8)

    def is_queued(self) -> None:
        """The kernels that write have been queued."""
        self._event = self._device.event()

    def wait(self) -> HostArray:
        """uint8 [num_bytes]; a view of memory that lives as long as anyone holds it. Waits."""
        assert self._event is not None, "nothing was queued"
        self._event.synchronize()
        self._is_given = False
        array: HostArray = self._memory.numpy()[: self._num_bytes]
        return array

    def __del__(self) -> None:
        if not self._is_given:
            return
        if self._event is None:  # an interrupt came before
            with self._order.verb():
                self._event = self._device.event()
        self._event.synchronize()


class HostCopy:
    """An array on its way from the device to pinned host memory.

    Args:
        device: from which.
        source: the array.
        host: pinned memory of at least its bytes; None takes some.
    """

    def __init__(
        self, device: Device, source: torch.Tensor, host: torch.Tensor | None = None
    ) -> None:
        num_bytes = source.numel() * source.element_size()
        memory = device.empty_pinned(max(1, num_bytes)) if host is None else host
        self._host = memory[:num_bytes].view(source.dtype)
        device.copy(self._host, source.view(-1))
        self._event = device.event()

    def wait(self) -> HostArray:
        """The array, flat; a view of memory that lives as long as anyone holds it. Waits."""
        self._event.synchronize()
        array: HostArray = self._host.numpy()
        return array


def to_device(device: Device, array: HostArray, target: torch.Tensor) -> None:
    """Queues a copy of a host array, which may change at once, to as many bytes on the device."""
    pinned = device.empty_pinned(max(1, array.nbytes))[: array.nbytes]
    pinned.numpy()[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    device.copy(target.view(-1).view(torch.uint8), pinned)


class HostInputs:
    """Arrays of the host that kernels read where they lie, in pinned memory, once: each element
    crosses the bus as often as in a copy, and no memory of the device is taken.

    Args:
        device: whose kernels.

    The memory is kept until they have read it. Within verbs.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._new: list[torch.Tensor] = []
        self._read: deque[tuple[DeviceEvent, list[torch.Tensor]]] = deque()  # oldest first

    def take(self, num_bytes: int) -> torch.Tensor:
        """Pinned memory to be written now and read by kernels that are queued next."""
        memory = self._device.empty_pinned(max(1, num_bytes))
        self._new.append(memory)
        return memory

    def put(self, array: HostArray) -> int:
        """The address of a copy of an array, which may change at once."""
        memory = self.take(array.nbytes)
        memory.numpy()[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        address: int = memory.data_ptr()
        return address

    def are_queued(self) -> None:
        """The kernels that read what was taken have been queued."""
        while self._read and self._read[0][0].query():
            self._read.popleft()
        if self._new:
            self._read.append((self._device.event(), self._new))
            self._new = []

    def __del__(self) -> None:
        self.are_queued()  # what an interrupt has left
        for event, _ in self._read:
            event.synchronize()
