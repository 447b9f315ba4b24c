"""TableStack: the verbs of one table over its tiers, whatever they are.

Above it: parameter_server/rows.py and batches.py, which check arguments and keep updates apart.
Below it: cached_tier.py, which moves the rows: a batch is looked up, what is missing gets slots,
the rows those slots held go down, the missing ones come up. A batch that cannot be held at once is
worked off in pieces (pieces.py).

Any thread may call. The verbs that change rows (create, push, assign, erase, apply) are called
within the server's updates; none is called under the server's lock.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import PoolArguments, on_host
from hps.common.locks import OwnedLock, assert_held
from hps.common.occurrences import Occurrences
from hps.common.row_layout import Floats, Images, Keys, Labels, Statistics
from hps.contracts.admission import Gate, and_forget
from hps.contracts.row_cache import AnyRowCache, BatchPlan
from hps.contracts.tiers import HoldsRows
from hps.errors import BatchMemoryError, CapacityError, ConfigError, StoreError
from hps.table.row_checks import assigns_tame, starts_tame
from hps.tiers.cached_tier import CachedTier
from hps.tiers.counted_sums import sum_gradients, sum_numbered
from hps.tiers.pieces import CHECKED, DONE, Pieces, in_parts, push_by_key
from hps.tiers.pulled_bags import pool_pulled
from hps.tiers.read_through import read_through
from hps.tiers.refusals import non_finite

if TYPE_CHECKING:
    from hps.config import TableConfig
    from hps.contracts.tiers import TableTier

# A pull that is refused even for so few keys stops asking for slots and reads through.
_READ_THROUGH_KEYS = 64


class TableStack(CachedTier):
    """One table over its tiers; arguments as CachedTier, and which tier its cache is."""

    def __init__(
        self,
        config: "TableConfig",
        cache: AnyRowCache,
        below: "TableTier",
        lock: OwnedLock,
        rates: dict[str, float],
        tier: str = "dram_cache",
    ) -> None:
        super().__init__(config, cache, below, lock, rates)
        self.pieces = Pieces(self, tier)
        # A device tells of a gradient that is not finite when asked, not at once.
        self._failed_key = cache.failed_key
        # Decides which keys come by a row; None: all. Set before the table is used.
        self.gate: Gate | None = None
        # All below are guarded by the lock.
        self.changes = 0  # grows with every mutation but steps of several tables
        # What counts those, with the number of this table there.
        self.joint_counts: list[tuple[_C.TableCounts, int]] = []
        with lock:
            self.plan = self.take_plan()  # of the last pull or push
        self.rows_read_through = 0
        self.rows_expired = 0  # by periods that began since the store was opened
        self._stored_before = below.num_rows()  # without what the cache has created since
        self._pinned: weakref.WeakSet[HoldsRows] = weakref.WeakSet()

    @property
    def version(self) -> int:
        """Grows with every mutation; an iteration notices."""
        return self.changes + sum(counts.steps(table) for counts, table in self.joint_counts)

    @property
    def num_rows(self) -> int:
        """Stored rows over all tiers. Under the lock."""
        assert_held(self.lock)
        return self._stored_before + self.cache.num_created

    # Verbs of the server.

    def pull(self, keys: Keys, out: Floats) -> None:
        """Embeddings of keys [L] into out [L, D]; one native call when all rows are here."""
        try:
            self._pull(keys, out)
        except BatchMemoryError:
            in_parts(self, len(keys), lambda part: self._pull(keys[part], out[part]))

    def _pull(self, keys: Keys, out: Floats) -> None:
        with self.lock, self.counters:
            if self._pull_here(keys, out):
                return
            plan = self._lend_plan()
        try:
            work = partial(self.pieces.work, plan, partial(self.cache.gather, plan, out))
            self.pieces.in_windows(plan, work, DONE, _READ_THROUGH_KEYS)
        except (CapacityError, StoreError):
            # No slot can be had: all are pinned, or the disk is full and no victim can go down.
            num_read = read_through(self, keys, out)
            with self.lock:
                self.rows_read_through += num_read
        finally:
            self._take_back(plan)

    def pull_pooled(self, keys: Keys, bags: PoolArguments, out: Floats) -> None:
        """Sums or means of bags of keys [L] into out [B, F * D]; one native call when all rows are
        here. Of keys that cannot be held at once the distinct rows [N, D] are pulled first."""
        try:
            if self._pull_pooled(keys, bags, out):
                return
        except (BatchMemoryError, StoreError):
            pass  # no memory for a plan, or no space for a victim: pull goes on in pieces
        pool_pulled(self.pull, self.layout.dim, on_host(keys), bags, out)

    def _pull_pooled(self, keys: Keys, bags: PoolArguments, out: Floats) -> bool:
        with self.lock, self.counters:
            if self._pull_pooled_here(keys, bags, out):
                return True
            plan = self._lend_plan()
            num_unique = plan.num_unique
        try:
            pool = partial(self.cache.pool, plan, *bags, out)
            is_small = num_unique <= self.pieces.largest
            return is_small and self.pieces.work(plan, pool, 0, num_unique)
        finally:
            self._take_back(plan)

    def create(self, keys: Keys, out: Floats) -> None:
        """As pull, and stores the keys that nobody stored."""
        try:
            self._create(keys, out)
        except BatchMemoryError:
            in_parts(self, len(keys), lambda part: self._create(keys[part], out[part]))

    def _create(self, keys: Keys, out: Floats) -> None:
        lr = self.rates[self.name]
        if not starts_tame(self.config, lr):
            self.cache.watch()

        def visit(plan: BatchPlan) -> None:
            self.cache.create(plan, lr)
            self.cache.gather(plan, out)

        and_forget(self.gate, keys, lambda: self._update_pieces(keys, visit))

    def push(
        self,
        keys: Keys,
        grads: Floats,
        labels: Labels | None = None,
        occurrences: Occurrences | None = None,
    ) -> None:
        """Sums grads [L, D] a key, then one optimizer step a key. No row changes if one is bad.
        With statistics it counts, too, and with labels [L] clicks; or what each key stands for.

        Keys that the cache cannot hold at once are gone through twice where one may overflow, or
        where rows were stored before, which nobody has looked at.
        """
        try:
            plan = self._begin_push(keys, grads, labels, occurrences)
        except BatchMemoryError:
            if len(keys) < 2:
                raise
            return push_by_key(self, keys, grads)
        if plan is None:
            return
        cache, lr = self.cache, self.rates[self.name]
        try:
            self._update(
                plan,
                lambda: self._apply(plan, lr),
                gate=self.gate,
                check=partial(self._refuse_overflow, plan, lr),
                is_checked=lambda: cache.may_overflow(plan, lr) or self.below.num_rows() > 0,
            )
        finally:
            self._take_back(plan)

    def _begin_push(
        self, keys: Keys, grads: Floats, labels: Labels | None, occurrences: Occurrences | None
    ) -> BatchPlan | None:
        """Sums up, and does the step if all rows are here; else returns a plan with the sums."""
        cache, lr = self.cache, self.rates[self.name]
        with self.lock, self.counters:
            plan = self.plan
            self.changes += 1
            is_whole = cache.is_current(plan) and plan.matches(keys)
            if not is_whole:
                cache.make_plan(keys, plan)
                cache.find(plan, 0, -1)
                is_whole = plan.num_missing == 0 and not self.has_pending(plan)
                self.counters.hits += plan.num_unique if is_whole else 0
            if is_whole and occurrences is None and self.gate is None:
                self.refuse_non_finite(plan, cache.push(plan, grads, lr, labels))
                return None
            self.refuse_non_finite(plan, sum_gradients(cache, plan, grads, labels, occurrences))
            if is_whole and (self.gate is None or self.gate.prepare_here(plan)):
                try:
                    self._apply(plan, lr)
                finally:
                    if self.gate is not None:
                        self.gate.release()
                return None
            return self._lend_plan()

    def try_push(self, keys: Keys, sums: Floats) -> None:
        """NonFiniteError if a step by these sums [N, D] of distinct keys [N] would be refused; no
        row changes."""
        with self.lock, self.counters:
            plan = self._lend_plan()
        try:
            with self.lock, self.counters:
                self.cache.make_plan(keys, plan)
                self.refuse_non_finite(plan, self.cache.sum_gradients(plan, sums))
            refuse = partial(self._refuse_overflow, plan, self.rates[self.name])
            self.pieces.in_windows(plan, partial(self.pieces.work, plan, refuse), CHECKED)
        finally:
            self._take_back(plan)
        self.raise_failed(wait=True)

    def push_logged(
        self,
        keys: Keys,
        grads: Floats,
        log: Callable[[], None],
        occurrences: Occurrences | None = None,
    ) -> None:
        """push() of keys that must all be held at once; `log` is called when nothing can refuse it
        any more, and before a row changes.

        Rows that are all here need no pins: nobody takes a slot while the turn is held.

        Raises:
            CapacityError: the batch cannot be held at once.
        """
        lr = self.rates[self.name]
        with self.turn:
            with self.lock:
                plan = self._lend_plan()
            try:
                is_plain = self.gate is None and occurrences is None
                with self.lock, self.counters:
                    num_missing, culprit = (
                        self.cache.sum_here(plan, keys, grads, lr)
                        if is_plain
                        else sum_numbered(self.cache, plan, keys, grads, lr, occurrences)
                    )
                    self.counters.hits += 0 if num_missing else plan.num_unique
                if num_missing:
                    if not self.bring(plan, 0, -1):
                        with self.lock:
                            raise self.pieces.capacity_error(plan.unique_keys)
                    with self.lock, self.counters:
                        culprit = sum_gradients(self.cache, plan, grads, None, occurrences)
                        if culprit < 0:
                            culprit = self.cache.find_overflow(plan, lr)
                self.refuse_non_finite(plan, culprit)
                self.raise_failed(wait=True)
                if self.gate is not None:
                    self.gate.require(plan)
                log()
                with self.lock, self.counters:
                    _C.call_all([*self.deciding(plan), self.applying(plan)])
            finally:
                if self.gate is not None:
                    self.gate.release()
                with self.lock:
                    self.unpin(plan)
                self._take_back(plan)

    def assign(
        self,
        keys: Keys,
        rows: Floats,
        state: Floats | None,
        statistics: Statistics | None = None,
    ) -> None:
        """Sets rows [L, D] and state [L, S] outright; state None is that of a new row. Statistics
        stay where none are given, but for the last period."""

        def assign(part: slice) -> None:
            of_part = None if state is None else state[part]
            self._assign(keys[part], rows[part], of_part, None)

        try:
            self._assign(keys, rows, state, statistics)
        except BatchMemoryError:  # of a device, whose rows have no statistics
            in_parts(self, len(keys), assign)

    def _assign(
        self, keys: Keys, rows: Floats, state: Floats | None, statistics: Statistics | None
    ) -> None:
        lr, counted = self.rates[self.name], None if statistics is None else statistics.images()
        if not assigns_tame(self.config, rows, state, lr):
            self.cache.watch()

        def set_rows(plan: BatchPlan) -> None:
            self.cache.assign(plan, rows, state, lr, counted)

        and_forget(self.gate, keys, partial(self._update_pieces, keys, set_rows))

    def assign_here(self, keys: Keys, rows: Floats) -> NDArray[np.bool_]:
        """As `assign`, of those of a few keys [L] that take no slot; bool [L], which these are."""
        cache, lr = self.cache, self.rates[self.name]
        if self.gate is not None or not isinstance(cache, _C.DramCache):
            return np.zeros(len(keys), np.bool_)
        if not assigns_tame(self.config, rows, None, lr):
            cache.watch()
        with self.lock:
            self.changes += 1
            return cache.assign_here(keys, rows, lr).view(np.bool_)

    def erase(self, keys: Keys) -> NDArray[np.bool_]:
        """Drops keys [L] from every tier; bool [L], where a stored row was. Those that wait for a
        row begin anew."""
        unique, inverse = np.unique(keys, return_inverse=True)
        erased = np.empty(len(unique), np.bool_)
        and_forget(self.gate, unique, lambda: self._erase(unique, erased))
        return erased[inverse]

    def _erase(self, unique: Keys, erased: NDArray[np.bool_]) -> None:
        with self.still(), self.lock:
            self.release_ahead()
            pinned = [rows.pinned_keys(self.name) for rows in list(self._pinned)]
            for keys in (*pinned, *(plan.unique_keys for plan in self.plans_in_flight)):
                held = unique[np.isin(unique, keys)]
                if len(held):
                    raise ConfigError(
                        f"table {self.name!r}: key {held[0]} is pinned by a batch in flight; "
                        f"erase it when that batch is done (nothing was erased)"
                    )
            self.below.refuse_pinned(unique)
            self.changes += 1
            stored = self.contains(unique) != 0
            try:
                self.drop(unique)
            finally:  # whatever was raised, these are gone
                erased[:] = stored & (self.contains(unique) == 0)
                self._stored_before -= int(erased.sum())

    # Batches in flight.

    def pin(self, plan: BatchPlan) -> None:
        """Pins every row of a plan in its slot until `unpin`; also after an interrupt.

        Raises:
            CapacityError: the batch cannot be held at once.
        """
        with self.lock, self.counters:
            if self.turn.num_asking and self.pin_here(plan):
                return
        with self.turn:
            is_accepted = self.bring(plan, 0, -1)
        if not is_accepted:
            with self.lock:
                raise self.pieces.capacity_error(plan.unique_keys)

    def plan_of(self, keys: Keys) -> BatchPlan:
        """A plan of these keys; that of the last pull if it was of the same. Under the lock."""
        assert_held(self.lock)
        # A plan on a device would wait for it to compare.
        if self._failed_key is None and self.plan.matches(keys):
            plan = self._lend_plan()
            self.cache.abandon(plan)  # what an interrupt may have left of a pull
            return plan
        return self.cache.make_plan(keys, self.take_plan())

    def hold(self, rows: HoldsRows) -> None:
        """Notes that `rows` holds pins, or is about to, for erase to look at. Under the lock."""
        assert_held(self.lock)
        self._pinned.add(rows)

    def unpin(self, plan: BatchPlan) -> None:
        """Drops the pins of a plan; may be repeated, after an interrupt. Under the lock."""
        assert_held(self.lock)
        self.cache.abandon(plan)

    def sum_gradients(
        self,
        plan: BatchPlan,
        grads: Floats,
        bags: PoolArguments | None = None,
        labels: Labels | None = None,
        occurrences: Occurrences | None = None,
    ) -> None:
        """Sums into the plan of pinned rows gradients of occurrences, or of bags; NonFiniteError if
        a sum, or what a step by it would make of its row, is NaN or infinite. Counts by labels, or,
        without bags, by what each key stands for. Under the lock."""
        assert_held(self.lock)
        with self.counters:
            if bags is None:
                culprit = sum_gradients(self.cache, plan, grads, labels, occurrences)
            else:
                assert occurrences is None, "labels of bags are their occurrences'"
                culprit = self.cache.sum_bag_gradients(plan, *bags, grads, labels)
        self.refuse_non_finite(plan, culprit)
        self._refuse_overflow(plan, float(self.rates[self.name]))

    def tries_updates(self) -> bool:
        """True if steps are tried whatever their gradients are, for the rate's or a row's sake.
        Under the lock."""
        assert_held(self.lock)
        table, lr = self.config, float(self.rates[self.name])
        kind, numbers = table.optimizer.kind, table.optimizer.hyperparameters()
        start = (table.initializer.kind, table.initializer.numbers())
        is_rate_safe = _C.safe_gradient_bits(kind, numbers, *start, lr) != 0
        return bool(self.cache.is_watched) or not is_rate_safe

    def applying(self, plan: BatchPlan) -> Callable[[], None]:
        """To be called next: the optimizer once a key of a pinned plan, with the plan's sums. Of a
        native cache it is one native call. Under the lock."""
        assert_held(self.lock)
        self.changes += 1
        return partial(self.cache.apply, plan, float(self.rates[self.name]))

    def deciding(self, plan: BatchPlan) -> list[Callable[[], None]]:
        """To be called before `applying`, with it: what a gate, which has prepared, decides. Under
        the lock."""
        return [] if self.gate is None else [self.gate.deciding(plan)]

    def gather(self, plan: BatchPlan, out: Floats) -> None:
        """Embeddings of a pinned plan to all their positions in out [L, D]. Under the lock."""
        assert_held(self.lock)
        with self.counters:
            self.cache.gather(plan, out)

    def pool(self, plan: BatchPlan, bags: PoolArguments, out: Floats) -> None:
        """Sums or means of bags of a pinned plan into out [B, F * D]. Under the lock."""
        assert_held(self.lock)
        with self.counters:
            self.cache.pool(plan, *bags, out)

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
            raise non_finite(self.name, key)

    def recount(self) -> int:
        """Counts the rows anew, all of which are below; how many fewer there are. Within `still`,
        under the lock."""
        before = self.num_rows
        self.changes += 1
        self._stored_before = self.below.num_rows() - self.cache.num_created
        return before - self.num_rows

    def restart(self) -> None:
        """Forgets every cached row: the store has gone to another checkpoint. Within `still`."""
        super().restart()
        with self.lock:
            self.recount()

    # How a call is worked off.

    def _pull_here(self, keys: Keys, out: Floats) -> bool:
        """True if all rows were here; else the stack's plan is that of the keys."""
        assert_held(self.lock)
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

    def _pull_pooled_here(self, keys: Keys, bags: PoolArguments, out: Floats) -> bool:
        """True if all rows were here; else the stack's plan is that of the keys."""
        assert_held(self.lock)
        plan, cache = self.plan, self.cache
        if not self.is_moving:
            is_here = cache.pull_pooled(plan, keys, *bags, out) == 0
        else:
            cache.make_plan(keys, plan)
            cache.find(plan, 0, -1)
            is_here = plan.num_missing == 0 and not self.has_pending(plan)
            if is_here:
                cache.pool(plan, *bags, out)
        self.counters.hits += plan.num_unique if is_here else 0
        return is_here

    def _lend_plan(self) -> BatchPlan:
        """The stack's plan becomes one caller's, who lets go of the lock. Under the lock."""
        assert_held(self.lock)
        plan, self.plan = self.plan, self.take_plan()
        return plan

    def _take_back(self, plan: BatchPlan) -> None:
        """A lent plan is the stack's again, so that a push after a pull reuses its look-up."""
        with self.lock:
            old, self.plan = self.plan, plan
            self.keep_plan(old)

    def spare_plan(self) -> None:
        """The plan of the last pull or push takes no memory of a device."""
        with self.lock:
            if self._queued is not None:
                self._queued.spare(self.plan)

    def _update_pieces(self, keys: Keys, update: Callable[[BatchPlan], None]) -> None:
        with self.lock, self.counters:
            plan = self._lend_plan()
            self.cache.make_plan(keys, plan)

        def visit() -> None:
            self.changes += 1
            update(plan)

        try:
            self._update(plan, visit)
        finally:
            self._take_back(plan)

    def _update(
        self,
        plan: BatchPlan,
        visit: Callable[[], None],
        check: Callable[[], None] | None = None,
        is_checked: Callable[[], bool] = lambda: True,
        gate: Gate | None = None,
    ) -> None:
        """Pins the plan's unique keys, at once or piece by piece, and changes the rows in visit().

        If pins leave no slot for a key, CapacityError comes before a row has changed: every key is
        seen to find one first. (Pins that another thread takes after that may still stop it.)
        Of pieces that `is_checked` says so of, `check` goes through all before visit() does; it
        raises what refuses them. A gate prepares for each visit().
        """
        with self.lock:
            num_unique = plan.num_unique
        pieces = self.pieces
        work = pieces.work if gate is None else partial(self._work_gated, gate)
        if num_unique <= pieces.largest and work(plan, visit, 0, num_unique):
            return
        pieces.in_windows(plan, partial(pieces.has_room, plan), "could be done; no row has changed")
        if check is not None and is_checked():
            pieces.in_windows(plan, partial(pieces.work, plan, check), CHECKED)
        pieces.in_windows(plan, partial(work, plan, visit), DONE)

    def _work_gated(
        self, gate: Gate, plan: BatchPlan, visit: Callable[[], None], first: int, count: int
    ) -> bool:
        """As Pieces.work, with a gate that has prepared; False also if it cannot."""
        with self.turn:
            if not self.bring(plan, first, count):
                return False
            try:
                with self.lock, self.counters:
                    if gate.prepare_here(plan):
                        visit()
                        return True
                if not gate.prepare(plan):
                    return False
                with self.lock, self.counters:
                    visit()
            finally:
                gate.release()
                with self.lock:
                    self.unpin(plan)
        return True

    def _look_at(self, rows: Images, found: Images) -> None:
        """Stores of older versions may hold rows that no optimizer makes."""
        layout = self.layout
        kinds = layout.has_statistics, layout.is_narrow
        if len(rows) and not _C.are_tame(layout.optimizer_kind, layout.dim, rows, found, *kinds):
            self.cache.watch()

    def _refuse_overflow(self, plan: BatchPlan, lr: float) -> None:
        """Of rows in place. Under the lock."""
        assert_held(self.lock)
        self.refuse_non_finite(plan, self.cache.find_overflow(plan, lr))

    def _apply(self, plan: BatchPlan, lr: float) -> None:
        self._refuse_overflow(plan, lr)
        _C.call_all([*self.deciding(plan), self.applying(plan)])

    def refuse_non_finite(self, plan: BatchPlan, culprit: int) -> None:
        """NonFiniteError that names a unique key of a plan, unless it is -1."""
        if culprit >= 0:
            raise non_finite(self.name, int(plan.unique_keys[culprit]))
