"""What is done to a cluster's folder without ranks: lock, dead generations, deleted checkpoints.

Above it: folders.py, offline.py, `hps checkpoints --delete`, `hps compact`. Below it:
ssd_store/cluster/catalog.py, the stores of the ranks.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hps.checkpoint.names import text_of
from hps.common.held_folder import HeldFolder
from hps.contracts.tiers import RowTier
from hps.errors import StoreError
from hps.ssd_store import engine_of, open_store
from hps.ssd_store.cluster.catalog import GENERATIONS, Catalog, new_name, part_folder
from hps.ssd_store.cluster.part_name import parts_of
from hps.ssd_store.promoted import held

LOCK = "LOCK"


class FolderLock:
    """Holds a folder, and keeps a second training out of it; the ranks of one training share it.

    `inside` leads to the folder while it is held, whatever becomes of its path.

    Args:
        path: the folder; made if it is missing.
        run: names the training.

    Raises:
        StoreError: the system refused.
    """

    def __init__(self, path: Path, run: str) -> None:
        path = path.absolute()
        self._file = path / LOCK
        self._run = run
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(error.errno, f"{path}: {error.strerror}") from error
        self._folder = HeldFolder(path)
        self.inside = self._folder.inside
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self.inside / LOCK, flags, 0o644)
        except OSError as error:
            self._folder.close()
            raise StoreError(error.errno, f"{self._file}: {error.strerror}") from error
        try:
            self._folder.guard(self._descriptor, LOCK)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The folder too: its LOCK may be removed while it is held, and made anew by another.
            self.is_holder = self._folder.try_lock()  # the one rank that tidies this folder
            if self.is_holder:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"{run} {os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            self.is_holder = False
        except OSError as error:  # try_lock's, too
            self.close()  # and the lock with it
            if isinstance(error, StoreError):
                raise
            raise StoreError(error.errno, f"{self._file}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """After every rank has tried: the holder is of this training.

        Raises:
            StoreError: names the other training's process.
        """
        if self.is_holder:
            return
        text = os.pread(self._descriptor, 256, 0).decode("ascii", "replace")
        run, _, pid = text.strip().partition(" ")
        if run != self._run:
            raise StoreError(
                errno.EAGAIN,
                f"{self._file}: another training has the folder open (process "
                f"{pid if pid.isdecimal() else 'unknown'}); "
                "wait for its end, or use another path",
            )

    def check_held(self) -> None:
        """Before CLUSTER is written, and before that is told of.

        Raises:
            StoreError: ESTALE: the folder, or its LOCK, is not at its path any more.
        """
        self._folder.check()

    def close(self) -> None:
        """Lets go; nothing to do the second time."""
        self._folder.close()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def remove_generations(path: Path, catalog: Catalog) -> list[str]:
    """Removes folders of generations that no checkpoint needs, but for those with living readers.

    Returns:
        The folders with readers, in words; they go another time.
    """
    readers = []
    for folder in sorted(path.glob(GENERATIONS)):
        if folder.name in catalog.generations or not catalog.is_own(folder.name):
            continue
        if any(_is_held(pin) for pin in folder.glob("rank-*/pins/*")):
            readers.append(f"a reader of {folder}")
        else:
            shutil.rmtree(folder, onerror=_leave)
    return readers


def _is_held(pin: Path) -> bool:
    """True if a living reader has a lock on its pin."""
    try:
        descriptor = os.open(pin, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def _leave(function: Callable[..., object], path: str, error: object) -> None:
    """What cannot be removed now stays for the next opening."""


def delete_checkpoint(path: Path, checkpoint: str | int) -> list[str]:
    """Deletes a checkpoint while no training has the folder open.

    Returns:
        The living readers, whose files stay until they close.

    Raises:
        ConfigError: no such checkpoint, or it has a promoted name. StoreError: a training has the
        folder open, rank 0's store is on another host, there are stores of a generation that
        CLUSTER does not name, or the system refused. CorruptionError: folders of ranks were
        exchanged, or PROMOTED is damaged.
    """
    path = path.absolute()
    with _locked(path) as (lock, catalog):
        with held(lock.inside, path) as promotions:
            _refuse_unnamed(path, catalog)
            _refuse_exchanged(path, catalog)
            first = part_folder(path, catalog.generation, 0)
            if engine_of(first) is None:
                raise StoreError(
                    errno.ENOENT,
                    f"{first}: the store of rank 0 is not here; delete the checkpoint on its host, "
                    "or in a training",
                )
            deleted = catalog.find(path, checkpoint, promotions)
            after = catalog.without(deleted, promotions)
            lock.check_held()
            try:
                after.save(lock.inside)
            except OSError as error:
                raise StoreError(error.errno, f"{path}: {error.strerror}") from error
            lock.check_held()
        # Files may take long to go, and no name can be given to them any more.
        readers: list[str] = []
        if deleted.id != after.current_id and deleted.generation in after.generations:
            for rank in range(len(deleted.parts)):
                folder = part_folder(path, deleted.generation, rank)
                readers += _delete_part(folder, deleted.part_tag)
        return [*readers, *remove_generations(path, after)]


def _refuse_unnamed(path: Path, catalog: Catalog) -> None:
    """Refuses to change a CLUSTER that may be older than another host's.

    What it does not name is either what a death in a move of rows has left, or a generation that
    another host's newer CLUSTER names, whose copy has not come here. To write here then would make
    this file the newest, and cost the rows of the newer one.
    """
    for folder in sorted(path.glob(GENERATIONS)):
        if catalog.is_own(folder.name) and folder.name not in catalog.generations:
            raise StoreError(
                errno.EBUSY,
                f"{folder}: CLUSTER (serial number {catalog.serial}) does not name this "
                "generation; a newer CLUSTER may be on another host. Start the training once on "
                "all hosts, which brings all of them to the newest, or delete the checkpoint on "
                "the host of rank 0",
            )


def _refuse_exchanged(path: Path, catalog: Catalog) -> None:
    """Refuses to change stores of which one is not the rank's whose folder it lies in. A host's
    CLUSTER may be older than the stores beside it, so which checkpoints they have does not tell."""
    checkpoint = catalog.current
    for part in () if checkpoint is None else parts_of(path, catalog, checkpoint):
        if engine_of(part.folder) is not None:
            part.check_owner()


def compact_parts(
    path: Path,
    table: str | None,
    allow: Callable[[dict[str, int], set[str]], bool],
    *,
    is_dry_run: bool = False,
) -> dict[str, int]:
    """Compacts the ranks' stores that lie here, one after the other, while no training has them.

    Args:
        path: the cluster's folder.
        table: its name; None is all.
        allow: is shown what `space_of_compact` says of the stores that a compaction makes smaller,
            with "held_bytes" of all, and the names of the checkpoints besides the newest; False
            changes nothing.
        is_dry_run: only asks `allow`; writes to no file, so a training may have the folder open.

    Returns:
        {"bytes_before", "bytes_after", "checkpoint_only_bytes"}, over these stores.

    Raises:
        ConfigError: unknown table. StoreError: a training has the folder open, no store is here, or
        a disk is full. CorruptionError: a stored row is damaged; folders of ranks were exchanged.
    """
    path = path.absolute()
    with _read(path) if is_dry_run else _locked(path) as (_, catalog):
        _refuse_exchanged(path, catalog)
        folders = [part_folder(path, catalog.generation, rank) for rank in range(catalog.ranks)]
        here = [folder for folder in folders if engine_of(folder) is not None]
        if not here:
            raise StoreError(errno.ENOENT, f"{path / catalog.generation}: no store is here")
        figures: dict[Path, dict[str, int]] = {}
        space = {"written_bytes": 0, "freed_bytes": 0, "held_bytes": 0}
        to_compact: list[Path] = []
        for folder in here:
            with closing(open_store(folder, [], read_only=True)) as reader:
                part, figures[folder] = reader.space_of_compact(table), reader.stats()
            space["held_bytes"] += part["held_bytes"]
            if part["freed_bytes"] > part["written_bytes"]:
                to_compact.append(folder)
                for name in ("written_bytes", "freed_bytes"):
                    space[name] += part[name]
        before = sum(part["files_bytes"] for part in figures.values())
        others = {text_of(one.tag or one.id) for one in catalog.listed if one != catalog.current}
        if allow(space, others) and not is_dry_run:
            for folder in to_compact:
                with closing(open_store(folder, [])) as store:
                    store.compact(table)
                    figures[folder] = store.stats()
        return {
            "bytes_before": before,
            "bytes_after": sum(part["files_bytes"] for part in figures.values()),
            "checkpoint_only_bytes": sum(
                part["checkpoint_only_bytes"] for part in figures.values()
            ),
        }


@contextmanager
def _read(path: Path) -> Iterator[tuple[None, Catalog]]:
    """The catalog of a folder that is only read; no lock is taken."""
    yield None, _catalog_of(path, path)


@contextmanager
def _locked(path: Path) -> Iterator[tuple[FolderLock, Catalog]]:
    """The lock and the catalog of a folder that no training has open, nor opens meanwhile."""
    lock = FolderLock(path, new_name())
    try:
        lock.check()
        yield lock, _catalog_of(path, lock.inside)
    finally:
        lock.close()


def _catalog_of(path: Path, inside: Path) -> Catalog:
    catalog = Catalog.load(inside)
    if catalog is None:
        raise StoreError(errno.ENOENT, f"{path}: there is no cluster here")
    return catalog


def _delete_part(folder: Path, part_tag: str) -> list[str]:
    """Of a part that lies here; others go when their ranks open the folder."""
    if engine_of(folder) is None:
        return []
    store: RowTier = open_store(folder, [])
    try:
        is_here = any(one["tag"] == part_tag for one in store.checkpoints())
        readers: list[str] = store.delete_checkpoint(part_tag) if is_here else []
        return readers
    finally:
        store.close()
