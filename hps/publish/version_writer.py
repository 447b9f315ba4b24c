"""VersionWriter: the files of one version in the making, which nobody sees yet.

Above it: publisher.py. Below it: source.py, codec.py, row_files.py, model_files.py. Changes are
found by comparing rows as they are published, of the keys that source.py names.
"""

import hashlib
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from hps.checkpoint.blobs import table_to_json
from hps.checkpoint.names import text_of
from hps.common.json_text import Json
from hps.common.row_layout import Images, Keys, RowLayout
from hps.errors import ConfigError, HpsError, StoreError
from hps.publish.codec import RowCodec
from hps.publish.destination import Destination
from hps.publish.fetch import read_checked
from hps.publish.graph import GRAPH_FILE, WEIGHTS_FILE
from hps.publish.model_files import encode_model_files
from hps.publish.options import PublishOptions
from hps.publish.row_files import RowWriter
from hps.publish.source import Source
from hps.publish.version import (
    BASE,
    DATA,
    DELTA,
    PublishedGraph,
    PublishedModel,
    PublishedTable,
    StoredFile,
    Version,
)

_PIECE_ROWS = 65536
_FILE_ROWS = 1 << 22


class VersionWriter:
    """One version in the making."""

    def __init__(
        self, destination: Destination, number: int, after: Source, options: PublishOptions
    ) -> None:
        self._destination = destination
        self._number = number
        self._after = after
        self._options = options
        self._folder = f"{DATA}/{number:08d}-{secrets.token_hex(4)}"
        self.num_bytes = 0
        self._changed: int | None = None
        self._removed: int | None = None

    def make(self, follows: Version | None, before: Source | None, wants_base: bool) -> Version:
        """Writes all files of the version."""
        self._check_tables()
        after, tables = self._after, []
        model = self._write_model(follows, wants_base)  # first: it may be refused
        lineage = secrets.token_hex(8) if follows is None else follows.lineage
        for name, table in after.tables.items():
            if self._options.tables is not None and name not in self._options.tables:
                continue
            writer = _TableWriter(self, table.layout, name)
            base = changed = removed = None
            num_rows = after.store.num_rows(name)
            if wants_base:
                base = writer.write_all()
                num_rows = sum(file.rows for file in base)
            if follows is not None and before is not None:
                changed, removed, difference = writer.write_changes(before)
                if not wants_base:
                    num_rows = _rows_of(follows, name) + difference
                self._changed = (self._changed or 0) + sum(file.rows for file in changed)
                self._removed = (self._removed or 0) + sum(file.rows for file in removed)
            tables.append(
                PublishedTable(
                    table=table_to_json(table),
                    dtype=self._options.dtype,
                    rows=num_rows,
                    base=base,
                    changed=changed,
                    removed=removed,
                )
            )
        return Version(
            number=self._number,
            kind=BASE if wants_base else DELTA,
            created=time.time(),
            lineage=lineage,
            predecessor=None
            if follows is None
            else {"version": follows.number, "sha256": follows.sha256},
            source=source_of(after, self._options),
            period=after.period,
            seed=after.store.seed,
            tables=tables,
            model=model,
            folder=self._folder,
        )

    def _check_tables(self) -> None:
        known = sorted(self._after.tables)
        for name in self._options.tables or ():
            if name not in known:
                raise ConfigError(f"publish: there is no table {name!r}; the store has {known}")

    def _write_model(self, follows: Version | None, wants_base: bool) -> PublishedModel | None:
        state = self._after.model
        if state is None:
            if self._options.graph is not None:
                raise ConfigError(
                    f"publish: checkpoint {text_of(self._after.info['id'])} holds no model to make "
                    "an ONNX graph of; publish one of `hps train`, give model=, or leave out onnx"
                )
            return None
        encoded = encode_model_files(state)
        before = None if follows is None else follows.model
        digest = hashlib.sha256(encoded.about).hexdigest()
        about = None if before is None or wants_base else before.about
        if about is None or about.sha256 != digest:
            about = self.write_bytes("model.json", encoded.about)
        return PublishedModel(
            about=about,
            weights=self.write_bytes(WEIGHTS_FILE, encoded.weights),
            tensors=encoded.tensors,
            graph=self._write_graph(state, encoded.tensors, before, wants_base),
        )

    def _write_graph(
        self, state: Json, tensors: list[Json], before: PublishedModel | None, wants_base: bool
    ) -> PublishedGraph | None:
        """The graph of the version before it, where that is still the model's: a delta names that
        file, and a base has a copy. Else it is exported."""
        maker = self._options.graph
        if maker is None:
            return None
        mark = maker.mark(state)
        kept = None if before is None else before.graph
        if before is not None and kept is not None and before.tensors == tensors:
            if kept.mark == mark and not wants_base:
                return kept
            if kept.mark == mark:
                with suppress(HpsError):  # a base does not need what was published before
                    data = read_checked(self._destination, kept.file)
                    return replace(kept, file=self.write_bytes(GRAPH_FILE, data))
        graph = maker.make(state, self._after.tables)
        graph.check_fits(tensors)
        file = self.write_bytes(GRAPH_FILE, graph.onnx)
        return PublishedGraph(file=file, **graph.described(mark))

    def write_bytes(self, name: str, data: bytes) -> StoredFile:
        """A file of the version."""
        with self.writing(name) as file:
            file.write(data)
        return file.stored()

    def writing(self, name: str) -> "_HashedFile":
        """A file of the version, to be written piece by piece."""
        return _HashedFile(self, self._destination, f"{self._folder}/{name}")

    @property
    def after(self) -> Source:
        """The checkpoint that is published."""
        return self._after

    @property
    def options(self) -> PublishOptions:
        """What is published of it."""
        return self._options

    def counts(self) -> tuple[int | None, int | None]:
        """Rows that changed and went."""
        return self._changed, self._removed

    def drop(self) -> None:
        """Removes what was written, as far as the destination lets it."""
        with suppress(StoreError):  # nobody sees it; `remove_old` tries again
            self._destination.remove(self._folder)


