"""RocksDbManifest: what a RocksDB store holds: tables, seed, checkpoints, and which one is current.

Above it: store.py, checkpoint_files.py. Below it: one file, `ROCKSDB`, replaced as a whole, which
makes a checkpoint durable: a line with the CRC32C and the length of the JSON text that follows it.
"""

import errno
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from hps import _C
from hps.checkpoint.names import find_named
from hps.common.durable_file import replace_durably
from hps.common.json_text import Json, parse_json
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store.engine import ROCKSDB_CHECKPOINT_PREFIX, ROCKSDB_MANIFEST
from hps.ssd_store.promoted import kept_with, resolved
from hps.ssd_store.rocksdb.deaths import NEVER
from hps.table.schema import TableSchema

FORMAT_VERSION = 1
_MAGIC = "HPSROCK"
_CHECKPOINTS = "cuts"  # their key in the file


@dataclass(frozen=True)
class FileDigest:
    """Length and CRC32C of a file that no longer changes."""

    length: int
    crc32c: int


@dataclass(frozen=True)
class RocksDbCheckpoint:
    """One checkpoint: a folder with a RocksDB database that nobody writes to, and its extras.

    `rows` counts the records of each table, `expired` those of all whose period of death has come,
    and `deaths`, of tables that have rows that die, records by their period of death, 0 for never,
    as text. `files` has a digest of every file by its path in the folder; `extras` the file of each
    blob by its name. A checkpoint that was deleted while it was current stays until another one is
    current.
    """

    id: int
    tag: str | None
    created: float
    rows: dict[str, int]
    extras: dict[str, str]
    files: dict[str, FileDigest]
    is_deleted: bool = False
    deaths: dict[str, dict[str, int]] = field(default_factory=dict)
    expired: int = 0

    def with_counts(self, counts: Mapping[str, Mapping[int, int]], expired: int) -> Self:
        """The same, of other records: by period of death, by table."""
        return replace(
            self,
            rows={name: sum(of_table.values()) for name, of_table in counts.items()},
            deaths={
                name: {str(death): num for death, num in of_table.items()}
                for name, of_table in counts.items()
                if of_table.keys() - {NEVER}
            },
            expired=expired,
        )

    def counts_of(self, table: str) -> dict[int, int]:
        """The records of a table by period of death."""
        if table in self.deaths:
            return {int(death): num for death, num in self.deaths[table].items()}
        return {NEVER: self.rows.get(table, 0)}

    @property
    def folder(self) -> str:
        """Its name in the store's directory."""
        return f"{ROCKSDB_CHECKPOINT_PREFIX}{self.id:012d}"

    def summary(self, is_current: bool) -> Json:
        """As `SsdStore.checkpoint` returns it; a segment here is a sorted file of RocksDB."""
        return {
            "id": self.id,
            "tag": self.tag,
            "created": self.created,
            "current": is_current,
            "rows": sum(self.rows.values()) - self.expired,
            "segments": sum(name.endswith(".sst") for name in self.files),
            "bytes": sum(file.length for file in self.files.values()),
        }


