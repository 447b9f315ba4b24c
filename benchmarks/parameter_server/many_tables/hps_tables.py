"""hps in the step over many tables: SparseEmbeddings over a table a feature, and the same keys in
one table through SparseEmbedding.

Above it: many_tables_bench.py, python_share.py. Below it: hps's public interface.
"""

import contextlib
from typing import Any

import torch

import hps
from benchmarks.common.server import TABLE, insert, require_all_in_dram, row_bytes, scratch_server
from benchmarks.parameter_server.many_tables.workload import Shape, Workload, all_keys
from benchmarks.parameter_server.pooled_step.pooled_alone import PooledAlone, PooledTable
from benchmarks.parameter_server.sparse_step.contender import (
    INITIAL_WEIGHT,
    LEARNING_RATE,
    ROW_WISE_EPS,
)

_BUDGET_OVER_ROWS = 1.3
_LEAST_BYTES = 1 << 18  # of a table, so that the few rows of a small one find room


def _table(name: str, dim: int, rows: int) -> tuple[hps.TableConfig, int]:
    """A table and the bytes of DRAM that hold all its rows; its share of them is as large."""
    optimizer = hps.RowWiseAdagrad(LEARNING_RATE, eps=ROW_WISE_EPS)
    initializer = hps.Constant(INITIAL_WEIGHT)
    table = hps.TableConfig(name=name, dim=dim, optimizer=optimizer, initializer=initializer)
    budget = max(int(_BUDGET_OVER_ROWS * rows * row_bytes(table)), _LEAST_BYTES)
    table = hps.TableConfig(
        name=name, dim=dim, optimizer=optimizer, initializer=initializer, share=float(budget)
    )
    return table, budget


def full_server(shape: Shape, threads: int, lifetime: contextlib.ExitStack) -> Any:
    """A server with a table a feature, which holds all rows."""
    made = [_table(*one) for one in zip(shape.names, shape.dims, shape.rows, strict=True)]
    budget = sum(bytes_of_one for _, bytes_of_one in made)
    server = lifetime.enter_context(scratch_server([one for one, _ in made], budget, threads))
    for number, name in enumerate(shape.names):
        insert(server, all_keys(shape, number), name)
    return server


class HpsTables:
    """SparseEmbeddings and RowOptimizer over a table a feature, of an hps.Batch."""

    def __init__(self, work: Workload, threads: int, lifetime: contextlib.ExitStack) -> None:
        self._work = work
        names = work.shape.names
        self._server = full_server(work.shape, threads, lifetime)
        self._embeddings = hps.SparseEmbeddings(self._server, dict.fromkeys(names, 1))
        self._optimizer = hps.RowOptimizer(self._server)
        for lookup in work.batches:
            assert len(lookup.batch) == work.shape.examples  # made now, outside of what is timed

    def step(self, idx: int) -> None:
        self._embeddings(self._work.batches[idx].batch).backward(self._work.grads)
        self._optimizer.step()

    def read(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            output: torch.Tensor = self._embeddings(self._work.batches[idx].batch)
        return output

    def check(self) -> None:
        _check(self._server, self._work.shape, self._work.shape.names)


class HpsOneTable:
    """SparseEmbedding and RowOptimizer over one table with the rows of all: equal dims alone."""

    def __init__(self, work: Workload, threads: int, lifetime: contextlib.ExitStack) -> None:
        self._work = work
        shape = work.shape
        table, budget = _table(TABLE, shape.dims[0], sum(shape.rows))
        self._server: Any = lifetime.enter_context(scratch_server(table, budget, threads))
        for number in range(len(shape.rows)):
            insert(self._server, all_keys(shape, number))
        self._embedding = hps.SparseEmbedding(self._server, TABLE)
        self._optimizer = hps.RowOptimizer(self._server)

    def _forward(self, idx: int) -> torch.Tensor:
        lookup, num_features = self._work.batches[idx], len(self._work.shape.rows)
        output: torch.Tensor = self._embedding(
            lookup.keys, lookup.offsets, num_features=num_features
        )
        return output

    def step(self, idx: int) -> None:
        self._forward(idx).backward(self._work.grads)
        self._optimizer.step()

    def read(self, idx: int) -> torch.Tensor:
        with torch.no_grad():
            return self._forward(idx)

    def check(self) -> None:
        _check(self._server, self._work.shape, [TABLE])


def tables_alone(work: Workload, threads: int) -> PooledAlone:
    """The sums and updates of a step over all tables, whose keys cost nothing."""
    shape = work.shape
    parts = [list(one.parts(one.ids)) for one in work.batches]
    tables = []
    for number, (name, dim, rows) in enumerate(
        zip(shape.names, shape.dims, shape.rows, strict=True)
    ):
        bags = [(ids.numpy(), own.numpy()) for ids, own in (batch[number] for batch in parts)]
        tables.append(PooledTable(rows, dim, row_bytes(_table(name, dim, rows)[0]), bags))
    return PooledAlone(tables, threads)


def _check(server: Any, shape: Shape, names: list[str]) -> None:
    num_rows = sum(shape.rows)
    require_all_in_dram(server, num_rows)
    assert sum(server.num_rows(name) for name in names) == num_rows
