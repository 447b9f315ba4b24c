"""RocksDbDatabase: one opened RocksDB with a column family a table, and its errors as hps's own.

Above it: live_table.py, live.py. Below it: rocksdict, RocksDB's Python binding, an optional
dependency. A key is its eight bytes, most significant first, so that RocksDB's order is that of the
numbers; a value is the row image. Beside the rows of a table is, from the first row that dies on, a
column family with an entry for each of those: its period of death, four bytes, and its key. There
is no write-ahead log: what counts are the checkpoints.
"""

import errno
import importlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice, takewhile
from pathlib import Path
from types import ModuleType

import numpy as np

from hps.contracts.tiers import Keys, Rows
from hps.errors import ConfigError, CorruptionError, HpsError, StoreError
from hps.ssd_store.rocksdb.deaths import ABSENT, NEVER, Change, Periods
from hps.ssd_store.rocksdb.library import Batch, Database, Family, Snapshot

BLOCK_CACHE_BYTES = 64 * 2**20
_LEAST_FILE_BYTES = 2**16
_MOST_FILE_BYTES = 64 * 2**20
_BLOOM_BITS = 10
# Bounds on what files take besides keys and values, as measured, for `compacted_bytes`.
_ENTRY_BYTES = 24  # of a row: its key, lengths, bits of the filter
_INDEX_ENTRY_BYTES, _BLOCK_BYTES = 32, 4096  # of a block; a block, unless a row is larger
_FILE_BYTES = 2048  # of a file: properties, footer
_WRITE_ROWS = 8192  # rocksdict holds the interpreter's lock for the write of a batch
_DEATH_AT = 20  # of a row image with statistics, in bytes
_DUE_BYTES = 12  # of an entry: period of death, key
_DUE = np.dtype([("death", ">u4"), ("key", ">u8")])
_SYSTEM_ERRORS = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EMFILE, errno.EROFS, errno.EIO)


def import_rocksdict() -> ModuleType:
    """The module rocksdict.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module("rocksdict")
    except ImportError as error:
        raise ConfigError(
            "SsdStoreConfig.engine='rocksdb' needs the package rocksdict; install it with: pip "
            "install 'hps-ctr[rocksdb]'"
        ) from error


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Makes hps's errors of RocksDB's and the system's.

    Raises:
        CorruptionError: stored bytes are damaged. StoreError: all else that the world may do.
    """
    try:
        yield
    except HpsError:
        raise
    except OSError as error:
        raise StoreError(error.errno, f"{path}: {error}") from error
    except Exception as error:
        # rocksdict raises the class Exception itself, and one of its own for a closed database.
        if type(error).__module__ == "builtins" and type(error) is not Exception:
            raise
        text = str(error)
        if text.startswith("Corruption"):
            raise CorruptionError(f"{path}: {text}; restore an older checkpoint") from error
        number = next((n for n in _SYSTEM_ERRORS if os.strerror(n) in text), errno.EIO)
        raise StoreError(
            number,
            f"{path}: {text}. If the disk is full, make space and repeat the call: RocksDB takes "
            f"some seconds to see it. Otherwise open the store again, at its newest checkpoint",
        ) from error


def key_bytes(keys: Keys) -> list[bytes]:
    """Keys uint64 [n] as RocksDB has them."""
    found: list[bytes] = keys.astype(">u8").view("V8").tolist()
    return found


def deaths_of(images: list[bytes | None]) -> Periods:
    """Of the images of rows with statistics their periods of death; ABSENT for None."""
    found = np.full(len(images), ABSENT, np.int64)
    there = [i for i, image in enumerate(images) if image is not None]
    words = b"".join(image[_DEATH_AT : _DEATH_AT + 4] for image in images if image is not None)
    found[there] = np.frombuffer(words, np.uint32)
    return found


