"""Where rows go that move to this rank: a store that is made, or its own one, emptied.

Above it: folders.py, checkpoints.py, offline.py, which choose; reshard.py, which fills it. Below
it: the ssd_store, the rank's ParameterServer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hps.common.json_text import Json
from hps.config import Config
from hps.contracts.tiers import Rows, RowTier
from hps.parameter_server.server import ParameterServer
from hps.ssd_store import TableSchema, open_store
from hps.ssd_store.cluster.part_name import PartName

# The first checkpoint of each rank's store holds no rows: what a store goes back to before rows of
# another generation move in.
EMPTY = "empty"


class Target(Protocol):
    """Takes the rows that one rank owns, in this order: begin, append, end; close in any case."""

    config: Config

    def begin(self, schemas: Sequence[TableSchema]) -> None:
        """Makes it ready: it has these tables, and no rows."""

    def append(self, table: str, rows: Rows) -> None:
        """Stores row images, uint8 [n, row_bytes]."""

    def end(self, blobs: Mapping[str, bytes]) -> Json:
        """Takes a checkpoint with these blobs; it is durable. Returns what the store says of it."""

    def close(self) -> None:
        """Lets go."""


@dataclass
class NewStore:
    """A store that is made.

    Args:
        config: how it is made; its tables, if the source has them, must fit.
        folder: where.
        tag: of the checkpoint with which it ends.
        name: of the rank among others that it is of; None of a store of one process.
    """

    config: Config
    folder: Path
    tag: str | None
    name: PartName | None = None
    _store: RowTier | None = None

    def begin(self, schemas: Sequence[TableSchema]) -> None:
        """As Target."""
        ssd = self.config.ssd
        self._store = open_store(
            self.folder,
            schemas,
            engine=ssd.engine,
            segment_bytes=int(ssd.segment_bytes),
            seed=self.config.seed,
            threads=self.config.num_threads(),
        )
        if self.name is not None:
            self._store.checkpoint(EMPTY, {})

    def append(self, table: str, rows: Rows) -> None:
        """As Target."""
        assert self._store is not None, "append() goes after begin()"
        self._store.append(table, rows)

    def end(self, blobs: Mapping[str, bytes]) -> Json:
        """As Target."""
        name = {} if self.name is None else self.name.blobs()
        assert self._store is not None, "end() goes after begin()"
        return self._store.checkpoint(self.tag, {**blobs, **name})

    def close(self) -> None:
        """As Target."""
        if self._store is not None:
            self._store.close()


class OwnStore:
    """A rank's own store, open; what it held is dropped, but for its checkpoints.

    Args:
        local: of the rank, without batches in flight.
        tag: of the checkpoint with which it ends, and is at.
        name: of the rank.
    """

    def __init__(self, local: ParameterServer, tag: str, name: PartName) -> None:
        self.config = local.config
        self._local = local
        self._tag = tag
        self._name = name
        self._store: RowTier | None = None

    def begin(self, schemas: Sequence[TableSchema]) -> None:
        """As Target."""
        self._store = self._local.parts.checkpoints.empty_store(EMPTY)

    def append(self, table: str, rows: Rows) -> None:
        """As Target."""
        assert self._store is not None, "append() goes after begin()"
        self._store.append(table, rows)

    def end(self, blobs: Mapping[str, bytes]) -> Json:
        """As Target."""
        blobs = {**blobs, **self._name.blobs()}
        assert self._store is not None, "end() goes after begin()"
        info = self._store.checkpoint(self._tag, blobs)
        self._local.restore(self._tag)
        return info

    def close(self) -> None:
        """As Target: the store stays open."""
