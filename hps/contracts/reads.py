"""PooledRead: one table's part of a look-up of several tables.

Above it: training.py; hps.nn, which makes them, and the servers, which answer them. Below it:
`hps.common.bags`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from hps.common.arrays import AnyArray
from hps.errors import ConfigError
from hps.types import PinnedRows

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling


@dataclass(slots=True)
class PooledRead:
    """Bags of the keys of one table.

    Args:
        table: its name.
        keys: int64 or uint64 [L], in order of occurrence.
        pooling: makes bags of them, where the rows go.
        out: float32 [B, F * D], contiguous, there too, written.
        rows: the pinned rows of exactly these keys, or None to look them up.
    """

    table: str
    keys: AnyArray
    pooling: "BagPooling"
    out: "torch.Tensor"
    rows: PinnedRows | None = None


def in_order(reads: Sequence[PooledRead]) -> list[PooledRead]:
    """By the names of their tables: in one order for all who hold locks, and on all ranks.

    Raises:
        ConfigError: a table occurs twice.
    """
    ordered = sorted(reads, key=lambda read: read.table)
    for first, second in pairwise(ordered):
        if first.table == second.table:
            raise ConfigError(f"pull_tables: table {first.table!r} is given twice; join its bags")
    return ordered


def in_words(tables: Sequence[str]) -> str:
    """
    >>> in_words(["ads"]), in_words(["ads", "users"])
    ("table 'ads'", "tables ['ads', 'users']")
    """
    return f"table {tables[0]!r}" if len(tables) == 1 else f"tables {list(tables)}"
