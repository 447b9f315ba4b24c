"""RocksDbStore: every row of every table in RocksDB, behind the interface of
`hps.contracts.tiers.RowTier`.

Above it: `hps.ParameterServer`, by ssd_store/open_store.py. Below it: live.py and live_table.py
(rows), checkpoint_files.py (checkpoints as files), manifest.py (what there is). A checkpoint is
a RocksDB checkpoint: hard links to the sorted files.
"""

import errno
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar, TypeVarTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from hps.common.durable_file import SyncError
from hps.common.forked import Inherited, is_inherited, refuse_in_children
from hps.common.held_folder import HeldFolder
from hps.common.json_text import Json
from hps.contracts.tiers import Flags, Keys, Rows
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store.arguments import (
    DEFAULT_COMPACTION_BYTES_PER_SECOND,
    DEFAULT_SEGMENT_BYTES,
    OpenOptions,
    check_named,
    check_opening,
    check_piece,
    check_tag,
    table_number,
)
from hps.ssd_store.engine import ROCKSDB, ROCKSDB_MANIFEST, check_engine
from hps.ssd_store.promoted import Promotions, check_deletable, check_free, held, named
from hps.ssd_store.rocksdb import checkpoint_files
from hps.ssd_store.rocksdb.burial import Burial
from hps.ssd_store.rocksdb.database import as_rows, import_rocksdict, translated
from hps.ssd_store.rocksdb.figures import FoldersOf, files_figures, space_of_compact
from hps.ssd_store.rocksdb.live import Live, LiveDatabases
from hps.ssd_store.rocksdb.live_table import LiveTable
from hps.ssd_store.rocksdb.manifest import RocksDbCheckpoint, RocksDbManifest
from hps.ssd_store.rocksdb.worker import Worker, closed_error
from hps.table.schema import TableSchema
from hps.table.waiting import named_tables

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class RocksDbStore:
    """A directory of rows kept by RocksDB. What the verbs promise is in
    `hps.contracts.tiers.RowTier`.

    Mutations run on a thread of the store's own: an interrupt of the caller never leaves one
    half done.

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

    def __init__(self, folder: HeldFolder, options: OpenOptions) -> None:
        """Use `open`."""
        self.path = folder.path
        self._folder = folder
        self._inside = folder.inside  # the same, whatever becomes of the path
        self.schemas: dict[str, TableSchema] = {}
        self.seed = 0
        self.num_loads = 0
        self._options = options
        self._is_read_only = options.get("read_only", False)
        self._worker = Worker(self.path, folder.showing)
        pace = options.get("compaction_bytes_per_second", DEFAULT_COMPACTION_BYTES_PER_SECOND)
        self._burial = Burial(
            self.path, lambda: self._change(lambda: self._open_live_or_raise().bury()), pace
        )
        self._digests = checkpoint_files.DigestMemory()
        self._lock: checkpoint_files.WriterLock | None = None
        self._pin: checkpoint_files.ReaderPin | None = None
        self._live: Live | None = None
        self._is_closed = False
        self._failure = ""  # the sync that failed; no change is made after it
        self._is_changed = False  # since the current checkpoint
        self._reader_checkpoint: RocksDbCheckpoint | None = None
        self._bytes_read = self._bytes_written = 0
        refuse_in_children(self, str(self.path), ("_worker", "_live"))

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
        check_opening(options)
        import_rocksdict()
        check_engine(path, ROCKSDB)
        path = Path(path).absolute()
        if not options.get("read_only", False):
            with translated(path):
                path.mkdir(parents=True, exist_ok=True)
        store = cls(checkpoint_files.hold_store(path), options)
        open_files = store._open_reader if store._is_read_only else store._open_writer
        try:
            store._worker.run(open_files, tables)
        except BaseException:
            store.close()
            raise
        return store

    def _open_writer(self, tables: Sequence[TableSchema]) -> None:
        self._lock = checkpoint_files.WriterLock(self._folder)
        (self._inside / checkpoint_files.PINS).mkdir(exist_ok=True)
        seed = self._options.get("seed")
        try:
            manifest = RocksDbManifest.load(self._inside)
        except StoreError as error:
            if error.errno != errno.ENOENT:
                raise
            manifest = RocksDbManifest(seed=seed or 0)
        manifest.check_tables(self.path, tables, seed, False)
        self._manifest = manifest.with_tables(tables)
        if self._manifest != manifest or not (self._inside / ROCKSDB_MANIFEST).exists():
            self._save(self._manifest)
        checkpoint_files.remove_unneeded(self._inside, self._manifest, None)
        for one in self._manifest.checkpoints:
            self._digests.learn(self._inside, one)
        self._take_schemas(tables)
        self._load(self._databases.write(self._manifest.current))

    def _open_reader(self, tables: Sequence[TableSchema]) -> None:
        if not (self._inside / ROCKSDB_MANIFEST).exists():
            RocksDbManifest.load(self._inside)
        self._pin = checkpoint_files.ReaderPin(self._inside)
        self._manifest = RocksDbManifest.load(self._inside)
        self._manifest.check_tables(self.path, tables, self._options.get("seed"), True)
        checkpoint = self._options.get("checkpoint")
        found = self._manifest.current
        if checkpoint is not None:
            found = self._manifest.find(self.path, checkpoint)
        self._reader_checkpoint = found
        self._take_schemas(tables)
        live = self._databases.read(found)
        self._pin.narrow(0 if found is None else found.id)
        self._load(live)

    def _take_schemas(self, asked: Sequence[TableSchema]) -> None:
        """The tables asked for first, then those that the directory holds besides."""
        first = {table.name: table for table in asked}
        self.schemas = first | {table.name: table for table in self._manifest.tables}
        self._numbers = {table.name: i for i, table in enumerate(self._manifest.tables)}
        self.seed = self._manifest.seed
        file_bytes = self._options.get("segment_bytes", DEFAULT_SEGMENT_BYTES)
        self._databases = LiveDatabases(self._inside, self._manifest.tables, file_bytes)

    def _load(self, live: Live) -> None:
        self._live = live
        self._is_changed = False
        self.num_loads += 1
        self._begin_burial()

    def _open_live_or_raise(self) -> Live:
        live = self._live
        if isinstance(live, Inherited):
            live.refuse()
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

    def _change(self, work: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
        """Runs a change on the store's thread; a sync that fails in it is the last one.

        Raises:
            StoreError: the store is closed, read-only, or has stopped.
        """
        self._check_writable()
        result: _Result = self._worker.run(self._stop_if_unsynced, work, *arguments)
        return result

    def _stop_if_unsynced(
        self, work: Callable[[*_Arguments], _Result], *arguments: *_Arguments
    ) -> _Result:
        self._check_writable()  # again: a change that was waiting comes after the failure
        self._check_held("; nothing was committed")
        try:
            return work(*arguments)
        except SyncError as error:
            self._failure = str(error)
            raise self._stopped(error.errno) from error

    def _number(self, table: str) -> int:
        return table_number(self.path, self._numbers, table)

    def _table(self, table: str) -> LiveTable:
        self._number(table)  # refuses one that is not there
        return self._open_live_or_raise().tables[table]

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
        """As `RowTier.append`; a write that failed in the background shows at a later call.

        Cost: RocksDB only estimates how many keys it has, so each key is looked up first.
        """
        self._change(self._append, table, rows)

    def _append(self, table: str, rows: Rows) -> None:
        found, row_bytes = self._table(table), self.schemas[table].row_bytes
        if rows.ndim != 2 or rows.shape[1] != row_bytes:
            raise ConfigError(
                f"table {table!r}: rows have shape {list(rows.shape)}, [n, {row_bytes}] expected"
            )
        self._is_changed = True
        found.append(rows)
        self._bytes_written += rows.nbytes

    def fetch(self, table: str, keys: Keys, rows: Rows, found: Flags) -> None:
        """As `RowTier.fetch`; blocks are checked."""
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
        found = self._table(table)
        with self._folder.showing(), translated(self.path):
            return found.get(keys)

    def contains(self, table: str, keys: Keys) -> Flags:
        """As `RowTier.contains`. Cost: RocksDB reads the rows for it."""
        return np.array([image is not None for image in self._get(table, keys)], np.uint8)

    def erase(self, table: str, keys: Keys) -> Flags:
        """As `RowTier.erase`."""
        return self._change(self._erase, table, keys)

    def _erase(self, table: str, keys: Keys) -> Flags:
        found = self._table(table)
        self._is_changed = True
        return found.erase(keys)

    def num_rows(self, table: str) -> int:
        """As `RowTier.num_rows`."""
        return self._table(table).deaths.now.num_living

    def scan(self, table: str, batch_rows: int = 65536) -> Iterator[Rows]:
        """As `RowTier.scan`, in the order of the keys.

        Raises:
            StoreError: the store was restored meanwhile, too.
        """
        check_piece(batch_rows)
        return self._pieces(*self._worker.run(self._begin_scan, table, batch_rows))

    def _begin_scan(self, table: str, batch_rows: int) -> tuple[Live, Iterator[Rows]]:
        return self._open_live_or_raise(), self._table(table).scan(batch_rows)

    def _pieces(self, live: Live, rows: Iterator[Rows]) -> Iterator[Rows]:
        while True:
            if self._open_live_or_raise() is not live:
                raise StoreError(
                    errno.ESTALE, f"{self.path}: restored while it was scanned; scan it again"
                )
            with self._folder.showing(), translated(self.path):
                piece = next(rows, None)
            if piece is None:
                return
            yield piece

    # Rows that die.

    def set_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """As `RowTier.set_period`. Cost: the entries of rows that die early are read, 12 bytes
        each, and their keys marked, 9 bytes of memory each; else none. A thread then erases what
        is dead, in pieces, at compaction_bytes_per_second of their bytes."""
        self._change(self._set_period, period, dict(horizons or {}))

    def check_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """As `RowTier.check_period`. Cost: as set_period, which then reads no entry again."""
        self._change(lambda: self._open_live_or_raise().dying(period, horizons or {}))

    def _set_period(self, period: int, horizons: dict[str, int]) -> None:
        for table in horizons:
            self._number(table)
        self._open_live_or_raise().set_period(period, horizons)
        self._is_changed = True  # so that compaction renews no checkpoint of an earlier period
        self._begin_burial()

    def _begin_burial(self) -> None:
        is_wanted = self._options.get("compact_in_background", True) and not self._is_read_only
        if is_wanted and self._open_live_or_raise().num_expired:
            self._burial.begin()

    def count_deaths(self, table: str, period: int) -> NDArray[np.uint64]:
        """As `RowTier.count_deaths`. Cost: the number of different periods of death."""
        return self._worker.run(lambda: self._table(table).deaths.living_beyond(period))

    def follow_period(self) -> None:
        """As `RowTier.follow_period`: what was opened or restored is there already."""

    def has_deaths(self, table: str) -> bool:
        """As `RowTier.has_deaths`: of every table with statistics."""
        self._number(table)
        return self.schemas[table].statistics

    # Checkpoints.

    def checkpoint(
        self,
        tag: str | None = None,
        extras: Mapping[str, bytes] | None = None,
        taken: Callable[[], object] | None = None,
    ) -> Json:
        """As `RowTier.checkpoint`; never calls `taken`.

        Cost: writes what is in memory; reads the sorted files that are new, for their digests.
        """
        check_tag(tag)
        return self._change(self._checkpoint, tag, dict(extras or {}))

    def _checkpoint(self, tag: str | None, extras: dict[str, bytes]) -> Json:
        self._check_held("; nothing was committed")
        with held(self._inside, self.path) as promotions:
            check_free(tag, promotions)
            return self._take(tag, extras, promotions)

    def _take(self, tag: str | None, extras: dict[str, bytes], promotions: Promotions) -> Json:
        new = RocksDbCheckpoint(
            self._manifest.next_id,
            tag,
            time.time(),
            {},
            checkpoint_files.extra_names(extras),
            {},
        )
        keep_last = self._options.get("keep_last", 2)
        made = self._add_checkpoint(
            new,
            extras,
            lambda made: self._manifest.with_checkpoint(made, keep_last, promotions.kept),
        )
        return named([made.summary(is_current=True)], promotions)[0]

    def _add_checkpoint(
        self,
        new: RocksDbCheckpoint,
        extras: dict[str, bytes],
        manifest: Callable[[RocksDbCheckpoint], RocksDbManifest],
    ) -> RocksDbCheckpoint:
        """Writes a checkpoint of what is stored now, then the manifest that names it."""
        live = self._open_live_or_raise()
        live.bury_early()
        new = live.counted(new)
        try:
            checkpoint_files.write_checkpoint(
                self._inside, new, live.database.checkpoint, extras, self._digests
            )
            self._commit(manifest(new))
        except BaseException:
            if self._manifest.current_id != new.id:
                shutil.rmtree(self._inside / new.folder, ignore_errors=True)
            raise
        self._is_changed = False
        self._remove_unneeded()
        return new

    def space_of_compact(self, table: str | None = None) -> dict[str, int]:
        """As `RowTier.space_of_compact`; what is written is a bound, as what is freed is of one
        table where checkpoints hold files of any."""
        self._open_live_or_raise()
        return self._worker.run(self._space_of_compact, table)

    def _space_of_compact(self, table: str | None) -> dict[str, int]:
        chosen = [self._table(name) for name in named_tables(table, self._numbers)]
        folders = FoldersOf(self._inside, self._manifest)
        return space_of_compact(self._open_live_or_raise(), folders, chosen)

    def compact(self, table: str | None = None) -> None:
        """As `RowTier.compact`. Cost: reads and writes the table's files; mutations wait."""
        self._change(self._compact, table)

    def _compact(self, table: str | None) -> None:
        live = self._open_live_or_raise()
        while live.bury():
            pass
        for name in named_tables(table, self._numbers):
            self._table(name).compact()
        old = self._manifest.current
        if old is not None and not old.is_deleted and not self._is_changed:
            new = replace(old, id=self._manifest.next_id, files={})
            self._add_checkpoint(
                new, self._extras(None), lambda made: self._manifest.with_renewed(old, made)
            )

    def _commit(self, manifest: RocksDbManifest) -> None:
        """Makes a manifest durable; if that fails, what is on disk says which one counts."""
        try:
            self._save(manifest)
        finally:
            self._manifest = RocksDbManifest.load(self._inside)

    def _save(self, manifest: RocksDbManifest) -> None:
        """Where the folder is not at its path any more nothing is written, now or later."""
        self._check_held("; nothing was committed")
        manifest.save(self._inside)
        self._check_held("")  # what is told of as committed is where its caller looks for it

    def _check_held(self, told: str) -> None:
        try:
            self._folder.check()
        except StoreError as error:
            if error.errno != errno.ESTALE:
                raise
            self._failure = f"{error.strerror}{told}"
            raise self._stopped(errno.ESTALE) from error

    def _remove_unneeded(self) -> checkpoint_files.ReaderPins:
        live = self._open_live_or_raise()
        return checkpoint_files.remove_unneeded(self._inside, self._manifest, live.folder)

    def restore(self, checkpoint: str | int | None = None) -> None:
        """As `RowTier.restore`. Cost: a hard link a file; reads all but the sorted ones."""
        self._change(self._restore, checkpoint)

    def _restore(self, checkpoint: str | int | None) -> None:
        found = self._manifest.current
        if checkpoint is not None:
            found = self._manifest.find(self.path, checkpoint)
        live = self._databases.write(found)
        try:
            if found is not None:
                self._commit(self._manifest.with_current(found))
        except BaseException:
            live.discard()
            raise
        self._load(live)
        self._remove_unneeded()

    def checkpoints(self) -> list[Json]:
        """As `RowTier.checkpoints`."""
        self._open_live_or_raise()
        manifest = self._manifest
        listed = [one.summary(one.id == manifest.current_id) for one in manifest.listed]
        return named(listed, Promotions.load(self._inside))

    def delete_checkpoint(self, checkpoint: str | int) -> list[str]:
        """As `RowTier.delete_checkpoint`."""
        check_named(checkpoint)
        return self._change(self._delete, checkpoint)

    def _delete(self, checkpoint: str | int) -> list[str]:
        self._check_held("; nothing was committed")
        with held(self._inside, self.path) as promotions:
            found = self._manifest.find(self.path, checkpoint)
            check_deletable(named([found.summary(is_current=False)], promotions)[0])
            self._commit(self._manifest.without(found))
            return self._remove_unneeded().of(found.id)

    def extras(
        self, checkpoint: str | int | None = None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """As `RowTier.extras`."""
        self._open_live_or_raise()
        return self._worker.run(self._extras, checkpoint, names)

    def _extras(
        self, checkpoint: str | int | None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        found = self._find(checkpoint)
        return {} if found is None else checkpoint_files.read_extras(self._inside, found, names)

    def _find(self, checkpoint: str | int | None) -> RocksDbCheckpoint | None:
        if checkpoint is not None:
            return self._manifest.find(self.path, checkpoint)
        return self._reader_checkpoint if self._is_read_only else self._manifest.current

    def extra_bytes(self, checkpoint: str | int | None = None) -> dict[str, int]:
        """As `RowTier.extra_bytes`."""
        self._open_live_or_raise()
        return self._worker.run(
            lambda: checkpoint_files.extra_bytes(self._inside, self._find(checkpoint))
        )

    # Figures and the end.

    def stats(self) -> Json:
        """As `RowTier.stats`. bytes_read, bytes_written: row images. dead_rows: still to be erased;
        erasing_failure: why they were not."""
        live = self._open_live_or_raise()
        return {
            "bytes_read": self._bytes_read,
            "bytes_written": self._bytes_written,
            "dead_rows": live.num_expired,
            "erasing_failure": self._burial.failure,
            **files_figures(live, FoldersOf(self._inside, self._manifest), self._is_read_only),
            "tables": {name: table.stats() for name, table in live.tables.items()},
        }

    def verify(self) -> list[tuple[str, str]]:
        """As `RowTier.verify`."""
        self._open_live_or_raise()
        with translated(self.path):
            return checkpoint_files.verify_held(self._folder)

    def held_folder(self) -> Path:
        """As `RowTier.held_folder`."""
        self._open_live_or_raise()
        self._folder.check()
        return self._inside

    def close(self) -> None:
        """As `RowTier.close`; in a forked child nothing is let go of, as it is the parent's."""
        if is_inherited(self._worker):
            self._is_closed = True
        if not self._is_closed:
            self._is_closed = True
            try:
                self._burial.stop()
            finally:  # also after an interrupt, which the worker itself lets pass
                try:
                    self._worker.run(self._close)
                finally:
                    self._worker.stop()

    def _close(self) -> None:
        live, self._live = self._live, None
        try:
            if live is not None:
                live.discard()
        finally:
            if self._pin is not None:
                self._pin.release()
            if self._lock is not None:
                self._lock.release()
            self._folder.close()
