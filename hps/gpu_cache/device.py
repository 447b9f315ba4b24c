"""What a DeviceCache asks of a device, and arrays on their way between it and the host.

Above it: arena.py, device_plan.py, device_cache.py. Below it: cuda_device.py keeps this contract on
a GPU; in tests a device of host memory does, which runs the same kernels through hps._C.
"""

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
