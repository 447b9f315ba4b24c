"""Peers of the step over many tables: FBGEMM's CPU TBE, TorchRec over it, torch's EmbeddingBag.

Above it: many_tables_bench.py. Below it: torch; fbgemm_gpu and torchrec, optional. All start from
the same weights and get the same gradients.
"""

import logging

import torch

from benchmarks.common.contenders import FusedContender
from benchmarks.common.fbgemm import ROW_WISE_ADAGRAD, fbgemm_tables
from benchmarks.common.plain_adagrad import step_rows
from benchmarks.parameter_server.many_tables.workload import Workload
from benchmarks.parameter_server.sparse_step.contender import (
    ADAGRAD_EPS,
    INITIAL_WEIGHT,
    LEARNING_RATE,
    ROW_WISE_EPS,
)


def fbgemm(work: Workload) -> FusedContender:
    """One TBE with all tables, of any dims."""
    shape, batches = work.shape, work.batches
    tables = list(zip(shape.rows, shape.dims, strict=True))
    module = fbgemm_tables(tables, ROW_WISE_ADAGRAD, LEARNING_RATE, ROW_WISE_EPS)
    module.weights_host.data.fill_(INITIAL_WEIGHT)
    return FusedContender(lambda idx: module(batches[idx].ids, batches[idx].offsets), work.grads)


def torchrec(work: Workload) -> FusedContender:
    """EmbeddingBagCollection with the optimizer fused, which is TBE behind a KeyedJaggedTensor.

    Its plain form has dense gradients of whole tables, so nobody trains large tables with it.
    """
    logging.getLogger("torchrec").setLevel(logging.ERROR)
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
    from torchrec.optim import RowWiseAdagrad
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    shape = work.shape
    collection = FusedEmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=name, embedding_dim=dim, num_embeddings=rows, feature_names=[name]
            )
            for name, dim, rows in zip(shape.names, shape.dims, shape.rows, strict=True)
        ],
        optimizer_type=RowWiseAdagrad,
        optimizer_kwargs={"lr": LEARNING_RATE, "eps": ROW_WISE_EPS},
        device=torch.device("cpu"),
    )
    for bag in collection.embedding_bags.values():
        bag.weight.data.fill_(INITIAL_WEIGHT)
    lengths = torch.full((len(shape.rows) * shape.examples,), shape.bag)
    features = [
        KeyedJaggedTensor(shape.names, one.ids, lengths=lengths, offsets=one.offsets)
        for one in work.batches
    ]
    return FusedContender(lambda idx: collection(features[idx]).values(), work.grads)


class EmbeddingBags:
    """nn.EmbeddingBag(sparse) a table, with row-wise Adagrad in plain operations over each table's
    coalesced gradient."""

    def __init__(self, work: Workload) -> None:
        shape = work.shape
        self._work = work
        self._parts = [list(one.parts(one.ids)) for one in work.batches]
        self._bags = [
            torch.nn.EmbeddingBag(
                rows,
                dim,
                mode="sum",
                sparse=True,
                include_last_offset=True,
                _weight=torch.full((rows, dim), INITIAL_WEIGHT),
            )
            for rows, dim in zip(shape.rows, shape.dims, strict=True)
        ]
        self._accumulators = [torch.zeros(rows) for rows in shape.rows]

    def _forward(self, idx: int) -> torch.Tensor:
        parts = zip(self._bags, self._parts[idx], strict=True)
        return torch.cat([bag(ids, offsets) for bag, (ids, offsets) in parts], dim=1)

    def step(self, idx: int) -> None:
        for bag in self._bags:
            bag.weight.grad = None
        self._forward(idx).backward(self._work.grads)
        self._update()

    def _update(self) -> None:
        for bag, stored in zip(self._bags, self._accumulators, strict=True):
            step_rows(bag.weight, stored, LEARNING_RATE, ROW_WISE_EPS)

    def read(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(idx)

    def check(self) -> None:
        pass


class EmbeddingBagsAdagrad(EmbeddingBags):
    """The same as its users step it, by torch.optim.Adagrad: a state a float, so other numbers."""

    def __init__(self, work: Workload) -> None:
        super().__init__(work)
        weights = [bag.weight for bag in self._bags]
        self._optimizer = torch.optim.Adagrad(weights, LEARNING_RATE, eps=ADAGRAD_EPS)

    def _update(self) -> None:
        self._optimizer.step()
