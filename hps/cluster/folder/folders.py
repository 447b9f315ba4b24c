"""A cluster's folder, as one rank opens it: the lock, the newest catalog, this rank's own store.

Above it: cluster/parameter_server.py, checkpoints.py. Below it: ssd_store/cluster/catalog.py,
ssd_store/promoted.py, reshard.py, ParameterServer. The path may be one folder that all ranks see,
or one of its own on every host; which parts lie where is found out at every opening. What the files
mean, and what a crash leaves, is described in docs/cluster_format.md.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from hps.checkpoint.blobs import table_to_json
from hps.cluster.folder.housekeeping import FolderLock, remove_generations
from hps.cluster.folder.reshard import move_rows, sources_of
from hps.cluster.folder.targets import EMPTY, NewStore
from hps.cluster.world.agreement import agree, attempt
from hps.cluster.world.world import World
from hps.common.durable_file import sync
from hps.common.json_text import Json
from hps.common.sharding import ShardMap
from hps.config import Config
from hps.errors import ConfigError, CorruptionError, HpsError, StoreError
from hps.parameter_server.server import ParameterServer
from hps.ssd_store import engine_of
from hps.ssd_store.cluster.catalog import (
    GENERATIONS,
    NAME,
    Catalog,
    ClusterCheckpoint,
    name_of_part,
    new_generation,
    new_name,
    part_folder,
)
from hps.ssd_store.cluster.part_name import PART, ExpectedPart, PartName, parts_of
from hps.ssd_store.promoted import NamesLock, Promotions

_HOLD_SECONDS = 1.0  # that rank 0 waits for the names before it tells the others that it does


class ClusterParts:
    """What one rank has opened: its own store, and what it knows of the whole.

    Made by `open_parts`.

    Args:
        config: of this rank; its path is the cluster's folder.
        world: the ranks.
        lock: of the folder.
        catalog: of the cluster; serial 0 if it is on no disk yet.
    """

    local: ParameterServer

    def __init__(self, config: Config, world: World, lock: FolderLock, catalog: Catalog) -> None:
        self.config = config
        self.path = Path(config.path).absolute()
        self.world = world
        self.lock = lock
        self.catalog = catalog
        self.promotions = Promotions()  # as they were last looked at: the same on every rank
        self.is_unsaved = False  # the stores have rows in a checkpoint that no catalog names
        # A restore failed on some ranks: they are at different checkpoints.
        self.is_diverged = False
        self.failure = ""  # nobody knows whether the newest catalog is on the disk

    @property
    def folder(self) -> Path:
        """Of this rank's store."""
        return part_folder(self.path, self.catalog.generation, self.world.rank)

    @property
    def name(self) -> PartName:
        """Of this rank's store."""
        return PartName(
            cluster=self.catalog.cluster,
            generation=self.catalog.generation,
            rank=self.world.rank,
            ranks=self.world.size,
        )

    def names_here(self) -> Json:
        """The promoted names of this folder, for `take_names`: of rank 0, and of hosts whose folder
        is another one.

        Raises:
            CorruptionError: their file is damaged. StoreError: it cannot be read.
        """
        tells = self.world.rank == 0 or self.lock.is_holder
        return Promotions.load(self.lock.inside).to_json() if tells else {}

    def take_names(self, told: Sequence[Json]) -> None:
        """Takes the names that the ranks have told of. Those of rank 0's folder count; of the next
        one's where it has none, as rank 0 may be on another host than it was."""
        self.promotions = Promotions.from_json(next((one for one in told if one), {}))

    def read_names(self, verb: str) -> None:
        """Collective: looks at the promoted names.

        Args:
            verb: for which that is done.

        Raises:
            CorruptionError, StoreError: as names_here, on every rank.
        """
        self.take_names(agree(self.world, verb, self.names_here))

    def _hold_names(self, until: ExitStack) -> Exception | None:
        """Collective: looks at the promoted names, which stay as they are until the stack closes.

        Returns:
            What to raise where that failed on some rank; all ranks know.
        """

        def hold() -> Json | None:
            if self.world.rank != 0:
                return self.names_here()
            # By who writes CLUSTER: where this rank is killed, that goes with the lock.
            if not locks:
                locks.append(until.enter_context(closing(NamesLock(self.lock.inside, self.path))))
            names = locks[0].take(_HOLD_SECONDS)
            return None if names is None else names.to_json()

        locks: list[NamesLock] = []
        while True:  # so that no rank waits long for another one's failure, or for rank 0's answer
            outcome = attempt(self.world, "holding the promoted names", hold)
            told = outcome.values
            if outcome.failure is not None:
                return outcome.failure
            if told[0] is not None:
                self.take_names([one or {} for one in told])
                return None

    def commit(
        self, change: Callable[[Promotions], Catalog], undo: Callable[[], None] = lambda: None
    ) -> None:
        """Collective: rank 0 puts a catalog in the place of the one before; then it counts.

        No promoted name moves meanwhile: what has one then is in the new catalog.

        Args:
            change: makes the new one, the same on every rank; is told the names.
            undo: called on every rank where it was not written and the old one stands for certain.

        Raises:
            ConfigError: of `change`; the old one stands.
            StoreError, ClusterError: the old one stands (`failure` is empty), or nobody knows.
        """
        self.failure = f"{self.path}: nobody knows whether CLUSTER is on the disk"
        with ExitStack() as names:
            failure = self._hold_names(names)
            catalog = self.catalog
            if failure is None:
                try:
                    catalog = change(self.promotions)
                except ConfigError as refused:  # on every rank
                    failure = refused
            if failure is not None:
                self.failure = ""
                undo()
                raise failure
            self._write(catalog, undo)

    def _write(self, catalog: Catalog, undo: Callable[[], None]) -> None:
        """As `commit`, of a catalog that is made; `failure` says that nobody knows."""

        def write() -> None:
            if self.world.rank == 0:
                self.lock.check_held()
                catalog.save(self.lock.inside)
                self.lock.check_held()  # what is told of as committed is where it is looked for

        outcome = attempt(self.world, "writing CLUSTER", write)
        if outcome.failure is None or self._is_old_in_place(catalog):
            self.failure = ""
        if outcome.failure is not None:
            if not self.failure:
                undo()
            raise outcome.failure
        self.catalog = catalog
        if self.lock.is_holder:
            self._keep_copy()

    def _keep_copy(self) -> None:
        """Tells the folder of another host than rank 0's, so that it never goes on from less.

        One that cannot be written is only older: the next one takes its place.
        """
        with suppress(OSError, CorruptionError):
            self.lock.check_held()
            found = Catalog.load(self.lock.inside)
            if found is None or found.serial < self.catalog.serial:
                self.catalog.save(self.lock.inside)

    def _is_old_in_place(self, catalog: Catalog) -> bool:
        """After a failed write: is it the old one for certain? The same on every rank."""

        def look() -> bool:
            if self.world.rank:
                return False
            found = Catalog.load(self.lock.inside)
            return found is not None and found.serial >= catalog.serial

        outcome = attempt(self.world, "reading CLUSTER", look)
        return outcome.failure is None and not any(outcome.values)

    def check_usable(self) -> None:
        """Raises StoreError after an error that left open what is on the disk."""
        if self.failure:
            raise StoreError(errno.EIO, f"{self.failure}; start the training again")

    def tidy(self) -> list[str]:
        """Deletes what no checkpoint names any more: parts in this rank's store, generations.

        Returns:
            The living readers, whose files stay until they close.
        """
        named = {one.name for one in self.catalog.checkpoints}
        readers: list[str] = []
        # The checkpoint is durable whatever stays: what cannot go now goes the next time. And this
        # rank must not raise alone, with the others in their next collective.
        with suppress(OSError, HpsError):
            for one in self.local.checkpoints():
                name = name_of_part(one["tag"])
                if name is not None and name not in named:
                    readers += self.local.delete_checkpoint(one["tag"])
            if self.lock.is_holder:
                readers += remove_generations(self.lock.inside, self.catalog)
        return [reader.replace(str(self.lock.inside), str(self.path)) for reader in readers]

    def close(self) -> None:
        """Closes this rank's store without saving, and lets go of the folder."""
        try:
            self.local.close()
        finally:
            self.lock.close()


