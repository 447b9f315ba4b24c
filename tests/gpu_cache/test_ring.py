"""A chunk of pinned memory is written again only once the copies from it have been done; scratch is
as large as it is said to be.

Above it: pytest. Below it: hps/gpu_cache/ring.py over the stand-in device, whose work is done late.
"""

import pytest

from hps.errors import BatchMemoryError
from hps.gpu_cache.arena import DeviceArena
from hps.gpu_cache.device_batch import DeviceBatch
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.ring import Chunks, Scratch
from tests.gpu_cache.host_device import HostDevice

BYTES = 2**18


def test_a_chunk_is_used_again_once_the_work_before_its_end_is_done_and_not_before() -> None:
    device = HostDevice()
    order = device.order()
    arena = DeviceArena(device, 2**24)
    chunks = Chunks(device, arena, order)
    seen = []
    for _ in range(3):
        with order.verb():
            seen.append(chunks.next(BYTES, True)[0])
            device.fill(arena.piece.memory, 0)  # work that uses the chunk
    assert len(set(seen)) == 3, "a chunk was given out while work on it was queued"
    device.work_off(device.num_queued)
    with order.verb():
        assert chunks.next(BYTES, True)[0] == seen[0]
        large = chunks.next(3 * BYTES, False)
    assert large[2] >= 3 * BYTES and large[0] not in seen


def test_what_kernels_are_given_has_room_on_the_device_however_large_it_is() -> None:
    device = HostDevice()
    arena = DeviceArena(device, 2**20)
    chunks = Chunks(device, arena, device.order())
    with device.order().verb():
        _, place, usable = chunks.next(2**16, True)
        assert usable >= 2**16
        other = arena.take(2**19)
        assert not place < other.address + 2**19 <= place + 2**16
        # Keys of the host, which go elsewhere, take no place there.
        assert chunks.next(2**18, False)[2] == 2**18 and arena.used_bytes < 2**19 + 2**18
        assert chunks.next(256, True)[2] <= chunks.num_bytes


def test_a_first_chunk_that_is_too_small_is_not_used() -> None:
    device = HostDevice()
    order = device.order()
    with order.verb():
        chunks = Chunks(device, DeviceArena(device, 2**20), order)
        assert chunks.next(3 * BYTES, False)[2] >= 3 * BYTES


def test_a_large_chunk_is_not_kept() -> None:
    device = HostDevice()
    order = device.order()
    with order.verb():
        chunks = Chunks(device, DeviceArena(device, 2**20), order)
        chunks.next(3 * BYTES, False)
    sizes = []
    for _ in range(4):
        device.work_off(device.num_queued)
        with order.verb():
            sizes.append(chunks.next(BYTES, False)[2])
    assert sizes == [BYTES] * 4


def test_pinned_memory_is_given_back_once_the_copies_from_it_have_been_done() -> None:
    """They were queued by the driver's own functions, of which who gives pinned memory out knows
    nothing."""
    device = HostDevice()
    order = device.order()
    with order.verb():
        arena = DeviceArena(device, 2**20)
        chunks = Chunks(device, arena, order)
    with order.verb():
        chunks.next(BYTES, True)
        device.fill(arena.piece.memory, 0)  # work that uses the chunk
    del chunks
    assert device.num_done == device.num_queued > 0
    DeviceBatch(device, Failures(device))  # dropped as it is: nothing has been copied


def test_scratch_for_which_there_was_no_memory_is_not_taken_for_there() -> None:
    arena = DeviceArena(HostDevice(), 100_000)
    scratch = Scratch(arena)
    before = scratch.num_bytes
    taken = arena.take(90_000)
    with pytest.raises(BatchMemoryError, match="90112 are in use"):
        scratch.take(20_000)
    assert scratch.num_bytes == before
    del taken
    [place] = scratch.take(20_000)
    assert place + 20_000 <= arena.piece.memory.data_ptr() + 100_000
    assert len(scratch.tensor(place, 20_000)) == 20_000 <= scratch.num_bytes
