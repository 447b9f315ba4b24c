"""write_tables(): the files of rows of one store's part of a version, which nobody sees yet.

Above it: store_origin.py, a served shard that writes its part. Below it: source.py, codec.py,
row_files.py, destination.py. Changes are found by comparing rows as they are published, of the keys
that source.py names.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from hps import _C
from hps.common.json_text import Json, JsonView
from hps.common.row_layout import Images, Keys, RowLayout
from hps.errors import ConfigError
from hps.publish.codec import RowCodec
from hps.publish.destination import Destination
from hps.publish.options import PublishOptions
from hps.publish.row_files import RowWriter
from hps.publish.source import PartChanges, PlacedRows, Source
from hps.publish.version import StoredFile

_PIECE_ROWS = 16384
_FILE_ROWS = 1 << 22
_WRITTEN_BESIDE = 1 << 16  # bytes of a piece, from which another thread is worth its while
_MOST_UNWRITTEN = 8  # pieces that wait for it, of about a MiB


@dataclass(frozen=True)
class TableFiles:
    """What is written of one table.

    Args:
        table: its name.
        base: files of all rows; None where they were not asked for.
        changed, removed: files of rows that are new or others than before, and of keys that went;
            None where nothing is before.
        difference: rows more than before.
    """

    table: str
    base: list[StoredFile] | None
    changed: list[StoredFile] | None
    removed: list[StoredFile] | None
    difference: int

    @classmethod
    def from_json(cls, value: JsonView) -> Self:
        """What `to_json` made; TypeError, KeyError of anything else."""
        lists = {
            name: None if value[name] is None else [StoredFile(**one) for one in value[name]]
            for name in ("base", "changed", "removed")
        }
        return cls(table=value["table"], difference=value["difference"], **lists)

    def to_json(self) -> Json:
        """As plain values."""
        return asdict(self)

    @property
    def files(self) -> list[StoredFile]:
        """All of them."""
        return [file for part in (self.base, self.changed, self.removed) for file in part or ()]

    def with_others(self, others: "TableFiles") -> Self:
        """Of two parts of a table the files of both."""
        return replace(
            self,
            base=_both(self.base, others.base),
            changed=_both(self.changed, others.changed),
            removed=_both(self.removed, others.removed),
            difference=self.difference + others.difference,
        )


def _both(own: list[StoredFile] | None, others: list[StoredFile] | None) -> list[StoredFile] | None:
    return None if own is None or others is None else [*own, *others]


class VersionFolder:
    """The folder of a version's own files at a destination.

    Args:
        destination: where it is.
        name: of the folder there.
        suffix: of the names of files of rows; tells the writers of one version apart.
        told: called with a number of rows as they have been looked at; what it raises ends the
            writing.

    Attributes:
        num_bytes: written so far.
        names: of the files that were begun, relative to the destination.
    """

    def __init__(
        self,
        destination: Destination,
        name: str,
        suffix: str = "",
        told: Callable[[int], object] = lambda rows: None,
    ) -> None:
        self.destination = destination
        self.name = name
        self.suffix = suffix
        self.told = told
        self.num_bytes = 0
        self.names: list[str] = []

    def write_bytes(self, name: str, data: bytes) -> StoredFile:
        """A file of the version."""
        with self.writing(name) as file:
            file.write(data)
        return file.stored()

    def writing(self, name: str) -> "HashedFile":
        """A file of the version, to be written piece by piece."""
        return HashedFile(self, f"{self.name}/{name}")

    def settle(self) -> None:
        """Makes all that was written durable: before the version is made visible, or told of."""
        self.destination.settle(self.names)


def write_tables(
    folder: VersionFolder,
    after: Source,
    before: Source | None,
    options: PublishOptions,
    *,
    is_base: bool,
) -> list[TableFiles]:
    """Writes the rows of a checkpoint, or what changed in them, or both.

    Args:
        folder: where to.
        after: the checkpoint.
        before: an older one of the same lineage, since which changes are written; None: no changes.
        options: what of the rows.
        is_base: all rows are written.

    Raises:
        ConfigError: a table that is not there. StoreError: the destination cannot be written.
        NonFiniteError: a weight that the type cannot hold. CorruptionError: the store is damaged.

    Cost: as `hps.publish.publisher.Publisher.publish`.
    """
    check_tables(after.tables, options)
    if before is not None:
        after.take_marks(before)
    found = []
    for name, table in after.tables.items():
        if options.tables is not None and name not in options.tables:
            continue
        writer = _TableWriter(folder, after, options, table.layout, name)
        base = writer.write_all() if is_base else None
        if before is None:
            found.append(TableFiles(name, base, None, None, 0))
        else:
            found.append(TableFiles(name, base, *writer.write_changes(before)))
    return found


def check_tables(known: Collection[str], options: PublishOptions) -> None:
    """Refuses options that name a table that is not there.

    Raises:
        ConfigError: names it, and those there are.
    """
    for name in options.tables or ():
        if name not in known:
            raise ConfigError(f"publish: there is no table {name!r}; the store has {sorted(known)}")


class _TableWriter:
    """Writes the rows of one table of a version."""

    def __init__(
        self,
        folder: VersionFolder,
        after: Source,
        options: PublishOptions,
        layout: RowLayout,
        table: str,
    ) -> None:
        self._folder = folder
        self._after = after
        self._options = options
        self._layout = layout
        self._table = table
        self._codec = RowCodec(options.dtype, layout.dim)

    def write_all(self) -> list[StoredFile]:
        """Every servable row."""
        with _Files(self._folder, f"rows-{self._table}", self._codec.row_bytes) as files:
            for piece in self._after.scan(self._table, _PIECE_ROWS):
                if self._is_scored:
                    kept = piece.images[self._is_servable(self._after, piece.images)]
                    files.write(self._layout.keys(kept), self._encoded(kept))
                else:
                    rows = self._encoded(piece.images)
                    files.write(self._layout.keys(piece.images), rows)
                    self._note(piece, _marks_of(rows))
                self._folder.told(len(piece.images))
        return files.stored

    def write_changes(self, before: Source) -> tuple[list[StoredFile], list[StoredFile], int]:
        """(files of rows that are new or others, of keys that went, rows more than before)."""
        with (
            _Files(self._folder, f"changed-{self._table}", self._codec.row_bytes) as changed,
            _Files(self._folder, f"removed-{self._table}", None) as removed,
        ):
            found = _Found(changed, removed)
            if self._is_scored and before.period != self._after.period:
                for keys in self._all_keys(before):  # any score may have fallen
                    self._compare(before, keys, *self._served(self._after, keys), found)
            else:
                for part in self._after.changes_since(before, self._table):
                    for piece in part.rows(_PIECE_ROWS):
                        self._write_other(before, part, piece, found)
                    for keys in _pieces(part.others):
                        self._compare(before, keys, *self._served(self._after, keys), found)
        return changed.stored, removed.stored, found.difference

    def _write_other(
        self, before: Source, part: PartChanges, piece: PlacedRows, found: "_Found"
    ) -> None:
        """Those rows of a piece that are new or others: by their marks, where the old ones have
        some, else by reading them."""
        keys = self._layout.keys(piece.images)
        if self._is_scored:
            self._compare(before, keys, *self._served(self._after, keys), found)
            return
        rows = self._encoded(piece.images)
        old_places = part.before.places(self._table, keys)
        was_there = old_places[:, 0] != 0
        marks, old_marks = _marks_of(rows), np.empty(len(keys), np.uint64)
        self._marks(piece.part).find(old_places, old_marks)
        is_known = (old_marks != 0) | ~was_there
        found.changed.write(*_chosen(is_known & (marks != old_marks), keys, rows))
        found.difference += int(np.count_nonzero(~was_there))
        self._folder.told(int(np.count_nonzero(is_known)))
        if not is_known.all():
            unknown = np.flatnonzero(~is_known)
            is_there = np.ones(len(unknown), np.bool_)
            self._compare(before, keys[unknown], rows[unknown], is_there, found)
        self._note(piece, marks)

    def _compare(
        self,
        before: Source,
        keys: Keys,
        new: Images,
        is_there: "np.ndarray[Any, Any]",
        found: "_Found",
    ) -> None:
        """Rows as they are published, and whether there is one, beside those of a checkpoint."""
        old, was_there = self._served(before, keys)
        is_other = is_there & ~(was_there & (old == new).all(axis=1))
        found.changed.write(*_chosen(is_other, keys, new))
        found.removed.write(keys[was_there & ~is_there])
        found.difference += int(np.count_nonzero(is_there)) - int(np.count_nonzero(was_there))
        self._folder.told(len(keys))

    @property
    def _is_scored(self) -> bool:
        """What is served depends on more than the row's weights."""
        return self._options.min_score is not None and self._table in self._after.rules

    def _marks(self, part: int) -> _C.RecordMarks:
        return self._after.marks(self._options.dtype, self._table, part)

    def _note(self, piece: PlacedRows, marks: "np.ndarray[Any, Any]") -> None:
        if piece.places is not None:
            self._marks(piece.part).note(piece.places, marks)

    def _all_keys(self, before: Source) -> Iterator[Keys]:
        """Of both checkpoints, each once."""
        after = self._after
        for piece in after.scan(self._table, _PIECE_ROWS):
            yield self._layout.keys(piece.images)
        for piece in before.scan(self._table, _PIECE_ROWS):
            keys = self._layout.keys(piece.images)
            yield keys[after.store.contains(self._table, keys) == 0]

    def _served(self, source: Source, keys: Keys) -> tuple[Images, "np.ndarray[Any, Any]"]:
        """(encoded rows, zeros where there is none; whether there is one)."""
        images = np.zeros((len(keys), self._layout.row_bytes), np.uint8)
        found = np.zeros(len(keys), np.uint8)
        source.store.fetch(self._table, keys, images, found)
        is_there = found != 0
        is_there[is_there] = self._is_servable(source, images[is_there])
        rows = np.zeros((len(keys), self._codec.row_bytes), np.uint8)
        rows[is_there] = self._encoded(images[is_there])
        return rows, is_there

    def _is_servable(self, source: Source, images: Images) -> "np.ndarray[Any, Any]":
        return source.is_servable(self._table, images, self._options.min_score)

    def _encoded(self, images: Images) -> Images:
        weights = self._layout.weights(images)
        self._codec.check(self._layout.keys(images), weights, self._table)
        return self._codec.encode(weights)


