"""Readable twin of SsdStore: a dict of rows a table, and copies of it as checkpoints.

`TwinDisk` is what survives a close: pass the same one to open the store again. `TwinDisk.free_rows`
makes appends fail as a full disk does; `damaged_keys` makes fetches fail as a bad checksum does.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hps.checkpoint.blobs import decode_period
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.table.schema import TableSchema

Keys = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Tables = dict[str, dict[int, bytes]]


def _death(row: bytes) -> int:
    """Of a row image with statistics: its period of death, 0 for none."""
    return int.from_bytes(row[20:24], "little")


class TwinCheckpoint(NamedTuple):
    """One checkpoint."""

    tag: str | None
    tables: Tables
    extras: dict[str, bytes]
    id: int


class TwinDisk:
    """What lies on disk: checkpoints of one store, newest last, and its schemas."""

    def __init__(self) -> None:
        self.checkpoints: list[TwinCheckpoint] = []
        self.num_checkpoints = 0
        self.schemas: dict[str, TableSchema] = {}
        self.seed = 0
        self.writer: int | None = None
        self.free_rows: int | None = None
        self.damaged_keys: set[int] = set()

    def open(self, path: Path, schemas: Sequence[TableSchema], **options: Any) -> "TwinSsdStore":
        """As SsdStore.open."""
        return TwinSsdStore(self, path, schemas, options)


class TwinSsdStore:
    """As hps.ssd_store.SsdStore."""

    def __init__(
        self, disk: TwinDisk, path: Path, schemas: Sequence[TableSchema], options: dict[str, Any]
    ) -> None:
        self.disk, self.path = disk, path
        self.read_only = bool(options.get("read_only"))
        self.is_closed = False
        self.keep_last = options.get("keep_last", 2)
        if self.read_only and not disk.schemas:
            raise StoreError(errno.ENOENT, f"{path} holds no store")
        self._check_schemas(schemas, options.get("seed"))
        if not self.read_only:
            if disk.writer is not None:
                raise StoreError(errno.EAGAIN, f"{path} is open in process {disk.writer}")
            disk.writer = os.getpid()
            disk.schemas.update({schema.name: schema for schema in schemas})
            disk.seed = options.get("seed") or disk.seed
        self.schemas, self.seed = dict(disk.schemas), disk.seed
        self.num_loads = 0
        self.tables: Tables = {name: {} for name in disk.schemas}
        self.period = 0
        tag = options.get("checkpoint")
        if tag is not None or disk.checkpoints:
            self._load(tag)

    def _check_schemas(self, schemas: Sequence[TableSchema], seed: int | None) -> None:
        if self.disk.schemas and seed not in (None, self.disk.seed):
            raise ConfigError(f"{self.path} has seed {self.disk.seed}; {seed} was asked")
        for schema in schemas:
            stored = self.disk.schemas.get(schema.name, schema)
            if stored != schema:
                raise ConfigError(f"table {schema.name!r} is stored as {stored}; asked: {schema}")

    def _find(self, tag: str | int | None) -> TwinCheckpoint:
        for checkpoint in reversed(self.disk.checkpoints):
            if tag is None or tag in (checkpoint.tag, checkpoint.id):
                return checkpoint
        raise ConfigError(f"{self.path} has no checkpoint {tag!r}")

    def _load(self, tag: str | int | None) -> dict[str, bytes]:
        _, tables, extras, _ = self._find(tag)
        self.tables = {name: dict(tables.get(name, {})) for name in self.disk.schemas}
        self.period = decode_period(extras)
        return extras

    def set_period(self, period: int, horizons: dict[str, int] | None = None) -> None:
        self.period = period
        for table, horizon in (horizons or {}).items():
            rows = self.tables[table]
            self.tables[table] = {
                key: row for key, row in rows.items() if not period < _death(row) <= horizon
            }

    def check_period(self, period: int, horizons: dict[str, int] | None = None) -> None:
        """Nothing can fail."""

    def count_deaths(self, table: str, period: int) -> NDArray[np.uint64]:
        deaths = [_death(row) for row in self.tables[table].values()]
        gaps = [death and death - period for death in deaths if not 0 < death <= period]
        return np.bincount(gaps, minlength=2**16).astype(np.uint64)

    def follow_period(self) -> None:
        """The checkpoint's was taken when it was loaded."""

    def has_deaths(self, table: str) -> bool:
        return self.schemas[table].statistics

    def _living(self, table: str) -> dict[int, bytes]:
        """Rows that are not dead in the period; dead ones hide what they superseded."""
        rows = self.tables[table]
        if not self.has_deaths(table):
            return rows
        return {key: row for key, row in rows.items() if not 0 < _death(row) <= self.period}

    def append(self, table: str, rows: Bytes) -> None:
        assert not self.read_only
        if self.disk.free_rows is not None:
            if len(rows) > self.disk.free_rows:
                raise StoreError(errno.ENOSPC, f"{self.path}: no space for {len(rows)} rows")
            self.disk.free_rows -= len(rows)
        for key, row in zip(rows.view(np.uint64)[:, 0].tolist(), rows, strict=True):
            self.tables[table][key] = row.tobytes()

    def fetch(self, table: str, keys: Keys, rows: Bytes, found: Bytes) -> None:
        living = self._living(table)
        for i, key in enumerate(keys.tolist()):
            if key in self.disk.damaged_keys:
                raise CorruptionError(f"{self.path}/segment-1: record of key {key} is damaged")
            row = living.get(key)
            found[i] = row is not None
            if row is not None:
                rows[i] = np.frombuffer(row, np.uint8)

    def contains(self, table: str, keys: Keys) -> Bytes:
        living = self._living(table)
        return np.array([key in living for key in keys.tolist()], np.uint8)

    def erase(self, table: str, keys: Keys) -> Bytes:
        living = self._living(table)
        erased = []
        for key in keys.tolist():
            stored = self.tables[table].pop(key, None) is not None
            erased.append(stored and key in living)
        return np.array(erased, np.uint8)

    def num_rows(self, table: str) -> int:
        return len(self._living(table))

    def scan(self, table: str, batch_rows: int) -> Iterator[Bytes]:
        rows = dict(self._living(table))
        keys = list(rows)
        for first in range(0, len(keys), batch_rows):
            piece = [rows[key] for key in keys[first : first + batch_rows]]
            yield np.frombuffer(b"".join(piece), np.uint8).reshape(len(piece), -1)

    def checkpoint(
        self,
        tag: str | None,
        extras: dict[str, bytes],
        taken: Callable[[], object] | None = None,
    ) -> dict[str, Any]:
        assert not self.read_only
        tables = {name: dict(rows) for name, rows in self.tables.items()}
        if taken is not None:
            taken()
        kept = [one for one in self.disk.checkpoints if tag is None or one.tag != tag]
        self.disk.num_checkpoints += 1
        kept.append(TwinCheckpoint(tag, tables, dict(extras), self.disk.num_checkpoints))
        old = [one.id for one in kept if one.tag is None][: -self.keep_last]
        self.disk.checkpoints = [one for one in kept if one.id not in old]
        return self.checkpoints()[-1]

    def space_of_compact(self, table: str | None = None) -> dict[str, int]:
        return dict.fromkeys(("written_bytes", "freed_bytes", "held_bytes"), 0)

    def compact(self, table: str | None = None) -> None:
        assert not self.read_only
        assert table is None or table in self.tables

    def restore(self, tag: str | int | None) -> None:
        self._load(tag)
        self.num_loads += 1
        checkpoint = self._find(tag)
        self.disk.checkpoints.remove(checkpoint)
        self.disk.checkpoints.append(checkpoint)  # the newest from now on

    def checkpoints(self) -> list[dict[str, Any]]:
        return [
            {
                "tag": checkpoint.tag,
                "id": checkpoint.id,
                "created": float(checkpoint.id),  # in order, as times are
                "rows": sum(map(len, checkpoint.tables.values())),
                "bytes": 0,
                "current": checkpoint is self.disk.checkpoints[-1],
            }
            for checkpoint in self.disk.checkpoints
        ]

    def delete_checkpoint(self, tag: str | int) -> list[str]:
        self.disk.checkpoints.remove(self._find(tag))
        return []

    def extras(
        self, tag: str | int | None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        extras = self._find(tag).extras if self.disk.checkpoints else {}
        return {name: blob for name, blob in extras.items() if names is None or name in names}

    def extra_bytes(self, tag: str | int | None = None) -> dict[str, int]:
        return {name: len(blob) for name, blob in self.extras(tag).items()}

    def stats(self) -> dict[str, Any]:
        num_rows = sum(map(len, self.tables.values()))
        return {"index_bytes": 16 * num_rows, "files_bytes": 32 * num_rows}

    def held_folder(self) -> Path:
        return self.path

    def verify(self) -> list[tuple[str, str]]:
        return [("segment-1", "damaged")] if self.disk.damaged_keys else []

    def close(self) -> None:
        if not self.read_only and not self.is_closed:
            self.disk.writer = None
        self.is_closed = True
