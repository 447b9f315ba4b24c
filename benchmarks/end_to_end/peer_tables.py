"""The peers' embedding tables for the end-to-end runs: dense rows, keys mapped by modulo.

Above it: peer_train.py. Below it: torch.nn.EmbeddingBag(sparse), or FBGEMM's table on the CPU.
"""

from typing import Any, Protocol

import torch
from torch import nn

from benchmarks.common.fbgemm import ADAGRAD, fbgemm_tables

INITIAL_STD = 0.01
ADAGRAD_EPS = 1e-10


class PeerTable(Protocol):
    """Rows [num_rows, columns] that train themselves with Adagrad."""

    def look_up(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Sums of bags: int64 [L] ids and int64 [F*B + 1] offsets to float32 [F*B, columns]."""

    def step(self) -> None:
        """Applies the gradient, where backward has not done it."""


class BagTable:
    """torch.nn.EmbeddingBag(sparse=True) with torch.optim.Adagrad."""

    def __init__(self, num_rows: int, columns: int, learning_rate: float) -> None:
        self._module = nn.EmbeddingBag(
            num_rows, columns, mode="sum", sparse=True, include_last_offset=True
        )
        nn.init.normal_(self._module.weight, std=INITIAL_STD)
        parameters = self._module.parameters()
        self._optimizer = torch.optim.Adagrad(parameters, lr=learning_rate, eps=ADAGRAD_EPS)

    def look_up(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self._module(ids, offsets)

    def step(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()


class FbgemmTable:
    """FBGEMM's TBE with fused Adagrad; its widths are multiples of 4, so some columns go unused."""

    def __init__(self, num_rows: int, columns: int, learning_rate: float) -> None:
        self._columns = columns
        width = -(-columns // 4) * 4
        self._module: Any = fbgemm_tables([(num_rows, width)], ADAGRAD, learning_rate, ADAGRAD_EPS)
        with torch.no_grad():
            self._module.split_embedding_weights()[0].normal_(std=INITIAL_STD)

    def look_up(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self._module(ids, offsets)[:, : self._columns]

    def step(self) -> None:
        pass


class NoTable:
    """Numbers in the place of looked-up rows, which get their gradient: what is left is the dense
    part alone."""

    def __init__(self, num_rows: int, columns: int, learning_rate: float) -> None:
        self._columns = columns
        self._bags = torch.empty(0, columns)

    def look_up(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        num_bags = len(offsets) - 1
        if len(self._bags) != num_bags:
            self._bags = torch.randn(num_bags, self._columns).mul_(INITIAL_STD).requires_grad_()
        return self._bags

    def step(self) -> None:
        self._bags.grad = None


TABLES = {"embedding_bag": BagTable, "fbgemm": FbgemmTable, "none": NoTable}
