"""The CUDA cache on a GPU: the same slots and bits as the host build, streams, memory, failures.

Above it: pytest -m gpu. Below it: cuda_device.py, cache_pair.py. Everything here is skipped where
torch or CuPy sees no device. The tests marked memcheck are short enough for compute-sanitizer.
"""

from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps import _C
from hps.gpu_cache import make_gpu_caches
from hps.gpu_cache.cuda_device import CudaDevice
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.cache_pair import CachePair, cache_options, capacity_of, run_random
from tests.gpu_cache.test_make_caches import two_tables
from tests.lab import (
    DECAYING,
    OPTIMIZERS,
    optimizer_id,
    random_floats,
    random_keys,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
DEVICE = "cuda:0"


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    """The first device, its kernels compiled once."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    return CudaDevice(DEVICE)


class CudaCache(DeviceCache):
    """A cache that takes what a CachePair gives it: pools of tensors on its device."""

    torch_device = torch.device(DEVICE)


def pinned(cache: DeviceCache, keys: Any, *, create: bool = True) -> Any:
    """A plan of keys, each row initialised and pinned."""
    plan = cache.make_plan(keys, None)
    cache.find(plan, 0, -1)
    assert cache.reserve(plan)
    cache.victims(plan)
    count = plan.num_missing
    rows = np.zeros((count, cache.row_bytes), np.uint8)
    cache.fill(plan, rows, np.zeros(count, np.uint8), 0.1, create)
    return plan


def images(cache: Any, plan: Any, count: int) -> Any:
    rows = np.zeros((count, cache.row_bytes), np.uint8)
    cache.read_rows(plan, rows)
    return rows


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, *DECAYING], ids=optimizer_id)
@pytest.mark.parametrize(
    ("dim", "num_buckets", "steps"), [(6, 4, 150), (16, 5, 150), (5, 70, 25), (128, 70, 25)]
)
def test_random_verbs_take_the_same_slots_and_bits(
    device: CudaDevice,
    optimizer: hps.common.optimizers.Optimizer,
    dim: int,
    num_buckets: int,
    steps: int,
) -> None:
    def make(options: dict[str, Any]) -> DeviceCache:
        return CudaCache(device, Failures(device), options)

    run_random(CachePair(optimizer, dim, num_buckets, make, seed=dim), steps=steps)


@pytest.mark.memcheck
@pytest.mark.parametrize("dim", [5, 16])
def test_a_short_walk_touches_no_memory_of_others(device: CudaDevice, dim: int) -> None:
    def make(options: dict[str, Any]) -> DeviceCache:
        return CudaCache(device, Failures(device), options)

    pair = CachePair(hps.RowWiseAdagrad(lr=0.1), dim, 4, make, seed=1)
    run_random(pair, steps=25)


def test_a_large_batch_with_hot_keys_equals_the_host(device: CudaDevice) -> None:
    """Over a million occurrences: many blocks, strided launches, sums of thousands of runs."""
    optimizer, dim, length = hps.RowWiseAdagrad(lr=0.1), 16, 1 << 20
    options = cache_options(optimizer, dim, capacity_of(optimizer, dim, 12_000))
    random = np.random.default_rng(0)
    keys = random_keys(random, length, 300_000)
    keys[::3] = keys[0]
    grads = random_floats(random, length, dim)
    caches = [_C.GpuCache(pool=_C.ThreadPool(8), **options)]
    caches.append(DeviceCache(device, Failures(device, 2**29), options))
    results = []
    for cache in caches:
        plan = pinned(cache, keys)
        assert plan.num_unique > 200_000
        cache.push(plan, grads, 0.1)
        out = np.zeros((length, dim), np.float32)
        cache.gather(plan, out)
        results.append((plan.slots, plan.unique_keys, images(cache, plan, plan.num_unique), out))
        cache.release(plan)
    for mine, theirs in zip(*results, strict=True):
        assert np.array_equal(mine.view(np.uint8), theirs.view(np.uint8))


@pytest.mark.memcheck
def test_two_caches_on_one_device_do_not_disturb_each_other(device: CudaDevice) -> None:
    caches = make_gpu_caches(two_tables(hps.GpuCacheConfig(bytes="4MiB", device=DEVICE)))
    keys = np.arange(500, dtype=np.uint64)
    plans = {name: pinned(cache, keys) for name, cache in caches.items()}
    before = {name: images(cache, plans[name], 500) for name, cache in caches.items()}
    caches["ads"].push(plans["ads"], np.ones((500, 8), np.float32), 0.1)
    assert not np.array_equal(images(caches["ads"], plans["ads"], 500), before["ads"])
    assert np.array_equal(images(caches["users"], plans["users"], 500), before["users"])


def test_verbs_on_two_streams_happen_in_the_order_in_which_they_are_issued(
    device: CudaDevice,
) -> None:
    options = cache_options(hps.SGD(), 64, capacity_of(hps.SGD(), 64, 2000))
    cache = DeviceCache(device, Failures(device, 2**26), options)
    count = 100_000
    keys = torch.arange(count, device=DEVICE)
    plan = pinned(cache, keys)
    ones = torch.ones(count, 64, device=DEVICE)
    before = torch.empty(count, 64, device=DEVICE)
    cache.gather(plan, before)
    streams = [torch.cuda.Stream(DEVICE) for _ in range(2)]
    torch.cuda.synchronize()
    steps = 40
    for step in range(steps):
        with torch.cuda.stream(streams[step % 2]):
            if step % 2:
                torch.cuda._sleep(200_000)  # this stream is late; the other has to wait for it
            cache.push(plan, ones, 1.0)
    after = torch.empty(count, 64, device=DEVICE)
    with torch.cuda.stream(streams[0]):
        cache.gather(plan, after)
    torch.cuda.synchronize()
    expected = before.clone()
    for _ in range(steps):
        expected -= 1.0
    assert torch.equal(after, expected)


def test_a_cache_may_be_dropped_while_its_work_is_queued(device: CudaDevice) -> None:
    """Its memory is not given to others before the work is done, on whichever stream it is."""
    options = cache_options(hps.SGD(), 64, capacity_of(hps.SGD(), 64, 2000))
    count = 100_000
    side = torch.cuda.Stream(DEVICE)
    for _ in range(5):
        cache = DeviceCache(device, Failures(device, 2**26), options)
        keys = torch.arange(count, device=DEVICE)
        plan = pinned(cache, keys)
        expected = torch.empty(count, 64, device=DEVICE)
        cache.gather(plan, expected)
        side.wait_stream(torch.cuda.current_stream())
        out = torch.zeros(count, 64, device=DEVICE)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            cache.gather(plan, out)
        num_bytes = cache.memory_bytes
        del cache, plan
        taken = torch.full((num_bytes,), 255, dtype=torch.uint8, device=DEVICE)
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
        del taken


def test_memory_that_the_device_has_not_is_an_error_with_both_numbers(device: CudaDevice) -> None:
    gpu = hps.GpuCacheConfig(bytes="100TiB", device=DEVICE)
    with pytest.raises(hps.ConfigError, match=r"\d{10,} bytes were requested, \d+ of \d+ are free"):
        make_gpu_caches(two_tables(gpu))
    count = torch.cuda.device_count()
    with pytest.raises(hps.ConfigError, match=f"this machine has {count}"):
        CudaDevice(f"cuda:{count}")


@pytest.mark.memcheck
def test_a_gradient_that_is_not_finite_changes_no_row_and_is_told_later(device: CudaDevice) -> None:
    failures = Failures(device)
    options = cache_options(hps.Adam(), 8, capacity_of(hps.Adam(), 8, 8))
    caches = [DeviceCache(device, failures, options) for _ in range(2)]
    keys = np.arange(7, 207, dtype=np.uint64)
    plans = [pinned(cache, keys) for cache in caches]
    before = [images(cache, plan, 200) for cache, plan in zip(caches, plans, strict=True)]
    grads = torch.ones(200, 8, device=DEVICE)
    bad = grads.clone()
    bad[150, 7] = float("nan")
    assert caches[0].sum_gradients(plans[0], grads) == -1
    assert caches[1].sum_gradients(plans[1], bad) == -1
    for cache, plan in zip(caches, plans, strict=True):
        assert cache.find_overflow(plan, 0.1) == -1
    for cache, plan in zip(caches, plans, strict=True):
        cache.apply(plan, 0.1)
    for cache, plan, rows in zip(caches, plans, before, strict=True):
        assert np.array_equal(images(cache, plan, 200), rows)
    assert caches[0].failed_key(wait=True) is None
    assert caches[1].failed_key(wait=True) == 157
    for cache, plan, rows in zip(caches, plans, before, strict=True):
        cache.push(plan, grads, 0.1)
        assert not np.array_equal(images(cache, plan, 200), rows)
        assert cache.failed_key(wait=True) is None


def test_denormal_numbers_are_kept(device: CudaDevice) -> None:
    options = cache_options(hps.SGD(), 4, capacity_of(hps.SGD(), 4, 4))
    host = _C.GpuCache(pool=_C.ThreadPool(1), **options)
    cache = DeviceCache(device, Failures(device), options)
    keys = np.arange(50, dtype=np.uint64)
    tiny = np.full((50, 4), 3e-42, np.float32)
    assert tiny.any() and (tiny < np.finfo(np.float32).tiny).all()
    rows = []
    for one in (host, cache):
        plan = pinned(one, keys)
        one.assign(plan, tiny, None, 0.1)
        one.push(plan, tiny, 0.25)
        rows.append(images(one, plan, 50))
    assert np.array_equal(*rows)
    weights = rows[0].view(np.float32)[:, 4:8]
    assert (weights > 0).all() and (weights < tiny).all()


def test_kernels_use_no_local_memory_on_this_device(device: CudaDevice) -> None:
    attributes = device.kernel_attributes()
    assert attributes.keys() == device.args.lanes.keys()
    for name, one in attributes.items():
        print(name, one)
        assert one["local_size_bytes"] == 0, name


def test_a_second_start_takes_the_compiled_kernels_from_disk(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hps.gpu_cache import kernels

    def refuse(*_: Any) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(kernels, "compile_kernels", refuse)
    assert CudaDevice(DEVICE).torch_device == device.torch_device
