"""What every contender of the step over many tables is given: batches, and gradients of the sums.

Above it: many_tables_bench.py, hps_tables.py, peers.py, python_share.py. Below it:
benchmarks/common/keys.py. A table has one feature. Bags are feature-major: bag f * examples + b is
feature f of example b.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

import hps
from benchmarks.common.keys import ZipfIds, hashed_keys

TABLES = 26
EQUAL_ROWS = 40_000
EQUAL_DIM = 16
FEWEST_ROWS = 100
# By the tables' sizes, the largest first: each dim is that of large, middling and small tables.
MIXED_DIMS = (16, 8, 64, 32, 128)


@dataclass(frozen=True)
class Shape:
    """One cell.

    Args:
        name: of its kind.
        rows: of each table.
        dims: of each table.
        examples: of a batch.
        bag: ids of each bag.
    """

    name: str
    rows: tuple[int, ...]
    dims: tuple[int, ...]
    examples: int
    bag: int = 1

    @property
    def axes(self) -> dict[str, object]:
        """The cell in a result."""
        lowest, highest = min(self.dims), max(self.dims)
        return {
            "tables": len(self.rows),
            "kind": self.name,
            "dim": lowest if lowest == highest else f"{lowest} to {highest}",
            "rows": sum(self.rows),
            "examples": self.examples,
            "bag": self.bag,
        }

    @property
    def is_equal(self) -> bool:
        """True if all tables have the same dim."""
        return len(set(self.dims)) == 1

    @property
    def width(self) -> int:
        """Floats of an example's output."""
        return sum(self.dims)

    @property
    def names(self) -> list[str]:
        """Of the tables."""
        return [f"t{table}" for table in range(len(self.rows))]

    @property
    def starts(self) -> list[int]:
        """Number of the first id of each table, where all tables' ids are numbered on."""
        return [0, *np.cumsum(self.rows)[:-1].tolist()]


def equal_shape(examples: int, bag: int = 1, tables: int = TABLES, rows: int = EQUAL_ROWS) -> Shape:
    """Tables of the same dim and rows."""
    return Shape("equal", (rows,) * tables, (EQUAL_DIM,) * tables, examples, bag)


def mixed_shape(examples: int, largest: int) -> Shape:
    """Tables whose rows grow from 100 to `largest` by the same factor, and whose dims are mixed."""
    sizes = np.geomspace(FEWEST_ROWS, largest, TABLES).round().astype(int)
    dims = [MIXED_DIMS[place % len(MIXED_DIMS)] for place in range(TABLES)]
    order = np.random.default_rng(2).permutation(TABLES)
    by_size = list(zip(sizes[::-1].tolist(), dims, strict=True))
    tables = [by_size[place] for place in order]
    return Shape(
        "mixed", tuple(rows for rows, _ in tables), tuple(dim for _, dim in tables), examples
    )


@dataclass(frozen=True)
class Lookup:
    """One batch.

    Args:
        ids: int64 [F * B * bag], a table's own dense ids.
        keys: int64 [F * B * bag], 64-bit hashes of the ids numbered on over the tables.
        offsets: int64 [F * B + 1].
        num_tables: F.
    """

    ids: torch.Tensor
    keys: torch.Tensor
    offsets: torch.Tensor
    num_tables: int

    def parts(self, values: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """A table's ids or keys and their offsets, table after table."""
        own = self.offsets[: (len(self.offsets) - 1) // self.num_tables + 1]
        for part in values.view(self.num_tables, -1):
            yield part, own

    @cached_property
    def batch(self) -> hps.Batch:
        """The keys as hps's readers give them, made once."""
        names = [f"t{table}" for table in range(self.num_tables)]
        parts = self.parts(self.keys)
        features = {name: hps.Ids(*part) for name, part in zip(names, parts, strict=True)}
        examples = (len(self.offsets) - 1) // self.num_tables
        return hps.Batch(features, torch.zeros(examples, 0), torch.ones(examples))


@dataclass(frozen=True)
class Workload:
    """All batches of a cell; `grads` float32 [examples, width] is that of each."""

    shape: Shape
    batches: list[Lookup]
    grads: torch.Tensor

    @property
    def length(self) -> int:
        """Occurrences a batch."""
        return len(self.batches[0].ids)


def all_keys(shape: Shape, table: int) -> torch.Tensor:
    """Every key of a table, int64 [rows]."""
    numbers = np.arange(shape.rows[table]) + shape.starts[table]
    return torch.from_numpy(hashed_keys(numbers).view(np.int64))


def make_workload(shape: Shape, num_batches: int) -> Workload:
    """Seeded batches of a cell."""
    length = shape.examples * shape.bag
    by_table = []
    for table, rows in enumerate(shape.rows):
        stream = ZipfIds(rows, seed=table)
        by_table.append([stream.batch(length) for _ in range(num_batches)])
    starts = np.repeat(shape.starts, length)
    offsets = torch.arange(len(shape.rows) * shape.examples + 1) * shape.bag
    batches = []
    for of_tables in zip(*by_table, strict=True):
        ids = np.concatenate(of_tables)
        keys = torch.from_numpy(hashed_keys(ids + starts).view(np.int64))
        batches.append(Lookup(torch.from_numpy(ids), keys, offsets, len(shape.rows)))
    generator = torch.Generator().manual_seed(0)
    grads = torch.randn(shape.examples, shape.width, generator=generator) * 0.01
    return Workload(shape, batches, grads)
