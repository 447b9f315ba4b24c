"""A chunk of pinned memory is written again only once the copies from it have been done; scratch is
as large as it is said to be.

Above it: pytest. Below it: hps/gpu_cache/ring.py over the stand-in device, whose work is done late.
"""

import pytest

from hps.errors import ConfigError
from hps.gpu_cache.device_batch import DeviceBatch
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.ring import Chunks, Scratch
from tests.gpu_cache.host_device import HostDevice

BYTES = 2**18


def test_a_chunk_is_used_again_once_the_work_before_its_end_is_done_and_not_before() -> None:
    device = HostDevice()
    order = device.order()
    with order.verb():
        chunks = Chunks(device, order)
    seen = []
    for _ in range(3):
        with order.verb():
            seen.append(chunks.next(BYTES)[0])
            device.fill(chunks.piece.memory, 0)  # work that uses the chunk
    assert len(set(seen)) == 3, "a chunk was given out while work on it was queued"
    device.work_off(device.num_queued)
    with order.verb():
        assert chunks.next(BYTES)[0] == seen[0]
        assert chunks.next(BYTES)[0] == seen[1], "a chunk was given out while it was in use"
        large = chunks.next(3 * BYTES)
    assert large[2] >= 3 * BYTES and large[0] not in seen


def test_a_first_chunk_that_is_too_small_is_not_used() -> None:
    device = HostDevice()
    order = device.order()
    with order.verb():
        chunks = Chunks(device, order)
        assert chunks.next(3 * BYTES)[2] >= 3 * BYTES


def test_a_large_chunk_is_not_kept() -> None:
    device = HostDevice()
    order = device.order()
    with order.verb():
        chunks = Chunks(device, order)
        chunks.next(3 * BYTES)
    sizes = []
    for _ in range(4):
        device.work_off(device.num_queued)
        with order.verb():
            sizes.append(chunks.next(BYTES)[2])
    assert sizes == [BYTES] * 4


def test_pinned_memory_is_given_back_once_the_copies_from_it_have_been_done() -> None:
    """They were queued by the driver's own functions, of which who gives pinned memory out knows
    nothing."""
    device = HostDevice()
    order = device.order()
    with order.verb():
        chunks = Chunks(device, order)
    with order.verb():
        chunks.next(BYTES)
        device.fill(chunks.piece.memory, 0)  # work that uses the chunk
    del chunks
    assert device.num_done == device.num_queued > 0
    DeviceBatch(device, Failures(device))  # dropped as it is: nothing has been copied


def test_scratch_for_which_there_was_no_memory_is_not_taken_for_there() -> None:
    device = HostDevice(budget=10_000)
    scratch = Scratch(device)
    with pytest.raises(ConfigError, match="10000 are free"):
        scratch.take(20_000)
    device.budget = None
    for num_bytes in (20_000, scratch.piece.memory.numel() + 1, 30_000):
        [offset] = scratch.take(num_bytes)
        assert offset + num_bytes <= scratch.piece.memory.numel()
    room = scratch.piece.memory.numel()
    [offset] = scratch.take(room + 1)
    assert offset + room + 1 <= scratch.piece.memory.numel()
