"""What a cluster's folder holds, told before it is opened: opening it may move all of its rows.

Above it: `hps.train`, which refuses what cannot go on. Below it: ssd_store/cluster/catalog.py, the
stores of the first parts.
"""

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hps.checkpoint.blobs import MODEL, READER
from hps.checkpoint.names import text_of
from hps.common.json_text import Json
from hps.contracts.tiers import RowTier
from hps.errors import ConfigError
from hps.ssd_store import engine_of, open_store
from hps.ssd_store.cluster.catalog import Catalog, ClusterCheckpoint, part_folder
from hps.ssd_store.cluster.part_name import parts_of
from hps.ssd_store.promoted import Promotions


class FirstParts:
    """The checkpoints of a cluster's folder, of all generations, by the first part of each.

    A host may see some of them only; the dense side of a checkpoint lies in its first part.

    Args:
        path: the folder.
        catalog: of it, with a current checkpoint.
    """

    def __init__(self, path: Path, catalog: Catalog) -> None:
        self._path = path
        self._catalog = catalog
        self._promotions = Promotions.load(path)
        self._stores: dict[str, RowTier | None] = {}  # by generation; None where it is not seen

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Those in a folder; None if there is no cluster, or it has no checkpoint.

        Raises:
            CorruptionError: the file CLUSTER, or PROMOTED, is damaged.
        """
        catalog = Catalog.load(path)
        return None if catalog is None or catalog.current is None else cls(path, catalog)

    @property
    def seed(self) -> int:
        """Of the initializers of all parts."""
        return self._catalog.seed

    def checkpoints(self) -> list[Json]:
        """As ParameterServer.checkpoints() lists them."""
        return self._catalog.described(self._promotions)

    def sees(self, name: str | int | None) -> bool:
        """True if this host sees the first part of a checkpoint, by tag, promoted name or id; None
        is the current.

        Raises:
            ConfigError: there is no such checkpoint.
        """
        return self.store_of(self._find(name)) is not None

    def extras(self, name: str | int | None, names: Collection[str]) -> dict[str, bytes]:
        """The blobs of these names in a checkpoint; none where its first part is not seen.

        Raises:
            ConfigError: there is no such checkpoint. CorruptionError: its first part is another.
        """
        checkpoint = self._find(name)
        store = self.store_of(checkpoint)
        if store is None:
            return {}
        parts_of(self._path, self._catalog, checkpoint)[0].check(store)
        blobs: dict[str, bytes] = store.extras(checkpoint.part_tag, names)
        return blobs

    def store_of(self, checkpoint: ClusterCheckpoint) -> RowTier | None:
        """The store with the first part of a checkpoint, open to read; None if not seen."""
        if checkpoint.generation not in self._stores:
            folder = part_folder(self._path, checkpoint.generation, 0)
            is_here = engine_of(folder) is not None
            self._stores[checkpoint.generation] = (
                open_store(folder, [], read_only=True, rows=False) if is_here else None
            )
        return self._stores[checkpoint.generation]

    def close(self) -> None:
        """Closes the stores."""
        for store in self._stores.values():
            if store is not None:
                store.close()

    def _find(self, name: str | int | None) -> ClusterCheckpoint:
        return self._catalog.find(self._path, name, self._promotions)


@dataclass(frozen=True)
class Glance:
    """Of the first part of the current checkpoint's ranks.

    Args:
        dims: of its tables by name.
        ranks: how many there are.
        rows: of the checkpoint, on all ranks.
        model: tag, or id where there is none, of the first checkpoint that holds a model and a
            reader's position, the current one first, then from the newest on; None if there is
            none.
    """

    dims: dict[str, int]
    ranks: int
    rows: int
    model: str | int | None


def glance(path: Path) -> Glance | None:
    """Of the cluster in a folder; None if there is none, it has no checkpoint, or this host does
    not see the first part of the current one.

    Raises:
        CorruptionError: the file CLUSTER, or PROMOTED, or the part, is damaged.
    """
    catalog = Catalog.load(path)
    if catalog is None or catalog.current is None:
        return None
    current = catalog.current
    with closing(FirstParts(path, catalog)) as parts:
        store = parts.store_of(current)
        if store is None:
            return None
        parts_of(path, catalog, current)[0].check(store)
        dims = {name: schema.dim for name, schema in store.schemas.items()}
        return Glance(dims, catalog.ranks, current.rows, _first_with_model(parts, catalog))


def _first_with_model(parts: FirstParts, catalog: Catalog) -> str | int | None:
    in_order = sorted(catalog.checkpoints, key=lambda one: (one.id == catalog.current_id, one.id))
    for checkpoint in reversed(in_order):
        store = parts.store_of(checkpoint)
        if store is not None and {MODEL, READER} <= set(store.extra_bytes(checkpoint.part_tag)):
            return checkpoint.id if checkpoint.tag is None else checkpoint.tag
    return None


def check_stays(path: Path, name: str | int, ranks: int) -> None:
    """Refuses a number of ranks whose opening would delete the checkpoint to go back to.

    Args:
        path: of the cluster's folder; one that is not there has nothing to lose.
        name: the checkpoint's tag, promoted name or id.
        ranks: that would open the folder.

    Raises:
        ConfigError: there is no such checkpoint, or it would not be there any more.
    """
    promotions = Promotions.load(path)  # before CLUSTER: what they name is in it then
    catalog = Catalog.load(path)
    if catalog is None or catalog.ranks == ranks:
        return
    checkpoint = catalog.find(path, name, promotions)
    if checkpoint.id != catalog.current_id and not catalog.stays(checkpoint, promotions):
        raise ConfigError(
            f"checkpoint {text_of(checkpoint.id)} of {path} has no tag, and is of {catalog.ranks} "
            f"rank(s): {ranks} rank(s) would move the current checkpoint to new stores and delete "
            f"this one; start {catalog.ranks} rank(s) to go back to it"
        )
