"""An hps.ParameterServer that lives for one measurement and leaves nothing behind.

Above it: the benchmarks. Below it: hps's public interface.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import hps
from hps import errors
from hps.parameter_server.opening import Tiers

TABLE = "rows"
FILL_KEYS = 1 << 15  # of more, a growing table puts thousands of rows out (docs/roadmap.md)


class _LeaveUnsaved(errors.HpsError):
    """Thrown through a server's `with` block, which then saves no checkpoint of its gigabytes."""


@contextlib.contextmanager
def scratch_server(
    tables: hps.TableConfig | Sequence[hps.TableConfig],
    dram_bytes: int,
    threads: int,
    *,
    gpu: hps.GpuCacheConfig | None = None,
    tiers: Tiers | None = None,
) -> Iterator[Any]:
    """A server with these tables in a temporary store that is removed afterwards; with a gpu_cache,
    or over other tiers, if one asks for them."""
    all_tables = [tables] if isinstance(tables, hps.TableConfig) else list(tables)
    with tempfile.TemporaryDirectory() as path, contextlib.suppress(_LeaveUnsaved):
        dram = hps.DramCacheConfig(bytes=dram_bytes)
        config = hps.Config(path=path, tables=all_tables, dram=dram, gpu=gpu, threads=threads)
        with hps.ParameterServer(config, _tiers=tiers or Tiers()) as server:
            yield server
            raise _LeaveUnsaved


def row_bytes(table: hps.TableConfig) -> int:
    """Bytes of a row of `table`."""
    return table.layout.row_bytes


def insert(server: Any, keys: np.ndarray, table: str = TABLE) -> None:
    """Stores every key with its initial values."""
    for start in range(0, len(keys), FILL_KEYS):
        server.pull(table, keys[start : start + FILL_KEYS], create=True)


def dram(server: Any) -> dict[str, Any]:
    """The DRAM tier's part of `stats()`."""
    return dict(server.stats()["dram_cache"])


def require_all_in_dram(server: Any, rows: int) -> None:
    """Asserts that a budget holds all rows but for the one in 10,000 that a table which grows may
    put out on its way, and that comes back when it is read."""
    evictions = dram(server)["evictions"]
    assert evictions * 10_000 <= rows, f"{evictions} rows were evicted; not all are in DRAM"
