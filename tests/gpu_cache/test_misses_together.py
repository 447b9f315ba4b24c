"""Missing rows of several tables of a device are brought together: all of a batch's or none.

Above it: pytest. Below it: step_counts.py's server over the stand-in device, two tables of it; host
memory that kernels write to.
"""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.gpu_cache.device_cache import DeviceCache
from hps.gpu_cache.failures import Failures
from tests.gpu_cache.cache_pair import cache_options, capacity_of
from tests.gpu_cache.host_device import HostDevice
from tests.gpu_cache.step_counts import CountedSteps, Sums, read_record
from tests.gpu_cache.test_waits import SECONDS, in_thread

LOOK_UP, ANSWER = "DeviceCache.end_find", "DeviceBatch.end_reserve"


class Two:
    """Two tables whose slots all hold dirty rows."""

    def __init__(self, path: Path) -> None:
        self.steps = CountedSteps(path, 2)
        self.server = self.steps.server
        self.stacks = list(self.server.parts.tables.stacks.values())
        self.lock = self.server.parts.tables.lock
        self.known = self.steps.overfill()
        self.at = self.steps.device.at

    def pin(self, *keys: Any) -> dict[str, Any]:
        """Keys of each table, in the contrary of the server's order."""
        of_tables = dict(reversed(list(zip(self.steps.names, keys, strict=True))))
        queued = self.server.queued
        assert queued is not None
        with self.steps.device.counting("copy"):
            return dict(queued.pinning(of_tables))

    def state(self) -> list[Any]:
        """Pins, dirty rows and rows on their way of each table, and which keys are stored."""
        with self.lock:
            return [
                (one.cache.pins, one.cache.num_dirty, one.moving, one.contains(self.known).tolist())
                for one in self.stacks
            ]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path / "store")
    with made.server:
        yield made


def test_the_turns_of_all_tables_are_held_while_their_answer_is_waited_for(two: Two) -> None:
    held = []
    seen = two.at(ANSWER, lambda: held.append([one.turn.is_mine for one in two.stacks]))
    rows = two.pin(two.steps.new_keys(), two.steps.new_keys())
    assert len(seen) == 1 and held == [[True, True]]
    assert not any(one.turn.is_mine for one in two.stacks)
    for one in rows.values():
        one.release()


def test_turns_are_taken_in_the_order_of_the_server(two: Two) -> None:
    """Else two who take several could wait for each other."""
    first, second = two.stacks
    keys = two.steps.new_keys(), two.steps.new_keys()
    with first.turn:
        thread, results = in_thread(lambda: two.pin(*keys), 0.0)
        while first.turn.num_asking < 2:
            thread.join(0.01)
        assert second.turn.num_asking == 0, "a turn is held by who waits for an earlier one"
    thread.join(SECONDS)
    [rows] = results
    for one in rows.values():
        one.release()


def test_rows_on_their_way_are_not_pinned_by_the_look_up_of_another_batch(two: Two) -> None:
    keys, other = two.steps.new_keys(), []
    at_once = []

    def pin_too() -> None:
        other.append(in_thread(lambda: two.pin(keys, keys), 0.3))
        at_once.append(list(other[0][1]))

    seen = two.at(ANSWER, pin_too)
    mine = two.pin(keys, keys)
    assert seen and at_once == [[]], "rows that have not arrived were pinned"
    thread, results = other[0]
    thread.join(SECONDS)
    [rows] = results
    for name in two.steps.names:
        assert np.array_equal(mine[name].gather(), rows[name].gather())
    for one in (*mine.values(), *rows.values()):
        one.release()
    assert [one.cache.pins for one in two.stacks] == [0, 0]


