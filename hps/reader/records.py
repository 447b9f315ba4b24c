"""RecordColumns: from arrow's record batches to labels, dense values and keys.

Above it: the parquet reader, `hps.Model`. Below it: pyarrow, hps/reader/columns.py. What is read to
train and what is scored pass through here, so that a value is the same key in both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from hps.errors import DataError
from hps.reader.columns import (
    LogRows,
    is_feature,
    is_number,
    is_text_feature,
    to_floats,
    to_keys,
    without_views,
)
from hps.reader.config import LOG1P, SIGNED_LOG1P, ReaderConfig
from hps.reader.dense import signed_log1p
from hps.reader.schema import Schema
from hps.types import Batch, Ids


@dataclass(frozen=True)
class RecordColumns:
    """Which columns are what, and by which rules.

    Args:
        schema: the features of each table.
        dense: names of the columns of dense values, in their order.
        config: the rules of keys and dense values; what becomes of a bad row.
        label: the column of labels; None reads all labels as 0.
    """

    schema: Schema
    dense: Sequence[str]
    config: ReaderConfig
    label: str | None

    def names(self) -> list[str]:
        """Every column that is read."""
        features = [column.name for columns in self.schema.tables.values() for column in columns]
        return [*([] if self.label is None else [self.label]), *self.dense, *features]

    def check(self, where: str, schema: pa.Schema, like: str) -> None:
        """DataError unless a schema has the columns, in types that are read alike.

        Args:
            where: that is, in words.
            like: what it does not fit, in words.
        """
        wanted: dict[str, Callable[[pa.DataType], bool] | None] = {}
        if self.label is not None:
            wanted[self.label] = None
        wanted.update(dict.fromkeys(self.dense, is_number))
        for columns in self.schema.tables.values():
            wanted.update(dict.fromkeys((column.name for column in columns), is_feature))
        for name, fits in wanted.items():
            index = schema.get_field_index(name)
            if index < 0:
                raise DataError(f"{where} has no column {name!r} (or more than one of this name)")
            if fits is not None and not fits(schema.field(index).type):
                raise DataError(
                    f"{where}: column {name!r} is of type {schema.field(index).type}, "
                    f"which does not fit that of {like}"
                )

    def rows_of(self, piece: pa.RecordBatch, where: str, first_row: int) -> tuple[LogRows, int]:
        """The rows of a piece, and how many of them were bad and left out.

        Args:
            piece: with all of the columns.
            where: it is from, in words.
            first_row: rows before it.

        Raises:
            DataError: a bad row, unless they are skipped.
        """
        piece = without_views(piece)
        columns = dict(zip(piece.schema.names, piece.columns, strict=True))
        labels = self._labels(columns, len(piece), where)
        dense = np.empty((len(piece), len(self.dense)), np.float32)
        with np.errstate(over="ignore"):
            for idx, name in enumerate(self.dense):
                dense[:, idx] = self._dense_values(columns[name])
        is_label = (labels == 0) | (labels == 1) | (labels == -1)
        good = is_label & np.isfinite(dense).all(axis=1)
        if not good.all():
            if self.config.on_error == "raise":
                self._raise_bad_row(where, int(np.argmin(good)), first_row, (labels, dense))
            piece = piece.filter(pa.array(good))
            columns = dict(zip(piece.schema.names, piece.columns, strict=True))
        keys = [
            to_keys(self._feature(columns[column.name]), column.seed, self.config.hashes_numbers)
            for table in self.schema.tables.values()
            for column in table
        ]
        rows = LogRows(
            labels=(labels[good] == 1).astype(np.float32),
            dense=dense[good],
            keys=[column for column, _ in keys],
            offsets=[offsets for _, offsets in keys],
            row_ends=first_row + 1 + np.flatnonzero(good),
            num_skipped=np.cumsum(~good)[good],
        )
        return rows, int(len(good) - good.sum())

    def batch_of(self, pieces: Sequence[LogRows], num_examples: int) -> Batch:
        """The batch that pieces make up; `num_examples` are those of all ranks."""
        features = {}
        column = 0
        for name, columns in self.schema.tables.items():
            keys: list[NDArray[np.uint64]] = []
            counts: list[NDArray[np.int64]] = []
            for idx in range(column, column + len(columns)):
                keys.extend(piece.keys[idx] for piece in pieces)
                counts.extend(np.diff(piece.offsets[idx]) for piece in pieces)
            column += len(columns)
            offsets = np.zeros(sum(map(len, counts)) + 1, np.int64)
            np.cumsum(np.concatenate([np.empty(0, np.int64), *counts]), out=offsets[1:])
            flat = np.concatenate([np.empty(0, np.uint64), *keys]).view(np.int64)
            features[name] = Ids(torch.from_numpy(flat), torch.from_numpy(offsets))
        dense = np.concatenate([piece.dense for piece in pieces])
        labels = np.concatenate([piece.labels for piece in pieces])
        return Batch(
            features,
            torch.from_numpy(dense),
            torch.from_numpy(labels),
            global_size=num_examples,
        )

    def _labels(
        self, columns: dict[str, pa.Array], num_rows: int, where: str
    ) -> NDArray[np.float64]:
        if self.label is None:
            return np.zeros(num_rows)
        try:
            return to_floats(columns[self.label], np.nan)
        except pa.ArrowException as error:
            raise DataError(f"{where}: column {self.label!r} cannot be a label: {error}") from error

    def _dense_values(self, column: pa.Array) -> NDArray[np.float64] | NDArray[np.float32]:
        values = to_floats(column, 0.0)
        if self.config.transform == SIGNED_LOG1P:
            return signed_log1p(values, column.is_null().to_numpy(zero_copy_only=False))
        return np.log1p(np.maximum(values, 0.0)) if self.config.transform == LOG1P else values

    def _feature(self, column: pa.Array) -> pa.Array:
        """As it is; of criteo an empty category is text as any other."""
        if self.config.format != "criteo" or not is_text_feature(column.type):
            return column
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return pc.fill_null(column, "" if pa.types.is_unicode(column.type) else b"")

    def _raise_bad_row(
        self,
        where: str,
        row: int,
        first_row: int,
        values: tuple[NDArray[np.float64], NDArray[np.float32]],
    ) -> None:
        labels, dense = values
        bad = np.flatnonzero(~np.isfinite(dense[row]))
        if bad.size:
            reason = (
                f"column {self.dense[bad[0]]!r} holds {dense[row, bad[0]]}, not a finite number"
            )
        else:
            reason = f"label {labels[row]} in column {self.label!r} is not 0, 1 or -1"
        raise DataError(
            f"{where}, row {first_row + row + 1}: {reason}; "
            "correct the row, or skip bad rows with on_error='skip' (--on-error skip)"
        )
