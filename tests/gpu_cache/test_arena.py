"""A device's memory for batches: parts that come and go, what is refused and how, and that nothing
else of the device is taken.

Above it: pytest. Below it: hps/gpu_cache/arena.py, a server over the CUDA cache's launcher, on a
device of host memory.
"""

import gc
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps import _C
from hps.errors import BatchMemoryError
from hps.gpu_cache.arena import DeviceArena
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.device_plan import plan_bytes
from hps.gpu_cache.device_sums import sums_bytes
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.kernels import KernelArgs
from hps.parameter_server.batches import Batches
from hps.parameter_server.server import RowUpdate
from hps.plan import sizes
from tests.gpu_cache.cache_pair import cache_options
from tests.gpu_cache.host_device import HostDevice
from tests.parameter_server.test_gpu_tables import TABLES, Launched, batches, config_of, train

ROWS = 4_000_000


def test_parts_do_not_overlap_and_what_comes_back_is_one_piece_again() -> None:
    arena = DeviceArena(HostDevice(), 2**20)
    start = arena.piece.memory.data_ptr()
    random = np.random.default_rng(3)
    held: list[tuple[_C.ArenaPart, int]] = []
    most = 0
    for number in range(400):
        if held and random.random() < 0.5:
            part, value = held.pop(int(random.integers(len(held))))
            assert (part.memory == value).all(), "a part was given out twice"
            del part
        size = int(random.integers(1, 60_000))
        try:
            part = arena.take(size)
        except BatchMemoryError:
            held = held[len(held) // 2 :]
            continue
        assert len(part.memory) == size and (part.address - start) % 256 == 0
        part.memory.fill_(number % 251)
        held.append((part, number % 251))
        most = max(most, arena.used_bytes)
        del part
    assert all((part.memory == value).all() for part, value in held)
    assert arena.peak_bytes == most > 2**19
    held.clear()
    assert arena.used_bytes == 0
    assert len(arena.take(2**20).memory) == 2**20


def test_a_part_that_cannot_be_had_names_the_numbers() -> None:
    arena = DeviceArena(HostDevice(), 100_000)
    kept = [arena.take(60_000)]
    asked: list[object] = []
    arena.on_shortage.append(asked.append)
    with pytest.raises(
        BatchMemoryError,
        match=r"100000 bytes for batches.* 60160 are in use.* 39680 are free.*; 50000",
    ):
        arena.take(50_000)
    assert len(asked) == 1
    arena.on_shortage.append(lambda plans: kept.clear())
    assert len(arena.take(50_000).memory) == 50_000


def test_where_no_batch_is_under_way_all_that_is_left_is_one_part() -> None:
    """Whatever lay at the end when scratch and the room of sums were made."""
    device = HostDevice()
    failures = Failures(device, 2**20)
    cache = DeviceCache(device, failures, cache_options(hps.SGD(), 4, 2**20))
    arena, batch = failures.arena, cache._batch
    small = cache.make_plan(np.arange(100, dtype=np.uint64), None)
    with device.order().verb():
        batch.scratch.let_go()
        # What will be free again, beside what stays.
        at_end = [arena.take(2**18, from_end=True), arena.take(2**17, from_end=True)]
        batch.scratch.take_again(2**15)
    assert small.num_unique == 100
    batch.make_room([small])
    del at_end
    del small
    free = 2**20 - arena.used_bytes
    num_keys = max(n for n in range(0, 20_000, 500) if plan_bytes(KernelArgs(), n) < free - 2**14)
    assert plan_bytes(KernelArgs(), num_keys) > arena._parts.largest_part
    assert cache.make_plan(torch.arange(num_keys), None).num_unique == num_keys


def test_a_refused_batch_is_kept_by_nobody() -> None:
    """Not by the refusal's own traceback either, once that is dropped: its memory is wanted."""
    device = HostDevice()
    failures = Failures(device, 2**20)
    cache = DeviceCache(device, failures, cache_options(hps.SGD(), 4, 2**20))
    used = failures.arena.used_bytes
    gc.disable()
    try:
        for num_keys in (2000, 4000):
            with pytest.raises(BatchMemoryError):
                pin_two(cache, num_keys)
            assert failures.arena.used_bytes == used
    finally:
        gc.enable()


def pin_two(cache: DeviceCache, num_keys: int) -> None:
    """A batch that has a plan, and no room for its sums or for a second plan."""
    plan = cache.make_plan(np.arange(num_keys, dtype=np.uint64), None)
    assert plan.num_unique == num_keys
    plans = [cache.make_plan(np.arange(num_keys, dtype=np.uint64), None) for _ in range(9)]
    cache._batch.make_room([plan, *plans])


def test_an_arena_that_is_too_small_for_a_device_is_refused_when_it_is_opened() -> None:
    with pytest.raises(hps.ConfigError, match=r"60000 bytes.*needs 65536.*--gpu-batches"):
        Failures(HostDevice(), 60_000)


def test_a_plan_that_is_dropped_or_cleared_leaves_the_sums_to_others() -> None:
    device = HostDevice()
    failures = Failures(device)
    options = cache_options(hps.SGD(), 4, 2**20)
    caches = [DeviceCache(device, failures, options) for _ in range(2)]
    plans = [cache.make_plan(np.arange(50, dtype=np.uint64), None) for cache in caches]
    for cache, plan in zip(caches, plans, strict=True):
        cache.find(plan, 0, -1)
        assert plan.num_missing == 50 and cache.reserve(plan)
        rows = np.zeros((50, cache.row_bytes), np.uint8)
        cache.fill(plan, rows, np.zeros(50, np.uint8), 0.1, create=True)
        cache.sum_gradients(plan, torch.ones(50, 4))
    # One after the other they have memory of their own, as long as both are to be applied.
    assert plans[0].sums is not None and plans[0].sums is not plans[1].sums
    caches[0].apply(plans[0], 0.1)
    sums = plans[1].sums
    assert plans[0].sums is None and sums is not None and sums.num_pending == 1
    del plans, plan
    assert sums.num_pending == 0


def test_an_eighth_of_the_bytes_on_a_gpu_is_for_batches() -> None:
    gpu = hps.GpuCacheConfig(bytes="8GiB")
    assert (gpu.arena_bytes, gpu.rows_bytes) == (2**30, 7 * 2**30)
    given = hps.GpuCacheConfig(bytes="8GiB", batch_bytes="3GiB")
    assert (given.arena_bytes, given.rows_bytes) == (3 * 2**30, 5 * 2**30)
    assert hps.GpuCacheConfig(bytes="8GiB", device="cpu").rows_bytes == 2**33
    with pytest.raises(hps.ConfigError, match=r"batch_bytes=2048 is a part of .*bytes=2048"):
        hps.GpuCacheConfig(bytes=2048, batch_bytes="2KiB")
    with pytest.raises(hps.ConfigError, match=r"GpuCacheConfig\.batch_bytes"):
        hps.GpuCacheConfig(bytes=2048, batch_bytes=0)


def test_nothing_of_a_device_is_taken_but_rows_and_one_arena(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked: steps with rows that give way, calls with arrays of the host, scans."""
    taken: list[int] = []
    whole = HostDevice.empty

    def empty(self: HostDevice, num_bytes: int) -> torch.Tensor:
        taken.append(num_bytes)
        return whole(self, num_bytes)

    monkeypatch.setattr(HostDevice, "empty", empty)
    launched = Launched(tmp_path, monkeypatch, 400_000, 2**21)
    num_pieces = len(taken)
    assert num_pieces == len(TABLES) + 1 and sum(taken) <= 400_000 + 2**21
    with launched.server as server:
        train(server, batches(are_measured=True), 2)
        keys = np.arange(100, dtype=np.uint64)
        for name, (dim, _) in TABLES.items():
            server.pull(name, keys, create=True)
            server.push(name, keys, np.ones((100, dim), np.float32))
            server.assign(name, keys, np.ones((100, dim), np.float32))
            assert server.contains(name, keys).all() and server.erase(name, keys[:3]).all()
            assert len(list(server.items(name)))
        server.checkpoint("one")
        stats = server.stats()["gpu_cache"]
        assert stats["batch_bytes"] == 2**21
        assert 2**16 < stats["batch_bytes_peak"] <= 2**21
    assert len(taken) == num_pieces, taken[num_pieces:]


def batch_of(num_keys: int, seed: int = 0, a_bag: int = 1) -> hps.Batch:
    keys = torch.from_numpy(np.random.default_rng(seed).permutation(num_keys))
    ids = hps.Ids(keys, torch.arange(0, num_keys + 1, a_bag))
    num_bags = num_keys // a_bag
    return hps.Batch({"ads": ids}, torch.zeros(num_bags, 0), torch.ones(num_bags))


def test_a_batch_that_does_not_fit_is_refused_whole_and_a_smaller_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = Launched(tmp_path, monkeypatch, ROWS, 400_000)
    needed = plan_bytes(KernelArgs(), 8000)
    assert needed > 400_000
    with launched.server as server:
        queued = server.queued
        assert queued is not None
        keys = {"ads": torch.arange(8000), "users": torch.arange(10)}
        with pytest.raises(hps.CapacityError) as caught:
            queued.pinning(keys)
        told = str(caught.value)
        assert "a batch of 8010 keys in 2 tables needs" in told
        numbers = [int(number) for number in re.findall(r"(\d+) bytes", told)]
        assert numbers[0] >= needed and numbers[1] == 400_000, told
        assert "GpuCacheConfig.batch_bytes" in told and "--gpu" in told
        assert server.pins == 0 and server.num_rows("ads") == 0
        smaller = {"ads": torch.arange(800), "users": torch.arange(10)}
        rows = list(queued.pinning(smaller).values())
        assert server.pins == 810
        queued.release(rows)


def all_that_is_left(launched: Launched) -> list[_C.ArenaPart]:
    """Parts of an arena, until there is none."""
    taken = []
    with launched.server.parts.tables.lock:
        for size in (2**20, 2**16, 2**12, 2**8):
            with suppress(BatchMemoryError):
                while True:
                    taken.append(launched.arena.take(size))
    return taken


def test_a_pinned_batch_has_the_memory_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though all that is left is taken between pin and step, and by other batches before."""
    launched = Launched(tmp_path, monkeypatch, ROWS, 2_000_000)
    with launched.server as server:
        queued = server.queued
        assert queued is not None
        grads = torch.ones(1000, TABLES["ads"][0])
        for first in (0, 500):
            keys = torch.arange(first, first + 1000)
            rows = queued.pinning({"ads": keys})["ads"]
            taken = all_that_is_left(launched)
            server.apply([RowUpdate("ads", keys, grads, rows)])
            queued.release([rows])
            del rows, taken
        assert server.num_rows("ads") == 1500


def test_a_batch_whose_plan_fits_and_whose_step_does_not_is_refused_when_it_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = torch.arange(4000)
    plan = plan_bytes(KernelArgs(), 4000)
    launched = Launched(tmp_path, monkeypatch, ROWS, plan + 120_000)
    with launched.server as server:
        queued = server.queued
        assert queued is not None
        with pytest.raises(hps.CapacityError, match=r"plans and \d+ for the sums of its step"):
            queued.pinning({"users": keys})
        assert server.pins == 0
        server.pull("users", keys)  # needs no sums


def test_plans_that_nobody_uses_give_their_memory_to_one_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = Launched(tmp_path, monkeypatch, ROWS, 500_000)
    with launched.server as server:
        queued = server.queued
        assert queued is not None
        few = [{"ads": torch.arange(first, first + 1000)} for first in (0, 500, 1000)]
        held = [list(queued.pinning(keys).values()) for keys in few]
        for rows in held:
            queued.release(rows)
        assert launched.arena.used_bytes > 300_000
        rows = list(queued.pinning({"users": torch.arange(3000)}).values())
        assert server.pins == 3000
        queued.release(rows)


@pytest.mark.parametrize("batch_bytes", [600_000, 2**24])
def test_batches_ahead_wait_for_memory_and_leave_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    """Where one batch fits and not four, a Pipeline of depth 3 trains as one of depth 0."""
    given = [batch_of(1200 + 100 * (seed % 3), seed) for seed in range(8)]
    with hps.ParameterServer(config_of(tmp_path / "plain", None)) as server:
        expected = steps(server, given, 0)
    launched = Launched(tmp_path / "launched", monkeypatch, ROWS, batch_bytes)
    refused = []
    whole = Batches.pinning

    def pinning(self: Batches, *keys: Any) -> Any:
        try:
            return whole(self, *keys)
        except BatchMemoryError:
            refused.append(1)
            raise

    monkeypatch.setattr(Batches, "pinning", pinning)
    with launched.server as server:
        assert steps(server, given, 3) == expected
    assert not refused or batch_bytes < 2**20  # how often is the threads' to say


def test_batches_ahead_give_way_to_a_step_that_needs_more_than_a_pin_knows_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first one of means does, whose gradients are divided."""
    launched = Launched(tmp_path, monkeypatch, ROWS, 2_000_000)
    with launched.server as server:
        embedding = hps.SparseEmbedding(server, "ads", pooling="mean")
        optimizer = hps.RowOptimizer(server)
        given = [batch_of(1200, seed, a_bag=2) for seed in range(4)]
        with hps.Pipeline(given, server, depth=2) as pipeline:
            for number, batch in enumerate(pipeline):
                embedding(batch).sum().backward()
                deadline = time.monotonic() + 10
                while not number and server.pins < 3 * 1200:
                    assert time.monotonic() < deadline, "no batches ahead"
                    time.sleep(0.01)
                taken = [] if number else all_that_is_left(launched)
                optimizer.step()
                del taken
        assert server.num_rows("ads") == 1200


def steps(server: hps.ParameterServer, given: list[hps.Batch], depth: int) -> Any:
    embedding = hps.SparseEmbedding(server, "ads", pooling="mean")
    optimizer = hps.RowOptimizer(server)
    found = []
    with hps.Pipeline(given, server, depth=depth) as pipeline:
        for batch in pipeline:
            output = embedding(batch)
            (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
            optimizer.step()
            found.append(output.detach().numpy().tobytes())
    return [found, server.digest("ads")]


def test_calls_of_any_number_of_keys_go_on_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of a server that needs none."""
    random = np.random.default_rng(5)
    keys = random.integers(0, 6000, 20_000).astype(np.uint64)
    keys[::7] = 3  # more occurrences of one key than an arena holds
    dim = TABLES["ads"][0]
    grads = random.standard_normal((20_000, dim)).astype(np.float32)
    answers = []
    launched = Launched(tmp_path / "launched", monkeypatch, ROWS, 300_000)
    assert plan_bytes(KernelArgs(), len(keys)) > 300_000
    plain = hps.ParameterServer(config_of(tmp_path / "plain", None))
    for server in (plain, launched.server):
        with server:
            found = [np.array(server.pull("ads", keys, create=True))]
            server.push("ads", keys, grads)
            server.assign("ads", keys[:9000], grads[:9000])
            bad = grads.copy()
            bad[19_999, 1] = np.inf
            with pytest.raises(hps.NonFiniteError):
                server.push("ads", keys, bad)
            server.push("ads", np.unique(keys), grads[: len(np.unique(keys))])
            found.append(np.array(server.pull("ads", keys)))
            found.append(np.array(server.contains("ads", keys + np.uint64(3000))))
            answers.append(([one.tobytes() for one in found], server.digest("ads")))
    assert answers[0] == answers[1]


def test_a_step_that_overflows_in_the_last_part_of_a_push_changes_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = Launched(tmp_path, monkeypatch, ROWS, 300_000)
    dim = TABLES["users"][0]
    with launched.server as server:
        keys = np.arange(9000, dtype=np.uint64)
        server.push("users", keys, np.ones((9000, dim), np.float32))
        before = server.digest("users")
        grads = np.ones((9000, dim), np.float32)
        grads[8999, 3] = 3e38  # finite, and so is the sum; the row after it is not
        server.learning_rates["users"] = 10.0
        with pytest.raises(hps.NonFiniteError, match="key 8999"):
            server.push("users", keys, grads)
        assert server.digest("users") == before


def test_keys_are_asked_for_in_pieces_while_batches_have_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the stage that brings rows into DRAM is never refused."""
    launched = Launched(tmp_path, monkeypatch, ROWS, 600_000)
    with launched.server as server:
        keys = np.arange(30_000, dtype=np.uint64)
        server.pull("ads", keys[:500], create=True)
        taken = all_that_is_left(launched)
        launched.device.launches.clear()
        found = np.asarray(server.contains("ads", keys))
        assert launched.launches("Contains") > 1
        assert found[:500].all() and not found[500:].any()
        del taken


def test_memory_of_a_dropped_server_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = Launched(tmp_path, monkeypatch, ROWS, 2_000_000)
    with launched.server as server:
        train(server, batches(are_measured=True)[:4], 2)
        assert launched.arena.used_bytes > 100_000
    arena = launched.arena
    del launched, server
    for _ in range(2):  # what is freed by the first frees more
        gc.collect()
    assert arena.used_bytes < 100_000


@pytest.mark.parametrize("num_keys", [1000, 2**15 + 1, 200_000])
def test_hps_plan_reckons_with_no_less_than_batches_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_keys: int
) -> None:
    assert plan_bytes(KernelArgs(), num_keys) <= sizes.PLAN_BYTES * num_keys
    launched = Launched(tmp_path, monkeypatch, ROWS, 2**26)
    with launched.server as server:
        cache: Any = server.parts.tables.stacks["users"].cache
        plan = cache.make_plan(np.arange(num_keys, dtype=np.uint64) // np.uint64(2), None)
        assert plan.num_unique == -(-num_keys // 2)
        needed = sums_bytes(cache.together._native.sizes_to_sum([plan]))
    assert needed <= (sizes.SUMS_BYTES + TABLES["users"][0] / 4) * num_keys + 4096