def test_one_table_that_is_refused_takes_back_what_the_others_were_given(two: Two) -> None:
    before = two.state()
    assert all(all(stored) for *_, stored in before)
    too_many = np.arange(10**6, 10**6 + two.stacks[1].cache.capacity_rows + 1, dtype=np.uint64)
    with pytest.raises(hps.CapacityError, match=r"'table1'.*cannot be pinned at once"):
        two.pin(two.steps.new_keys(), too_many)
    assert two.state() == before
    for one in two.pin(two.steps.new_keys(), two.steps.new_keys()).values():
        one.release()


def test_a_look_up_that_is_out_of_date_in_one_table_is_done_again_in_that_one(two: Two) -> None:
    other, here = two.stacks[1].cache, two.known[-30:]

    def take_back() -> None:
        with two.lock:
            plan = other.make_plan(here, None)
            other.find(plan, 0, -1)
            assert other.reserve(plan)
            other.abandon(plan)

    keys = two.steps.new_keys(), two.steps.new_keys()
    seen = two.at(LOOK_UP, take_back)
    two.steps.device.launches.clear()
    rows = two.pin(*keys)
    finds = [count for name, count in two.steps.device.launches if name == "FindSlot"]
    assert seen and finds == [2 * len(keys[0]), len(here), len(np.unique(keys[1]))], finds
    for name, own in zip(two.steps.names, keys, strict=True):
        assert np.array_equal(np.sort(rows[name].unique_keys()), np.unique(own))
        rows[name].release()
    assert all(all(stored) for *_, stored in two.state())


