"""What a cluster's folder holds, told before it is opened: opening it may move all of its rows.

Above it: `hps.train`, which refuses what cannot go on. Below it: catalog.py, the store of the first
part.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hps.checkpoint import MODEL, READER, TABLES
from hps.cluster.catalog import Catalog, part_folder
from hps.cluster.part_name import parts_of
from hps.ssd_store import engine_of, open_store


@dataclass(frozen=True)
class Glance:
    """Of the first part of the current cut's ranks.

    Args:
        dims: of its tables by name.
        ranks: how many there are.
        rows: of the cut, on all ranks.
        models: tags, or ids where there is none, of cuts that hold a model and a reader's position;
            the current one first, then from the newest on.
        blobs: of the first of these cuts: model, reader's position, description of the tables.
    """

    dims: dict[str, int]
    ranks: int
    rows: int
    models: list[str | int]
    blobs: dict[str, bytes]


def glance(path: Path) -> Glance | None:
    """Of the cluster in a folder; None if there is none, it has no cut, or this host does not see
    its first part.

    Raises:
        CorruptionError: the file CLUSTER, or the part, is damaged.
    """
    catalog = Catalog.load(path)
    if catalog is None or catalog.current is None:
        return None
    current = catalog.current
    folder = part_folder(path, current.generation, 0)
    if engine_of(folder) is None:
        return None
    store: Any = open_store(folder, [], read_only=True, rows=False)
    try:
        parts_of(path, catalog, current)[0].check(store)
        cuts = [cut for cut in catalog.cuts if cut.generation == current.generation]
        cuts.sort(key=lambda cut: (cut.id == current.id, cut.id), reverse=True)
        whole = [cut for cut in cuts if {MODEL, READER} <= set(store.extra_bytes(cut.part_tag))]
        blobs = store.extras(whole[0].part_tag, {MODEL, READER, TABLES}) if whole else {}
        return Glance(
            {name: schema.dim for name, schema in store.schemas.items()},
            catalog.ranks,
            current.rows,
            [cut.id if cut.tag is None else cut.tag for cut in whole],
            blobs,
        )
    finally:
        store.close()
