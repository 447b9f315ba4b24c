"""PublishedRows: the rows of one published version, on this machine, and their way to the next.

Above it: follower.py. Below it: hps/publish (what a version is), a ParameterServer over a store of
its own. While there is memory for the rows, they lie there alone: the store beneath takes what is
put out, takes no checkpoint, and so needs no index of them; a process that starts again reads the
files of versions that are kept here. Once a good part of the rows is in the store, it takes
checkpoints that say which version they are of, and the process goes on from there.
"""

import hashlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from hps import _C
from hps.checkpoint.blobs import READER, decode_json, table_from_json
from hps.common.json_text import Json
from hps.common.optimizers import SGD
from hps.common.row_layout import Images, Keys
from hps.config import Config, DramCacheConfig, GpuCacheConfig, SsdStoreConfig, TableConfig
from hps.contracts.joint import Overlays
from hps.errors import ConfigError, HpsError, StoreError
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import ParameterServer
from hps.publish.codec import BFLOAT16, RowCodec
from hps.publish.destination import Destination
from hps.publish.fetch import (
    KeptFiles,
    check_not_stopped,
    fetched,
    own_folder,
    remove_abandoned,
)
from hps.publish.leases import drop_lease, take_lease
from hps.publish.row_files import read_keys, read_rows
from hps.publish.version import (
    BASE,
    PublishedTable,
    StoredFile,
    Version,
    chain_of,
    listed_versions,
    load_version,
    versions_after,
)
from hps.ssd_store.engine import engine_of
from hps.ssd_store.open_store import check_no_writer

if TYPE_CHECKING:
    from hps.contracts.row_cache import AnyRowCache

# Rows put into an empty table at once. More of them crowd some of its buckets, as each is placed by
# how full these were before.
_LOADED_PIECE = 2**14
_PREFIX = "rows-"
_KEPT = "published"  # in a local store's folder: files of versions
# Of the rows, in the store: from there on all are, by a checkpoint.
_MOST_STORED = 0.1
# Rows put into the store, or erased, at once beside calls, each of which may wait for it.
_READ_PIECE = 256
_ERASED_PIECE = 64
_PAUSE_SECONDS = 0.0005
_MOST_UNSAVED = 16  # versions behind which the local store takes a checkpoint


@dataclass(frozen=True)
class RowMemory:
    """Memory of this machine for rows.

    Args:
        dram: bytes, or as text.
        gpu: of a GPU tier over them; None: none.
    """

    dram: int | str
    gpu: GpuCacheConfig | None = None


def of_weights_alone(table: TableConfig, dtype: str) -> TableConfig:
    """The table without what trains, counts or ends its rows."""
    return replace(
        table,
        optimizer=SGD(lr=1.0),
        statistics=False,
        expiry=None,
        admission=None,
        max_rows=None,
        max_bytes=None,
        negative_rate=1.0,
        dtype=dtype,
        rounding="nearest",  # nothing is updated
    )


def local_table(published: PublishedTable) -> TableConfig:
    """The table that holds a version's rows."""
    dtype = "bfloat16" if published.dtype == BFLOAT16 else "float32"
    return of_weights_alone(table_from_json(published.table), dtype)


