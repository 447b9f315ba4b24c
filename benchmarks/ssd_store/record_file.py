"""Records by place: a memory map of a plain file with announced reads, and the raw ceiling.

Above it: ssd_store_bench.py. Below it: random_read.cc, compiled here for this processor.
Neither side has keys: a batch gives the places, so they bound what a store with an index can reach.
The raw reads are of hps's own segments: two files on one disk need not be equally fast.
"""

import ctypes
import errno
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.native import aligned, compile_library
from benchmarks.ssd_store.hps_store import HpsStore
from benchmarks.ssd_store.page_cache import drop
from benchmarks.ssd_store.records import Batch, Records

DEPTH = 64
GAPS = (0, 8 << 10, 32 << 10, 128 << 10)
TUNING_TURNS = 2
MOST_BYTES = 512 << 10
BLOCK = 4096
SEGMENT_HEADER_BYTES = 64  # this and the next two: docs/ssd_store_format.md
CHECKSUM_BYTES = 4
TRAILER = struct.Struct("<8sQQQQII")


def num_records(segment: Path) -> int:
    """Of a sealed segment, by its trailer."""
    with segment.open("rb") as file:
        file.seek(-TRAILER.size, os.SEEK_END)
        magic, _, count, *_ = TRAILER.unpack(file.read(TRAILER.size))
    assert magic == b"HPSFOOT1", f"{segment} is not sealed"
    return int(count)


class RecordFile:
    """The file, made once for both sides."""

    def __init__(self, path: Path, record_bytes: int) -> None:
        self.path, self.record_bytes = path, record_bytes
        self.library = compile_library(__file__, "random_read.cc")

    def load(self, pieces: Iterable[Records]) -> None:
        """Writes and syncs it, filled up to whole blocks."""
        with self.path.open("wb") as file:
            for records in pieces:
                file.write(records)
            file.write(bytes(-file.tell() % BLOCK))
            file.flush()
            os.fsync(file.fileno())

    def check(self, failed: int, what: str) -> None:
        """Raises OSError for -errno."""
        if failed:
            raise OSError(-failed, f"{what}: {os.strerror(-failed)}")


class AnnouncedMap:
    """numpy's memory map; the kernel is told of all pages of a batch before one is touched."""

    name = "memmap, announced reads"

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self._map: Any = None
        self._descriptor = -1

    def begin(self) -> None:
        self._descriptor = os.open(self._file.path, os.O_RDONLY)
        record_bytes = self._file.record_bytes
        rows = self._file.path.stat().st_size // record_bytes
        self._map = np.memmap(self._file.path, np.uint8, "r", 0, (rows, record_bytes))

    def end(self) -> None:
        self._map = None
        os.close(self._descriptor)

    def get(self, batch: Batch) -> Records:
        offsets = np.sort(batch.places).astype(np.uint64) * np.uint64(self._file.record_bytes)
        files = np.zeros(len(offsets), np.int32)
        failed = self._file.library.announce(
            ctypes.c_int(self._descriptor),
            ctypes.c_void_p(files.ctypes.data),
            ctypes.c_void_p(offsets.ctypes.data),
            ctypes.c_uint64(len(offsets)),
            ctypes.c_uint64(self._file.record_bytes),
        )
        self._file.check(failed, "posix_fadvise")
        records: Records = self._map[batch.places]
        return records

    def files(self) -> list[Path]:
        return [self._file.path]

    def close(self) -> None:
        """`end` has closed it."""


class RawReads:
    """The same reads of hps's segments by io_uring at depth 64, O_DIRECT, near records as one.

    Args:
        file: for its library.
        store: loaded in the order of places, so that a record's number is its place.
    """

    name = "raw reads by io_uring, depth 64"

    def __init__(self, file: RecordFile, store: HpsStore) -> None:
        self._file = file
        self._paths = sorted(store.files())
        self._first_places = np.cumsum([0, *map(num_records, self._paths)])
        self._gap = GAPS[0]
        self.figures = np.zeros(2, np.uint64)
        self._buffers = aligned(DEPTH * (MOST_BYTES + 2 * BLOCK))
        self.is_direct = True
        self._descriptors = np.array([self._open(path) for path in self._paths], np.int32)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.is_direct = False  # a file system in memory, perhaps
            return os.open(path, os.O_RDONLY)

    def begin(self) -> None:
        """The files stay open."""

    end = begin

    def get(self, batch: Batch) -> Records:
        order = np.argsort(batch.places)
        places = batch.places[order]
        files = (np.searchsorted(self._first_places, places, side="right") - 1).astype(np.int32)
        stride = self._file.record_bytes + CHECKSUM_BYTES
        numbers = (places - self._first_places[files]).astype(np.uint64)
        offsets = np.uint64(SEGMENT_HEADER_BYTES) + numbers * np.uint64(stride)
        records = np.empty((len(places), self._file.record_bytes), np.uint8)
        failed = self._file.library.random_read(
            ctypes.c_void_p(self._descriptors.ctypes.data),
            ctypes.c_void_p(files.ctypes.data),
            ctypes.c_void_p(offsets.ctypes.data),
            ctypes.c_void_p(order.ctypes.data),
            ctypes.c_uint64(len(places)),
            ctypes.c_uint64(self._file.record_bytes),
            ctypes.c_uint32(DEPTH),
            ctypes.c_uint64(self._gap),
            ctypes.c_uint64(MOST_BYTES),
            ctypes.c_void_p(self._buffers.ctypes.data),
            ctypes.c_void_p(records.ctypes.data),
            ctypes.c_void_p(self.figures.ctypes.data),
        )
        self._file.check(failed, "io_uring")
        return records

    def read_all(self) -> int:
        """Reads the records of all files in order, some from each block; returns the bytes read."""
        rows = int(self._first_places[-1])
        stride = self._file.record_bytes + CHECKSUM_BYTES
        places = np.arange(0, rows, max(1, GAPS[-1] // stride))
        gap, self._gap = self._gap, 2 * GAPS[-1]
        self.get(Batch(places.astype(np.uint64), places, len(places)))
        self._gap = gap
        return int(self.figures[1])

    def tune(self, batch: Batch) -> None:
        """Keeps the gap that is fastest for batches like this one."""
        seconds = dict.fromkeys(GAPS, float("inf"))
        for gap in GAPS * TUNING_TURNS:
            self._gap = gap
            drop(self.files())
            start = time.perf_counter()
            self.get(batch)
            seconds[gap] = min(seconds[gap], time.perf_counter() - start)
        self._gap = min(seconds, key=lambda gap: seconds[gap])

    @property
    def notes(self) -> dict[str, Any]:
        """How it read the last batch."""
        reads, num_bytes = (int(figure) for figure in self.figures)
        return {"gap": self._gap, "o_direct": self.is_direct, "reads": reads, "bytes": num_bytes}

    def files(self) -> list[Path]:
        return self._paths

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(int(descriptor))
