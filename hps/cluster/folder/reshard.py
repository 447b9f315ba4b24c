"""Rows move from the stores of some ranks to those of others: at an opening, and by `hps reshard`.

Above it: folders.py, checkpoints.py, offline.py. Below it: the ssd_store,
cluster/world/agreement.py, the control channel. Rows travel as the images that the stores hold, so
weights, state and digest stay the same to the bit. Nothing of the source changes.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hps.checkpoint.blobs import MODEL, PERIOD, RATES, READER, TABLES
from hps.checkpoint.dense_mark import DENSE
from hps.cluster.folder.targets import Target
from hps.cluster.world.agreement import agree
from hps.cluster.world.blobs import send_blobs
from hps.cluster.world.world import World
from hps.common.json_text import Json
from hps.common.row_layout import Images, Keys
from hps.common.sharding import ShardMap
from hps.config import Config
from hps.contracts.tiers import RowTier
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store import TableSchema, engine_of, open_store
from hps.ssd_store.cluster.catalog import Catalog, ClusterCheckpoint, PartSize
from hps.ssd_store.cluster.part_name import ExpectedPart, described, parts_of

_PIECE_BYTES = 2**23
# Every part describes its tables, has the period that its rows count in and says which model fits
# them; the model and the reader's position lie in that of rank 0.
_OF_ALL = (TABLES, RATES, PERIOD, DENSE)
_OF_FIRST = (MODEL, READER)


@dataclass(frozen=True)
class Source:
    """One store whose rows move, and the checkpoint of it.

    Args:
        folder: of the store.
        checkpoint: tag or id; None is its newest.
        rows: that the checkpoint must have; None where nobody knows.
        part: that it must be; None of a store of one process.
    """

    folder: Path
    checkpoint: str | int | None
    rows: int | None = None
    part: ExpectedPart | None = None

    def is_here(self) -> bool:
        """True if this process sees the store, with that checkpoint; errors as `look`."""
        return not self.look()

    def look(self) -> str:
        """What this process sees instead of the store with that checkpoint, in words; else empty.

        Raises:
            CorruptionError: it has the checkpoint, and is another part of it.
            CorruptionError, StoreError: it is there and cannot be read.
        """
        if engine_of(self.folder) is None:
            return "no store"
        store: RowTier = open_store(self.folder, [], read_only=True, rows=False)
        try:
            listed = store.checkpoints()
            named = "tag" if isinstance(self.checkpoint, str) else "id"
            if self.checkpoint is not None and all(one[named] != self.checkpoint for one in listed):
                return described(listed, store.extras)
            if self.part is not None:
                self.part.check(store)
            return ""
        finally:
            store.close()

    def blobs(self) -> dict[str, bytes]:
        """The checkpoint's dense side and tables, as bytes by name.

        Raises:
            CorruptionError, StoreError: it cannot be read, or is another part.
        """
        store: RowTier = open_store(self.folder, [], read_only=True, rows=False)
        try:
            if self.part is not None:
                self.part.check(store)
            blobs: dict[str, bytes] = store.extras(self.checkpoint)
            return blobs
        finally:
            store.close()


def sources_of(path: Path, catalog: Catalog, checkpoint: ClusterCheckpoint) -> list[Source]:
    """The parts of a checkpoint in a cluster's folder, in rank order."""
    return [
        Source(part.folder, part.tag, part.rows, part)
        for part in parts_of(path, catalog, checkpoint)
    ]


def find_readers(world: World, sources: Sequence[Source]) -> list[int]:
    """Of each source the rank that reads it: one that sees it, each as few as possible.

    Collective.

    Raises:
        StoreError: no rank sees one of them; names it.
    """

    def look() -> list[str]:
        return [source.look() for source in sources]

    seen = agree(world, "looking for parts", look)
    readers: list[int] = []
    for number, source in enumerate(sources):
        who = [rank for rank, found in enumerate(seen) if not found[number]]
        if not who:
            found = "; ".join(sorted({of_rank[number] for of_rank in seen}))
            raise StoreError(
                f"part {number} of {len(sources)} is missing: none of the {world.size} rank(s) "
                f"sees {source.folder} with checkpoint {source.checkpoint!r}, there is {found}; "
                "mount or copy that folder to one of the hosts, under the same path in the "
                "store's folder"
            )
        readers.append(min(who, key=lambda rank: (readers.count(rank), rank)))
    return readers


def move_rows(world: World, sources: Sequence[Source], target: Target) -> list[PartSize]:
    """Moves the rows of all sources to the ranks that own them now; ends with their checkpoints.

    Collective: every rank reads the sources that find_readers gave it, and fills its own target.
    The first source's model and reader's position go to rank 0. A target is durable when it
    returns; on an error it is for the caller to remove.

    Returns:
        What each rank's new store holds.

    Raises:
        ConfigError: the sources differ, or the target's tables or seed do not fit them.
        CorruptionError, StoreError: a source cannot be read or is another part, a target not be
        written.

    Cost: reads every row once, sends it once, writes it once; memory a piece (8 MiB) a rank.
    """
    readers = find_readers(world, sources)
    mine = [number for number, reader in enumerate(readers) if reader == world.rank]
    with ExitStack() as opened:

        def begin() -> dict[int, Json]:
            for number in mine:
                stores[number] = opened.enter_context(closing(_open_source(sources[number])))
            return {number: _description(store) for number, store in stores.items()}

        stores: dict[int, RowTier] = {}
        told = agree(world, "opening parts", begin)
        described = {int(number): one for part in told for number, one in part.items()}
        schemas = _check_sources(sources, described, target.config)
        blobs = _send_dense(world, stores.get(0), sources[0])

        opened.callback(target.close)
        agree(world, "making a part", lambda: target.begin(schemas))
        for schema in schemas:
            _move_table(world, [(sources[n], stores[n]) for n in mine], target, schema)

        def end() -> dict[str, int]:
            info = target.end(blobs)
            return {"rows": info["rows"], "bytes": info["bytes"]}

        ended = [PartSize(**part) for part in agree(world, "ending a part", end)]
    expected = [sum(one["rows"].values()) for one in described.values()]
    if sum(part.rows for part in ended) != sum(expected):
        raise CorruptionError(
            f"{sources[0].folder}: its parts hold {sum(expected)} rows, {len(ended)} rank(s) got "
            f"{sum(part.rows for part in ended)}: a key lies in two parts; run 'hps verify'"
        )
    return ended


