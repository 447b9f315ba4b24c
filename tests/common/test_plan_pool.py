"""PlanPool: plans are used again; one that comes back in the middle of a step waits for nothing.

Above it: pytest. Below it: hps/common/plan_pool.py.
"""

import threading
from typing import Any

import numpy as np

from hps.common.plan_pool import PlanPool
from hps.common.sharding import ShardMap

OWNERS = ShardMap(1).owners().tolist()


def keys_of(first: int) -> Any:
    return np.arange(first, first + 5, dtype=np.uint64)


def test_the_plan_of_the_same_keys_comes_back_and_the_oldest_is_built_anew() -> None:
    pool = PlanPool(OWNERS, 3)
    plans = [pool.take(keys_of(first)) for first in (0, 10, 20)]
    for plan in plans:
        pool.give(plan)
    assert pool.take(keys_of(10)) is plans[1]
    assert pool.take(keys_of(30)) is plans[0] and plans[0].matches(keys_of(30))
    with pool.lent() as lent:
        assert lent is plans[2]
    assert pool.take(keys_of(20)) is plans[2]
    assert pool.take(keys_of(20)) not in plans


def test_no_more_plans_are_kept_than_asked() -> None:
    pool = PlanPool(OWNERS, 2)
    plans = [pool.take(keys_of(first)) for first in (0, 10, 20)]
    for plan in plans:
        pool.give(plan)
    assert pool.take(keys_of(0)) is not plans[0]


def test_a_plan_that_is_given_up_in_the_middle_of_a_step_waits_for_nothing() -> None:
    """As the collector of this very thread does, wherever memory is taken."""
    pool = PlanPool(OWNERS, 4)
    late = pool.take(keys_of(0))

    class GivesUp:
        def matches(self, keys: Any) -> bool:
            pool.give(late)
            return False

        def build(self, keys: Any) -> None:
            """Nothing to build."""

    pool.give(GivesUp())  # type: ignore[arg-type]
    thread = threading.Thread(target=pool.take, args=(keys_of(50),), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert pool.take(keys_of(0)) is late