class PublishedRows:
    """A server over the rows of one version. Use `open`; a context manager.

    Attributes: `server`, a ParameterServer; `version`.
    """

    def __init__(
        self,
        folder: Path,
        server: ParameterServer,
        version: Version,
        kept: KeptFiles | None = None,
    ) -> None:
        self.folder = folder
        self.server = server
        self.version = version
        self._kept = kept  # in place of checkpoints
        self._names: set[str] = set()  # sha256 of files that are worth keeping
        self._num_unsaved = 0
        self._is_half = False  # a change was begun, and has not come to its end

    @classmethod
    def open(
        cls,
        destination: Destination,
        number: int | None,
        cache: Path,
        memory: RowMemory,
        *,
        anew: bool = False,
        stopped: Event | None = None,
    ) -> Self:
        """The rows of a version: those of an earlier process, brought forward, or read anew.

        Args:
            destination: where versions are.
            number: of the version; None: the newest.
            cache: a folder for local stores.
            memory: for rows.
            anew: leave other local stores alone: one of them is in use.
            stopped: as `fetched` takes it.

        Raises:
            ConfigError: no such version. CorruptionError: what is published is damaged, or of two
                histories. StoreError: it cannot be read, or the disk is full.
        """
        remove_abandoned(cache)
        chain = chain_of(destination, number)
        lease = take_lease(destination, chain[0].number)
        try:
            if anew:
                return cls._anew(destination, chain, cache, memory, stopped)
            with own_folder(cache) as spare:
                known = cls._known(destination, chain[-1], cache, memory, KeptFiles(spare / _KEPT))
                if known is not None:
                    return known
                return cls._anew(destination, chain, cache, memory, stopped, spare / _KEPT)
        finally:
            drop_lease(destination, lease)

    @classmethod
    def _known(
        cls,
        destination: Destination,
        newest: Version,
        cache: Path,
        memory: RowMemory,
        spare: KeptFiles,
    ) -> Self | None:
        """Of a local store of this destination from which changes lead to a version; the others go,
        but for those that a process has open, and for files of versions, which `spare` gets."""
        found: Self | None = None
        for folder in sorted(cache.glob(f"{_prefix(destination)}*"), reverse=True):
            if found is None:
                found = cls._of_folder(folder, destination, newest, memory)
            if found is None or found.folder != folder:
                _remove_unused(folder, spare)
        return found

    @classmethod
    def _of_folder(
        cls,
        folder: Path,
        destination: Destination,
        newest: Version,
        memory: RowMemory,
    ) -> Self | None:
        """None where it is of no use: it is only a copy."""
        with ExitStack() as opened:
            try:
                if engine_of(folder) is None:
                    return None
                server = _server(folder, newest, memory)
                opened.callback(server.close)
                mark = decode_json(server.checkpoint_blobs(None, (READER,)), READER)
                number, sha256 = int(mark["version"]), str(mark["sha256"])
            except (HpsError, KeyError, TypeError, ValueError):
                return None
            if number not in listed_versions(destination):
                return None
            own = load_version(destination, number)
            path = versions_after(destination, own, newest)
            if own.sha256 != sha256 or path is None:
                return None
            rows = cls(folder, server, own)
            lease = take_lease(destination, number)
            try:
                for version in path:
                    with rows.changes(destination, version) as changes:
                        rows.apply(version, changes)
            finally:
                drop_lease(destination, lease)
            opened.pop_all()
        return rows

    @classmethod
    def _anew(
        cls,
        destination: Destination,
        chain: Sequence[Version],
        cache: Path,
        memory: RowMemory,
        stopped: Event | None,
        spare: Path | None = None,
    ) -> Self:
        base, newest = chain[0], chain[-1]
        name = f"{_prefix(destination)}{newest.number:08d}-{secrets.token_hex(4)}"
        folder = cache / name
        with ExitStack() as opened:
            opened.callback(_remove, folder)
            server = _server(folder, newest, memory)
            opened.callback(server.close)
            kept = KeptFiles(folder / _KEPT)
            rows = cls(folder, server, base, kept)
            if spare is not None:
                kept.take_all(spare)
            for table in newest.tables:
                server.parts.rows.expect(table.name, table.rows)
            files = [file for table in base.tables for file in table.base or ()]
            rows._names = {file.sha256 for file in files}
            with fetched(destination, files, cache, stopped, kept) as paths:
                for table in base.tables:
                    for file in table.base or ():
                        for keys, weights in _mixed(table, paths[file.name]):
                            check_not_stopped(stopped, file.name)
                            for at in range(0, len(keys), _LOADED_PIECE):
                                part = slice(at, at + _LOADED_PIECE)
                                server.assign(table.name, keys[part], weights[part])
            for version in chain[1:]:
                with rows.changes(destination, version, stopped) as changes:
                    rows.apply(version, changes)
            rows.save()
            opened.pop_all()
        return rows

    @contextmanager
    def changes(
        self, destination: Destination, version: Version, stopped: Event | None = None
    ) -> Iterator["Changes"]:
        """What leads from this version to the next one, fetched and checked, in memory.

        Args:
            stopped: as `fetched` takes it.

        Raises:
            CorruptionError, StoreError: it is damaged, or cannot be read; nothing has changed.
        """
        files = _changed_files(version)
        with fetched(destination, files, self.folder.parent, stopped, self._kept) as paths:
            yield Changes.read(version, paths)

    def overlays(self, changes: Sequence["Changes"]) -> Overlays:
        """What several versions change, one after the other, as rows by key: of keys that went
        their initial values."""
        found: dict[str, list[tuple[Keys, Any]]] = {}
        for change in changes:
            for table, keys in change.removed:
                initial = self.server.parts.rows.initial_weights(table, keys)
                found.setdefault(table, []).append((keys, initial))
            for table, keys, weights in change.changed:
                found.setdefault(table, []).append((keys, weights))
        return {
            table: _C.RowOverlay(
                np.concatenate([keys for keys, _ in pieces]),
                np.concatenate([weights for _, weights in pieces]),
            )
            for table, pieces in found.items()
        }

    def apply(self, version: Version, changes: "Changes", is_read: bool = False) -> None:
        """Goes to the next version.

        Args:
            is_read: calls read rows meanwhile, those that change from an overlay: it is done in
                small pieces, with pauses in which others have locks and processors.

        Raises:
            StoreError: the disk is full. Rows are then of no version: close, and open anew.
        """
        self._is_half = True
        for table, keys in changes.removed:
            if not is_read:
                self.server.erase(table, keys)
                continue
            for first in range(0, len(keys), _ERASED_PIECE):
                self.server.erase(table, keys[first : first + _ERASED_PIECE])
                _pause()
        for table, keys, weights in changes.changed:
            if is_read:
                rows = self.server.parts.rows
                rows.assign_beside(table, keys, weights, _READ_PIECE, _pause)
            else:
                self.server.assign(table, keys, weights)
        self._is_half = False
        self.version = version
        self._num_unsaved += 1
        if version.kind == BASE:
            self._names = set()  # who starts again begins with its rows
        else:
            self._names |= {file.sha256 for file in _changed_files(version)}

    def save_if_due(self) -> None:
        """Makes what was applied durable, every so many versions."""
        if self._num_unsaved >= _MOST_UNSAVED:
            self.save()

    def save(self) -> None:
        """Makes what was applied durable, so that another process need not read it again."""
        if self._kept is not None and self._is_in_memory():
            self._kept.keep_only(self._names)
            self._num_unsaved = 0
            return
        mark: Json = {"version": self.version.number, "sha256": self.version.sha256}
        self.server.checkpoint(reader=mark)
        self._num_unsaved = 0
        if self._kept is not None:
            self._kept.keep_only(())
            self._kept = None

    def _is_in_memory(self) -> bool:
        """Whether the store beneath knows of few rows at most."""
        rows, tables = self.server.parts.rows, self.server.tables
        stored = sum(rows.num_stored(table) for table in tables)
        return stored <= _MOST_STORED * sum(rows.num_rows(table) for table in tables)

    def close(self) -> None:
        """Saves, and closes the store; nothing to do the second time."""
        with suppress(HpsError):  # it is only a copy
            if self._num_unsaved and not self._is_half:
                self.save()
        self.server.close()

    def drop(self) -> None:
        """Closes the store and removes it."""
        with suppress(HpsError):  # as above
            self.server.close()
        _remove(self.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Changes:
    """What one version changes, decoded: pieces of (table, keys, weights) and (table, keys)."""

    def __init__(
        self,
        changed: list[tuple[str, Keys, Any]],
        removed: list[tuple[str, Keys]],
    ) -> None:
        self.changed = changed
        self.removed = removed

    @classmethod
    def read(cls, version: Version, paths: dict[str, Path]) -> Self:
        """Of a version's files."""
        changed, removed = [], []
        for table in version.tables:
            for file in table.changed or ():
                for keys, weights in _decoded(table, paths[file.name]):
                    changed.append((table.name, keys.copy(), weights))
            for file in table.removed or ():
                removed += [(table.name, keys.copy()) for keys in read_keys(paths[file.name])]
        return cls(changed, removed)


def _changed_files(version: Version) -> list[StoredFile]:
    return [
        file
        for table in version.tables
        for part in (table.changed, table.removed)
        for file in part or ()
    ]


def _pause() -> None:
    time.sleep(_PAUSE_SECONDS)


def _decoded(table: PublishedTable, path: Path) -> Iterator[tuple[Keys, Any]]:
    codec = RowCodec(table.dtype, int(table.table["dim"]))
    for keys, rows in read_rows(path, codec.row_bytes):
        yield keys, codec.decode(_contiguous(rows)).copy()


def _mixed(table: PublishedTable, path: Path) -> Iterator[tuple[Keys, Any]]:
    """As `_decoded`, each piece drawn from all over the file: rows lie there in the order of their
    hashes, and a cache that is given neighbours, or every n-th of them, fills some of its buckets
    before others, and puts rows out that it has memory for."""
    codec = RowCodec(table.dtype, int(table.table["dim"]))
    pieces, random = list(read_rows(path, codec.row_bytes)), np.random.default_rng(0)
    # One order for all pieces of a size: memory for one a row would stay with the process.
    sizes = {len(keys) for keys, _ in pieces}
    orders = {size: random.permutation(np.arange(size, dtype=np.uint32)) for size in sizes}
    for first in range(len(pieces)):
        drawn = [orders[len(keys)][first :: len(pieces)] for keys, _ in pieces]
        found = list(zip(pieces, drawn, strict=True))
        keys = np.concatenate([keys[places] for (keys, _), places in found])
        yield keys, codec.decode(np.concatenate([rows[places] for (_, rows), places in found]))


def _contiguous(rows: Images) -> Images:
    return rows if rows.flags.c_contiguous else rows.copy()


def _server(folder: Path, version: Version, memory: RowMemory) -> ParameterServer:
    """Rows of keys and weights alone are packed in memory."""
    if not version.tables:
        raise ConfigError(f"version {version.number} has no table")
    config = Config(
        path=folder,
        tables=[local_table(one) for one in version.tables],
        dram=DramCacheConfig(bytes=memory.dram),
        gpu=memory.gpu,
        ssd=SsdStoreConfig(keep_last=1),
        seed=version.seed,
    )
    packed = cast("Callable[..., AnyRowCache]", partial(_C.DramCache, packed=True))
    return ParameterServer(config, _tiers=Tiers(make_cache=packed))


def _prefix(destination: Destination) -> str:
    """Of the local stores of one destination, of which several may share a folder."""
    return f"{_PREFIX}{hashlib.sha256(destination.shown.encode()).hexdigest()[:8]}-"


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _remove_unused(folder: Path, spare: KeptFiles) -> None:
    """Removes a local store, unless a process has it open; `spare` gets the files of versions."""
    try:
        if engine_of(folder) is not None:
            check_no_writer(folder)
    except StoreError:
        return
    with suppress(OSError):  # they are fetched again
        spare.take_all(folder / _KEPT)
    _remove(folder)