def row_deaths(rows: Rows) -> Periods:
    """As `deaths_of`, of rows [n, row_bytes]."""
    return rows.view(np.uint32)[:, _DEATH_AT // 4].astype(np.int64)


def _due_name(table: int) -> str:
    return f"deaths-{table}"


def _due_bytes(deaths: Periods, keys: Keys) -> list[bytes]:
    """Names of entries of rows that die."""
    entries = np.empty(len(keys), _DUE)
    entries["death"], entries["key"] = deaths, keys
    found: list[bytes] = entries.view(f"V{_DUE_BYTES}").tolist()
    return found


class RocksDbDatabase:
    """A database over a folder; each method names its table by number.

    Any thread may read, one at a time may write.

    Args:
        path: the folder, made if it is not there; None is a database without rows, for a reader.
        num_tables: column families; those that a read-only database lacks have no rows.
        file_bytes: RocksDB gathers and writes as much at once, from 64 KiB to 64 MiB.
        read_only: beside others.
        mortal: the tables whose rows may die: those with statistics.
    """

    def __init__(
        self,
        path: Path | None,
        num_tables: int,
        file_bytes: int,
        read_only: bool,
        mortal: Collection[int] = (),
    ) -> None:
        self._module = import_rocksdict()
        self._path = path or Path()
        self._database: Database | None = None  # None: without rows
        self._tables: dict[int, Family] = {}
        self._handles: dict[int, object] = {}
        self._mortal = frozenset(mortal)
        self._due: dict[int, Family] = {}  # what dies of each mortal table
        self._due_handles: dict[int, object] = {}
        if path is None:
            return
        names = {number: f"table-{number}" for number in range(num_tables)}
        with translated(path):
            self._family_options = options = self._options(file_bytes)
            present: set[str] = set()
            if path.exists():  # one is not where nothing was stored yet
                present = set(self._module.Rdict.list_cf(str(path), options))
            due_names = {n: name for n in self._mortal if (name := _due_name(n)) in present}
            if read_only:
                names = {number: name for number, name in names.items() if name in present}
                access = self._module.AccessType.read_only(False)
            else:
                access = self._module.AccessType.read_write()
            asked = ("default", *names.values(), *due_names.values())
            families = {name: options for name in asked}
            database: Database = self._module.Rdict(str(path), options, families, access)
            self._database = database
            for number, name in names.items():
                self._tables[number] = database.get_column_family(name)
                self._handles[number] = database.get_column_family_handle(name)
            for number, name in due_names.items():
                self._due[number] = database.get_column_family(name)
                self._due_handles[number] = database.get_column_family_handle(name)

    def _options(self, file_bytes: int) -> object:
        file_bytes = min(max(file_bytes, _LEAST_FILE_BYTES), _MOST_FILE_BYTES)
        blocks = self._module.BlockBasedOptions()
        blocks.set_block_cache(self._module.Cache(BLOCK_CACHE_BYTES))
        blocks.set_bloom_filter(_BLOOM_BITS, False)
        options = self._module.Options(raw_mode=True)
        options.create_if_missing(True)
        options.create_missing_column_families(True)
        options.set_block_based_table_factory(blocks)
        options.set_compression_type(self._module.DBCompressionType.none())  # weights are noise
        options.set_write_buffer_size(file_bytes)
        options.set_target_file_size_base(file_bytes)
        options.set_max_background_jobs(2)
        options.set_keep_log_file_num(1)
        return options

    def get(self, table: int, keys: Keys) -> list[bytes | None]:
        """The row image of each key, None where none is stored."""
        family = self._tables.get(table)
        if family is None or not len(keys):
            return [None] * len(keys)
        return family.get(key_bytes(keys))

    def put(self, table: int, rows: Rows) -> Iterator[Change]:
        """Stores rows in pieces; after each yields what it did, the last row of a key counting."""
        for first in range(0, len(rows), _WRITE_ROWS):
            piece = _last_of_each_key(rows[first : first + _WRITE_ROWS])
            keys = piece.view(np.uint64)[:, 0].copy()
            names = key_bytes(keys)
            images = piece.view(f"V{piece.shape[1]}")[:, 0].tolist()
            old = self._deaths(table, self._tables[table].get(names))
            is_mortal = table in self._mortal
            new = row_deaths(piece) if is_mortal else np.full(len(piece), NEVER, np.int64)
            change = Change(keys, old, new)
            self._make_due_for(table, change)
            batch = self._new_batch(table)
            for key, image in zip(names, images, strict=True):
                batch[key] = image
            self._move_entries(batch, table, change)
            self._write(batch)
            yield change

    def remove(self, table: int, keys: Keys) -> Iterator[Change]:
        """Removes distinct keys in pieces; after each yields what it did to stored ones."""
        for first in range(0, len(keys), _WRITE_ROWS):
            piece = keys[first : first + _WRITE_ROWS]
            old = self._deaths(table, self._tables[table].get(key_bytes(piece)))
            piece, old = piece[old != ABSENT], old[old != ABSENT]
            change = Change(piece, old, np.full(len(piece), ABSENT, np.int64))
            batch = self._new_batch(table)
            for key in key_bytes(piece):
                del batch[key]
            self._move_entries(batch, table, change)
            self._write(batch)
            yield change

    def _deaths(self, table: int, images: list[bytes | None]) -> Periods:
        """Of the rows of a table their periods of death."""
        if table in self._mortal:
            return deaths_of(images)
        return np.array([ABSENT if image is None else NEVER for image in images], np.int64)

    def _move_entries(self, batch: Batch, table: int, change: Change) -> None:
        """Adds to a batch what it changes of the entries of rows that die."""
        differs = change.old != change.new
        for had, deaths in ((True, change.old), (False, change.new)):
            places = np.flatnonzero(differs & (deaths > NEVER))
            if had and table not in self._due:  # their making failed; they are renewed when needed
                continue
            for name in _due_bytes(deaths[places], change.keys[places]) if len(places) else ():
                if had:
                    batch.delete(name, self._due_handles[table])
                else:
                    batch.put(name, b"", self._due_handles[table])

    def _make_due_for(self, table: int, change: Change) -> None:
        """Makes sure that there is a place for the entries of a change."""
        if table not in self._due and (change.new > NEVER).any():
            self._make_due(table)

    def _make_due(self, table: int) -> None:
        """Only where it is needed: a version before there was expiry opens no database with it."""
        assert self._database is not None
        name = _due_name(table)
        self._due[table] = self._database.create_column_family(name, self._family_options)
        self._due_handles[table] = self._database.get_column_family_handle(name)

    def renew_due(self, table: int, records: Iterator[Rows]) -> None:
        """Puts the entries of all records of a table in the place of those that are there."""
        assert self._database is not None
        if self._due.pop(table, None) is not None:
            del self._due_handles[table]
            self._database.drop_column_family(_due_name(table))
        self._make_due(table)
        for rows in records:
            keys, deaths = rows.view(np.uint64)[:, 0].copy(), row_deaths(rows)
            batch = self._new_batch(table)
            self._move_entries(batch, table, Change(keys, np.full(len(keys), ABSENT), deaths))
            self._write(batch)

    def due(
        self, table: int, first: int, last: int, most: int | None = None
    ) -> tuple[Keys, Periods]:
        """The rows that die in the periods from `first` to `last`, nearest first, or so many of
        them: (keys, periods of death). Damage may end them early: who asks for all counts them."""
        names: list[bytes] = []
        family = self._due.get(table)
        if family is not None and first <= last:
            end = (last + 1).to_bytes(4, "big")
            found = family.keys(from_key=first.to_bytes(4, "big"))
            names = list(islice(takewhile(lambda name: name < end, found), most))
        entries = np.frombuffer(b"".join(names), _DUE)
        return entries["key"].astype(np.uint64), entries["death"].astype(np.int64)

    def _new_batch(self, table: int) -> Batch:
        made = self._module.WriteBatch(raw_mode=True)
        made.set_default_column_family(self._handles[table])
        batch: Batch = made
        return batch

    def _write(self, batch: Batch) -> None:
        options = self._module.WriteOptions()
        options.disable_wal = True
        assert self._database is not None
        self._database.write(batch, options)

    def snapshot(self, table: int) -> Snapshot | None:
        """The table as it is now, for `pieces`; None if it has no rows."""
        family = self._tables.get(table)
        return None if family is None else family.snapshot()

    def checkpoint(self, folder: Path) -> None:
        """Flushes every table and makes a database over the same files in a new folder."""
        self._module.Checkpoint(self._database).create_checkpoint(str(folder))

    def compact(self, table: int) -> None:
        """Merges all files of a table; nothing overwritten or erased stays in them."""
        for family in self._families(table):
            family.compact_range(None, None)

    def _families(self, table: int) -> list[Family]:
        found = (self._tables.get(table), self._due.get(table))
        return [family for family in found if family is not None]

    def files_bytes(self, table: int) -> int:
        """Bytes of a table's files."""
        return sum(
            int(family.property_int_value("rocksdb.live-sst-files-size") or 0)
            for family in self._families(table)
        )

    def memory_bytes(self, table: int) -> int:
        """Memory of a table's rows that are not in files, and of its files' indexes and filters."""
        return sum(
            int(family.property_int_value(f"rocksdb.{name}") or 0)
            for name in ("cur-size-all-mem-tables", "estimate-table-readers-mem")
            for family in self._families(table)
        )

    def close(self) -> None:
        """Lets go of the files, as soon as no snapshot uses them.

        RocksDB writes out what is in memory, which nobody needs: it does not matter if it cannot,
        or if a background task has met a damaged block.
        """
        if self._database is None:
            return
        families = [*self._tables.values(), *self._due.values()]
        databases: list[Family | Database] = [*families, self._database]
        for database in databases:
            with suppress(HpsError), translated(self._path):
                database.close()


def _last_of_each_key(rows: Rows) -> Rows:
    """Rows of which the last of each key is left."""
    keys = rows.view(np.uint64)[:, 0]
    unique, first = np.unique(keys[::-1], return_index=True)
    return rows if len(unique) == len(keys) else rows[np.sort(len(keys) - 1 - first)]


def compacted_bytes(rows: int, row_bytes: int) -> int:
    """At most so much a table's files take when nothing of them is overwritten or erased.

    RocksDB's own estimate takes one of several files whose keys overlap for all of them.
    """
    index = min(_INDEX_ENTRY_BYTES, _INDEX_ENTRY_BYTES * row_bytes // _BLOCK_BYTES + 1)
    return rows * (row_bytes + _ENTRY_BYTES + index) + _FILE_BYTES * (rows > 0)


def pieces(
    snapshot: Snapshot | None, row_bytes: int, num_rows: int, batch_rows: int
) -> Iterator[Rows]:
    """The rows of a snapshot, in the order of their keys; `num_rows` is what it must have.

    RocksDB's iterators end at a damaged block as if it were the end, so the rows are counted. The
    iterator is made at once: one that rocksdict makes later of a snapshot sees later changes.

    Raises:
        CorruptionError: a row of another length, or fewer rows than there should be.
    """
    values: Iterator[bytes] = iter(()) if snapshot is None else snapshot.values()
    return _pieces(snapshot, values, row_bytes, num_rows, batch_rows)


def _pieces(
    snapshot: Snapshot | None,
    values: Iterator[bytes],
    row_bytes: int,
    num_rows: int,
    batch_rows: int,
) -> Iterator[Rows]:
    num_seen = 0
    last = b""
    while images := list(islice(values, batch_rows)):
        rows = as_rows(images, row_bytes)
        num_seen += len(rows)
        last = images[-1]
        yield rows
    if num_seen != num_rows:
        if snapshot is not None:
            _raise_status(snapshot, last[:8][::-1])
        raise CorruptionError(f"{num_seen} rows were found, {num_rows} are expected")


def _raise_status(snapshot: Snapshot, after: bytes) -> None:
    """Raises what stopped an iterator behind a key."""
    cursor = snapshot.iter()
    if after:
        cursor.seek(after)
        cursor.next()
    else:
        cursor.seek_to_first()
    cursor.status()


def as_rows(images: list[bytes], row_bytes: int) -> Rows:
    """Row images one behind the other: uint8 [n, row_bytes].

    Raises:
        CorruptionError: one has another length.
    """
    joined = np.frombuffer(bytearray().join(images), np.uint8)
    if len(joined) != len(images) * row_bytes:
        key, found = next((i[:8], len(i)) for i in images if len(i) != row_bytes)
        number = int.from_bytes(key, "little")
        raise CorruptionError(f"the row of key {number} has {found} bytes, {row_bytes} expected")
    return joined.reshape(len(images), row_bytes)
