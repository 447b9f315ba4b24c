"""The bounds that sums and updates set on a pooled step: a tight loop whose keys cost nothing, or
one hash and one probe each.

Above it: pooled_step_bench.py, many_tables_bench.py. Below it: pooled_alone.cc, g++, ctypes. Which
row an occurrence reads and which bags a row is in is found by numpy before; what is timed copies
each distinct row, sums the bags, sums their gradients a row, and steps the rows, by as many threads
as hps has.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.common.native import aligned, compile_library

MOST_BYTES = 1 << 30  # of all tables, beyond any cache; more would only add page walks
_PLACES_AHEAD = 16
_SLOTS = 64  # of a bucket, whose digests are a line
_ENTRIES_OVER_KEYS = 4
_FIELDS = {
    "dim": None,
    "rows": np.uint8,
    "stride": None,
    "slots": np.int64,
    "slot_starts": np.int64,
    "numbers": np.int32,
    "offsets": np.int32,
    "number_starts": np.int64,
    "bags": np.int32,
    "bag_offsets": np.int32,
    "num_bags": None,
    "keys": np.uint64,
    "distinct_keys": np.uint64,
    "entries": np.int32,
    "num_entries": None,
    "digests": np.uint8,
    "num_buckets": None,
    "found": np.int32,
    "values": np.uint8,
    "out": np.uint8,
    "gradients": np.uint8,
}


@dataclass(frozen=True)
class PooledTable:
    """What is asked of one table.

    Args:
        rows: of it.
        dim: floats of an embedding.
        row_bytes: of a row of hps's.
        batches: (ids int64 [L], offsets int64 [bags + 1]) each; all have as many bags.
    """

    rows: int
    dim: int
    row_bytes: int
    batches: Sequence[tuple[np.ndarray, np.ndarray]]


class _Work(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64 if dtype is None else ctypes.c_void_p)
        for name, dtype in _FIELDS.items()
    ]


def _hashes(keys: np.ndarray) -> np.ndarray:
    """As pooled_alone.cc has them."""
    shift = np.uint64(33)
    hashes = keys.astype(np.uint64)
    hashes ^= hashes >> shift
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> shift
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    return hashes ^ hashes >> shift


def _entries_of(distinct_keys: list[np.ndarray]) -> np.ndarray:
    """Each batch's numbers by the hashes of its keys; as many entries in every batch."""
    most = max(map(len, distinct_keys))
    num_entries = 1 << int(_ENTRIES_OVER_KEYS * most - 1).bit_length()
    entries = np.zeros((len(distinct_keys), num_entries), np.int32)
    for own, keys in zip(entries, distinct_keys, strict=True):
        own[_hashes(keys) & np.uint64(num_entries - 1)] = np.arange(len(keys))
    return entries


def _arrays_of(table: PooledTable, most_bytes: int) -> dict[str, np.ndarray]:
    """What the loop reads and writes of one table, whose ids are folded into so many bytes."""
    num_rows = min(table.rows, most_bytes // table.row_bytes)
    places = np.random.default_rng(0).permutation(num_rows)
    parts: dict[str, list[np.ndarray]] = {
        name: []
        for name in (
            "slots",
            "numbers",
            "offsets",
            "bags",
            "bag_offsets",
            "keys",
            "distinct_keys",
        )
    }
    for ids, offsets in table.batches:
        distinct, first, numbers, counts = np.unique(
            ids % num_rows, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)  # rows in order of first occurrence, as a table meets them
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        numbers = rank[numbers]
        bag_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        parts["slots"].append(places[distinct[order]])
        parts["numbers"].append(numbers)
        parts["keys"].append(ids % num_rows)
        parts["distinct_keys"].append(distinct[order])
        parts["offsets"].append(offsets)
        parts["bags"].append(bag_of[np.argsort(numbers, kind="stable")])
        parts["bag_offsets"].append(np.cumsum([0, *counts[order]]))
    num_distinct = [len(one) for one in parts["slots"]]
    size = (len(table.batches[0][1]) - 1) * table.dim * 4
    entries = _entries_of(parts["distinct_keys"])
    for name in ("numbers", "bags", "keys"):
        parts[name].append(np.zeros(_PLACES_AHEAD))  # which are asked for, never added
    arrays = {name: np.concatenate(one).astype(_FIELDS[name]) for name, one in parts.items()}
    arrays |= {
        "slot_starts": np.cumsum([0, *num_distinct], dtype=np.int64),
        "number_starts": np.cumsum([0, *map(len, parts["numbers"])], dtype=np.int64)[:-1],
        "entries": entries,
        "digests": aligned(-(-num_rows // _SLOTS) * _SLOTS),
        "found": aligned(max(len(ids) for ids, _ in table.batches) * 4),
        "rows": aligned(num_rows * table.row_bytes),
        "values": aligned(max(num_distinct) * table.dim * 4),
        "out": aligned(size),
        "gradients": aligned(size),
    }
    arrays["rows"].view(np.float32)[:] = 1.0
    arrays["gradients"].view(np.float32)[:] = 0.001
    return arrays


class PooledAlone:
    """Sums and steps what a step over a batch has to sum and step: row-wise Adagrad, sums of bags.

    Args:
        tables: what is asked of each; weights and means do not count.
        threads: that share the work.
    """

    def __init__(self, tables: Sequence[PooledTable], threads: int) -> None:
        self._library = compile_library(__file__, "pooled_alone.cc")
        self._library.pooled_alone.restype = ctypes.c_double
        self._threads, self._num_batches = threads, len(tables[0].batches)
        most_bytes = MOST_BYTES // len(tables)
        self._arrays = [_arrays_of(table, most_bytes) for table in tables]  # held for the loop
        works = []
        for table, arrays in zip(tables, self._arrays, strict=True):
            numbers = {"dim": table.dim, "stride": table.row_bytes // 4}
            numbers["num_bags"] = len(table.batches[0][1]) - 1
            numbers["num_entries"] = arrays["entries"].shape[1]
            numbers["num_buckets"] = len(arrays["digests"]) // _SLOTS
            pointers = {name: array.ctypes.data for name, array in arrays.items()}
            works.append(_Work(**(numbers | pointers)))
        self._works = (_Work * len(works))(*works)

    def median_seconds(self, steps: int, finds: bool = False) -> float:
        """Median of some steps over the batches in turn; with `finds` each key costs one hash and
        one probe."""
        counts = (len(self._works), self._num_batches, self._threads, steps, finds)
        seconds: float = self._library.pooled_alone(self._works, *map(ctypes.c_int, counts))
        assert seconds > 0, "pooled_alone.cc has no loop for one of the dims"
        return seconds
