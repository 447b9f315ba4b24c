"""A chunk of pinned memory is written again only once the copies from it have been done; scratch is
as large as it is said to be.

Above it: pytest. Below it: hps/gpu_cache/ring.py over the stand-in device, whose work is done late.
"""

import pytest

from hps.errors import ConfigError
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
        large = chunks.next(3 * BYTES)
    assert large[2] >= 3 * BYTES and large[0] not in seen


def test_scratch_for_which_there_was_no_memory_is_not_taken_for_there() -> None:
    device = HostDevice(budget=10_000)
    scratch = Scratch(device)
    with pytest.raises(ConfigError, match="10000 are free"):
        scratch.take(20_000)
    device.budget = None
    [offset] = scratch.take(20_000)
    assert offset + 20_000 <= scratch.piece.memory.numel()
