"""PlanPool: native plans of keys by owner, used again.

Above it: service/client/plans.py, cluster/exchange/key_exchange.py. Below it: `hps._C.ShardPlan`.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from hps import _C
from hps.common.row_layout import Keys


class PlanPool:
    """Plans that nobody uses now. Any thread may take and give, also a collector's.

    Each step on the deque is whole by itself. With a lock a plan that is given up by the collector,
    in the middle of a step here, would wait for itself.

    Args:
        owners: of each virtual shard the index of its server or rank.
        max_idle: plans that are kept; the one that was given longest ago goes first.
    """

    def __init__(self, owners: list[int], max_idle: int) -> None:
        self._owners = owners
        self._free: deque[_C.ShardPlan] = deque(maxlen=max_idle)  # youngest first

    def take(self, keys: Keys) -> _C.ShardPlan:
        """A plan of these keys; the very one of an earlier call with them, if it is free."""
        others: list[_C.ShardPlan] = []
        try:
            while True:
                try:
                    plan = (
                        self._free.popleft()
                    )  # taken first: nobody builds it while it is compared
                except IndexError:
                    break
                if plan.matches(keys):
                    return plan
                others.append(plan)
            plan = others.pop() if others else _C.ShardPlan(self._owners)
        finally:
            self._free.extendleft(reversed(others))
        plan.build(keys)
        return plan

    @contextmanager
    def lent(self) -> Iterator[_C.ShardPlan]:
        """A plan of whatever keys it was last built of, which stay, for a `with` block."""
        try:
            plan = self._free.popleft()
        except IndexError:
            plan = _C.ShardPlan(self._owners)
        try:
            yield plan
        finally:
            self.give(plan)

    def give(self, plan: _C.ShardPlan) -> None:
        """Nobody uses it any more."""
        self._free.appendleft(plan)
