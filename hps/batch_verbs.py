"""BatchVerbs: the verbs of a ParameterServer for batches in flight: pinned ahead, updated together.

Above it: logged_verbs.py, and ParameterServer, which is one; through it SparseEmbedding,
RowOptimizer and Pipeline. Below it: cut_verbs.py, batch_rows.py, table_stack.py, dram_tier.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hps import _C
from hps.arrays import OutputPool, as_floats, as_keys, joined, on_host
from hps.batch_rows import BatchRows, RowUpdate
from hps.cut_verbs import CutVerbs
from hps.dram_tier import WarmRows
from hps.errors import CapacityError, ConfigError
from hps.row_cache import ABSENT
from hps.row_server import PinnedRows, SoleServer
from hps.tier_stats import TableTiers


class BatchVerbs(CutVerbs, SoleServer):
    """Pin, warm, want, apply; its fields are set by ParameterServer."""

    # Where the top tier's rows lie, as torch names it: results for keys that lie there do, too.
    device: str
    _pool: OutputPool
    _tiers: dict[str, TableTiers]

    @property
    def has_gpu_cache(self) -> bool:
        """True if working rows lie in a gpu_cache: then `warm` goes before `pin`."""
        return self.config.gpu is not None

    def pin(self, table: str, keys: Any) -> BatchRows:
        """Fetches the rows of a batch and holds them in their slots until they are released.

        May be called from another thread than the training loop: that one waits for none of its
        reads. Batches reserve in the order in which they ask.

        Raises:
            CapacityError: the cache cannot hold all of them at once; nothing was taken.
            StoreError: no space to write evicted rows; nothing was taken.
            NonFiniteError: on a GPU, of a step before; see `apply`.
        """
        stack = self._stack(table)
        stack.raise_failed(wait=False)
        array = as_keys(keys, self.device)
        return BatchRows(stack, array, keys, self._pool, self._lock, self.device)

    def warm(self, table: str, keys: Any) -> WarmRows:
        """Brings rows of a batch that the gpu_cache lacks into the dram_cache, ahead of `pin`.

        They stay there until they are released, which may be once the batch is pinned. Where slots
        cannot be had, fewer rows wait there, and `pin` reads the others itself. Without a gpu_cache
        it does nothing. May be called from any thread.

        Raises:
            StoreError, CorruptionError: a row could not be read, or an evicted one not be stored.
        """
        self._stack(table)
        dram = self._tiers[table].dram
        array = on_host(as_keys(keys, self.device))
        if dram is None or not len(array):
            return WarmRows(None)
        unique = np.unique(array)
        with self._lock:
            unique = unique[self._stacks[table].cache.contains(unique) == ABSENT]
        return dram.warm(unique)

    def want(self, table: str, keys: Any) -> None:
        """Says that a batch to come uses these keys: a cache that holds rows of theirs lets go of
        others first, until they are used. Changes no result. From any thread.

        Cost: for each cache one deduplication and look-up of the keys.
        """
        array = on_host(as_keys(keys, self.device))
        with self._lock:
            self._stack(table)
            for tier in self._tiers[table].caches.values():
                tier.want(array)

    def holds(self, rows: PinnedRows) -> bool:
        """True if this server pinned these rows; another one may have a table of that name."""
        return isinstance(rows, BatchRows) and rows.belongs_to(self._stacks)

    def apply(
        self,
        updates: Sequence[RowUpdate],
        applied: Callable[[], object] | None = None,
        checked: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """One optimizer step of several tables: all of them or, if a gradient is bad, none.

        Several updates of one table are summed as one, in their order. Where the tiers are native
        no interrupt comes between two tables; one on a CUDA device may.

        Args:
            updates: of each table.
            applied: called right after, with no interrupt in between if it is a builtin.
            checked: is given the function that raises what refuses the step, calls it and raises it
                on, or what refuses it elsewhere. Then on a GPU the check waits, too.

        Raises:
            NonFiniteError: a sum is NaN or infinite, or a step by it would make its row so; no row
                of any table has changed. On a GPU it comes later, with the next batch, checkpoint,
                pull or push at the latest: nothing is updated until it has come.
            ConfigError: as push; or rows that were released, are not those of the keys or belong
                to another server.
            CapacityError: rows that were not pinned cannot all be.
        """
        with self._updates:
            self._begin_change("apply")
            held: list[BatchRows] = []
            try:
                work = [
                    (self._stack(table), *self._one_update(group, held))
                    for table, group in _by_table(updates).items()
                ]
                work = [(stack, rows, grads) for stack, rows, grads in work if len(grads)]
                for stack in self._stacks.values():
                    stack.raise_failed(wait=False)
                with self._lock:  # one moment for whoever reads meanwhile

                    def check() -> None:
                        for stack, rows, grads in work:
                            stack.sum_gradients(rows.held_plan(), grads)
                        for stack, _, _ in work if checked else ():
                            stack.raise_failed(wait=True)

                    (checked or _check)(check)
                    calls = [stack.applying(rows.held_plan()) for stack, rows, _ in work]
                    seconds = _C.call_all([*calls, *([applied] if applied else [])])
                    for (stack, _, _), spent in zip(work, seconds, strict=False):
                        stack.counters.seconds += spent
            finally:
                for rows in held:
                    rows.release()

    def _one_update(self, group: list[RowUpdate], held: list[BatchRows]) -> tuple[BatchRows, Any]:
        """The pinned rows and gradients of one table's updates; adds what it pins to `held`."""
        table = group[0].table
        dim = self._stack(table).layout.dim
        keys = [as_keys(update.keys, self.device) for update in group]
        grads = [
            as_floats(update.grads, len(part), dim, "grads", self.device)
            for update, part in zip(group, keys, strict=True)
        ]
        rows = group[0].rows
        if len(group) == 1 and rows is not None:
            is_own = self.holds(rows) and not rows.is_released and rows.table == table
            if isinstance(rows, BatchRows) and is_own and rows.are_of(keys[0]):
                return rows, grads[0]
            raise ConfigError(
                f"apply: the rows given for table {table!r} were released, or are those of "
                f"other keys or of another server; pass rows=None to have them looked up"
            )
        held.append(self.pin_now(table, joined(keys)))
        return held[-1], joined(grads)

    def pin_now(self, table: str, keys: Any) -> BatchRows:
        """pin() for the training loop, which batches that wait ahead of it make room for."""
        while True:
            try:
                return self.pin(table, keys)
            except CapacityError:
                if not self._make_room():
                    raise

    def tries_updates(self, table: str) -> bool:
        """True if each step of the table is tried before it is applied, whatever its gradients."""
        with self._lock:
            return self._stack(table).tries_updates()

    def _make_room(self) -> bool:
        """Has open pipelines release batches that are not handed out yet; True if one did.

        Not under the lock or with a turn: a pipeline's thread may want them before it gives way.
        """
        pending = self.pending_gradients
        listeners = [] if pending is None else list(pending.listeners)
        return any([listener.give_back_ahead() for listener in listeners])


def _check(check: Callable[[], None]) -> None:
    check()


def _by_table(updates: Sequence[RowUpdate]) -> dict[str, list[RowUpdate]]:
    groups: dict[str, list[RowUpdate]] = {}
    for update in updates:
        groups.setdefault(update.table, []).append(update)
    return groups
