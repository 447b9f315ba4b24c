"""SsdStore: every row of every table in one directory, log-structured, with checkpoints.

Above it: `hps.ParameterServer`. Below it: `hps._C.SsdStore` (csrc/ssd_store), which does all work
on data. The files are described in docs/ssd_store_format.md.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.checkpoint.blobs import PERIOD, decode_period
from hps.checkpoint.moving import opened_as_found
from hps.checkpoint.names import check_name
from hps.common.forked import forked_error
from hps.common.held_folder import inside
from hps.common.json_text import Json
from hps.contracts.tiers import Flags, Keys, Rows
from hps.errors import ConfigError, StoreError
from hps.ssd_store.arguments import (
    DEFAULT_COMPACTION_BYTES_PER_SECOND,
    DEFAULT_COMPACTION_THRESHOLD,
    DEFAULT_SEGMENT_BYTES,
    OpenOptions,
    check_named,
    check_opening,
    check_piece,
    check_tag,
    table_number,
)
from hps.ssd_store.engine import SEGMENTS, check_engine
from hps.ssd_store.promoted import (
    Promotions,
    check_deletable,
    check_free,
    held,
    named,
    promotion_of,
    resolved,
)
from hps.table.schema import TableSchema
from hps.table.waiting import named_tables

Places = NDArray[np.uint64]


def verify(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Checks every checksum under a store's directory; may run beside a writer.

    Args:
        path: the store's directory.

    Returns:
        (file, what is wrong with it) for each damaged file; empty if all is well.

    Raises:
        StoreError: there is no store, or it cannot be listed.

    Cost: reads every byte of every kept checkpoint; nothing is removed while it runs. A snapshot of
        the index is not read: an opening checks it and passes over one that is damaged.
    """
    return _C.verify_store(os.fspath(path))


def _name(checkpoint: str | int | None) -> tuple[str, int]:
    """A checkpoint's (tag, id) as the native core takes them."""
    if checkpoint is None:
        return "", 0
    check_name(checkpoint)
    return ("", checkpoint) if isinstance(checkpoint, int) else (checkpoint, 0)


def _to_open(path: Path, checkpoint: str | int | None) -> str | int | None:
    """The checkpoint to open; of a promoted name its id."""
    if promotion_of(path, checkpoint) is None:
        return checkpoint
    with SsdStore.open(path, [], read_only=True, rows=False) as store:
        return resolved(path, checkpoint, store.checkpoints())


def _compaction_settings(options: OpenOptions) -> dict[str, float | int | bool]:
    threshold = options.get("compaction_threshold", DEFAULT_COMPACTION_THRESHOLD)
    if not 0 < threshold < 1:
        raise ConfigError(f"compaction_threshold={threshold} must be above 0 and below 1")
    pace = options.get("compaction_bytes_per_second", DEFAULT_COMPACTION_BYTES_PER_SECOND)
    if pace < 1:
        raise ConfigError(f"compaction_bytes_per_second={pace} must be at least 1")
    return {
        "compaction_threshold": float(threshold),
        "compaction_bytes_per_second": pace,
        "compact_in_background": options.get("compact_in_background", True),
    }