def open_parts(config: Config, world: World) -> ClusterParts:
    """Opens the ranks' stores at the newest checkpoint, each its own; makes them if there are none.

    Collective. Where the ranks are not as many as those that wrote the checkpoint, or do not see
    the stores that were theirs, the rows move to new stores first: see docs/cluster_format.md.

    Args:
        config: of this rank. Tables and seed must be those of all ranks; path and budgets may
            differ.
        world: of the ranks.

    Raises:
        ConfigError: the ranks' configs differ, or do not fit the stores that are there; a store of
            one process lies in the folder.
        StoreError: a part of the checkpoint is seen by no rank (names it); another training has
            the folder open; the system refused. CorruptionError: a file is damaged, or a part is
            of another checkpoint.
    """
    check_same(world, config)
    run = world.control.gather(new_name())[0]
    path = Path(config.path).absolute()
    locks: list[FolderLock] = []
    opened: list[ParameterServer] = []
    try:
        agree(world, "locking the folder", lambda: locks.append(FolderLock(path, run)))
        agree(world, "checking the lock", locks[0].check)
        parts = ClusterParts(config, world, locks[0], _newest(world, path))
        parts.read_names("reading the promoted names")
        checkpoint = parts.catalog.current
        if checkpoint is None:
            _start(parts)
        elif not _is_in_place(parts, checkpoint):
            _move(parts, checkpoint)

        def enter() -> None:
            opened.append(_open_local(parts))

        agree(world, "opening the store", enter)
        parts.local = opened[0]
        parts.tidy()
        return parts
    except BaseException:
        for local in opened:
            local.close()
        for lock in locks:
            lock.close()
        raise


