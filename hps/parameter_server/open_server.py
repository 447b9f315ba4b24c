"""`hps.open`: a server over a store that is there, whose tables are read from it.

Above it: users, the command line, `hps train`. Below it: server.py, the store, what a service's log
says of tables.
"""

from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from pathlib import Path

from hps.checkpoint.blobs import tables_from_store
from hps.common.field_checks import require_path
from hps.config import Config, DramCacheConfig, GpuCacheConfig, SsdStoreConfig
from hps.contracts.tiers import RowTier
from hps.errors import ConfigError
from hps.parameter_server.opening import Tiers, View
from hps.parameter_server.server import ParameterServer
from hps.ssd_store import engine_of
from hps.ssd_store.cluster.catalog import Catalog, refuse_cluster
from hps.ssd_store.cluster.cluster_store import ClusterStore
from hps.update_log.served_tables import known_tables


def open(
    path: str | PathLike[str],
    read_only: bool = True,
    checkpoint: str | int | None = None,
    dram: int | str = "256MiB",
    *,
    gpu: GpuCacheConfig | None = None,
    _tiers: Tiers | None = None,
) -> ParameterServer:
    """Opens a store that is there; its tables are read from it.

    Read-only it may be beside a running trainer and shows one checkpoint: pull, contains,
    num_rows, items, digest, stats. Of a cluster's folder it shows the rows of all ranks.

    Args:
        path: directory of the store, or the folder of a cluster.
        read_only: False opens it for writing, as ParameterServer does.
        checkpoint: tag or id to look at; None is the newest.
        dram: budget of the dram_cache.
        gpu: budget and device of a gpu_cache over it; None for none.

    Raises:
        ConfigError: no such checkpoint, or a checkpoint asked for with writing.
        StoreError: there is no store, or as ParameterServer. CorruptionError: as ParameterServer.
    """
    tiers = _tiers or Tiers()
    require_path("open: path", path)
    path = Path(path).absolute()
    if checkpoint is not None and not read_only:
        raise ConfigError("open: checkpoint= goes with read_only=True; restore() goes back to one")
    if not read_only:
        refuse_cluster(path)
    elif Catalog.load(path) is not None:
        open_ranks: Callable[..., RowTier] = ClusterStore.open
        tiers = replace(tiers, open_store=open_ranks)
    store = tiers.open_store(path, [], read_only=True, checkpoint=checkpoint, rows=False)
    try:
        # Of the one that is open, also where it is no longer listed, or where its name has moved.
        extras = store.extras(None)
        now, others = ([], []) if read_only else known_tables(path, store)
        config = Config(
            path=path,
            tables=tables_from_store(list(store.schemas.values()), extras, [*now, *others]),
            dram=DramCacheConfig(bytes=dram),
            gpu=gpu,
            ssd=SsdStoreConfig(engine=engine_of(path) or "segments"),
            seed=store.seed,
        )
    finally:
        store.close()
    return ParameterServer(config, _tiers=tiers, _view=View(checkpoint) if read_only else None)
