"""DenseRules: what is made of the dense columns of a log, as the native transform is told it.

Above it: transform.py, measure.py, survey.py. Below it: csrc/reader/dense_rules.h, which does it.
Where the reader has taken logarithms already, bounds are compared as logarithms: the order is the
same.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.features.column import DENSE, Column, Scale
from hps.features.features import Features
from hps.features.raw import RawColumns, seed_of
from hps.reader.dense import MISSING, signed_log1p

Floats = NDArray[np.float32]
_NO_KEYS, _NO_BAGS = np.empty(0, np.int64), np.zeros(1, np.int64)


class DenseRules:
    """What is made of the dense columns of a log.

    Args:
        features: of the columns; what is to be measured is measured.
        raw: what the reader's batches hold.
        dropped: dense columns that are left out.
    """

    def __init__(self, features: Features, raw: RawColumns, dropped: Sequence[str] = ()) -> None:
        self._raw = raw
        self._columns = [
            features.column(name) or Column(name=name, kind=DENSE) for name in raw.dense
        ]
        self._kept = [
            (place, column)
            for place, column in enumerate(self._columns)
            if column.is_kept and column.name not in dropped
        ]
        self.names = tuple(column.name for _, column in self._kept)
        touches = any(
            column.clip is not None or column.log not in (None, raw.is_logged)
            for _, column in self._kept
        )
        is_given = any(column.missing is not None for _, column in self._kept)
        has_nan = any(column.name in raw.nan_columns for _, column in self._kept)
        self._finds_missing = is_given or has_nan or (touches and raw.format == "criteo")
        self.bucketed = tuple(
            place for place, column in enumerate(self._columns) if column.buckets is not None
        )

    @property
    def bucket_names(self) -> tuple[str, ...]:
        """Names of the columns that have buckets, in the order of the log."""
        return tuple(self._columns[place].name for place in self.bucketed)

    def add_to(self, native: _C.BatchTransform) -> None:
        """Tells a transform of the columns that a model has."""
        for place, column in self._kept:
            is_log = self._raw.is_logged and column.log is not False
            missing = None
            if self._finds_missing and column.missing is not None:
                missing = _number(column.missing, is_log)
            elif self._finds_missing:  # what has no number stays what readers make of it
                is_marked = column.log or (self._raw.is_logged and column.log is None)
                missing = MISSING if is_marked else 0.0
            scale = None
            if isinstance(column.normalise, Scale):
                scale = _float(column.normalise.mean), _float(1.0 / column.normalise.std)
            clip = None
            if column.clip is not None:
                low, high = (_number(bound, is_log) for bound in column.clip)
                clip = low, high
            native.add_dense(
                column=place,
                is_unlogged=self._raw.is_logged and column.log is False,
                is_rounded=self._raw.format == "criteo",
                missing=missing,
                is_filled=column.missing is not None,
                clip=clip,
                is_logged=not self._raw.is_logged and bool(column.log),
                scale=scale,
            )

    def add_bucket_to(self, native: _C.BatchTransform, name: str, table: int) -> None:
        """Tells a transform of a column's buckets.

        Args:
            name: one of `bucket_names`.
            table: the number of the one that gets the feature.
        """
        place = list(self._raw.dense).index(name)
        column = self._columns[place]
        bounds = self._bounds_of(column)
        missing = len(bounds) + 1
        if column.missing is not None:
            begins = np.array(column.buckets, np.float64)
            missing = int(np.searchsorted(begins, column.missing, side="right"))
        native.add_bucket(
            column=place, table=table, seed=seed_of(name), bounds=bounds.tolist(), missing=missing
        )

    def __call__(self, dense: Floats) -> Floats:
        """Dense values [B, columns of the log] -> [B, columns of the model]."""
        native = native_of(replace(self._raw, features=()), 0)
        self.add_to(native)
        values = np.ascontiguousarray(dense, np.float32)
        made, _ = native.apply(_NO_KEYS, _NO_BAGS, None, values, False, None)
        return values if made is None else made

    def _bounds_of(self, column: Column) -> Floats:
        """Where buckets begin, as the reader makes values: those from there on are not below."""
        assert column.buckets is not None
        # Those that are yet to be measured divide nothing.
        is_told = not isinstance(column.buckets, int)
        bounds = np.array(column.buckets if is_told else (), np.float64)
        if self._raw.format == "criteo" and self._raw.is_logged:
            # Numbers are whole: a bound between two of them is far from both.
            return signed_log1p(np.ceil(bounds) - 0.5)
        with np.errstate(over="ignore"):
            return signed_log1p(bounds) if self._raw.is_logged else bounds.astype(np.float32)


def native_of(raw: RawColumns, num_tables: int) -> _C.BatchTransform:
    """A transform of a log's batches that makes nothing yet."""
    is_marked = raw.format == "criteo"
    return _C.BatchTransform(len(raw.features), len(raw.dense), is_marked, num_tables)


def numbers_of(dense: Floats, raw: RawColumns) -> Floats:
    """Dense values, as the reader makes them, as the numbers of the log: NaN where they are
    missing. Those of criteo are whole: exact to a million, beyond it to six digits."""
    columns = [Column(name=name, kind=DENSE, log=False) for name in raw.dense]
    numbers = DenseRules(Features(columns=columns), raw)(dense)
    is_missing = dense == np.float32(MISSING) if raw.format == "criteo" else np.isnan(dense)
    return np.where(is_missing, np.float32(math.nan), numbers)


def _number(given: object, is_log: bool) -> float:
    """A number of the log as the reader would have made it."""
    assert isinstance(given, int | float)
    return float(signed_log1p(np.array([given]))[0]) if is_log else _float(given)


def _float(number: float) -> float:
    """As a float of 32 bits; infinite beyond its range."""
    with np.errstate(over="ignore"):
        return float(np.float64(number).astype(np.float32))
