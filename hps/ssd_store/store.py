"""SsdStore: every row of every table in one directory, log-structured, with checkpoints.

Above it: `hps.ParameterServer`. Below it: `hps._C.SsdStore` (csrc/ssd_store), which does all work
on data. The files are described in docs/ssd_store_format.md.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

import numpy as np

from hps import _C
from hps.errors import ConfigError, StoreError
from hps.ssd_store.engine import SEGMENTS, check_engine
from hps.ssd_store.schema import TableSchema
from hps.tier import Flags, Keys, Rows

DEFAULT_SEGMENT_BYTES = 256 * 2**20
DEFAULT_COMPACTION_THRESHOLD = 0.5
DEFAULT_COMPACTION_BYTES_PER_SECOND = 64 * 2**20


class OpenOptions(TypedDict, total=False):
    """What `SsdStore.open` takes by keyword.

    segment_bytes: a segment is sealed before it would grow past this, or past a quarter of its
        table's live rows (but 8 MiB); 256 MiB.
    keep_last: untagged checkpoints that are kept; 2.
    threads: that load a cut and share a large fetch; 0 is one a core. Changes no bit.
    snapshot_rows: a clean close leaves a snapshot of the index if the store has this many; 65536.
    read_only: beside a writer or without one; needs a store.
    direct_io: segments are read past the page cache (O_DIRECT), so that it stays free for others;
        what is appended still goes through it. False.
    checkpoint: read-only: the tag or id of the cut to open; None is the current one.
    rows: read-only: False loads none, for schemas, seed, extras and checkpoints alone.
    seed: of the initializers; fixed once the store exists. None takes the stored one (new: 0).
    compaction_threshold: dead part of a segment from which it is rewritten, above 0, below 1; 0.5.
    compaction_bytes_per_second: read and written by compaction while nobody waits; 64 MiB.
    compact_in_background: False: only by compact() and in an append that lacks space; True.
    """

    segment_bytes: int
    keep_last: int
    threads: int
    snapshot_rows: int
    read_only: bool
    direct_io: bool
    checkpoint: str | int | None
    rows: bool
    seed: int | None
    compaction_threshold: float
    compaction_bytes_per_second: int
    compact_in_background: bool


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
    if isinstance(checkpoint, str) and not checkpoint:
        raise ConfigError("checkpoint='' is not a tag; use None for the current cut")
    if isinstance(checkpoint, int):
        if checkpoint < 1:
            raise ConfigError(f"checkpoint={checkpoint}: ids count from 1")
        return "", checkpoint
    return checkpoint or "", 0


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
    """A directory of rows; see `hps.tier.RowTier` for the verbs.

    Every method may be called from any thread. Mutations run one after the other; fetch, contains
    and scan run beside them, and so does compaction, which rewrites segments that are mostly dead:
    each table's segments stay below live rows' bytes / (1 - compaction_threshold) + 4 segments.

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
        self._native: _C.SsdStore | None = native
        self._lock = threading.Lock()
        schemas = [TableSchema.from_native(fields) for fields in native.tables]
        self.schemas: dict[str, TableSchema] = {schema.name: schema for schema in schemas}
        self._numbers = {schema.name: number for number, schema in enumerate(schemas)}
        self.seed: int = native.seed
        self.closing_bytes = 0

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
            row, else from the footers, 8 bytes a record; never rows.
        """
        read_only = options.get("read_only", False)
        checkpoint = options.get("checkpoint")
        check_engine(path, SEGMENTS)
        if checkpoint is not None and not read_only:
            raise ConfigError("checkpoint= is for read_only=True; a writer uses restore()")
        rows = options.get("rows", True)
        if not (rows or read_only):
            raise ConfigError("rows=False is for read_only=True")
        path = Path(path)
        tag, number = _name(checkpoint)
        settings = {
            "segment_bytes": options.get("segment_bytes", DEFAULT_SEGMENT_BYTES),
            "keep_last": options.get("keep_last", 2),
            "threads": options.get("threads", 0),
            "snapshot_rows": options.get("snapshot_rows", 2**16),
            "seed": options.get("seed"),
            "read_only": read_only,
            "rows": rows,
            "direct_io": options.get("direct_io", False),
            "tag": tag,
            "id": number,
            **_compaction_settings(options),
        }
        native = _C.SsdStore.open(os.fspath(path), [t.to_native() for t in tables], settings)
        return cls(path, native)

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
        if native is None:
            raise StoreError(f"{self.path}: the store has been closed; open it again")
        return native

    def _number(self, table: str) -> int:
        if table not in self._numbers:
            raise ConfigError(
                f"{self.path}: there is no table {table!r}; there are {sorted(self._numbers)}"
            )
        return self._numbers[table]

    def append(self, table: str, rows: Rows) -> None:
        """Stores rows; later rows of a key supersede earlier ones.

        Args:
            table: its name.
            rows: uint8 [n, row_bytes], contiguous; the key of each is in its first 8 bytes.

        Raises:
            StoreError: the disk is full (repeat the call when there is space; some of the rows may
                be stored already), or the store has failed.

        Cost: one write for each MiB, into the page cache, which the disk begins to take over at
            once; durable from the next checkpoint on. Waits for compaction when the table's
            segments would else outgrow their bound, unless compaction has just failed.
        """
        self._open_native().append(self._number(table), rows)

    def fetch(self, table: str, keys: Keys, rows: Rows, found: Flags) -> None:
        """Fills rows[i] where keys[i] is stored; other rows are left as they are.

        Args:
            table: its name.
            keys: uint64 [n], any order, duplicates allowed.
            rows: uint8 [n, row_bytes], contiguous, written.
            found: uint8 [n], written: 1 where stored.

        Raises:
            CorruptionError: a record fails its checksum or has another key; names file and offset.

        Cost: what the page cache holds is copied from it, reads merged where records lie within
            4 KiB. The rest is read from disk, merged within 16 KiB, 256 reads under way at once (16
            by threads where the system has no io_uring). Each record's checksum is computed.
        """
        self._open_native().fetch(self._number(table), keys, rows, found)

    def contains(self, table: str, keys: Keys) -> Flags:
        """1 where a key is stored; uint8 [n] for keys uint64 [n]. No I/O."""
        found = np.empty(len(keys), np.uint8)
        self._open_native().contains(self._number(table), keys, found)
        return found

    def erase(self, table: str, keys: Keys) -> Flags:
        """Removes keys; uint8 [n], 1 where one was stored (for its first occurrence in `keys`).

        Raises:
            StoreError: as append.

        Cost: 16 bytes a removed key in memory until the segment is sealed.
        """
        found = np.empty(len(keys), np.uint8)
        self._open_native().erase(self._number(table), keys, found)
        return found

    def num_rows(self, table: str) -> int:
        """Stored keys of the table, exactly."""
        return self._open_native().num_rows(self._number(table))

    def scan(self, table: str, batch_rows: int = 65536) -> Iterator[Rows]:
        """Every row stored when the scan begins, once, in the order of the disk.

        What is appended or erased meanwhile does not change what it yields.

        Args:
            table: its name.
            batch_rows: rows of a piece, at most.

        Returns:
            uint8 [n, row_bytes] arrays, n > 0, each its own.

        Raises:
            CorruptionError: as fetch. StoreError: the store was closed meanwhile.

        Cost: reads the table's segments once in order; one bit a record of memory.
        """
        if batch_rows < 1:
            raise ConfigError(f"batch_rows={batch_rows} must be at least 1")
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
        self, tag: str | None = None, extras: Mapping[str, bytes] | None = None
    ) -> dict[str, Any]:
        """Makes what is stored now a durable cut; returns when it is on disk.

        Args:
            tag: keeps it until delete_checkpoint; replaces an older one of that tag. None: kept
                until keep_last newer untagged ones exist.
            extras: blobs kept with it, each with a digest.

        Returns:
            id, tag, created (seconds since 1970), current, rows, segments, bytes.

        Raises:
            StoreError: the disk is full (nothing changed), or a sync failed (the store stops).
        """
        if tag == "":
            raise ConfigError("tag='' is not a tag; use None for an untagged checkpoint")
        return self._open_native().checkpoint(tag or "", dict(extras or {}))

    def compact(self, table: str | None = None) -> None:
        """Rewrites every segment that has anything dead in it, and makes small ones one.

        Fetches and appends go on meanwhile. If nothing was stored since the current checkpoint,
        that one is renewed: a new id, all else the same, and the space is free when this returns.
        Else what the last checkpoint holds is free after the next one. Other kept checkpoints and
        open readers keep their files in any case.

        Args:
            table: its name; None is all.

        Raises:
            CorruptionError: a record that is still needed is damaged; the rest has been compacted.
            StoreError: the disk is full, or the store has failed; every row is still there.

        Cost: reads every segment with something dead, writes its live rows once.
        """
        first = 0 if table is None else self._number(table)
        end = len(self._numbers) if table is None else first + 1
        self._open_native().compact(first, end)

    @property
    def num_loads(self) -> int:
        """Grows when a restore has replaced what is stored, whatever it raised afterwards."""
        return self._open_native().num_loads

    def restore(self, checkpoint: str | int | None = None) -> None:
        """Makes a kept cut the current one; what was stored since then is dropped.

        Args:
            checkpoint: tag or id; None is the current cut (drops what no checkpoint holds).

        Raises:
            ConfigError: no such checkpoint; the message lists those kept.
            CorruptionError: its headers or footers are damaged; the store stays where it was.

        Cost: reads the cut's footers, twice.
        """
        self._open_native().restore(*_name(checkpoint))

    def checkpoints(self) -> list[dict[str, Any]]:
        """The kept cuts, oldest first, as `checkpoint` returns them."""
        return self._open_native().checkpoints()

    def delete_checkpoint(self, checkpoint: str | int) -> list[str]:
        """Gives up a kept cut. If it is the current one, its files go when another becomes current.

        Returns:
            The living readers ("process 12 (checkpoint 3)"), whose files stay until they close.

        Raises:
            ConfigError: no such checkpoint, or None.
        """
        if checkpoint is None:
            raise ConfigError("delete_checkpoint(None): name a checkpoint by its tag or id")
        return self._open_native().delete_checkpoint(*_name(checkpoint))

    def extras(self, checkpoint: str | int | None = None) -> dict[str, bytes]:
        """The blobs of a kept cut (None: of the current one), digests checked.

        Raises:
            ConfigError: no such checkpoint.
            CorruptionError: a digest does not match.
        """
        return self._open_native().extras(*_name(checkpoint))

    def stats(self) -> dict[str, Any]:
        """Counts and bytes; of each table too.

        Since the store was opened: bytes_read, bytes_written, compactions, compaction_failures,
        append_waits. Since it was made, as of its checkpoint: bytes_appended (records, by append),
        bytes_compacted (records, by compaction), bytes_overhead (footers, manifest), and
        write_amplification, their sum over the first. Now: files_bytes, and checkpoint_only_bytes,
        which kept checkpoints alone hold. snapshot_bytes: of the index snapshot that the store was
        opened with; 0: from footers.
        """
        native = self._open_native()
        tables = {name: native.table_stats(number) for name, number in self._numbers.items()}
        whole: dict[str, Any] = native.stats()
        parts = ("bytes_appended", "bytes_compacted", "bytes_overhead")
        written = sum(whole[name] for name in parts)
        whole["write_amplification"] = written / max(1, whole["bytes_appended"])
        return {**whole, "tables": tables}

    def clone(self, target: str | os.PathLike[str], *, may_link: bool = True) -> dict[str, Any]:
        """As `hps.ssd_store.clone`, of the cut that this store is at."""
        return self._open_native().clone(os.fspath(target), may_link)

    def verify(self) -> list[tuple[str, str]]:
        """As `hps.ssd_store.verify` on this store's directory: all that is in a checkpoint."""
        return verify(self.path)

    def close(self) -> None:
        """Lets go of the lock at once and of the files when no scan uses them; may be repeated.

        What no checkpoint holds is lost. A writer that has changed nothing since the newest cut
        leaves a snapshot of the index, with which the next opening need not read the footers.

        Cost: writes the snapshot, about 15 bytes a row, into the page cache; `closing_bytes` says
        how many: 0 if it was there already, or does not pay, or the disk was full.
        """
        with self._lock:
            native, self._native = self._native, None
            if native is not None:
                self.closing_bytes = native.close()
