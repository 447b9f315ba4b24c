"""While a batch on its way into its slots waits for a device, others go on, and see what is right.

Above it: pytest. Below it: step_counts.py's server over the stand-in device, whose waits a test may
fill with what other threads do.
"""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.tiers.top_tier import TableStack
from tests.gpu_cache.step_counts import CountedSteps, Sums, read_record

LOOK_UP, ANSWER = "DeviceCache.end_find", "DeviceCache.end_reserve"
SECONDS = 20.0


class Full:
    """A table whose slots all hold dirty rows, and the keys that it was given, oldest first."""

    def __init__(self, steps: CountedSteps) -> None:
        self.steps, self.server = steps, steps.server
        self.stack: TableStack = steps.server.parts.tables.stacks[steps.names[0]]
        self.lock = steps.server.parts.tables.lock
        self.known = steps.overfill()
        self.at = steps.device.at

    def pin(self, keys: Any) -> Any:
        with self.steps.device.counting("copy"):
            return self.server.pin(self.stack.name, keys)

    def holds_all(self) -> bool:
        with self.lock:
            return bool(self.stack.contains(self.known).all())


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Full]:
    steps = CountedSteps(tmp_path / "store", 1)
    with steps.server:
        yield Full(steps)


def in_thread(work: Callable[[], object], patience: float) -> tuple[threading.Thread, list[object]]:
    """Work that another thread has begun, and has done unless it takes longer; its results."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(patience)
    return thread, results


@pytest.mark.parametrize("place", [LOOK_UP, ANSWER])
def test_a_pinned_batch_is_pooled_and_released_while_another_is_waited_for(
    full: Full, place: str
) -> None:
    steps = full.steps
    held = full.pin(full.known[-20:])
    done: list[object] = []

    def train() -> None:
        held.gather()
        held.release()

    def go_on() -> None:
        _, results = in_thread(train, SECONDS)
        done.extend(results)

    seen = full.at(place, go_on)
    with full.pin(steps.new_keys()):
        assert seen and done == [None], "the training thread waited for another thread's device"
    assert full.stack.cache.pins == 0


def test_rows_on_their_way_down_are_found_while_their_reserve_is_waited_for(full: Full) -> None:
    asked: list[Any] = []
    # Who asks may have to wait until the victims are here, for which this thread has to go on.
    seen = full.at(ANSWER, lambda: asked.append(in_thread(full.holds_all, 0.3)))
    with full.pin(full.steps.new_keys()):
        [(thread, results)] = asked
        thread.join(SECONDS)
        assert seen and results == [True], "a stored row was not found"
    assert full.holds_all()


def test_slots_that_move_after_the_look_up_are_looked_up_again(full: Full) -> None:
    cache, here = full.stack.cache, full.known[-30:]

    def take_back() -> None:
        """A reserve that is taken back: its victims return to the slots they had."""
        with full.lock:
            other = cache.make_plan(here, None)
            cache.find(other, 0, -1)
            assert cache.reserve(other)
            cache.abandon(other)

    seen = full.at(LOOK_UP, take_back)
    launches = full.steps.device.kernels["FindSlot"]
    keys = full.steps.new_keys()
    with full.pin(keys) as rows:
        assert seen and full.steps.device.kernels["FindSlot"] == launches + 3
        assert np.array_equal(np.sort(rows.unique_keys()), np.unique(keys))
    assert full.holds_all()


def test_what_was_found_is_not_believed_once_a_reserve_is_queued(full: Full) -> None:
    """Its rows may be among those that leave, whatever the answer will be."""
    cache, stale = full.stack.cache, []
    other = cache.make_plan(full.known[-20:], None)
    cache.find(other, 0, -1)
    assert cache.is_current(other)
    full.at(ANSWER, lambda: stale.append(not cache.is_current(other)))
    with full.pin(full.steps.new_keys()):
        assert stale == [True]


def test_rows_that_leave_after_a_look_up_ahead_are_brought_again(full: Full) -> None:
    """A look-up of all tables comes before their turns: other batches may come between."""
    name, queued, known = full.stack.name, full.server.queued, full.known[-40:]
    expected = full.server.pull(name, known).copy()
    keys = np.append(known, full.steps.new_keys()[:1])
    left = []

    def go_on() -> None:
        for _ in range(12):
            full.steps.step(full.steps.new_keys())
        left.append((full.stack.cache.contains(known) == 0).any())

    seen = full.at(LOOK_UP, go_on)
    with full.steps.device.counting("copy"):
        pinned = queued.pinning({name: keys})
    assert seen and left == [True], "no row has left"
    with pinned[name] as rows:
        assert np.array_equal(rows.gather()[:-1], expected)
    assert full.holds_all()


def test_rows_that_are_all_here_are_pinned_as_soon_as_that_is_known(full: Full) -> None:
    name, queued, known = full.stack.name, full.server.queued, full.known[-40:]
    expected = full.server.pull(name, known).copy()
    pinned = queued.pinning({name: known})
    for _ in range(12):
        full.steps.step(full.steps.new_keys())
    with pinned[name] as rows:
        assert np.array_equal(rows.gather(), expected)
        assert full.stack.cache.pins == len(known)
    assert full.stack.cache.pins == 0


def test_a_plan_that_is_pinned_twice_takes_its_slots_once(full: Full) -> None:
    cache, stack, keys = full.stack.cache, full.stack, full.steps.new_keys()
    with full.lock:
        plan = stack.plan_of(keys)
    slots, evictions = [], []
    for _ in range(2):
        stack.pin(plan)
        assert cache.pins == len(np.unique(keys)) == plan.num_unique
        slots.append(plan.slots)
        evictions.append(cache.stats()["evictions"])
        with full.lock:
            stack.unpin(plan)
    assert np.array_equal(*slots) and evictions[0] == evictions[1]
    assert full.holds_all()


def test_a_batch_over_many_tables_waits_as_often_as_one_over_one_where_all_rows_are_here() -> None:
    waits = {
        tables: Sums.of(cases["all hits"]).counts["waits"]
        for tables, cases in read_record().items()
    }
    assert set(waits.values()) == {2}, waits


@pytest.mark.parametrize("place", [LOOK_UP, ANSWER])
def test_a_wait_that_is_interrupted_leaves_no_pin_and_every_row(full: Full, place: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    before = full.stack.cache.num_dirty
    full.at(place, interrupt)
    keys = full.steps.new_keys()
    with pytest.raises(KeyboardInterrupt):
        full.pin(keys)
    cache = full.stack.cache
    assert (cache.pins, cache.num_dirty, full.stack.moving) == (0, before, None)
    assert full.holds_all()
    full.steps.step(keys)
    assert cache.pins == 0 and full.holds_all()


def test_a_refusal_that_is_waited_for_takes_nothing(full: Full) -> None:
    cache = full.stack.cache
    before = cache.num_dirty
    keys = np.arange(10**6, 10**6 + cache.capacity_rows + 1, dtype=np.uint64)
    seen = full.at(ANSWER, lambda: in_thread(full.holds_all, 0.3))
    with pytest.raises(hps.CapacityError, match="cannot be pinned at once"):
        full.pin(keys)
    assert seen and (cache.pins, cache.num_dirty, full.stack.moving) == (0, before, None)
    assert full.holds_all()


def test_the_256th_pin_of_a_row_is_refused_although_nothing_is_missing(full: Full) -> None:
    """The host answers by itself as long as no row can have too many."""
    cache, key = full.stack.cache, full.known[-1:]
    seen = full.at(ANSWER, lambda: None)
    held = [full.pin(key) for _ in range(255)]
    assert not seen
    with pytest.raises(hps.CapacityError, match="pinned 255 times already"):
        full.pin(key)
    assert seen and cache.pins == 255
    for rows in held:
        rows.release()
    assert cache.pins == 0
    seen.clear()
    held = [full.pin(key) for _ in range(255)]
    assert not seen, "plans that pin nothing are still counted"


def test_pins_that_come_with_a_look_up_of_all_tables_count_towards_the_255(full: Full) -> None:
    name, queued, key = full.stack.name, full.server.queued, full.known[-1:]
    held = [queued.pinning({name: key})[name] for _ in range(255)]
    assert full.stack.cache.pins == 255
    with pytest.raises(hps.CapacityError, match="pinned 255 times already"):
        queued.pinning({name: key})
    queued.release(held)
    assert full.stack.cache.pins == 0
