"""PartName: which rank's part a store is; each checkpoint in it says so, and readers compare.

Above it: all that opens the parts of a checkpoint: cluster/folder/folders.py, cluster_store.py,
cluster/folder/reshard.py, cluster/folder/glance.py, cluster/folder/housekeeping.py. Below it:
catalog.py. The name is a blob of the checkpoint that is the part, so it is committed with the rows.
Parts that an older hps has taken have none; then the keys tell, for each has one owner.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np

from hps import _C
from hps.checkpoint.names import text_of
from hps.common.json_text import JsonView
from hps.common.row_layout import Keys
from hps.common.sharding import ShardMap
from hps.contracts.tiers import RowTier
from hps.errors import CorruptionError
from hps.ssd_store import open_store
from hps.ssd_store.cluster.catalog import Catalog, ClusterCheckpoint, part_folder

PART = "part.json"  # among the blobs of a part's checkpoint
_SAMPLE_KEYS = 1024  # of each table, where a part has no name
_PIECE_ROWS = 65536


@dataclass(frozen=True, kw_only=True)
class PartName:
    """A rank's place in a cluster.

    Args:
        cluster, generation: as CLUSTER names them.
        rank: from 0.
        ranks: how many the generation has.
    """

    cluster: str
    generation: str
    rank: int
    ranks: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks} ({self.generation} of cluster {self.cluster[:8]})"

    def blobs(self) -> dict[str, bytes]:
        """What a part's checkpoint says of it; `of` reads it."""
        return {PART: json.dumps(asdict(self), sort_keys=True).encode()}

    @classmethod
    def of(cls, blobs: Mapping[str, bytes]) -> Self | None:
        """From a checkpoint's blobs; None if it says nothing.

        Raises:
            CorruptionError: it cannot be read.
        """
        if PART not in blobs:
            return None
        try:
            return cls(**json.loads(blobs[PART]))
        except (TypeError, ValueError) as error:
            raise CorruptionError(f"the checkpoint's {PART} cannot be read: {error}") from error


@dataclass(frozen=True, kw_only=True)
class ExpectedPart:
    """A part as CLUSTER names it: what the store in a folder is compared with.

    Args:
        folder: where the store should lie.
        tag: of its checkpoint.
        rows: of that checkpoint.
        name: what it should say of itself.
    """

    folder: Path
    tag: str
    rows: int
    name: PartName

    def check(self, store: RowTier) -> None:
        """Compares checkpoint, rows and name.

        Args:
            store: of either engine, open in any way.

        Raises:
            CorruptionError: it is another one; says what was found, what is expected, what to do.
        """
        self.check_listed(store.checkpoints(), lambda tag: store.extras(tag, (PART,)))

    def check_listed(
        self,
        listed: Sequence[JsonView],
        blobs: Callable[[str | int], Mapping[str, bytes]],
    ) -> None:
        """As `check`.

        Args:
            listed: the store's checkpoints.
            blobs: of one of them by its tag, or its id.
        """
        found = next((one for one in listed if one["tag"] == self.tag), None)
        if found is None:
            raise CorruptionError(
                f"{self.folder}: {self._expected()} is not in the store here: "
                f"{described(listed, blobs)}; copy the folder of rank {self.name.rank} back, as it "
                "was with this CLUSTER"
            )
        self._check_name(PartName.of(blobs(self.tag)))
        if found["rows"] != self.rows:
            raise CorruptionError(
                f"{self.folder}: {self._expected()} has {found['rows']} rows, CLUSTER expects "
                f"{self.rows}; copy the folder of rank {self.name.rank} back"
            )

    def check_rows(self, store: RowTier) -> None:
        """As `check`, of a store that is open at the part, with its rows: of a part without a name
        some keys are looked at."""
        self.check(store)
        if PART not in store.extras(self.tag, (PART,)):
            self.check_keys(store, _SAMPLE_KEYS)

    def check_folder(self) -> None:
        """As `check_rows`, of the store in the folder; it may be open elsewhere."""
        store: RowTier = open_store(self.folder, [], read_only=True, checkpoint=self.tag)
        try:
            self.check_rows(store)
        finally:
            store.close()

    def check_owner(self) -> None:
        """Makes sure that the store in the folder is this rank's, at whatever checkpoints it is.

        Raises:
            CorruptionError: it is another one.
        """
        store: RowTier = open_store(self.folder, [], read_only=True, rows=False)
        try:
            listed = store.checkpoints()
            names = [PartName.of(store.extras(one["id"], (PART,))) for one in listed]
        finally:
            store.close()
        for name in names:
            self._check_name(name)
        if not any(names) and any(one["tag"] == self.tag for one in listed):
            self.check_folder()

    def _check_name(self, name: PartName | None) -> None:
        if name not in (None, self.name):
            raise CorruptionError(
                f"{self.folder}: the store here is that of {name}, expected is that of "
                f"{self.name}: folders of ranks were exchanged, or one was copied over another; "
                "put each back under its own name"
            )

    def check_keys(self, store: RowTier, most: int | None = None) -> None:
        """Makes sure that this rank owns the keys of a store that is open at the part.

        Args:
            store: with its rows.
            most: keys of each table that are looked at; None is all.

        Raises:
            CorruptionError: a key belongs to another rank.

        Cost: reads the rows that it looks at.
        """
        for table in store.schemas:
            num_seen = 0
            for rows in store.scan(table, min(most or _PIECE_ROWS, _PIECE_ROWS)):
                keys = np.ascontiguousarray(rows[:, :8]).view(np.uint64)[:, 0]
                self.check_owned(table, keys)
                num_seen += len(keys)
                if most is not None and num_seen >= most:
                    break

    def check_owned(self, table: str, keys: Keys) -> None:
        """Raises CorruptionError unless this rank owns all of these keys."""
        map_of_ranks = ShardMap(self.name.ranks)
        owners = map_of_ranks.owners()[_C.virtual_shards(keys, map_of_ranks.num_virtual)]
        others = np.flatnonzero(owners != self.name.rank)
        if len(others):
            place = others[0]
            raise CorruptionError(
                f"{self.folder}: key {int(keys[place])} of table {table!r} belongs to rank "
                f"{int(owners[place])} of {self.name.ranks}, and this should be the part of rank "
                f"{self.name.rank}: folders of ranks were exchanged, or one was copied over "
                "another; put each back under its own name"
            )

    def _expected(self) -> str:
        return f"checkpoint {self.tag} of {self.name}"


def parts_of(path: Path, catalog: Catalog, checkpoint: ClusterCheckpoint) -> list[ExpectedPart]:
    """The parts of a checkpoint in a cluster's folder, in rank order."""
    return [
        ExpectedPart(
            folder=part_folder(path, checkpoint.generation, rank),
            tag=checkpoint.part_tag,
            rows=part.rows,
            name=PartName(
                cluster=catalog.cluster,
                generation=checkpoint.generation,
                rank=rank,
                ranks=len(checkpoint.parts),
            ),
        )
        for rank, part in enumerate(checkpoint.parts)
    ]


def described(listed: Sequence[JsonView], blobs: Callable[[str | int], Mapping[str, bytes]]) -> str:
    """What a store says of itself, in words.

    Args:
        listed: its checkpoints.
        blobs: of one of them by its id.
    """
    name = None
    for one in reversed(listed):
        name = name or PartName.of(blobs(int(one["id"])))
    held = ", ".join(text_of(one["tag"] or one["id"]) for one in listed) or "no checkpoint"
    return f"{'a store' if name is None else f'that of {name}'} with {held}"
