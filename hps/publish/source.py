"""Source: one checkpoint of a store, as what is published from it.

Above it: publisher.py. Below it: the engines' read-only stores, the blobs of a checkpoint.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from hps import _C
from hps.checkpoint.blobs import (
    LINEAGE,
    MODEL,
    decode_model,
    decode_period,
    decode_rules,
    table_to_json,
    tables_from_store,
)
from hps.checkpoint.names import find_listed, text_of
from hps.common.expiry import Expiry
from hps.common.json_text import Json, JsonView
from hps.common.row_layout import Images, Keys
from hps.config import TableConfig
from hps.contracts.tiers import RowTier
from hps.errors import ConfigError, MismatchError, StoreError
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.cluster.cluster_store import ClusterStore
from hps.ssd_store.engine import SEGMENTS, engine_of
from hps.ssd_store.open_store import open_store
from hps.ssd_store.store import Places, SsdStore
from hps.table.life_rules import native_rules

Folder = tuple[int, int]  # device and number: no other has both while it is open
_SERVED = ("name", "dim", "initializer", "features", "shared_vocabulary")


@dataclass(frozen=True)
class PlacedRows:
    """Some rows of a part of a store, which is the whole but for ranks.

    Args:
        part: its number.
        images: uint8 [n, row_bytes].
        places: as SsdStore.places; None where the engine has none.
    """

    part: int
    images: Images
    places: Places | None


@dataclass(frozen=True)
class PartChanges:
    """Where a part of a table may differ between two checkpoints.

    Args:
        part: its number.
        table: its name.
        after, before: the part as of the two.
        changes: as SsdStore.changes_since tells them.
    """

    part: int
    table: str
    after: SsdStore
    before: SsdStore
    changes: _C.SsdChanges

    @property
    def others(self) -> Keys:
        """Keys that may have gone, or be others, and are none of the rows'; uint64 [n]."""
        return np.frombuffer(self.changes.others, np.uint64)

    def rows(self, piece_rows: int) -> Iterator[PlacedRows]:
        """Rows that were written since, or moved; pieces as those of Source.scan."""
        for images, places in self.after.scan_placed(self.table, piece_rows, self.changes):
            yield PlacedRows(self.part, images, places)