class _TableWriter:
    """Writes the rows of one table of a version."""

    def __init__(self, work: VersionWriter, layout: RowLayout, table: str) -> None:
        self._work = work
        self._layout = layout
        self._table = table
        self._codec = RowCodec(work.options.dtype, layout.dim)

    def write_all(self) -> list[StoredFile]:
        """Every servable row."""
        with _Files(self._work, f"rows-{self._table}", self._codec.row_bytes) as files:
            for images in self._work.after.store.scan(self._table, _PIECE_ROWS):
                kept = images[self._is_servable(self._work.after, images)]
                files.write(self._layout.keys(kept), self._encoded(kept))
        return files.stored

    def write_changes(self, before: Source) -> tuple[list[StoredFile], list[StoredFile], int]:
        """(files of rows that are new or others, of keys that went, rows more than before)."""
        difference = 0
        with (
            _Files(self._work, f"changed-{self._table}", self._codec.row_bytes) as changed,
            _Files(self._work, f"removed-{self._table}", None) as removed,
        ):
            for keys in self._candidates(before):
                old, was_there = self._served(before, keys)
                new, is_there = self._served(self._work.after, keys)
                is_other = is_there & ~(was_there & (old == new).all(axis=1))
                has_gone = was_there & ~is_there
                changed.write(keys[is_other], new[is_other])
                removed.write(keys[has_gone])
                difference += int(np.count_nonzero(is_there)) - int(np.count_nonzero(was_there))
        return changed.stored, removed.stored, difference

    def _candidates(self, before: Source) -> Iterator[Keys]:
        after, options = self._work.after, self._work.options
        is_scored = options.min_score is not None and self._table in after.rules
        if is_scored and before.period != after.period:  # any score may have fallen
            yield from self._all_keys(before)
            return
        found = after.keys_since(before, self._table)
        assert found is not None, "a checkpoint of other ranks"
        for first in range(0, len(found), _PIECE_ROWS):
            yield found[first : first + _PIECE_ROWS]

    def _all_keys(self, before: Source) -> Iterator[Keys]:
        """Of both checkpoints, each once."""
        after = self._work.after
        for images in after.store.scan(self._table, _PIECE_ROWS):
            yield self._layout.keys(images)
        for images in before.store.scan(self._table, _PIECE_ROWS):
            keys = self._layout.keys(images)
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
        return source.is_servable(self._table, images, self._work.options.min_score)

    def _encoded(self, images: Images) -> Images:
        weights = self._layout.weights(images)
        self._codec.check(self._layout.keys(images), weights, self._table)
        return self._codec.encode(weights)


class _Files:
    """Rows of one kind, in files of a bounded number of rows. A context manager."""

    def __init__(self, work: VersionWriter, name: str, row_bytes: int | None) -> None:
        self._work = work
        self._name = name
        self._row_bytes = row_bytes
        self._file: _HashedFile | None = None
        self._rows: RowWriter | None = None
        self.stored: list[StoredFile] = []

    def write(self, keys: Keys, rows: Images | None = None) -> None:
        """Appends to them; nothing to do without keys."""
        if not len(keys):
            return
        if self._rows is None:
            self._file = self._work.writing(f"{self._name}-{len(self.stored)}.arrow")
            self._rows = RowWriter(self._file.__enter__(), self._row_bytes)
        self._rows.write(keys, rows)
        if self._rows.num_rows >= _FILE_ROWS:
            self._finish(None)

    def _finish(self, error: BaseException | None) -> None:
        file, rows = self._file, self._rows
        self._file = self._rows = None
        if file is None or rows is None:
            return
        if error is None:
            rows.__exit__(None, None, None)
        file.__exit__(None if error is None else type(error), error, None)
        if error is None:
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


class _HashedFile:
    """A file whose length and sha256 are counted as it is written. A context manager."""

    def __init__(self, work: VersionWriter, destination: Destination, name: str) -> None:
        self._work = work
        self._name = name
        self._context = destination.write(name)
        self._stream: IO[bytes] | None = None
        self._sum = hashlib.sha256()
        self._num_bytes = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """As a stream does."""
        assert self._stream is not None, "outside of its context"
        view = memoryview(data).cast("B")
        self._sum.update(view)
        self._stream.write(view)
        self._num_bytes += len(view)
        return len(view)

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
        self._context.__exit__(kind, error, traceback)
        self._work.num_bytes += self._num_bytes


_SERVED = ("name", "dim", "initializer", "features", "shared_vocabulary")


def described(source: Source) -> list[Json]:
    """Tables, as far as they are served, and rules: versions of one lineage have the same."""
    found = []
    for name, table in sorted(source.tables.items()):
        fields = table_to_json(table)
        rules = source.rules.get(name)
        served = {field: fields[field] for field in _SERVED}
        found.append({**served, "rules": None if rules is None else rules.described()})
    return found


def source_of(after: Source, options: PublishOptions) -> Json:
    name = after.info["tag"] or after.info["id"]
    return {
        "store": after.identity,
        "lineage": after.lineage,
        "checkpoint": text_of(name),
        "created": after.info["created"],
        "options": options.described(),
        "tables": described(after),
    }


def _rows_of(version: Version, table: str) -> int:
    return next(one.rows for one in version.tables if one.name == table)
