"""RowsAhead: rows of one table that new keys of another wait by, held ahead of the step that wants
them.

Above it: tiers/admission.py, which makes it; tiers/top_tier.py; pipeline/prepared.py, which lets go
of it. Below it: the stack of the table. Nothing depends on these rows being held: a step brings
what it does not find. So they are held as far as there is room, and until somebody else needs it.
"""

from typing import TYPE_CHECKING

from hps.common.locks import assert_turn
from hps.common.row_layout import Keys
from hps.contracts.row_cache import BatchPlan

if TYPE_CHECKING:
    from hps.tiers.top_tier import TableStack


class RowsAhead:
    """Brings and pins the rows of distinct keys, if they can be pinned at once.

    Args:
        stack: of their table.
        keys: uint64 [N].
    """

    # Guarded by the lock. An interrupted __init__ is dropped as well.
    _plan: BatchPlan | None = None

    def __init__(self, stack: "TableStack", keys: Keys) -> None:
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
            stack.unpin(self._plan)
            plan, self._plan = self._plan, None
            stack.keep_plan(plan)
            stack.ahead.discard(self)

    def __del__(self) -> None:
        if self._plan is not None:
            self.release()


def release_ahead(stack: "TableStack") -> bool:
    """Lets go of all that is held so of a table; True if anything was. Within its turn."""
    assert_turn(stack.turn)
    with stack.lock:
        ahead = list(stack.ahead)
        for rows in ahead:
            rows.release()
    return bool(ahead)
