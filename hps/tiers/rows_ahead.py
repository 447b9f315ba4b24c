"""RowsAhead: rows of one table that new keys of another wait by, held ahead of the step that wants
them.

Above it: tiers/admission.py, which makes it; pipeline/prepared.py, which lets go of it. Below it:
the top tier of the table. Nothing depends on these rows being held: a step brings what it does not
find. So they are held as far as there is room, and until somebody else needs it.
"""

from hps.common.row_layout import Keys
from hps.contracts.row_cache import BatchPlan
from hps.tiers.cached_tier import CachedTier


class RowsAhead:
    """Brings and pins the rows of distinct keys, if they can be pinned at once.

    Args:
        stack: the top tier of their table.
        keys: uint64 [N].
    """

    # Guarded by the lock. An interrupted __init__ is dropped as well.
    _plan: BatchPlan | None = None

    def __init__(self, stack: CachedTier, keys: Keys) -> None:
        self._stack = stack
        try:
            with stack.lock:
                self._plan = stack.cache.make_plan(keys, stack.take_plan())
                stack.ahead.add(self)
            with stack.turn:
                with stack.lock:
                    plan = self._plan
                if plan is not None and not stack.bring(plan, 0, -1):
                    self.release()
        except BaseException:
            self.release()
            raise

    @property
    def is_released(self) -> bool:
        """True when nothing is pinned any more."""
        return self._plan is None

    def release(self) -> None:
        """Drops the pins; nothing to do the second time."""
        stack = self._stack
        with stack.lock:
            if self._plan is None:
                return
            stack.cache.abandon(self._plan)
            plan, self._plan = self._plan, None
            stack.keep_plan(plan)
            stack.ahead.discard(self)

    def __del__(self) -> None:
        if self._plan is not None:
            self.release()
