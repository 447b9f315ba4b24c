"""The bound that sums and updates set on a pooled step: a tight loop whose keys cost nothing.

Above it: pooled_step_bench.py. Below it: pooled_alone.cc, g++, ctypes. Which row an occurrence
reads and which bags a row is in is found by numpy before; what is timed copies each distinct row,
sums the bags, sums their gradients a row, and steps the rows, by as many threads as hps has.
"""

import ctypes

import numpy as np

from benchmarks.common.native import aligned, compile_library
from benchmarks.parameter_server.pooled_step.workload import Workload

MOST_TABLE_BYTES = 1 << 30  # beyond any cache; a larger table would only add page walks
_PLACES_AHEAD = 16
_FIELDS = {
    "rows": np.uint8,
    "stride": None,
    "slots": np.int64,
    "slot_starts": np.int64,
    "numbers": np.int32,
    "offsets": np.int32,
    "number_starts": np.int64,
    "bags": np.int32,
    "bag_offsets": np.int32,
    "num_batches": None,
    "num_bags": None,
    "values": np.uint8,
    "out": np.uint8,
    "gradients": np.uint8,
}


class _Work(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64 if dtype is None else ctypes.c_void_p)
        for name, dtype in _FIELDS.items()
    ]


class PooledAlone:
    """Sums and steps what a step over a batch has to sum and step: row-wise Adagrad, sums of bags.

    Args:
        work: the batches; ids and bags count, weights and means do not.
        row_bytes: of a row of hps's.
        threads: that share the work.
    """

    def __init__(self, work: Workload, row_bytes: int, threads: int) -> None:
        self._library = compile_library(__file__, "pooled_alone.cc")
        self._library.pooled_alone.restype = ctypes.c_double
        self._dim, self._threads = work.shape.dim, threads
        num_rows = min(work.shape.rows, MOST_TABLE_BYTES // row_bytes)
        places = np.random.default_rng(0).permutation(num_rows)
        parts: dict[str, list[np.ndarray]] = {
            name: [] for name in ("slots", "numbers", "offsets", "bags", "bag_offsets")
        }
        for one in work.batches:
            offsets = one.offsets.numpy()
            distinct, first, numbers, counts = np.unique(
                one.ids.numpy() % num_rows,
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            order = np.argsort(first)  # rows in order of first occurrence, as a table meets them
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            numbers = rank[numbers]
            bag_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            parts["slots"].append(places[distinct[order]])
            parts["numbers"].append(numbers)
            parts["offsets"].append(offsets)
            parts["bags"].append(bag_of[np.argsort(numbers, kind="stable")])
            parts["bag_offsets"].append(np.cumsum([0, *counts[order]]))
        num_bags = len(work.batches[0].offsets) - 1
        num_distinct = [len(one) for one in parts["slots"]]
        size = num_bags * self._dim * 4
        for name in ("numbers", "bags"):
            parts[name].append(np.zeros(_PLACES_AHEAD))  # which are asked for, never added
        self._arrays: dict[str, np.ndarray] = {
            name: np.concatenate(arrays).astype(_FIELDS[name]) for name, arrays in parts.items()
        }
        self._arrays |= {
            "slot_starts": np.cumsum([0, *num_distinct], dtype=np.int64),
            "number_starts": np.cumsum([0, *map(len, parts["numbers"])], dtype=np.int64)[:-1],
            "rows": aligned(num_rows * row_bytes),
            "values": aligned(max(num_distinct) * self._dim * 4),
            "out": aligned(size),
            "gradients": aligned(size),
        }
        self._arrays["rows"].view(np.float32)[:] = 1.0
        self._arrays["gradients"].view(np.float32)[:] = 0.001
        numbers_of = {"stride": row_bytes // 4, "num_bags": num_bags}
        numbers_of["num_batches"] = len(work.batches)
        pointers = {name: array.ctypes.data for name, array in self._arrays.items()}
        self._work = _Work(**(numbers_of | pointers))

    def median_seconds(self, steps: int) -> float:
        """Median of some steps over the batches in turn."""
        seconds: float = self._library.pooled_alone(
            ctypes.byref(self._work),
            ctypes.c_int(self._dim),
            ctypes.c_int(self._threads),
            ctypes.c_int(steps),
        )
        assert seconds > 0, f"pooled_alone.cc has no loop for dim {self._dim}"
        return seconds
