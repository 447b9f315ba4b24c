"""Catalog: what a cluster's folder holds: its generation, ranks, checkpoints; the file CLUSTER.

Above it: cluster/folder/folders.py and cluster/folder/checkpoints.py, which change it,
cluster_store.py, parameter_server/opening.py, which refuses to write beside it. Below it:
common/durable_file.py, checkpoint/over_parts.py (how one is listed and found),
ssd_store/promoted.py (which stay for their names). The file is a line
with the checksum of the JSON text that follows it, and is replaced as a whole: that is the commit
point of a checkpoint over all ranks. docs/cluster_format.md says what it means.
"""

import json
import os
import secrets
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from hps import _C
from hps.checkpoint.names import part_name, part_tag
from hps.checkpoint.over_parts import describe, find_or_current
from hps.common.durable_file import replace_durably
from hps.common.json_text import Json, parse_json
from hps.common.sharding import ShardMap
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store.promoted import Promotions, check_deletable, check_free, kept_with, named

NAME = "CLUSTER"
GENERATIONS = "generation-*"  # their folders
_MAGIC = "HPSCLUS1"


def new_name() -> str:
    """A name that no cluster, checkpoint or run has had."""
    return secrets.token_hex(16)


def new_generation(cluster: str, number: int) -> str:
    """The name of a generation's folder; none is used twice, also after a kill.

    It says which cluster it is of, so that no other one removes it.
    """
    return f"generation-{number:06d}-{cluster[:8]}-{secrets.token_hex(4)}"


def part_folder(path: Path, generation: str, rank: int) -> Path:
    """Where the store of one rank lies in a cluster's folder."""
    return path / generation / f"rank-{rank}"


def name_of_part(tag: object) -> str | None:
    """The name of the whole in the tag of a rank's own checkpoint; None for any other tag."""
    return part_name(tag)


def refuse_cluster(path: str | os.PathLike[str]) -> None:
    """Refuses a cluster's folder to a process that would write a store of its own there.

    Raises:
        ConfigError: says what to do instead. CorruptionError: the file CLUSTER is damaged.
    """
    found = Catalog.load(Path(path))
    if found is not None:
        raise ConfigError(
            f"{os.fspath(path)} is the folder of {found.ranks} rank(s): open it read-only "
            "(hps.open), train on it under torchrun, or make a store for one process of it with "
            f"'hps reshard {os.fspath(path)} OUT --plain'"
        )


