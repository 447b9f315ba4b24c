"""Catalog: what a cluster's folder holds: its generation, its ranks, its cuts; the file CLUSTER.

Above it: cluster/folder/folders.py and cluster/folder/checkpoints.py, which change it,
cluster_store.py, parameter_server/opening.py, which refuses to write beside it. Below it:
common/durable_file.py, checkpoint/over_parts.py (how one is listed and found). The file is a line
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

NAME = "CLUSTER"
GENERATIONS = "generation-*"  # their folders
_MAGIC = "HPSCLUS1"


def new_name() -> str:
    """A name that no cluster, cut or run has had."""
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
    """The cut's name in the tag that a rank's own checkpoint has; None for any other tag."""
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
class Part:
    """What one rank's store holds of a cut."""

    rows: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Cut:
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
    parts: tuple[Part, ...]
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
        generation: the folder that the ranks write to; the current cut lies there.
        ranks: of that generation.
        num_virtual, hash: of the map from keys to ranks.
        seed: of the rows' initial values.
        version: of the hps that wrote it.
        next_id: of the cut to come.
        current_id: of the cut at which the ranks open.
        cuts: oldest first.
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
    cuts: tuple[Cut, ...] = ()

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
        cuts = tuple(
            Cut(**{**one, "parts": tuple(Part(**part) for part in one["parts"])})
            for one in value["cuts"]
        )
        return cls(**{**value, "cuts": cuts})

    def to_json(self) -> Json:
        """As plain values."""
        return asdict(self)

    def save(self, path: Path) -> None:
        """Replaces the folder's file durably.

        Raises:
            OSError: the old or the new one stands, whole.
        """
        body = json.dumps(self.to_json(), sort_keys=True).encode()
        replace_durably(path / NAME, _head(body) + b"\n" + body)

    # Questions.

    @property
    def listed(self) -> list[Cut]:
        """The kept cuts, oldest first."""
        return [cut for cut in self.cuts if not cut.is_deleted]

    @property
    def current(self) -> Cut | None:
        """The cut at which the ranks open; None before the first."""
        return next((cut for cut in self.cuts if cut.id == self.current_id), None)

    @property
    def generations(self) -> set[str]:
        """The folders that are needed."""
        return {self.generation, *(cut.generation for cut in self.cuts)}

    def described(self) -> list[Json]:
        """As ParameterServer.checkpoints() lists them."""
        return [cut.described(cut.id == self.current_id) for cut in self.listed]

    def find(self, path: Path, checkpoint: str | int | None) -> Cut:
        """A cut by its tag or id; None is the current one.

        Raises:
            ConfigError: there is none; lists those there are.
        """
        words = (str(path), "the ranks have taken no checkpoint yet")
        return find_or_current(
            self.listed, checkpoint, lambda cut: (cut.tag, cut.id), self.current, words
        )

    def is_own(self, generation: str) -> bool:
        """True of the name of a folder that this cluster made."""
        return generation.split("-")[2:3] == [self.cluster[:8]]

    # Changes.

    def started(self, generation: str, ranks: int, seed: int) -> Self:
        """The same, without a cut, in a new generation: what came before is dropped."""
        owners = ShardMap(ranks)
        return self._next(
            generation=generation,
            ranks=ranks,
            num_virtual=owners.num_virtual,
            hash=owners.hash,
            seed=seed,
            cuts=(),
            current_id=0,
        )

    def with_cut(self, new: Cut, keep_last: int) -> Self:
        """The same, with a new current cut in the place of those that it supersedes."""
        kept = [cut for cut in self.listed if new.tag is None or cut.tag != new.tag]
        kept = [*(cut for cut in kept if cut.id != new.id), new]
        old = {cut.id for cut in [cut for cut in kept if cut.tag is None][:-keep_last]}
        cuts = sorted((cut for cut in kept if cut.id not in old), key=lambda cut: cut.id)
        next_id = max(self.next_id, new.id + 1)
        return self._next(cuts=tuple(cuts), current_id=new.id, next_id=next_id)

    def with_current(self, cut: Cut) -> Self:
        """The same, at another cut of its generation."""
        cuts = tuple(one for one in self.cuts if not one.is_deleted or one.id == cut.id)
        return self._next(cuts=cuts, current_id=cut.id)

    def without(self, deleted: Cut) -> Self:
        """The same, without a kept cut; hidden only, if it is the current one."""
        is_current = deleted.id == self.current_id
        hidden = [replace(deleted, is_deleted=True)] if is_current else []
        cuts = [*hidden, *(cut for cut in self.cuts if cut.id != deleted.id)]
        return self._next(cuts=tuple(sorted(cuts, key=lambda cut: cut.id)))

    def moved(self, cut: Cut) -> Self:
        """The same, in a new generation, to which one cut has moved and is current.

        Tagged cuts stay in the folders of their generations; those without a tag are let go.

        Args:
            cut: as it lies in the new generation, with its old id.
        """
        owners = ShardMap(len(cut.parts))
        others = [one for one in self.listed if one.tag is not None and one.id != cut.id]
        return self._next(
            generation=cut.generation,
            ranks=owners.count,
            num_virtual=owners.num_virtual,
            hash=owners.hash,
            next_id=max(self.next_id, cut.id + 1),
            current_id=cut.id,
            cuts=tuple(sorted([*others, cut], key=lambda one: one.id)),
        )

    def _next(self, **changes: Any) -> Self:
        from hps.common.version import __version__

        return replace(self, serial=self.serial + 1, version=__version__, **changes)


def _head(body: bytes) -> bytes:
    return f"{_MAGIC} {_C.xxh64(body):016x} {len(body)}".encode()
