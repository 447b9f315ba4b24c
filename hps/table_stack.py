"""TableStack: one table over its two tiers, the dram_cache above the ssd_store.

Above it: parameter_server.py, which checks arguments, holds the lock and stacks the tiers. Below
it: a RowCache and a RowTier, given by the server. All rows move here: a batch is looked up, what is
missing gets slots, the rows those slots held go down, the missing ones come up. A batch that cannot
be held at once is worked off in pieces of its unique keys.

Not thread-safe: the server's lock is held around every call.
"""

import weakref
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hps.errors import CapacityError, ConfigError, NonFiniteError, StoreError
from hps.row_cache import RowCache
from hps.row_layout import Floats, Images, Keys, RowLayout
from hps.tier_stats import TierCounters

if TYPE_CHECKING:
    from hps.batch_rows import BatchRows
    from hps.config import TableConfig
    from hps.tier import RowTier

_Result = TypeVar("_Result")
_MAX_SCRATCH_BYTES = 2**26
_MAX_IDLE_PLANS = 16
# A pull that is refused even for so few keys stops asking for slots and reads through.
_READ_THROUGH_KEYS = 64


class TableStack:
    """One table over its tiers.

    Args:
        config: the table.
        cache: its dram_cache.
        store: the ssd_store of all tables.
        rates: learning rate of each table; shared with the server, which may change it.
    """

    def __init__(
        self,
        config: "TableConfig",
        cache: RowCache,
        store: "RowTier",
        rates: dict[str, float],
    ) -> None:
        self.name = config.name
        self.config = config
        self.layout = RowLayout(config.optimizer.kind, config.dim)
        self.cache = cache
        self.store = store
        self.rates = rates
        self.counters = TierCounters()
        self.num_rows = store.num_rows(self.name)
        self.version = 0  # grows with every mutation; an iteration notices
        self.plan = cache.make_plan(np.empty(0, np.uint64), None)
        self._idle_plans: list[Any] = []
        self._pinned: weakref.WeakSet[BatchRows] = weakref.WeakSet()
        self._scratch: Images = np.empty(0, np.uint8)

    # Verbs of the server.

    def pull(self, keys: Keys, out: Floats) -> None:
        """Embeddings of keys [L] into out [L, D]; one native call when all rows are here."""
        plan, cache = self.plan, self.cache
        with self.counters:
            if cache.pull(plan, keys, out) == 0:
                self.counters.dram_hits += plan.num_looked_up
                return
            try:
                self._each_piece(lambda: cache.gather(plan, out), _READ_THROUGH_KEYS)
            except (CapacityError, StoreError):
                # No slot can be had: all are pinned, or the disk is full and no victim can go down.
                self._read_through(keys, out)

    def create(self, keys: Keys, out: Floats) -> int:
        """As pull, and stores the keys that nobody stored; returns how many."""
        plan, cache = self.plan, self.cache
        before = self.num_rows
        lr = self.rates[self.name]

        def visit() -> None:
            self._counting(lambda: cache.create(plan, lr))
            cache.gather(plan, out)

        self.version += 1
        with self.counters:
            cache.make_plan(keys, plan)
            self._each_piece(visit)
        return self.num_rows - before

    def push(self, keys: Keys, grads: Floats) -> None:
        """Sums grads [L, D] a key, then one optimizer step a key. No row changes if one is bad."""
        plan, cache = self.plan, self.cache
        lr = self.rates[self.name]
        with self.counters:
            self.version += 1
            if not (cache.is_current(plan) and plan.matches(keys)):
                cache.make_plan(keys, plan)
                if cache.find(plan, 0, plan.num_unique):
                    self._refuse_non_finite(plan, cache.sum_gradients(plan, grads))
                    self._each_piece(lambda: self._apply(plan, lr))
                    return
                self.counters.dram_hits += plan.num_unique
            self._push_whole(plan, grads, lr)

    def assign(self, keys: Keys, rows: Floats, state: Floats | None) -> None:
        """Sets rows [L, D] and state [L, S] outright; state None is that of a new row."""
        plan, cache = self.plan, self.cache
        lr = self.rates[self.name]

        def visit() -> None:
            self._counting(lambda: cache.assign(plan, rows, state, lr))

        self.version += 1
        with self.counters:
            cache.make_plan(keys, plan)
            self._each_piece(visit)

    def contains(self, keys: Keys) -> NDArray[np.bool_]:
        """Which keys [L] are stored in any tier; bool [L]."""
        codes = self.cache.contains(keys)
        stored: NDArray[np.bool_] = (codes & 1) != 0
        absent = np.flatnonzero(codes == 0)
        if len(absent):
            stored[absent] = self.store.contains(self.name, keys[absent]) != 0
        return stored

    def erase(self, keys: Keys) -> NDArray[np.bool_]:
        """Drops keys [L] from every tier; bool [L], where a stored row was."""
        unique, inverse = np.unique(keys, return_inverse=True)
        for rows in list(self._pinned):
            if rows.is_released:
                continue
            held = unique[np.isin(unique, rows.plan.unique_keys)]
            if len(held):
                raise ConfigError(
                    f"table {self.name!r}: key {held[0]} is pinned by a batch in flight; "
                    f"erase it when that batch is done (nothing was erased)"
                )
        self.version += 1
        # The store first: if it refuses, the row above is still the truth.
        below = self.store.erase(self.name, unique) != 0
        erased: NDArray[np.bool_] = below | ((self.cache.erase(unique) & 1) != 0)
        self.num_rows -= int(erased.sum())
        return erased[inverse]

    # Batches in flight.

    def pin(self, keys: Keys) -> Any:
        """The plan of keys [L], every row in its slot and pinned until `unpin`.

        Raises:
            CapacityError: the batch cannot be held at once.
        """
        with self.counters:
            plan = self.cache.make_plan(keys, self._idle_plans.pop() if self._idle_plans else None)
            try:
                if self._bring(plan, 0, plan.num_unique):
                    return plan
            except BaseException:
                self.cache.abandon(plan)
                raise
        self._idle_plans.append(plan)
        raise self._capacity_error(plan.num_unique)

    def hold(self, rows: "BatchRows") -> None:
        """Notes that `rows` holds pins, for erase to look at."""
        self._pinned.add(rows)

    def unpin(self, plan: Any) -> None:
        """Drops the pins of a plan and keeps its memory for the next batch."""
        self.cache.release(plan)
        if len(self._idle_plans) < _MAX_IDLE_PLANS:
            self._idle_plans.append(plan)

    def sum_gradients(self, plan: Any, grads: Floats) -> None:
        """Sums into the plan; NonFiniteError if a sum is NaN or infinite."""
        with self.counters:
            culprit = self.cache.sum_gradients(plan, grads)
        self._refuse_non_finite(plan, culprit)

    def apply(self, plan: Any) -> None:
        """The optimizer once a key of a pinned plan, with the plan's sums."""
        self.version += 1
        with self.counters:
            self._apply(plan, self.rates[self.name])

    def push_pinned(self, plan: Any, grads: Floats) -> None:
        """sum_gradients and apply in one native call, on a pinned plan."""
        self.version += 1
        with self.counters:
            self._push_whole(plan, grads, self.rates[self.name])

    def gather(self, plan: Any, out: Floats) -> None:
        """Embeddings of a pinned plan to all their positions in out [L, D]."""
        with self.counters:
            self.cache.gather(plan, out)

    def restart(self) -> None:
        """Forgets every cached row: the store below has gone to another cut."""
        self.version += 1
        self.cache.clear()
        self.num_rows = self.store.num_rows(self.name)

    def write_back(self) -> int:
        """Writes every dirty row below, in pieces; returns how many."""
        rows = self.scratch_rows(max(1, _MAX_SCRATCH_BYTES // 8 // self.layout.row_bytes))
        num_rows = cursor = 0
        while cursor >= 0:
            count, end = self.cache.scan(cursor, "dirty", rows)
            if count:
                self._append(rows[:count])
            self.cache.mark_clean(cursor, end)
            num_rows += count
            cursor = end
        return num_rows

    def scratch_rows(self, count: int) -> Images:
        """uint8 [count, row_bytes] to read into; the next call overwrites it."""
        size = count * self.layout.row_bytes
        if size > _MAX_SCRATCH_BYTES:
            return np.empty((count, self.layout.row_bytes), np.uint8)
        if size > len(self._scratch):
            self._scratch = np.empty(size + size // 8, np.uint8)
        return self._scratch[:size].reshape(count, self.layout.row_bytes)

    # How rows move.

    def _apply(self, plan: Any, lr: float) -> None:
        self._counting(lambda: self.cache.apply(plan, lr))

    def _push_whole(self, plan: Any, grads: Floats, lr: float) -> None:
        culprit = self._counting(lambda: self.cache.push(plan, grads, lr))
        self._refuse_non_finite(plan, culprit)

    def _counting(self, verb: Callable[[], _Result]) -> _Result:
        """Calls a verb that stores fresh rows; counts them even if an interrupt follows it."""
        num_fresh = self.cache.num_fresh
        try:
            return verb()
        finally:
            self.num_rows += num_fresh - self.cache.num_fresh

    def _each_piece(self, visit: Callable[[], None], smallest: int = 1) -> None:
        """Pins the plan's unique keys piece by piece and calls visit() on each window.

        A refused piece is halved, an accepted one lets the next be twice as long. CapacityError
        when `smallest` keys are refused. Whatever is raised (also by an interrupt between two
        native calls), no pin stays, and a note says how many keys were done.
        """
        plan, cache = self.plan, self.cache
        num_unique = plan.num_unique
        largest = min(cache.capacity_rows, max(1, _MAX_SCRATCH_BYTES // self.layout.row_bytes))
        first, count = 0, largest
        try:
            while first < num_unique:
                count = min(count, num_unique - first)
                if self._bring(plan, first, count):
                    visit()
                    first += count
                    cache.release(plan)
                    count = min(2 * count, largest)
                elif count > smallest:
                    count = (count + 1) // 2
                else:
                    raise self._capacity_error(count)
        except BaseException as error:
            cache.abandon(plan)
            if first:
                error.add_note(f"the first {first} of {num_unique} keys of this call were done")
            raise

    def _bring(self, plan: Any, first: int, count: int) -> bool:
        """Pins unique keys [first, first + count), fetching what is missing; False if refused.

        If it raises, the caller abandons the plan: the slots are given back with the rows they
        held, nothing is lost. Victims that were written below by then stand in both tiers.
        """
        cache = self.cache
        num_missing = cache.find(plan, first, count)
        if not cache.reserve(plan):
            return False
        victims = cache.victims(plan)
        if len(victims):
            self._append(victims)
        rows, found = self._fetch(cache.missing_keys(plan))
        cache.fill(plan, rows, found, self.rates[self.name], False)
        self.counters.dram_hits += count - num_missing
        self.counters.dram_misses += num_missing
        return True

    def _append(self, rows: Images) -> None:
        started = perf_counter()
        self.store.append(self.name, rows)
        self.counters.ssd_append_seconds += perf_counter() - started
        self.counters.ssd_append_rows += len(rows)

    def _fetch(self, keys: Keys) -> tuple[Images, Images]:
        rows = self.scratch_rows(len(keys))
        found: Images = np.empty(len(keys), np.uint8)
        if not len(keys):
            return rows, found
        started = perf_counter()
        self.store.fetch(self.name, keys, rows, found)
        num_found = int(np.count_nonzero(found))
        self.counters.ssd_hits += num_found
        self.counters.ssd_misses += len(keys) - num_found
        self.counters.ssd_fetch_seconds += perf_counter() - started
        return rows, found

    def _read_through(self, keys: Keys, out: Floats) -> None:
        """Embeddings of keys [L] into out [L, D] without taking a slot: the disk is full, or every
        slot is pinned."""
        unique, inverse = np.unique(keys, return_inverse=True)
        weights: Floats = np.empty((len(unique), self.layout.dim), np.float32)
        is_here = self.cache.contains(unique) != 0
        here, away = np.flatnonzero(is_here), np.flatnonzero(~is_here)
        if len(here):
            plan = self.cache.make_plan(unique[here], None)
            found_here: Floats = np.empty((len(here), self.layout.dim), np.float32)
            self.cache.find(plan, 0, len(here))
            self.cache.gather(plan, found_here)
            weights[here] = found_here
        piece = max(1, _MAX_SCRATCH_BYTES // self.layout.row_bytes)
        for first in range(0, len(away), piece):
            idx = away[first : first + piece]
            initial: Floats = np.empty((len(idx), self.layout.dim), np.float32)
            self.cache.initial_weights(unique[idx], initial)
            rows, found = self._fetch(unique[idx])
            stored = np.flatnonzero(found)
            initial[stored] = self.layout.weights(rows)[stored]
            weights[idx] = initial
        self.counters.rows_read_through += len(away)
        np.take(weights, inverse, axis=0, out=out, mode="clip")

    def _refuse_non_finite(self, plan: Any, culprit: int) -> None:
        if culprit >= 0:
            key = int(plan.unique_keys[culprit])
            raise NonFiniteError(
                f"table {self.name!r}, key {key}: the summed gradient is NaN or infinite; no row "
                f"was changed. Look for a diverged loss, or skip the step as torch.amp.GradScaler "
                "does"
            )

    def _capacity_error(self, num_keys: int) -> CapacityError:
        return CapacityError(
            f"table {self.name!r}: {num_keys} distinct keys cannot be pinned at once: the "
            f"dram_cache has {self.cache.capacity_rows} slots and {self.cache.pins} pins on them; "
            f"raise DramCacheConfig.bytes or the table's share, or make batches smaller"
        )
