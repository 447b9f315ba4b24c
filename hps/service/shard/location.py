"""StoreLocation: where a served store lies and what it may use, without its tables.

Above it: core.py, tables.py, `hps serve`. Below it: config.py, update_log/served_tables.py. The
tables of a store that exists are read from it; those of a new one come with a config, or one by
one.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from hps.config import (
    Config,
    DramCacheConfig,
    GpuCacheConfig,
    SsdStoreConfig,
    TableConfig,
)
from hps.contracts.tiers import RowTier
from hps.errors import MismatchError
from hps.parameter_server.opening import Tiers
from hps.ssd_store import engine_of
from hps.update_log.served_tables import known_tables

# What a table that is there must have as it is asked for.
_FIXED = (
    *("dim", "dtype", "optimizer", "initializer", "statistics"),
    *("expiry", "admission", "max_rows", "max_bytes", "rounding", "negative_rate"),
)


@dataclass(frozen=True, kw_only=True)
class ServedConfig(Config):
    """A Config that may have no table yet."""

    least_tables: ClassVar[int] = 0


@dataclass(frozen=True, kw_only=True)
class StoreLocation:
    """A directory and the budgets of its tiers; fields as those of hps.Config.

    Args:
        seed: of a new store; None takes the stored one, or 0.

    >>> StoreLocation(path="model").dram.bytes
    1073741824
    """

    path: str | os.PathLike[str]
    dram: DramCacheConfig = field(default_factory=DramCacheConfig)
    gpu: GpuCacheConfig | None = None
    ssd: SsdStoreConfig = field(default_factory=SsdStoreConfig)
    seed: int | None = None
    threads: int = 0


def served_config(
    place: Config | StoreLocation, tiers: Tiers
) -> tuple[ServedConfig, list[TableConfig]]:
    """The config to open a store with, and its tables as they are described there now.

    Raises:
        MismatchError: a table of `place` is there, and differs in more than its learning rate,
            features and share.
        StoreError, CorruptionError: the store could not be looked into.
    """
    (described, undescribed), seed = _look_into(Path(place.path), tiers)
    by_name = {table.name: table for table in [*described, *undescribed]}
    for table in place.tables if isinstance(place, Config) else ():
        if (old := by_name.get(table.name)) is not None:
            refuse_other(old, table, f"{place.path}: table {table.name!r}")
        by_name[table.name] = table
    ssd = place.ssd
    if isinstance(place, StoreLocation):
        ssd = replace(ssd, engine=engine_of(place.path) or ssd.engine)
    config = ServedConfig(
        path=place.path,
        tables=list(by_name.values()),
        dram=place.dram,
        gpu=place.gpu,
        ssd=ssd,
        seed=(seed or 0) if place.seed is None else place.seed,
        threads=place.threads,
        instruction_set=place.instruction_set if isinstance(place, Config) else "auto",
    )
    return config, described


def _look_into(
    path: Path, tiers: Tiers
) -> tuple[tuple[list[TableConfig], list[TableConfig]], int | None]:
    """What `known_tables` finds, and the seed; nothing if there is no store."""
    if engine_of(path) is None:
        return ([], []), None
    store: RowTier = tiers.open_store(path, [], read_only=True, rows=False)
    try:
        return known_tables(path, store), int(store.seed)
    finally:
        store.close()


def refuse_other(stored: TableConfig, asked: TableConfig, what: str) -> None:
    """Raises MismatchError, which begins with `what`, if a table that is there is asked for with
    other numbers or rules."""
    for part in _FIXED:
        old, new = getattr(stored, part), getattr(asked, part)
        is_same = old == new or (part == "rounding" and not stored.is_narrow)
        if part == "optimizer" and type(old) is type(new):
            is_same = old.without_lr() == new.without_lr()
        if not is_same:
            raise MismatchError(
                f"{what}: its {part} is {old!r}, requested is {new!r}; use another name, or the "
                "stored one"
            )


def with_table(config: ServedConfig, table: TableConfig) -> ServedConfig:
    """The config with one table more.

    Raises:
        ConfigError: it collides with another one.
    """
    tables: Sequence[TableConfig] = [*config.tables, table]
    return replace(config, tables=tables)
