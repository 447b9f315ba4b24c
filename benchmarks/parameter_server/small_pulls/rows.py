"""The same rows for both sides: a plain tensor, and hps's tables, all in DRAM.

Above it: small_pulls_bench.py. Below it: hps's public interface, benchmarks/common.
"""

import contextlib
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.keys import ZipfIds, hashed_keys
from benchmarks.common.server import FILL_KEYS, TABLE, require_all_in_dram, scratch_server
from benchmarks.common.server import row_bytes as bytes_of_row

_BUDGET_OVER_ROWS = 1.3
_LEAST_BYTES = 1 << 18


class Rows:
    """`num_tables` tables that hold the rows of one tensor, one after the other.

    Args:
        rows: of all tables in sum; a multiple of their number.
        dim: floats of a row.
        num_tables: with names from `names`.
        threads: of the native core.
        lifetime: closes the server in the end.
    """

    def __init__(
        self, rows: int, dim: int, num_tables: int, threads: int, lifetime: contextlib.ExitStack
    ) -> None:
        assert rows % num_tables == 0
        self.names = [TABLE] if num_tables == 1 else [f"t{table}" for table in range(num_tables)]
        self.rows_of_one = rows // num_tables
        self.dim = dim
        self.weights = torch.randn(rows, dim, generator=torch.Generator().manual_seed(0))
        tables = [
            hps.TableConfig(name=name, dim=dim, optimizer=hps.RowWiseAdagrad())
            for name in self.names
        ]
        budget = int(_BUDGET_OVER_ROWS * self.rows_of_one * bytes_of_row(tables[0]))
        budget = num_tables * max(budget, _LEAST_BYTES)
        self.server: Any = lifetime.enter_context(scratch_server(tables, budget, threads))
        for number, name in enumerate(self.names):
            self._fill(name, number * self.rows_of_one)

    def _fill(self, name: str, first: int) -> None:
        for start in range(first, first + self.rows_of_one, FILL_KEYS):
            ids = np.arange(start, min(start + FILL_KEYS, first + self.rows_of_one))
            self.server.assign(name, hashed_keys(ids), self.weights[ids].numpy())

    def check(self) -> None:
        """All rows are here, and nothing had to make room."""
        num_rows = len(self.weights)
        require_all_in_dram(self.server, num_rows)
        assert sum(self.server.num_rows(name) for name in self.names) == num_rows


def zipf_ids(rows: int, length: int, num_inputs: int) -> torch.Tensor:
    """int64 [num_inputs, length]: seeded ids whose popularity is Zipf."""
    flat = ZipfIds(rows).batch(num_inputs * length)
    return torch.from_numpy(flat).view(num_inputs, length)


def keys_of(ids: torch.Tensor) -> torch.Tensor:
    """The 64-bit keys of ids, int64 of the same shape."""
    return torch.from_numpy(hashed_keys(ids.numpy()).view(np.int64))
