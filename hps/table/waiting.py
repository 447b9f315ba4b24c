"""The table beside a table with Admission(count=): a record of each key that waits for a row.

Above it: parameter_server/opening.py and tables.py, checkpoint/blobs.py. Below it: `hps.config`. A
record is a row without weights, 32 bytes whose show counts the occurrences so far; so it goes
through the tiers, files and checkpoints as rows do. One whose key was admitted is empty, with a
show of 0, and dies in the next period; others die as rows of the table that are not seen.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hps.common.expiry import Expiry
from hps.common.initializers import Constant
from hps.common.optimizers import SGD
from hps.config import TableConfig
from hps.errors import ConfigError

_MARK = "~"  # which no table's name has
_LEAST_SHOW = 0.5  # of a record that counts something


@dataclass(frozen=True, kw_only=True)
class WaitingTable(TableConfig):
    """The records of a table; made by `with_records`, whose fields need no check."""

    def __post_init__(self) -> None:
        pass


def records_of(table: str) -> str:
    """The name of a table's records.

    >>> records_of("ads")
    'ads~'
    """
    return table + _MARK


def is_records(name: str) -> bool:
    """True of a name that `records_of` gave."""
    return name.endswith(_MARK)


def table_of(records: str) -> str:
    """The table that has these records."""
    return records.removesuffix(_MARK)


def named_tables(table: str | None, stored: Collection[str]) -> list[str]:
    """The tables that a user means by a name: the table, and its records if some are stored; by
    None all that are stored.

    >>> named_tables("ads", ["ads", "users", "ads~"])
    ['ads', 'ads~']
    """
    if table is None:
        return list(stored)
    return [table, *(name for name in (records_of(table),) if name in stored)]


def with_records(tables: Iterable[TableConfig]) -> Sequence[TableConfig]:
    """The tables, and behind each with Admission(count=) its records, whose share keeps as many of
    them in memory as of the table's rows. Records that are among the tables are made anew."""
    found: list[TableConfig] = []
    for table in tables:
        if isinstance(table, WaitingTable):
            continue
        if table.admission is None or table.admission.count is None:
            found.append(table)
            continue
        row_bytes = table.layout.row_bytes
        unseen = None if table.expiry is None else table.expiry.unseen
        records = WaitingTable(
            name=records_of(table.name),
            dim=0,
            optimizer=SGD(lr=1.0),
            initializer=Constant(0.0),
            features=(),
            statistics=True,
            # Its score is its show.
            expiry=Expiry(unseen=unseen, min_score=_LEAST_SHOW, decay=1.0, nonclick=1.0, click=1.0),
        )
        share = table.share * records.layout.row_bytes / row_bytes
        found += [table, replace(records, share=share)]
    return found


def refuse_forgotten(
    tables: Iterable[TableConfig], num_rows: Mapping[str, int], path: object
) -> None:
    """Raises ConfigError for a table of which keys wait in the store, and which counts no more:
    they would wait for ever."""
    for table in tables:
        counts = table.admission is not None and table.admission.count is not None
        if num_rows.get(records_of(table.name)) and not counts:
            raise ConfigError(
                f"table {table.name!r}: admission={table.admission!r}, but {path} counts the keys "
                "that wait for a row; give Admission(count=) again, or count=1, which admits every "
                "key at its next update"
            )
