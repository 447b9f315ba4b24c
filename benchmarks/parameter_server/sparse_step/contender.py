"""What takes part in the sparse step: a table, its optimizer, and one step over a batch of ids.

Above it: sparse_step_bench.py. Beside it: hps_server.py and the peers, plain_torch.py, fbgemm.py
(dense ids), managed_collision.py (keys). All start from the same weights with the same gradients.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from benchmarks.common.huge_pages import advise

INITIAL_WEIGHT = 0.01
LEARNING_RATE = 0.05
ROW_WISE_EPS = 1e-8
ADAGRAD_EPS = 1e-10


@dataclass(frozen=True)
class Workload:
    """What every contender of a cell is given.

    Args:
        rows: rows of the table; ids are 0 to rows - 1.
        dim: floats in an embedding.
        ids: int64 [L] a batch.
        keys: the same as 64-bit hashed keys, int64 [L] a batch.
        grads: float32 [L, dim], the same for every batch.
        peer_huge_pages: the peers' tables, too, are to lie on huge pages, as hps's does.
    """

    rows: int
    dim: int
    ids: list[torch.Tensor]
    keys: list[torch.Tensor]
    grads: torch.Tensor
    peer_huge_pages: bool = False

    @property
    def length(self) -> int:
        """Requested keys a step."""
        return int(self.grads.shape[0])

    def initialised(self, weights: torch.Tensor) -> torch.Tensor:
        """A peer's table that has not been written yet, with every weight at its start."""
        if self.peer_huge_pages:
            advise(weights)
        return weights.fill_(INITIAL_WEIGHT)


class Contender(Protocol):
    """A table that can do a sparse training step."""

    def step(self, idx: int) -> None:
        """Pull, backward and optimizer on batch `idx`."""

    def rows_of(self, idx: int) -> torch.Tensor:
        """float32 [L, dim]: what batch `idx` reads now."""

    def check(self) -> None:
        """Asserts what the figure rests on, after the run."""
