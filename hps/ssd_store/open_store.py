"""open_store, check_no_writer and verify: the one door to a store, whichever engine keeps its rows.

Above it: `hps.ParameterServer`, `hps verify`. Below it: store.py ("segments"),
ssd_store/rocksdb/store.py ("rocksdb"), which is imported only when it is asked for.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from hps.ssd_store import store
from hps.ssd_store.arguments import OpenOptions
from hps.ssd_store.engine import ROCKSDB, SEGMENTS, engine_of
from hps.ssd_store.store import SsdStore
from hps.table.schema import TableSchema

if TYPE_CHECKING:
    from hps.ssd_store.rocksdb.store import RocksDbStore


def open_store(
    path: str | os.PathLike[str],
    tables: Sequence[TableSchema],
    engine: str | None = None,
    **options: Unpack[OpenOptions],
) -> "SsdStore | RocksDbStore":
    """Opens or makes a store; see `SsdStore.open`.

    Args:
        path: its directory.
        tables: the tables wanted.
        engine: "segments" or "rocksdb"; None takes that of the store that is there ("segments" for
            a new one).
        options: as `SsdStore.open` takes them.

    Raises:
        ConfigError: the store that is there is of another engine; rocksdict is not installed; or
            as SsdStore.open. StoreError, CorruptionError: as SsdStore.open.

    >>> import tempfile
    >>> with open_store(tempfile.mkdtemp(), []) as opened:
    ...     type(opened).__name__
    'SsdStore'
    """
    if (engine or engine_of(path) or SEGMENTS) == ROCKSDB:
        from hps.ssd_store.rocksdb.store import RocksDbStore

        return RocksDbStore.open(path, tables, **options)
    return SsdStore.open(path, tables, **options)


def verify(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Checks every checksum under a store's directory, of either engine; see `store.verify`.

    Returns:
        (file, what is wrong with it) for each damaged file; empty if all is well.

    Raises:
        StoreError: there is no store, or it cannot be listed.
    """
    if engine_of(path) == ROCKSDB:
        from hps.ssd_store.rocksdb.checkpoint_files import verify as verify_rocksdb

        return verify_rocksdb(path)
    return store.verify(path)


def check_no_writer(path: str | os.PathLike[str]) -> None:
    """Refuses a store, of either engine, that a process has open for writing; changes nothing.

    Raises:
        StoreError: names the process and its host; or there is no such folder.
    """
    from hps.ssd_store.rocksdb.checkpoint_files import check_no_writer as check

    check(Path(path))
