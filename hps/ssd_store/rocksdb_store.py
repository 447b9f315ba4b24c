"""RocksDbStore: every row of every table in RocksDB, behind the interface of `hps.tier.RowTier`.

Above it: `hps.ParameterServer`, by open_store.py. Below it: rocksdb_database.py (rows),
rocksdb_cuts.py (checkpoints as files), rocksdb_manifest.py (what there is). A checkpoint is a
RocksDB checkpoint: hard links to the sorted files. The writer works in a database of its own in
`live-*`, made of such links when the store is opened and thrown away with it.
"""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar, Unpack

import numpy as np

from hps.durable_file import SyncError
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store import rocksdb_cuts as cuts
from hps.ssd_store.engine import ROCKSDB, ROCKSDB_MANIFEST, check_engine
from hps.ssd_store.rocksdb_database import (
    RocksDbDatabase,
    as_rows,
    import_rocksdict,
    pieces,
    translated,
)
from hps.ssd_store.rocksdb_manifest import Cut, RocksDbManifest
from hps.ssd_store.rocksdb_worker import Worker, closed_error
from hps.ssd_store.schema import TableSchema
from hps.ssd_store.store import DEFAULT_SEGMENT_BYTES, OpenOptions
from hps.tier import Flags, Keys, Rows

_Result = TypeVar("_Result")


class _Live(NamedTuple):
    """The database that verbs work on, and the exact number of its rows by table.

    A restore puts another one in its place; who reads the old one meanwhile may finish, and it goes
    with the last of them.
    """

    database: RocksDbDatabase
    folder: Path | None
    counts: dict[str, int]


