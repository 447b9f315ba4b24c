"""check_new_store: a folder that holds files of somebody else is not taken for a new store.

Above it: `hps train`, `hps serve`, `hps import`. Below it: the look for foreign files of the native
file layer, by which a clone checks its folder, too. What hps itself may have left in a folder
before it was a store, when a first run was killed, is nobody else's.
"""

import os
from pathlib import Path

from hps import _C
from hps.errors import ConfigError
from hps.ssd_store.cluster.catalog import GENERATIONS, NAME
from hps.ssd_store.engine import ROCKSDB_MANIFEST, engine_of
from hps.ssd_store.promoted import LOCK as NAMES_LOCK

_OWN = [
    "LOCK",
    "pins",
    "CURRENT.new",
    f"{ROCKSDB_MANIFEST}.new",
    f"{NAME}.new",
    NAMES_LOCK,  # held while the first CLUSTER is written
    GENERATIONS,
    "RUN",
    "lost+found",  # of a new file system
]


def holds_store(path: str | os.PathLike[str]) -> bool:
    """True if there is a store of one process, or the folder of a cluster, that can be opened."""
    return any((Path(path) / name).exists() for name in ("CURRENT", ROCKSDB_MANIFEST, NAME))


def check_new_store(path: str | os.PathLike[str]) -> None:
    """Refuses a folder that is no store and holds something else; changes nothing.

    One with files of rows that lacks what names them passes: its opening says what is missing.

    Raises:
        ConfigError: names a file. StoreError: the folder cannot be listed.
    """
    if not Path(path).is_dir() or holds_store(path) or engine_of(path):
        return
    name = _C.find_foreign(os.fspath(path), _OWN)
    if name:
        raise ConfigError(
            f"{os.fspath(path)}: a new store needs a folder that is new or empty, and this one has "
            f"{name!r}; give another folder, or move what is in this one elsewhere"
        )