@pytest.mark.parametrize("place", [LOOK_UP, ANSWER])
def test_an_interrupt_leaves_no_pin_in_any_table(two: Two, place: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    before = two.state()
    two.at(place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        two.pin(two.steps.new_keys(), two.steps.new_keys())
    assert two.state() == before
    assert not any(one.turn.is_mine for one in two.stacks)


def test_a_tier_below_that_fails_leaves_no_pin_in_any_table(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise hps.StoreError("the disk is gone")

    before = two.state()
    with monkeypatch.context() as patched:
        patched.setattr(two.stacks[1].below, "fetch", fail)
        with pytest.raises(hps.StoreError, match="the disk is gone"):
            two.pin(two.steps.new_keys(), two.steps.new_keys())
    assert two.state() == before


def test_tables_that_lack_nothing_are_pinned_by_their_look_up(two: Two) -> None:
    device, known = two.steps.device, two.known[-30:]
    device.launches.clear()
    rows = two.pin(known, two.steps.new_keys())
    kernels = dict(device.launches)
    assert kernels["Pin"] == len(np.unique(two.steps.new_keys())), "a table was pinned twice"
    assert [one.cache.pins for one in two.stacks] == [len(known), len(np.unique(known)) + 18]
    for one in rows.values():
        one.release()
    assert [one.cache.pins for one in two.stacks] == [0, 0]


def test_a_look_up_that_has_pinned_is_taken_back_before_it_was_waited_for(two: Two) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    two.at(LOOK_UP, interrupt)
    with pytest.raises(KeyboardInterrupt):
        two.pin(two.known[-30:], two.known[-30:])
    assert [one.cache.pins for one in two.stacks] == [0, 0]


@pytest.mark.parametrize("tables", [1, 10, 26])
def test_launches_and_waits_of_a_step_do_not_grow_with_its_tables(tables: int) -> None:
    record = read_record()
    for case, most, waits in (
        ("all hits", 19, 2),
        ("misses, full", 24, 3),
        ("misses, filling", 28, 3),
    ):
        counts = Sums.of(record[str(tables)][case]).counts
        assert counts["launches"] <= most and counts["waits"] <= waits, (case, counts)


class Lacking:
    """A cache on a device, and a plan of keys of which it has no row."""

    def __init__(self) -> None:
        self.device, optimizer = HostDevice(), hps.SGD()
        options = cache_options(optimizer, 8, capacity_of(optimizer, 8, 2))
        self.cache: Any = DeviceCache(self.device, Failures(self.device), options)
        self.keys = np.arange(60, dtype=np.uint64)
        self.plan = self.cache.make_plan(self.keys, None)
        self.cache.find(self.plan, 0, -1)
        assert self.plan.num_missing == 60
        assert self.cache.together.begin_reserve([self.plan])

    def fill(self, rows: Any) -> None:
        self.cache.fill(self.plan, rows, np.ones(60, np.uint8), 0.1, False)

    def images(self) -> Any:
        """Of the missing keys, each weight its key."""
        missing = self.cache.missing_keys(self.plan)
        images = np.zeros((60, self.cache.row_bytes), np.uint8)
        images.view(np.uint64)[:, 0] = missing
        images.view(np.float32)[:, 4:] = missing[:, None]
        return images

    def write_to_free_memory(self) -> None:
        """As other batches do with all pinned memory that is given out again."""
        pool = self.cache.together._reserves._pool
        for _ in range(20):
            pool.take(1).array()[:] = 0x33
            for memory in pool._idle:
                if memory.is_free:
                    memory.pinned.fill_(0x33)


def test_memory_of_the_host_that_kernels_write_to_is_given_to_nobody_before_they_have() -> None:
    lacking = Lacking()
    pool = lacking.cache.together._reserves._pool
    del lacking.plan
    gc.collect()
    [memory] = pool._idle
    assert not memory.is_free, "a kernel writes to what somebody else has"
    lacking.device.work_off(lacking.device.num_queued)
    assert memory.is_free


@pytest.mark.parametrize("place", ["its own memory", "memory of the caller"])
def test_missing_rows_are_read_from_pinned_memory_without_a_copy(place: str) -> None:
    lacking = Lacking()
    device, cache, plan = lacking.device, lacking.cache, lacking.plan
    images = lacking.images()
    room = cache.missing_rows(plan)
    assert room.shape == images.shape
    rows = images
    if place == "its own memory":
        rows = room
        rows[:] = images
    copies, copying = [], device.copy

    def copy(target: Any, source: Any) -> None:
        copies.append(len(source))
        copying(target, source)

    device.copy, device.budget = copy, 0  # type: ignore[method-assign]
    lacking.fill(rows)
    device.copy, device.budget = copying, None  # type: ignore[method-assign]
    assert sum(copies) < rows.nbytes, "a copy of rows was queued"
    if place == "memory of the caller":
        rows[:] = 0xEE  # it may be
    del room, rows, images
    # The batch ends while the kernel has still to read.
    cache.release(plan)
    del lacking.plan, plan
    gc.collect()
    assert device.num_done < device.num_queued
    lacking.write_to_free_memory()
    plan = cache.make_plan(lacking.keys, None)
    cache.find(plan, 0, -1)
    out = np.zeros((60, 8), np.float32)
    cache.gather(plan, out)
    assert np.array_equal(out, np.repeat(lacking.keys.astype(np.float32)[:, None], 8, axis=1))


def test_the_tier_below_reads_rows_to_where_the_device_reads_them(two: Two) -> None:
    steps, places = two.steps, []
    keys = steps.new_keys()
    stack = two.stacks[0]
    fetch = stack.below.fetch
    room_for = stack.room_for

    def fetched(keys: Any, rows: Any, found: Any) -> None:
        places.append(("rows", rows.ctypes.data))
        fetch(keys, rows, found)

    def asked(plan: Any) -> Any:
        places.append(("room", plan.incoming.ctypes.data))
        return room_for(plan)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stack.below, "fetch", fetched)
        patched.setattr(stack, "room_for", asked)
        one = two.pin(keys, keys)
        rows = two.server.pin(steps.names[0], steps.new_keys() + np.uint64(10**6))
    assert [name for name, _ in places] == ["room", "rows", "room", "rows"]
    assert places[0][1] == places[1][1] and places[2][1] == places[3][1]
    for held in (*one.values(), rows):
        held.release()
