"""Refusals of tables that cannot be kept where they are asked for, each in the same words.

Above it: `hps.config`. Below it: hps.errors.
"""

from collections.abc import Iterable
from typing import Protocol

from hps.errors import ConfigError


class _Table(Protocol):
    @property
    def name(self) -> str: ...


def _refuse(
    tables: Iterable[_Table], name: str, allowed: object, why: str, way_out: str = ""
) -> None:
    """ConfigError of the first table whose field is not the one that is allowed: names the table,
    why, and what to do."""
    for table in tables:
        if (value := getattr(table, name)) != allowed:
            raise ConfigError(
                f"table {table.name!r} has {name}={value!r}, but {why}: use hps.ParameterServer "
                f"with rows in DRAM, or {name}={allowed!r}{way_out}"
            )


def refuse_statistics(tables: Iterable[_Table], why: str) -> None:
    """Raises ConfigError for tables with statistics where they cannot be kept; before anything is
    written."""
    _refuse(tables, "statistics", False, why)


def refuse_expiry(tables: Iterable[_Table], why: str) -> None:
    """As refuse_statistics, of tables whose rows die."""
    _refuse(tables, "expiry", None, why)


def refuse_admission(tables: Iterable[_Table], why: str) -> None:
    """As refuse_statistics, of tables that do not admit every key."""
    _refuse(tables, "admission", None, why)


def refuse_narrow(tables: Iterable[_Table], why: str) -> None:
    """As refuse_statistics, of tables of narrow rows."""
    way_out = "; 'hps export' and 'hps import --row-dtype float32' make such a copy of a store"
    _refuse(tables, "dtype", "float32", why, way_out)
