"""Pooling rows, and summing gradients through bags, gives the bits of the twin, for every length of
bag, cache, instruction set and number of threads; and no cache makes a row an occurrence of it."""

from typing import Any

import numpy as np
import pytest

from hps import _C
from tests.lab import make_gpu_cache, random_floats, random_keys
from tests.twins import row_math

NUM_FEATURES = 3
LENGTHS = [0, 1, 2, 31, 32, 33, 64, 65, 97, 1024, 2081]
CACHES = ["gpu", "auto", "avx2", "plain"]


def pinned_cache(kind: str, dim: int, keys: np.ndarray, threads: int = 2) -> tuple[Any, Any]:
    """A cache of normal weights with all keys in their slots, and their plan."""
    make = make_gpu_cache if kind == "gpu" else _C.DramCache
    cache = make(
        pool=_C.ThreadPool(threads), optimizer_kind="sgd", hyperparameters=[0.0], dim=dim,
        capacity_bytes=2**23, instruction_set="auto" if kind == "gpu" else kind,
        initializer_kind="normal", initializer_numbers=(1.0, 0.0), stream=3,
    )  # fmt: skip
    plan = cache.make_plan(keys, None)
    cache.find(plan, 0, -1)
    assert cache.reserve(plan)
    missing = plan.num_missing
    rows = np.zeros((missing, cache.row_bytes), np.uint8)
    cache.fill(plan, rows, np.zeros(missing, np.uint8), 0.1, False)
    return cache, plan


def bags_of(dim: int, is_weighted: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Offsets of bags of all lengths, keys some of which repeat, and weights, some 0 or below."""
    generator = np.random.default_rng(dim)
    lengths = np.array(LENGTHS * NUM_FEATURES)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    keys = random_keys(generator, int(offsets[-1]), 5000)
    assert len(np.unique(keys)) < len(keys)
    weights = random_floats(generator, len(keys)) if is_weighted else None
    if weights is not None:
        weights[::7] = 0
    return offsets, keys, weights


# Whole registers, and what is left of them in up to 4, up to 8 and up to 15 columns; one pass over
# the columns, and several.
DIMS = [1, 3, 4, 7, 8, 13, 16, 17, 24, 47, 64, 65, 80, 81, 128, 145]


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_bags_are_pooled_in_the_promised_order(dim: int, mean: bool, is_weighted: bool) -> None:
    offsets, keys, weights = bags_of(dim, is_weighted)
    expected = np.full((len(LENGTHS), NUM_FEATURES * dim), np.nan, np.float32)
    for kind in CACHES:
        for threads in (1, 3):
            cache, plan = pinned_cache(kind, dim, keys, threads)
            if np.isnan(expected[0, 0]):
                values = np.zeros((len(keys), dim), np.float32)
                cache.gather(plan, values)
                row_math.pool_bags(values, offsets, weights, mean, expected)
            out = np.full_like(expected, np.nan)
            cache.pool(plan, offsets, weights, mean, out)
            np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))
            cache.release(plan)
            out[:] = np.nan
            assert cache.pull_pooled(plan, keys, offsets, weights, mean, out) == 0
            np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dim", [1, 4, 13, 16, 17, 24, 47, 64, 128])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_gradients_of_bags_are_those_of_their_occurrences(
    dim: int, mean: bool, is_weighted: bool
) -> None:
    offsets, keys, weights = bags_of(dim, is_weighted)
    grads = random_floats(np.random.default_rng(9), len(offsets) - 1, dim)
    spread = row_math.spread_bags(grads, offsets, weights, mean)
    for kind in CACHES:
        images = []
        for of_bags in (False, True):
            cache, plan = pinned_cache(kind, dim, keys)
            if of_bags:
                assert cache.sum_bag_gradients(plan, offsets, weights, mean, grads) == -1
            else:
                assert cache.sum_gradients(plan, spread) == -1
            cache.apply(plan, 0.1)
            rows = np.zeros((plan.num_unique, cache.row_bytes), np.uint8)
            cache.read_rows(plan, rows)
            images.append(rows.tobytes())
        assert images[0] == images[1], kind


def test_the_client_pools_and_sums_as_a_cache_does() -> None:
    dim, num_examples = 6, len(LENGTHS)
    offsets, keys, weights = bags_of(dim, True)
    cache, plan = pinned_cache("plain", dim, keys)
    expected = np.zeros((num_examples, NUM_FEATURES * dim), np.float32)
    cache.pool(plan, offsets, weights, True, expected)
    grads = random_floats(np.random.default_rng(9), len(offsets) - 1, dim)
    spread = row_math.spread_bags(grads, offsets, weights, True)
    for owners in ([0], [0, 1, 2, 1]):
        shards = _C.ShardPlan(owners)
        shards.build(keys)
        own = cache.make_plan(shards.unique_keys.copy(), None)
        rows = np.zeros((shards.num_unique, dim), np.float32)
        cache.find(own, 0, -1)
        cache.gather(own, rows)
        parts = [rows[a:b] for a, b in zip(shards.starts, shards.starts[1:], strict=False)]
        out = np.full_like(expected, np.nan)
        shards.pool(parts, offsets, weights, True, out)
        np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))
        assert shards.sum_gradients(spread) == -1
        sums = shards.sums(dim).copy()
        assert shards.sum_bag_gradients(offsets, weights, True, grads) == -1
        np.testing.assert_array_equal(shards.sums(dim).view(np.uint32), sums.view(np.uint32))


@pytest.mark.parametrize("kind", ["gpu", "plain"])
def test_offsets_that_leave_the_batch_are_refused(kind: str) -> None:
    keys = np.arange(6, dtype=np.uint64)
    cache, plan = pinned_cache(kind, 4, keys)
    out = np.zeros((3, 4), np.float32)
    for bad in ([0, 2, 7, 6], [0, 4, 2, 6], [1, 2, 3, 6], [0, 2, 4, 5], [0, 6]):
        offsets = np.array(bad, np.int64)
        with pytest.raises(ValueError, match="offsets"):
            cache.pool(plan, offsets, None, False, out)
        with pytest.raises(ValueError, match="offsets"):
            cache.sum_bag_gradients(plan, offsets, None, False, out)
    with pytest.raises(ValueError, match="weights"):
        cache.pool(plan, np.array([0, 2, 4, 6]), np.ones(5, np.float32), False, out)
    cache.release(plan)


@pytest.mark.parametrize("kind", ["gpu", "plain"])
def test_no_examples_make_no_bags(kind: str) -> None:
    cache, plan = pinned_cache(kind, 4, np.empty(0, np.uint64))
    out = np.zeros((0, 8), np.float32)
    cache.pool(plan, np.zeros(1, np.int64), None, True, out)
    none = np.zeros((0, 4), np.float32)
    assert cache.sum_bag_gradients(plan, np.zeros(1, np.int64), None, True, none) == -1
    cache.release(plan)


def test_a_row_that_changed_while_it_was_exported_stays_dirty() -> None:
    keys = np.arange(10, dtype=np.uint64)
    cache, plan = pinned_cache("gpu", 4, keys)
    assert cache.create(plan, 0.1) == 10 == cache.num_dirty
    rows = np.zeros((20, cache.row_bytes), np.uint8)
    assert cache.scan(0, "dirty", rows) == (10, -1)
    changed = cache.make_plan(keys[:3], None)
    cache.find(changed, 0, -1)
    assert cache.push(changed, np.ones((3, 4), np.float32), 0.1) == -1
    cache.mark_clean(0, -1)
    assert cache.num_dirty == 3
    assert cache.contains(keys).tolist() == [3] * 3 + [1] * 7
    cache.release(plan)
