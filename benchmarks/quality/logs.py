"""Logs to measure models on: named columns, a split by seed, and the forms that contenders read.

Above it: contenders.py, quality_bench.py. Below it: public.py, generated.py, which make them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LABEL = "label"
PARTS = ("train", "valid", "test")
SHARES = (0.8, 0.1, 0.1)
Array = np.ndarray[Any, np.dtype[Any]]
Codes = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Log:
    """Examples with a label, and how they are split.

    Args:
        name: of the data set.
        table: the column `label` of 0 and 1; features of strings or integers; bags of them as
            lists; dense columns of float32, brought to scale.
        history: a bag in the order of time, for models of sequences alone; None for none.
        target: the feature that the items of the history are of.
        is_ordered: the rows are in the order of time, and split there; else drawn by the seed.
        num_test: the last rows are the test part, the rest is split 8 : 1; None: as SHARES.
        best: AUC of the planted model on the test part; None where nobody knows it.
    """

    name: str
    table: pa.Table
    history: str | None = None
    target: str | None = None
    is_ordered: bool = False
    num_test: int | None = None
    best: float | None = None

    def columns(self, kind: str) -> list[str]:
        """Names of the "features", "bags" or "dense" columns; the history is none of them."""
        is_kind: dict[str, Callable[[pa.DataType], bool]] = {
            "dense": pa.types.is_floating,
            "bags": pa.types.is_list,
            "features": lambda made: not pa.types.is_floating(made) and not pa.types.is_list(made),
        }
        left_out = (LABEL, self.history)
        fields = [field for field in self.table.schema if field.name not in left_out]
        return [field.name for field in fields if is_kind[kind](field.type)]

    def with_rows(self, rows: Array) -> "Log":
        """The same log of some of its rows, int64, in their order."""
        return replace(self, table=self.table.take(rows))

    def split(self, seed: int) -> dict[str, pa.Table]:
        """Train, valid and test; equal seeds give equal parts, each in an order of its own.

        What is ordered by time keeps its parts whatever the seed; the order of train is drawn.
        """
        random = np.random.default_rng([seed, len(self.table)])
        count = len(self.table)
        places = np.arange(count)
        if not self.is_ordered:
            fixed = 0 if self.num_test is None else self.num_test
            places[: count - fixed] = random.permutation(count - fixed)
        ends = [int(SHARES[0] * count), int((SHARES[0] + SHARES[1]) * count)]
        if self.num_test is not None:
            ends = [(count - self.num_test) * 8 // 9, count - self.num_test]
        train, valid, test = np.split(places, ends)
        if self.is_ordered:
            train = random.permutation(train)
        return {
            part: self.table.take(rows)
            for part, rows in zip(PARTS, (train, valid, test), strict=True)
        }


def in_epochs(train: pa.Table, epochs: int, seed: int) -> pa.Table:
    """The examples as often as there are epochs, each epoch in another order drawn by the seed.

    All contenders read this, in this order, in one pass: none has an order of its own.
    """
    random = np.random.default_rng([seed, epochs, 1])
    orders = [random.permutation(len(train)) for _ in range(epochs)]
    return train.take(np.concatenate(orders))


def write_parts(parts: Mapping[str, pa.Table], folder: Path) -> dict[str, Path]:
    """Writes parquet files as hps reads them."""
    paths = {part: folder / f"{part}.parquet" for part in parts}
    for part, table in parts.items():
        pq.write_table(table, paths[part])
    return paths


def labels_of(table: pa.Table) -> Array:
    """float32 [B]."""
    return table[LABEL].to_numpy().astype(np.float32)


@dataclass(frozen=True)
class Vocabulary:
    """Whole numbers for the values of a column, those seen in training from 1 on; 0 is any other.

    Args:
        values: distinct ones, sorted.
    """

    values: Array

    @classmethod
    def of(cls, columns: Sequence[pa.ChunkedArray]) -> "Vocabulary":
        """Of all values of columns that share it; lists are taken apart."""
        flat = [np.asarray(_flat(column).to_numpy(zero_copy_only=False)) for column in columns]
        return cls(np.unique(np.concatenate(flat)))

    def __len__(self) -> int:
        return len(self.values) + 1

    def codes(self, values: Array) -> Array:
        """int64, as many as values."""
        if not len(self.values):
            return np.zeros(len(values), np.int64)
        places = np.searchsorted(self.values, values)
        places[places == len(self.values)] = 0
        return np.where(self.values[places] == values, places + 1, 0)

    def codes_of(self, column: pa.ChunkedArray) -> Array:
        """int64 [B] of a feature."""
        return self.codes(np.asarray(column.to_numpy()))

    def bags_of(self, column: pa.ChunkedArray, longest: int) -> Array:
        """int64 [B, longest] of a bag: the last of its known values, 0 behind them."""
        padded = np.zeros((len(column), longest), np.int64)
        whole = column.combine_chunks()
        codes = self.codes(np.asarray(whole.flatten().to_numpy(zero_copy_only=False)))
        ends = np.cumsum(np.asarray(whole.value_lengths().to_numpy(zero_copy_only=False)))
        for row, known in enumerate(np.split(codes, ends[:-1])):
            kept = known[known > 0][-longest:]
            padded[row, : len(kept)] = kept
        return padded


def _flat(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.flatten() if pa.types.is_list(whole.type) else whole


def longest_bag(tables: Mapping[str, pa.Table], column: str) -> int:
    """Values of the longest bag of a column, at least 1."""
    longest = [
        np.max(table[column].combine_chunks().value_lengths().to_numpy(zero_copy_only=False))
        for table in tables.values()
        if len(table)
    ]
    return max(1, *map(int, longest))
