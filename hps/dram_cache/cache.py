"""Builds the native cache of each table from its config and its share of the budget.

Above it: parameter_server/opening.py. Below it: csrc/dram_cache, through hps._C.DramCache, whose
verbs are described in hps/contracts/row_cache.py.
"""

from collections.abc import Callable
from typing import cast

from hps import _C
from hps.config import Config
from hps.contracts.row_cache import AnyRowCache, RowCache
from hps.errors import ConfigError

# mypy checks here that the native cache keeps the contract.
_NATIVE: Callable[..., RowCache[_C.BatchPlan]] = _C.DramCache


def make_dram_caches(
    config: Config, make: Callable[..., AnyRowCache] | None = None
) -> dict[str, AnyRowCache]:
    """The dram_cache of each table; they share the native threads.

    Args:
        config: the store; seed, threads, instruction set and budget are read from it.
        make: what to build each with; None is the native DramCache.

    Raises:
        ConfigError: a table's share is too small for the smallest cache; names both numbers.
    """
    shares = config.shares(int(config.dram.bytes))
    pool = _C.ThreadPool(config.num_threads())
    build = cast("Callable[..., AnyRowCache]", _NATIVE) if make is None else make
    caches = {}
    for table in config.tables:
        try:
            caches[table.name] = build(
                pool=pool,
                optimizer_kind=table.optimizer.kind,
                hyperparameters=table.optimizer.hyperparameters(),
                dim=table.dim,
                capacity_bytes=shares[table.name],
                instruction_set=config.instruction_set,
                initializer_kind=table.initializer.kind,
                initializer_numbers=table.initializer.numbers(),
                # The stream makes initial rows a function of (seed, table, key).
                stream=_C.xxh64(table.name.encode(), config.seed),
                statistics=table.statistics,
                **({"narrow": True, "rounding": table.rounding} if table.is_narrow else {}),
                **({"more_shows": table.more_shows} if table.more_shows else {}),
            )
        except ConfigError as error:
            raise ConfigError(
                f"table {table.name!r}: {error}; raise DramCacheConfig.bytes "
                f"(--dram, now {config.dram.bytes}) or the table's share (now {table.share:g})"
            ) from error
    return caches