def check_same(world: World, config: Config) -> None:
    """Refuses ranks whose tables or seeds differ.

    Raises:
        ConfigError: on every rank; names the field and both values.
    """
    tables = {table.name: {**table_to_json(table), "share": 1.0} for table in config.tables}
    told = world.control.gather({"seed": config.seed, "tables": tables})
    for rank, one in enumerate(told):
        for what, own, other in _differences(told[0], one):
            refusal = ConfigError(
                f"the ranks differ in {what}: it is {own} on rank 0 and {other} on rank {rank}; "
                "start all of them with the same"
            )
            refusal.is_shared = True
            raise refusal


def _differences(
    first: object, second: object, what: str = ""
) -> Sequence[tuple[str, object, object]]:
    if not isinstance(first, dict) or not isinstance(second, dict):
        return [] if first == second else [(what, first, second)]
    found: list[tuple[str, object, object]] = []
    for name in sorted({*first, *second}):
        inner = f"{what}.{name}" if what else name
        found += _differences(first.get(name), second.get(name), inner)
    return found


def _newest(world: World, path: Path) -> Catalog:
    """The catalog that counts, of all that the ranks see; a new cluster's if there is none."""

    def look() -> Json:
        found = Catalog.load(path)
        if found is None and engine_of(path) is not None:
            raise ConfigError(
                f"{path} is a store of one process; make one for {world.size} rank(s) of it with "
                f"'hps reshard {path} OUT --ranks {world.size}'"
            )
        generations = sorted(folder.name for folder in path.glob(GENERATIONS))
        own_name = new_name() if world.rank == 0 else ""
        catalog = None if found is None else found.to_json()
        return {"catalog": catalog, "generations": generations, "new": own_name}

    told = agree(world, "reading CLUSTER", look)
    newest: Json | None = None
    for rank, one in enumerate(part["catalog"] for part in told):
        if one is None:
            continue
        if newest is not None and one["cluster"] != newest["cluster"]:
            raise ConfigError(
                f"{path}: the ranks see folders of different trainings: {one['cluster']} on rank "
                f"{rank}, {newest['cluster']} on another; give each training a path of its own"
            )
        if newest is None or one["serial"] > newest["serial"]:
            newest = one
        elif one["serial"] == newest["serial"] and one != newest:
            raise CorruptionError(
                f"{path / NAME}: rank {rank} and another rank see different files with the same "
                f"serial number {one['serial']}: two trainings continued from copies of one "
                "folder; start the ranks with the folders of one of them"
            )
    if newest is not None:
        return Catalog.from_json(newest)
    for rank, part in enumerate(told):
        if part["generations"]:
            raise CorruptionError(
                f"{path / NAME}: no rank sees that file, but rank {rank} sees "
                f"{path / part['generations'][0]}; put the file back, start the host that has it, "
                "or remove the folder to start from the beginning"
            )
    return Catalog.begin(told[0]["new"])


