"""Which engine's files a directory holds; a store is opened by the engine that made it.

Above it: the engines (store.py, ssd_store/rocksdb/store.py), open_store.py, `hps.open`. Below it:
the names of their files.
"""

import os
from pathlib import Path

from hps.config import ENGINES
from hps.errors import ConfigError

SEGMENTS, ROCKSDB = ENGINES
ROCKSDB_MANIFEST = "ROCKSDB"
ROCKSDB_CHECKPOINT_PREFIX = "cut-"
# The manifest of each engine first; what only the engine itself makes counts if that is lost.
_NAMES = {
    SEGMENTS: ("CURRENT", "MANIFEST-*", "segment-*"),
    ROCKSDB: (ROCKSDB_MANIFEST, f"{ROCKSDB_CHECKPOINT_PREFIX}*"),
}


def engine_of(path: str | os.PathLike[str]) -> str | None:
    """The engine whose store lies in a directory; None if there is none.

    >>> engine_of("/nowhere") is None
    True
    """
    folder = Path(path)
    for engine, patterns in _NAMES.items():
        if any(next(folder.glob(pattern), None) is not None for pattern in patterns):
            return engine
    return None


def is_unfinished(path: str | os.PathLike[str]) -> bool:
    """True of what a process leaves that dies while it makes a store of segments: a manifest and no
    file that it could name. The next writer makes the store."""
    folder = Path(path)
    if (folder / "CURRENT").exists() or next(folder.glob("MANIFEST-*"), None) is None:
        return False
    return all(next(folder.glob(kind), None) is None for kind in ("segment-*", "extra-*"))


def check_engine(path: str | os.PathLike[str], asked: str) -> None:
    """Refuses a directory in which another engine's store lies.

    Raises:
        ConfigError: names both engines.
    """
    found = engine_of(path)
    if found not in (None, asked):
        raise ConfigError(
            f"{os.fspath(path)}: the store here is of engine {found!r}, requested is "
            f"{asked!r}; it is fixed once the store exists: use {found!r}, or another path"
        )