def _open_source(source: Source) -> RowTier:
    store: RowTier = open_store(source.folder, [], read_only=True, checkpoint=source.checkpoint)
    try:
        if source.part is not None:
            source.part.check(store)
        return store
    except BaseException:
        store.close()
        raise


def _description(store: RowTier) -> Json:
    """What all ranks must know of a source, as plain values."""
    return {
        "seed": store.seed,
        "schemas": [list(schema.to_native()) for schema in store.schemas.values()],
        "rows": {name: store.num_rows(name) for name in store.schemas},
    }


def _check_sources(
    sources: Sequence[Source], described: dict[int, Json], config: Config
) -> list[TableSchema]:
    """The tables of all sources, by name.

    Raises:
        ConfigError, CorruptionError: see move_rows.
    """
    schemas: dict[str, TableSchema] = {}
    for number, source in enumerate(sources):
        one = described[number]
        if source.rows is not None and sum(one["rows"].values()) != source.rows:
            raise CorruptionError(
                f"{source.folder}: checkpoint {source.checkpoint!r} holds "
                f"{sum(one['rows'].values())} rows, {source.rows} are expected; it is "
                "another checkpoint"
            )
        if one["seed"] != config.seed:
            raise ConfigError(
                f"{source.folder}: stored seed is {one['seed']}, requested is "
                f"{config.seed}; it is fixed once the store exists: use the stored one, or another "
                "path"
            )
        for fields in one["schemas"]:
            schema = TableSchema.from_native(tuple(fields))
            check_schema(source.folder, schemas.setdefault(schema.name, schema), schema)
    for table in config.tables:
        if table.name in schemas:
            check_schema(sources[0].folder, schemas[table.name], TableSchema.of(table))
    return [schemas[name] for name in sorted(schemas)]


def check_schema(folder: Path, stored: TableSchema, asked: TableSchema) -> None:
    """Refuses a table that is not as it is stored.

    Raises:
        ConfigError: names table, field and both values.
    """
    for field in ("dim", "optimizer", "statistics", "dtype", "row_bytes", "initializer", "numbers"):
        held, wanted = getattr(stored, field), getattr(asked, field)
        if held != wanted:
            raise ConfigError(
                f"{folder}: table {stored.name!r}: stored {field} is {held}, requested is "
                f"{wanted}; it is fixed once the store exists: use the stored one, or another path"
            )


def _send_dense(world: World, first: RowTier | None, source: Source) -> dict[str, bytes]:
    """The blobs of this rank's new checkpoint, from who reads the first source."""
    held: dict[str, bytes] = {}

    def read() -> None:
        if first is not None:
            held.update(first.extras(source.checkpoint))

    agree(world, "reading the model", read)
    every = {name: held[name] for name in _OF_ALL if name in held}
    only = {name: held[name] for name in _OF_FIRST if name in held}
    outgoing = [{**every, **only}, *[every] * (world.size - 1)]
    return send_blobs(world.control, outgoing)


def _move_table(
    world: World, sources: list[tuple[Source, RowTier]], target: Target, schema: TableSchema
) -> None:
    pieces = _pieces(sources, schema)
    owners = ShardMap(world.size)
    received: Images = np.empty((0, schema.row_bytes), np.uint8)
    piece: Images | None = None

    def step() -> bool:
        nonlocal piece
        if len(received):
            target.append(schema.name, received)
        piece = next(pieces, None)
        return piece is not None

    while any(agree(world, f"moving rows of table {schema.name!r}", step)):
        rows = np.empty((0, schema.row_bytes), np.uint8) if piece is None else piece
        places = owners.split(_keys_of(rows))
        sorted_rows = torch.from_numpy(rows[np.concatenate(places)])
        received = world.control.exchange(sorted_rows, [len(part) for part in places]).numpy()


def _pieces(sources: list[tuple[Source, RowTier]], schema: TableSchema) -> Iterator[Images]:
    """The rows of one table, of sources one after the other; each must own its keys."""
    count = max(1, _PIECE_BYTES // schema.row_bytes)
    for source, store in sources:
        if schema.name not in store.schemas:
            continue
        for rows in store.scan(schema.name, count):
            if source.part is not None:
                source.part.check_owned(schema.name, _keys_of(rows))
            yield rows


def _keys_of(rows: Images) -> Keys:
    return np.ascontiguousarray(rows[:, :8]).view(np.uint64)[:, 0]