@dataclass(frozen=True)
class RocksDbManifest:
    """The state that `ROCKSDB` records; a change makes a new one.

    Tables are only ever added at the end: a table's place names its column family.
    """

    seed: int
    tables: tuple[TableSchema, ...] = ()
    checkpoints: tuple[RocksDbCheckpoint, ...] = ()
    current_id: int = 0
    next_id: int = 1

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads the manifest of the store at `path`.

        Raises:
            StoreError: there is none. CorruptionError: it is damaged, or missing beside its
            checkpoints.
        """
        file = path / ROCKSDB_MANIFEST
        try:
            text = file.read_bytes()
        except FileNotFoundError:
            if any(path.glob(f"{ROCKSDB_CHECKPOINT_PREFIX}*")):
                raise CorruptionError(
                    f"{file}: the file is missing, but the store has checkpoints; copy it back"
                ) from None
            message = f"{path}: there is no store here"
            raise StoreError(errno.ENOENT, message) from None
        head, _, body = text.partition(b"\n")
        if head != _head(body):
            raise CorruptionError(
                f"{file}: offset 0: the checksum of the {len(text)} bytes does not match; copy the "
                f"file back"
            )
        try:
            return cls._from_fields(parse_json(body, str(file)))
        except (AttributeError, KeyError, TypeError) as error:
            raise CorruptionError(
                f"{file}: written by another version of hps: {error!r}"
            ) from error

    @classmethod
    def _from_fields(cls, fields: Json) -> Self:
        tables = [{**table, "numbers": tuple(table["numbers"])} for table in fields["tables"]]
        listed = [
            {**one, "files": {name: FileDigest(**file) for name, file in one["files"].items()}}
            for one in fields.pop(_CHECKPOINTS)
        ]
        known = {
            "tables": tuple(TableSchema(**table) for table in tables),
            "checkpoints": tuple(RocksDbCheckpoint(**one) for one in listed),
        }
        return cls(**{**fields, **known})

    def save(self, path: Path) -> None:
        """Replaces the manifest durably: write, sync, rename, sync of the folder.

        Raises:
            OSError: the old or the new one stands, whole.
        """
        fields = asdict(self)
        for table in fields["tables"]:
            _leave_out(table, statistics=False, dtype="float32")
        for one in fields["checkpoints"]:
            _leave_out(one, deaths={}, expired=0)
        named = {_CHECKPOINTS if name == "checkpoints" else name: fields[name] for name in fields}
        body = json.dumps(named, separators=(",", ":")).encode()
        replace_durably(path / ROCKSDB_MANIFEST, _head(body) + b"\n" + body)

    # Questions.

    @property
    def current(self) -> RocksDbCheckpoint | None:
        """The checkpoint at which the store opens; None before the first checkpoint."""
        return self._by_id(self.current_id)

    @property
    def listed(self) -> list[RocksDbCheckpoint]:
        """The kept checkpoints, oldest first."""
        return [one for one in self.checkpoints if not one.is_deleted]

    def _by_id(self, number: int) -> RocksDbCheckpoint | None:
        return next((one for one in self.checkpoints if one.id == number), None)

    def find(self, path: Path, checkpoint: str | int) -> RocksDbCheckpoint:
        """A kept checkpoint by its tag or id.

        Raises:
            ConfigError: there is none; lists those kept.
        """
        summaries = [one.summary(is_current=False) for one in self.listed]
        name = resolved(path, checkpoint, summaries)
        return find_named(str(path), self.listed, name or checkpoint, lambda one: (one.tag, one.id))

    def check_tables(
        self, path: Path, asked: Sequence[TableSchema], seed: int | None, read_only: bool
    ) -> None:
        """Refuses tables or a seed that differ from what is stored.

        Raises:
            ConfigError: names table, field and both values; or a table that a reader lacks.
        """
        stored = {table.name: table for table in self.tables}
        if seed not in (None, self.seed):
            raise _mismatch(f"{path}", "seed", self.seed, seed)
        for table in asked:
            if table.name in stored:
                _compare(stored[table.name], table)
            elif read_only:
                raise ConfigError(f"{path}: the store has no table {table.name!r}")

    # Changes.

    def with_tables(self, asked: Sequence[TableSchema]) -> Self:
        """The same, with the tables that are new."""
        names = {table.name for table in self.tables}
        return replace(
            self, tables=(*self.tables, *(table for table in asked if table.name not in names))
        )

    def with_checkpoint(
        self, new: RocksDbCheckpoint, keep_last: int, promoted: Collection[float] = ()
    ) -> Self:
        """The same, with a new current checkpoint in the place of those that it supersedes; what
        was created at the times of `promoted` stays, without its tag if the new one has that."""
        remaining = tuple(kept_with(new, self.listed, keep_last, promoted))
        return replace(self, checkpoints=remaining, current_id=new.id, next_id=new.id + 1)

    def with_renewed(self, old: RocksDbCheckpoint, new: RocksDbCheckpoint) -> Self:
        """The same, with a checkpoint of the same content in the place of the current one."""
        remaining = (*(one for one in self.checkpoints if one.id != old.id), new)
        return replace(self, checkpoints=remaining, current_id=new.id, next_id=new.id + 1)

    def with_current(self, chosen: RocksDbCheckpoint) -> Self:
        """The same, at another checkpoint."""
        remaining = tuple(
            one for one in self.checkpoints if not one.is_deleted or one.id == chosen.id
        )
        return replace(self, checkpoints=remaining, current_id=chosen.id)

    def without(self, deleted: RocksDbCheckpoint) -> Self:
        """The same, without a kept checkpoint; hidden only, if it is the current one."""
        hidden = [replace(deleted, is_deleted=True)] if deleted.id == self.current_id else []
        remaining = (*hidden, *(one for one in self.checkpoints if one.id != deleted.id))
        in_order = tuple(sorted(remaining, key=lambda one: one.id))
        return replace(self, checkpoints=in_order)


def _leave_out(fields: Json, **usual: object) -> None:
    """Drops what is as it was before there was anything else, so that an older hps reads it."""
    for name, value in usual.items():
        if fields[name] == value:
            del fields[name]


def _head(body: bytes) -> bytes:
    return f"{_MAGIC}{FORMAT_VERSION} {_C.crc32c(body):08x} {len(body)}".encode()


def _mismatch(
    subject: str, field: str, stored: object, asked: object, way_out: str = ""
) -> ConfigError:
    return ConfigError(
        f"{subject}: stored {field} is {stored}, requested is {asked}; it is fixed once "
        f"the store exists: use the stored one, or another path{way_out}"
    )


def _initializer(table: TableSchema) -> str:
    first, second = table.numbers
    return f"{table.initializer}({first:g}, {second:g})"


def _compare(stored: TableSchema, asked: TableSchema) -> None:
    subject = f"table {asked.name!r}"
    for name in ("dim", "optimizer", "statistics", "dtype", "row_bytes"):
        old, new = getattr(stored, name), getattr(asked, name)
        if old != new:
            way_out = (
                f"; 'hps export' and 'hps import --row-dtype {new}' make a copy of the rows that "
                "is so"
            )
            raise _mismatch(subject, name, old, new, way_out if name == "dtype" else "")
    if (stored.initializer, stored.numbers) != (asked.initializer, asked.numbers):
        raise _mismatch(subject, "initializer", _initializer(stored), _initializer(asked))
