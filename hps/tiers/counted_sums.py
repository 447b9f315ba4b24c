"""Sums of a plan's gradients, and what its keys stand for where several occurrences were summed
before they came.

Above it: top_tier.py. Below it: the cache. Both are called under the server's lock.
"""

import numpy as np

from hps.common.occurrences import Occurrences
from hps.common.row_layout import Floats, Keys, Labels
from hps.contracts.row_cache import AnyRowCache, BatchPlan, CountingCache


def sum_gradients(
    cache: AnyRowCache,
    plan: BatchPlan,
    grads: Floats,
    labels: Labels | None,
    occurrences: Occurrences | None,
) -> int:
    """As `sum_gradients` of the cache; given what each key stands for, that is counted instead of
    one show each, and the labels are not used."""
    if occurrences is None:
        return cache.sum_gradients(plan, grads, labels)
    assert isinstance(cache, CountingCache), "a cache that does not count"
    # With labels there is room for clicks, in which those that are given come.
    room = None if occurrences.clicks is None else np.zeros(plan.num_occurrences, np.uint8)
    culprit = cache.sum_gradients(plan, grads, room)
    cache.set_occurrences(plan, occurrences.shows, occurrences.clicks)
    return culprit


def sum_numbered(
    cache: AnyRowCache,
    plan: BatchPlan,
    keys: Keys,
    grads: Floats,
    lr: float,
    occurrences: Occurrences | None,
) -> tuple[int, int]:
    """As `sum_here` of the cache, of a plan that numbers keys also where they hardly repeat, and
    with what each key stands for."""
    cache.make_plan(keys, plan)
    cache.find(plan, 0, -1)
    if plan.num_missing:
        return plan.num_missing, -1
    culprit = sum_gradients(cache, plan, grads, None, occurrences)
    return 0, cache.find_overflow(plan, lr) if culprit < 0 else culprit
