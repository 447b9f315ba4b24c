"""ClusterStore: the parts of a checkpoint over several ranks, read as the one store that they are.

Above it: `hps.open`, which stacks caches over it; through it `hps evaluate`, `stats`, `export`.
Below it: catalog.py, the ssd_store's own readers. It is a RowTier (hps/contracts/tiers.py) that
refuses every change.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, Unpack

import numpy as np
from numpy.typing import NDArray

from hps.common.json_text import Json, JsonView
from hps.common.sharding import ShardMap
from hps.contracts.tiers import Flags, Keys, Rows, RowTier
from hps.errors import ConfigError, HpsError, StoreError
from hps.ssd_store import TableSchema, engine_of, open_store
from hps.ssd_store.arguments import OpenOptions
from hps.ssd_store.cluster.catalog import Catalog, ClusterCheckpoint
from hps.ssd_store.cluster.part_name import PART, ExpectedPart, parts_of
from hps.ssd_store.open_store import verify
from hps.ssd_store.promoted import Promotions

_MOST_ATTEMPTS = 5
# Figures of a store that are the same of each part; all other numbers add up.
_NOT_ADDED = ("write_amplification",)


class ClusterOptions(OpenOptions, total=False):
    """What `ClusterStore.open` takes by keyword."""

    engine: str | None


class ClusterStore:
    """All parts of one checkpoint, read-only. Use `open`; the verbs are those of RowTier."""

    num_loads = 1

    def __init__(
        self,
        path: Path,
        catalog: Catalog,
        promotions: Promotions,
        checkpoint: ClusterCheckpoint | None,
        parts: Sequence[RowTier],
    ) -> None:
        self.path = path
        self.seed = catalog.seed
        self._catalog = catalog
        self._promotions = promotions
        self._checkpoint = checkpoint
        self._parts = parts
        self._owners = ShardMap(max(1, len(parts)))
        self.schemas: Mapping[str, TableSchema] = parts[0].schemas if parts else {}

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        tables: Sequence[TableSchema],
        **options: Unpack[ClusterOptions],
    ) -> Self:
        """Opens every part of a checkpoint; they must all be seen from here.

        Args:
            path: the cluster's folder.
            tables: the tables wanted; others that the parts hold are in `schemas` too.
            options: as hps.ssd_store.open_store takes them, with read_only.

        Raises:
            ConfigError: no such checkpoint; a table or the seed is another.
            StoreError: a part is not here; names it. CorruptionError: a part is damaged, or is
                another rank's, another cluster's or an older one.
        """
        folder = Path(path)
        for _ in range(_MOST_ATTEMPTS):
            catalog = _load(folder)
            try:
                return cls._open_once(folder, catalog, tables, options)
            except HpsError:
                # A trainer beside us may have let go of the checkpoint; then there is another one.
                if _load(folder).serial == catalog.serial:
                    raise
        raise StoreError(
            errno.EAGAIN,
            f"{folder}: CLUSTER changed {_MOST_ATTEMPTS} times while it was opened; try again",
        )

    @classmethod
    def _open_once(
        cls, path: Path, catalog: Catalog, tables: Sequence[TableSchema], options: ClusterOptions
    ) -> Self:
        name = options.get("checkpoint")
        if name is None and catalog.current is None:
            raise StoreError(
                errno.ENOENT, f"{path}: the ranks have taken no checkpoint yet; wait for the first"
            )
        promotions = Promotions.load(path)  # after CLUSTER: what it lacks is tried again
        checkpoint = catalog.find(path, name, promotions)
        own: ClusterOptions = {**options, "engine": None, "checkpoint": checkpoint.part_tag}
        parts: list[RowTier] = []
        try:
            has_rows = options.get("rows", True)
            for part in _parts_here(path, catalog, checkpoint):
                parts.append(_open_part(part, tables, own))
                (part.check_rows if has_rows else part.check)(parts[-1])
            return cls(path, catalog, promotions, checkpoint, parts)
        except BaseException:
            for store in parts:
                store.close()
            raise

    @property
    def parts(self) -> Sequence[RowTier]:
        """The stores of the ranks, in order."""
        return self._parts

    # Rows.

    def append(self, table: str, rows: Rows) -> None:
        """Refused."""
        raise self._read_only()

    def erase(self, table: str, keys: Keys) -> Flags:
        """Refused."""
        raise self._read_only()

    def fetch(self, table: str, keys: Keys, rows: Rows, found: Flags) -> None:
        """As `RowTier.fetch`; each key is asked of the part that owns it."""
        for part, places in zip(self._parts, self._owners.split(keys), strict=True):
            if not len(places):
                continue
            images = np.empty((len(places), rows.shape[1]), np.uint8)
            flags = np.empty(len(places), np.uint8)
            part.fetch(table, keys[places], images, flags)
            stored = flags != 0
            rows[places[stored]] = images[stored]
            found[places] = flags

    def contains(self, table: str, keys: Keys) -> Flags:
        """As `RowTier.contains`."""
        found = np.zeros(len(keys), np.uint8)
        for part, places in zip(self._parts, self._owners.split(keys), strict=True):
            found[places] = part.contains(table, keys[places])
        return found

    def num_rows(self, table: str) -> int:
        """As `RowTier.num_rows`."""
        return sum(part.num_rows(table) for part in self._parts)

    def set_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """Refused."""
        raise self._read_only()

    def check_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """Refused."""
        raise self._read_only()

    def count_deaths(self, table: str, period: int) -> NDArray[np.uint64]:
        """Refused: it is for a period that begins."""
        raise self._read_only()

    def follow_period(self) -> None:
        """As `RowTier.follow_period`: each part is at its checkpoint's."""

    def has_deaths(self, table: str) -> bool:
        """As `RowTier.has_deaths`, of all parts."""
        return all(part.has_deaths(table) for part in self._parts)

    def scan(self, table: str, batch_rows: int = 65536) -> Iterator[Rows]:
        """As `RowTier.scan`: part after part."""
        scans = [part.scan(table, batch_rows) for part in self._parts]
        return (rows for scan in scans for rows in scan)

    # Checkpoints.

    def checkpoint(
        self,
        tag: str | None = None,
        extras: Mapping[str, bytes] | None = None,
        taken: Callable[[], object] | None = None,
    ) -> Json:
        """Refused."""
        raise self._read_only()

    def space_of_compact(self, table: str | None = None) -> dict[str, int]:
        """Refused."""
        raise self._read_only()

    def compact(self, table: str | None = None) -> None:
        """Refused."""
        raise self._read_only()

    def restore(self, checkpoint: str | int | None = None) -> None:
        """Refused."""
        raise self._read_only()

    def delete_checkpoint(self, checkpoint: str | int) -> list[str]:
        """Refused."""
        raise self._read_only()

    def checkpoints(self) -> list[Json]:
        """The checkpoints over all ranks, oldest first, and their names, as of the opening."""
        return self._catalog.described(self._promotions)

    def extras(
        self, checkpoint: str | int | None = None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """As `RowTier.extras`: the dense side lies in the first part."""
        with self._first_of(checkpoint) as (store, tag):
            return dict(store.extras(tag, names))

    def extra_bytes(self, checkpoint: str | int | None = None) -> dict[str, int]:
        """As `RowTier.extra_bytes`."""
        with self._first_of(checkpoint) as (store, tag):
            return dict(store.extra_bytes(tag))

    @contextmanager
    def _first_of(self, checkpoint: str | int | None) -> Iterator[tuple[RowTier, str | None]]:
        """The store of the first part of a checkpoint, and the tag of that part in it."""
        found = self._checkpoint
        if checkpoint is not None:
            found = self._catalog.find(self.path, checkpoint, self._promotions)
        if found is None or found == self._checkpoint:
            yield self._parts[0], None if found is None else found.part_tag
            return
        part = _parts_here(self.path, self._catalog, found)[0]
        store: RowTier = open_store(part.folder, [], read_only=True, rows=False)
        try:
            part.check(store)
            yield store, found.part_tag
        finally:
            store.close()

    def stats(self) -> Json:
        """As `RowTier.stats`: the sums over the parts."""
        return _add_up([part.stats() for part in self._parts])

    def held_folder(self) -> Path:
        """Refused: each part has a folder of its own."""
        raise self._read_only()

    def verify(self) -> list[tuple[str, str]]:
        """As `verify_cluster`."""
        return verify_cluster(self.path)

    def close(self) -> None:
        """As `RowTier.close`."""
        for part in self._parts:
            part.close()

    def _read_only(self) -> ConfigError:
        return ConfigError(
            f"{self.path}: the parts of a checkpoint over several ranks are read-only here"
        )


def verify_cluster(path: Path) -> list[tuple[str, str]]:
    """Checks CLUSTER, every checksum of every part that a checkpoint names, whose part each is,
    and, at the newest checkpoint that lies in a store, that each key's rank is the one that has it.

    Returns:
        (file, what is wrong with it), also of parts that are not here, or are not those.

    Raises:
        StoreError: there is no cluster. CorruptionError: CLUSTER itself is damaged.
    """
    catalog = _load(path)
    damaged: list[tuple[str, str]] = []
    parts: dict[Path, list[ExpectedPart]] = {}
    for checkpoint in catalog.checkpoints:
        for part in parts_of(path, catalog, checkpoint):
            parts.setdefault(part.folder, []).append(part)
    for folder, needed in parts.items():
        if engine_of(folder) is None:
            damaged.append((str(folder), "the part is not here"))
            continue
        of_folder = verify(folder)
        damaged += of_folder
        wrong = [] if of_folder else list(_wrong_parts(needed))
        if wrong:  # a trainer beside us may have let go of the checkpoint
            named = {one.part_tag for one in _load(path).checkpoints}
            damaged += [(str(folder), what) for tag, what in wrong if tag in named]
    return damaged


def _wrong_parts(parts: Sequence[ExpectedPart]) -> Iterator[tuple[str, str]]:
    """(tag, what is wrong) of parts that lie in one store, the oldest first, whose checksums
    hold."""
    for part in parts:
        try:
            store: RowTier = open_store(part.folder, [], read_only=True, rows=False)
            try:
                part.check(store)
                has_name = PART in store.extras(part.tag, (PART,))
            finally:
                store.close()
            if part is parts[-1] or not has_name:
                store = open_store(part.folder, [], read_only=True, checkpoint=part.tag)
                try:
                    part.check_keys(store)
                finally:
                    store.close()
        except HpsError as error:
            yield part.tag, str(error).removeprefix(f"{part.folder}: ")


def _load(path: Path) -> Catalog:
    catalog = Catalog.load(path)
    if catalog is None:
        raise StoreError(errno.ENOENT, f"{path}: there is no cluster here")
    return catalog


def _parts_here(path: Path, catalog: Catalog, checkpoint: ClusterCheckpoint) -> list[ExpectedPart]:
    """Each rank's part of a checkpoint.

    Raises:
        StoreError: one is not here.
    """
    parts = parts_of(path, catalog, checkpoint)
    for rank, part in enumerate(parts):
        if engine_of(part.folder) is None:
            raise StoreError(
                errno.ENOENT,
                f"{part.folder}: part {rank} of {len(parts)} is not here; mount or copy that "
                "folder to this host",
            )
    return parts


def _open_part(
    part: ExpectedPart, tables: Sequence[TableSchema], options: ClusterOptions
) -> RowTier:
    try:
        return open_store(part.folder, tables, **options)
    except ConfigError:  # of a table, the seed or the checkpoint: maybe it is another store
        store: RowTier = open_store(part.folder, [], read_only=True, rows=False)
        try:
            part.check(store)
        finally:
            store.close()
        raise


def _add_up(parts: Sequence[JsonView]) -> Json:
    """Sums of numbers by name, of nested mappings too."""
    total: Json = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts if name in part]
        if isinstance(first, Mapping):
            total[name] = _add_up(values)
        elif isinstance(first, int | float) and name not in _NOT_ADDED:
            total[name] = sum(values)
    return total
