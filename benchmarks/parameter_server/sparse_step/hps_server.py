"""hps in the sparse step: ParameterServer.pull and push on tensors of 64-bit keys, all in DRAM; and
the same with outputs and gradients in bfloat16. Either with rows in float32 or in bfloat16.

Above it: sparse_step_bench.py. Below it: hps's public interface.
"""

import contextlib
from typing import Any

import torch

import hps
from benchmarks.common.narrow_step import NarrowStep
from benchmarks.common.server import TABLE, insert, require_all_in_dram, row_bytes, scratch_server
from benchmarks.parameter_server.sparse_step.contender import (
    ADAGRAD_EPS,
    INITIAL_WEIGHT,
    LEARNING_RATE,
    ROW_WISE_EPS,
    Workload,
)

BUDGET_OVER_ROWS = 1.3


def hps_table(work: Workload, optimizer: str, dtype: str = "float32") -> hps.TableConfig:
    """The table of a workload; `optimizer` is "rowwise_adagrad" or "adagrad"."""
    return hps.TableConfig(
        name=TABLE,
        dim=work.dim,
        optimizer=(
            hps.RowWiseAdagrad(LEARNING_RATE, eps=ROW_WISE_EPS)
            if optimizer == "rowwise_adagrad"
            else hps.Adagrad(LEARNING_RATE, eps=ADAGRAD_EPS)
        ),
        initializer=hps.Constant(INITIAL_WEIGHT),
        dtype=dtype,
    )


class HpsServer:
    """A ParameterServer that holds every row of the workload before the first step.

    Args:
        work: the batches.
        table: as hps_table makes it.
        all_keys: every key of the table, int64 [rows].
        threads: of the native core.
        lifetime: closes the server when the benchmark is through with it.
    """

    def __init__(
        self,
        work: Workload,
        table: hps.TableConfig,
        all_keys: torch.Tensor,
        threads: int,
        lifetime: contextlib.ExitStack,
    ) -> None:
        self._work = work
        budget = int(BUDGET_OVER_ROWS * work.rows * row_bytes(table))
        self._server: Any = lifetime.enter_context(scratch_server(table, budget, threads))
        insert(self._server, all_keys)
        self.check()

    def step(self, idx: int) -> None:
        keys = self._work.keys[idx]
        rows = self._server.pull(TABLE, keys)
        assert len(rows) == len(keys)
        self._server.push(TABLE, keys, self._work.grads)

    def rows_of(self, idx: int) -> torch.Tensor:
        return torch.as_tensor(self._server.pull(TABLE, self._work.keys[idx])).clone()

    def check(self) -> None:
        """Everything is in DRAM, and no row is missing."""
        require_all_in_dram(self._server, self._work.rows)
        stored = self._server.num_rows(TABLE)
        assert stored == self._work.rows, f"{stored} rows stored, {self._work.rows} expected"


class HpsNarrow(HpsServer):
    """The same rows by the verbs that a SparseEmbedding in bfloat16 uses: one key a bag."""

    def __init__(
        self,
        work: Workload,
        table: hps.TableConfig,
        all_keys: torch.Tensor,
        threads: int,
        lifetime: contextlib.ExitStack,
    ) -> None:
        super().__init__(work, table, all_keys, threads, lifetime)
        self._narrow_step = NarrowStep(self._server, work.grads)

    def step(self, idx: int) -> None:
        self._narrow_step(self._work.keys[idx])
