"""CountedDevice: the stand-in device, which counts what a step asks of a device, verb by verb.

Above it: step_counts.py. Below it: host_device.py. Counted are launches by kernel, other work that
is queued (fills, prefix sums, sorts and torch's own operators, each of which is a kernel or more on
a GPU), copies, pieces of memory taken on the device and pinned on the host, and waits: where the
host has to stop until queued work is done, and what it holds meanwhile.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

import hps
from tests.gpu_cache.host_device import HostDevice

_ROOT = Path(hps.__file__).parent
_CACHE = str(_ROOT / "gpu_cache")
_TIERS = tuple(str(_ROOT / folder) for folder in ("tiers", "parameter_server", "dram_cache"))
KINDS = ("launches", "others", "copies", "device_pieces", "pinned_pieces", "waits")


class Wait(NamedTuple):
    """A wait of the host.

    Args:
        stage: of the step.
        place: the method of a tier or of the server, the cache's verb, and what in it waits.
        holds: names of the locks that its thread has.
    """

    stage: str
    place: str
    holds: tuple[str, ...]


class CountedDevice(HostDevice):
    """A HostDevice that counts while `counting`.

    After it is made, `locks` may be set: by name, whether this thread holds it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.locks: dict[str, Callable[[], bool]] = {}
        self.stage = ""
        self.verbs: dict[tuple[str, str], Counter[str]] = {}  # by stage and verb
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[Wait] = Counter()
        # Called before each wait of the main thread, with its place.
        self.before_wait: Callable[[str], object] = lambda place: None
        self._is_inside = False  # its own torch operators are not those of a step

    def at(self, place: str, work: Callable[[], object]) -> list[str]:
        """`work` is done once, before the next wait at a place; returns where that was, later."""
        seen: list[str] = []

        def before(where: str) -> None:
            if place in where and not seen:
                seen.append(where)
                work()

        self.before_wait = before
        return seen

    @contextmanager
    def counting(self, stage: str) -> Iterator[None]:
        """What is asked for inside counts for a stage. One thread alone may ask."""
        self.stage = stage
        try:
            with _TorchOperators(self):
                yield
        finally:
            self.stage = ""

    def count(self, kind: str) -> None:
        """One more, of the verb under way."""
        if self.stage:
            cache, _ = _methods(sys._getframe(1))
            verb = cache[-1].rpartition(".")[2] if cache else "torch"
            self.verbs.setdefault((self.stage, verb), Counter())[kind] += 1

    def empty(self, num_bytes: int) -> torch.Tensor:
        self.count("device_pieces")
        with self.inside():
            return super().empty(num_bytes)

    def empty_pinned(self, num_bytes: int) -> torch.Tensor:
        self.count("pinned_pieces")
        with self.inside():
            return super().empty_pinned(num_bytes)

    def launch(self, kernel: str, args: NDArray[Any], count: int) -> None:
        if count:  # else nothing is launched, as CudaDevice has it
            self.count("launches")
            self.kernels[kernel] += bool(self.stage)
            super().launch(kernel, args, count)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if target.numel():  # else torch queues nothing
            self.count("copies")
            super().copy(target, source)

    def _copied(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        with self.inside():
            super()._copied(target, source, num_bytes, stream)

    def fill(self, target: torch.Tensor, value: int) -> None:
        self.count("others")
        super().fill(target, value)

    def prefix_sum(self, target: torch.Tensor) -> None:
        if target.numel():
            self.count("others")
            super().prefix_sum(target)

    def sort(self, ids: torch.Tensor, in_order: torch.Tensor, positions: torch.Tensor) -> None:
        self.count("others")
        super().sort(ids, in_order, positions)

    def work_off(self, number: int) -> None:
        """Also asked for where the work has been done, which is no wait."""
        if self.stage and self.num_done < number:
            self.count("waits")
            holds = tuple(name for name, is_held in self.locks.items() if is_held())
            place = _place(sys._getframe(1))
            self.waits[Wait(self.stage, place, holds)] += 1
            if threading.current_thread() is threading.main_thread():
                self.before_wait(place)
        with self.inside():
            super().work_off(number)

    @property
    def is_foreign(self) -> bool:
        """True if an operator of torch that runs now is asked for by the step."""
        return bool(self.stage) and not self._is_inside

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What torch is asked for inside is not asked for by the step."""
        was, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = was


class _TorchOperators(TorchDispatchMode):
    """Counts the operators of torch that make something anew: on a GPU each is a kernel or more."""

    def __init__(self, device: CountedDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        is_view = any(
            one.alias_info and not one.alias_info.is_write for one in func._schema.returns
        )
        if self._device.is_foreign and not is_view:
            is_empty = func.overloadpacket.__name__.startswith("empty")
            self._device.count("device_pieces" if is_empty else "others")
        return found


def _methods(frame: FrameType | None) -> tuple[list[str], list[str]]:
    """Methods of the gpu_cache, and of what is above it, that a frame is in, innermost first."""
    cache, above = [], []
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if file.startswith(_CACHE):
            cache.append(name)
        elif file.startswith(_TIERS):
            above.append(name)
        frame = frame.f_back
    return cache, above


def _place(frame: FrameType) -> str:
    cache, above = _methods(frame)
    verb = cache[-1] if cache else "torch"
    inner = next((name for name in cache if not name.startswith("HostCopy.")), verb)
    parts = [above[0] if above else "the caller", verb, inner]
    return ": ".join(dict.fromkeys(parts))
