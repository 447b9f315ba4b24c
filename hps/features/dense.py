"""DenseTransform: from the dense columns of a log to those of a model, and to numbers of buckets.

Above it: transform.py, measure.py. Below it: numpy, the native scaling. All columns of a batch
go at once. Where the reader has taken logarithms already, bounds are compared as logarithms: the
order is the same.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.features.column import DENSE, Column, Scale
from hps.features.features import Features
from hps.features.raw import RawColumns
from hps.reader.dense import MISSING, signed_log1p

Floats = NDArray[np.float32]


class DenseTransform:
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
        self._places = [
            place
            for place, column in enumerate(self._columns)
            if column.is_kept and column.name not in dropped
        ]
        kept = [self._columns[place] for place in self._places]
        self.names = tuple(column.name for column in kept)
        self._unlogged = _mask(raw.is_logged and column.log is False for column in kept)
        self._logged = _mask(not raw.is_logged and bool(column.log) for column in kept)
        in_logs = [raw.is_logged and column.log is not False for column in kept]
        self._fills = _row(
            0.0 if column.missing is None else _number(column.missing, is_log)
            for column, is_log in zip(kept, in_logs, strict=True)
        )
        self._is_filled = _mask(column.missing is not None for column in kept)
        # What is missing and has no number stays what readers make of it.
        self._ends = _row(
            MISSING if column.log or (raw.is_logged and column.log is None) else 0.0
            for column in kept
        )
        clips = [column.clip or (-math.inf, math.inf) for column in kept]
        bounds = [
            [_number(one, is_log) for one in clip]
            for clip, is_log in zip(clips, in_logs, strict=True)
        ]
        self._lows, self._highs = (_row(bound[side] for bound in bounds) for side in (0, 1))
        self._clips = any(column.clip is not None for column in kept)
        scales = [
            column.normalise if isinstance(column.normalise, Scale) else Scale(0.0, 1.0)
            for column in kept
        ]
        self._scales = any(isinstance(column.normalise, Scale) for column in kept)
        self._means = _row(scale.mean for scale in scales)
        self._factors = _row(1.0 / scale.std for scale in scales)
        touches = self._clips or bool(self._unlogged.any()) or bool(self._logged.any())
        is_given = any(column.missing is not None for column in kept)
        has_nan = any(column.name in raw.nan_columns for column in kept)
        self._finds_missing = is_given or has_nan or (touches and raw.format == "criteo")
        self._has_steps = self._finds_missing or touches
        self.bucketed = tuple(
            place for place, column in enumerate(self._columns) if column.buckets is not None
        )
        self._bounds = [self._bounds_of(self._columns[place]) for place in self.bucketed]

    @property
    def bucket_names(self) -> tuple[str, ...]:
        """Names of the columns that have buckets, in the order of the log."""
        return tuple(self._columns[place].name for place in self.bucketed)

    def __call__(self, dense: Floats) -> Floats:
        """Dense values [B, columns of the log] -> [B, columns of the model]; a copy, or the same
        where nothing is to be done."""
        values = np.ascontiguousarray(dense, np.float32)
        if self._places != list(range(dense.shape[1])):
            values = np.take(values, self._places, axis=1)
        if self._has_steps:
            values = self._stepped(values.copy() if np.may_share_memory(values, dense) else values)
        if self._scales:
            scaled = np.empty_like(values)
            _C.scale_rows(values, self._means, self._factors, scaled)
            return scaled
        return values

    def _stepped(self, values: Floats) -> Floats:
        """All that comes before the scaling, in place."""
        with np.errstate(over="ignore", invalid="ignore"):
            missing = self.is_missing(values) if self._finds_missing else None
            if self._unlogged.any():
                values[:, self._unlogged] = self.unlogged(values[:, self._unlogged])
            if missing is not None:
                np.copyto(values, self._fills, where=missing & self._is_filled)
            if self._clips:
                np.clip(values, self._lows, self._highs, out=values)
            if self._logged.any():
                values[:, self._logged] = signed_log1p(values[:, self._logged])
            if missing is not None:
                np.copyto(values, self._ends, where=missing & ~self._is_filled)
        return values

    def is_missing(self, values: Floats) -> NDArray[np.bool_]:
        """Which dense values, as the reader makes them, stand for none."""
        return values == np.float32(MISSING) if self._raw.format == "criteo" else np.isnan(values)

    def unlogged(self, values: Floats) -> Floats:
        """The numbers of the log, of which the reader has taken logarithms. Those of criteo are
        whole: exact to a million, beyond it to six digits."""
        wide = np.asarray(values, np.float64)
        numbers = np.copysign(np.expm1(np.abs(wide)), wide)
        return (np.rint(numbers) if self._raw.format == "criteo" else numbers).astype(np.float32)

    def bucket_numbers(self, dense: Floats) -> list[NDArray[np.int64]]:
        """Of each column with buckets, the bucket of each example: int64 [B]. The number after the
        last stands for missing."""
        numbers = []
        for place, bounds in zip(self.bucketed, self._bounds, strict=True):
            column = self._columns[place]
            values = np.ascontiguousarray(dense[:, place])
            missing = self.is_missing(values)
            found = np.searchsorted(bounds, values, side="right").astype(np.int64)
            if missing.any():
                instead = len(bounds) + 1
                if column.missing is not None:
                    begins = np.array(column.buckets, np.float64)
                    instead = int(np.searchsorted(begins, column.missing, side="right"))
                found[missing] = instead
            numbers.append(found)
        return numbers

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


def _number(given: object, is_log: bool) -> float:
    """A number of the log as the reader would have made it."""
    assert isinstance(given, int | float)
    return float(signed_log1p(np.array([given]))[0]) if is_log else float(given)


def _mask(values: Iterable[bool]) -> NDArray[np.bool_]:
    return np.array(list(values), bool)


def _row(values: Iterable[float]) -> Floats:
    with np.errstate(over="ignore"):
        return np.array(list(values), np.float64).astype(np.float32)
