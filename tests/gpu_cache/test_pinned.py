"""Pinned memory is used again, and never while a kernel may read or write it, or somebody has it.

Above it: pytest. Below it: hps/gpu_cache/pinned.py over the stand-in device.
"""

import gc
from typing import Any

import pytest

import hps
from hps.gpu_cache.pinned import _MOST_IDLE, PinnedPiece, PinnedPool
from tests.gpu_cache.host_device import HostDevice


class Lab:
    def __init__(self) -> None:
        self.device = HostDevice()
        self.order = self.device.order()
        self.pool = PinnedPool(self.device, self.order)

    def queue_over(self, piece: PinnedPiece) -> None:
        """Something that a kernel may do with a piece."""
        with self.order.verb():
            self.device._put(lambda: None)
            piece.note_queued()

    def free_bytes(self) -> list[int]:
        return [one.num_bytes for one in self.pool._idle if one.is_free]


def test_a_piece_is_given_out_again_once_its_work_is_done() -> None:
    lab = Lab()
    piece = lab.pool.take(1000)
    address = piece.address
    lab.queue_over(piece)
    piece.note_point()
    del piece
    assert lab.device.num_done < lab.device.num_queued, "somebody has waited"
    other = lab.pool.take(1000)
    assert other.address != address
    lab.device.work_off(lab.device.num_queued)
    assert lab.pool.take(1000).address == address


def test_a_piece_is_in_use_as_long_as_an_array_of_it() -> None:
    lab = Lab()
    piece = lab.pool.take(1000)
    address, part = piece.address, piece.array()[10:20]
    assert part.ctypes.data == address + 10 and part.flags.writeable
    del piece
    gc.collect()
    other = lab.pool.take(1000)
    assert other.address != address
    del part
    assert lab.pool.take(1000).address == address


def test_work_that_no_event_is_behind_gets_one_when_the_piece_is_dropped() -> None:
    """As an interrupt leaves it that came between a launch and its event."""
    lab = Lab()
    piece = lab.pool.take(1000)
    address = piece.address
    lab.queue_over(piece)
    del piece
    assert lab.pool.take(1000).address != address
    lab.device.work_off(lab.device.num_queued)
    assert lab.pool.take(1000).address == address


def test_work_behind_an_earlier_point_has_a_point_of_its_own() -> None:
    lab = Lab()
    piece = lab.pool.take(1000)
    lab.queue_over(piece)
    first = piece.note_point()
    assert piece.note_point() is first
    lab.queue_over(piece)
    second = piece.note_point()
    lab.device.work_off(1)
    assert first.query() and not second.query()


def test_memory_of_a_piece_whose_end_was_interrupted_is_kept() -> None:
    lab = Lab()
    piece: Any = lab.pool.take(1000)
    address, piece._memory = piece.address, None  # as far as its __del__ came
    del piece
    assert [one.pinned.data_ptr() for one in lab.pool._in_use] == [address]


def test_the_smallest_memory_that_is_enough_is_taken_and_few_small_ones_are_kept() -> None:
    lab = Lab()
    sizes = [10_000 * (1 + i) for i in range(_MOST_IDLE + 4)]
    pieces = [lab.pool.take(size) for size in sizes]
    addresses = [piece.address for piece in pieces]
    del pieces
    assert len(lab.free_bytes()) == len(sizes)
    piece = lab.pool.take(sizes[3])
    assert piece.address == addresses[3]
    large = lab.pool.take(10**6)
    assert len(lab.free_bytes()) == _MOST_IDLE
    assert min(lab.free_bytes()) > sizes[2], "large memory was given up for small"
    del piece, large


def test_who_ends_the_pool_waits_for_its_work() -> None:
    lab = Lab()
    piece = lab.pool.take(1000)
    lab.queue_over(piece)
    del piece
    lab.pool = None  # type: ignore[assignment]
    gc.collect()
    assert lab.device.num_done == lab.device.num_queued


def test_a_host_without_so_much_memory_says_so() -> None:
    lab = Lab()
    lab.device.budget = 10**5
    with pytest.raises(hps.ConfigError, match="requested"):
        lab.pool.take(10**6)
    assert not lab.pool._in_use and len(lab.pool.take(10).array()) == 10
