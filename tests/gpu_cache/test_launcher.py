"""The launcher of the CUDA cache, over host memory: the same slots and bits as the host build.

Above it: pytest. Below it: host_device.py, whose work is done late, as a GPU's; cache_pair.py.
"""

from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.errors import ConfigError
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.cache_pair import CachePair, cache_options, capacity_of, run_random
from tests.gpu_cache.host_device import HostDevice
from tests.lab import (
    DECAYING,
    OPTIMIZERS,
    optimizer_id,
)


def on_host(options: dict[str, Any]) -> DeviceCache:
    device = HostDevice()
    return DeviceCache(device, Failures(device), options)


EACH = [*OPTIMIZERS, *DECAYING]


@pytest.mark.parametrize(
    ("optimizer", "dim", "num_buckets", "steps"),
    [
        *((one, *((6, 4, 75) if idx % 2 else (16, 5, 75))) for idx, one in enumerate(EACH)),
        *((one, *((16, 5, 75) if idx % 2 else (6, 4, 75))) for idx, one in enumerate(OPTIMIZERS)),
        *((one, 4, 70, 20) for one in (OPTIMIZERS[2], DECAYING[-1])),
    ],
    ids=lambda one: None if isinstance(one, int) else optimizer_id(one),
)
def test_random_verbs_take_the_same_slots_and_bits(
    optimizer: hps.common.optimizers.Optimizer, dim: int, num_buckets: int, steps: int
) -> None:
    pair = CachePair(optimizer, dim, num_buckets, on_host, seed=dim)
    run_random(pair, steps=steps)


def test_two_caches_on_one_device_do_not_disturb_each_other() -> None:
    device = HostDevice()
    failures = Failures(device)

    def make(options: dict[str, Any]) -> DeviceCache:
        return DeviceCache(device, failures, options)

    pairs = [
        CachePair(hps.Adam(), 6, 4, make, seed=1),
        CachePair(hps.RowWiseAdagrad(), 16, 5, make, seed=2),
    ]
    run_random(*pairs, steps=80)


class Caught:
    """A cache over a HostDevice with `count` keys pinned, and the values to update them with."""

    def __init__(self, device: HostDevice, failures: Failures, count: int = 40) -> None:
        self.cache = DeviceCache(device, failures, cache_options(hps.SGD(), 4, 40_000))
        self.keys = np.arange(count, dtype=np.uint64)
        self.plan = self.cache.make_plan(self.keys, None)
        self.cache.find(self.plan, 0, -1)
        assert self.cache.reserve(self.plan)
        rows = np.zeros((count, self.cache.row_bytes), np.uint8)
        self.cache.fill(self.plan, rows, np.zeros(count, np.uint8), 0.1, True)
        self.before = self.rows()

    def rows(self) -> Any:
        images = np.zeros((len(self.keys), self.cache.row_bytes), np.uint8)
        self.cache.read_rows(self.plan, images)
        return images

    def grads(self, bad: int | None = None) -> Any:
        grads = np.ones((len(self.keys), 4), np.float32)
        if bad is not None:
            grads[bad, 2] = np.inf
        return grads


def test_a_gradient_that_is_not_finite_stops_updates_until_it_is_told() -> None:
    device = HostDevice()
    failures = Failures(device)
    first, second = (Caught(device, failures) for _ in range(2))
    assert first.cache.failed_key(wait=True) is None
    assert first.cache.sum_gradients(first.plan, first.grads(bad=17)) == -1
    assert second.cache.sum_gradients(second.plan, second.grads()) == -1
    for caught in (first, second):
        assert caught.cache.find_overflow(caught.plan, 0.1) == -1
    # Nothing waits: the flag is still on its way.
    assert first.cache.failed_key(wait=False) is None
    first.cache.apply(first.plan, 0.1)
    second.cache.apply(second.plan, 0.1)
    assert np.array_equal(first.rows(), first.before)
    assert np.array_equal(second.rows(), second.before), "a step is applied to all tables or none"
    # The other table has nothing to tell, and leaves it to tell.
    assert second.cache.failed_key(wait=True) is None
    assert first.cache.failed_key(wait=False) == 17
    assert first.cache.failed_key(wait=True) is None
    first.cache.push(first.plan, first.grads(), 0.1)
    second.cache.push(second.plan, second.grads(), 0.1)
    assert not np.array_equal(first.rows(), first.before)
    assert not np.array_equal(second.rows(), second.before)


