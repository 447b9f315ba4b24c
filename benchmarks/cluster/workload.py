"""The log of the cluster benchmark: batches made in memory, each rank's part of them, and the keys
that a rank has to fetch from others at the very least.

Above it: every file of this folder. Below it: benchmarks/common/keys.py. A pure function of its
numbers, so that processes need not send it to each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

import hps
from benchmarks.common.keys import ZipfIds, hashed_keys
from hps.common.sharding import ShardMap
from hps.generate.config import cardinalities_of

TABLE = "rows"
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Workload:
    """Global batches of `batch_size` examples with one key of each feature and some dense columns.

    Args:
        keys: of all features; each has a Zipf law over its own.
        distinct: batches that are drawn; then they come again.

    >>> log = Workload(keys=1000, batch_size=8, features=3, distinct=2)
    >>> [len(log.part(0, rank, 3)) for rank in range(3)]
    [2, 3, 3]
    """

    keys: int
    batch_size: int
    features: int = 26
    dense: int = 13
    alpha: float = 1.05
    distinct: int = 12

    @cached_property
    def _drawn(self) -> list[Keys]:
        """uint64 [F, batch_size] a batch."""
        sizes = cardinalities_of(self.keys, self.features)
        bases = np.cumsum(sizes) - sizes
        laws = [ZipfIds(int(size), self.alpha, seed) for seed, size in enumerate(sizes)]
        drawn = []
        for _ in range(self.distinct):
            ids = [base + law.batch(self.batch_size) for base, law in zip(bases, laws, strict=True)]
            drawn.append(hashed_keys(np.stack(ids)))
        return drawn

    def keys_of(self, number: int, rank: int = 0, size: int = 1) -> Keys:
        """A rank's keys of a batch, feature after feature, uint64 [L]."""
        first, end = (part * self.batch_size // size for part in (rank, rank + 1))
        return np.ascontiguousarray(self._drawn[number % self.distinct][:, first:end]).reshape(-1)

    def part(self, number: int, rank: int = 0, size: int = 1) -> hps.Batch:
        """A rank's part of a batch."""
        keys = self.keys_of(number, rank, size)
        chance = np.random.default_rng((number % self.distinct, rank))
        count = len(keys) // self.features
        return hps.Batch(
            features={
                TABLE: hps.Ids(
                    keys_L=torch.from_numpy(keys.view(np.int64)),
                    offsets=torch.arange(len(keys) + 1),
                )
            },
            dense=torch.from_numpy(chance.standard_normal((count, self.dense), np.float32)),
            labels=torch.from_numpy(chance.integers(0, 2, count).astype(np.float32)),
        )

    def parts(self, rank: int, size: int, count: int) -> Iterator[hps.Batch]:
        """A rank's parts of `count` batches, those that come again made once."""
        made = [self.part(number, rank, size) for number in range(min(self.distinct, count))]
        for number in range(count):
            batch = made[number % self.distinct]
            yield hps.Batch(features=batch.features, dense=batch.dense, labels=batch.labels)

    def foreign_keys(self, number: int, rank: int, size: int) -> int:
        """Distinct keys of a rank's part that others own: it has to ask for each once."""
        unique = np.unique(self.keys_of(number, rank, size))
        return len(unique) - len(ShardMap(size).split(unique)[rank])
