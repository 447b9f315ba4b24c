"""reshard: one checkpoint for another number of ranks, in a folder of its own (`hps reshard`).

Above it: users, hps/cli/reshard.py. Below it: reshard.py, between ranks that are threads of this
process. The source may be a cluster's folder or a store of one process, and so may the target.
"""

import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import time

from hps.checkpoint import blobs as dense_side
from hps.checkpoint.names import find_listed
from hps.cluster.folder.folders import make_folders
from hps.cluster.folder.reshard import Source, move_rows, sources_of
from hps.cluster.folder.targets import NewStore
from hps.cluster.folder.whole_folder import check_new_folder, whole_folder
from hps.cluster.world.local_world import LocalWorld, local_worlds
from hps.common.field_checks import require_whole
from hps.common.json_text import Json
from hps.common.sharding import NUM_VIRTUAL
from hps.config import Config, SsdStoreConfig, num_cores
from hps.contracts.tiers import RowTier
from hps.errors import ClusterError, ConfigError, StoreError
from hps.ssd_store import engine_of, open_store
from hps.ssd_store.cluster.catalog import (
    Catalog,
    ClusterCheckpoint,
    PartSize,
    new_generation,
    new_name,
    part_folder,
)
from hps.ssd_store.cluster.part_name import PartName
from hps.ssd_store.promoted import Promotions
from hps.update_log import ServedCheckpoint

_TIMEOUT_SECONDS = 3600.0  # one thread may write while the others wait


@dataclass(frozen=True)
class _Found:
    """The checkpoint to move, and what makes stores like those that hold it."""

    sources: list[Source]
    tag: str | None
    created: float
    config: Config


def reshard(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    ranks: int | None,
    checkpoint: str | int | None = None,
) -> Json:
    """Makes a folder for another number of ranks of one checkpoint: rows, states, model, position.

    May run beside a training: nothing at `path` changes. `target` is there whole or not at all.

    Args:
        path: a cluster's folder with all its parts, or the directory of a store.
        target: a directory that is empty or not there yet.
        ranks: for how many ranks; None makes the store of one process.
        checkpoint: its tag, promoted name or id; None is the newest.

    Returns:
        tag, rows, bytes, ranks (0 for a store) and of each part its rows.

    Raises:
        ConfigError: `target` holds something, or lies in `path`; no such checkpoint, or none at
            all; bad `ranks`.
        StoreError: nothing is at `path`, a part is missing (names it), or the disk is full.
        CorruptionError: what is stored is damaged.

    Cost: reads and writes every row once; memory 8 MiB a rank, and the indexes of all stores.

    >>> import numpy, tempfile, hps
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tables = [hps.TableConfig(name="ads", dim=4)]
    ...     with hps.ParameterServer(hps.Config(path=f"{folder}/one", tables=tables)) as server:
    ...         _ = server.pull("ads", numpy.arange(100), create=True)
    ...     made = reshard(f"{folder}/one", f"{folder}/two", ranks=2)
    ...     with hps.open(f"{folder}/two") as two, hps.open(f"{folder}/one") as one:
    ...         made["rows"], one.digest("ads") == two.digest("ads")
    (100, True)
    """
    path, target = Path(path), Path(target)
    _check_asked(path, target, ranks)
    found = _find(path, checkpoint)
    with whole_folder(target) as folder:
        made = _make(found, folder, ranks)
    return {
        "tag": found.tag,
        "rows": sum(part.rows for part in made),
        "bytes": sum(part.bytes for part in made),
        "ranks": ranks or 0,
        "parts": [part.rows for part in made],
    }


def _check_asked(path: Path, target: Path, ranks: int | None) -> None:
    """Raises ConfigError as `reshard` says."""
    if ranks is not None:
        require_whole("reshard: ranks (--ranks)", ranks, 1, NUM_VIRTUAL)
    if target.resolve().is_relative_to(path.resolve()):
        raise ConfigError(
            f"{target} lies in {path}, which is only read; name a folder outside of it"
        )
    check_new_folder(target)


