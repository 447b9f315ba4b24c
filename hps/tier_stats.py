"""Counters of what a table asked of each tier, and the nested dict that server.stats() returns.

Above it: parameter_server.py. Below it: table_stack.py, which counts. A hit is a
distinct key of a batch that the tier had (or, of a pull whose keys hardly repeat, an occurrence), a
miss a distinct key that it had not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hps.table_stack import TableStack


_NATIVE_COUNTERS = ("evictions", "write_backs", "refusals", "second_bucket")


@dataclass(slots=True)
class TierCounters:
    """What one table asked of its tiers since the server was opened; seconds are wall clock.

    As a context manager it times a verb; what the verb spends on SSD is counted there, not here.
    """

    dram_hits: int = 0
    dram_misses: int = 0
    dram_seconds: float = 0.0
    ssd_hits: int = 0
    ssd_misses: int = 0
    ssd_fetch_seconds: float = 0.0
    ssd_append_rows: int = 0
    ssd_append_seconds: float = 0.0
    rows_read_through: int = 0
    _started: float = 0.0
    _ssd_seconds_before: float = 0.0

    @property
    def ssd_seconds(self) -> float:
        """Time in the ssd_store, reading and writing."""
        return self.ssd_fetch_seconds + self.ssd_append_seconds

    def __enter__(self) -> None:
        self._ssd_seconds_before = self.ssd_fetch_seconds + self.ssd_append_seconds
        self._started = perf_counter()

    def __exit__(self, *error: object) -> None:
        on_ssd = self.ssd_fetch_seconds + self.ssd_append_seconds - self._ssd_seconds_before
        self.dram_seconds += perf_counter() - self._started - on_ssd


def dram_stats(stack: "TableStack") -> dict[str, Any]:
    """One table's part of the dram_cache."""
    cache, counters = stack.cache, stack.counters
    native = cache.stats()
    return {
        **{name: native[name] for name in _NATIVE_COUNTERS if name in native},
        "hits": counters.dram_hits,
        "misses": counters.dram_misses,
        "rows": cache.num_rows,
        "fresh_rows": cache.num_fresh,
        "dirty_rows": cache.num_dirty,
        "capacity_rows": cache.capacity_rows,
        "pins": cache.pins,
        "bytes": cache.memory_bytes,
        "seconds": counters.dram_seconds,
    }


def ssd_stats(stack: "TableStack", native: dict[str, Any]) -> dict[str, Any]:
    """One table's part of the ssd_store; `native` is what the store itself counts of it."""
    counters = stack.counters
    return {
        **native,
        "hits": counters.ssd_hits,
        "misses": counters.ssd_misses,
        "rows": stack.store.num_rows(stack.name),
        "rows_appended": counters.ssd_append_rows,
        "rows_read_through": counters.rows_read_through,
        "fetch_seconds": counters.ssd_fetch_seconds,
        "append_seconds": counters.ssd_append_seconds,
        "seconds": counters.ssd_seconds,
    }


def _add_up(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return total


def server_stats(
    stacks: Iterable["TableStack"], store: dict[str, Any], budget_bytes: int
) -> dict[str, Any]:
    """{"dram_cache": ..., "ssd_store": ..., "tables": {name: ...}}: sums, then each table."""
    tables: dict[str, Any] = {}
    of_table = store.get("tables", {})
    for stack in stacks:
        tables[stack.name] = {
            "rows": stack.num_rows,
            "dim": stack.layout.dim,
            "row_bytes": stack.layout.row_bytes,
            "optimizer": stack.layout.optimizer_kind,
            "dram_cache": dram_stats(stack),
            "ssd_store": ssd_stats(stack, of_table.get(stack.name, {})),
        }
    dram = _add_up(table["dram_cache"] for table in tables.values())
    ssd = _add_up(table["ssd_store"] for table in tables.values())
    whole = {name: value for name, value in store.items() if name != "tables"}
    return {
        "dram_cache": {**dram, "budget_bytes": budget_bytes},
        "ssd_store": {**whole, **ssd, "bytes": store.get("files_bytes", 0)},
        "tables": tables,
    }
