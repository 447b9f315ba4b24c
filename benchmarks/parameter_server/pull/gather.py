"""The prefetched plain gather that `pull` is held against: compiled and tuned here, huge pages.

Above it: pull_bench.py. Below it: gather.cc, through common/native.py.
"""

import ctypes
import time

import numpy as np

from benchmarks.common.native import aligned, compile_library

COPY_BYTES = 64
DISTANCES = (4, 8, 16, 24, 32, 48, 64)


class PlainGather:
    """Copies 64 bytes of each of `num_rows` rows of 80 bytes: the same rows as a table's of dim 16.

    Args:
        num_rows: rows; the first float of a row's copied part holds its number modulo 2^20.
        stride: bytes from row to row.
        offset: where the copied part begins in a row, behind its header.
        length: rows a call.
    """

    def __init__(self, num_rows: int, stride: int, offset: int, length: int) -> None:
        self._library = compile_library(__file__, "gather.cc")
        self._stride = stride
        self._memory = aligned(num_rows * stride)
        floats = self._memory.view(np.float32).reshape(num_rows, stride // 4)
        floats[:] = 1.0
        floats[:, offset // 4] = np.arange(num_rows) % (1 << 20)
        self._start = self._memory.ctypes.data + offset
        self.out = aligned(length * COPY_BYTES).view(np.float32).reshape(length, COPY_BYTES // 4)
        self.distance = DISTANCES[0]
        self.is_streaming = False

    def __call__(self, ids: np.ndarray) -> None:
        """Gathers int64 [length] row numbers into `out`."""
        self._library.gather(
            ctypes.c_void_p(self._start),
            ctypes.c_int64(self._stride),
            ctypes.c_void_p(ids.ctypes.data),
            ctypes.c_int64(len(ids)),
            ctypes.c_int64(self.distance),
            ctypes.c_int(self.is_streaming),
            ctypes.c_void_p(self.out.ctypes.data),
        )

    def check(self, ids: np.ndarray) -> None:
        """Asserts that a call gathers the rows it was asked for."""
        self(ids)
        assert np.array_equal(self.out[:, 0], (ids % (1 << 20)).astype(np.float32))

    def tune(self, batches: list[np.ndarray]) -> None:
        """Keeps the prefetch distance and kind of store that are fastest on this machine."""
        seconds = {}
        for is_streaming in (False, True):
            for distance in DISTANCES:
                self.distance, self.is_streaming = distance, is_streaming
                taken = []
                for ids in batches:
                    start = time.perf_counter()
                    self(ids)
                    taken.append(time.perf_counter() - start)
                seconds[distance, is_streaming] = float(np.median(taken))
        self.distance, self.is_streaming = min(seconds, key=lambda setting: seconds[setting])