def _pieces(keys: Keys) -> Iterator[Keys]:
    for first in range(0, len(keys), _PIECE_ROWS):
        yield keys[first : first + _PIECE_ROWS]


def _marks_of(rows: Images) -> "np.ndarray[Any, Any]":
    marks = np.empty(len(rows), np.uint64)
    _C.marks_of(rows, marks)
    return marks


def _chosen(is_chosen: "np.ndarray[Any, Any]", keys: Keys, rows: Images) -> tuple[Keys, Images]:
    """Those of them; without a copy where it is all."""
    return (keys, rows) if is_chosen.all() else (keys[is_chosen], rows[is_chosen])


@dataclass
class _Found:
    """Where changes go, and how many rows more there are."""

    changed: "_Files"
    removed: "_Files"
    difference: int = 0


class _Files:
    """Rows of one kind, in files of a bounded number of rows. A context manager."""

    def __init__(self, folder: VersionFolder, name: str, row_bytes: int | None) -> None:
        self._folder = folder
        self._name = f"{name}{folder.suffix}"
        self._row_bytes = row_bytes
        self._held = ExitStack()  # the file that is written
        self._file: HashedFile | None = None
        self._rows: RowWriter | None = None
        self.stored: list[StoredFile] = []

    def write(self, keys: Keys, rows: Images | None = None) -> None:
        """Appends to them; nothing to do without keys."""
        if not len(keys):
            return
        if self._rows is None:
            file = self._folder.writing(f"{self._name}-{len(self.stored)}.arrow")
            self._file = self._held.enter_context(file)
            self._rows = self._held.enter_context(RowWriter(file, self._row_bytes))
        self._rows.write(keys, rows)
        if self._rows.num_rows >= _FILE_ROWS:
            self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        file, rows = self._file, self._rows
        self._file = self._rows = None
        held, self._held = self._held, ExitStack()
        held.__exit__(None if error is None else type(error), error, None)
        if error is None and file is not None and rows is not None:
            self.stored.append(replace(file.stored(), rows=rows.num_rows))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish(error)


