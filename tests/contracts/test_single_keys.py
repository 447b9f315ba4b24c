"""A push whose keys are all there, each once, is applied without numbering them: with the bits that
it has otherwise, and no key that stands twice, is missing or has a bad gradient gets past it.

Above it: pytest. Below it: hps._C.DramCache.sum_here, of which nothing else tells which way it went
but the plan, which is empty after a push that was not numbered.
"""

from typing import Any

import numpy as np
import pytest

import hps
from hps import _C
from hps.common.row_layout import RowLayout
from tests.lab import (
    DECAYING,
    OPTIMIZERS,
    optimizer_id,
    random_floats,
)

NUM_ROWS = 9000
NUM_KEYS = 6000  # of a push; fewer than 4,096 are always numbered
LR = 0.5


class Cache:
    """A native cache with NUM_ROWS rows, and a plan."""

    def __init__(
        self,
        optimizer: hps.common.optimizers.Optimizer,
        dim: int = 6,
        threads: int = 1,
        isa: str = "auto",
    ) -> None:
        layout = RowLayout(optimizer.kind, dim)
        self.row_bytes = layout.row_bytes
        self.cache = _C.DramCache(
            pool=_C.ThreadPool(threads),
            optimizer_kind=optimizer.kind,
            hyperparameters=optimizer.hyperparameters(),
            dim=dim,
            capacity_bytes=2 * NUM_ROWS * (layout.row_bytes + 8),
            instruction_set=isa,
            initializer_kind="constant",
            initializer_numbers=(-0.0, 0.0),  # the only weight that tells -0 from +0
            stream=77,
        )
        keys = keys_of(np.arange(NUM_ROWS))
        self.plan = self.cache.make_plan(keys, None)
        self.cache.find(self.plan, 0, -1)
        assert self.cache.reserve(self.plan)
        missing = np.zeros((NUM_ROWS, layout.row_bytes), np.uint8)
        self.cache.fill(self.plan, missing, np.zeros(NUM_ROWS, np.uint8), LR, False)
        self.cache.release(self.plan)

    def push(self, keys: Any, grads: Any) -> None:
        """As a shard does."""
        assert self.cache.sum_here(self.plan, keys, grads, LR) == (0, -1)
        self.cache.apply(self.plan, LR)
        self.cache.abandon(self.plan)

    def push_numbered(self, keys: Any, grads: Any) -> None:
        """Step by step, as the verbs of a plan are."""
        self.cache.make_plan(keys, self.plan)
        self.cache.find(self.plan, 0, -1)
        assert self.cache.sum_gradients(self.plan, grads) == -1
        self.cache.apply(self.plan, LR)

    @property
    def was_numbered(self) -> bool:
        return self.plan.num_unique > 0

    def rows(self) -> Any:
        """Images of all rows, by key."""
        images = np.zeros((NUM_ROWS, self.row_bytes), np.uint8)
        count, _ = self.cache.scan(0, "stored", images)
        return images[:count][np.argsort(images[:count].view(np.uint64)[:, 0])]


def keys_of(numbers: Any) -> Any:
    return numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def distinct(generator: np.random.Generator, count: int = NUM_KEYS) -> Any:
    return keys_of(generator.permutation(NUM_ROWS)[:count])


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *DECAYING], ids=optimizer_id)
@pytest.mark.parametrize(
    ("dim", "threads", "isa"), [(6, 1, "auto"), (16, 3, "auto"), (17, 2, "plain")]
)
def test_keys_that_stand_once_are_not_numbered_and_give_the_same_bits(
    optimizer: hps.common.optimizers.Optimizer, dim: int, threads: int, isa: str
) -> None:
    generator = np.random.default_rng(1)
    one, other = (Cache(optimizer, dim, threads, isa) for _ in range(2))
    for _ in range(3):
        keys, grads = distinct(generator), random_floats(generator, NUM_KEYS, dim)
        grads[::3] = -0.0  # a sum begins at +0
        one.push(keys, grads)
        other.push_numbered(keys, grads)
        assert not one.was_numbered and other.was_numbered
        np.testing.assert_array_equal(one.rows(), other.rows())
    counts = [
        (c.num_rows, c.num_fresh, c.num_created, c.num_dirty) for c in (one.cache, other.cache)
    ]
    assert counts[0] == counts[1] and 0 < counts[0][1] < NUM_ROWS


@pytest.mark.parametrize("threads", [1, 3])
def test_a_key_that_stands_twice_is_found_wherever_it_stands(threads: int) -> None:
    generator = np.random.default_rng(2)
    one, other = (Cache(hps.Adagrad(), threads=threads) for _ in range(2))
    for first, second in [(0, 1), (0, NUM_KEYS - 1), (31, 32), (100, 4000), (5998, 5999)]:
        keys, grads = distinct(generator), random_floats(generator, NUM_KEYS, 6)
        keys[second] = keys[first]
        for cache, push in ((one, one.push), (other, other.push_numbered)):
            cache.plan = _C.BatchPlan()  # one that has met a repeat does not try for a while
            push(keys, grads)
            assert cache.was_numbered and cache.plan.num_unique == NUM_KEYS - 1
        np.testing.assert_array_equal(one.rows(), other.rows())
        assert_nothing_is_taken(one)
        other.push_numbered(keys_of(np.arange(NUM_ROWS)), np.ones((NUM_ROWS, 6), np.float32))


def assert_nothing_is_taken(one: Cache) -> None:
    """A push of all keys finds each row as if for the first time."""
    one.plan = _C.BatchPlan()
    one.push(keys_of(np.arange(NUM_ROWS)), np.ones((NUM_ROWS, 6), np.float32))
    assert not one.was_numbered


@pytest.mark.parametrize("threads", [1, 3])
def test_a_push_that_does_not_come_to_pass_leaves_all_as_it_was(threads: int) -> None:
    generator = np.random.default_rng(3)
    one = Cache(hps.Adagrad(), threads=threads)
    before = one.rows()
    keys, grads = distinct(generator), random_floats(generator, NUM_KEYS, 6)

    assert one.cache.sum_here(one.plan, keys, grads, LR) == (0, -1)
    one.cache.abandon(one.plan)  # as where the log is full
    np.testing.assert_array_equal(one.rows(), before)
    assert not one.was_numbered

    one.plan = _C.BatchPlan()
    absent = np.append(keys[:-1], keys_of(np.array([NUM_ROWS + 1])))
    assert one.cache.sum_here(one.plan, absent, grads, LR) == (1, -1)
    assert one.cache.missing_keys(one.plan).tolist() == [absent[-1]]

    one.plan = _C.BatchPlan()
    grads[4711, 3] = np.inf
    num_missing, bad = one.cache.sum_here(one.plan, keys, grads, LR)
    assert num_missing == 0 and one.plan.unique_keys[bad] == keys[4711]
    np.testing.assert_array_equal(one.rows(), before)
    assert_nothing_is_taken(one)
