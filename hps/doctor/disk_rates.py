"""measure(): how fast the disk behind a folder writes and reads, in a bounded time.

Above it: disk.py. Below it: one file without a name, which is gone with the process however that
ends; pread and pwrite. Reads go past the page cache where the file system can.
"""

import errno
import mmap
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

_LARGE, _SMALL = 2**20, 4096
_MOST_BYTES = 2**28  # of the file
_ROUND = 8  # large pieces between two syncs
_READERS = 8
_SHARE_OF_FREE = 20  # the file takes at most one part in so many of the free space


@dataclass(frozen=True)
class Rates:
    """What was measured.

    Args:
        written: bytes a second, with a sync after every 8 MiB.
        read: bytes a second, in pieces of 1 MiB, one after the other.
        small_reads: reads a second of 4 KiB at random places, by 8 threads.
        small_read_us: the median time of one of them, in microseconds.
        is_direct: reads went past the page cache.
        seconds: that all of it took.
    """

    written: float
    read: float
    small_reads: float
    small_read_us: float
    is_direct: bool
    seconds: float


def measure(folder: Path, seconds: float) -> Rates:
    """Measures the disk behind a folder, about a third of the seconds for each rate.

    Raises:
        OSError: the folder cannot be written to, is none, or has no room.
    """
    begun = time.perf_counter()
    descriptor = _nameless_file(folder)
    try:
        size, written = _write(descriptor, folder, seconds / 3)
        reader, is_direct = _open_again(descriptor)
        try:
            read = _read_in_order(reader, size, seconds / 3)
            times, spent = _read_anywhere(reader, size, seconds / 3)
        finally:
            os.close(reader)
    finally:
        os.close(descriptor)
    middle = statistics.median(times) * 1e6
    took = time.perf_counter() - begun
    return Rates(written, read, len(times) / spent, middle, is_direct, took)


def _nameless_file(folder: Path) -> int:
    """A descriptor of a new file in the folder that no name leads to."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    descriptor, name = tempfile.mkstemp(prefix=".hps-doctor-", dir=folder)
    os.unlink(name)
    return descriptor


def _write(descriptor: int, folder: Path, seconds: float) -> tuple[int, float]:
    """Appends and syncs; returns the file's size and the bytes a second."""
    space = os.statvfs(folder)
    room = space.f_bavail * space.f_frsize // _SHARE_OF_FREE
    if room < _ROUND * _LARGE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    piece = random.Random(0).randbytes(_LARGE)  # disks may press what is all alike
    size, begun = 0, time.perf_counter()
    while size + _ROUND * _LARGE <= min(room, _MOST_BYTES):
        for _ in range(_ROUND):
            size += os.pwrite(descriptor, piece, size)
        os.fdatasync(descriptor)
        if time.perf_counter() - begun > seconds:
            break
    return size // _LARGE * _LARGE, size / (time.perf_counter() - begun)


def _open_again(descriptor: int) -> tuple[int, bool]:
    """The same file for reading past the page cache; as it is where there is no direct I/O."""
    path = f"/proc/self/fd/{descriptor}"
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    reader = os.open(path, os.O_RDONLY)
    os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)
    return reader, False


def _read_in_order(reader: int, size: int, seconds: float) -> float:
    """Bytes a second."""
    begun, done = time.perf_counter(), 0
    with mmap.mmap(-1, _LARGE) as memory:  # which starts at a page, as direct I/O needs
        while time.perf_counter() - begun < seconds:
            done += os.preadv(reader, [memory], done % size)
    return done / (time.perf_counter() - begun)


def _read_anywhere(reader: int, size: int, seconds: float) -> tuple[list[float], float]:
    """Seconds of each read, and of all of them together."""
    begun = time.perf_counter()

    def read(number: int) -> list[float]:
        places = random.Random(number)
        times: list[float] = []
        with mmap.mmap(-1, _SMALL) as memory:
            now = time.perf_counter()
            while now - begun < seconds or not times:
                os.preadv(reader, [memory], places.randrange(size // _SMALL) * _SMALL)
                now, before = time.perf_counter(), now
                times.append(now - before)
        return times

    with ThreadPoolExecutor(_READERS) as threads:
        times = list(chain.from_iterable(threads.map(read, range(_READERS))))
    return times, time.perf_counter() - begun
