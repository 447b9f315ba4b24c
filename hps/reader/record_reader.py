"""RecordReader: logs whose examples are rows of columns with names.

Above it: `open_reader`. Below it: records.py; parquet_files.py, csv_files.py or batch_files.py,
which read files.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from hps.common.json_text import JsonView
from hps.errors import ConfigError
from hps.reader.batch_files import BatchFiles
from hps.reader.batch_source import BatchSource
from hps.reader.column_use import BEGINS_WITH_ZERO, ENDS_IN_ZERO, GROUP, NOT_READ, WEIGHT, ColumnUse
from hps.reader.columns import (
    LogRows,
    is_dense,
    is_feature,
    is_group,
    is_nothing,
    is_number,
    is_text_feature,
    part_of,
)
from hps.reader.config import SIGNED_LOG1P, ReaderConfig
from hps.reader.csv_files import LEADING_ZEROS, POINT_ZERO, CsvFiles
from hps.reader.csv_words import header_advice
from hps.reader.parquet_files import ParquetFiles
from hps.reader.position import Cut, Position
from hps.reader.reader import Reader
from hps.reader.records import Piece, RecordColumns, sum_of_weights
from hps.reader.urls import LogFile
from hps.types import Batch

# Of a field's metadata, and why such a feature is text.
_MARKS = {
    LEADING_ZEROS: BEGINS_WITH_ZERO,
    POINT_ZERO: ENDS_IN_ZERO,
}


class RecordFiles(Protocol):
    """Files of a format."""

    def fields(self, path: LogFile) -> list[pa.Field]:
        """The columns of a file.

        Raises:
            StoreError: it cannot be read. DataError: it is not of the format.
        """

    def pieces(
        self, path: LogFile, columns: RecordColumns, first_row: int, like: LogFile
    ) -> Iterator[Piece]:
        """The rows of a file from one on; `like` is the file whose columns it must have.

        Raises:
            DataError: it lacks a column, or is damaged. ConfigError: it has fewer rows.
        """


class RecordReader(Reader):
    """A reader of a log whose examples are rows of parquet or csv files, or of record batches."""

    def _begin(self) -> None:
        self.has_labels = True
        named = [name for table in self._tables for name in table.features or ()]
        self._record_files: RecordFiles = (
            CsvFiles(self.config, named) if self.format == "csv" else ParquetFiles()
        )
        self._batch_files: RecordFiles = BatchFiles()
        for source in self._sources():
            source.check_epochs(self.config.epochs)
        self._dense: list[str] = []
        self._fields: list[pa.Field] = []  # of the first file
        self._weight: str | None = None
        self._group: str | None = None
        _ = self.schema  # shows a mistake at once

    def _header_advice(self, names: Sequence[str]) -> str:
        """Of csv, what may be wrong with its first line."""
        if self.format != "csv" or self._sources():
            return ""
        return header_advice(names)

    def _sources(self) -> list[BatchSource]:
        return [path for path in self.paths if isinstance(path, BatchSource)]

    def _files_for(self, path: LogFile) -> RecordFiles:
        return self._batch_files if isinstance(path, BatchSource) else self._record_files

    def load_state_dict(self, state: JsonView) -> None:
        """As every reader's; of record batches that come once, from their beginning alone."""
        if Position.from_dict(state) != Position():
            for source in self._sources():
                source.check_resumable()
        super().load_state_dict(state)

    def _find_features(self) -> tuple[Sequence[str] | None, int]:
        self._fields = self._files_for(self.paths[0]).fields(self.paths[0])
        names = [field.name for field in self._fields]
        self.has_labels = self.config.label in names
        if self.config.needs_labels and not self.has_labels:
            raise ConfigError(
                f"{self.paths[0]} has no column {self.config.label!r} for the label; it has "
                f"{names}; name that of the labels (label=, --label)"
                f"{self._header_advice(names)}"
            )
        self._weight = self._column_of("weight", is_number, "numbers")
        self._group = self._column_of("group", is_group, "whole numbers or text, one an example")
        unknown = [name for name in self.config.ignore if name not in names]
        if unknown:
            raise ConfigError(
                f"ReaderConfig.ignore={list(self.config.ignore)} (--ignore): {self.paths[0]} has "
                f"no columns {unknown}; it has {names}"
            )
        if self.config.label in self.config.ignore:
            raise ConfigError(
                f"ReaderConfig.ignore (--ignore) names {self.config.label!r}, the column of labels"
            )
        left_out = {self.config.label, self._weight, *self.config.ignore}
        others = [field for field in self._fields if field.name not in left_out]
        self._dense = self._find_dense(others)
        unknown = [name for name in self.config.nan_columns if name not in self._dense]
        if unknown:
            raise ConfigError(
                f"ReaderConfig.nan_columns={list(self.config.nan_columns)}: {unknown} are no dense "
                f"columns; there are {self._dense}"
            )
        others = [field for field in others if field.name not in self._dense]
        if any(table.features is None for table in self._tables):
            self._refuse_unread([field for field in others if not self._is_read(field)])
        return [field.name for field in others if self._is_read(field)], len(self._dense)

    def _is_read(self, field: pa.Field) -> bool:
        """True of a column whose values can be keys, and of one that a table names, in a first file
        that has no value of it."""
        if is_feature(field.type):
            return True
        names = (name for table in self._tables for name in table.features or ())
        return is_nothing(field.type) and field.name in names

    def _column_of(self, use: str, fits: Callable[[pa.DataType], bool], what: str) -> str | None:
        """The column of weights or groups; None where none is named, or it may be absent and is.

        Raises:
            ConfigError: there is none of that name, or its values do not fit.
        """
        name: str | None = getattr(self.config, use)
        if name is None:
            return None
        types = {field.name: field.type for field in self._fields}
        if name not in types:
            if not self.config.needs_labels:
                return None
            raise ConfigError(
                f"{self.paths[0]} has no column {name!r} for the {use}; it has {list(types)}; name "
                f"that of the {use}s ({use}=, --{use})"
            )
        if not fits(types[name]):
            raise ConfigError(
                f"{self.paths[0]}: column {name!r} is of type {types[name]}, and cannot be the "
                f"{use} of examples ({use}=, --{use}), which wants {what}"
            )
        return name

    def _find_dense(self, fields: Sequence[pa.Field]) -> list[str]:
        """Names of the columns of dense values, in their order."""
        types = {field.name: field.type for field in fields}
        if self.config.dense_columns is not None:
            given = self.config.dense_columns
            wrong = [
                name
                for name in given
                if name not in types
                or not (is_number(types[name]) or pa.types.is_null(types[name]))
            ]
            if wrong:
                raise ConfigError(
                    f"{self.paths[0]} has no columns of numbers {wrong}, which are dense values of "
                    f"the model (ReaderConfig.dense_columns); it has {list(types)}"
                )
            found = list(given)
        else:
            found = [name for name, kind in types.items() if is_dense(kind)]
        asked = self.config.dense
        if asked in (None, len(found)):
            return found
        floats = [name for name in found if pa.types.is_floating(types[name])]
        if asked == len(floats):  # decimals were none before
            return floats
        raise ConfigError(
            f"ReaderConfig.dense={asked}, but {self.paths[0]} has {len(found)} columns of floats "
            f"and decimals: {found}"
        )

    def _refuse_unread(self, fields: Sequence[pa.Field]) -> None:
        """Columns that can be nothing are left out only by name."""
        fields = [field for field in fields if not is_dense(field.type)]
        if fields:
            listed = ", ".join(f"{field.name!r} ({field.type})" for field in fields)
            flags = " ".join(f"--ignore {field.name}" for field in fields)
            raise ConfigError(
                f"{self.paths[0]}: neither features nor dense values can be made of the columns "
                f"{listed}; leave them out by name (ReaderConfig.ignore, {flags}), or write them "
                "as integers, text or floats"
            )

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Name of each column of the first file -> its type, in the file's order."""
        return {field.name: field.type for field in self._fields}

    def raw_rows(self, names: Sequence[str]) -> Generator[pa.RecordBatch, None, None]:
        """Columns as the files have them, of all examples of the first epoch, in its order.

        Values of csv are the bytes of their text, also of numbers. The reader's own place does not
        move.

        Raises:
            DataError, StoreError: as reading raises it.
        """
        columns = replace(self._record_columns(), kept=tuple(names))
        for path in self._order(0):
            for piece in self._files_for(path).pieces(path, columns, 0, self.paths[0]):
                yield piece.batch.select(list(names))

    @property
    def digit_texts(self) -> dict[str, str]:
        known = {name for names in self.schema.features().values() for name in names}
        return {
            name: why
            for mark, why in _MARKS.items()
            for name in self._marked(mark)
            if name in known
        }

    @property
    def pointed_wholes(self) -> list[str]:
        return [name for name in self._marked(POINT_ZERO) if name in self._dense]

    def _marked(self, mark: str) -> list[str]:
        return [one.name for one in self._fields if mark.encode() in (one.metadata or {})]

    @property
    def dense_columns(self) -> list[str] | None:
        return list(self._dense)

    @property
    def raw_columns(self) -> list[ColumnUse]:
        """Every column of the first file and what is made of it, in the file's order."""
        owner = {
            column.name: (table, column.seed == 0)
            for table, columns in self.schema.tables.items()
            for column in columns
        }
        return [self._use_of(field, owner.get(field.name)) for field in self._fields]

    def _use_of(self, field: pa.Field, owner: tuple[str, bool] | None) -> ColumnUse:
        name, kind = field.name, str(field.type)
        if name == self.config.label:
            return self._label(name, kind)
        if name == self._weight:
            return ColumnUse(name, WEIGHT, kind, "how much an example counts in the loss")
        if name in self._dense:
            null = "" if self.config.transform == SIGNED_LOG1P else "; null is 0"
            return self._dense_value(name, kind, null)
        if owner is not None:
            table, is_shared = owner
            is_text = is_text_feature(field.type)
            use = self._feature(name, kind, table, is_shared=is_shared, is_text=is_text)
            separator = (self.config.separators or {}).get(name)
            if separator is not None:
                return replace(use, why=f"{use.why}; values divided by {separator!r}")
            why = self.digit_texts.get(name)
            return use if why is None else replace(use, why=f"{use.why}; text, as {why}")
        if name == self._group:
            return ColumnUse(name, GROUP, kind, "the groups of gauc alone, no feature")
        if name in self.config.ignore or name in self.left_out:
            return self._unused(name, kind, "left out by name")
        if is_feature(field.type):
            return self._unused(name, kind, "no table has this feature")
        if is_number(field.type):
            return self._unused(name, kind, "not one of the dense columns")
        return self._unused(name, kind, NOT_READ)

    def _read(self, start: Position) -> Generator[Cut | None, None, None]:
        config = self.config.in_blocks()
        size = config.batch_size
        place = start
        for epoch in range(start.epoch, self.config.epochs):
            first = place
            waiting: list[LogRows] = []
            num_waiting = 0
            last = place  # after the last example that was read
            skipped = place.skipped
            for next_file in self._epoch_files(epoch, first.file):
                if next_file is None:
                    yield None
                    continue
                file, path = next_file
                row = first.offset if file == first.file else 0
                for rows, num_bad in self._read_file(path, row):
                    base, skipped = skipped, skipped + num_bad
                    begin = 0
                    while num_waiting + len(rows) - begin >= size:
                        end = begin + size - num_waiting
                        waiting.append(rows.slice(begin, end))
                        before = place
                        place = Position(
                            epoch=epoch,
                            file=file,
                            offset=int(rows.row_ends[end - 1]),
                            line=int(rows.row_ends[end - 1]),
                            examples=place.examples + size,
                            skipped=base + int(rows.num_skipped[end - 1]),
                        )
                        batch = self._make_batch(waiting, size)
                        waiting, num_waiting, begin = [], 0, end
                        yield batch, before, place
                        del batch
                    if begin < len(rows):
                        waiting.append(rows.slice(begin, len(rows)))
                        num_waiting += len(rows) - begin
                        last = Position(
                            epoch=epoch,
                            file=file,
                            offset=int(rows.row_ends[-1]),
                            line=int(rows.row_ends[-1]),
                            skipped=base + int(rows.num_skipped[-1]),
                        )
            if waiting and not config.drop_last:
                before, place = place, replace(last, examples=place.examples + num_waiting)
                batch = self._make_batch(waiting, num_waiting)
                waiting = []
                yield batch, before, place
                del batch
            place = Position(epoch=epoch + 1, examples=place.examples, skipped=skipped)
        self._position = place

    def _read_file(self, path: LogFile, first_row: int) -> Iterator[tuple[LogRows, int]]:
        """Pieces of a file from a row on, each with the number of its bad rows."""
        columns = self._record_columns()
        files = self._files_for(path)
        for piece in files.pieces(path, columns, first_row, self.paths[0]):
            yield columns.rows_of(piece, str(path))

    def _record_columns(self) -> RecordColumns:
        label = self.config.label if self.has_labels else None
        return RecordColumns(
            self.schema, self._dense, self.config, label, self._weight, self._group
        )

    def _make_batch(self, pieces: list[LogRows], num_examples: int) -> Batch:
        """The own part of a batch that the pieces make up."""
        global_weight = sum_of_weights(pieces)
        config = self.config.in_blocks()
        if config.part[1] > 1:
            pieces = part_of(pieces, *config.own_part(num_examples))
        return self._record_columns().batch_of(pieces, num_examples, global_weight)


def unread_columns(path: LogFile, config: ReaderConfig) -> dict[str, str]:
    """The columns of a parquet file of which nothing can be made, such as times -> their types.

    Args:
        config: those that it names are not among them.
    """
    named = {config.label, config.weight, config.group, *config.ignore}
    named.update(config.dense_columns or ())
    return {
        field.name: str(field.type)
        for field in ParquetFiles().fields(path)
        if field.name not in named and not is_feature(field.type) and not is_dense(field.type)
    }