class SsdStore:
    """A directory of rows. What the verbs promise is in `hps.contracts.tiers.RowTier`.

    Compaction runs beside all of them and rewrites segments that are mostly dead: each table's
    segments stay below live rows' bytes / (1 - compaction_threshold) + 4 segments.

    >>> import tempfile
    >>> schema = TableSchema(name="ads", dim=4, optimizer="sgd", initializer="constant",
    ...                      numbers=(0.0, 0.0), row_bytes=32)
    >>> rows = np.zeros((2, 32), np.uint8)
    >>> rows[:, :8].view(np.uint64)[:, 0] = [7, 2**64 - 1]
    >>> with SsdStore.open(tempfile.mkdtemp(), [schema]) as store:
    ...     store.append("ads", rows)
    ...     store.contains("ads", np.array([7, 8], np.uint64)).tolist()
    [1, 0]
    """

    def __init__(self, path: Path, native: _C.SsdStore) -> None:
        """Use `open`."""
        self.path = path
        self._owner = os.getpid()
        self._native: _C.SsdStore | None = native
        self._lock = threading.Lock()
        schemas = [TableSchema.from_native(fields) for fields in native.tables]
        self.schemas: dict[str, TableSchema] = {schema.name: schema for schema in schemas}
        self._numbers = {schema.name: number for number, schema in enumerate(schemas)}
        self.seed: int = native.seed
        self.closing_bytes = 0
        self.follow_period()

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
            tables: the tables wanted; tables that the directory holds besides stay and are in
                `schemas` too, so an empty list opens a store as it is.
            options: see `OpenOptions`.

        Raises:
            ConfigError: a table or the seed differs from what is stored; no such checkpoint; the
                file system has no direct I/O.
            StoreError: another process writes there (its pid is named), or the system refused.
            CorruptionError: damaged files, by name and offset.

        Cost: reads the manifest and the index: after a clean close as a snapshot, about 15 bytes a
            row, else from the footers, 8 bytes a record; never rows. With `beside`: a copy of its
            index (with `shares_index` none), and the footers of segments that one of the two has
            alone.
        """
        check_engine(path, SEGMENTS)
        check_opening(options)
        path = Path(path).absolute()
        settings = {
            "segment_bytes": options.get("segment_bytes", DEFAULT_SEGMENT_BYTES),
            "keep_last": options.get("keep_last", 2),
            "threads": options.get("threads", 0),
            "snapshot_rows": options.get("snapshot_rows", 2**16),
            "seed": options.get("seed"),
            "read_only": options.get("read_only", False),
            "rows": options.get("rows", True),
            "direct_io": options.get("direct_io", False),
            "shares_index": options.get("shares_index", False),
            **_compaction_settings(options),
        }
        beside = options.get("beside")
        native = beside._open_native() if isinstance(beside, SsdStore) else None
        return cls(path, cls._open_at(path, tables, settings, options.get("checkpoint"), native))

    @classmethod
    def _open_at(
        cls,
        path: Path,
        tables: Sequence[TableSchema],
        settings: Json,
        checkpoint: str | int | None,
        beside: _C.SsdStore | None = None,
    ) -> _C.SsdStore:
        """At a checkpoint; of a promoted name at the one that has it, whatever its id becomes."""
        described = [table.to_native() for table in tables]

        def enter(name: str | int | None) -> _C.SsdStore:
            tag, number = _name(name)
            asked = {**settings, "tag": tag, "id": number}
            return _C.SsdStore.open(os.fspath(path), described, asked, beside)

        where = f"{path}: checkpoint {checkpoint!r}"
        return opened_as_found(lambda: _to_open(path, checkpoint), enter, where)[1]

    def load_rows(self, beside: "SsdStore | None" = None, *, shares_index: bool = False) -> None:
        """Of a store that was opened read-only with rows=False: loads them, before anybody asks.

        Args:
            beside, shares_index: as OpenOptions has them.

        Raises:
            CorruptionError, StoreError: as open.
        """
        other = None if beside is None else beside._open_native()
        self._open_native().load_rows(other, shares_index)
        self.follow_period()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _open_native(self) -> _C.SsdStore:
        native = self._native
        if self._owner != os.getpid():
            raise forked_error(str(self.path), self._owner)
        if native is None:
            raise StoreError(f"{self.path}: the store has been closed; open it again")
        return native

    def _folder(self, native: _C.SsdStore) -> Path:
        """The folder that was opened, wherever it is now."""
        return inside(self.path, native.descriptor)

    def _name(self, checkpoint: str | int | None) -> tuple[str, int]:
        """As the native core takes it, of a promoted name the id."""
        native = self._open_native()
        if promotion_of(self._folder(native), checkpoint) is None:
            return _name(checkpoint)
        return _name(resolved(self._folder(native), checkpoint, native.checkpoints()))

    def _number(self, table: str) -> int:
        return table_number(self.path, self._numbers, table)

    def append(self, table: str, rows: Rows) -> None:
        """As `RowTier.append`.

        Cost: one write for each MiB, into the page cache, which the disk begins to take over at
            once. Waits for compaction when the table's segments would else outgrow their bound,
            unless compaction has just failed.
        """
        self._open_native().append(self._number(table), rows)

    def fetch(self, table: str, keys: Keys, rows: Rows, found: Flags) -> None:
        """As `RowTier.fetch`; a CorruptionError names file and offset.

        Cost: what the page cache holds is copied from it, reads merged where records lie within
            4 KiB. The rest is read from disk, merged within 32 KiB, 256 reads under way at once (16
            by threads where the system has no io_uring). Each record's checksum is computed.
        """
        self._open_native().fetch(self._number(table), keys, rows, found)

    def contains(self, table: str, keys: Keys) -> Flags:
        """As `RowTier.contains`. Cost: no I/O."""
        found = np.empty(len(keys), np.uint8)
        self._open_native().contains(self._number(table), keys, found)
        return found

    def erase(self, table: str, keys: Keys) -> Flags:
        """As `RowTier.erase`. Cost: 16 bytes of memory a removed key, until the seal."""
        found = np.empty(len(keys), np.uint8)
        self._open_native().erase(self._number(table), keys, found)
        return found

    def num_rows(self, table: str) -> int:
        """As `RowTier.num_rows`."""
        return self._open_native().num_rows(self._number(table))

    @property
    def identity(self) -> int:
        """Drawn when the store was made; a clone has that of its source."""
        return self._open_native().id

    def changes_since(
        self, before: "SsdStore", table: str, period: int, since: int
    ) -> _C.SsdChanges:
        """Where a table may differ between two checkpoints of one store, of which two readers have
        one each.

        Args:
            before: the other one, which has the table, too.
            table: its name.
            period: of this checkpoint.
            since: of the other one; rows that die after it, by `period`, are among them.

        Returns:
            For `scan_placed` the rows in segments that this one has alone, which a compaction may
            have left as they were; in `others` all other keys that may have gone, or be others, as
            bytes of uint64, in order, each once.

        Raises:
            CorruptionError, StoreError: a footer cannot be read.

        Cost: reads the footers of segments that one of the two has alone, 8 bytes a record, and
            those of others with rows that die.
        """
        number, other = self._number(table), before._number(table)
        return self._open_native().changes_since(
            number, period, before._open_native(), other, since
        )

    def scan_placed(
        self, table: str, batch_rows: int, changes: _C.SsdChanges | None = None
    ) -> Iterator[tuple[Rows, Places]]:
        """As `scan`, with the place of each row, as `places` tells it; or of `changes` alone.

        Returns:
            Pieces that are good until the next one is asked for: rows uint8 [n, row_bytes], places.
        """
        check_piece(batch_rows)
        native = self._open_native()
        number = self._number(table)
        scan = native.scan(number) if changes is None else native.scan_changes(changes)
        rows = np.empty((batch_rows, self.schemas[table].row_bytes), np.uint8)
        places = np.empty((batch_rows, 2), np.uint64)
        while True:
            self._open_native()  # as in `_pieces`
            count = scan.next(rows, places)
            if count == 0:
                return
            yield rows[:count], places[:count]

    def places(self, table: str, keys: Keys) -> Places:
        """Where rows lie: uint64 [n, 2], the number of a segment, 0 where there is no row, and of
        the record in it. Cost: no I/O."""
        places = np.empty((len(keys), 2), np.uint64)
        self._open_native().places(self._number(table), keys, places)
        return places

    def segments(self, table: str) -> list[int]:
        """Numbers of a table's segments."""
        return self._open_native().segments(self._number(table))

    def set_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """As `RowTier.set_period`. Cost: four bytes a record of tables with statistics, in memory;
        no I/O. Rows that died early are erased by the next checkpoint, which reads the keys of
        their segments for it."""
        given = [0] * len(self._numbers)
        for table, horizon in (horizons or {}).items():
            given[self._number(table)] = horizon
        self._open_native().set_period(period, True, given)

    def check_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """As `RowTier.check_period`: all is in memory; an open store can."""
        self._open_native()

    def count_deaths(self, table: str, period: int) -> NDArray[np.uint64]:
        """As `RowTier.count_deaths`. Cost as set_period."""
        counts = np.empty(_C.MAX_GAP + 1, np.uint64)
        self._open_native().count_deaths(self._number(table), period, counts)
        return counts

    def follow_period(self) -> None:
        """As `RowTier.follow_period`."""
        native = self._open_native()
        if any(native.has_deaths(number) for number in self._numbers.values()):
            native.set_period(decode_period(self.extras(None, (PERIOD,))), False, [])

    def has_deaths(self, table: str) -> bool:
        """As `RowTier.has_deaths`."""
        return self._open_native().has_deaths(self._number(table))

    def scan(self, table: str, batch_rows: int = 65536) -> Iterator[Rows]:
        """As `RowTier.scan`, in the order of the disk.

        Cost: reads the table's segments once in order; one bit a record of memory.
        """
        check_piece(batch_rows)
        scan = self._open_native().scan(self._number(table))
        return self._pieces(scan, batch_rows, self.schemas[table].row_bytes)

    def _pieces(self, scan: _C.SsdScan, batch_rows: int, row_bytes: int) -> Iterator[Rows]:
        while True:
            self._open_native()  # a closed store may lose the files that are still to be read
            rows = np.empty((batch_rows, row_bytes), np.uint8)
            count = scan.next(rows)
            if count == 0:
                return
            yield rows[:count]

    def checkpoint(
        self,
        tag: str | None = None,
        extras: Mapping[str, bytes] | None = None,
        taken: Callable[[], object] | None = None,
    ) -> Json:
        """As `RowTier.checkpoint`.

        Cost: writes and syncs the footers of the segments since the last one, and the manifest.
        """
        check_tag(tag)
        native = self._open_native()
        with held(self._folder(native), self.path) as promotions:
            check_free(tag, promotions)
            made = native.checkpoint(tag or "", dict(extras or {}), taken, promotions.kept)
            return named([made], promotions)[0]

    def space_of_compact(self, table: str | None = None) -> dict[str, int]:
        """As `RowTier.space_of_compact`; without rows that were appended since the last checkpoint
        or compaction."""
        total: Counter[str] = Counter(written_bytes=0, freed_bytes=0, held_bytes=0)
        for first, end in self._ranges(table):
            total.update(self._open_native().space_of_compact(first, end))
        return dict(total)

    def compact(self, table: str | None = None) -> None:
        """As `RowTier.compact`; makes small segments one, too.

        Fetches and appends go on meanwhile. After a CorruptionError the rest has been compacted.

        Cost: reads every segment with something dead, writes its live rows once.
        """
        for first, end in self._ranges(table):
            self._open_native().compact(first, end)

    def _ranges(self, table: str | None) -> list[tuple[int, int]]:
        """Of the numbers of the tables that are meant by a name: [first, end)."""
        if table is None:
            return [(0, len(self._numbers))]
        numbers = [self._number(name) for name in named_tables(table, self._numbers)]
        return [(number, number + 1) for number in numbers]

    @property
    def num_loads(self) -> int:
        """As `RowTier.num_loads`."""
        return self._open_native().num_loads

    def restore(self, checkpoint: str | int | None = None) -> None:
        """As `RowTier.restore`; headers and footers are checked. Cost: reads the footers, twice."""
        native = self._open_native()
        native.restore(*self._name(checkpoint))
        self.follow_period()

    def checkpoints(self) -> list[Json]:
        """As `RowTier.checkpoints`."""
        native = self._open_native()
        return named(native.checkpoints(), Promotions.load(self._folder(native)))

    def delete_checkpoint(self, checkpoint: str | int) -> list[str]:
        """As `RowTier.delete_checkpoint`."""
        check_named(checkpoint)
        native = self._open_native()
        with held(self._folder(native), self.path) as promotions:
            tag, number = self._name(checkpoint)
            for one in named(native.checkpoints(), promotions):
                if one["id"] == number or (tag and one["tag"] == tag):
                    check_deletable(one)
            return native.delete_checkpoint(tag, number)

    def extras(
        self, checkpoint: str | int | None = None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """As `RowTier.extras`."""
        wanted = None if names is None else set(names)
        return self._open_native().extras(*self._name(checkpoint), wanted)

    def extra_bytes(self, checkpoint: str | int | None = None) -> dict[str, int]:
        """As `RowTier.extra_bytes`."""
        return self._open_native().extra_bytes(*self._name(checkpoint))

    def stats(self) -> Json:
        """As `RowTier.stats`, and more.

        Since the store was opened: bytes_read, bytes_written, compactions, compaction_failures,
        append_waits. Since it was made, as of its checkpoint: bytes_appended (records, by append),
        bytes_compacted (records, by compaction), bytes_overhead (footers, manifest), and
        write_amplification, their sum over the first. snapshot_bytes: of the index snapshot that
        the store was opened with; 0: from footers.
        """
        native = self._open_native()
        tables = {name: native.table_stats(number) for name, number in self._numbers.items()}
        whole: Json = native.stats()
        parts = ("bytes_appended", "bytes_compacted", "bytes_overhead")
        written = sum(whole[name] for name in parts)
        whole["write_amplification"] = written / max(1, whole["bytes_appended"])
        return {**whole, "tables": tables}

    def clone(self, target: str | os.PathLike[str], *, may_link: bool = True) -> Json:
        """As `hps.ssd_store.clone`, of the checkpoint that this store is at."""
        made = self._open_native().clone(os.fspath(target), may_link)
        return named([made], Promotions())[0]

    def held_folder(self) -> Path:
        """As `RowTier.held_folder`."""
        native = self._open_native()
        native.check_held()
        return inside(self.path, native.descriptor)

    def verify(self) -> list[tuple[str, str]]:
        """As `RowTier.verify`."""
        return self._open_native().verify()

    def close(self) -> None:
        """As `RowTier.close`: of the lock at once, of the files when no scan uses them.

        A writer that has changed nothing since the newest checkpoint leaves a snapshot of the
        index, with which the next opening need not read the footers.

        Cost: writes the snapshot, about 15 bytes a row, into the page cache; `closing_bytes` says
        how many: 0 if it was there already, or does not pay, or the disk was full.
        """
        if self._owner != os.getpid():  # another thread may have had the lock at the fork
            native, self._native = self._native, None
            if native is not None:
                native.close()
            return
        with self._lock:
            native, self._native = self._native, None
            if native is not None:
                self.closing_bytes = native.close()
