"""The bound that memory sets on a sparse step: its bytes moved by a tight loop, without any work.

Above it: sparse_step_bench.py. Below it: memory_alone.cc, g++, ctypes. Output and gradients are
streamed, each distinct row is read twice and written once, by as many threads as hps has.
"""

import ctypes

import numpy as np

from benchmarks.common.native import aligned, compile_library
from benchmarks.parameter_server.sparse_step.contender import Workload

MOST_TABLE_BYTES = 1 << 30  # beyond any cache; a larger table would only add page walks


class MemoryAlone:
    """Moves what a step over a batch has to move.

    Args:
        work: the batches; only their ids count.
        row_bytes: of a row of hps's.
        threads: that share the work.
    """

    def __init__(self, work: Workload, row_bytes: int, threads: int) -> None:
        self._library = compile_library(__file__, "memory_alone.cc")
        self._library.memory_alone.restype = ctypes.c_double
        self._row_bytes = row_bytes
        self._threads = threads
        num_rows = min(work.rows, MOST_TABLE_BYTES // row_bytes)
        places = np.random.default_rng(0).permutation(num_rows)
        # In order of first occurrence, as a table meets them.
        batches = []
        for ids in work.ids:
            distinct, first = np.unique(ids.numpy() % num_rows, return_index=True)
            batches.append(places[distinct[np.argsort(first)]].astype(np.int64))
        self._slots = np.concatenate(batches)
        self._starts = np.cumsum([0, *map(len, batches)], dtype=np.int64)
        self._rows = aligned(num_rows * row_bytes)
        self._rows[:] = 1
        self._bytes = work.grads.numel() * 4 // 128 * 128
        self._out = aligned(self._bytes)
        self._gradients = aligned(self._bytes + 4096)
        self._out[:] = self._gradients[:] = 1

    def median_seconds(self, steps: int) -> float:
        """Median of some steps over the batches in turn."""
        seconds = self._library.memory_alone(
            ctypes.c_void_p(self._rows.ctypes.data),
            ctypes.c_int64(self._row_bytes),
            ctypes.c_void_p(self._slots.ctypes.data),
            ctypes.c_void_p(self._starts.ctypes.data),
            ctypes.c_int64(len(self._starts) - 1),
            ctypes.c_void_p(self._out.ctypes.data),
            ctypes.c_void_p(self._gradients.ctypes.data),
            ctypes.c_int64(self._bytes),
            ctypes.c_int(self._threads),
            ctypes.c_int(steps),
        )
        return float(seconds)
