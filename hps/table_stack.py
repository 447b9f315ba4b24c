"""TableStack: the verbs of one table over its tiers, whatever they are.

Above it: parameter_server.py, which checks arguments and keeps updates apart. Below it:
cached_tier.py, which moves the rows: a batch is looked up, what is missing gets slots, the rows
those slots held go down, the missing ones come up. A batch that cannot be held at once is worked
off in pieces of its unique keys.

Any thread may call. The verbs that change rows (create, push, assign, erase, apply) are called
within the server's updates; none is called under the server's lock.
"""

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hps.arrays import on_host, put_rows
from hps.cached_tier import MAX_SCRATCH_BYTES, CachedTier
from hps.errors import CapacityError, ConfigError, NonFiniteError, StoreError
from hps.row_cache import RowCache
from hps.row_layout import Floats, Keys

if TYPE_CHECKING:
    from hps.batch_rows import BatchRows
    from hps.config import TableConfig
    from hps.tier import TableTier

# A pull that is refused even for so few keys stops asking for slots and reads through.
_READ_THROUGH_KEYS = 64
_BUDGETS = {"dram_cache": "DramCacheConfig.bytes", "gpu_cache": "GpuCacheConfig.bytes"}


class TableStack(CachedTier):
    """One table over its tiers; arguments as CachedTier, and which tier its cache is."""

    def __init__(
        self,
        config: "TableConfig",
        cache: RowCache,
        below: "TableTier",
        lock: AbstractContextManager[Any],
        rates: dict[str, float],
        tier: str = "dram_cache",
    ) -> None:
        super().__init__(config, cache, below, lock, rates)
        self.tier = tier
        # A device tells of a gradient that is not finite when asked, not at once.
        self._failed_key: Callable[[bool], int | None] | None = getattr(cache, "failed_key", None)
        self.version = 0  # grows with every mutation; an iteration notices
        self.plan = self.take_plan()  # of the last pull or push
        self.rows_read_through = 0
        self._stored_before = below.num_rows()  # without what the cache has created since
        self._pinned: weakref.WeakSet[BatchRows] = weakref.WeakSet()

    @property
    def num_rows(self) -> int:
        """Stored rows over all tiers. Under the lock."""
        return self._stored_before + self.cache.num_created

    # Verbs of the server.

    def pull(self, keys: Keys, out: Floats) -> None:
        """Embeddings of keys [L] into out [L, D]; one native call when all rows are here."""
        with self.lock, self.counters:
            if self._pull_here(keys, out):
                return
            plan = self._lend_plan()
        try:
            self._each_piece(plan, lambda: self.cache.gather(plan, out), _READ_THROUGH_KEYS)
        except (CapacityError, StoreError):
            # No slot can be had: all are pinned, or the disk is full and no victim can go down.
            self._read_through(keys, out)
        finally:
            self._take_back(plan)

    def create(self, keys: Keys, out: Floats) -> None:
        """As pull, and stores the keys that nobody stored."""
        lr = self.rates[self.name]

        def visit(plan: Any) -> None:
            self.cache.create(plan, lr)
            self.cache.gather(plan, out)

        self._update_pieces(keys, visit)

    def push(self, keys: Keys, grads: Floats) -> None:
        """Sums grads [L, D] a key, then one optimizer step a key. No row changes if one is bad."""
        cache = self.cache
        lr = self.rates[self.name]
        with self.lock, self.counters:
            plan = self.plan
            self.version += 1
            is_whole = cache.is_current(plan) and plan.matches(keys)
            if not is_whole:
                cache.make_plan(keys, plan)
                cache.find(plan, 0, -1)
                is_whole = plan.num_missing == 0
                self.counters.hits += plan.num_unique if is_whole else 0
            if is_whole and not self.has_pending(plan):
                self._push_whole(plan, grads, lr)
                return
            self._refuse_non_finite(plan, cache.sum_gradients(plan, grads))
            plan = self._lend_plan()
        try:
            self._each_piece(plan, lambda: self._apply(plan, lr))
        finally:
            self._take_back(plan)

    def assign(self, keys: Keys, rows: Floats, state: Floats | None) -> None:
        """Sets rows [L, D] and state [L, S] outright; state None is that of a new row."""
        lr = self.rates[self.name]
        self._update_pieces(keys, lambda plan: self.cache.assign(plan, rows, state, lr))

    def erase(self, keys: Keys) -> NDArray[np.bool_]:
        """Drops keys [L] from every tier; bool [L], where a stored row was."""
        unique, inverse = np.unique(keys, return_inverse=True)
        with self.still(), self.lock:
            for rows in list(self._pinned):
                held = unique[np.isin(unique, rows.unique_keys())]
                if len(held):
                    raise ConfigError(
                        f"table {self.name!r}: key {held[0]} is pinned by a batch in flight; "
                        f"erase it when that batch is done (nothing was erased)"
                    )
            self.below.refuse_pinned(unique)
            self.version += 1
            # Below first: if that refuses, the row above is still the truth.
            below = self.below.erase(unique) != 0
            erased: NDArray[np.bool_] = below | ((self.cache.erase(unique) & 1) != 0)
            self._stored_before -= int(erased.sum())
        return erased[inverse]

    # Batches in flight.

    def pin(self, keys: Keys) -> Any:
        """The plan of keys [L], every row in its slot and pinned until `unpin`.

        Raises:
            CapacityError: the batch cannot be held at once.
        """
        with self.lock, self.counters:
            plan = self.cache.make_plan(keys, self.take_plan())
            if self.is_moving:
                try:
                    if self.pin_here(plan, 0, -1):
                        return plan
                except BaseException:
                    self.cache.abandon(plan)
                    raise
        with self.reserving(plan):
            if self.bring(plan, 0, -1):
                return plan
        with self.lock:
            error = self._capacity_error(plan.num_unique)
            self.keep_plan(plan)
        raise error

    def hold(self, rows: "BatchRows") -> None:
        """Notes that `rows` holds pins, for erase to look at. Under the lock."""
        self._pinned.add(rows)

    def unpin(self, plan: Any) -> None:
        """Drops the pins of a plan; may be repeated, after an interrupt. Under the lock."""
        self.cache.abandon(plan)

    def sum_gradients(self, plan: Any, grads: Floats) -> None:
        """Sums into the plan; NonFiniteError if a sum is NaN or infinite. Under the lock."""
        with self.counters:
            culprit = self.cache.sum_gradients(plan, grads)
        self._refuse_non_finite(plan, culprit)

    def apply(self, plan: Any) -> None:
        """The optimizer once a key of a pinned plan, with the plan's sums. Under the lock."""
        with self.counters:
            self._apply(plan, self.rates[self.name])

    def push_pinned(self, plan: Any, grads: Floats) -> None:
        """sum_gradients and apply in one native call, on a pinned plan. Under the lock."""
        self.version += 1
        with self.counters:
            self._push_whole(plan, grads, self.rates[self.name])

    def gather(self, plan: Any, out: Floats) -> None:
        """Embeddings of a pinned plan to all their positions in out [L, D]. Under the lock."""
        with self.counters:
            self.cache.gather(plan, out)

    def pool(self, plan: Any, offsets: Any, weights: Any, mean: bool, out: Any) -> None:
        """Sums or means of bags of a pinned plan into out [B, F * D]. Under the lock."""
        with self.counters:
            self.cache.pool(plan, offsets, weights, mean, out)

    def raise_failed(self, *, wait: bool) -> None:
        """Raises what a device has not told yet: the sums of a step before were not finite.

        Args:
            wait: for the steps that are still under way.

        Raises:
            NonFiniteError: names the key; neither that step nor one after it has changed a row.
        """
        if self._failed_key is None:
            return
        with self.lock:
            key = self._failed_key(wait)
        if key is not None:
            raise self._non_finite(key)

    def restart(self) -> None:
        """Forgets every cached row: the store below has gone to another cut. Within `still`."""
        super().restart()
        with self.lock:
            self.version += 1
            self._stored_before = self.below.num_rows() - self.cache.num_created

    # How a call is worked off.

    def _pull_here(self, keys: Keys, out: Floats) -> bool:
        """True if all rows were here; else the stack's plan is that of the keys."""
        plan, cache = self.plan, self.cache
        if not self.is_moving:
            is_here = cache.pull(plan, keys, out) == 0
            self.counters.hits += plan.num_looked_up if is_here else 0
            return is_here
        cache.make_plan(keys, plan)
        cache.find(plan, 0, -1)
        if plan.num_missing or self.has_pending(plan):
            return False
        cache.gather(plan, out)
        self.counters.hits += plan.num_unique
        return True

    def _lend_plan(self) -> Any:
        """The stack's plan becomes one caller's, who lets go of the lock. Under the lock."""
        plan, self.plan = self.plan, self.take_plan()
        return plan

    def _take_back(self, plan: Any) -> None:
        """A lent plan is the stack's again, so that a push after a pull reuses its look-up."""
        with self.lock:
            self.keep_plan(self.plan)
            self.plan = plan

    def _update_pieces(self, keys: Keys, update: Callable[[Any], None]) -> None:
        with self.lock, self.counters:
            plan = self._lend_plan()
            self.cache.make_plan(keys, plan)

        def visit() -> None:
            self.version += 1
            update(plan)

        try:
            self._each_piece(plan, visit)
        finally:
            self._take_back(plan)

    def _each_piece(self, plan: Any, visit: Callable[[], None], smallest: int = 1) -> None:
        """Pins the plan's unique keys piece by piece and calls visit() on each window.

        A refused piece is halved, an accepted one lets the next be twice as long. CapacityError
        when `smallest` keys are refused. Whatever is raised (also by an interrupt between two
        native calls), no pin stays, and a note says how many keys were done.
        """
        cache = self.cache
        with self.lock:
            num_unique = plan.num_unique
        largest = min(cache.capacity_rows, max(1, MAX_SCRATCH_BYTES // self.layout.row_bytes))
        first, count = 0, largest
        try:
            while first < num_unique:
                count = min(count, num_unique - first)
                with self.reserving(plan):
                    is_accepted = self.bring(plan, first, count)
                    if is_accepted:
                        with self.lock, self.counters:
                            visit()
                            first += count
                            cache.release(plan)
                if is_accepted:
                    count = min(2 * count, largest)
                elif count > smallest:
                    count = (count + 1) // 2
                else:
                    with self.lock:
                        raise self._capacity_error(count)
        except BaseException as error:
            if first:
                error.add_note(f"the first {first} of {num_unique} keys of this call were done")
            raise

    def _apply(self, plan: Any, lr: float) -> None:
        self.version += 1
        self.cache.apply(plan, lr)

    def _push_whole(self, plan: Any, grads: Floats, lr: float) -> None:
        self._refuse_non_finite(plan, self.cache.push(plan, grads, lr))

    def _read_through(self, keys: Keys, out: Floats) -> None:
        """Embeddings of keys [L] into out [L, D] without taking a slot: the disk is full, or every
        slot is pinned."""
        unique, inverse = np.unique(on_host(keys), return_inverse=True)
        weights: Floats = np.empty((len(unique), self.layout.dim), np.float32)
        with self.turn.held():
            with self.lock, self.counters:
                is_here = self.cache.contains(unique) != 0
                here, away = np.flatnonzero(is_here), np.flatnonzero(~is_here)
                if len(here):
                    plan = self.cache.make_plan(unique[here], None)
                    found_here: Floats = np.empty((len(here), self.layout.dim), np.float32)
                    self.cache.find(plan, 0, -1)
                    self.cache.gather(plan, found_here)
                    weights[here] = found_here
                initial: Floats = np.empty((len(away), self.layout.dim), np.float32)
                self.cache.initial_weights(unique[away], initial)
                weights[away] = initial
            piece = max(1, MAX_SCRATCH_BYTES // self.layout.row_bytes)
            for first in range(0, len(away), piece):
                idx = away[first : first + piece]
                rows, found = self.fetch_below(unique[idx])
                stored = np.flatnonzero(found)
                weights[idx[stored]] = self.layout.weights(rows)[stored]
        self.rows_read_through += len(away)
        put_rows(weights, inverse, out)

    def _refuse_non_finite(self, plan: Any, culprit: int) -> None:
        if culprit >= 0:
            raise self._non_finite(int(plan.unique_keys[culprit]))

    def _non_finite(self, key: int) -> NonFiniteError:
        return NonFiniteError(
            f"table {self.name!r}, key {key}: the summed gradient is NaN or infinite; no row "
            f"was changed. Look for a diverged loss, or skip the step as torch.amp.GradScaler "
            "does"
        )

    def _capacity_error(self, num_keys: int) -> CapacityError:
        return CapacityError(
            f"table {self.name!r}: {num_keys} distinct keys cannot be pinned at once: the "
            f"{self.tier} has {self.cache.capacity_rows} slots and {self.cache.pins} pins on them; "
            f"raise {_BUDGETS[self.tier]} or the table's share, or make batches smaller"
        )
