"""CudaDevice: one CUDA device as the gpu_cache uses it: memory, kernels, copies, order of streams.

Above it: device_cache.py, whose verbs run on torch's current stream; the contract is device.py's.
Below it: torch (memory, copies, streams, prefix sums, sorts), CuPy (modules, NVRTC), the driver's
library, which is looked for where a device is opened: hps._C launches by its functions.
"""

import ctypes
import threading
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

import torch

from hps import _C
from hps.common.arrays import HostArray
from hps.config import kernel_cache_folder
from hps.errors import ConfigError
from hps.gpu_cache.device import Memory
from hps.gpu_cache.kernels import KernelArgs, cached_kernels

_BLOCKS_PER_PROCESSOR = 16  # resident ones are at most this many; more items are strided over


class CudaVerbOrder:
    """Verbs on one stream follow each other; a verb on another stream waits for the last one.

    One order is all caches' of a device, for a step's verbs are over all of them.

    One thread queues at a time: a plan's numbers may be asked for beside a verb of another thread,
    and a caller that comes next has to wait for both.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.turn = threading.RLock()
        self.last = _new_event()
        self.last_stream: torch.cuda.Stream | None = None

    def verb(
        self, *memory: Memory | torch.Tensor, plans: Sequence[_C.DevicePlanState] = ()
    ) -> "_CudaVerb":
        """See VerbOrder. Blocks nothing on the host."""
        return _CudaVerb(self, memory, plans)


class _CudaVerb:
    """One verb; a context manager, for there are several a step."""

    def __init__(
        self,
        order: CudaVerbOrder,
        memory: tuple[Memory | torch.Tensor, ...],
        plans: Sequence[_C.DevicePlanState],
    ) -> None:
        self._order = order
        self._memory = memory
        self._plans = plans
        self._on_device = torch.cuda.device(order.device)

    def __enter__(self) -> None:
        order = self._order
        order.turn.acquire()
        try:
            self._on_device.__enter__()  # type: ignore[no-untyped-call]
            self._begin()
        except BaseException:
            order.turn.release()
            raise

    def _begin(self) -> None:
        order = self._order
        self._stream = stream = torch.cuda.current_stream()
        if order.last_stream is not None and order.last_stream != stream:
            stream.wait_event(order.last)
        # The memory may be given back while this verb is queued, and not on its own stream.
        number = stream.cuda_stream
        new = _C.memory_of(list(self._plans), number, all=False) if self._plans else []
        for one in self._memory:
            if not isinstance(one, Memory):
                one.record_stream(stream)
            elif one.is_new_to(number):
                new.append(one)
        for piece in new:
            held = piece.memory if isinstance(piece, Memory) else piece
            held.record_stream(stream)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        order = self._order
        try:
            order.last.record(self._stream)
            order.last_stream = self._stream
            self._on_device.__exit__(kind, error, traceback)
        finally:
            order.turn.release()


class CudaDevice:
    """One CUDA device, its kernels compiled (about a second the first time, then from a file).

    Args:
        name: "cuda" or "cuda:N".

    Raises:
        ConfigError: CuPy is missing, or torch or CuPy sees no such device.
    """

    def __init__(self, name: str) -> None:
        self._cupy = _require_cupy(name)
        self.torch_device = _require_device(name)
        self.args = KernelArgs()
        nvrtc = _require_nvrtc(name)
        with torch.cuda.device(self.torch_device):
            properties = torch.cuda.get_device_properties(self.torch_device)
            path = cached_kernels(
                nvrtc,
                self.args.source(),
                f"sm_{properties.major}{properties.minor}",
                kernel_cache_folder(),
            )
            module = self._cupy.RawModule(path=str(path))
            self._functions = {kernel: module.get_function(kernel) for kernel in self.args.lanes}
        self.launcher = _C.Launcher(
            **_driver_functions(),
            functions={name: one.kernel.ptr for name, one in self._functions.items()},
            most_blocks=properties.multi_processor_count * _BLOCKS_PER_PROCESSOR,
        )
        self._threads = threading.local()

    def kernel_attributes(self) -> dict[str, dict[str, int]]:
        """By kernel: registers, bytes of local memory and so on, as the driver has them."""
        with torch.cuda.device(self.torch_device):
            return {name: dict(one.attributes) for name, one in self._functions.items()}

    def empty(self, num_bytes: int) -> torch.Tensor:
        """See Device."""
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device=self.torch_device)
        except torch.cuda.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self.torch_device)
            raise ConfigError(
                f"{self.torch_device} has too little memory: {num_bytes} bytes were requested, "
                f"{free} of {total} are free; lower GpuCacheConfig.bytes, or free device memory"
            ) from error

    def empty_pinned(self, num_bytes: int) -> torch.Tensor:
        """See Device."""
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:  # as torch tells that the driver has refused
            raise ConfigError(
                f"the host has no {num_bytes} bytes that can be pinned for {self.torch_device}: "
                f"{error}; use smaller batches, or free memory of the host"
            ) from error

    def stream(self) -> int:
        """See Device."""
        if not hasattr(self._threads, "has_context"):
            # The driver's own functions need a context that is this thread's; torch's make it so.
            torch.cuda.mem_get_info(self.torch_device)
            self._threads.has_context = True
        number: int = torch.cuda.current_stream().cuda_stream
        return number

    def launch(self, kernel: str, args: HostArray, count: int) -> None:
        """See Device."""
        self.launcher.launch(kernel, args.tobytes(), count, self.stream())

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """See Device."""
        target.copy_(source, non_blocking=True)

    def fill(self, target: torch.Tensor, value: int) -> None:
        """See Device."""
        target.fill_(value)

    def prefix_sum(self, target: torch.Tensor) -> None:
        """See Device."""
        target.cumsum_(0)

    def sort(self, ids: torch.Tensor, in_order: torch.Tensor, positions: torch.Tensor) -> None:
        """See Device."""
        torch.sort(ids, stable=True, out=(in_order, positions))

    def equal(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """See Device."""
        return torch.equal(one, other)

    def order(self) -> CudaVerbOrder:
        """See Device."""
        return CudaVerbOrder(self.torch_device)

    def event(self) -> torch.cuda.Event:
        """See Device."""
        event = _new_event()
        event.record()
        return event


def _new_event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return event


def _driver_functions() -> dict[str, int]:
    """Addresses of what queues kernels and copies, in the driver's library; torch has loaded it."""
    library = ctypes.CDLL("libcuda.so.1")
    names = {"launch": "cuLaunchKernel", "copy": "cuMemcpyHtoDAsync_v2"}
    found: dict[str, Any] = {key: getattr(library, name) for key, name in names.items()}
    return {key: ctypes.cast(one, ctypes.c_void_p).value or 0 for key, one in found.items()}


