"""Folders for stores that are tortured: in memory where that exists.

Above it: kills.py, run.py and tests. A SIGKILL leaves the page cache alone and damage is written
by the test itself, so the disk's syncs would only take time.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder, removed with the block."""
    where = _MEMORY if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="hps-torture-", dir=where) as folder:
        yield Path(folder)
