"""RecordColumns: from arrow's record batches to labels, dense values and keys.

Above it: the parquet reader, `hps.Model`. Below it: pyarrow, hps/reader/columns.py. What is read to
train and what is scored pass through here, so that a value is the same key in both.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from hps import _C
from hps.errors import DataError
from hps.reader.columns import (
    NONE,
    NULL,
    NULL_OR_EMPTY,
    LogRows,
    is_feature,
    is_group,
    is_nothing,
    is_number,
    keys_of_columns,
    one_each,
    split_values,
    to_floats,
    to_groups,
    without_views,
)
from hps.reader.config import LOG1P, SIGNED_LOG1P, ReaderConfig
from hps.reader.dense import signed_log1p
from hps.reader.keys import seed_of
from hps.reader.sample import choose_rows, hash_rows, sample_rule
from hps.reader.schema import Schema
from hps.types import Batch, Ids

_MAX_WEIGHT = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Piece:
    """Some rows of a file.

    Args:
        batch: of all columns that are read.
        row_ends: int64 [n]; rows of the file up to and including each.
        num_bad: int64 [n]; rows that are no rows of the batch and were bad, before each.
        total_bad: those before all, and after the last.
        within: of rows that came in record batches: the number of theirs, from 1, and the rows
            before it.
        place_of: of a file whose rows may take several lines: where a row is, in words, which may
            take reading the file.
    """

    batch: pa.RecordBatch
    row_ends: NDArray[np.int64]
    num_bad: NDArray[np.int64]
    total_bad: int
    within: tuple[int, int] | None = None
    place_of: Callable[[int], str] | None = None

    def row_in_words(self, place: int) -> str:
        """Where one of its rows is."""
        row = int(self.row_ends[place])
        if self.place_of is not None:
            return self.place_of(row)
        if self.within is None:
            return f"row {row}"
        number, before = self.within
        return f"batch {number}, row {row - before}"

    @staticmethod
    def whole(batch: pa.RecordBatch, first_row: int) -> "Piece":
        """Of rows one after the other; `first_row` rows come before it."""
        ends = np.arange(first_row + 1, first_row + 1 + len(batch))
        return Piece(batch, ends, np.zeros(len(batch), np.int64), 0)

    @staticmethod
    def bad(types: Mapping[str, pa.DataType], num_rows: int) -> "Piece":
        """Of bad rows alone."""
        nothing = np.empty(0, np.int64)
        schema = pa.schema(list(types.items()))
        return Piece(pa.RecordBatch.from_pylist([], schema), nothing, nothing, num_rows)


@dataclass(frozen=True)
class RecordColumns:
    """Which columns are what, and by which rules.

    Args:
        schema: the features of each table.
        dense: names of the columns of dense values, in their order.
        config: the rules of keys and dense values; what becomes of a bad row.
        label: the column of labels; None reads all labels as 0.
        weight: the column of weights; None for none.
        group: the column of groups; None for none.
        kept: columns that are read and left as they are.
    """

    schema: Schema
    dense: Sequence[str]
    config: ReaderConfig
    label: str | None
    weight: str | None = None
    group: str | None = None
    kept: Sequence[str] = ()

    def names(self) -> list[str]:
        """Every column that is read, once."""
        features = [column.name for columns in self.schema.tables.values() for column in columns]
        names = [self.label, *self.dense, *features, self.weight, self.group, *self.kept]
        return list(dict.fromkeys(name for name in names if name is not None))

    def numbers(self) -> list[str]:
        """Those of them that are read as numbers."""
        return [*self.dense, *(name for name in (self.label, self.weight) if name is not None)]

    def check(self, where: str, schema: pa.Schema, like: str) -> None:
        """DataError unless a schema has the columns, in types that are read alike; the type null,
        also of lists, is read as missing values, and as lists without any.

        Args:
            where: that is, in words.
            like: what it does not fit, in words.
        """
        wanted: dict[str, Callable[[pa.DataType], bool] | None] = dict.fromkeys(self.kept)
        if self.label is not None:
            wanted[self.label] = None
        wanted.update(dict.fromkeys(self.dense, _fits_dense))
        for columns in self.schema.tables.values():
            wanted.update(dict.fromkeys((column.name for column in columns), _fits_feature))
        if self.weight is not None:
            wanted[self.weight] = is_number
        if self.group is not None:
            wanted[self.group] = is_group
        types = dict(zip(schema.names, schema.types, strict=True))
        is_clear = len(types) == len(schema.names)
        for name, fits in wanted.items():
            if name not in types or (not is_clear and schema.names.count(name) > 1):
                raise DataError(f"{where} has no column {name!r} (or more than one of this name)")
            if fits is not None and not fits(types[name]):
                raise DataError(
                    f"{where}: column {name!r} is of type {types[name]}, "
                    f"which does not fit that of {like}"
                )

    def rows_of(self, piece: Piece, where: str) -> tuple[LogRows, int]:
        """The rows of a piece that are kept, and how many bad ones of these were left out.

        Args:
            where: it is from, in words.

        Raises:
            DataError: a bad row that is kept, unless they are skipped.
        """
        batch = without_views(piece.batch)
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        labels = self._labels(columns, len(batch), where)
        dense = self._dense_values(columns, len(batch))
        weights = self._weights(columns)
        is_label = (labels == 0) | (labels == 1) | (labels == -1)
        good = is_label & self.are_numbers(dense).all(axis=1)
        if weights is not None:
            good &= (weights >= 0) & (weights <= _MAX_WEIGHT)
        missing = self.missing_rule()
        members = [column for table in self.schema.tables.values() for column in table]
        separators = self.config.separators or {}
        for name in {column.name for column in members}:
            if name in separators:
                columns[name] = split_values(columns[name], separators[name])
            elif self.config.format == "csv":
                columns[name] = self._one_each(columns[name], name, piece, where)
        keys = keys_of_columns(
            [(columns[column.name], column.seed, missing) for column in members],
            self.config.hashes_numbers,
        )
        rows = LogRows(
            labels=(labels == 1).astype(np.float32),
            dense=dense,
            keys=[column for column, _ in keys],
            offsets=[offsets for _, offsets in keys],
            row_ends=piece.row_ends,
            num_skipped=piece.num_bad,
            weights=None if weights is None else np.where(good, weights, 0).astype(np.float32),
            groups=None
            if self.group is None
            else to_groups(columns[self.group], seed_of(self.group)),
        )
        kept = self._choose(rows, labels)
        is_bad = kept & ~good
        if is_bad.any():
            if self.config.on_error == "raise":
                bad = int(np.argmax(is_bad))
                weight = None if weights is None else float(weights[bad])
                raise self._bad_row(
                    f"{where}, {piece.row_in_words(bad)}", labels[bad], dense[bad], weight
                )
            rows = replace(rows, num_skipped=piece.num_bad + np.cumsum(is_bad))
        taken = kept & good
        if not taken.all():
            rows = rows.only(taken)
        return rows, int(is_bad.sum()) + piece.total_bad

    def _one_each(self, column: pa.Array, name: str, piece: Piece, where: str) -> pa.Array:
        """A column of which each example has one value at most, as in a csv file."""
        plain, several = one_each(column)
        if several is not None:
            raise DataError(
                f"{where}, {piece.row_in_words(several)}: column {name!r} holds "
                f"{str(column[several].as_py())[:60]}, and a csv log has one value an example; "
                "give that, train on parquet or record batches, whose columns may hold lists, or "
                "say in a features file what divides the column's text (separator)"
            )
        return plain

    def _choose(self, rows: LogRows, labels: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which rows the reader's sample keeps, good or bad."""
        if not self.config.is_sample:
            return np.ones(len(rows), np.bool_)
        names = [column.name for table in self.schema.tables.values() for column in table]
        hashes = hash_rows(names, rows.keys, rows.offsets, rows.dense)
        return choose_rows(sample_rule(self.config), hashes, (labels == 0) | (labels == -1))

    def batch_of(
        self, pieces: Sequence[LogRows], num_examples: int, global_weight: float = -1.0
    ) -> Batch:
        """The batch that pieces make up; `num_examples` and the sum of weights are those of all
        ranks."""
        features = {}
        column = 0
        for name, columns in self.schema.tables.items():
            places = range(column, column + len(columns))
            column += len(columns)
            keys, offsets = _C.join_bags(
                [(piece.keys[idx], piece.offsets[idx]) for idx in places for piece in pieces]
            )
            features[name] = Ids(torch.from_numpy(keys), torch.from_numpy(offsets))
        dense = np.concatenate([piece.dense for piece in pieces])
        labels = np.concatenate([piece.labels for piece in pieces])
        return Batch(
            features,
            torch.from_numpy(dense),
            torch.from_numpy(labels),
            global_size=num_examples,
            weights=_joined([piece.weights for piece in pieces]),
            groups=_joined([piece.groups for piece in pieces]),
            global_weight=global_weight,
        )

    def _labels(
        self, columns: dict[str, pa.Array], num_rows: int, where: str
    ) -> NDArray[np.float64]:
        if self.label is None:
            return np.zeros(num_rows)
        try:
            return to_floats(columns[self.label], np.nan)
        except pa.ArrowException as error:
            raise DataError(
                f"{where}: column {self.label!r} cannot be a label: {error}; a label is 0, 1 or "
                "-1, or a boolean; write it so"
            ) from error

    def _weights(self, columns: dict[str, pa.Array]) -> NDArray[np.float64] | None:
        """As they are; a null is not a number."""
        return None if self.weight is None else to_floats(columns[self.weight], np.nan)

    def are_numbers(self, dense: NDArray[np.float32]) -> NDArray[np.bool_]:
        """Which values a good row may hold: finite ones, and NaN where that is a missing one."""
        are_good = np.isfinite(dense)
        for name in self.config.nan_columns:
            place = list(self.dense).index(name)
            are_good[:, place] |= np.isnan(dense[:, place])
        return are_good

    def _dense_values(self, columns: dict[str, pa.Array], num_rows: int) -> NDArray[np.float32]:
        """Those of the rows, float32 [rows, number of dense]."""
        values = np.empty((num_rows, len(self.dense)))
        missing = None
        for idx, name in enumerate(self.dense):
            column = columns[name]
            keeps_nan = name in self.config.nan_columns
            values[:, idx] = to_floats(column, np.nan if keeps_nan else 0.0)
            if not keeps_nan and column.null_count:
                missing = np.zeros(values.shape, np.bool_) if missing is None else missing
                missing[:, idx] = column.is_null().to_numpy(zero_copy_only=False)
        return self.as_dense(values, missing)

    def as_dense(
        self, values: NDArray[np.float64], missing: NDArray[np.bool_] | None
    ) -> NDArray[np.float32]:
        """Numbers of a log as dense values, by the rule of the reader.

        Args:
            values: float64 [rows, number of dense]; 0 where they are missing.
            missing: bool of the same shape; None where none is.
        """
        with np.errstate(over="ignore"):
            if self.config.transform == SIGNED_LOG1P:
                return signed_log1p(values, missing)
            if self.config.transform == LOG1P:
                values = np.log1p(np.maximum(values, 0.0))
            return values.astype(np.float32)

    def missing_rule(self) -> int:
        """Which text has no key: of criteo an empty category is text as any other, of csv it is
        missing."""
        return {"criteo": NONE, "csv": NULL_OR_EMPTY}.get(self.config.format or "", NULL)

    def _bad_row(
        self, where: str, label: float, dense: NDArray[np.float32], weight: float | None
    ) -> DataError:
        bad = np.flatnonzero(~self.are_numbers(dense[np.newaxis])[0])
        if bad.size:
            reason = f"column {self.dense[bad[0]]!r} holds {dense[bad[0]]}, not a finite number"
        elif label not in (0, 1, -1):
            reason = f"the label in column {self.label!r} is missing"
            if not math.isnan(label):
                reason = f"label {label} in column {self.label!r} is not 0, 1 or -1"
        else:
            is_missing = weight is None or math.isnan(weight)
            said = "is missing or no number" if is_missing else f"is {weight}"
            reason = (
                f"the weight in column {self.weight!r} {said}; it must be from 0 to "
                f"{_MAX_WEIGHT:.4g}"
            )
        return DataError(f"{where}: {reason}; {self.config.advice('row')}")


def _fits_feature(kind: pa.DataType) -> bool:
    return is_feature(kind) or is_nothing(kind)


def _fits_dense(kind: pa.DataType) -> bool:
    return is_number(kind) or bool(pa.types.is_null(kind))


def sum_of_weights(pieces: Sequence[LogRows]) -> float:
    """Of the rows of all pieces, rounded once: the same wherever one piece ends and the next
    begins; the number of rows where they have no weights."""
    weights = [piece.weights for piece in pieces if piece.weights is not None]
    if not weights:
        return float(sum(map(len, pieces)))
    return math.fsum(np.concatenate(weights).tolist())


def _joined(parts: Sequence[NDArray[Any] | None]) -> torch.Tensor | None:
    """One tensor of all parts; None where there are none."""
    present = [part for part in parts if part is not None]
    return torch.from_numpy(np.concatenate(present)) if present else None
