"""Erasure of the rows that are as a predicate over their statistics says.

Above it: ParameterServer, a rank of a cluster, `hps erase`. Below it: tables.py, the table's stack,
whose `erase` drops keys from every tier; table/life_rules.py. The rows are read once, in pieces.
"""

from collections.abc import Callable, Iterator

import numpy as np

from hps.common.expiry import Expiry
from hps.common.row_layout import Keys
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.parameter_server.batches import Batches
from hps.parameter_server.periods import refuse_uncounted
from hps.parameter_server.tables import Tables
from hps.table.rows_where import RowsWhere

_PIECE_BYTES = 2**23


def refuse_unscored(table: TableConfig, rules: Expiry | None, where: RowsWhere) -> None:
    """Raises ConfigError if the rows of a table with these rules do not have what is asked for."""
    refuse_uncounted(table, "erase_where")
    if where.score_below is not None and rules is None:
        raise ConfigError(
            f"erase_where(score_below={where.score_below!r}): table {table.name!r} has no expiry, "
            "whose numbers make the score; give show_below=, click_below= or unseen_for="
        )


def check_erasable(tables: Tables, batches: Batches, table: str, where: RowsWhere) -> None:
    """Raises ConfigError if `erase_where` would refuse; nothing has changed. Within the updates."""
    tables.stack(table)
    tables.check_writable("erase_where")
    refuse_unscored(tables.configs[table], tables.rules.get(table), where)
    num_open, pins = batches.num_open_pipelines, tables.pins
    if num_open or pins:
        raise ConfigError(
            f"erase_where: {num_open} open pipeline(s) and {pins} pins of batches in flight; leave "
            "the pipeline's `with` block, and end or drop the step, first"
        )


def erase_where(
    tables: Tables,
    batches: Batches,
    table: str,
    where: RowsWhere,
    told: Callable[[Keys], object] | None = None,
) -> int:
    """As ParameterServer.erase_where; `told` is given the keys that were erased, in pieces."""
    with tables.updates:
        check_erasable(tables, batches, table, where)
        tables.begin_change("erase")
        return erase_rows(tables, table, where, told)


def erase_rows(
    tables: Tables,
    table: str,
    where: RowsWhere,
    told: Callable[[Keys], object] | None = None,
    log: Callable[[], None] | None = None,
) -> int:
    """As `erase_where`, of what is checked. With `log` all rows are read before it is called, and
    none goes before it: what cannot be read raises while nothing is logged. Within the updates."""
    stack = tables.stack(table)
    stack.raise_failed(wait=True)
    stack.write_back()  # so that all are read from the store, while rows go from the caches
    pieces, count = _keys_held(tables, table, where), 0
    if log is not None:
        pieces = iter(list(pieces))
        log()
    try:
        for keys in pieces:
            count += int(np.count_nonzero(stack.erase(keys)))
            if told is not None:
                told(keys)
    except BaseException as error:
        if count:
            error.add_note(f"erase_where: {count} rows of table {table!r} were erased before")
        raise
    return count


def _keys_held(tables: Tables, table: str, where: RowsWhere) -> Iterator[Keys]:
    """Keys of the rows for which it holds, in pieces, none of them empty. Within the updates."""
    stack = tables.stack(table)
    layout = stack.layout
    pieces = stack.scan(max(1, _PIECE_BYTES // layout.row_bytes))
    while True:
        with stack.still():
            images = next(pieces, None)
        if images is None:
            return
        held = where.holds(layout.statistics(images), tables.period, tables.rules.get(table))
        keys = layout.keys(images)[held]
        if len(keys):
            yield keys
