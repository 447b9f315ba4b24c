"""What checksums cost: the same store with them and without them, gets and durable puts in turn.

hps cannot be told to leave its checksums out, so the store without them is a library of its own,
linked with believed_checksum.cc. Gets are of one store on disk, opened by both libraries, since how
fast a page is read depends on where it lies; puts are of two, of which one has no checksum at all.
Above it: ssd_costs_bench.py. Below it: row_store.cc, benchmarks/common.
"""

import ctypes
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.native import aligned, core_library
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.ssd_store import page_cache
from benchmarks.ssd_store.records import Batch, Data, Records

WITH = "hps"
WITHOUT = "the same without checksums"
UNSUMMED = "no checksum at all"
FLOOR = 1 / 1.05  # they may cost a twentieth of the time
SOURCES = {
    WITH: ("row_store.cc",),
    WITHOUT: ("row_store.cc", "believed_checksum.cc"),
    UNSUMMED: ("row_store.cc", "believed_checksum.cc", "no_crc32c.cc"),
}
PAIRS = {"get warm": 10, "get cold": 2, "put": 3}  # for each step that is asked for
_BEHIND = 4  # bytes that believed_checksum.cc reads behind the last row


class RowStore:
    """A store of records.

    Args:
        library: row_store.cc with checksums or without.
        folder: of the store, made if it is not there.
        record_bytes: of a record, its key included.
        memory: uint8, for the records of a get; the same for both stores, because pages differ.
        read_only: beside the store that writes there.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        folder: Path,
        record_bytes: int,
        memory: np.ndarray,
        read_only: bool = False,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._library = library
        library.row_store_open.restype = ctypes.c_void_p
        opened = library.row_store_open(
            str(folder).encode(), ctypes.c_uint32(record_bytes), ctypes.c_int(read_only)
        )
        assert opened is not None, "the store did not open; stderr has the reason"
        self._store = ctypes.c_void_p(opened)
        most = len(memory) // record_bytes
        self._records = memory[: most * record_bytes].reshape(most, record_bytes)
        self._found = np.zeros(most, np.uint8)

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._library, name)(self._store, *arguments) != 0:
            raise OSError(f"{name} failed; stderr has the reason")

    def load(self, data: Data) -> None:
        """Stores all records durably."""
        for records in data.in_order(data.by_place()):
            self._append(with_room_behind(records))
        self._call("row_store_checkpoint")

    def _append(self, records: Records) -> None:
        pointer = ctypes.c_void_p(records.ctypes.data)
        self._call("row_store_append", pointer, ctypes.c_uint64(len(records)))

    def put(self, records: Records) -> None:
        """Stores records `with_room_behind` durably."""
        self._append(records)
        self._call("row_store_checkpoint")

    def get(self, batch: Batch) -> Records:
        """uint8 [n, record_bytes]: the records of a batch, until the next get of either store.

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


def with_room_behind(records: Records) -> Records:
    """A copy with some bytes behind it."""
    memory = np.zeros(records.size + _BEHIND, np.uint8)
    copy = memory[: records.size].reshape(records.shape)
    copy[:] = records
    return copy


