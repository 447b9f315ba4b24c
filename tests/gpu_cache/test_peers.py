"""Messages that a device makes and reads have the bytes of the host's; keys are divided as there.

Above it: pytest. Below it: hps.gpu_cache.peers over the stand-in device, hps/common/wire.py.
"""

import gc
import weakref

import numpy as np
import pytest
import torch

from hps import _C
from hps.common.locks import new_lock
from hps.common.sharding import ShardMap
from hps.common.wire import Wire, decode, encode
from hps.errors import BatchMemoryError
from hps.gpu_cache.device_batch import DeviceBatch
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.peers import Peers
from tests.gpu_cache.host_device import HostDevice
from tests.lab import random_keys

DIM = 5


def make_peers(num_ranks: int) -> tuple[HostDevice, Peers]:
    """Over a device of their own."""
    device = HostDevice()
    return device, Peers(DeviceBatch(device, Failures(device)), num_ranks, new_lock())


def values_of(wire: Wire) -> np.ndarray:
    """Floats of any magnitude, those that a format rounds down, up and to the even one among them,
    zeros, and infinities where a format has them: float32 [n, DIM]."""
    generator = np.random.default_rng(wire.value)
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        between = (halves[:-1] + halves[1:]) / 2
        beside = np.nextafter(between, np.float32(np.inf))
    bits = generator.integers(0, 2**32, 40_000, dtype=np.uint64).astype(np.uint32)
    floats = np.concatenate([halves, between, beside, bits.view(np.float32)])
    floats = floats[np.isfinite(floats) if wire is Wire.INT8 else ~np.isnan(floats)]
    rows = floats[: len(floats) // DIM * DIM].reshape(-1, DIM).copy()
    rows[3] = 0.0
    # Of less than a normal float: a scale that rounds much off, and one that rounds to zero.
    least = np.float32(2.0**-149)
    rows[4], rows[5] = least * np.array([[190, -190, 64, 1, 0], [60, -60, 7, 1, 0]], np.float32)
    return rows


@pytest.mark.parametrize("wire", Wire)
def test_a_message_of_a_device_has_the_bytes_of_the_hosts(wire: Wire) -> None:
    rows = values_of(wire)
    first = len(rows) // 3
    counts = np.array([[first], [len(rows) - first]])
    device, peers = make_peers(2)
    tensor = torch.from_numpy(rows)
    table = _C.SentTable(None, tensor.data_ptr(), 0, DIM)
    message = peers.send([table], [DIM], counts, wire, [], tensor)
    (read,) = peers.receive(message, [DIM], counts, wire)
    device.work_off(device.num_queued)
    parts = [encode(part, wire) for part in (rows[:first], rows[first:])]
    assert message.numpy().tobytes() == b"".join(part.tobytes() for part in parts)
    expected = [
        decode(part, len(of), DIM, wire)
        for part, of in zip(parts, (rows[:first], rows[first:]), strict=True)
    ]
    assert read.numpy().tobytes() == np.concatenate(expected).tobytes()


def test_int8_says_by_its_scale_that_a_row_is_not_finite() -> None:
    rows = np.ones((3, DIM), np.float32)
    rows[0, 1], rows[2, 4] = np.inf, np.nan
    counts = np.array([[3], [0]])
    device, peers = make_peers(2)
    tensor = torch.from_numpy(rows)
    table = _C.SentTable(None, tensor.data_ptr(), 0, DIM)
    message = peers.send([table], [DIM], counts, Wire.INT8, [], tensor)
    (read,) = peers.receive(message, [DIM], counts, Wire.INT8)
    device.work_off(device.num_queued)
    assert read.isfinite().all(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("num_ranks", [1, 3, 70])
@pytest.mark.parametrize("length", [0, 1, 1000])
def test_keys_are_divided_as_on_the_host(num_ranks: int, length: int) -> None:
    generator = np.random.default_rng(length)
    keys = {"ads": random_keys(generator, length, 300), "users": random_keys(generator, 40, 9)}
    _, peers = make_peers(num_ranks)
    found = peers.divide(keys, {"ads": 4, "users": 8}, "cpu")
    for name, own in keys.items():
        plan = _C.ShardPlan(ShardMap(num_ranks).owners().tolist())
        plan.build(own)
        assert found[name].unique_keys.tolist() == plan.unique_keys.tolist()
        assert np.cumsum([0, *found[name].counts]).tolist() == list(plan.starts)
        assert found[name].matches(own)
        assert not found[name].matches(own + np.uint64(1)) or not length


def test_gradients_are_kept_until_their_sums_are_judged_and_no_longer() -> None:
    device, peers = make_peers(2)
    keys = random_keys(np.random.default_rng(1), 100, 40)
    found = list(peers.divide({"ads": keys}, {"ads": DIM}, "cpu").values())
    grads = torch.ones(100, DIM)
    known = weakref.ref(grads)
    peers.sum_gradients(found, [grads], [None])
    del grads
    device.work_off(device.num_queued)
    gc.collect()
    assert known() is not None
    assert peers.judge(found, [None], 1e3, 1e30) == [(-1, 0.0)]
    device.work_off(device.num_queued)
    gc.collect()
    assert known() is None


def test_keys_of_other_memory_are_not_those_that_were_divided() -> None:
    keys = torch.arange(100)
    _, peers = make_peers(2)
    found = peers.divide({"ads": keys}, {"ads": DIM}, "cpu")["ads"]
    assert found.matches(keys)
    keys.data = torch.arange(100) + 1
    assert not found.matches(keys)
    keys.data = torch.arange(100)
    assert found.matches(keys) and found.matches(keys)  # the second time it is believed
    keys.data = torch.arange(100) + 1
    assert not found.matches(keys)


def test_keys_that_a_device_has_no_memory_for_are_refused_and_take_nothing() -> None:
    device = HostDevice()
    failures = Failures(device, 2**18)
    peers = Peers(DeviceBatch(device, failures), 2, new_lock())
    dims = {"ads": 4, "users": 8}
    before = failures.arena.used_bytes
    many = {"ads": np.arange(900, dtype=np.uint64), "users": np.arange(2000, dtype=np.uint64)}
    with pytest.raises(BatchMemoryError, match=r"a batch of 2900 keys in 2 tables.*--gpu-batches"):
        peers.divide(many, dims, "cpu")
    assert failures.arena.used_bytes == before
    found = peers.divide({"ads": many["ads"]}, dims, "cpu")
    assert found["ads"].num_unique == 900 and failures.arena.used_bytes > before + 80 * 900
    # An idle plan gives its memory to one that has need of it.
    del found
    kept = failures.arena.used_bytes
    found = peers.divide({"users": many["users"][:1300]}, dims, "cpu")
    assert found["users"].num_unique == 1300
    assert failures.arena.used_bytes < kept + 80 * 1300


def test_sums_that_are_under_way_keep_their_memory_when_room_is_made_for_more() -> None:
    device = HostDevice()
    failures = Failures(device)
    peers = Peers(DeviceBatch(device, failures), 1, new_lock())
    keys = np.arange(50, dtype=np.uint64)
    found = peers.divide({"ads": keys}, {"ads": 4}, "cpu")["ads"]
    peers.make_room([found])
    grads = torch.arange(200, dtype=torch.float32).view(50, 4)
    peers.sum_gradients([found], [grads], [None])
    assert peers.judge([found], [None], 2.0**20, 2.0**100) == [(-1, 0.0)]
    larger = peers.divide({"ads": np.arange(5000, dtype=np.uint64)}, {"ads": 4}, "cpu")["ads"]
    peers.make_room([larger])  # as the stage that pins does meanwhile
    others = [failures.arena.take(4 * 200) for _ in range(3)]
    with device.order().verb():
        for part in others:
            device.fill(part.memory, 7)
    message = peers.send_sums([found], [None], np.array([[50]]), Wire.FLOAT32)
    device.work_off(device.num_queued)
    assert (
        message.view(torch.float32)
        .view(50, 4)
        .equal(grads[torch.from_numpy(np.argsort(keys)[found.unique_keys.astype(np.int64)])])
    )
