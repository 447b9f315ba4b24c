"""Pieces: calls of more keys than can be worked on at once: window after window of a plan, where
its rows do not fit a cache; half after half of the keys, where a plan does not fit a device.

Above it: top_tier.py, whose verbs go on here. Below it: cached_tier.py; `hps._C.ShardPlan`, which
sums gradients as a cache does, with the same bits.
"""

from collections.abc import Callable
from typing import Protocol

from hps import _C
from hps.common.arrays import on_host, to_host
from hps.common.locks import assert_held
from hps.common.row_layout import Floats, Keys
from hps.contracts.row_cache import BatchPlan
from hps.errors import BatchMemoryError, CapacityError
from hps.tiers.cached_tier import MAX_SCRATCH_BYTES, CachedTier
from hps.tiers.refusals import no_room, non_finite, pinned_too_often

DONE, CHECKED = "were done", "hold; no row has changed"


class Pieces:
    """Of the calls of one tier.

    Args:
        tier: whose rows they are.
        kind: which tier that is, in words of `stats`.
    """

    def __init__(self, tier: CachedTier, kind: str) -> None:
        self._tier = tier
        self.kind = kind
        # Asks who pins ahead to give slots back; True if some came. Not under the lock or a turn.
        self.make_room: Callable[[], bool] = lambda: False

    @property
    def largest(self) -> int:
        """Keys that a window of a plan may have."""
        tier = self._tier
        return min(tier.cache.capacity_rows, max(1, MAX_SCRATCH_BYTES // tier.layout.row_bytes))

    def work(self, plan: BatchPlan, visit: Callable[[], None], first: int, count: int) -> bool:
        """visit() on one window, pinned for as long; False if it was refused."""
        with self._tier.turn:
            return self._tier.bring(plan, first, count, visit)

    def has_room(self, plan: BatchPlan, first: int, count: int) -> bool:
        """True if a window could be pinned now; no row moves."""
        tier = self._tier
        with tier.turn, tier.lock, tier.counters:
            try:
                tier.cache.find(plan, first, count)
                return tier.cache.reserve(plan)
            finally:
                tier.cache.abandon(plan)

    def in_windows(
        self, plan: BatchPlan, do: Callable[[int, int], bool], done: str, smallest: int = 1
    ) -> None:
        """Calls do(first, count) on window after window of the plan, until it has done all keys.

        A refused piece is halved, an accepted one lets the next be twice as long. When `smallest`
        keys are refused it asks for room (if they are but one), then raises CapacityError.
        A note on whatever is raised says how many keys were (or could be) `done`.
        """
        lock = self._tier.lock
        with lock:
            num_unique = plan.num_unique
        largest = self.largest
        first, count = 0, largest
        try:
            while first < num_unique:
                count = min(count, num_unique - first)
                if do(first, count):
                    first += count
                    count = min(2 * count, largest)
                elif count > smallest:
                    count = (count + 1) // 2
                elif smallest > 1 or not self.make_room():
                    with lock:
                        raise self.capacity_error(plan.unique_keys[first : first + count])
        except BaseException as error:
            if first:
                error.add_note(f"the first {first} of {num_unique} keys of this call {done}")
            raise

    def capacity_error(self, keys: Keys) -> CapacityError:
        """For distinct keys that were refused. Under the lock."""
        tier = self._tier
        assert_held(tier.lock)
        cache, keys = tier.cache, on_host(keys)
        plan = cache.make_plan(keys[cache.contains(keys) != 0], tier.take_plan())
        cache.find(plan, 0, -1)
        is_room_missing = cache.reserve(plan)  # all are here, so that it takes no slot
        cache.abandon(plan)
        tier.keep_plan(plan)
        if not is_room_missing:
            return pinned_too_often(tier.name, len(keys))
        return no_room(tier.name, len(keys), self.kind, cache)


class Sparing(Protocol):
    """A table, as far as `in_parts` asks."""

    def spare_plan(self) -> None:
        """The plan of the last pull or push takes no memory of a device."""


class Pushed(Sparing, Protocol):
    """A table, as far as `push_by_key` asks."""

    name: str

    def try_push(self, keys: Keys, sums: Floats) -> None:
        """NonFiniteError if a step by these sums [N, D] of distinct keys [N] would be refused; no
        row changes."""

    def push(self, keys: Keys, grads: Floats) -> None:
        """Sums grads [L, D] a key, then one optimizer step a key. No row changes if one is bad."""


def in_parts(table: Sparing, count: int, do: Callable[[slice], object]) -> None:
    """Calls do() on parts of so many keys, half after half where a device has no memory for more.

    Raises:
        BatchMemoryError: it has none for one.
    """
    _in_halves(table, 0, count, do)


def _in_halves(table: Sparing, start: int, stop: int, do: Callable[[slice], object]) -> None:
    table.spare_plan()  # whose memory may be all that there is, and more than a part needs
    try:
        do(slice(start, stop))
        return
    except BatchMemoryError:
        if stop - start < 2:
            raise
    middle = (start + stop) // 2
    _in_halves(table, start, middle, do)
    _in_halves(table, middle, stop, do)


def push_by_key(table: Pushed, keys: Keys, grads: Floats) -> None:
    """As `push`, of keys [L] for which a device has no room at once: their gradients [L, D] are
    summed on the host, and the sums pushed part by part, after all parts have been tried: no row
    changes if one is bad."""
    plan = _C.ShardPlan([0])
    plan.build(on_host(keys))
    culprit = plan.sum_gradients(to_host(grads))
    unique = plan.unique_keys.copy()
    if culprit >= 0:
        raise non_finite(table.name, int(unique[culprit]))
    sums = plan.sums(grads.shape[1])
    parts: list[slice] = []

    def try_part(part: slice) -> None:
        table.try_push(unique[part], sums[part])
        parts.append(part)

    in_parts(table, len(unique), try_part)
    for part in parts:
        table.push(unique[part], sums[part])