def _start(parts: ClusterParts) -> None:
    """A generation without a checkpoint; CLUSTER names it before there is anything in it."""
    catalog, world, config = parts.catalog, parts.world, parts.config
    name = new_generation(catalog.cluster, catalog.serial + 1)
    generation = world.control.gather(name)[0]
    parts.commit(lambda _: catalog.started(generation, world.size, config.seed))


def _is_in_place(parts: ClusterParts, checkpoint: ClusterCheckpoint) -> bool:
    """True if every rank sees the store that was its own, in all ranks' eyes."""
    catalog, world = parts.catalog, parts.world
    owners = ShardMap(world.size)
    is_same_map = (catalog.num_virtual, catalog.hash) == (owners.num_virtual, owners.hash)
    if not is_same_map or catalog.ranks != world.size:
        return False
    own = sources_of(parts.path, catalog, checkpoint)[world.rank]
    return all(agree(world, "looking for the own part", own.is_here))


def _open_local(parts: ClusterParts) -> ParameterServer:
    """This rank's store, at its part of the current checkpoint."""
    make_folders(parts.lock.inside, parts.catalog.generation, parts.world.rank)
    parts.lock.check_held()  # the store is opened by its path
    local = ParameterServer(replace(parts.config, path=parts.folder))
    try:
        checkpoint = parts.catalog.current
        if checkpoint is None:
            local.parts.checkpoints.save(EMPTY, {})
        else:
            go_to(local, parts_of(parts.path, parts.catalog, checkpoint)[parts.world.rank])
        return local
    except BaseException:
        local.close()
        raise


def go_to(local: ParameterServer, part: ExpectedPart) -> None:
    """Brings a rank's store to its part of a checkpoint, if it is not there.

    Raises:
        CorruptionError: it has no such part, or is another rank's.
    """
    listed = local.checkpoints()
    part.check_listed(listed, lambda tag: local.checkpoint_blobs(tag, (PART,)))
    if not any(one["current"] and one["tag"] == part.tag for one in listed):
        local.restore(part.tag)
    if PART not in local.checkpoint_blobs(None, (PART,)):
        part.check_folder()


def make_folders(path: Path, generation: str, rank: int) -> None:
    """Makes the folder of a rank's store; its name is durable, and those of the folders above.

    Raises:
        OSError: the system refused.
    """
    folder = part_folder(path, generation, rank)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        for parent in (folder.parent, path, path / ".."):
            sync(parent)


def _move(parts: ClusterParts, checkpoint: ClusterCheckpoint) -> None:
    """The current checkpoint's rows into a new generation, which counts from the commit on."""
    catalog, world = parts.catalog, parts.world
    names = [new_name(), new_generation(catalog.cluster, catalog.serial + 1)]
    name, generation = world.control.gather(names)[0]
    sources = sources_of(parts.path, catalog, checkpoint)
    moved = replace(checkpoint, name=name, generation=generation)
    folder = part_folder(parts.path, generation, world.rank)
    target = NewStore(
        parts.config, folder, moved.part_tag, replace(parts.name, generation=generation)
    )
    try:
        inside = parts.lock.inside
        agree(world, "making folders", lambda: make_folders(inside, generation, world.rank))
        agree(world, "looking at the folder", parts.lock.check_held)
        moved = replace(moved, parts=tuple(move_rows(world, sources, target)))
        parts.commit(partial(catalog.moved, moved))
    except (ConfigError, StoreError, CorruptionError):  # of all ranks
        attempt(world, "closing the new parts", lambda: None)
        if parts.lock.is_holder and not parts.failure:
            remove_generations(parts.lock.inside, catalog)
        raise
