"""What checksums cost: the same store with them and without them, gets and durable puts in turn.

hps cannot be told to leave its checksums out, so the store without them is a library of its own,
whose checksums are those of null_checksum.cc. Above it: ssd_store_bench.py. Below it: row_store.cc,
benchmarks/common.
"""

import ctypes
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.native import core_library
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.ssd_store import page_cache
from benchmarks.ssd_store.records import Batch, Data, Records

WITH = "hps"
WITHOUT = "the same without checksums"
FLOOR = 1 / 1.05  # they may cost a twentieth of the time
SOURCES = {WITH: ("row_store.cc",), WITHOUT: ("row_store.cc", "null_checksum.cc")}
STEPS = {"get warm": 10, "get cold": 2, "put": 3}  # for each one asked for, of either side


class RowStore:
    """A store of records in a folder of its own.

    Args:
        library: row_store.cc with checksums or without.
        folder: made if it is not there.
        record_bytes: of a record, its key included.
        most: records of a get, at most; they go to memory that is there already.
    """

    def __init__(self, library: ctypes.CDLL, folder: Path, record_bytes: int, most: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._library = library
        library.row_store_open.restype = ctypes.c_void_p
        opened = library.row_store_open(str(folder).encode(), ctypes.c_uint32(record_bytes))
        assert opened is not None, "the store did not open; stderr has the reason"
        self._store = ctypes.c_void_p(opened)
        self._records = np.zeros((most, record_bytes), np.uint8)
        self._found = np.zeros(most, np.uint8)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(self._store, *arguments) != 0:
            raise OSError(f"{name} failed; stderr has the reason")

    def append(self, records: Records) -> None:
        """Stores records, not durably yet."""
        records = np.ascontiguousarray(records)
        pointer = ctypes.c_void_p(records.ctypes.data)
        self._call("row_store_append", pointer, ctypes.c_uint64(len(records)))

    def checkpoint(self) -> None:
        """Makes all that was stored durable."""
        self._call("row_store_checkpoint")

    def put(self, records: Records) -> None:
        """Stores records durably."""
        self.append(records)
        self.checkpoint()

    def get(self, batch: Batch) -> Records:
        """uint8 [n, record_bytes]: the records of a batch, until the next get.

        Raises:
            OSError: one is damaged, or the system refused.
        """
        count = len(batch.keys)
        self._call(
            "row_store_fetch",
            ctypes.c_void_p(batch.keys.ctypes.data),
            ctypes.c_uint64(count),
            ctypes.c_void_p(self._records.ctypes.data),
            ctypes.c_void_p(self._found.ctypes.data),
        )
        assert self._found[:count].all(), "the store lacks a key that was stored"
        return self._records[:count]

    def files(self) -> list[Path]:
        """The files of records."""
        return [path for path in page_cache.files_under(self.folder) if "segment-" in path.name]

    def close(self) -> None:
        self._library.row_store_close(self._store)


def libraries() -> dict[str, ctypes.CDLL]:
    """The store with checksums and without, by name.

    Raises:
        FileNotFoundError: hps was not built in this checkout.
    """
    return {name: core_library(__file__, *sources) for name, sources in SOURCES.items()}


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class _Turns:
    """Times both stores in turn, the first of a pair being now the one, now the other.

    A repetition's figure is the median of its steps.
    """

    def __init__(self, stores: dict[str, RowStore]) -> None:
        self._stores = stores
        self._num_pairs = 0
        self._rates: dict[str, list[float]] = {name: [] for name in stores}
        self._processor: dict[str, list[float]] = {name: [] for name in stores}

    def repetition(
        self,
        steps: int,
        prepare: Callable[[RowStore], object],
        step: Callable[[RowStore, int], int],
    ) -> None:
        """One repetition; `step` is given its number and returns how many keys it was asked for."""
        rates: dict[str, list[float]] = {name: [] for name in self._stores}
        for number in range(steps):
            for name in list(self._stores)[:: 1 if self._num_pairs % 2 == 0 else -1]:
                store = self._stores[name]
                prepare(store)
                processor, start = _processor_seconds(), time.perf_counter()
                count = step(store, number)
                rates[name].append(count / 1e6 / (time.perf_counter() - start))
                self._processor[name].append((_processor_seconds() - processor) * 1e9 / count)
            self._num_pairs += 1
        for name in self._stores:
            self._rates[name].append(float(np.median(rates[name])))

    def row(self, axes: dict[str, Any]) -> Row:
        """The result; the notes have the processor's time, which a busy disk does not disturb."""
        samples = {name: Samples(tuple(rates)) for name, rates in self._rates.items()}
        row = comparison_row(
            axes, "M keys/s", samples[WITH], (WITHOUT, samples[WITHOUT]), floor=FLOOR
        )
        times = {name: float(np.median(values)) for name, values in self._processor.items()}
        return row | {
            "notes": {
                "processor_ns_a_key": times,
                "processor_ratio": times[WITH] / times[WITHOUT],
            }
        }


def _gets(
    stores: dict[str, RowStore], figure: str, batches: Sequence[Batch], options: dict[str, Any]
) -> _Turns:
    steps = options["steps"] * STEPS[figure]
    turns = _Turns(stores)
    for repetition in range(options["repetitions"]):
        if figure == "get warm":
            for store in stores.values():
                page_cache.warm(store.files())
                store.get(batches[0])

        def prepare(store: RowStore) -> None:
            if figure == "get cold":
                page_cache.drop(store.files())

        def step(store: RowStore, number: int, first: int = repetition * steps) -> int:
            batch = batches[(first + number) % len(batches)]
            store.get(batch)
            return batch.requested

        turns.repetition(steps, prepare, step)
    return turns


def _puts(stores: dict[str, RowStore], data: Data, options: dict[str, Any]) -> _Turns:
    turns = _Turns(stores)
    steps = options["steps"] * STEPS["put"]
    for repetition in range(options["repetitions"]):
        first = 2000 + repetition * steps
        pieces = [
            data.records(data.uniform(options["batch"], first + number).places)
            for number in range(steps)
        ]

        def step(store: RowStore, number: int, pieces: list[Records] = pieces) -> int:
            store.put(pieces[number])
            return len(pieces[number])

        turns.repetition(steps, lambda store: None, step)
    return turns


def checksum_cost(
    libraries: dict[str, ctypes.CDLL], folder: Path, data: Data, options: dict[str, Any]
) -> Iterator[Row]:
    """Rows of gets, warm and cold, and of puts."""
    batches = [data.uniform(options["batch"], 500 + seed) for seed in range(10)]
    stores = {
        name: RowStore(library, folder / str(number), data.record_bytes, options["batch"])
        for number, (name, library) in enumerate(libraries.items())
    }
    for store in stores.values():
        for records in data.in_order(data.by_place()):
            store.append(records)
        store.checkpoint()
        assert np.array_equal(store.get(batches[0]), data.records(batches[0].places))
    axes = {"record_bytes": data.record_bytes, "rows": data.rows, "keys": "uniform"}
    for figure in ("get warm", "get cold"):
        turns = _gets(stores, figure, batches, options)
        yield turns.row({"figure": f"checksums, {figure}", **axes})
    yield _puts(stores, data, options).row({"figure": "checksums, put", **axes})
    for store in stores.values():
        store.close()
