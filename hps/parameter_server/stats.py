"""Counters of what a table asked of each tier, and the nested dict that server.stats() returns.

Above it: server.py. Below it: tiers/cached_tier.py and ssd_store/table_view.py, which count. A hit
is a distinct key of a batch that the tier had (or, of a pull whose keys hardly repeat, an
occurrence), a miss a distinct key that it had not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hps.common.json_text import Json
from hps.parameter_server.bounds import EarlyDeaths, bound_stats
from hps.table.waiting import is_records, table_of

if TYPE_CHECKING:
    from hps.dram_cache.tier import DramTier
    from hps.ssd_store.table_view import StoreTable
    from hps.tiers.cached_tier import CachedTier
    from hps.tiers.top_tier import TableStack


_NATIVE_COUNTERS = ("evictions", "write_backs", "refusals", "second_bucket", "spared")


def cache_stats(tier: "CachedTier") -> Json:
    """One table's part of a cache."""
    cache, counters = tier.cache, tier.counters
    native = cache.stats()
    return {
        **{name: native[name] for name in _NATIVE_COUNTERS if name in native},
        "hits": counters.hits,
        "misses": counters.misses,
        "rows": cache.num_rows,
        "fresh_rows": cache.num_fresh,
        "dirty_rows": cache.num_dirty,
        "capacity_rows": cache.capacity_rows,
        "pins": cache.pins,
        "bytes": cache.memory_bytes,
        "seconds": counters.seconds,
    }


def ssd_stats(stack: "TableStack", table: "StoreTable", native: Json) -> Json:
    """One table's part of the ssd_store; `native` is what the store itself counts of it."""
    counters = table.counters
    return {
        **native,
        "hits": counters.hits,
        "misses": counters.misses,
        "rows": table.num_rows(),
        "rows_appended": counters.append_rows,
        "rows_read_through": stack.rows_read_through,
        "fetch_seconds": counters.fetch_seconds,
        "append_seconds": counters.append_seconds,
        "seconds": counters.fetch_seconds + counters.append_seconds,
    }


def _add_up(parts: Iterable[Json]) -> Json:
    total: Json = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                total[name] = total.get(name, 0) + value
    return total


@dataclass(frozen=True)
class TableTiers:
    """One table's tiers: its stack, its caches by the names of their tiers, its store."""

    stack: "TableStack"
    caches: "dict[str, CachedTier]"
    store: "StoreTable"
    dram: "DramTier | None" = None  # where there is a gpu_cache over it


def server_stats(
    tables: Iterable[TableTiers],
    store: Json,
    budgets: dict[str, int],
    early: Mapping[str, EarlyDeaths],
    num_shards: int = 1,
) -> Json:
    """{"dram_cache": ..., "ssd_store": ..., "tables": {name: ...}}: sums, then each table.

    With a gpu_cache it comes first, under its name. Records of keys that wait for a row are told of
    as "waiting" of their table; the sums count them.

    Args:
        store: what the store says of itself.
        budgets: bytes of each cache tier, by its name.
        early: what bounds did as the period began, by table.
        num_shards: that the tables are divided among.
    """
    parts: Json = {}
    of_table = store.get("tables", {})
    for tiers in tables:
        stack = tiers.stack
        parts[stack.name] = {
            "rows": stack.num_rows,
            "dim": stack.layout.dim,
            "row_bytes": stack.layout.row_bytes,
            "optimizer": stack.layout.optimizer_kind,
            **({"statistics": True} if stack.layout.has_statistics else {}),
            **({"expired_rows": stack.rows_expired} if stack.layout.has_statistics else {}),
            **({"expiry": str(stack.config.expiry)} if stack.config.expiry else {}),
            **({"admission": str(stack.config.admission)} if stack.config.admission else {}),
            **bound_stats(stack.config, num_shards, early.get(stack.name)),
            **({"dtype": "bfloat16"} if stack.layout.is_narrow else {}),
            **({"negative_rate": stack.config.negative_rate} if stack.config.more_shows else {}),
            **{name: cache_stats(tier) for name, tier in tiers.caches.items()},
            "ssd_store": ssd_stats(stack, tiers.store, of_table.get(stack.name, {})),
        }
    caches = {
        name: {**_add_up(part[name] for part in parts.values()), "budget_bytes": budget}
        for name, budget in budgets.items()
    }
    ssd = _add_up(part["ssd_store"] for part in parts.values())
    for name in [name for name in parts if is_records(name)]:
        records = parts.pop(name)
        parts[table_of(name)]["waiting"] = records
    whole = {name: value for name, value in store.items() if name != "tables"}
    return {
        **caches,
        "ssd_store": {**whole, **ssd, "bytes": store.get("files_bytes", 0)},
        "tables": parts,
    }
