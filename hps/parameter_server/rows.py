"""RowVerbs: the verbs of a ParameterServer for rows by key, and for all rows of a table.

Above it: ParameterServer, whose docstrings say what each verb promises. Below it: tables.py,
tiers/top_tier.py, tiers/scan.py. Here arguments are checked and updates kept apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hps import _C
from hps.common.arrays import (
    AnyArray,
    HostArray,
    OutputPool,
    as_floats,
    as_keys,
    as_labels,
    as_output,
    like,
    new_output,
    on_host,
)
from hps.common.json_text import Json
from hps.common.occurrences import Occurrences
from hps.common.row_layout import Floats, Keys
from hps.contracts.reads import PooledRead, in_order
from hps.errors import ConfigError
from hps.parameter_server.periods import as_statistics, refuse_uncounted
from hps.parameter_server.stats import server_stats
from hps.parameter_server.tables import Tables
from hps.table.row_checks import refuse_impossible_rows, refuse_impossible_statistics
from hps.tiers.batch_rows import BatchRows
from hps.tiers.scan import digest, digest_parts, items

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling

# The allocator gives 64 KiB without page faults, and sooner than the pool finds a free buffer.
_SMALL_FLOATS = 2**14


class RowVerbs:
    """Pull, push and the other verbs by key.

    Args:
        tables: of the server.
        pool: of buffers for what is pulled.
    """

    def __init__(self, tables: Tables, pool: OutputPool) -> None:
        self._tables = tables
        self._pool = pool
        self._device = tables.device

    def pull(self, table: str, keys: AnyArray, out: AnyArray | None, create: bool) -> AnyArray:
        """As ParameterServer.pull."""
        tables = self._tables
        with tables.lock:
            stack = tables.stack(table)
            array = as_keys(keys, self._device)
            num_keys, dim = len(array), stack.layout.dim
            if out is not None:
                rows = as_output(out, num_keys, dim, self._device)
            else:
                beside = new_output(keys, num_keys, dim, self._device)
                rows = self._new_rows(num_keys, dim) if beside is None else beside
        stack.raise_failed(wait=True)
        if num_keys and create:
            with tables.updates:
                tables.begin_change("pull(create=True)")
                stack.create(array, rows)
        elif num_keys:
            stack.pull(array, rows)
        return like(rows, keys) if out is None else out

    def _new_rows(self, num_keys: int, dim: int) -> Floats:
        if num_keys * dim <= _SMALL_FLOATS:
            return np.empty((num_keys, dim), np.float32)
        return self._pool.take(num_keys, dim)

    def initial_weights(self, table: str, keys: AnyArray) -> Floats:
        """What keys read as that have no row, float32 [L, dim]."""
        tables = self._tables
        with tables.lock:
            stack = tables.stack(table)
            array = on_host(as_keys(keys))
            rows: Floats = np.empty((len(array), stack.layout.dim), np.float32)
            stack.cache.initial_weights(array, rows)
            return rows

    def pull_pooled(
        self, table: str, keys: AnyArray, pooling: "BagPooling", out: "torch.Tensor"
    ) -> None:
        """As ParameterServer.pull_pooled."""
        tables = self._tables
        with tables.lock:
            stack = tables.stack(table)
            array = as_keys(keys, self._device)
            dim = stack.layout.dim
            pooling.check(len(array), f"pull_pooled: table {table!r}")
            target = as_output(out, len(out), out.shape[1] // dim * dim, self._device)
            bags = pooling.arguments(self._device)
        stack.raise_failed(wait=True)
        stack.pull_pooled(array, bags, target)

    def pull_tables(self, reads: Sequence[PooledRead]) -> None:
        """As ParameterServer.pull_tables."""
        together, stacks = self._tables.together, self._tables.stacks
        if together is not None and reads and together.pool(reads):
            return
        pinned: list[tuple[BatchRows, BagPooling, torch.Tensor]] = []
        for read in in_order(reads):
            rows = read.rows
            if rows is None:
                self.pull_pooled(read.table, read.keys, read.pooling, read.out)
                continue
            if rows.table != read.table:
                raise ConfigError(
                    f"pull_tables: the rows given for table {read.table!r} are of table "
                    f"{rows.table!r}"
                )
            if together is None or not isinstance(rows, BatchRows) or not rows.belongs_to(stacks):
                rows.pool(read.pooling, read.out)
            else:
                pinned.append((rows, read.pooling, read.out))
        if together is not None and pinned:
            together.pool_rows(pinned)

    def push(
        self,
        table: str,
        keys: AnyArray,
        grads: AnyArray,
        labels: AnyArray | None = None,
        occurrences: Occurrences | None = None,
    ) -> None:
        """As ParameterServer.push; or of gradients that were summed before, with what each key
        stands for."""
        tables = self._tables
        with tables.updates:
            stack = tables.stack(table)
            array = as_keys(keys, self._device)
            floats = as_floats(grads, len(array), stack.layout.dim, "grads", self._device)
            clicks = None if labels is None else as_labels(labels, len(array), "labels")
            tables.begin_change("push")
            if len(array):
                counted = (clicks, occurrences) if stack.layout.has_statistics else (None, None)
                stack.push(array, floats, *counted)
                tables.count_update(table)
                stack.raise_failed(wait=True)

    def assign(
        self,
        table: str,
        keys: AnyArray,
        rows: AnyArray,
        state: AnyArray | None,
        statistics: Mapping[str, AnyArray] | None = None,
    ) -> None:
        """As ParameterServer.assign."""
        tables = self._tables
        with tables.updates:
            stack = tables.stack(table)
            array = on_host(as_keys(keys, self._device))
            weights = as_floats(rows, len(array), stack.layout.dim, "rows")
            floats = (
                None
                if state is None
                else as_floats(state, len(array), stack.layout.state_floats, "state")
            )
            rate = tables.learning_rates[table]
            refuse_impossible_rows(tables.configs[table], array, weights, floats, rate)
            counted = None
            if statistics is not None:
                refuse_uncounted(tables.configs[table], "assign(statistics=)")
                counted = as_statistics(statistics, len(array))
                rules = tables.rules.get(table)
                refuse_impossible_statistics(
                    tables.configs[table], array, counted, tables.period, rules
                )
            tables.begin_change("assign")
            if len(array):
                stack.assign(array, weights, floats, counted)

    def contains(self, table: str, keys: AnyArray) -> AnyArray:
        """As ParameterServer.contains."""
        with self._tables.lock:
            array = on_host(as_keys(keys, self._device))
            return like(self._tables.stack(table).contains(array) != 0, keys)

    def assign_beside(
        self, table: str, keys: Keys, rows: Floats, piece: int, pause: Callable[[], object]
    ) -> None:
        """As assign, beside readers, of whom none waits for more than a piece.

        Args:
            keys, rows: uint64 [L], float32 [L, dim], contiguous.
            piece: keys at a time.
            pause: called between two pieces, without a lock.
        """
        tables = self._tables
        for first in range(0, len(keys), piece):
            part = slice(first, first + piece)
            with tables.updates:
                stack = tables.stack(table)
                tables.begin_change("assign")
                left = np.flatnonzero(~stack.assign_here(keys[part], rows[part]))
            if len(left):
                self.assign(table, keys[part][left], rows[part][left], None)
            pause()

    def expect(self, table: str, num_rows: int) -> None:
        """Makes a dram_cache that has few rows as large as so many need, at once: growing step by
        step moves each of them several times."""
        tables = self._tables
        with tables.updates:
            tables.stack(table)
            for tier in tables.tiers[table].caches.values():
                if isinstance(tier.cache, _C.DramCache):
                    with tier.turn, tables.lock:
                        tier.cache.expect(num_rows)

    def num_stored(self, table: str) -> int:
        """Rows of a table that the store knows of; others lie in memory alone."""
        tables = self._tables
        with tables.lock:
            tables.stack(table)
            return tables.tiers[table].store.num_rows()

    def erase(self, table: str, keys: AnyArray) -> AnyArray:
        """As ParameterServer.erase."""
        tables = self._tables
        with tables.updates:
            stack = tables.stack(table)
            array = on_host(as_keys(keys, self._device))
            tables.begin_change("erase")
            return like(stack.erase(array), keys)

    def num_rows(self, table: str) -> int:
        """As ParameterServer.num_rows."""
        with self._tables.lock:
            return self._tables.stack(table).num_rows

    def items(
        self, table: str, batch: int, state: bool, statistics: bool
    ) -> Iterator[tuple[HostArray, ...]]:
        """As ParameterServer.items."""
        with self._tables.lock:
            stack = self._tables.stack(table)
            if batch < 1:
                raise ConfigError(f"items(batch={batch}): batch must be at least 1")
            if statistics:
                refuse_uncounted(self._tables.configs[table], "items(statistics=True)")
            return items(stack, batch, state, statistics)

    def digest(self, table: str) -> str:
        """As ParameterServer.digest."""
        with self._tables.updates:
            return digest(*self._tables.digested(table))

    def digest_parts(self, table: str) -> Iterator[tuple[int, int]]:
        """As ParameterServer.digest_parts."""
        with self._tables.lock:
            return digest_parts(*self._tables.digested(table))

    def stats(self) -> Json:
        """As ParameterServer.stats."""
        tables = self._tables
        tables.check_open()
        store = tables.store.stats()  # may wait for who writes there; not with the lock
        with tables.lock:
            gpu = tables.config.gpu
            budgets = {} if gpu is None else {"gpu_cache": int(gpu.bytes)}
            budgets["dram_cache"] = int(tables.config.dram.bytes)
            stats = server_stats(
                tables.tiers.values(), store, budgets, tables.early, tables.num_shards
            )
            if tables.together is not None:
                memory = tables.together.memory
                stats["gpu_cache"]["batch_bytes"] = memory.num_bytes
                stats["gpu_cache"]["batch_bytes_peak"] = memory.peak_bytes
            return stats
