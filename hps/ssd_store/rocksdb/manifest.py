"""RocksDbManifest: what a RocksDB store holds: tables, seed, checkpoints, and which one is current.

Above it: store.py, cuts.py. Below it: one file, `ROCKSDB`, replaced as a whole: a
line with the CRC32C and the length of the JSON text that follows it.
"""

import errno
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from hps import _C
from hps.checkpoint.names import find_named
from hps.common.durable_file import replace_durably
from hps.common.json_text import Json, parse_json
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store.engine import ROCKSDB_CUT_PREFIX, ROCKSDB_MANIFEST
from hps.table.schema import TableSchema

FORMAT_VERSION = 1
_MAGIC = "HPSROCK"


@dataclass(frozen=True)
class FileDigest:
    """Length and CRC32C of a file that no longer changes."""

    length: int
    crc32c: int


@dataclass(frozen=True)
class Cut:
    """One checkpoint: a folder with a RocksDB database that nobody writes to, and its extras.

    `files` has a digest of every file by its path in the folder; `extras` the file of each blob by
    its name. A checkpoint that was deleted while it was current stays until another one is current.
    """

    id: int
    tag: str | None
    created: float
    rows: dict[str, int]
    extras: dict[str, str]
    files: dict[str, FileDigest]
    is_deleted: bool = False

    @property
    def folder(self) -> str:
        """Its name in the store's directory."""
        return f"{ROCKSDB_CUT_PREFIX}{self.id:012d}"

    def summary(self, is_current: bool) -> Json:
        """As `SsdStore.checkpoint` returns it; a segment here is a sorted file of RocksDB."""
        return {
            "id": self.id,
            "tag": self.tag,
            "created": self.created,
            "current": is_current,
            "rows": sum(self.rows.values()),
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
    cuts: tuple[Cut, ...] = ()
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
            if any(path.glob(f"{ROCKSDB_CUT_PREFIX}*")):
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
        cuts = [
            {**cut, "files": {name: FileDigest(**file) for name, file in cut["files"].items()}}
            for cut in fields["cuts"]
        ]
        known = {
            "tables": tuple(TableSchema(**table) for table in tables),
            "cuts": tuple(Cut(**cut) for cut in cuts),
        }
        return cls(**{**fields, **known})

    def save(self, path: Path) -> None:
        """Replaces the manifest durably: write, sync, rename, sync of the folder.

        Raises:
            OSError: the old or the new one stands, whole.
        """
        body = json.dumps(asdict(self), separators=(",", ":")).encode()
        replace_durably(path / ROCKSDB_MANIFEST, _head(body) + b"\n" + body)

    # Questions.

    @property
    def current(self) -> Cut | None:
        """The checkpoint at which the store opens; None before the first checkpoint."""
        return self._by_id(self.current_id)

    @property
    def listed(self) -> list[Cut]:
        """The kept checkpoints, oldest first."""
        return [cut for cut in self.cuts if not cut.is_deleted]

    def _by_id(self, number: int) -> Cut | None:
        return next((cut for cut in self.cuts if cut.id == number), None)

    def find(self, path: Path, checkpoint: str | int) -> Cut:
        """A kept checkpoint by its tag or id.

        Raises:
            ConfigError: there is none; lists those kept.
        """
        return find_named(str(path), self.listed, checkpoint, lambda cut: (cut.tag, cut.id))

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

    def with_cut(self, new: Cut, keep_last: int) -> Self:
        """The same, with a new current checkpoint in the place of those that it supersedes."""
        kept = [cut for cut in self.listed if new.tag is None or cut.tag != new.tag] + [new]
        old = {cut.id for cut in [cut for cut in kept if cut.tag is None][:-keep_last]}
        cuts = tuple(cut for cut in kept if cut.id not in old)
        return replace(self, cuts=cuts, current_id=new.id, next_id=new.id + 1)

    def with_renewed(self, old: Cut, new: Cut) -> Self:
        """The same, with a checkpoint of the same content in the place of the current one."""
        cuts = (*(cut for cut in self.cuts if cut.id != old.id), new)
        return replace(self, cuts=cuts, current_id=new.id, next_id=new.id + 1)

    def with_current(self, cut: Cut) -> Self:
        """The same, at another checkpoint."""
        cuts = tuple(one for one in self.cuts if not one.is_deleted or one.id == cut.id)
        return replace(self, cuts=cuts, current_id=cut.id)

    def without(self, deleted: Cut) -> Self:
        """The same, without a kept checkpoint; hidden only, if it is the current one."""
        hidden = [replace(deleted, is_deleted=True)] if deleted.id == self.current_id else []
        cuts = (*hidden, *(cut for cut in self.cuts if cut.id != deleted.id))
        return replace(self, cuts=tuple(sorted(cuts, key=lambda cut: cut.id)))


def _head(body: bytes) -> bytes:
    return f"{_MAGIC}{FORMAT_VERSION} {_C.crc32c(body):08x} {len(body)}".encode()


def _mismatch(subject: str, field: str, stored: object, asked: object) -> ConfigError:
    return ConfigError(
        f"{subject}: stored {field} is {stored}, asked is {asked}; it is fixed once the "
        f"store exists: ask for the stored one, or use another path"
    )


def _initializer(table: TableSchema) -> str:
    first, second = table.numbers
    return f"{table.initializer}({first:g}, {second:g})"


def _compare(stored: TableSchema, asked: TableSchema) -> None:
    subject = f"table {asked.name!r}"
    for field in ("dim", "optimizer", "row_bytes"):
        if getattr(stored, field) != getattr(asked, field):
            raise _mismatch(subject, field, getattr(stored, field), getattr(asked, field))
    if (stored.initializer, stored.numbers) != (asked.initializer, asked.numbers):
        raise _mismatch(subject, "initializer", _initializer(stored), _initializer(asked))
