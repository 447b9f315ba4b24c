"""Peers out of torch alone: plain operations with row-wise Adagrad, and nn.EmbeddingBag(sparse).

Above it: sparse_step_bench.py. Below it: torch.
"""

import torch

from benchmarks.parameter_server.sparse_step.contender import (
    ADAGRAD_EPS,
    LEARNING_RATE,
    ROW_WISE_EPS,
    Workload,
)


class PlainTorch:
    """Row-wise Adagrad in five or six whole-batch operations, no autograd, outputs reused.

    Args:
        work: the batches.
        is_sorted: gradients are summed by a stable sort and a segment sum (embedding_bag over
            runs); else by torch.unique and index_add_.
    """

    def __init__(self, work: Workload, is_sorted: bool) -> None:
        self._work = work
        self._weights = work.initialised(torch.empty(work.rows, work.dim))
        self._accumulators = torch.zeros(work.rows)
        self._out = torch.empty(work.length, work.dim)
        self._sum_gradients = self._by_sort if is_sorted else self._by_index_add

    def _by_index_add(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        unique, inverse = torch.unique(ids, return_inverse=True)
        sums = torch.zeros(len(unique), self._work.dim)
        return unique, sums.index_add_(0, inverse, self._work.grads)

    def _by_sort(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        in_order, positions = torch.sort(ids, stable=True)
        unique, counts = torch.unique_consecutive(in_order, return_counts=True)
        starts = torch.zeros_like(counts)
        torch.cumsum(counts[:-1], 0, out=starts[1:])
        bag = torch.nn.functional.embedding_bag
        return unique, bag(positions, self._work.grads, starts, mode="sum")

    def step(self, idx: int) -> None:
        ids = self._work.ids[idx]
        torch.index_select(self._weights, 0, ids, out=self._out)
        unique, sums = self._sum_gradients(ids)
        accumulators = self._accumulators.index_select(0, unique)
        accumulators.add_(torch.linalg.vecdot(sums, sums), alpha=1 / self._work.dim)
        self._accumulators.index_copy_(0, unique, accumulators)
        scale = accumulators.sqrt_().add_(ROW_WISE_EPS).reciprocal_().mul_(-LEARNING_RATE)
        rows = self._weights.index_select(0, unique)
        self._weights.index_copy_(0, unique, rows.addcmul_(sums, scale.unsqueeze(1)))

    def rows_of(self, idx: int) -> torch.Tensor:
        return self._weights.index_select(0, self._work.ids[idx])

    def check(self) -> None:
        pass


class EmbeddingBagAdagrad:
    """torch.nn.EmbeddingBag(sparse=True) with torch.optim.Adagrad, bags of one."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        weights = work.initialised(torch.empty(work.rows, work.dim))
        self._module = torch.nn.EmbeddingBag.from_pretrained(
            weights, freeze=False, mode="sum", sparse=True
        )
        self._optimizer = torch.optim.Adagrad(
            self._module.parameters(), lr=LEARNING_RATE, eps=ADAGRAD_EPS
        )
        self._offsets = torch.arange(work.length)

    def step(self, idx: int) -> None:
        self._optimizer.zero_grad()
        self._module(self._work.ids[idx], self._offsets).backward(self._work.grads)
        self._optimizer.step()

    def rows_of(self, idx: int) -> torch.Tensor:
        return self._module.weight.detach().index_select(0, self._work.ids[idx])

    def check(self) -> None:
        assert self._module.weight.grad is not None and self._module.weight.grad.is_sparse