def test_keys_outputs_and_gradients_may_be_tensors_on_the_device() -> None:
    arrays, tensors = (Caught(device, Failures(device)) for device in (HostDevice(), HostDevice()))
    kept = []  # as a device keeps the memory of a tensor until the work before its end is done
    for caught, convert in ((arrays, np.asarray), (tensors, torch.as_tensor)):
        cache, plan = caught.cache, caught.plan
        cache.release(plan)
        keys = convert(caught.keys.view(np.int64))
        out, grads = convert(np.zeros((40, 4), np.float32)), convert(caught.grads())
        kept += [keys, out, grads]
        assert cache.pull(plan, keys, out) == 0
        cache.push(plan, grads, 0.1)
        assert cache.is_current(plan) and plan.matches(keys)
        assert not plan.matches(convert(caught.keys.view(np.int64)[::-1].copy()))
    assert np.array_equal(arrays.rows(), tensors.rows())
    assert np.array_equal(kept[1], kept[4].numpy()) and kept[1].any()


def test_a_batch_without_keys_does_nothing() -> None:
    cache = on_host(cache_options(hps.SGD(), 4, 40_000))
    nothing = np.empty(0, np.uint64)
    plan = cache.make_plan(nothing, None)
    assert plan.num_unique == plan.num_missing == 0 and len(plan.unique_keys) == 0
    cache.find(plan, 0, 0)
    assert cache.reserve(plan)
    assert len(cache.victims(plan)) == len(cache.missing_keys(plan)) == 0
    cache.fill(plan, np.empty((0, cache.row_bytes), np.uint8), np.empty(0, np.uint8), 0.1, False)
    cache.gather(plan, np.empty((0, 4), np.float32))
    cache.push(plan, np.empty((0, 4), np.float32), 0.1)
    cache.assign(plan, np.empty((0, 4), np.float32), None, 0.1)
    cache.release(plan)
    assert len(cache.contains(nothing)) == len(cache.erase(nothing)) == 0
    assert cache.pull(plan, nothing, np.empty((0, 4), np.float32)) == 0


def test_arrays_of_another_shape_or_type_are_refused() -> None:
    device = HostDevice()
    caught = Caught(device, Failures(device))
    for out in (np.zeros((40, 5), np.float32), np.zeros((40, 4)), np.zeros((4, 40), np.float32).T):
        with pytest.raises(ValueError, match=r"float32 out \[L, dim\] = \(40, 4\)"):
            caught.cache.gather(caught.plan, out)
    with pytest.raises(ValueError, match="grads"):
        caught.cache.push(caught.plan, np.zeros((39, 4), np.float32), 0.1)


def test_a_reserve_without_memory_for_victims_can_be_abandoned() -> None:
    """What tells the host needs memory, before anything is queued."""
    device = HostDevice()
    optimizer = hps.Adagrad()
    options = cache_options(optimizer, 64, capacity_of(optimizer, 64, 2))
    cache = DeviceCache(device, Failures(device), options)
    plans = []
    for start in (0, 1000):
        keys = np.arange(start, start + 100, dtype=np.uint64)
        plan = cache.make_plan(keys, None)
        cache.find(plan, 0, -1)
        if start:
            assert plan.num_missing == 100  # and so is what is known of the plan
            device.budget = 10_000
            with pytest.raises(ConfigError, match="10000 are free"):
                cache.reserve(plan)
            device.budget = None
        else:
            assert cache.reserve(plan)
            rows = np.zeros((100, cache.row_bytes), np.uint8)
            cache.fill(plan, rows, np.zeros(100, np.uint8), 0.1, True)
            cache.release(plan)
        plans.append(plan)
    cache.abandon(plans[1])
    assert cache.pins == 0 and cache.num_rows == cache.num_dirty == 100
    assert (cache.contains(np.arange(100, dtype=np.uint64)) == 3).all()