def libraries() -> dict[str, ctypes.CDLL]:
    """The store with checksums, without those of records, and without any, by name.

    Raises:
        FileNotFoundError: hps was not built in this checkout.
    """
    return {name: core_library(__file__, *sources) for name, sources in SOURCES.items()}


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class _Turns:
    """Times two stores in turn, the first of a pair being now the one, now the other.

    Args:
        stores: with checksums and without.
        step: given a store and a number, one more each time; returns how many keys it was asked
            for.
        prepare: before each step, not timed.
    """

    def __init__(
        self,
        stores: tuple[RowStore, RowStore],
        step: Callable[[RowStore, int], int],
        prepare: Callable[[RowStore, int], object],
    ) -> None:
        self._stores, self._step, self._prepare = stores, step, prepare
        self._num_steps = 0

    def row(self, axes: dict[str, Any], repetitions: int, pairs: int) -> Row:
        """The result; a repetition's figure is the median of its pairs.

        The notes have the processor's time, which a busy disk does not disturb.
        """
        rates: tuple[list[float], list[float]] = ([], [])
        processor: tuple[list[float], list[float]] = ([], [])
        for _ in range(repetitions):
            figures = [self._pair() for _ in range(pairs)]
            for side in range(2):
                rates[side].append(float(np.median([pair[side][0] for pair in figures])))
                processor[side].extend(pair[side][1] for pair in figures)
        samples = [Samples(tuple(values)) for values in rates]
        row = comparison_row(axes, "M keys/s", samples[0], (WITHOUT, samples[1]), floor=FLOOR)
        times = [float(np.median(values)) for values in processor]
        notes = {"processor_ns_a_key": times, "processor_ratio": times[0] / times[1]}
        return row | {"notes": notes}

    def _pair(self) -> list[tuple[float, float]]:
        """Of either store, M keys/s and the processor's nanoseconds a key."""
        found = [(0.0, 0.0), (0.0, 0.0)]
        is_turned = self._num_steps // 2 % 2
        for place in range(2):
            side = place ^ is_turned
            self._prepare(self._stores[side], self._num_steps)
            processor, start = _processor_seconds(), time.perf_counter()
            count = self._step(self._stores[side], self._num_steps)
            seconds = time.perf_counter() - start
            found[side] = (count / 1e6 / seconds, (_processor_seconds() - processor) * 1e9 / count)
            self._num_steps += 1
        return found


def _gets(
    libraries: dict[str, ctypes.CDLL], folder: Path, data: Data, options: dict[str, Any]
) -> Iterator[Row]:
    memory = aligned(options["batch"] * data.record_bytes)
    writer = RowStore(libraries[WITH], folder, data.record_bytes, memory)
    writer.load(data)
    reader = RowStore(libraries[WITHOUT], folder, data.record_bytes, memory, read_only=True)
    # As many that each store has each of them first and second.
    batches = [data.uniform(options["batch"], 500 + seed) for seed in range(10)]
    for store in (writer, reader):
        assert np.array_equal(store.get(batches[0]), data.records(batches[0].places))

    def step(store: RowStore, number: int) -> int:
        batch = batches[number % len(batches)]
        store.get(batch)
        return batch.requested

    def keep(store: RowStore, number: int) -> None:
        if number == 0:
            page_cache.warm(store.files())

    def drop(store: RowStore, number: int) -> None:
        page_cache.drop(store.files())

    axes = {"record_bytes": data.record_bytes, "rows": data.rows, "keys": "uniform"}
    for figure, prepare in (("get warm", keep), ("get cold", drop)):
        yield _Turns((writer, reader), step, prepare).row(
            {"figure": f"checksums, {figure}", **axes},
            options["repetitions"],
            options["steps"] * PAIRS[figure],
        )
    reader.close()
    writer.close()


def _puts(
    libraries: dict[str, ctypes.CDLL], folder: Path, data: Data, options: dict[str, Any]
) -> Row:
    stores = tuple(
        RowStore(libraries[name], folder / name, data.record_bytes, np.zeros(0, np.uint8))
        for name in (WITH, UNSUMMED)
    )
    for store in stores:
        store.load(data)
    ready: list[Records] = []

    def prepare(store: RowStore, number: int) -> None:
        places = data.uniform(options["batch"], 2000 + number).places
        ready[:] = [with_room_behind(data.records(places))]

    def step(store: RowStore, number: int) -> int:
        store.put(ready[0])
        return len(ready[0])

    axes = {"record_bytes": data.record_bytes, "rows": data.rows, "keys": "uniform"}
    row = _Turns((stores[0], stores[1]), step, prepare).row(
        {"figure": "checksums, put", **axes},
        options["repetitions"],
        options["steps"] * PAIRS["put"],
    )
    for store in stores:
        store.close()
    return row


def checksum_cost(
    libraries: dict[str, ctypes.CDLL], folder: Path, data: Data, options: dict[str, Any]
) -> Iterator[Row]:
    """Rows of gets, warm and cold, and of puts."""
    yield from _gets(libraries, folder / "gets", data, options)
    yield _puts(libraries, folder / "puts", data, options)
