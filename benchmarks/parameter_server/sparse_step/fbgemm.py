"""Peer: FBGEMM's table-batched embedding (TBE) on the CPU, optimizer fused into backward.

Above it: sparse_step_bench.py, managed_collision.py. Below it: fbgemm_gpu, optional.
"""

from typing import Any

import torch

from benchmarks.parameter_server.sparse_step.contender import (
    ADAGRAD_EPS,
    LEARNING_RATE,
    ROW_WISE_EPS,
    Workload,
)


def make_table(work: Workload, rows: int, optimizer: str) -> Any:
    """A TBE module with one table in host memory.

    Sums over bags: for bags of one that is many times as fast as PoolingMode.NONE, and twice as
    fast as the same ids laid out as 26 features.

    Args:
        work: names dim, a multiple of 4.
        rows: of the table.
        optimizer: "rowwise_adagrad" or "adagrad".
    """
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    is_row_wise = optimizer == "rowwise_adagrad"
    kind = EmbOptimType.EXACT_ROWWISE_ADAGRAD if is_row_wise else EmbOptimType.EXACT_ADAGRAD
    module = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, work.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=kind,
        learning_rate=LEARNING_RATE,
        eps=ROW_WISE_EPS if is_row_wise else ADAGRAD_EPS,
        pooling_mode=PoolingMode.SUM,
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.NONE,
        device="cpu",
    )
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
