"""Records in one plain file, by place: a memory map with announced reads, and the raw ceiling.

Above it: ssd_store_bench.py. Below it: random_read.cc, compiled here for this processor.
Neither side has keys: a batch gives the places, so they bound what a store with an index can reach.
"""

import ctypes
import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pull.gather import aligned
from benchmarks.ssd_store.page_cache import drop
from benchmarks.ssd_store.records import Batch, Records

DEPTH = 64
GAPS = (0, 8 << 10, 32 << 10, 128 << 10)
TUNING_TURNS = 2
MOST_BYTES = 512 << 10
BLOCK = 4096


def compile_reader() -> ctypes.CDLL:
    """Builds random_read.cc and loads it."""
    source = Path(__file__).with_name("random_read.cc")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "random_read.so"
        command = ["g++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC"]
        subprocess.run([*command, "-o", str(library), str(source)], check=True)
        return ctypes.CDLL(str(library))


class RecordFile:
    """The file, made once for both sides."""

    def __init__(self, path: Path, record_bytes: int) -> None:
        self.path, self.record_bytes = path, record_bytes
        self.library = compile_reader()

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
        places = np.sort(batch.places)
        failed = self._file.library.announce(
            ctypes.c_int(self._descriptor),
            ctypes.c_void_p(places.ctypes.data),
            ctypes.c_uint64(len(places)),
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
    """The same reads by io_uring at depth 64, O_DIRECT, records that lie near read as one."""

    name = "raw reads by io_uring, depth 64"

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self._gap = GAPS[0]
        self.figures = np.zeros(2, np.uint64)
        self._buffers = aligned(DEPTH * (MOST_BYTES + 2 * BLOCK))
        self.is_direct = True
        self._descriptor = self._open()

    def _open(self) -> int:
        try:
            return os.open(self._file.path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.is_direct = False  # a file system in memory, perhaps
            return os.open(self._file.path, os.O_RDONLY)

    def begin(self) -> None:
        """The file stays open."""

    end = begin

    def get(self, batch: Batch) -> Records:
        order = np.argsort(batch.places)
        places = batch.places[order]
        records = np.empty((len(places), self._file.record_bytes), np.uint8)
        failed = self._file.library.random_read(
            ctypes.c_int(self._descriptor),
            ctypes.c_void_p(places.ctypes.data),
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
        return [self._file.path]

    def close(self) -> None:
        os.close(self._descriptor)
