"""Terms of a sum come into the order of occurrences, whatever order the threads come in: the bits
of the host build, for keys of every number of occurrences.

Above it: pytest. Below it: simt_grid.py, cache_pair.py; csrc/gpu_cache/term_order.h has the
numbers at which keys are treated in another way.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import hps
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.cache_pair import CachePair
from tests.gpu_cache.host_device import AskedCache, HostDevice
from tests.gpu_cache.simt_grid import SEEDED, STARVING, Grid, GridDevice, find_compiler

DIM = 5
LANE, RUN, RANKED = 8, 32, 1024
Keys = NDArray[np.uint64]


def counts_of(*counts: int) -> Keys:
    """Keys with so many occurrences, mixed."""
    keys = np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
    return np.random.default_rng(len(keys)).permutation(keys)


def zipf(count: int) -> Keys:
    """Few keys of many occurrences, many of few."""
    return np.minimum(np.random.default_rng(3).zipf(1.2, count), 200).astype(np.uint64)


CASES = {
    "one occurrence": counts_of(1),
    "as many as a lane orders": counts_of(LANE, 1, LANE + 1, 2),
    "a run and one more": counts_of(RUN, RUN + 1, 3, RUN - 1, 2 * RUN),
    "2048": counts_of(2048),
    "2049 of two": counts_of(2048, 1),
    "as many as are ranked": counts_of(RANKED, RANKED + 1, 40, 1),
    "one after the other": np.sort(counts_of(RANKED + 100, 5, 33, RANKED + 1)),
    "all of one key": counts_of(3000),
    "zipf": zipf(4000),
}


def push(pair: CachePair, keys: Keys, *, weighted: bool, bags: bool, seed: int) -> None:
    """The same gradients to both caches, whose rows must be the same then."""
    random = np.random.default_rng(seed)
    plans = [cache.make_plan(keys, None) for cache in pair.caches]
    for cache, plan in zip(pair.caches, plans, strict=True):
        cache.find(plan, 0, -1)
    assert pair.both("reserve", plans=plans)
    pair.fill(plans)
    for _ in range(2):  # what the first has left behind is no matter
        values = random.standard_normal((len(keys), DIM)).astype(np.float32)
        if bags:
            cuts = np.sort(random.integers(0, len(keys) + 1, len(keys) // 3))
            offsets = np.array([0, *cuts, len(keys)])
            given = values[: len(offsets) - 1].copy()
            weights = random.standard_normal(len(keys)).astype(np.float32) if weighted else None
            pair.caches[0].sum_bag_gradients(plans[0], offsets, weights, not weighted, given)
            tensors = [None if one is None else torch.from_numpy(one) for one in (offsets, weights)]
            own = torch.from_numpy(given)
            pair.caches[1].sum_bag_gradients(plans[1], *tensors, not weighted, own)
        else:
            pair.both("sum_gradients", values, plans=plans)
        pair.both("find_overflow", 0.1, plans=plans)
        pair.both("apply", 0.1, plans=plans)
    pair.written("gather", (len(keys), DIM), np.float32, plans)
    pair.both("release", plans=plans)


def pair_on(device: HostDevice) -> CachePair:
    """Caches with room for all keys of a case."""
    failures = Failures(device)

    def make(options: dict[str, Any]) -> DeviceCache:
        return AskedCache(device, failures, options)

    return CachePair(hps.RowWiseAdagrad(lr=0.1), DIM, 8, make, seed=3)


@pytest.fixture(scope="module")
def grid() -> Grid:
    """The kernels, built once."""
    if find_compiler() is None:
        pytest.skip("no g++ here")
    return Grid()


@pytest.mark.parametrize("order", [SEEDED, STARVING])
@pytest.mark.parametrize("case", CASES)
def test_every_order_of_threads_sums_in_the_order_of_occurrences(
    grid: Grid, case: str, order: int
) -> None:
    for number, (bags, weighted) in enumerate([(True, True), (True, False), (False, False)]):
        device = GridDevice(grid, order, seed=100 * order + number)
        push(pair_on(device), CASES[case], weighted=weighted, bags=bags, seed=number)


def test_the_host_device_sums_in_the_order_of_occurrences() -> None:
    for keys in CASES.values():
        for bags, weighted in [(True, True), (True, False), (False, False)]:
            push(pair_on(HostDevice()), keys, weighted=weighted, bags=bags, seed=1)