class RocksDbStore:
    """A directory of rows kept by RocksDB; see `hps.tier.RowTier` for the verbs.

    Every method may be called from any thread. Mutations run one after the other, on a thread of
    the store's own: an interrupt of the caller never cuts one in half.

    >>> import tempfile
    >>> schema = TableSchema(name="ads", dim=4, optimizer="sgd", initializer="constant",
    ...                      numbers=(0.0, 0.0), row_bytes=32)
    >>> rows = np.zeros((2, 32), np.uint8)
    >>> rows[:, :8].view(np.uint64)[:, 0] = [7, 2**64 - 1]
    >>> with RocksDbStore.open(tempfile.mkdtemp(), [schema]) as store:
    ...     store.append("ads", rows)
    ...     store.contains("ads", np.array([7, 8], np.uint64)).tolist()
    [1, 0]
    """

    def __init__(self, path: Path, options: OpenOptions) -> None:
        """Use `open`."""
        self.path = path
        self.schemas: dict[str, TableSchema] = {}
        self.seed = 0
        self.num_loads = 0
        self._options = options
        self._is_read_only = options.get("read_only", False)
        self._worker = Worker(self.path)
        self._digests = cuts.DigestMemory()
        self._lock: cuts.WriterLock | None = None
        self._pin: cuts.ReaderPin | None = None
        self._live: _Live | None = None
        self._is_closed = False
        self._failure = ""  # the sync that failed; no change is made after it
        self._is_changed = False  # since the current cut
        self._reader_cut: Cut | None = None
        self._bytes_read = self._bytes_written = 0

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        tables: Sequence[TableSchema],
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Opens the store at `path`, at its newest complete checkpoint; makes it if it is missing.

        Args:
            path: a directory of its own.
            tables: the tables wanted, as `SsdStore.open` takes them.
            options: as `SsdStore.open` takes them; segment_bytes is the size of RocksDB's memory
                tables and files, 64 MiB at most.

        Raises:
            ConfigError: rocksdict is not installed; a store of another engine is here; or as
                `SsdStore.open`. StoreError, CorruptionError: as `SsdStore.open`.

        Cost: a hard link a file; RocksDB reads its manifest and the ends of its files.
        """
        if options.get("checkpoint") is not None and not options.get("read_only", False):
            raise ConfigError("checkpoint= is for read_only=True; a writer uses restore()")
        import_rocksdict()
        check_engine(path, ROCKSDB)
        store = cls(Path(path), options)
        open_files = store._open_reader if store._is_read_only else store._open_writer
        try:
            store._worker.run(open_files, tables)
        except BaseException:
            store.close()
            raise
        return store

    def _open_writer(self, tables: Sequence[TableSchema]) -> None:
        (self.path / cuts.PINS).mkdir(parents=True, exist_ok=True)
        self._lock = cuts.WriterLock(self.path)
        seed = self._options.get("seed")
        try:
            manifest = RocksDbManifest.load(self.path)
        except StoreError as error:
            if error.errno != errno.ENOENT:
                raise
            manifest = RocksDbManifest(seed=seed or 0)
        manifest.check_tables(self.path, tables, seed, False)
        self._manifest = manifest.with_tables(tables)
        if self._manifest != manifest or not (self.path / ROCKSDB_MANIFEST).exists():
            self._manifest.save(self.path)
        cuts.remove_unneeded(self.path, self._manifest, None)
        for cut in self._manifest.cuts:
            self._digests.learn(self.path, cut)
        self._take_schemas(tables)
        self._load(self._open_live(self._manifest.current))

    def _open_reader(self, tables: Sequence[TableSchema]) -> None:
        if not (self.path / ROCKSDB_MANIFEST).exists():
            RocksDbManifest.load(self.path)
        self._pin = cuts.ReaderPin(self.path)
        self._manifest = RocksDbManifest.load(self.path)
        self._manifest.check_tables(self.path, tables, self._options.get("seed"), True)
        checkpoint = self._options.get("checkpoint")
        cut = self._manifest.current
        if checkpoint is not None:
            cut = self._manifest.find(self.path, checkpoint)
        self._reader_cut = cut
        self._take_schemas(tables)
        folder = None
        if cut is not None:
            cuts.check_cut(self.path, cut)
            folder = self.path / cut.folder / cuts.DATABASE
        self._pin.narrow(0 if cut is None else cut.id)
        self._load(_Live(self._make_database(folder), None, self._counts(cut)))

    def _take_schemas(self, asked: Sequence[TableSchema]) -> None:
        """The tables asked for first, then those that the directory holds besides."""
        first = {table.name: table for table in asked}
        self.schemas = first | {table.name: table for table in self._manifest.tables}
        self._numbers = {table.name: i for i, table in enumerate(self._manifest.tables)}
        self.seed = self._manifest.seed

    def _make_database(self, folder: Path | None) -> RocksDbDatabase:
        file_bytes = self._options.get("segment_bytes", DEFAULT_SEGMENT_BYTES)
        return RocksDbDatabase(folder, len(self._numbers), file_bytes, self._is_read_only)

    def _counts(self, cut: Cut | None) -> dict[str, int]:
        return {name: cut.rows.get(name, 0) if cut else 0 for name in self.schemas}

    def _open_live(self, cut: Cut | None) -> _Live:
        """A database of the writer's own over the files of a cut, checked first."""
        folder = self.path / f"{cuts.LIVE_PREFIX}{secrets.token_hex(8)}"
        try:
            if cut is not None:
                cuts.check_cut(self.path, cut)
                cuts.link_database(self.path / cut.folder / cuts.DATABASE, folder)
            return _Live(self._make_database(folder), folder, self._counts(cut))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _load(self, live: _Live) -> None:
        self._live = live
        self._is_changed = False
        self.num_loads += 1

    def _discard(self, live: _Live) -> None:
        live.database.close()
        if live.folder is not None:
            shutil.rmtree(live.folder, ignore_errors=True)

    def _open_live_or_raise(self) -> _Live:
        live = self._live
        if live is None:
            raise closed_error(self.path)
        return live

    def _check_writable(self) -> None:
        self._open_live_or_raise()
        if self._is_read_only:
            raise StoreError(errno.EROFS, f"{self.path}: the store was opened read-only")
        if self._failure:
            raise self._stopped(errno.EIO)

    def _stopped(self, number: int | None) -> StoreError:
        return StoreError(
            number,
            f"{self.path}: the store stopped after an error ({self._failure}); open it again to go "
            f"on from its newest checkpoint",
        )

    def _change(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        """Runs a change on the store's thread; a sync that fails in it is the last one.

        Raises:
            StoreError: the store is closed, read-only, or has stopped.
        """
        self._check_writable()
        result: _Result = self._worker.run(self._stop_if_unsynced, work, *arguments)
        return result

    def _stop_if_unsynced(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        self._check_writable()  # again: a change that was waiting comes after the failure
        try:
            return work(*arguments)
        except SyncError as error:
            self._failure = str(error)
            raise self._stopped(error.errno) from error

    def _number(self, table: str) -> int:
        if table not in self._numbers:
            raise ConfigError(
                f"{self.path}: there is no table {table!r}; there are {sorted(self._numbers)}"
            )
        return self._numbers[table]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Rows.

    def append(self, table: str, rows: Rows) -> None:
        """Stores rows; later rows of a key supersede earlier ones.

        Args:
            table: its name.
            rows: uint8 [n, row_bytes], contiguous; the key of each is in its first 8 bytes.

        Raises:
            StoreError: a write was refused, here or in the background before; some of the rows may
                be stored. If the disk was full the call may be repeated when there is space.

        Cost: RocksDB only estimates how many keys it has, so each key is looked up first.
        """
        self._change(self._append, table, rows)

    def _append(self, table: str, rows: Rows) -> None:
        number, row_bytes = self._number(table), self.schemas[table].row_bytes
        if rows.ndim != 2 or rows.shape[1] != row_bytes:
            raise ConfigError(
                f"table {table!r}: rows have shape {list(rows.shape)}, [n, {row_bytes}] expected"
            )
        live = self._open_live_or_raise()
        self._is_changed = True
        for num_new in live.database.put(number, rows):
            live.counts[table] += num_new
        self._bytes_written += rows.nbytes

    def fetch(self, table: str, keys: Keys, rows: Rows, found: Flags) -> None:
        """Fills rows[i] where keys[i] is stored; other rows are left as they are.

        Args:
            table: its name.
            keys: uint64 [n], any order, duplicates allowed.
            rows: uint8 [n, row_bytes], contiguous, written.
            found: uint8 [n], written: 1 where stored.

        Raises:
            CorruptionError: a block fails its checksum, or a row has another key.
        """
        self._number(table)  # refuses a table that is not there
        row_bytes = self.schemas[table].row_bytes
        if rows.shape != (len(keys), row_bytes) or found.shape != (len(keys),):
            raise ConfigError(
                f"table {table!r}: rows have shape {list(rows.shape)} and found "
                f"{list(found.shape)}; [{len(keys)}, {row_bytes}] and [{len(keys)}] expected"
            )
        images = self._get(table, keys)
        found[:] = [image is not None for image in images]
        present = found.view(bool)
        stored = as_rows([image for image in images if image is not None], row_bytes)
        wrong = np.flatnonzero(stored[:, :8].copy().view(np.uint64)[:, 0] != keys[present])
        if len(wrong):
            raise CorruptionError(
                f"{self.path}: the row of key {keys[present][wrong[0]]} of table {table!r} has "
                f"another key in its header"
            )
        rows[present] = stored
        self._bytes_read += stored.nbytes

    def _get(self, table: str, keys: Keys) -> list[bytes | None]:
        number, live = self._number(table), self._open_live_or_raise()
        with translated(self.path):
            return live.database.get(number, keys)

    def contains(self, table: str, keys: Keys) -> Flags:
        """1 where a key is stored; uint8 [n] for keys uint64 [n]. RocksDB reads the rows for it."""
        return np.array([image is not None for image in self._get(table, keys)], np.uint8)

    def erase(self, table: str, keys: Keys) -> Flags:
        """Removes keys; uint8 [n], 1 where one was stored (for its first occurrence in `keys`).

        Raises:
            StoreError: as append.
        """
        return self._change(self._erase, table, keys)

    def _erase(self, table: str, keys: Keys) -> Flags:
        live = self._open_live_or_raise()
        self._is_changed = True
        found = np.zeros(len(keys), np.uint8)
        unique, first = np.unique(keys, return_index=True)
        stored = self.contains(table, unique)
        found[first] = stored
        for num_removed in live.database.remove(self._number(table), unique[stored.view(bool)]):
            live.counts[table] -= num_removed
        return found

    def num_rows(self, table: str) -> int:
        """Stored keys of the table, exactly."""
        self._number(table)
        return self._open_live_or_raise().counts[table]

    def scan(self, table: str, batch_rows: int = 65536) -> Iterator[Rows]:
        """Every row stored when the scan begins, once, in the order of the keys.

        What is appended or erased meanwhile does not change what it yields.

        Args:
            table: its name.
            batch_rows: rows of a piece, at most.

        Returns:
            uint8 [n, row_bytes] arrays, n > 0, each its own.

        Raises:
            CorruptionError: as fetch. StoreError: the store was closed, or restored, meanwhile.
        """
        if batch_rows < 1:
            raise ConfigError(f"batch_rows={batch_rows} must be at least 1")
        live, snapshot, num_rows = self._worker.run(self._snapshot, table)
        row_bytes = self.schemas[table].row_bytes
        return self._pieces(live, pieces(snapshot, row_bytes, num_rows, batch_rows))

    def _snapshot(self, table: str) -> tuple[_Live, Any, int]:
        number, live = self._number(table), self._open_live_or_raise()
        return live, live.database.snapshot(number), live.counts[table]

    def _pieces(self, live: _Live, rows: Iterator[Rows]) -> Iterator[Rows]:
        while True:
            if self._open_live_or_raise() is not live:
                raise StoreError(
                    errno.ESTALE, f"{self.path}: restored while it was scanned; scan it again"
                )
            with translated(self.path):
                piece = next(rows, None)
            if piece is None:
                return
            yield piece

    # Cuts.

    def checkpoint(
        self, tag: str | None = None, extras: Mapping[str, bytes] | None = None
    ) -> dict[str, Any]:
        """Makes what is stored now a durable cut; returns when it is on disk.

        Args:
            tag: keeps it until delete_checkpoint; replaces an older one of that tag. None: kept
                until keep_last newer untagged ones exist.
            extras: blobs kept with it, each with a digest.

        Returns:
            id, tag, created (seconds since 1970), current, rows, segments (sorted files), bytes.

        Raises:
            StoreError: the disk is full, or a sync failed; the checkpoint before it stays.

        Cost: writes what is in memory; reads the sorted files that are new, for their digests.
        """
        if tag == "":
            raise ConfigError("tag='' is not a tag; use None for an untagged checkpoint")
        return self._change(self._checkpoint, tag, dict(extras or {}))

    def _checkpoint(self, tag: str | None, extras: dict[str, bytes]) -> dict[str, Any]:
        counts = dict(self._open_live_or_raise().counts)
        cut = Cut(self._manifest.next_id, tag, time.time(), counts, cuts.extra_names(extras), {})
        keep_last = self._options.get("keep_last", 2)
        self._add_cut(cut, extras, lambda: self._manifest.with_cut(cut, keep_last))
        return cut.summary(is_current=True)

    def _add_cut(
        self, cut: Cut, extras: dict[str, bytes], manifest: Callable[[], RocksDbManifest]
    ) -> None:
        """Writes a cut of what is stored now, then the manifest that names it."""
        database = self._open_live_or_raise().database
        try:
            cuts.write_cut(self.path, cut, database.checkpoint, extras, self._digests)
            self._commit(manifest())
        except BaseException:
            if self._manifest.current_id != cut.id:
                shutil.rmtree(self.path / cut.folder, ignore_errors=True)
            raise
        self._is_changed = False
        self._remove_unneeded()

    def compact(self, table: str | None = None) -> None:
        """Has RocksDB rewrite its files without what was overwritten or erased.

        If nothing was stored since the current, kept checkpoint, it is renewed: a new id, all else
        the same, and the space is free when this returns. Else it is after the next checkpoint.
        Other kept checkpoints and open readers keep their files in any case.

        Args:
            table: its name; None is all.

        Raises:
            CorruptionError: a block is damaged. StoreError: the disk is full.

        Cost: reads and writes the table's files; appends and checkpoints wait.
        """
        self._change(self._compact, table)

    def _compact(self, table: str | None) -> None:
        database = self._open_live_or_raise().database
        for number in self._numbers.values() if table is None else [self._number(table)]:
            database.compact(number)
        old = self._manifest.current
        if old is not None and not old.is_deleted and not self._is_changed:
            new = replace(old, id=self._manifest.next_id, files={})
            self._add_cut(new, self._extras(None), lambda: self._manifest.with_renewed(old, new))

    def _commit(self, manifest: RocksDbManifest) -> None:
        """Makes a manifest durable; if that fails, what is on disk says which one counts."""
        try:
            manifest.save(self.path)
        finally:
            self._manifest = RocksDbManifest.load(self.path)

    def _remove_unneeded(self) -> cuts.Pins:
        live = self._open_live_or_raise()
        return cuts.remove_unneeded(self.path, self._manifest, live.folder)

    def restore(self, checkpoint: str | int | None = None) -> None:
        """Makes a kept cut the current one; what was stored since then is dropped.

        Args:
            checkpoint: tag or id; None is the current cut (drops what no checkpoint holds).

        Raises:
            ConfigError: no such checkpoint; the message lists those kept.
            CorruptionError: it is damaged; the store stays where it was.

        Cost: a hard link a file.
        """
        self._change(self._restore, checkpoint)

    def _restore(self, checkpoint: str | int | None) -> None:
        cut = self._manifest.current
        if checkpoint is not None:
            cut = self._manifest.find(self.path, checkpoint)
        live = self._open_live(cut)
        try:
            if cut is not None:
                self._commit(self._manifest.with_current(cut))
        except BaseException:
            self._discard(live)
            raise
        self._load(live)
        self._remove_unneeded()

    def checkpoints(self) -> list[dict[str, Any]]:
        """The kept cuts, oldest first, as `checkpoint` returns them."""
        self._open_live_or_raise()
        manifest = self._manifest
        return [cut.summary(cut.id == manifest.current_id) for cut in manifest.listed]

    def delete_checkpoint(self, checkpoint: str | int) -> list[str]:
        """Gives up a kept cut. If it is the current one, its files go when another becomes current.

        Returns:
            The living readers ("process 12 (checkpoint 3)"), whose files stay until they close.

        Raises:
            ConfigError: no such checkpoint, or None.
        """
        if checkpoint is None:
            raise ConfigError("delete_checkpoint(None): name a checkpoint by its tag or id")
        return self._change(self._delete, checkpoint)

    def _delete(self, checkpoint: str | int) -> list[str]:
        cut = self._manifest.find(self.path, checkpoint)
        self._commit(self._manifest.without(cut))
        return self._remove_unneeded().of(cut.id)

    def extras(self, checkpoint: str | int | None = None) -> dict[str, bytes]:
        """The blobs of a kept cut (None: of the current one), digests checked.

        Raises:
            ConfigError: no such checkpoint.
            CorruptionError: a digest does not match.
        """
        self._open_live_or_raise()
        return self._worker.run(self._extras, checkpoint)

    def _extras(self, checkpoint: str | int | None) -> dict[str, bytes]:
        cut = self._reader_cut if self._is_read_only else self._manifest.current
        if checkpoint is not None:
            cut = self._manifest.find(self.path, checkpoint)
        if cut is None:
            return {}
        return {
            name: cuts.read_checked(self.path / cut.folder / file, cut.files[file])
            for name, file in cut.extras.items()
        }

    # Figures and the end.

    def stats(self) -> dict[str, Any]:
        """bytes_read, bytes_written (row images; RocksDB moves more), files_bytes,
        checkpoint_only_bytes; rows, live_bytes, index_bytes by table."""
        live = self._open_live_or_raise()
        kept = [self.path / cut.folder for cut in self._manifest.cuts]
        ours = cuts.unique_bytes([live.folder] if live.folder is not None else kept)
        theirs = cuts.unique_bytes(kept)
        only = sum(size for inode, size in theirs.items() if inode not in ours)
        tables = {
            name: {
                "rows": live.counts[name],
                "live_bytes": live.counts[name] * self.schemas[name].row_bytes,
                "index_bytes": live.database.memory_bytes(number),
            }
            for name, number in self._numbers.items()
        }
        return {
            "bytes_read": self._bytes_read,
            "bytes_written": self._bytes_written,
            "files_bytes": sum(ours.values()) + only,
            "checkpoint_only_bytes": only,
            "tables": tables,
        }

    def verify(self) -> list[tuple[str, str]]:
        """As `hps.ssd_store.verify` on this store's directory: all that is in a checkpoint."""
        with translated(self.path):
            return cuts.verify(self.path)

    def close(self) -> None:
        """Lets go of the lock and of the files; may be repeated.

        What no checkpoint holds is lost.
        """
        if not self._is_closed:
            self._is_closed = True
            try:
                self._worker.run(self._close)
            finally:
                self._worker.stop()

    def _close(self) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                self._discard(live)
        finally:
            if self._pin is not None:
                self._pin.release()
            if self._lock is not None:
                self._lock.release()