@dataclass(frozen=True)
class PartSize:
    """What one rank's store holds of a checkpoint."""

    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class ClusterCheckpoint:
    """One checkpoint of all ranks.

    Args:
        id: counts from 1; never used twice.
        name: random; each rank's checkpoint of it is tagged `cut-NAME`.
        tag: as its caller named it, or None.
        created: seconds since 1970.
        generation: the folder in which its parts lie.
        parts: in rank order.
        is_deleted: it was deleted while it was current, and stays until another one is.
    """

    id: int
    name: str
    tag: str | None
    created: float
    generation: str
    parts: tuple[PartSize, ...]
    is_deleted: bool = False

    @property
    def part_tag(self) -> str:
        """Of its checkpoint in each rank's store."""
        return part_tag(self.name)

    @property
    def rows(self) -> int:
        """Over all ranks."""
        return sum(part.rows for part in self.parts)

    def described(self, is_current: bool) -> Json:
        """As ParameterServer.checkpoints() lists it, with the number of ranks."""
        listed = describe(self.tag, self.id, self.parts, self.created, is_current)
        return {**listed, "ranks": len(self.parts)}


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """The content of CLUSTER; a change makes a new one, with the next serial number.

    Args:
        cluster: random; all folders of one cluster have the same.
        serial: grows with every change; of several files of a cluster the highest counts.
        generation: the folder that the ranks write to; the current checkpoint lies there.
        ranks: of that generation.
        num_virtual, hash: of the map from keys to ranks.
        seed: of the rows' initial values.
        version: of the hps that wrote it.
        next_id: of the checkpoint to come.
        current_id: of the checkpoint at which the ranks open.
        checkpoints: oldest first.
    """

    cluster: str
    serial: int
    generation: str
    ranks: int
    num_virtual: int
    hash: str
    seed: int
    version: str
    next_id: int = 1
    current_id: int = 0
    checkpoints: tuple[ClusterCheckpoint, ...] = ()

    @classmethod
    def begin(cls, cluster: str) -> Self:
        """Of a new cluster, before it is `started`; it is on no disk."""
        return cls(
            cluster=cluster,
            serial=0,
            generation="",
            ranks=0,
            num_virtual=0,
            hash="",
            seed=0,
            version="",
        )

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """That of the folder; None if there is none.

        Raises:
            CorruptionError: the file is damaged. StoreError: it could not be read.
        """
        file = path / NAME
        try:
            text = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(error.errno, f"{file}: {error.strerror}") from error
        head, _, body = text.partition(b"\n")
        if head != _head(body):
            raise CorruptionError(
                f"{file}: the checksum in its first line does not match the {len(body)} bytes "
                "behind it; put the file back from a copy"
            )
        try:
            return cls.from_json(parse_json(body, str(file)))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"{file}: written by another version of hps: {error}") from error

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """What `to_json` gave."""
        listed = tuple(
            ClusterCheckpoint(**{**one, "parts": tuple(PartSize(**part) for part in one["parts"])})
            for one in value["cuts"]
        )
        others = {name: value[name] for name in value if name != "cuts"}
        return cls(**others, checkpoints=listed)

    def to_json(self) -> Json:
        """As plain values, under the names that the file has."""
        fields = asdict(self)
        fields["cuts"] = fields.pop("checkpoints")
        return fields

    def save(self, path: Path) -> None:
        """Replaces the folder's file durably.

        Raises:
            OSError: the old or the new one stands, whole.
        """
        body = json.dumps(self.to_json(), sort_keys=True).encode()
        replace_durably(path / NAME, _head(body) + b"\n" + body)

    # Questions.

    @property
    def listed(self) -> list[ClusterCheckpoint]:
        """The kept checkpoints, oldest first."""
        return [one for one in self.checkpoints if not one.is_deleted]

    @property
    def current(self) -> ClusterCheckpoint | None:
        """The checkpoint at which the ranks open; None before the first."""
        return next((one for one in self.checkpoints if one.id == self.current_id), None)

    @property
    def generations(self) -> set[str]:
        """The folders that are needed."""
        return {self.generation, *(one.generation for one in self.checkpoints)}

    def described(self, promotions: Promotions) -> list[Json]:
        """As ParameterServer.checkpoints() lists them, with their promoted names."""
        return named([one.described(one.id == self.current_id) for one in self.listed], promotions)

    def find(
        self, path: Path, checkpoint: str | int | None, promotions: Promotions
    ) -> ClusterCheckpoint:
        """A checkpoint by its tag, promoted name or id; None is the current one.

        Raises:
            ConfigError: there is none; lists those there are.
        """
        words = (str(path), "the ranks have taken no checkpoint yet")
        name = promotions.resolved(path, checkpoint, self.described(promotions))
        return find_or_current(
            self.listed, name, lambda one: (one.tag, one.id), self.current, words
        )

    def stays(self, checkpoint: ClusterCheckpoint, promotions: Promotions) -> bool:
        """True if it is kept where the current one moves to another generation."""
        return checkpoint.tag is not None or checkpoint.created in promotions.kept

    def is_own(self, generation: str) -> bool:
        """True of the name of a folder that this cluster made."""
        return generation.split("-")[2:3] == [self.cluster[:8]]

    # Changes.

    def started(self, generation: str, ranks: int, seed: int) -> Self:
        """The same, without a checkpoint, in a new generation: what came before is dropped."""
        owners = ShardMap(ranks)
        return self._next(
            generation=generation,
            ranks=ranks,
            num_virtual=owners.num_virtual,
            hash=owners.hash,
            seed=seed,
            checkpoints=(),
            current_id=0,
        )

    def with_checkpoint(
        self, new: ClusterCheckpoint, keep_last: int, promotions: Promotions
    ) -> Self:
        """The same, with a new current checkpoint in the place of those that it supersedes; one
        that has moved here has its old id.

        Raises:
            ConfigError: its tag is a promoted name.
        """
        check_free(new.tag, promotions)
        others = [one for one in self.listed if one.id != new.id]
        remaining = kept_with(new, others, keep_last, promotions.kept)
        remaining.sort(key=lambda one: one.id)
        next_id = max(self.next_id, new.id + 1)
        return self._next(checkpoints=tuple(remaining), current_id=new.id, next_id=next_id)

    def with_current(self, checkpoint: ClusterCheckpoint) -> Self:
        """The same, at another checkpoint of its generation."""
        remaining = tuple(
            one for one in self.checkpoints if not one.is_deleted or one.id == checkpoint.id
        )
        return self._next(checkpoints=remaining, current_id=checkpoint.id)

    def without(self, deleted: ClusterCheckpoint, promotions: Promotions) -> Self:
        """The same, without a kept checkpoint; hidden only, if it is the current one.

        Raises:
            ConfigError: it has a promoted name.
        """
        names = promotions.of(deleted.created)
        check_deletable({"tag": deleted.tag, "id": deleted.id, "names": names})
        is_current = deleted.id == self.current_id
        hidden = [replace(deleted, is_deleted=True)] if is_current else []
        remaining = [*hidden, *(one for one in self.checkpoints if one.id != deleted.id)]
        return self._next(checkpoints=tuple(sorted(remaining, key=lambda one: one.id)))

    def moved(self, checkpoint: ClusterCheckpoint, promotions: Promotions) -> Self:
        """The same, in a new generation, to which one checkpoint has moved and is current.

        Those with a tag, or that stay for a promoted name, stay in the folders of their
        generations; others are let go.

        Args:
            checkpoint: as it lies in the new generation, with its old id.
        """
        owners = ShardMap(len(checkpoint.parts))
        others = [
            one for one in self.listed if one.id != checkpoint.id and self.stays(one, promotions)
        ]
        return self._next(
            generation=checkpoint.generation,
            ranks=owners.count,
            num_virtual=owners.num_virtual,
            hash=owners.hash,
            next_id=max(self.next_id, checkpoint.id + 1),
            current_id=checkpoint.id,
            checkpoints=tuple(sorted([*others, checkpoint], key=lambda one: one.id)),
        )

    def _next(self, **changes: Any) -> Self:
        from hps.common.version import __version__

        return replace(self, serial=self.serial + 1, version=__version__, **changes)


def _head(body: bytes) -> bytes:
    return f"{_MAGIC} {_C.xxh64(body):016x} {len(body)}".encode()
