"""One row as a store has it, field by field.

Above it: `hps lookup`. Below it: the store's own `fetch`, hps/common/row_layout.py.
"""

import numpy as np

from hps.common.expiry import OF_IMMORTAL
from hps.common.json_text import Json
from hps.common.row_layout import Images, Statistics
from hps.config import TableConfig
from hps.errors import no_such_table
from hps.parameter_server.server import ParameterServer
from hps.table.life_rules import native_rules
from hps.table.row_checks import state_by_name


def row_of(
    server: ParameterServer,
    table: str,
    key: int,
    *,
    has_first_order: bool = False,
    first_order: str | None = None,
) -> Json:
    """What is stored of a key.

    Args:
        server: open; what is told is what its store holds, so that it is to be read-only.
        table: its name.
        key: from 0 to 2^64 - 1.
        has_first_order: the row's last column is a model's first-order weight.
        first_order: the table of the first-order weights that go with `table`, if it has such.

    Returns:
        `table`, `key`, `is_there`; then, each None where no row is: `embedding` (floats),
        `first_order` (None also where there is none), `state` (the optimizer's: part -> floats);
        of a table with statistics also `show`, `click`, `last_period` and `dies_at` (None: never).
        With a table `first_order` its weight as `first_order`, also where `is_there` is false; its
        row as `first_order_row`; the `score` by which the vector comes, as of now; and `waits`, if
        there is a weight and no vector yet.

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
    beside = {} if first_order is None else _beside(server, first_order, key, row["is_there"])
    if not row["is_there"]:
        counts = (*Statistics._fields, "dies_at") if config.statistics else ()
        return row | dict.fromkeys(("embedding", "first_order", "state", *counts)) | beside
    weights = layout.weights(images)[0].tolist()
    state = state_by_name(layout, layout.state(images)[0])
    return row | {
        "embedding": weights[:-1] if has_first_order else weights,
        "first_order": weights[-1] if has_first_order else None,
        "state": {name: part.tolist() for name, part in state.items()},
        **_counted(config, images),
        **beside,
    }


def _beside(server: ParameterServer, table: str, key: int, has_vector: bool) -> Json:
    """Of the first-order weight that a key has in a table of its own."""
    own = row_of(server, table, key)
    score = 0.0
    if own["is_there"]:
        rules = native_rules(server.parts.tables.rules.get(table, OF_IMMORTAL))
        gap = np.array([server.period - own["last_period"]], np.uint32)
        show, click = (np.array([own[name]], np.float32) for name in ("show", "click"))
        score = float(rules.scores(show, click, gap)[0])
    return {
        "first_order": own["embedding"][0] if own["is_there"] else None,
        "first_order_row": own,
        "score": score,
        "waits": bool(own["is_there"]) and not has_vector,
    }


def _counted(config: TableConfig, images: Images) -> Json:
    """What one row has counted, by name; nothing of a table without statistics."""
    if not config.statistics:
        return {}
    found = config.layout.statistics(images)._asdict()
    counts = {name: part[0].item() for name, part in found.items()}
    return counts | {"dies_at": int(config.layout.deaths(images)[0]) or None}
