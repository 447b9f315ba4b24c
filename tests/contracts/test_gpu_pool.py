"""Pooling straight from slots gives the bits of hps/nn/pooling.py, for every length of bag."""

import numpy as np
import pytest
import torch

from hps import _C
from hps.common.bags import make_bags
from hps.nn.pooling import sum_bags
from tests.lab import make_gpu_cache, random_floats, random_keys

NUM_FEATURES = 3
LENGTHS = [0, 1, 2, 31, 32, 33, 64, 65, 97, 1024, 2081]


def pinned_cache(dim: int, keys: np.ndarray) -> tuple[_C.GpuCache, _C.GpuPlan]:
    """A cache of normal weights with all keys in their slots, and their plan."""
    cache: _C.GpuCache = make_gpu_cache(
        pool=_C.ThreadPool(2), optimizer_kind="sgd", hyperparameters=[], dim=dim,
        capacity_bytes=2**23, instruction_set="auto", initializer_kind="normal",
        initializer_numbers=(1.0, 0.0), stream=3,
    )  # fmt: skip
    plan = cache.make_plan(keys, None)
    cache.find(plan, 0, -1)
    assert cache.reserve(plan)
    missing = plan.num_missing
    rows = np.zeros((missing, cache.row_bytes), np.uint8)
    cache.fill(plan, rows, np.zeros(missing, np.uint8), 0.1, False)
    return cache, plan


@pytest.mark.parametrize("dim", [1, 4, 16, 17, 64])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("is_weighted", [False, True])
def test_bags_are_pooled_in_the_promised_order(dim: int, mean: bool, is_weighted: bool) -> None:
    generator = np.random.default_rng(dim)
    lengths = np.array(LENGTHS * NUM_FEATURES)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    keys = random_keys(generator, int(offsets[-1]), 5000)
    assert len(np.unique(keys)) < len(keys)
    cache, plan = pinned_cache(dim, keys)
    weights = random_floats(generator, len(keys)) if is_weighted else None
    out = np.full((len(LENGTHS), NUM_FEATURES * dim), np.nan, np.float32)
    cache.pool(plan, offsets, weights, mean, out)

    values = np.zeros((len(keys), dim), np.float32)
    cache.gather(plan, values)
    if weights is not None:
        values *= weights[:, None]
    pooled = sum_bags(
        torch.from_numpy(values), make_bags(torch.from_numpy(offsets), len(keys), "test")
    )
    if mean:
        pooled /= torch.from_numpy(lengths).clamp(min=1).unsqueeze(1)
    expected = pooled.view(NUM_FEATURES, len(LENGTHS), dim).transpose(0, 1).reshape(out.shape)
    np.testing.assert_array_equal(out.view(np.uint32), expected.numpy().view(np.uint32))
    cache.release(plan)


def test_a_row_that_changed_while_it_was_exported_stays_dirty() -> None:
    keys = np.arange(10, dtype=np.uint64)
    cache, plan = pinned_cache(4, keys)
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