def _find(path: Path, checkpoint: str | int | None) -> _Found:
    promotions = Promotions.load(path)  # before CLUSTER: what they name is in it then
    catalog = Catalog.load(path)
    if catalog is None:
        source = Source(path, checkpoint)
        tag, created = _named(path, checkpoint)
        return _Found([source], tag, created, _config_of(path, source))
    if catalog.current is None and checkpoint is None:
        raise ConfigError(f"{path}: the ranks have taken no checkpoint yet")
    found = catalog.find(path, checkpoint, promotions)
    sources = sources_of(path, catalog, found)
    return _Found(sources, found.tag, found.created, _config_of(path, sources[0]))


def _named(path: Path, checkpoint: str | int | None) -> tuple[str | None, float]:
    """Tag and time of a store's checkpoint."""
    store: RowTier = open_store(path, [], read_only=True, rows=False)
    try:
        listed = store.checkpoints()
        one = find_listed(str(path), listed, checkpoint)
        if one is not None:
            return one["tag"], one["created"]
        if not store.extras(None):
            raise ConfigError(f"{path} has no checkpoint yet; its rows are in none")
        return None, time()
    finally:
        store.close()


def _config_of(path: Path, first: Source) -> Config:
    """What the stores to come have in common with those that are there."""
    engine = engine_of(first.folder)
    if engine is None:
        raise StoreError(
            errno.ENOENT,
            f"{first.folder}: part 0 is not here; mount or copy that folder to this host",
        )
    store: RowTier = open_store(first.folder, [], read_only=True, rows=False)
    try:
        if first.part is not None:
            first.part.check(store)
        extras = store.extras(first.checkpoint)
        _refuse_shard(path, extras)
        return Config(
            path=path,
            tables=dense_side.tables_from_store(list(store.schemas.values()), extras),
            ssd=SsdStoreConfig(engine=engine),
            seed=store.seed,
        )
    finally:
        store.close()


def _refuse_shard(path: Path, extras: Mapping[str, bytes]) -> None:
    """Refuses the store of one server among others: it has a part of the rows alone."""
    served = ServedCheckpoint.of(extras)
    if served is not None and served.count > 1:
        raise ConfigError(
            f"{path} is the store of shard {served.index} of {served.count}, which has a part of "
            "the rows alone; bring the shards' tables together with 'hps export' of each and 'hps "
            "import' into one store"
        )


def _make(found: _Found, folder: Path, ranks: int | None) -> list[PartSize]:
    """The stores of all ranks, and CLUSTER; or one store."""
    folder.mkdir()
    size = ranks or 1
    config = replace(found.config, threads=max(1, num_cores() // size))
    if ranks is None:
        target = NewStore(config, folder, found.tag)
        return _on_ranks(1, lambda world: move_rows(world, found.sources, target))[0]
    cluster, name = new_name(), new_name()
    generation = new_generation(cluster, 1)
    checkpoint = ClusterCheckpoint(
        id=1, name=name, tag=found.tag, created=found.created, generation=generation, parts=()
    )

    def move(world: LocalWorld) -> list[PartSize]:
        make_folders(folder, generation, world.rank)
        own = part_folder(folder, generation, world.rank)
        name = PartName(cluster=cluster, generation=generation, rank=world.rank, ranks=size)
        return move_rows(world, found.sources, NewStore(config, own, checkpoint.part_tag, name))

    parts = _on_ranks(size, move)[0]
    catalog = Catalog.begin(cluster).started(generation, size, config.seed)
    whole = replace(checkpoint, parts=tuple(parts))
    catalog.with_checkpoint(whole, config.ssd.keep_last, Promotions()).save(folder)
    return parts


def _on_ranks(size: int, act: Callable[[LocalWorld], list[PartSize]]) -> list[list[PartSize]]:
    """Runs act on ranks that are threads; raises the error that the others' come from."""
    worlds = local_worlds(size, _TIMEOUT_SECONDS)
    results: list[list[PartSize]] = [[] for _ in worlds]
    failures: list[BaseException] = []

    def run(world: LocalWorld) -> None:
        try:
            results[world.rank] = act(world)
        except BaseException as error:  # raised below, by the caller's thread
            failures.append(error)
            world.abort(str(error))

    threads = [threading.Thread(target=run, args=(world,), daemon=True) for world in worlds]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # an interrupt: the threads end at their next meeting
        for world in worlds:
            world.abort("interrupted")
        for thread in threads:
            thread.join()
        raise
    _raise_first(failures)
    return results


def _raise_first(failures: Sequence[BaseException]) -> None:
    for error in sorted(failures, key=lambda error: isinstance(error, ClusterError)):
        raise error
