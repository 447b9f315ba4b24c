"""One row as a store has it, field by field.

Above it: `hps lookup`. Below it: the store's own `fetch`, hps/common/row_layout.py.
"""

import numpy as np

from hps.common.json_text import Json
from hps.common.row_layout import Images, Statistics
from hps.config import TableConfig
from hps.errors import no_such_table
from hps.parameter_server.server import ParameterServer
from hps.table.row_checks import state_by_name


def row_of(server: ParameterServer, table: str, key: int, *, has_first_order: bool = False) -> Json:
    """What is stored of a key.

    Args:
        server: open; what is told is what its store holds, so that it is to be read-only.
        table: its name.
        key: from 0 to 2^64 - 1.
        has_first_order: the row's last column is a model's first-order weight.

    Returns:
        `table`, `key`, `is_there`; then, each None where no row is: `embedding` (floats),
        `first_order` (None also where there is none), `state` (the optimizer's: part -> floats);
        of a table with statistics also `show`, `click`, `last_period` and `dies_at` (None: never).

    Raises:
        ConfigError: there is no such table.
        StoreError, CorruptionError: the row could not be read.
    """
    if table not in server.tables:
        raise no_such_table(table, "the store has", server.tables)
    config = server.tables[table]
    layout = config.layout
    images, found = np.zeros((1, layout.row_bytes), np.uint8), np.zeros(1, np.uint8)
    server.parts.tables.store.fetch(table, np.array([key], np.uint64), images, found)
    row: Json = {"table": table, "key": key, "is_there": bool(found[0])}
    if not row["is_there"]:
        counts = (*Statistics._fields, "dies_at") if config.statistics else ()
        return row | dict.fromkeys(("embedding", "first_order", "state", *counts))
    weights = layout.weights(images)[0].tolist()
    state = state_by_name(layout, layout.state(images)[0])
    return row | {
        "embedding": weights[:-1] if has_first_order else weights,
        "first_order": weights[-1] if has_first_order else None,
        "state": {name: part.tolist() for name, part in state.items()},
        **_counted(config, images),
    }


def _counted(config: TableConfig, images: Images) -> Json:
    """What one row has counted, by name; nothing of a table without statistics."""
    if not config.statistics:
        return {}
    found = config.layout.statistics(images)._asdict()
    counts = {name: part[0].item() for name, part in found.items()}
    return counts | {"dies_at": int(config.layout.deaths(images)[0]) or None}
