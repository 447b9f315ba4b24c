"""StreamDevice: the stand-in device with streams, events and an allocator, all of whose work is
logged by a StreamOrder.

Above it: test_stream_order.py. Below it: host_device.py, stream_order.py. Work is done at once, by
whoever queues it, so that torch's own may follow it; whether a GPU would have to do it in that
order is what the log tells. CudaVerbOrder, CudaDevice's events and the pipeline's Arrival are
hps's own, over a `torch.cuda` of stand-ins.
"""

import ctypes
import itertools
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from hps import _C
from hps.gpu_cache.cuda_device import CudaDevice, CudaVerbOrder
from hps.gpu_cache.pinned import PinnedPiece, PinnedPool
from tests.gpu_cache.host_device import HostDevice
from tests.gpu_cache.stream_order import PINNED, Block, StreamOrder, called_from


class StreamDevice(HostDevice):
    """A HostDevice with streams.

    Args:
        left_out: what is not done, by how "function: call" of hps begins: a planted fault. Of
            record_stream the call ends with where its memory was taken.
    """

    def __init__(self, left_out: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.streams = StreamOrder()
        self.left_out = left_out
        self.num_left_out = 0
        self.num_written_back = 0  # for who runs it to note
        self.ranges = FakeRanges()
        self._numbers = itertools.count(1)
        self._own = threading.local()
        self._const = _const_pointers(_C.gpu_kernel_source())
        self._default = FakeStream(self)

    # As Device.

    def sees_unrecorded(self, place: str) -> bool:
        """True if memory that was taken there is told of, as given out again too early."""
        return any(
            "may be taken again before" in fault and f"memory of {place}" in fault
            for fault in self.streams.faults
        )

    def empty(self, num_bytes: int) -> torch.Tensor:
        with self.inside():
            memory = super().empty(num_bytes)
            self._held.clear()  # an allocator holds nothing
        self.take(memory)
        return memory

    def empty_pinned(self, num_bytes: int) -> torch.Tensor:
        with self.inside():
            memory = super().empty_pinned(num_bytes)
        storage = memory.untyped_storage()
        gone = StorageWeakRef(storage).expired
        self.streams.take(storage.data_ptr(), storage.nbytes(), PINNED, gone)
        return memory

    def launch(self, kernel: str, args: NDArray[Any], count: int) -> None:
        if count == 0:
            return
        reads: list[Block] = []
        writes: list[Block] = []
        struct = self.args.struct_of(kernel)
        for address, is_const in self._pointers(struct, args[0], kernel):
            block = self.streams.find(address)
            if block is not None:
                (reads if is_const else writes).append(block)
        with self._queued(kernel, reads, writes):
            _C.run_gpu_kernel(kernel, args.tobytes(), count)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if target.numel():
            with self._queued("copy", self.blocks_of(source), self.blocks_of(target)):
                target.copy_(source)

    def stream(self) -> int:
        return self.current().number

    def _copied(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        assert stream == self.current().number, "a copy on another stream"
        block = self.streams.find(target)
        assert block is not None, "a copy to nowhere"
        with self._queued("copy", [], [block]):
            ctypes.memmove(target, source, num_bytes)

    def fill(self, target: torch.Tensor, value: int) -> None:
        with self._queued("fill", [], self.blocks_of(target)):
            target.fill_(value)

    def prefix_sum(self, target: torch.Tensor) -> None:
        with self._queued("prefix sum", [], self.blocks_of(target)):
            target.cumsum_(0)

    def sort(self, ids: torch.Tensor, in_order: torch.Tensor, positions: torch.Tensor) -> None:
        written = [*self.blocks_of(in_order), *self.blocks_of(positions)]
        with self._queued("sort", self.blocks_of(ids), written):
            torch.sort(ids, stable=True, out=(in_order, positions))

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        with self._queued("equal", [*self.blocks_of(one), *self.blocks_of(other)], []):
            found = torch.equal(one, other)
        self.streams.host_wait(self.streams.snapshot(self.current().number))
        return found

    def event(self) -> Any:
        return CudaDevice.event(cast("Any", self))

    def order(self) -> Any:
        return CudaVerbOrder(self.torch_device)

    # What the log is told.

    def new_number(self) -> int:
        """Of a stream."""
        return next(self._numbers)

    def current(self) -> "FakeStream":
        """The stream that the calling thread works on."""
        stream: FakeStream = getattr(self._own, "stream", self._default)
        return stream

    @contextmanager
    def on(self, stream: "FakeStream") -> Iterator[None]:
        """The calling thread works on a stream, and what it asks torch for is logged."""
        before, self._own.stream = self.current(), stream
        try:
            with _LoggedTorch(self):
                yield
        finally:
            self._own.stream = before

    def take(self, tensor: torch.Tensor) -> None:
        """A tensor's memory was taken on the current stream."""
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        self.streams.take(
            storage.data_ptr(), storage.nbytes(), self.current().number, reference.expired
        )

    def blocks_of(self, tensor: torch.Tensor) -> list[Block]:
        """The memory of a tensor, if it is the device's: torch's allocator sees to pinned memory
        that torch copies from or to."""
        block = self.streams.blocks.get(tensor.untyped_storage().data_ptr())
        return [] if block is None or block.stream == PINNED else [block]

    def is_left_out(self, call: str) -> bool:
        """True if a call is not to be done."""
        found = any(f"{call}$".startswith(one) for one in self.left_out)
        self.num_left_out += found
        return found

    def is_inside(self) -> bool:
        """True while torch works for the device itself."""
        return getattr(self._own, "depth", 0) > 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        self._own.depth = getattr(self._own, "depth", 0) + 1
        try:
            yield
        finally:
            self._own.depth -= 1

    @contextmanager
    def _queued(self, what: str, reads: list[Block], writes: list[Block]) -> Iterator[None]:
        with self.streams.lock, self.inside():
            self.streams.work(self.current().number, what, reads, writes)
            yield

    def _pointers(self, struct: str, args: Any, kernel: str) -> Iterator[tuple[int, bool]]:
        """Every 64-bit number of an argument struct, and whether it points to what is const; Tables
        are followed to the structs of all tables."""
        structs = self.args._structs
        for name, kind, _ in structs[struct][1]:
            if kind in structs:
                yield from self._pointers(kind, args[name], kernel)
            elif kind == "u8":
                yield int(args[name]), (struct, name) in self._const
        if struct == "Tables":
            of_each = self.args.table_struct_of(kernel)
            for one in self._structs_at(of_each, int(args["args"]), int(args["num_tables"])):
                yield from self._pointers(of_each, one, kernel)

    def _structs_at(self, struct: str, address: int, count: int) -> NDArray[Any]:
        """As they are there now: the copy that brought them was done at once."""
        dtype = self.args.dtype(struct)
        words = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(words, dtype)


def _const_pointers(source: str) -> set[tuple[str, str]]:
    """(struct, field) of each pointer to what a kernel may only read."""
    found = set()
    for struct, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", source, re.M | re.S):
        found |= {(struct, name) for name in re.findall(r"^ *const \w+\* (\w+);", body, re.M)}
    return found


class FakeRanges:
    """As torch.cuda.nvtx; keeps how deep each thread is, and what has been named."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []  # a thread and what it did
        self.open: dict[str, int] = {}

    def range_push(self, msg: str) -> None:
        thread = threading.current_thread().name
        self.open[thread] = self.open.get(thread, 0) + 1
        self.names.append((thread, msg))

    def range_pop(self) -> None:
        self.open[threading.current_thread().name] -= 1


class FakeStream:
    """As torch.cuda.Stream."""

    def __init__(self, device: StreamDevice) -> None:
        self._device = device
        self.number = self.cuda_stream = device.new_number()

    def wait_event(self, event: "FakeEvent") -> None:
        if not self._device.is_left_out(f"{called_from()}: wait_event"):
            self._device.streams.wait(self.number, event.told)


class FakeEvent:
    """As torch.cuda.Event."""

    def __init__(self, device: StreamDevice) -> None:
        self._device = device
        self.told: dict[int, int] = {}

    def record(self, stream: FakeStream | None = None) -> None:
        if not self._device.is_left_out(f"{called_from()}: record"):
            self.told = self._device.streams.snapshot((stream or self._device.current()).number)

    def synchronize(self) -> None:
        self._device.streams.host_wait(self.told)

    def query(self) -> bool:
        self.synchronize()  # all work is done at once
        return True


class _LoggedTorch(TorchDispatchMode):
    """Logs torch's own work on memory of the device. What it makes out of nothing, or out of
    something there, lies there, too."""

    def __init__(self, device: StreamDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._device.is_inside():
            return func(*args, **kwargs)
        given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        blocks = [block for one in given for block in self._device.blocks_of(one)]
        found = func(*args, **kwargs)
        returns = func._schema.returns
        if any(one.alias_info and not one.alias_info.is_write for one in returns):
            return found  # a view
        written = self._written(func, args, kwargs)
        if blocks or not given:
            made = [one for one in tree_flatten(found)[0] if isinstance(one, torch.Tensor)]
            known = {one.untyped_storage().data_ptr() for one in given}
            for one in made:
                if one.untyped_storage().data_ptr() not in known:
                    self._device.take(one)
                    written += self._device.blocks_of(one)
        if blocks or written:
            number = self._device.current().number
            self._device.streams.work(number, func.overloadpacket.__name__, blocks, written)
        return found

    def _written(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Block]:
        written = []
        for i, argument in enumerate(func._schema.arguments):
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and isinstance(given, torch.Tensor):
                written += self._device.blocks_of(given)
        return written


def as_torch_cuda(device: StreamDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts stand-ins of a device's streams where hps looks for torch's."""

    def record_stream(tensor: torch.Tensor, stream: FakeStream) -> None:
        for block in device.blocks_of(tensor):
            if not device.is_left_out(f"{called_from()}: record_stream: {block.name}"):
                device.streams.record(block.start, stream.number)

    def take(pool: PinnedPool, num_bytes: int) -> PinnedPiece:
        piece = taking(pool, num_bytes)
        device.streams.access(piece.address, is_write=True)  # whoever has it may
        return piece

    def array(piece: PinnedPiece) -> NDArray[Any]:
        device.streams.access(piece.address, is_write=False)
        return reading(piece)

    taking, reading = PinnedPool.take, PinnedPiece.array
    monkeypatch.setattr(PinnedPool, "take", take)
    monkeypatch.setattr(PinnedPiece, "array", array)
    fakes: dict[str, Any] = {
        "Event": lambda: FakeEvent(device),
        "Stream": lambda *_: FakeStream(device),
        "current_stream": lambda *_: device.current(),
        "stream": device.on,
        "device": lambda *_: nullcontext(),
        "nvtx": device.ranges,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
