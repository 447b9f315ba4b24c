"""Admitting: decides which keys of a batch come by a row, right before the update.

Above it: parameter_server/tables.py, which makes it; the stacks ask it, as a Gate. Below it: the
stack of the records or of another table, the native caches. A key that waits has a slot while a
batch uses it, as every new key has, whose row is fresh: nobody stores it, and the update leaves it
as it is. What a key waits by, a record or a row of another table, is held in place meanwhile.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hps.common.locks import assert_held
from hps.common.row_layout import Keys, Statistics
from hps.contracts.row_cache import AdmittingCache, BatchPlan
from hps.tiers.refusals import no_room
from hps.tiers.rows_ahead import RowsAhead
from hps.tiers.top_tier import TableStack

if TYPE_CHECKING:
    from hps import _C
    from hps.common.admission import Admission


class Admitting:
    """As hps.contracts.admission.Gate.

    Args:
        stack: the table.
        rule: which keys it admits.
        beside: the records of the table, or the table that `rule.by` names; None of a probability.
        rules: by which scores are worked out where that table has none of its own.
        number: of the update that comes next, in the store's life.
        period: of the store.
    """

    def __init__(
        self,
        stack: TableStack,
        rule: "Admission",
        beside: TableStack | None,
        rules: "_C.LifeRules",
        number: Callable[[], int],
        period: Callable[[], int],
    ) -> None:
        cache = stack.cache
        assert isinstance(cache, AdmittingCache), "a cache that admits every key"
        self._cache = cache
        self._stack = stack
        self._rule = rule
        self._beside = beside
        self._rules = rules
        self._number = number
        self._period = period
        # What is held for the plan that was prepared last. Guarded by the updates.
        self._held: BatchPlan | None = None
        # The state of `beside` in which all that is waited by was found; None: it was not.
        self._found_at: tuple[int, int] | None = None
        # Records come into their cache for an update, or ahead of it. Where `prepare` has found
        # them without a pin none may come ahead until `release`. Guarded by the lock.
        self._num_coming = 0
        self._must_stay = False

    @property
    def is_prepared(self) -> bool:
        """As Gate has it."""
        return self._held is not None

    def prepare(self, plan: BatchPlan) -> bool:
        """As Gate has it."""
        beside = self._beside
        with self._stack.lock:
            if self.prepare_here(plan):
                self._must_stay = self._rule.count is not None and not self._num_coming
                if beside is None or self._must_stay:
                    return True
            assert beside is not None
            keys = self._cache.fresh_keys(plan)
            held = self._held = beside.cache.make_plan(keys, beside.take_plan())
            self._found_at = None
            if beside.pin_here(held):
                return True
        with beside.turn:
            if beside.bring(held, 0, -1):
                return True
            return beside.release_ahead() and beside.bring(held, 0, -1)

    def prepare_here(self, plan: BatchPlan) -> bool:
        """As Gate has it."""
        assert_held(self._stack.lock)
        self.release()
        beside = self._beside
        if beside is None:
            self._cache.list_fresh(plan, None)
            return True
        is_here = self._cache.list_fresh(plan, beside.cache) == 0
        self._found_at = self._state() if is_here else None
        return is_here

    def require(self, plan: BatchPlan) -> None:
        """As Gate has it."""
        if self.prepare(plan):
            return
        beside, held = self._beside, self._held
        assert beside is not None and held is not None
        with self._stack.lock:
            error = no_room(beside.name, held.num_unique, beside.pieces.kind, beside.cache)
        error.add_note(f"new keys of table {self._stack.name!r} wait by its rows")
        raise error

    def deciding(self, plan: BatchPlan) -> Callable[[], None]:
        """As Gate has it."""
        assert_held(self._stack.lock)
        rule, beside = self._rule, self._beside
        if rule.probability is not None:
            return partial(self._cache.admit_drawn, plan, self._number(), rule.probability)
        assert beside is not None
        if self._found_at is None or self._found_at != self._state():
            num_missing = self._cache.list_fresh(plan, beside.cache)
            assert num_missing == 0, "nothing was prepared"
        if rule.count is not None:
            beside.changes += 1
            return partial(self._cache.admit_counted, plan, beside.cache, float(rule.count))
        assert rule.min_score is not None
        return partial(self._cache.admit_scored, plan, beside.cache, rule.min_score, self._rules)

    def release(self) -> None:
        """As Gate has it."""
        beside = self._beside
        with self._stack.lock:
            self._found_at = None
            self._must_stay = False
            held = self._held
            if beside is None or held is None:
                return
            beside.unpin(held)
            self._held = None
            beside.keep_plan(held)

    def bring_ahead(self, plan: BatchPlan) -> RowsAhead | None:
        """As Gate has it."""
        beside = self._beside
        if beside is None:
            return None
        with self._stack.lock:
            if self._must_stay or self._cache.list_fresh(plan, beside.cache) == 0:
                return None
            keys = self._cache.fresh_keys(plan)
            self._num_coming += 1
        try:
            return RowsAhead(beside, keys)
        finally:
            with self._stack.lock:
                self._num_coming -= 1

    def _state(self) -> tuple[int, int]:
        """Of `beside`: its rows are where they were while it is the same. Under the lock."""
        assert self._beside is not None
        cache = self._beside.cache
        return cache.epoch, cache.num_growths

    def prepare_to_forget(self, keys: Keys) -> None:
        """As Gate has it."""
        self.release()
        records = self._beside
        if records is None or self._rule.count is None:
            return
        with self._stack.lock:
            keys = np.unique(keys[records.contains(keys) != 0])
            if not len(keys):
                return
            held = self._held = records.cache.make_plan(keys, records.take_plan())
            if records.pin_here(held):
                return
        with records.turn:
            is_held = records.bring(held, 0, -1)
        if not is_held:
            self.release()

    def forget(self, keys: Keys) -> None:
        """As Gate has it. Records that are held are emptied, as those of keys that are admitted."""
        records, held = self._beside, self._held
        if records is None or self._rule.count is None:
            return
        with self._stack.lock:
            if held is not None:
                self._empty(records, held)
                return
            keys = keys[records.contains(keys) != 0]
        if len(keys):
            records.erase(keys)

    def _empty(self, records: TableStack, held: BatchPlan) -> None:
        """Records that are held count nothing any more, and go in the next period."""
        assert_held(self._stack.lock)
        count = held.num_unique
        zeros = np.zeros(count, np.float32)
        counted = Statistics(zeros, zeros, np.full(count, self._period(), np.int64))
        records.changes += 1
        nothing = np.empty((count, 0), np.float32)
        records.cache.assign(held, nothing, None, 0.0, counted.images())
