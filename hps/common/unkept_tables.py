"""Refusals of tables that cannot be kept where they are asked for, each in the same words.

Above it: `hps.config`, service/client/tables.py, service/shard/location.py,
cluster/folder/folders.py. Below it: hps.errors.
"""

from collections.abc import Iterable
from typing import Protocol

from hps.errors import ConfigError


class _Table(Protocol):
    @property
    def name(self) -> str: ...


def _refuse(tables: Iterable[_Table], name: str, allowed: object, why: str, place: str) -> None:
    """ConfigError of the first table whose field is not the one that is allowed: names the table,
    why, and what to do."""
    for table in tables:
        if (value := getattr(table, name)) != allowed:
            raise ConfigError(
                f"table {table.name!r} has {name}={value!r}, but {why}: use hps.ParameterServer "
                f"with {place}, or {name}={allowed!r}"
            )


_SEGMENTS = "engine='segments' and rows in DRAM"


def refuse_statistics(tables: Iterable[_Table], why: str) -> None:
    """Raises ConfigError for tables with statistics where they cannot be kept; before anything is
    written."""
    _refuse(tables, "statistics", False, why, "rows in DRAM")


def refuse_expiry(tables: Iterable[_Table], why: str) -> None:
    """As refuse_statistics, of tables whose rows die."""
    _refuse(tables, "expiry", None, why, _SEGMENTS)


def refuse_admission(tables: Iterable[_Table], why: str) -> None:
    """As refuse_statistics, of tables that do not admit every key."""
    _refuse(tables, "admission", None, why, _SEGMENTS)


def refuse_narrow(tables: Iterable[_Table], why: str) -> None:
    """As refuse_statistics, of tables of narrow rows."""
    _refuse(tables, "dtype", "float32", why, _SEGMENTS)
