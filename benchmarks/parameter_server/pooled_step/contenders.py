"""Who takes part in the pooled step: hps, FBGEMM's CPU TBE, torch's sparse EmbeddingBag.

Above it: pooled_step_bench.py. Below it: hps's public interface; fbgemm_gpu, optional. All start
from the same weights and get the same gradients of the bags; each reads [examples, features * dim].
"""

import contextlib
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.contenders import FusedContender
from benchmarks.common.fbgemm import ROW_WISE_ADAGRAD, fbgemm_tables
from benchmarks.common.keys import hashed_keys
from benchmarks.common.plain_adagrad import step_rows
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
    is_row_wise = work.shape.optimizer == ROW_WISE_ADAGRAD
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


def fbgemm_pooled(work: Workload) -> FusedContender:
    """TBE with one table that its features share."""
    shape, batches = work.shape, work.batches
    module = fbgemm_tables(
        [(shape.rows, shape.dim)],
        shape.optimizer,
        LEARNING_RATE,
        ROW_WISE_EPS if shape.optimizer == ROW_WISE_ADAGRAD else ADAGRAD_EPS,
        pooling="mean" if shape.pooling == "mean" else "sum",
        features=[0] * FEATURES,
    )
    module.weights_host.data = torch.full_like(module.weights_host.data, INITIAL_WEIGHT)
    return FusedContender(
        lambda idx: module(batches[idx].ids, batches[idx].offsets, batches[idx].weights),
        work.grads,
    )


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
        step_rows(self._weights, self._accumulators, LEARNING_RATE, ROW_WISE_EPS)

    def read(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(self._work.batches[idx])

    def check(self) -> None:
        pass
