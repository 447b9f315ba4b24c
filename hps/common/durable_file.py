"""Small files that are on the disk, whole, when a call returns.

Above it: update_log/epoch.py, ssd_store/rocksdb/manifest.py. Below it: nothing.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_MOST_SYNCS = 8  # at once


class SyncError(OSError):
    """An fsync failed: nobody knows what the disk holds, and another one may lie."""


def _fsync(descriptor: int, path: Path) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncError(error.errno, f"{error.strerror} in fsync", str(path)) from error


def sync(path: Path) -> None:
    """fsync of a file or a folder.

    Raises:
        SyncError: it failed, and may not be tried again.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _fsync(descriptor, path)
    finally:
        os.close(descriptor)


def sync_all(paths: Sequence[Path]) -> None:
    """As sync, of all of them at once: a system's syncs share most of their work.

    Raises:
        SyncError: one failed.
    """
    if len(paths) < 2:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(len(paths), _MOST_SYNCS), "hps-sync") as threads:
        for _ in threads.map(sync, paths):
            pass


def write_durably(path: Path, data: bytes) -> None:
    """Writes a whole file and syncs it; its name is durable when its folder has been synced.

    Raises:
        SyncError: as sync.
    """
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        _fsync(file.fileno(), path)


def replace_durably(path: Path, data: bytes) -> None:
    """Puts a file in the place of an older one: write, sync, rename, sync of the folder.

    Raises:
        OSError: the old or the new one stands, whole.
    """
    new = path.with_name(f"{path.name}.new")
    write_durably(new, data)
    new.replace(path)
    sync(path.parent)
