"""ParameterServer: tables of embedding rows over a GPU, DRAM and SSD, as one object with pull and
push.

Above it: users, SparseEmbedding, RowOptimizer, Pipeline, the command line. Below it: a TableStack
for each table. This is the only file that stacks tiers: it opens the ssd_store, builds a dram_cache
a table, and a gpu_cache where there is to be one, and hands them to the stacks. Here arguments are
checked and updates kept apart; cut_verbs.py takes cuts, batch_verbs.py pins batches,
logged_verbs.py applies what the log of a service holds.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

from hps import checkpoint as cut
from hps.arrays import (
    HOST,
    OutputPool,
    as_floats,
    as_keys,
    as_output,
    like,
    new_output,
    on_host,
)
from hps.batch_rows import BatchRows, RowUpdate
from hps.cluster.catalog import Catalog, refuse_cluster
from hps.cluster.reader import ClusterStore
from hps.config import Config, DramCacheConfig, GpuCacheConfig, SsdStoreConfig, TableConfig
from hps.dram_cache import make_dram_caches
from hps.dram_tier import DramTier
from hps.errors import ConfigError
from hps.field_checks import require_path
from hps.forked import is_inherited, refuse_in_children
from hps.logged_verbs import LoggedVerbs
from hps.row_checks import refuse_impossible_rows
from hps.ssd_store import TableSchema, engine_of, open_store
from hps.store_table import StoreTable
from hps.table_scan import digest, digest_parts, items
from hps.table_stack import TableStack
from hps.tier_stats import TableTiers, server_stats
from hps.update_log import OpenLog, open_update_log
from hps.update_log.served_tables import known_tables, tables_now

__all__ = ["BatchRows", "ParameterServer", "RowUpdate", "open"]


@dataclass(frozen=True)
class _Tiers:
    """What the server is stacked from; tests put twins here."""

    open_store: Callable[..., Any] = open_store
    make_cache: Callable[..., Any] | None = None  # None: the native DramCache
    make_gpu_caches: Callable[[Config], dict[str, Any]] | None = None  # None: those of gpu_cache
    open_log: OpenLog = open_update_log
    keeps_log: bool = False  # open, for who goes on with it


@dataclass(frozen=True)
class _View:
    """How a store is opened other than for writing."""

    checkpoint: str | int | None


class ParameterServer(LoggedVerbs):
    """Embedding rows of every table, pulled by key and updated by gradient, larger than memory.

    Any number of threads may read, and get what each would get alone (docs/reliability.md: which
    verbs may run beside which). Those that change rows, and checkpoints, are worked off one
    at a time; reads and `pin` run beside them and beside each other, but for the moments in which
    memory moves, and wait for an SSD read only where they miss a row themselves.

    Args:
        config: the store and its budgets. A store that exists must fit it.

    What is open is the folder that was there at the opening. Where it, or its LOCK, is not at its
    path any more, nothing is committed (StoreError, ESTALE) and the server takes no more changes;
    see docs/reliability.md. In a forked child every verb raises StoreError.

    Raises:
        ConfigError: the config does not fit the store that is there, or a budget is too small.
        StoreError: another process has the store open for writing (names its pid), or the operating
            system refused.
        CorruptionError: the newest checkpoint is damaged.

    >>> import numpy, tempfile
    >>> tables = [TableConfig(name="ads", dim=4)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ParameterServer(Config(path=folder, tables=tables)) as server:
    ...         keys = numpy.array([7, 8, 7], numpy.uint64)
    ...         server.push("ads", keys, numpy.ones((3, 4), numpy.float32))
    ...         server.pull("ads", keys).shape, server.num_rows("ads")
    ((3, 4), 2)
    """

    def __init__(
        self, config: Config, *, _tiers: _Tiers | None = None, _view: _View | None = None
    ) -> None:
        tiers = _tiers or _Tiers()
        config = replace(config, path=Path(config.path).absolute())  # os.chdir changes nothing
        if _view is None:
            refuse_cluster(config.path)
        self.config = config
        self.tables: dict[str, TableConfig] = {table.name: table for table in config.tables}
        self.learning_rates = {name: table.optimizer.lr for name, table in self.tables.items()}
        # Held while memory moves, by everyone; see hps/cached_tier.py for who may wait for whom.
        self._lock = threading.RLock()
        # Held by whoever changes rows or takes a cut, for as long as that takes. Asked for first.
        self._updates = threading.RLock()
        self._pool = OutputPool()
        self._is_open = False
        self._is_read_only = _view is not None
        self._is_changed = False
        # Of the training loop: kept here, read and written by hps.gradients.
        self.pending_gradients: Any = None
        caches = make_dram_caches(config, tiers.make_cache)
        gpu_caches = {} if config.gpu is None else _make_gpu_caches(config, tiers)
        self.device = HOST if config.gpu is None else _device_of(config.gpu)
        self._store = tiers.open_store(
            config.path,
            [TableSchema.of(table) for table in config.tables],
            engine=config.ssd.engine,
            segment_bytes=config.ssd.segment_bytes,
            keep_last=config.ssd.keep_last,
            compaction_threshold=config.ssd.compaction_threshold,
            compaction_bytes_per_second=config.ssd.compaction_bytes_per_second,
            read_only=self._is_read_only,
            direct_io=config.ssd.direct_io,
            checkpoint=None if _view is None else _view.checkpoint,
            seed=config.seed,
            threads=config.num_threads(),
        )
        try:
            self._find_history()
            self._dense_mark = self._find_dense_mark()
            self._tiers = {
                table.name: self._stack_up(table, caches[table.name], gpu_caches.get(table.name))
                for table in config.tables
            }
            self._stacks = {name: tiers.stack for name, tiers in self._tiers.items()}
            self._other_tables = self._find_other_tables()
            self._is_open = True
            self._replay_log(tiers.open_log, tiers.keeps_log)
        except BaseException:
            self._is_open = False
            self._store.close()
            raise
        refuse_in_children(self, str(config.path), ("_lock", "_updates", "_stacks"))

    # Rows.

    def pull(self, table: str, keys: Any, out: Any = None, create: bool = False) -> Any:
        """Embeddings of keys; an absent key reads as its initial value.

        Args:
            table: its name.
            keys: int64 or uint64 [L], numpy array or CPU tensor, duplicates allowed.
            out: float32 [L, dim], contiguous, to write into; None takes a buffer of the pool.
            create: absent keys are stored as they read.

        Returns:
            float32 [L, dim], `out` itself if given, else a tensor if the keys were one. It is the
            caller's: no later call writes into it while the caller holds it.

        Raises:
            ConfigError: unknown table, wrong dtype or shape; create on a read-only server.
            StoreError, CorruptionError: a row could not be read, or (create) not be stored.

        Cost: one pass over L keys; rows that are not in DRAM are read from SSD, all at once.
        """
        with self._lock:
            stack = self._stack(table)
            array = as_keys(keys, self.device)
            num_keys, dim = len(array), stack.layout.dim
            if out is not None:
                rows = as_output(out, num_keys, dim, self.device)
            else:
                rows = new_output(keys, num_keys, dim, self.device)
                rows = self._pool.take(num_keys, dim) if rows is None else rows
        stack.raise_failed(wait=True)
        if num_keys and create:
            with self._updates:
                self._begin_change("pull(create=True)")
                stack.create(array, rows)
        elif num_keys:
            stack.pull(array, rows)
        return like(rows, keys) if out is None else out

    def push(self, table: str, keys: Any, grads: Any) -> None:
        """Sums the gradients of each key in order of occurrence, then runs its optimizer once.

        A push with the keys of the last pull reuses its look-up. Absent keys are created.

        Args:
            table: its name.
            keys: int64 or uint64 [L], duplicates allowed.
            grads: float32 [L, dim], one row an occurrence.

        Raises:
            NonFiniteError: a sum is NaN or infinite, or the step would make its row so; names the
                key; no row has changed.
            ConfigError: unknown table, wrong dtype or shape, read-only server.
            CapacityError: batches in flight have all slots of a key pinned, and those that wait in
                a pipeline gave none back; no row has changed.
            StoreError: no space to write evicted rows. If the keys do not fit the cache at once,
                those worked off before it, or before an interrupt, are updated; the error's note
                says how many.
        """
        with self._updates:
            stack = self._stack(table)
            array = as_keys(keys, self.device)
            floats = as_floats(grads, len(array), stack.layout.dim, "grads", self.device)
            self._begin_change("push")
            if len(array):
                stack.push(array, floats)
                stack.raise_failed(wait=True)

    def assign(self, table: str, keys: Any, rows: Any, state: Any = None) -> None:
        """Sets rows outright; of a key that stands twice the last row counts.

        Args:
            table: its name.
            keys: int64 or uint64 [L].
            rows: float32 [L, dim].
            state: float32 [L, state floats of a row], header scalars before vectors, as
                items(state=True) gives it; None starts the optimizer's state anew.

        Raises:
            ConfigError: unknown table, wrong dtype or shape, read-only server; a state that the
                optimizer cannot have made, such as an accumulator below 0.
            NonFiniteError: NaN or infinity. No row has changed, as with ConfigError.
            StoreError: no space to write evicted rows.
        """
        with self._updates:
            stack = self._stack(table)
            array = on_host(as_keys(keys, self.device))
            weights = as_floats(rows, len(array), stack.layout.dim, "rows")
            floats = (
                None
                if state is None
                else as_floats(state, len(array), stack.layout.state_floats, "state")
            )
            rate = self.learning_rates[table]
            refuse_impossible_rows(self.tables[table], array, weights, floats, rate)
            self._begin_change("assign")
            if len(array):
                stack.assign(array, weights, floats)

    def contains(self, table: str, keys: Any) -> Any:
        """Which keys are stored, in any tier: bool [L], a tensor if the keys were one."""
        with self._lock:
            array = on_host(as_keys(keys, self.device))
            return like(self._stack(table).contains(array) != 0, keys)

    def erase(self, table: str, keys: Any) -> Any:
        """Drops keys from every tier.

        Returns:
            bool [L]: where a stored row was; a tensor if the keys were one.

        Raises:
            ConfigError: a batch in flight has one of them pinned (nothing was erased); read-only.
        """
        with self._updates:
            stack = self._stack(table)
            array = on_host(as_keys(keys, self.device))
            self._begin_change("erase")
            return like(stack.erase(array), keys)

    def num_rows(self, table: str) -> int:
        """Stored rows of a table over all tiers, each counted once; exact."""
        with self._lock:
            return self._stack(table).num_rows

    def items(
        self, table: str, batch: int = 65536, state: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Every stored row once, in no order: (keys, rows) or, with state, (keys, rows, state).

        Pieces are copies: uint64 [n], float32 [n, dim], float32 [n, state floats], n up to `batch`.
        Reading from the server meanwhile is fine; changing the table makes the next piece raise.

        Raises:
            ConfigError: unknown table; batch < 1; the table was changed since the iteration began.
        """
        with self._lock:
            stack = self._stack(table)
            if batch < 1:
                raise ConfigError(f"items(batch={batch}): at least 1 row a piece is needed")
            return items(stack, batch, state)

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row (key, weights, state): 32 hex digits.

        Equal digests mean equal tables, wherever the rows lie. Reads the whole table; writes
        nothing.
        """
        with self._updates:
            return digest(self._stack(table))

    def digest_parts(self, table: str) -> Iterator[tuple[int, int]]:
        """As digest, in parts between which the table may be read: (low, high) of some rows each,
        to be summed modulo 2^64; the digest is high, then low. A change of the table makes the next
        part raise.

        Raises:
            ChangedError: the table was changed since the first part.
        """
        with self._lock:
            return digest_parts(self._stack(table))

    def stats(self) -> dict[str, Any]:
        """Counters of each tier since the server was opened, then of each table."""
        self._check_open()
        store = self._store.stats()  # may wait for who writes there; not with the lock
        with self._lock:
            gpu = self.config.gpu
            budgets = {} if gpu is None else {"gpu_cache": int(gpu.bytes)}
            budgets["dram_cache"] = int(self.config.dram.bytes)
            return server_stats(self._tiers.values(), store, budgets)

    # Lifetime.

    def close(self) -> None:
        """Closes the store without saving; nothing to do the second time.

        Raises:
            NonFiniteError: on a GPU, of the last step; see `apply`. The store is closed by then.
        """
        was_open = self._is_open
        self._close()
        for stack in self._stacks.values() if was_open else ():
            stack.raise_failed(wait=True)

    def _close(self) -> None:
        with self._updates, self._still(), self._lock:
            self._is_open = False
            for stack in self._stacks.values():
                stack.version += 1  # ends iterations
            self._store.close()  # nothing to do the second time

    def __enter__(self) -> "ParameterServer":
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and is_inherited(self._lock):
            return  # of a forked child: all is the parent's, and what was raised says more
        try:
            if kind is None and self._is_changed and self._is_open:
                self.checkpoint(tag=cut.LAST)
        except BaseException:
            self._close()
            raise
        if kind is None:
            self.close()
        else:
            self._close()

    def _stack_up(self, table: TableConfig, dram_cache: Any, gpu_cache: Any) -> TableTiers:
        store = StoreTable(table.name, self._store)
        lock, rates = self._lock, self.learning_rates
        if gpu_cache is None:
            stack = TableStack(table, dram_cache, store, lock, rates)
            stack.make_room = self._make_room
            return TableTiers(stack, {"dram_cache": stack}, store)
        dram = DramTier(table, dram_cache, store, lock, rates)
        stack = TableStack(table, gpu_cache, dram, lock, rates, "gpu_cache")
        stack.make_room = self._make_room
        return TableTiers(stack, {"gpu_cache": stack, "dram_cache": dram}, store, dram)

    def _find_other_tables(self) -> cut.OtherTables:
        """Of the current cut; the extras are read only if the store has more tables."""
        has_more = not self._is_read_only and set(self._store.schemas) - set(self.tables)
        if not has_more:
            return cut.OtherTables([], {})
        extras = self._store.extras(None)
        epoch = None if self._history is None else self._history.epoch
        now = [value for value in tables_now(extras, epoch) if value["name"] not in self.tables]
        return cut.OtherTables(now, cut.OtherTables.of(extras, self.tables).rates)


def open(
    path: str | PathLike[str],
    read_only: bool = True,
    checkpoint: str | int | None = None,
    dram: int | str = "256MiB",
    *,
    gpu: GpuCacheConfig | None = None,
    _tiers: _Tiers | None = None,
) -> ParameterServer:
    """Opens a store that is there; its tables are read from it.

    Read-only it may stand beside a running trainer and shows one checkpoint: pull, contains,
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
    tiers = _tiers or _Tiers()
    require_path("open: path", path)
    path = Path(path).absolute()
    if checkpoint is not None and not read_only:
        raise ConfigError("open: checkpoint= goes with read_only=True; restore() goes back to one")
    if not read_only:
        refuse_cluster(path)
    elif Catalog.load(path) is not None:
        tiers = replace(tiers, open_store=ClusterStore.open)
    store = tiers.open_store(path, [], read_only=True, checkpoint=checkpoint, rows=False)
    try:
        # Also of a cut that is current but no longer listed: its tag was deleted.
        extras = store.extras(checkpoint)
        now, others = ([], []) if read_only else known_tables(path, store)
        config = Config(
            path=path,
            tables=cut.tables_from_store(list(store.schemas.values()), extras, [*now, *others]),
            dram=DramCacheConfig(bytes=dram),
            gpu=gpu,
            ssd=SsdStoreConfig(engine=engine_of(path) or "segments"),
            seed=store.seed,
        )
    finally:
        store.close()
    return ParameterServer(config, _tiers=tiers, _view=_View(checkpoint) if read_only else None)


def _device_of(gpu: GpuCacheConfig) -> str:
    if gpu.device == HOST:
        return HOST
    import torch

    index = torch.device(gpu.device).index
    return str(torch.device("cuda", torch.cuda.current_device() if index is None else index))


def _make_gpu_caches(config: Config, tiers: _Tiers) -> dict[str, Any]:
    if tiers.make_gpu_caches is not None:
        return tiers.make_gpu_caches(config)
    from hps.gpu_cache import make_gpu_caches  # only who has a gpu_cache needs torch

    return make_gpu_caches(config)