def _require_cupy(name: str) -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise ConfigError(
            f"GpuCacheConfig.device={name!r} needs CuPy, which launches the kernels "
            f"({error}), and a GPU; with one, pip install 'hps-ctr[cuda]'; without one, "
            "device='cpu' runs the same cache on the host"
        ) from error
    module: ModuleType = cupy
    return module


def _require_nvrtc(name: str) -> ModuleType:
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except Exception as error:
        raise ConfigError(
            f"GpuCacheConfig.device={name!r} needs NVRTC, which compiles the kernels, and CuPy "
            f"does not find it ({error}); install it with: pip install 'hps-ctr[cuda]'"
        ) from error
    module: ModuleType = nvrtc
    return module


def _require_device(name: str) -> torch.device:
    device = torch.device(name)
    if not torch.cuda.is_available():
        has_cuda = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
        reason = "sees no driver or no device" if has_cuda else "was built without CUDA"
        raise ConfigError(
            f"GpuCacheConfig.device={name!r}: torch {torch.__version__} {reason}; use a machine "
            "with an NVIDIA driver and a torch built with CUDA, or device='cpu'"
        )
    count = torch.cuda.device_count()
    idx = torch.cuda.current_device() if device.index is None else device.index
    if idx >= count:
        raise ConfigError(
            f"GpuCacheConfig.device={name!r}: there is no such device; this machine has {count}, "
            f"cuda:0 to cuda:{count - 1}"
        )
    return torch.device("cuda", idx)
