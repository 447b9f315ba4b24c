"""What `hps verify` says of a served store's log: every record that is still needed, and HISTORY.

Above it: hps/cli/store_commands.py. Below it: epoch.py, history.py, `hps._C.UpdateLog.verify`.
"""

import os
from pathlib import Path

from hps import _C
from hps.errors import CorruptionError, StoreError
from hps.ssd_store import open_store
from hps.update_log.epoch import NAME, Epoch
from hps.update_log.history import ServedCut
from hps.update_log.log import FOLDER

_ATTEMPTS = 3  # a server beside us may cut the log while it is read


def verify_log(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Checks every checksum of the log under a store's directory; may run beside its server.

    Args:
        path: the store's directory.

    Returns:
        (file, what is wrong with it), as `hps.ssd_store.verify`; empty if all is well, or if there
        is no log. A torn end, which a crash may leave, is no damage.

    Raises:
        StoreError: it cannot be read.

    Cost: reads the log's files; nothing is changed.
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
            return []
        except (CorruptionError, StoreError) as error:
            is_last = attempt == _ATTEMPTS - 1
            if not is_last and _number_in_checkpoint(path, epoch) != after:
                continue
            if isinstance(error, StoreError):
                raise
            file, _, what = str(error).partition(": ")
            return [(file, what)]
    return []


def _number_in_checkpoint(path: str | os.PathLike[str], epoch: Epoch) -> int | None:
    """Of the last record that the newest checkpoint holds; None if that cannot be read."""
    try:
        store = open_store(path, [], read_only=True, rows=False)
    except CorruptionError:
        return None
    try:
        cut = ServedCut.of(store.extras(None))
    except CorruptionError:
        return None
    finally:
        store.close()
    return cut.number if cut is not None and cut.epoch == epoch.number else 0