def test_launches_of_a_step_that_finds_all_rows_stay_few() -> None:
    """A look-up and an update without misses do not pay for the rounds of a reserve."""
    device = HostDevice()
    caught = Caught(device, Failures(device))
    caught.cache.release(caught.plan)
    device.launches.clear()
    out = np.zeros((40, 4), np.float32)
    caught.cache.make_plan(caught.keys, caught.plan)
    caught.cache.find(caught.plan, 0, -1)
    assert caught.cache.reserve(caught.plan)
    nothing = np.empty((0, caught.cache.row_bytes), np.uint8)
    caught.cache.fill(caught.plan, nothing, np.empty(0, np.uint8), 0.1, False)
    caught.cache.gather(caught.plan, out)
    caught.cache.push(caught.plan, caught.grads(), 0.1)
    caught.cache.release(caught.plan)
    names = [name for name, _ in device.launches]
    assert not any(name.startswith("Place") for name in set(names) - {"PlaceKey", "PlaceTerms"})
    assert len(names) <= 24, names


def test_a_reserve_goes_straight_for_victims_where_no_slot_is_free() -> None:
    device = HostDevice()
    optimizer = hps.SGD()
    options = cache_options(optimizer, 4, capacity_of(optimizer, 4, 2))
    cache = DeviceCache(device, Failures(device), options)
    seen = set()
    for start in range(0, 40 * cache.capacity_rows, 64):
        is_full = cache.num_rows == cache.capacity_rows
        plan = cache.make_plan(np.arange(start, start + 64, dtype=np.uint64), None)
        cache.find(plan, 0, -1)
        device.launches.clear()
        assert cache.reserve(plan)
        names = [name for name, _ in device.launches]
        seen.add((is_full, "PlaceFirst" in names, "PlaceVictimFirst" in names, len(names)))
        rows = np.zeros((64, cache.row_bytes), np.uint8)
        cache.fill(plan, rows, np.zeros(64, np.uint8), 0.1, True)
        cache.release(plan)
    assert seen == {(False, True, True, 8), (True, False, True, 4)}, seen


def test_a_plan_may_grow_while_work_on_its_old_memory_is_queued() -> None:
    device = HostDevice()
    caught = Caught(device, Failures(device))
    cache, plan = caught.cache, caught.plan
    old_bytes = plan.part.num_bytes
    cache.release(plan)
    assert device.num_done < device.num_queued, "the release is still queued"
    cache.make_plan(np.arange(5000, dtype=np.uint64), plan)
    assert plan.part.num_bytes > old_bytes
    taken = [torch.full((old_bytes,), 0x77, dtype=torch.uint8) for _ in range(50)]
    assert cache.pins == 0 and cache.num_rows == 40
    del taken


def test_a_cache_may_be_dropped_while_its_work_is_queued() -> None:
    """Its memory, and its plan's, is not given to others before the work is done."""
    device = HostDevice()
    caught = Caught(device, Failures(device))
    expected, out = torch.zeros(40, 4), torch.zeros(40, 4)
    caught.cache.gather(caught.plan, expected)
    device.work_off(device.num_queued)
    assert expected.any()
    caught.cache.gather(caught.plan, out)
    sizes = (caught.cache.memory_bytes, caught.plan.part.num_bytes)
    together = caught.cache.together  # whose pinned memory would be waited for
    del caught
    taken = [torch.full((size,), 0x77, dtype=torch.uint8) for size in sizes for _ in range(50)]
    assert device.num_done < device.num_queued and not out.any(), "the gather is still queued"
    device.work_off(device.num_queued)
    assert torch.equal(out, expected)
    del taken, together
