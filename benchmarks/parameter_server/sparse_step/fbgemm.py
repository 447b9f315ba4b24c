"""Peer: FBGEMM's table-batched embedding (TBE) on the CPU, optimizer fused into backward.

Above it: sparse_step_bench.py, managed_collision.py. Below it: fbgemm_tables.
"""

from typing import Any

import torch

from benchmarks.common.fbgemm import ROW_WISE_ADAGRAD, fbgemm_tables
from benchmarks.parameter_server.sparse_step.contender import (
    ADAGRAD_EPS,
    LEARNING_RATE,
    ROW_WISE_EPS,
    Workload,
)


def make_table(work: Workload, rows: int, optimizer: str) -> Any:
    """A TBE module with one table of `rows` rows, by its optimizer."""
    eps = ROW_WISE_EPS if optimizer == ROW_WISE_ADAGRAD else ADAGRAD_EPS
    module = fbgemm_tables([(rows, work.dim)], optimizer, LEARNING_RATE, eps)
    # Its own memory has been written to by now, too late to choose the kind of page.
    module.weights_host.data = work.initialised(torch.empty_like(module.weights_host.data))
    return module


class Fbgemm:
    """Forward and backward of TBE over dense ids."""

    def __init__(self, work: Workload, optimizer: str) -> None:
        self._work = work
        self._table = make_table(work, work.rows, optimizer)
        self._offsets = torch.arange(work.length + 1)

    def step(self, idx: int) -> None:
        self._table(self._work.ids[idx], self._offsets).backward(self._work.grads)

    def rows_of(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            return self._table(self._work.ids[idx], self._offsets)

    def check(self) -> None:
        pass
