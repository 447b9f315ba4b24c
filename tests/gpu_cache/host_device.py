"""HostDevice: a device of host memory, on which the launcher of the CUDA cache is tested.

Above it: the tests beside it. Below it: hps._C, which runs the same kernels item after item. Work
is only queued, as on a GPU, and done when somebody waits for it: whoever reads a result too early,
or writes over what a copy has still to take, gets garbage. Memory starts as garbage, too.
"""

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.contracts.table_verbs import TableVerbs
from hps.errors import ConfigError
from hps.gpu_cache.device import Memory
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.device_plan import DevicePlan
from hps.gpu_cache.kernels import KernelArgs
from tests.gpu_cache.called_driver import CalledDriver

_GARBAGE = 0xA5


class HostEvent:
    """A point in the queue of a HostDevice."""

    def __init__(self, device: "HostDevice") -> None:
        self._device = device
        self._number = device.num_queued

    def synchronize(self) -> None:
        """Does everything before the point."""
        self._device.work_off(self._number)

    def query(self) -> bool:
        """True if that has been done."""
        return self._device.num_done >= self._number


class HostOrder:
    """Sees to it that all work belongs to a verb that names the memory it touches."""

    def __init__(self, device: "HostDevice") -> None:
        self._device = device
        self._turn = threading.RLock()

    @contextmanager
    def verb(
        self, *memory: Memory | torch.Tensor, plans: Sequence[_C.DevicePlanState] = ()
    ) -> Iterator[None]:
        """As VerbOrder.verb."""
        with self._turn:
            self._device.enter([*memory, *_C.memory_of(list(plans), 0, all=True)])
            try:
                yield
            finally:
                self._device.leave()


class HostDevice:
    """Keeps the contract of hps/gpu_cache/device.py on host memory.

    Args:
        budget: bytes that `empty` and `empty_pinned` give at once; None is any number.
    """

    def __init__(self, budget: int | None = None) -> None:
        self.torch_device = torch.device("cpu")
        self.args = KernelArgs()
        self._driver = CalledDriver(self.args, self._launched, self._copied)
        self.launcher = self._driver.launcher()
        self.budget = budget
        self.depth = 0  # of verbs under way
        self.num_queued = 0
        self.num_done = 0
        self.launches: list[tuple[str, int]] = []
        # Verbs come one at a time, but any thread may wait for what a verb has queued.
        # What is dropped within work may wait for it.
        self._lock = threading.RLock()
        self._is_working = False
        self._queue: list[Callable[[], Any]] = []
        # A device gives memory out again only behind the work that was queued before it came back.
        self._held: list[torch.Tensor] = []

    def empty(self, num_bytes: int) -> torch.Tensor:
        """As Device.empty."""
        self._refuse(num_bytes)
        memory = torch.full((num_bytes,), _GARBAGE, dtype=torch.uint8)
        with self._lock:
            self._held.append(memory)
        return memory

    def empty_pinned(self, num_bytes: int) -> torch.Tensor:
        """As Device.empty_pinned."""
        self._refuse(num_bytes)
        return torch.full((num_bytes,), _GARBAGE, dtype=torch.uint8)

    def _refuse(self, num_bytes: int) -> None:
        if self.budget is not None and num_bytes > self.budget:
            raise ConfigError(f"{num_bytes} bytes were requested, {self.budget} are free")

    def stream(self) -> int:
        """As Device.stream."""
        return 0

    def _launched(self, kernel: str, words: bytes, count: int, _: object) -> None:
        """As the driver is asked to launch."""
        args = np.frombuffer(words, self.args.dtype(self.args.struct_of(kernel)))
        self.launch(kernel, args, count)

    def _copied(self, target: int, source: int, num_bytes: int, _: int) -> None:
        """As the driver is asked to copy: from what the host has there when it is done."""
        self.copy(memory_at(target, num_bytes), memory_at(source, num_bytes))

    def launch(self, kernel: str, args: NDArray[Any], count: int) -> None:
        """As Device.launch."""
        assert count >= 0 and args.dtype == self.args.dtype(self.args.struct_of(kernel))
        self.launches.append((kernel, count))
        words = args.tobytes()  # by value: as they are now
        self._put(lambda: _C.run_gpu_kernel(kernel, words, count))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """As Device.copy."""
        assert target.shape == source.shape and target.dtype == source.dtype
        self._put(lambda: target.copy_(source))

    def fill(self, target: torch.Tensor, value: int) -> None:
        """As Device.fill."""
        self._put(lambda: target.fill_(value))

    def prefix_sum(self, target: torch.Tensor) -> None:
        """As Device.prefix_sum."""
        assert target.dtype == torch.int32
        self._put(lambda: target.cumsum_(0))

    def sort(self, ids: torch.Tensor, in_order: torch.Tensor, positions: torch.Tensor) -> None:
        """As Device.sort."""
        self._put(lambda: torch.sort(ids, stable=True, out=(in_order, positions)))

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """As Device.equal."""
        self.work_off(self.num_queued)
        return torch.equal(one, other)

    def event(self) -> HostEvent:
        """As Device.event."""
        return HostEvent(self)

    def order(self) -> HostOrder:
        """As Device.order."""
        return HostOrder(self)

    def work_off(self, number: int) -> None:
        """Does the first `number` pieces of work ever queued."""
        with self._lock:
            while self.num_done < number and not self._is_working:
                self._is_working = True
                try:
                    self._queue.pop(0)()
                finally:
                    self._is_working = False
                self.num_done += 1
            if not self._queue and self.depth == 0:
                self._held.clear()

    def enter(self, memory: Iterable[Memory | torch.Tensor] = ()) -> None:
        """A verb begins; nobody else gets its memory before what it queues is done."""
        with self._lock:
            self.depth += 1
            self._held += [one.memory if isinstance(one, Memory) else one for one in memory]

    def leave(self) -> None:
        """A verb ends."""
        with self._lock:
            self.depth -= 1

    def _put(self, work: Callable[[], Any]) -> None:
        assert self.depth > 0, "work outside of a verb is in no order"
        with self._lock:
            self._queue.append(work)
            self.num_queued += 1


def memory_at(address: int, num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes] of the host's memory, which nobody keeps alive by it."""
    return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), dtype=torch.uint8)


class AskedCache(DeviceCache):
    """A DeviceCache that tells of a refused gradient at once, as the caches of the host do: so it
    is asked alone."""

    @property
    def together(self) -> TableVerbs | None:
        return None

    def find_overflow(self, plan: DevicePlan, lr: float) -> int:
        """Also of what sum_gradients has found, for a device tells of both together."""
        super().find_overflow(plan, lr)
        key = self.failed_key(wait=True)
        return -1 if key is None else plan.unique_keys.tolist().index(key)

    def sum_here(self, plan: DevicePlan, keys: Any, grads: Any, lr: float) -> tuple[int, int]:
        self.make_plan(keys, plan)
        self.find(plan, 0, -1)
        if plan.num_missing:
            return plan.num_missing, -1
        self.sum_gradients(plan, grads)
        return 0, self.find_overflow(plan, lr)

    def push(self, plan: DevicePlan, grads: Any, lr: float, labels: Any = None) -> int:
        self.sum_gradients(plan, grads, labels)
        culprit = self.find_overflow(plan, lr)
        if culprit < 0:
            self.apply(plan, lr)
        return culprit
