"""clone: one checkpoint of a store as a store of its own, in another directory.

Above it: users, `hps clone`. Below it: hps.ssd_store.store, opened read-only and without its rows.
"""

import os

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.ssd_store.engine import ROCKSDB, engine_of
from hps.ssd_store.store import SsdStore


def clone(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    checkpoint: str | int | None = None,
    *,
    _may_link: bool = True,
) -> Json:
    """Makes a store at `target` that holds exactly one checkpoint of another, with all its extras.

    It may run beside a process that writes to `path`, and changes nothing there. Both stores can be
    trained on: the files that they share are immutable. The clone has the store id of its source,
    which the segments carry, so `target` is as good as a copy of `path` made when the checkpoint
    was the newest.

    Args:
        path: the store.
        target: a directory that is empty or not there yet.
        checkpoint: its tag or id; None is the newest.

    Returns:
        The checkpoint as `SsdStore.checkpoints` lists it, and files_linked, files_copied,
        bytes_copied.

    Raises:
        ConfigError: `target` holds something; no such checkpoint, or none at all; the store is of
            the engine "rocksdb", which has no clones.
        StoreError: there is no store; the disk is full (`target` is empty again).
        CorruptionError: a file of the checkpoint is damaged; names it and the offset.

    Cost: links the files where the file system can (same file system), else copies them; then reads
        them all, to check every checksum.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with SsdStore.open(f"{folder}/store", []) as store:
    ...         _ = store.checkpoint("day-1", {"note": b"hello"})
    ...     clone(f"{folder}/store", f"{folder}/copy")["tag"]
    ...     with SsdStore.open(f"{folder}/copy", []) as copy:
    ...         copy.extras("day-1")
    'day-1'
    {'note': b'hello'}
    """
    if engine_of(path) == ROCKSDB:
        raise ConfigError(
            f"{os.fspath(path)}: a store of engine {ROCKSDB!r} cannot be cloned; copy its "
            f"directory while no process has it open"
        )
    with SsdStore.open(path, [], read_only=True, rows=False, checkpoint=checkpoint) as store:
        return store.clone(target, may_link=_may_link)
