"""Cold and warm files: drops their pages from the kernel's cache, and looks whether they are gone.

Above it: measure.py. Below it: posix_fadvise, mincore. Needs no privileges; pages that somebody has
mapped, or that are not on disk yet, cannot be dropped: dirty files are synced, all are looked at.
"""

import ctypes
import mmap
import os
from pathlib import Path

import numpy as np

PAGE = mmap.PAGESIZE
MOST_RESIDENT = 0.01


def files_under(folder: Path) -> list[Path]:
    """Every file of a store."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def disk_bytes(files: list[Path]) -> int:
    """Bytes that files take up on disk; one of several names counts once."""
    found = [path.stat() for path in files]
    return sum({one.st_ino: 512 * one.st_blocks for one in found}.values())


def resident_part(files: list[Path]) -> float:
    """Part of the files' pages that is in memory."""
    library = ctypes.CDLL(None, use_errno=True)
    resident = total = 0
    for path in files:
        size = path.stat().st_size
        if size == 0:
            continue
        with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapping:
            pages = np.zeros(-(-size // PAGE), np.uint8)
            start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            arguments = (ctypes.c_void_p(start), ctypes.c_size_t(size))
            if library.mincore(*arguments, ctypes.c_void_p(pages.ctypes.data)) != 0:
                raise OSError(ctypes.get_errno(), f"mincore of {path}")
            resident += int(np.count_nonzero(pages & 1))
            total += len(pages)
    return resident / max(1, total)


def drop(files: list[Path]) -> float:
    """Makes files cold; returns the part of their pages that stayed.

    A sync costs a flush of the disk's own cache, so files are synced only where it is needed.
    """
    _drop(files, syncs=False)
    resident = resident_part(files)
    if resident > MOST_RESIDENT:
        _drop(files, syncs=True)
        resident = resident_part(files)
    return resident


def _drop(files: list[Path], syncs: bool) -> None:
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if syncs:
                os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def warm(files: list[Path]) -> None:
    """Reads files once, in order."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                continue
