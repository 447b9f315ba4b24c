"""Which tables a store has now: those of its checkpoint, and those that a restore has kept.

Above it: opening.py, open_server.py and checkpoints.py of parameter_server,
hps/service/shard/location.py. Below it: epoch.py, history.py, hps/checkpoint/blobs.py. A restore
takes no table away: one that is younger than the checkpoint is empty afterwards. Checkpoints never
change, so HISTORY says which tables there are, until a checkpoint of its epoch does.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hps.checkpoint.blobs import TABLES, decode_json, described_tables, table_from_json
from hps.common.json_text import Json, JsonView
from hps.config import TableConfig
from hps.contracts.tiers import RowTier
from hps.update_log.epoch import Epoch
from hps.update_log.history import ServedCheckpoint

Described = list[Json]


def tables_now(extras: Mapping[str, bytes], epoch: Epoch | None) -> Described:
    """Descriptions of a store's tables, in the order of creation.

    Args:
        extras: of its current checkpoint.
        epoch: its own; None if it was never served.

    Raises:
        CorruptionError: the checkpoint's blobs cannot be read.
    """
    in_checkpoint: Described = decode_json(extras, TABLES) or []
    if epoch is None:
        return in_checkpoint
    kept = [dict(table) for table in epoch.tables]
    served = ServedCheckpoint.of(extras)
    # The records after a restore were made with the numbers that HISTORY has.
    is_older = served is None or served.epoch < epoch.number
    return merged(kept, in_checkpoint) if is_older else merged(in_checkpoint, kept)


def merged(first: Sequence[JsonView], *others: Sequence[JsonView]) -> Described:
    """Descriptions of each table once: that of the first list that has it."""
    by_name: dict[str, Json] = {}
    for tables in (first, *others):
        for table in tables:
            by_name.setdefault(table["name"], dict(table))
    return list(by_name.values())


def known_tables(path: Path, store: RowTier) -> tuple[list[TableConfig], list[TableConfig]]:
    """Tables of a store: as they are now, and those that kept checkpoints alone describe.

    An older hps wrote no tables into HISTORY: a restore made it forget those that the checkpoint
    lacked, which the log may name. The second list has them; a store that was never served has no
    log, and none in that list.

    Args:
        path: of the store.
        store: open, also for reading.

    Raises:
        CorruptionError: HISTORY, or a blob of a checkpoint, cannot be read.
    """
    epoch = Epoch.load(store.held_folder(), path)
    now = [table_from_json(value) for value in tables_now(store.extras(None), epoch)]
    missing = set(store.schemas) - {table.name for table in now}
    found: list[TableConfig] = []
    if epoch is None or not missing:
        return now, found
    for one in reversed(store.checkpoints()):
        for table in described_tables(store.extras(int(one["id"]), (TABLES,))):
            if table.name in missing:
                missing.remove(table.name)
                found.append(table)
    return now, found