class HashedFile:
    """A file whose length and sha256 are counted as it is written. A context manager.

    Large pieces are hashed and written by a thread beside what the caller does next: it may not
    change them. What that meets is raised later, at the latest where the context is left.
    """

    def __init__(self, folder: VersionFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        folder.names.append(name)
        self._context = folder.destination.write(name)
        self._stream: IO[bytes] | None = None
        self._sum = hashlib.sha256()
        self._threads: ThreadPoolExecutor | None = None
        self._given: deque[Future[None]] = deque()  # pieces for the thread, in their order
        self._num_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """As a stream does."""
        view = memoryview(data).cast("B")
        self._num_bytes += len(view)
        self._folder.num_bytes += len(view)
        if len(view) < _WRITTEN_BESIDE and not self._given:
            self._put(view)
            return len(view)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(1, "hps-write")
        while len(self._given) >= _MOST_UNWRITTEN:
            self._given.popleft().result()
        self._given.append(self._threads.submit(self._put, view))
        return len(view)

    def _put(self, view: memoryview) -> None:
        assert self._stream is not None, "outside of its context"
        self._sum.update(view)
        self._stream.write(view)

    def flush(self) -> None:
        """Nothing waits here."""

    def writable(self) -> bool:
        """It is."""
        return True

    def stored(self) -> StoredFile:
        """What was written."""
        return StoredFile(self._name, self._num_bytes, self._sum.hexdigest())

    def __enter__(self) -> Self:
        self._stream = self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._threads is not None:
            self._threads.shutdown()  # after all that it was given
        try:
            while self._given:
                self._given.popleft().result()
        except BaseException as met:
            if error is None:
                self._context.__exit__(type(met), met, met.__traceback__)
                raise
        self._context.__exit__(kind, error, traceback)
