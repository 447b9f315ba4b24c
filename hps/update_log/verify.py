"""What `hps verify` says of a served store's log: every record that is still needed, and HISTORY.

Above it: hps/cli/store_commands.py. Below it: epoch.py, history.py, `hps._C.UpdateLog.verify`.
"""

import os
from pathlib import Path

import numpy as np

from hps import _C
from hps.common.sharding import ShardMap
from hps.errors import CorruptionError, StoreError
from hps.ssd_store import open_store
from hps.update_log.epoch import NAME, Epoch
from hps.update_log.history import ServedCheckpoint
from hps.update_log.log import FOLDER

_ATTEMPTS = 3  # a server beside us may cut the log while it is read


def verify_log(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Checks every checksum of the log under a store's directory; may run beside its server.

    Args:
        path: the store's directory.

    Returns:
        (file, what is wrong with it), as `hps.ssd_store.verify`; empty if all is well, or if there
        is no log. A torn end, which a crash may leave, is no damage. Of a shard among others also
        that its rows are not those that HISTORY says.

    Raises:
        StoreError: it cannot be read.

    Cost: reads the log's files, and of a shard among others its rows; nothing is changed.
    """
    folder = Path(path) / FOLDER
    for attempt in range(_ATTEMPTS):
        try:
            epoch = Epoch.load(Path(path))
        except CorruptionError as error:
            return [(str(folder / NAME), str(error))]
        if epoch is None:
            return []
        after = _number_in_checkpoint(path, epoch)
        if after is None:
            return []  # the store's own damage, which hps.ssd_store.verify has named
        try:
            _C.UpdateLog.verify(str(folder), epoch.store, epoch.number, after)
            return _other_shards_rows(path, epoch)
        except (CorruptionError, StoreError) as error:
            is_last = attempt == _ATTEMPTS - 1
            if not is_last and _number_in_checkpoint(path, epoch) != after:
                continue
            if isinstance(error, StoreError):
                raise
            file, _, what = str(error).partition(": ")
            return [(file, what)]
    return []


def _other_shards_rows(path: str | os.PathLike[str], epoch: Epoch) -> list[tuple[str, str]]:
    """What says that the newest checkpoint is not of the shard that HISTORY names."""
    if epoch.count == 1:
        return []
    owners = ShardMap(epoch.count)
    store = open_store(path, [], read_only=True)
    try:
        served = ServedCheckpoint.of(store.extras(None))
        if served is not None and (served.index, served.count) != (epoch.index, epoch.count):
            what = (
                f"it is of shard {epoch.index} of {epoch.count}, the newest checkpoint of shard "
                f"{served.index} of {served.count}; put the folder of the log back"
            )
            return [(str(Path(path) / FOLDER / NAME), what)]
        for table in store.schemas:
            for rows in store.scan(table):
                keys = np.ascontiguousarray(rows[:, :8]).view(np.uint64)[:, 0]
                num_own = len(owners.split(keys)[epoch.index])
                if num_own < len(keys):
                    what = (
                        f"{len(keys) - num_own} of {len(keys)} keys of table {table!r} belong to "
                        f"other shards than {epoch.index} of {epoch.count}; put its store back"
                    )
                    return [(str(path), what)]
    finally:
        store.close()
    return []


def _number_in_checkpoint(path: str | os.PathLike[str], epoch: Epoch) -> int | None:
    """Of the last record that the newest checkpoint holds; None if that cannot be read."""
    try:
        store = open_store(path, [], read_only=True, rows=False)
    except CorruptionError:
        return None
    try:
        served = ServedCheckpoint.of(store.extras(None))
    except CorruptionError:
        return None
    finally:
        store.close()
    return served.number if served is not None and served.epoch == epoch.number else 0
