"""Who takes part in the pooled step: hps, FBGEMM's CPU TBE, torch's sparse EmbeddingBag.

Above it: pooled_step_bench.py. Below it: hps's public interface; fbgemm_gpu, optional. All start
from the same weights and get the same gradients of the bags; each reads [examples, features * dim].
"""

import contextlib
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.keys import hashed_keys
from benchmarks.common.server import TABLE, insert, require_all_in_dram, row_bytes, scratch_server
from benchmarks.parameter_server.pooled_step.workload import FEATURES, Bag, Workload
from benchmarks.parameter_server.sparse_step.contender import (
    ADAGRAD_EPS,
    INITIAL_WEIGHT,
    LEARNING_RATE,
    ROW_WISE_EPS,
)

_BUDGET_OVER_ROWS = 1.3


def hps_table(work: Workload) -> hps.TableConfig:
    """The table of a workload."""
    is_row_wise = work.shape.optimizer == "rowwise_adagrad"
    return hps.TableConfig(
        name=TABLE,
        dim=work.shape.dim,
        optimizer=(
            hps.RowWiseAdagrad(LEARNING_RATE, eps=ROW_WISE_EPS)
            if is_row_wise
            else hps.Adagrad(LEARNING_RATE, eps=ADAGRAD_EPS)
        ),
        initializer=hps.Constant(INITIAL_WEIGHT),
    )


class HpsPooled:
    """SparseEmbedding and RowOptimizer over a server that holds every row before the first step."""

    def __init__(self, work: Workload, threads: int, lifetime: contextlib.ExitStack) -> None:
        self._work = work
        table = hps_table(work)
        budget = int(_BUDGET_OVER_ROWS * work.shape.rows * row_bytes(table))
        self._server: Any = lifetime.enter_context(scratch_server(table, budget, threads))
        numbers = np.arange(work.shape.rows, dtype=np.int64)
        insert(self._server, torch.from_numpy(hashed_keys(numbers).view(np.int64)))
        pooling = "mean" if work.shape.pooling == "mean" else "sum"
        self._embedding = hps.SparseEmbedding(self._server, TABLE, pooling=pooling)
        self._optimizer = hps.RowOptimizer(self._server)

    def _forward(self, idx: int) -> torch.Tensor:
        bag = self._work.batches[idx]
        output: torch.Tensor = self._embedding(
            bag.keys, bag.offsets, bag.weights, num_features=FEATURES
        )
        return output

    def step(self, idx: int) -> None:
        self._forward(idx).backward(self._work.grads)
        self._optimizer.step()

    def read(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(idx)

    def check(self) -> None:
        require_all_in_dram(self._server, self._work.shape.rows)
        assert self._server.num_rows(TABLE) == self._work.shape.rows


class FbgemmPooled:
    """TBE with one table that its features share, optimizer fused into backward."""

    def __init__(self, work: Workload) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import (
            BoundsCheckMode,
            PoolingMode,
        )
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        shape = work.shape
        is_row_wise = shape.optimizer == "rowwise_adagrad"
        kind = EmbOptimType.EXACT_ROWWISE_ADAGRAD if is_row_wise else EmbOptimType.EXACT_ADAGRAD
        self._work = work
        self._table = SplitTableBatchedEmbeddingBagsCodegen(
            [(shape.rows, shape.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            feature_table_map=[0] * FEATURES,
            optimizer=kind,
            learning_rate=LEARNING_RATE,
            eps=ROW_WISE_EPS if is_row_wise else ADAGRAD_EPS,
            pooling_mode=PoolingMode.MEAN if shape.pooling == "mean" else PoolingMode.SUM,
            stochastic_rounding=False,
            bounds_check_mode=BoundsCheckMode.NONE,
            device="cpu",
        )
        self._table.weights_host.data = torch.full_like(
            self._table.weights_host.data, INITIAL_WEIGHT
        )

    def _forward(self, idx: int) -> torch.Tensor:
        bag = self._work.batches[idx]
        output: torch.Tensor = self._table(bag.ids, bag.offsets, bag.weights)
        return output

    def step(self, idx: int) -> None:
        self._forward(idx).backward(self._work.grads)

    def read(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(idx)

    def check(self) -> None:
        pass


class TorchPooled:
    """torch's embedding_bag, and its sparse gradient; torch.optim.Adagrad, or row-wise Adagrad in
    plain operations over the coalesced gradient."""

    def __init__(self, work: Workload) -> None:
        self._work = work
        shape = work.shape
        self._weights = torch.nn.Parameter(torch.full((shape.rows, shape.dim), INITIAL_WEIGHT))
        self._mode = "mean" if shape.pooling == "mean" else "sum"
        self._accumulators = torch.zeros(shape.rows)
        self._optimizer = None
        if shape.optimizer == "adagrad":
            self._optimizer = torch.optim.Adagrad([self._weights], LEARNING_RATE, eps=ADAGRAD_EPS)

    def _forward(self, bag: Bag) -> torch.Tensor:
        pooled = torch.nn.functional.embedding_bag(
            bag.ids,
            self._weights,
            bag.offsets,
            mode=self._mode,
            sparse=True,
            per_sample_weights=bag.weights,
            include_last_offset=True,
        )
        by_feature = pooled.view(FEATURES, self._work.examples, -1)
        return by_feature.transpose(0, 1).reshape(self._work.examples, -1)

    def step(self, idx: int) -> None:
        self._weights.grad = None
        self._forward(self._work.batches[idx]).backward(self._work.grads)
        if self._optimizer is not None:
            self._optimizer.step()
            return
        assert self._weights.grad is not None
        gradient = self._weights.grad.coalesce()
        unique, sums = gradient.indices()[0], gradient.values()
        weights = self._weights.detach()
        squares = torch.linalg.vecdot(sums, sums) / self._work.shape.dim
        accumulators = self._accumulators.index_select(0, unique) + squares
        self._accumulators.index_copy_(0, unique, accumulators)
        scale = accumulators.sqrt_().add_(ROW_WISE_EPS).reciprocal_().mul_(-LEARNING_RATE)
        weights.index_add_(0, unique, sums.mul_(scale.unsqueeze(1)))

    def read(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(self._work.batches[idx])

    def check(self) -> None:
        pass