@dataclass
class Source:
    """A checkpoint, open for reading beside whoever writes. Use `open`.

    Args:
        path: of the store.
        folder: the folder itself, which another one may have taken the path of since.
        store: at the checkpoint.
        info: of it, as the store lists it.
        identity: of the store, or of the cluster; of RocksDB's engine empty.
        lineage: of the rows: another one after each return to an older checkpoint.
        period, rules: as of the checkpoint.
        tables: by name.
    """

    path: Path
    folder: Folder
    store: RowTier
    info: JsonView
    identity: str
    lineage: str
    period: int
    rules: dict[str, Expiry]
    tables: dict[str, TableConfig]
    _extras: dict[str, bytes] = field(default_factory=dict, repr=False)
    _native: dict[str, _C.LifeRules] = field(default_factory=dict)
    _marks: dict[tuple[str, str, int], _C.RecordMarks] = field(default_factory=dict, repr=False)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        checkpoint: str | int | None,
        beside: "Source | None" = None,
        *,
        rows: bool = True,
        shares_index: bool = False,
    ) -> Self:
        """Opens a checkpoint of a store, or of a folder of ranks.

        Args:
            path: of it.
            checkpoint: tag, promoted name or id; None: the newest.
            beside: another one of it, whose index is the same for the most part.
            rows: they are read; without them nothing waits for an index.
            shares_index: with that one, which can be asked for keys alone from then on.

        Raises:
            ConfigError: there is no checkpoint, or not that one. StoreError, CorruptionError: it
                cannot be read.
        """
        folder = Path(path).absolute()
        other = None if beside is None else beside.store
        own = other if isinstance(other, SsdStore) else None
        store = _open(folder, checkpoint, own, rows=rows)
        try:
            held = _folder_of(folder, store)
            listed = store.checkpoints()
            extras = store.extras(None)
            info = _own(folder, listed, checkpoint)
            lineage = extras.get(LINEAGE, b"").decode()
            if rows and isinstance(store, SsdStore):
                is_after = beside is not None and _is_after(beside, held, listed, info, lineage)
                store.load_rows(own if is_after else None, shares_index=shares_index)
            tables = tables_from_store(list(store.schemas.values()), extras)
            return cls(
                path=folder,
                folder=held,
                store=store,
                info=info,
                identity=_identity(folder, store),
                lineage=lineage,
                period=decode_period(extras),
                rules=decode_rules(extras),
                tables={table.name: table for table in tables},
                _extras={name: blob for name, blob in extras.items() if name == MODEL},
            )
        except BaseException:
            store.close()
            raise

    @property
    def created(self) -> float:
        """As Published."""
        return float(self.info["created"])

    @property
    def name(self) -> str:
        """As Published."""
        return text_of(self.info["tag"] or self.info["id"])

    @property
    def seed(self) -> int:
        """As Published."""
        return int(self.store.seed)

    @property
    def model(self) -> Json | None:
        """As Published; decoded now, which takes torch."""
        return decode_model(self._extras) if self._extras else None

    def keeps_model(self, before: Self) -> bool:
        """As Published: what is stored of it is the same bytes."""
        return self._extras == before._extras

    @property
    def can_follow(self) -> bool:
        """Whether changes between two checkpoints can be found: of segments, not of RocksDB."""
        return all(isinstance(part, SsdStore) for part in _parts(self.store))

    @property
    def keeps_files(self) -> bool:
        """As Published: a reader of segments keeps them."""
        return self.can_follow

    def source(self) -> Json:
        """As Published."""
        return {
            "store": self.identity,
            "lineage": self.lineage,
            "checkpoint": self.name,
            "created": self.created,
            "tables": self.described(),
        }

    def why_apart(self, number: int, source: JsonView) -> str:
        """As Published."""
        if not self.can_follow:
            return "a store of engine 'rocksdb' cannot tell what has changed"
        if source["store"] != self.identity:
            return f"version {number} is of another store"
        if source["lineage"] != self.lineage:
            return "the store went back to an older checkpoint since the newest version"
        if self.created < source["created"]:
            return f"version {number} is of a newer checkpoint"
        if source["tables"] != self.described():
            return "tables, or their rules, are others than those of the newest version"
        return ""

    def described(self) -> list[Json]:
        """Tables, as far as they are served, and rules: versions of one lineage have the same."""
        found = []
        for name, table in sorted(self.tables.items()):
            fields = table_to_json(table)
            rules = self.rules.get(name)
            served = {one: fields[one] for one in _SERVED}
            found.append({**served, "rules": None if rules is None else rules.described()})
        return found

    def scan(self, table: str, piece_rows: int) -> Iterator[PlacedRows]:
        """All rows of a table, in pieces that are good until the next one is asked for."""
        for number, part in enumerate(_parts(self.store)):
            if isinstance(part, SsdStore):
                for images, places in part.scan_placed(table, piece_rows):
                    yield PlacedRows(number, images, places)
            else:
                for images in part.scan(table, piece_rows):
                    yield PlacedRows(number, images, None)

    def changes_since(self, before: "Source", table: str) -> list["PartChanges"]:
        """What may have changed in a table since another checkpoint of the same store, of each of
        its parts.

        Raises:
            MismatchError: it is of another store, or one of the two of engine "rocksdb".
        """
        own, others = _parts(self.store), _parts(before.store)
        pairs = list(zip(own, others, strict=False))
        if len(own) != len(others) or not all(map(_are_alike, pairs)):
            raise MismatchError(
                f"{self.path}: checkpoint {before.name!r} is of another store than {self.name!r}, "
                "or of other ranks; what has changed between the two cannot be told"
            )
        found = []
        for number, (part, other) in enumerate(pairs):
            assert isinstance(part, SsdStore) and isinstance(other, SsdStore)
            changes = part.changes_since(other, table, self.period, before.period)
            found.append(PartChanges(number, table, part, other, changes))
        return found

    def marks(self, dtype: str, table: str, part: int) -> _C.RecordMarks:
        """What is known of the rows of a part of a table, as they are published in a type."""
        return self._marks.setdefault((dtype, table, part), _C.RecordMarks())

    def take_marks(self, before: "Source") -> None:
        """Knows from now on what is known of another checkpoint of the same store."""
        self._marks = before._marks
        for (_, table, number), marks in self._marks.items():
            kept: set[int] = set()
            for store in (self.store, before.store):
                part = _parts(store)[number]
                assert isinstance(part, SsdStore)
                kept.update(part.segments(table))
            marks.keep(sorted(kept))

    def is_servable(self, table: str, images: Images, min_score: float | None) -> np.ndarray:
        """bool [n]: of row images of a table those whose score is not below `min_score`."""
        rules = self.rules.get(table)
        if min_score is None or rules is None:
            return np.ones(len(images), np.bool_)
        if table not in self._native:
            self._native[table] = native_rules(rules)
        show, click, last = self.tables[table].layout.statistics(images)
        gaps = (self.period - last).astype(np.uint32)
        servable: np.ndarray = self._native[table].scores(show, click, gaps) >= min_score
        return servable

    def close(self) -> None:
        """Lets the checkpoint go; nothing to do the second time."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _are_alike(pair: tuple[RowTier, RowTier]) -> bool:
    """Whether two are checkpoints of one store of segments."""
    one, other = pair
    if not isinstance(one, SsdStore) or not isinstance(other, SsdStore):
        return False
    return one.identity == other.identity


def _is_after(
    beside: Source, folder: Folder, listed: list[Json], info: JsonView, lineage: str
) -> bool:
    """Whether another checkpoint is one that this one descends from: only then are rows that both
    have in the same segments newer than what else the other one has. One that is not kept, or lies
    in another folder, may be of other files under the same numbers."""
    is_kept = any(one["created"] == beside.created for one in listed)
    is_descendant = lineage == beside.lineage and info["created"] >= beside.created
    return is_kept and is_descendant and folder == beside.folder


def _open(
    folder: Path, checkpoint: str | int | None, beside: SsdStore | None, *, rows: bool
) -> RowTier:
    """The store; one of segments without its rows as yet."""
    if Catalog.load(folder) is not None:
        return ClusterStore.open(folder, [], read_only=True, checkpoint=checkpoint)
    engine = engine_of(folder)
    if engine is None:
        raise StoreError(2, f"{folder}: there is no store to publish from")
    rows = rows and engine != SEGMENTS
    return open_store(folder, [], read_only=True, checkpoint=checkpoint, beside=beside, rows=rows)


def _folder_of(path: Path, store: RowTier) -> Folder:
    """Of the folder that was opened, wherever it is now; of several ranks, and of RocksDB, of what
    lies at the path."""
    if isinstance(store, SsdStore):
        path = store.held_folder()
    try:
        found = path.stat()
    except OSError as error:
        raise StoreError(error.errno, f"cannot look at {path}: {error.strerror}") from error
    return found.st_dev, found.st_ino


def _own(folder: Path, listed: list[Json], checkpoint: str | int | None) -> JsonView:
    found = find_listed(str(folder), listed, checkpoint)
    if found is None:
        raise ConfigError(
            f"{folder}: it has no checkpoint yet, and versions are published from checkpoints; "
            "take one, or wait for the first"
        )
    return found


def _parts(store: RowTier) -> list[RowTier]:
    return list(store.parts) if isinstance(store, ClusterStore) else [store]


def _identity(folder: Path, store: RowTier) -> str:
    catalog = Catalog.load(folder)
    if catalog is not None:
        return f"ranks-{catalog.generation}"
    if isinstance(store, SsdStore):
        return f"{store.identity:016x}"
    return ""
