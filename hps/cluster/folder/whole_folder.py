"""whole_folder: a folder that is there whole or not at all.

Above it: offline.py, hps/train/portable.py. Below it: housekeeping.py, whose lock keeps a second
process out.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hps.cluster.folder.housekeeping import LOCK, FolderLock
from hps.common.durable_file import sync
from hps.errors import ConfigError, StoreError
from hps.ssd_store.cluster.catalog import new_name

_WHOLE = "whole"  # what is renamed to the target


def check_new_folder(target: Path) -> None:
    """Refuses a folder that holds something, and what is no folder, but a link to one.

    Raises:
        ConfigError: names it.
    """
    if target.is_symlink():
        raise ConfigError(
            f"{target} is a link; name the folder that it leads to: it is made as a whole, and "
            "takes the place of what has its name"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} holds something already; name a folder that is new or empty")


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Yields a path at which to make a folder; when the block is left it is at `target`, durable.

    What an error leaves is removed. A kill leaves `TARGET.partial`; the next run removes it.

    Args:
        target: a directory that is empty or not there yet.

    Raises:
        StoreError: the system refused, or another process makes the same folder.
    """
    target = target.absolute()  # of '.', too, which has no name
    partial = target.with_name(f"{target.name}.partial")
    lock = FolderLock(partial, new_name())
    try:
        lock.check()
    except BaseException:  # it is another run's
        lock.close()
        raise
    try:
        _clear(partial)
        yield partial / _WHOLE
        (partial / _WHOLE).rename(target)
        sync(target.parent)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(error.errno, f"{partial}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        lock.close()


def _clear(folder: Path) -> None:
    """Removes what a killed run has left."""
    for old in folder.iterdir():
        if old.name == LOCK:
            continue
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()
