"""The host build shares a large batch among its threads, and no bit depends on how many.

Above it: pytest. Below it: hps._C.GpuCache, hps._C.DramCache.
"""

from typing import Any

import numpy as np
import pytest

from benchmarks.common.keys import ZipfIds, hashed_keys
from benchmarks.gpu_cache.gpu_cache_bench import insert
from benchmarks.gpu_cache.options import LR, cache_options
from hps import _C

ROWS = 20_000
LENGTH = 30_011  # enough for four threads to have a share
NUM_BATCHES = 3


def train(cache: Any, dim: int) -> tuple[np.ndarray, list[np.ndarray], int]:
    """Rows after some pushes, the unique keys of each, and the key of a refused gradient."""
    ids = ZipfIds(ROWS)
    insert(cache, hashed_keys(np.arange(ROWS)))
    grads = np.random.default_rng(1).normal(size=(LENGTH, dim)).astype(np.float32)
    plan = cache.make_plan(hashed_keys(np.arange(2)), None)
    unique = []
    for _ in range(NUM_BATCHES):
        batch = hashed_keys(ids.batch(LENGTH))
        cache.make_plan(batch, plan)
        cache.find(plan, 0, -1)
        assert cache.push(plan, grads, LR) == -1
        unique.append(plan.unique_keys.copy())
    assert np.unique(batch, return_counts=True)[1].max() > 64 * 32, "no key is hot enough"
    grads[LENGTH // 2, -1] = np.inf
    culprit = int(plan.unique_keys[cache.push(plan, grads, LR)])
    assert culprit == batch[LENGTH // 2]
    out = np.empty((ROWS, dim), np.float32)
    cache.make_plan(hashed_keys(np.arange(ROWS)), plan)
    cache.find(plan, 0, -1)
    cache.gather(plan, out)
    return out, unique, culprit


@pytest.mark.parametrize("dim", [6, 16, 64])
def test_rows_and_numbers_are_the_same_on_any_number_of_threads(dim: int) -> None:
    options = cache_options(dim, 2 * ROWS)
    pool = _C.ThreadPool(1)
    dram = _C.DramCache(pool=pool, instruction_set="auto", **options)
    rows, _, culprit = train(dram, dim)
    _, expected, _ = train(_C.GpuCache(pool=pool, **options), dim)
    for num_threads in (1, 2, 3, 4):
        cache = _C.GpuCache(pool=_C.ThreadPool(num_threads), **options)
        mine, unique, mine_culprit = train(cache, dim)
        assert np.array_equal(mine.view(np.uint32), rows.view(np.uint32))
        assert all(np.array_equal(one, other) for one, other in zip(unique, expected, strict=True))
        assert mine_culprit == culprit
