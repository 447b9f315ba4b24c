"""Which features of a log go into which table, and how their values become keys.

Above it: the text and the parquet reader. Below it: hps.TableConfig, the native XXH64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hps import _C
from hps.config import TableConfig
from hps.errors import ConfigError


@dataclass(frozen=True)
class Column:
    """A feature that a table takes.

    Args:
        name: of the feature in the log.
        seed: of its key hash: XXH64 of the name or of its vocabulary's, or 0 in a table of shared
            vocabulary.
    """

    name: str
    seed: int


@dataclass(frozen=True)
class Schema:
    """The features of every table, in the tables' order.

    Args:
        tables: table name -> its columns; a batch's Ids have them in this order.
        takes_all: some table takes every feature, so that one outside the schema is an error.
        num_dense: numbers in an example.
    """

    tables: Mapping[str, tuple[Column, ...]]
    takes_all: bool
    num_dense: int

    def features(self) -> dict[str, tuple[str, ...]]:
        return {
            name: tuple(column.name for column in columns) for name, columns in self.tables.items()
        }


def encode_name(name: str) -> bytes:
    """A feature's name as bytes of the log; names that are not UTF-8 survive the round trip."""
    return name.encode("utf-8", "surrogateescape")


def decode_name(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def sort_names(names: Sequence[str]) -> list[str]:
    """Features in the order in which a table that takes all has them: numbers first, by value."""

    def order(name: str) -> tuple[int, int, str]:
        is_number = name.isascii() and name.isdigit() and len(name) <= 20
        return (0, int(name), name) if is_number else (1, 0, name)

    return sorted(names, key=order)


def check_tables(tables: Sequence[TableConfig]) -> tuple[TableConfig, ...]:
    """The tables, once it is clear that each feature can only go to one of them.

    Raises:
        ConfigError: no table, two of one name, two that take all, or a feature named twice.
    """
    tables = tuple(tables)
    if not tables:
        raise ConfigError("tables is empty; a reader needs at least one hps.TableConfig")
    owner: dict[str, str] = {}
    names = [table.name for table in tables]
    if len(set(names)) != len(names):
        raise ConfigError(f"tables {names}: a table name appears twice")
    catch_all = [table.name for table in tables if table.features is None]
    if len(catch_all) > 1:
        raise ConfigError(
            f"a reader cannot divide a log's features over tables {catch_all}: all have "
            "features=None, which takes all; give features= to all but one, [] for none"
        )
    for table in tables:
        for feature in table.features or ():
            if not isinstance(feature, str) or not feature:
                raise ConfigError(f"table {table.name!r}: feature {feature!r} is not a name")
            if feature in owner:
                raise ConfigError(
                    f"feature {feature!r} appears in tables {owner[feature]!r} and {table.name!r}"
                )
            owner[feature] = table.name
    return tables


def make_schema(
    tables: Sequence[TableConfig],
    known: Sequence[str] | None,
    num_dense: int,
    vocabularies: Mapping[str, str] | None = None,
) -> Schema:
    """Gives each table its columns.

    Args:
        known: every feature of the log in order, or None where the log does not say and all tables
            name theirs.
        vocabularies: as `ReaderConfig` has them.

    Raises:
        ConfigError: a table names a feature that the log does not have.
    """
    named = {feature for table in tables for feature in table.features or ()}
    if known is not None and not named <= set(known):
        unknown = sorted(named - set(known))
        raise ConfigError(
            f"tables name features that the log does not have: {unknown}; it has {list(known)}"
        )
    hashed_as = vocabularies or {}
    columns = {}
    for table in tables:
        if table.features is not None:
            names = tuple(table.features)
        else:
            names = tuple(name for name in known or () if name not in named)
        columns[table.name] = tuple(
            Column(
                name,
                0 if table.shared_vocabulary else _C.xxh64(encode_name(hashed_as.get(name, name))),
            )
            for name in names
        )
    return Schema(
        tables=columns,
        takes_all=any(table.features is None for table in tables),
        num_dense=num_dense,
    )
