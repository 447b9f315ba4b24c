"""The caches that the benchmark measures: one table with row-wise Adagrad.

Above it: gpu_cache_bench.py, on_device.py. Below it: hps.
"""

from typing import Any

import hps
from hps import _C

UNIT = "M keys/s"
LR = 0.05


def cache_options(dim: int, rows: int) -> dict[str, Any]:
    """Keyword arguments of a cache with room for about `rows` rows."""
    table = hps.TableConfig(name="rows", dim=dim, optimizer=hps.RowWiseAdagrad(lr=LR))
    row_bytes = _C.row_layout(table.optimizer.kind, dim)["row_bytes"]
    return {
        "optimizer_kind": table.optimizer.kind,
        "hyperparameters": table.optimizer.hyperparameters(),
        "dim": dim,
        "capacity_bytes": rows * (row_bytes + 5) + 2**16,
        "initializer_kind": table.initializer.kind,
        "initializer_numbers": table.initializer.numbers(),
        "stream": 0,
    }
