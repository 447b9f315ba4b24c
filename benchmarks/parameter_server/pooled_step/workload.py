"""What every contender of the pooled step is given: batches of bags, and gradients of their sums.

Above it: pooled_step_bench.py, contenders.py. Below it: benchmarks/common/keys.py. Bags are
feature-major: bag f * examples + b is feature f of example b.
"""

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.common.keys import ZipfIds, hashed_keys
from benchmarks.common.server import row_bytes
from hps import TableConfig

FEATURES = 8
MEAN_LENGTH = 20
_LENGTH_ALPHA = 1.2  # of bags whose lengths are Zipf's
_MOST = 200


@dataclass(frozen=True)
class Shape:
    """One cell.

    Args:
        rows: of the table.
        dim: floats of an embedding.
        optimizer: "rowwise_adagrad" or "adagrad".
        lengths: "fixed" (each bag holds 20 ids) or "zipf" (1 to 200, 20 on average).
        pooling: "sum", "mean" or "weighted" (a sum with a weight an occurrence).
    """

    rows: int
    dim: int
    optimizer: str = "rowwise_adagrad"
    lengths: str = "fixed"
    pooling: str = "sum"

    @property
    def axes(self) -> dict[str, object]:
        """The cell in a result."""
        return {
            "rows": self.rows,
            "dim": self.dim,
            "optimizer": self.optimizer,
            "lengths": self.lengths,
            "pooling": self.pooling,
        }


@dataclass(frozen=True)
class Bag:
    """One batch: ids and keys int64 [L], offsets int64 [bags + 1], weights float32 [L] or None."""

    ids: torch.Tensor
    keys: torch.Tensor
    offsets: torch.Tensor
    weights: torch.Tensor | None


@dataclass(frozen=True)
class Workload:
    """All batches of a cell; `grads` float32 [examples, FEATURES * dim] is that of each."""

    shape: Shape
    examples: int
    batches: list[Bag]
    grads: torch.Tensor

    @property
    def length(self) -> float:
        """Occurrences a batch, on average."""
        return float(np.mean([len(one.ids) for one in self.batches]))

    def bytes_moved(self, table: TableConfig) -> dict[str, float]:
        """Bytes a step must move: from and to the table's memory, once a distinct row, and outputs,
        gradients and ids once; and, apart, what comes from caches once an occurrence."""
        distinct = np.mean([len(one.ids.unique()) for one in self.batches[:3]])
        once = 2 * self.grads.numel() * 4 + self.length * 8
        return {
            "memory_bytes": 2 * distinct * row_bytes(table) + once,
            "cache_bytes": 2 * self.length * self.shape.dim * 4,
        }


def _lengths(shape: Shape, num_bags: int, generator: np.random.Generator) -> np.ndarray:
    if shape.lengths == "fixed":
        return np.full(num_bags, MEAN_LENGTH)
    ranks = np.arange(1, _MOST + 1, dtype=np.float64)
    weights = ranks**-_LENGTH_ALPHA
    lengths = generator.choice(ranks, num_bags, p=weights / weights.sum())
    scaled = np.maximum(1, np.round(lengths * MEAN_LENGTH / lengths.mean()))
    return np.minimum(scaled, _MOST).astype(np.int64)


def make_workload(shape: Shape, examples: int, num_batches: int) -> Workload:
    """Seeded batches of a cell."""
    stream, generator = ZipfIds(shape.rows), np.random.default_rng(1)
    batches = []
    for _ in range(num_batches):
        offsets = np.concatenate([[0], np.cumsum(_lengths(shape, FEATURES * examples, generator))])
        ids = stream.batch(int(offsets[-1]))
        weights = None
        if shape.pooling == "weighted":
            weights = torch.from_numpy(generator.random(len(ids), np.float32))
        keys = torch.from_numpy(hashed_keys(ids).view(np.int64))
        batches.append(Bag(torch.from_numpy(ids), keys, torch.from_numpy(offsets), weights))
    torch_generator = torch.Generator().manual_seed(0)
    grads = torch.randn(examples, FEATURES * shape.dim, generator=torch_generator) * 0.01
    return Workload(shape, examples, batches, grads)
