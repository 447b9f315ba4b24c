"""Opens a store and makes the parts of a ParameterServer over it.

Above it: server.py. Below it: the parts, the tiers that they are stacked from, update_log/replay.py
(the records that a served store's checkpoint lacks). Whatever is raised here, the store is closed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hps.checkpoint.blobs import table_from_json
from hps.common.arrays import HOST, OutputPool
from hps.common.forked import refuse_in_children
from hps.config import Config, GpuCacheConfig
from hps.contracts.row_cache import AnyRowCache
from hps.contracts.tiers import RowTier
from hps.dram_cache import make_dram_caches
from hps.parameter_server.batches import Batches
from hps.parameter_server.checkpoints import Checkpoints
from hps.parameter_server.logged import LoggedMutations
from hps.parameter_server.periods import Periods
from hps.parameter_server.publishing import Publishing
from hps.parameter_server.rows import RowVerbs
from hps.parameter_server.tables import Tables
from hps.ssd_store import TableSchema, open_store
from hps.ssd_store.cluster.catalog import refuse_cluster
from hps.table.waiting import refuse_forgotten, with_records
from hps.update_log import History, OpenLog, open_update_log, replay
from hps.update_log.served_tables import tables_now


@dataclass(frozen=True)
class Tiers:
    """What the server is stacked from; tests put twins here."""

    open_store: Callable[..., RowTier] = open_store
    make_cache: Callable[..., AnyRowCache] | None = None  # None: the native DramCache
    # None: those of gpu_cache
    make_gpu_caches: Callable[[Config], Mapping[str, AnyRowCache]] | None = None
    open_log: OpenLog = open_update_log
    keeps_log: bool = False  # open, for who goes on with it


@dataclass(frozen=True)
class View:
    """How a store is opened other than for writing."""

    checkpoint: str | int | None


@dataclass(frozen=True)
class ServerParts:
    """What a ParameterServer consists of. Its users have its verbs; a shard, a rank and the command
    line, which need more, take it from these."""

    tables: Tables
    rows: RowVerbs
    batches: Batches
    checkpoints: Checkpoints
    logged: LoggedMutations
    periods: Periods
    publishing: Publishing


def open_parts(config: Config, tiers: Tiers, view: View | None) -> ServerParts:
    """Opens the store and brings it to where it was left; errors as ParameterServer."""
    # os.chdir changes nothing.
    path, given = Path(config.path).absolute(), config.tables
    config = replace(config, path=path, tables=with_records(given))
    if view is None:
        refuse_cluster(config.path)
    caches = make_dram_caches(config, tiers.make_cache)
    gpu_caches = {} if config.gpu is None else _make_gpu_caches(config, tiers)
    device = HOST if config.gpu is None else _device_of(config.gpu)
    store = tiers.open_store(
        config.path,
        [TableSchema.of(table) for table in config.tables],
        engine=config.ssd.engine,
        segment_bytes=config.ssd.segment_bytes,
        keep_last=config.ssd.keep_last,
        compaction_threshold=config.ssd.compaction_threshold,
        compaction_bytes_per_second=config.ssd.compaction_bytes_per_second,
        read_only=view is not None,
        direct_io=config.ssd.direct_io,
        checkpoint=None if view is None else view.checkpoint,
        seed=config.seed,
        threads=config.num_threads(),
    )
    try:
        if view is None:
            num_rows = {name: store.num_rows(name) for name in store.schemas}
            refuse_forgotten(given, num_rows, config.path)
        # Right behind the opening: a restore that was cut short is brought to its end.
        history = None if view is not None else History.find(store)
        tables = Tables(config, store, caches, gpu_caches, device, view is not None)
        pool = OutputPool()
        batches = Batches(tables, pool)
        checkpoints = Checkpoints(tables, batches, history)
        periods = Periods(tables, batches)
        logged = LoggedMutations(tables, batches, periods)
        rows = RowVerbs(tables, pool)
        publishing = Publishing(tables, checkpoints)
        parts = ServerParts(tables, rows, batches, checkpoints, logged, periods, publishing)
        tables.is_open = True
        if history is not None:
            replay_log(parts, history, tiers.open_log, tiers.keeps_log)
    except BaseException:
        store.close()
        raise
    refuse_in_children(tables, str(config.path), ("lock", "updates", "stacks"))
    return parts


def replay_log(parts: ServerParts, history: History, open_log: OpenLog, keeps_log: bool) -> None:
    """Applies what the log holds beyond the checkpoint."""
    log = history.open_log(open_log)
    try:
        described = tables_now(parts.tables.store.extras(None), history.epoch)
        configs = [table_from_json(value) for value in described]
        history.num_replayed = replay(parts.logged, history, log, configs)
    except BaseException:
        history.close_log()
        raise
    if not keeps_log:
        history.close_log()


def _device_of(gpu: GpuCacheConfig) -> str:
    if gpu.device == HOST:
        return HOST
    import torch

    index = torch.device(gpu.device).index
    return str(torch.device("cuda", torch.cuda.current_device() if index is None else index))


def _make_gpu_caches(config: Config, tiers: Tiers) -> Mapping[str, AnyRowCache]:
    if tiers.make_gpu_caches is not None:
        return tiers.make_gpu_caches(config)
    from hps.gpu_cache import make_gpu_caches  # only a server with a gpu_cache needs torch

    return make_gpu_caches(config)
