"""A driver whose functions are Python's: what hps._C.Launcher calls in place of CUDA's.

Above it: host_device.py, test_cuda_device.py. Below it: ctypes. The functions have the driver's own
arguments, so that what is tested is how the driver is called.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from hps import _C
from hps.gpu_cache.kernels import KernelArgs

_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
)  # fmt: skip
_COPY = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)
_UNKNOWN = 999  # as an error of the driver's


class CalledDriver:
    """Makes Launchers that call Python.

    Args:
        args: of the kernels.
        launch: a kernel, the bytes that it is given, how many items, and the launch's grid, block
            and stream.
        copy: an address on the device, one of the host, bytes, the stream.
    """

    def __init__(
        self,
        args: KernelArgs,
        launch: Callable[[str, bytes, int, tuple[int, int, int]], None],
        copy: Callable[[int, int, int, int], None],
    ) -> None:
        names = list(args.lanes)
        self.error: BaseException | None = None  # the last one that was raised in a call

        def on_launch(function: int, *rest: Any) -> int:
            name = names[function - 1]
            params = rest[8]
            size = args.dtype(args.struct_of(name)).itemsize
            words = ctypes.string_at(params[0], size)
            count = ctypes.c_int64.from_address(params[1]).value
            assert rest[1:3] == (1, 1) and rest[4:7] == (1, 1, 0) and not rest[9], "another launch"
            return self._do(lambda: launch(name, words, count, (rest[0], rest[3], rest[7] or 0)))

        def on_copy(target: int, source: int, num_bytes: int, stream: int | None) -> int:
            return self._do(lambda: copy(target, source, num_bytes, stream or 0))

        self._kept = _LAUNCH(on_launch), _COPY(on_copy)
        self._functions = {name: number for number, name in enumerate(names, 1)}

    def launcher(self, most_blocks: int = 100) -> _C.Launcher:
        """One that calls this driver, which has to outlive it."""
        launch, copy = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in self._kept)
        return _C.Launcher(
            launch=launch, copy=copy, functions=self._functions, most_blocks=most_blocks
        )

    def _do(self, work: Callable[[], None]) -> int:
        try:
            work()
        except BaseException as error:  # which C++ cannot pass on
            self.error = error
            return _UNKNOWN
        return 0
