"""Measures what a features file leaves to the log: means, deviations, bounds of buckets.

Above it: open.py. Below it: dense.py, a reader of its own over the same files; the training's
reader stays where it is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hps.config import TableConfig
from hps.features.column import Column, Scale
from hps.features.dense import DenseRules, numbers_of
from hps.features.features import Features
from hps.features.raw import RawColumns
from hps.reader.open import open_reader
from hps.types import Batch

if TYPE_CHECKING:
    from hps.reader.reader import Reader

NUM_EXAMPLES = 10_000
LEAST_DEVIATION = 1e-30  # whose inverse float32 holds


def measured(features: Features, reader: "Reader", num_examples: int = NUM_EXAMPLES) -> Features:
    """The same features with numbers for all that is to be measured.

    Of a log without examples, or a column without a number: mean 0, deviation 1, one bucket. A
    column of one number alone has deviation 1.

    Args:
        features: as a file has them.
        reader: of the log; it is not moved. All of the log counts, also where the reader yields one
            rank's part.
        num_examples: that are looked at, the log's first.
    """
    asked = [column for column in features.columns if column.normalise is True]
    divided = [column for column in features.columns if isinstance(column.buckets, int)]
    if not asked and not divided:
        return features
    raw = RawColumns.of(reader)
    batch = first_examples(reader, num_examples)
    dense = np.empty((0, len(raw.dense)), np.float32) if batch is None else batch.dense.numpy()
    numbers = dict(zip(raw.dense, numbers_of(dense, raw).T, strict=True))
    features = _each(
        features,
        [
            _with_bounds(column, numbers[column.name])
            for column in divided
            if column.name in numbers
        ],
    )
    plain = _each(
        features,
        [
            replace(column, normalise=None)
            for column in features.columns
            if column.normalise is True
        ],
    )
    rules = DenseRules(plain, raw)
    values = rules(dense).astype(np.float64)
    scales = {name: _scale_of(values[:, place]) for place, name in enumerate(rules.names)}
    return _each(
        features,
        [
            replace(column, normalise=scales.get(column.name, Scale(0.0, 1.0)))
            for column in features.columns
            if column.normalise is True
        ],
    )


def first_examples(reader: "Reader", num_examples: int, on_error: str = "skip") -> Batch | None:
    """A log's first examples as the reader makes them before a transform; None of an empty log.

    Bad lines are passed over, unless `on_error` is "raise": the reader says what is wrong with them
    when it comes to them.
    """
    config = replace(
        reader.config,
        dense=reader.schema.num_dense,
        epochs=1,
        drop_last=False,
        part=(0, 1),
        shuffle_buffer=0,
        on_error=on_error,
        batch_size=num_examples,
    )
    tables = [
        TableConfig(name=name, dim=1, features=list(names) or None)
        for name, names in reader.schema.features().items()
    ]
    ahead = open_reader(reader.paths, tables=tables, config=config)
    batch = next(ahead, None)
    ahead.close()
    return batch


def _each(features: Features, changed: Sequence[Column]) -> Features:
    """The features with some columns in the place of those of their names."""
    by_name = {column.name: column for column in changed}
    columns = [by_name.get(column.name, column) for column in features.columns]
    return replace(features, columns=columns)


def _scale_of(values: NDArray[np.float64]) -> Scale:
    if not len(values):
        return Scale(0.0, 1.0)
    mean, std = float(values.mean()), float(values.std())
    is_one = values.min() == values.max()  # whatever rounding makes of its deviation
    return Scale(mean, 1.0 if is_one or std < LEAST_DEVIATION else std)


def _with_bounds(column: Column, numbers: NDArray[np.float32]) -> Column:
    """The column with bounds between which equally many examples lie, as far as their numbers can
    be told apart; `numbers` are the log's, NaN where they are missing."""
    assert isinstance(column.buckets, int)
    numbers = numbers[~np.isnan(numbers)]
    if not len(numbers):
        return replace(column, buckets=())
    shares = np.arange(1, column.buckets) / column.buckets
    bounds = np.unique(np.quantile(numbers.astype(np.float64), shares, method="higher"))
    return replace(column, buckets=tuple(bounds[bounds > numbers.min()].tolist()))
