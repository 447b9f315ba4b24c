"""CachedTier: one table's cache over the tiers below it, and how rows move between them: here a
victim is written down, and a missing row comes up.

Above it: top_tier.py (the verbs of the server) and dram_cache/tier.py (a dram_cache below a gpu
cache). Below it: a RowCache, and a TableTier that is the ssd_store or again a CachedTier.

A batch's rows come in three phases, and only in the first and the last, where memory moves, is the
server's lock held; the second, which reads and writes the tier below, holds the turn alone:

    1. find, reserve: slots are taken and pinned, the dirty rows they held lie in the write_back
       buffer (the plan's victims)
    2. the write_back buffer goes down, the missing rows come up
    3. fill: the rows are published

A cache on a device is asked for the first phase in two parts: what is queued, under the lock, and
what the host then waits for, without it. Slots are taken as soon as that is queued.

The rules, by their names in the design:

    I1. One thread reserves at a time, in order of asking: it has the tier's turn from phase 1 to
        phase 3, and while there are pins that no batch in flight holds.
    I2. A pinned slot is no victim; what a batch pinned is given back, whatever is raised.
    I3. A victim has gone down before its key is fetched again: a fetch needs the turn, and the
        thread that has it writes its victims down first. Questions that need no turn (contains)
        look into the write_back buffer.
    I4. A row that is on its way (PENDING) is read by nobody: who finds one waits for the turn,
        which comes once it is published, and looks again.

An interrupt (Ctrl-C) may come between any two steps in Python. So turns and locks are native
objects in `with` statements of the functions that use them, never inside a context manager written
in Python, which an interrupt could leave half entered or half left.

Order of locks: the server's updates, turns from the top tier down, the server's lock. Who holds the
lock asks for nothing more.
"""

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from hps import _C
from hps.common.locks import OwnedLock, assert_held, assert_turn
from hps.common.row_layout import Images, Keys
from hps.contracts.row_cache import PENDING, AnyRowCache, BatchPlan, CountingCache, QueuedCache
from hps.tiers.counters import CacheCounters
from hps.types import Pins

if TYPE_CHECKING:
    from hps.config import TableConfig
    from hps.contracts.tiers import Flags, TableTier

MAX_SCRATCH_BYTES = 2**26
MAX_IDLE_PLANS = 16

# From a plan's missing keys to their rows and which of them were found.
RowSource = Callable[[Keys], tuple[Images, Images]]


class CachedTier:
    """One table's cache and the tier below it.

    Args:
        config: the table.
        cache: its cache.
        below: what it fetches from and writes back to.
        lock: the server's, held while memory moves; re-entrant.
        rates: learning rate of each table; shared with the server, which may change it.
    """

    def __init__(
        self,
        config: "TableConfig",
        cache: AnyRowCache,
        below: "TableTier",
        lock: OwnedLock,
        rates: dict[str, float],
    ) -> None:
        self.name = config.name
        self.config = config
        self.layout = config.layout
        self.cache = cache  # guarded by the lock
        self.below = below
        self.lock = lock
        self.rates = rates
        # The same cache, if it is on a device, for which the host must wait.
        self._queued = cache if isinstance(cache, QueuedCache) else None
        self.turn = _C.Turn()
        self.counters = CacheCounters()
        self.idle_plans: list[BatchPlan] = []  # guarded by the lock
        self.plans_in_flight: set[BatchPlan] = set()  # of rows that hold pins by a plan of theirs
        self._moving: BatchPlan | None = None
        # The tiers with rows on their way, and perhaps others, of those that share the set, a
        # server's. Set before the table is used; guarded by the lock.
        self.movers: set[CachedTier] = set()
        # What holds rows here for later, until somebody else needs them. Guarded by the lock.
        self.ahead: weakref.WeakSet[Pins] = weakref.WeakSet()
        # Guarded by the turn.
        self._scratch: Images = np.empty(0, np.uint8)

    @property
    def moving(self) -> BatchPlan | None:
        """The plan between phases 1 and 3: its victims are the write_back buffer, its missing keys
        the rows on their way. Under the lock."""
        return self._moving

    @moving.setter
    def moving(self, plan: BatchPlan | None) -> None:
        # An interrupt may leave a tier among the movers that is none, never the contrary.
        if plan is not None:
            self.movers.add(self)
        self._moving = plan
        if plan is None:
            self.movers.discard(self)

    # The phases.

    def bring(
        self,
        plan: BatchPlan,
        first: int,
        count: int,
        visit: Callable[[], None] | None = None,
        source: RowSource | None = None,
    ) -> bool:
        """Pins unique keys [first, first + count) with their rows in place; False if refused.

        Within the turn (I1), and without the lock. If anything is raised, here or in `visit`, the
        slots are given back with the rows they held and no pin stays (I2); victims that were
        written below by then are in both tiers.

        Args:
            visit: called under the lock once the rows are in place; then the pins are dropped.
            source: gives the missing rows; None fetches them from below, and counts.
        """
        assert_turn(self.turn)
        cache = self.cache
        try:
            reserve = self._reserve if self._queued is None else self._reserve_queued
            reserved = reserve(plan, first, count)
            if reserved is None:
                return False
            num_missing, victims, missing = reserved
            rows, found = self.exchange_rows(victims, missing, source, self.room_for(plan))
            with self.lock, self.counters:
                cache.fill(plan, rows, found, self.rates[self.name], False)
                self.moving = None
                if source is None:
                    window = plan.num_unique - first if count < 0 else count
                    self.counters.hits += window - num_missing
                    self.counters.misses += num_missing
                if visit is not None:
                    visit()
                    cache.release(plan)
        except BaseException:
            with self.lock:
                cache.abandon(plan)
                self.moving = None
            raise
        return True

    def exchange_rows(
        self,
        victims: Images,
        missing: Keys,
        source: RowSource | None = None,
        room: Images | None = None,
    ) -> tuple[Images, Images]:
        """Phase 2: victims go down, then missing rows come up, and which of them were found. Within
        the turn; the rows' memory is the turn's, if there is no `room` for them."""
        assert_turn(self.turn)
        if len(victims):
            self.below.append(victims)
        rows, found = self.fetch_below(missing, room) if source is None else source(missing)
        self._look_at(rows, found)
        return rows, found

    def room_for(self, plan: BatchPlan) -> Images | None:
        """Where a cache on a device wants the rows that a plan, whose slots are reserved, lacks."""
        return None if self._queued is None else self._queued.missing_rows(plan)

    def _find(self, plan: BatchPlan, first: int, count: int) -> None:
        """Looks a window up, unless a pull, a push or another pin has found all of it."""
        if first or count >= 0 or not self.cache.is_current(plan) or plan.num_missing:
            self.cache.find(plan, first, count)

    def _reserve(self, plan: BatchPlan, first: int, count: int) -> tuple[int, Images, Keys] | None:
        """Phase 1: how many keys are missing, victims, missing keys; None if refused. Within the
        turn, without the lock."""
        with self.lock, self.counters:
            self._find(plan, first, count)
            self.moving = plan
            if not self.cache.reserve(plan):
                self.moving = None
                return None
            return plan.num_missing, self.cache.victims(plan), self.cache.missing_keys(plan)

    def _reserve_queued(
        self, plan: BatchPlan, first: int, count: int
    ) -> tuple[int, Images, Keys] | None:
        """The same of a cache on a device: all that the host waits for it waits for without the
        lock. Slots are taken once the reserve is queued, and the rows on their way from then on."""
        cache, queued = self.cache, self._queued
        assert queued is not None
        with self.lock, self.counters:
            if first or count >= 0 or not queued.is_looked_up(plan):
                self._find(plan, first, count)
        while True:
            queued.end_find(plan)
            with self.lock, self.counters:
                self.moving = plan
                if queued.begin_reserve(plan):
                    break
                self.moving = None
                cache.find(plan, first, count)  # slots have moved: a reserve was taken back
        if queued.end_reserve(plan):
            return plan.num_missing, cache.victims(plan), cache.missing_keys(plan)
        with self.lock:
            self.moving = None
        return None

    def end_look_up(self, plan: BatchPlan) -> None:
        """Waits for a look-up of a cache on a device. Without the lock."""
        assert self._queued is not None, "a cache of the host looks up at once"
        self._queued.end_find(plan)

    def _look_at(self, rows: Images, found: Images) -> None:
        """Sees the rows that come up. Within the turn."""

    def pin_here(self, plan: BatchPlan) -> bool:
        """Pins a plan whose rows are all here, without the turn: no slot is taken.

        So a caller that misses nothing waits for no other batch's fetch. Under the lock.
        """
        assert_held(self.lock)
        cache = self.cache
        cache.find(plan, 0, -1)
        if plan.num_missing or self.has_pending(plan) or not cache.reserve(plan):
            return False
        nothing: Images = np.empty((0, self.layout.row_bytes), np.uint8)
        cache.fill(plan, nothing, nothing[:, 0], self.rates[self.name], False)
        self.counters.hits += plan.num_unique
        return True

    def release_ahead(self) -> bool:
        """Lets go of the rows that are held for later; True if there were any. Within the turn."""
        assert_turn(self.turn)
        with self.lock:
            ahead = list(self.ahead)
            for rows in ahead:
                rows.release()
        return bool(ahead)

    def has_pending(self, plan: BatchPlan) -> bool:
        """True if a row of the plan may be on its way (I4). Under the lock."""
        assert_held(self.lock)
        if self.moving is None:
            return False
        return bool((self.cache.contains(plan.unique_keys) == PENDING).any())

    @property
    def is_moving(self) -> bool:
        """True while a batch's rows are on their way."""
        return self.moving is not None

    def fetch_below(self, keys: Keys, room: Images | None = None) -> tuple[Images, Images]:
        """Rows of distinct keys from below, in `room` if there is any, and which were found. Within
        the turn."""
        assert_turn(self.turn)
        rows = self.scratch_rows(len(keys)) if room is None else room
        found: Images = np.empty(len(keys), np.uint8)
        if len(keys):
            self.below.fetch(keys, rows, found)
        return rows, found

    def scratch_rows(self, count: int) -> Images:
        """uint8 [count, row_bytes]; its memory is the turn's, the next call overwrites it."""
        assert_turn(self.turn)
        size = count * self.layout.row_bytes
        if size > MAX_SCRATCH_BYTES:
            return np.empty((count, self.layout.row_bytes), np.uint8)
        if size > len(self._scratch):
            self._scratch = np.empty(size + size // 8, np.uint8)
        return self._scratch[:size].reshape(count, self.layout.row_bytes)

    @property
    def num_pins(self) -> int:
        """Pins on the slots of all caches from here on down. Under the lock."""
        assert_held(self.lock)
        return self.cache.pins + self.below.num_pins

    def want(self, keys: Keys) -> None:
        """Marks the rows of keys [L] that are here: a batch to come uses them. Under the lock."""
        assert_held(self.lock)
        plan = self.cache.make_plan(keys, self.take_plan())
        self.cache.want(plan)
        self.keep_plan(plan)

    # Plans that are nobody's.

    def take_plan(self) -> BatchPlan:
        """A plan for one caller. Under the lock."""
        assert_held(self.lock)
        if self.idle_plans:
            return self.idle_plans.pop()
        return self.cache.make_plan(np.empty(0, np.uint64), None)

    def keep_plan(self, plan: BatchPlan) -> None:
        """Keeps a plan's memory for the next caller; it is in flight no more. Under the lock."""
        assert_held(self.lock)
        self.plans_in_flight.discard(plan)
        if len(self.idle_plans) < MAX_IDLE_PLANS:
            self.idle_plans.append(plan)

    def drop_idle_plans(self) -> None:
        """Plans that nobody uses are gone, and with them their memory. Under the lock."""
        assert_held(self.lock)
        self.idle_plans.clear()

    def hold_plan(self, plan: BatchPlan) -> None:
        """Notes that a plan holds pins, or is about to, for erase to look at, until it is kept as
        an idle one. Under the lock."""
        assert_held(self.lock)
        self.plans_in_flight.add(plan)

    # What the tiers from here on down hold.

    def contains(self, keys: Keys) -> "Flags":
        """1 where a key is stored in any tier from here on, or on its way. Under the lock."""
        assert_held(self.lock)
        codes = self.cache.contains(keys)
        stored: Flags = codes & np.uint8(1)
        unknown = np.flatnonzero((codes == 0) | (codes == PENDING))
        if len(unknown) and self.moving is not None:
            buffered = self.layout.keys(self.cache.victims(self.moving))
            stored[unknown] = np.isin(keys[unknown], buffered)
            unknown = unknown[stored[unknown] == 0]
        if len(unknown):
            stored[unknown] = self.below.contains(keys[unknown])
        return stored

    def ask(self, keys: Keys) -> "Callable[[], Flags]":
        """As contains() of the cache alone; what it returns may have to wait. Under the lock, which
        who calls that does not need."""
        assert_held(self.lock)
        if self._queued is not None:
            return self._queued.ask(keys)
        codes = self.cache.contains(keys)
        return lambda: codes

    def drop(self, keys: Keys) -> None:
        """Drops distinct keys, none pinned, from here on down. Within `still`, under the lock.

        Below first: if that refuses, the row here is still the truth. What an interrupt finds gone
        below goes here as well: it may be clean, so that nothing would bring it back.
        """
        assert_held(self.lock)
        assert_turn(self.turn)
        below = self.below.contains(keys)
        is_done = False
        try:
            self.below.erase(keys)
            is_done = True
        finally:
            gone = keys if is_done else keys[(below != 0) & (self.below.contains(keys) == 0)]
            self.cache.erase(gone)

    def write_back(self) -> int:
        """Writes every dirty row down to the store; returns how many.

        A caller that calls it keeps updates away; fetches take their turns between two pieces.
        """
        num_rows = cursor = 0
        growths = None
        while cursor >= 0:
            with self.turn:  # within which the cache does not grow
                piece = max(1, MAX_SCRATCH_BYTES // 8 // self.layout.row_bytes)
                rows = self.scratch_rows(piece)
                with self.lock, self.counters:
                    if growths != self.cache.num_growths:  # what is done is clean: from the start
                        growths, cursor = self.cache.num_growths, 0
                    count, end = self.cache.scan(cursor, "dirty", rows)
                if count:
                    self.below.append(rows[:count], takes_slots=False)
                # Nothing else became dirty meanwhile: that takes an update, the turn, or a dirty
                # row of the tier above, and those have all come down before.
                with self.lock, self.counters:
                    self.cache.mark_clean(cursor, end)
            num_rows += count
            cursor = end
        return num_rows + self.below.write_back()

    def scan(self, batch_rows: int) -> Iterator[Images]:
        """Every stored row once, its newest image; within `still` while it is asked for a piece.

        Between two pieces rows may move, not change: the dirty rows come first and their keys are
        remembered (8 bytes each), so that one which goes down later is not seen again below.
        """
        assert_turn(self.turn)
        seen: list[Keys] = []
        for images in self._dirty_rows(batch_rows, seen):
            seen.append(self.layout.keys(images))
            yield images
        above = np.sort(np.concatenate(seen)) if seen else np.empty(0, np.uint64)
        for images in self.below.scan(batch_rows):
            if len(above):
                keys = self.layout.keys(images)
                idx = np.minimum(np.searchsorted(above, keys), len(above) - 1)
                images = images[above[idx] != keys]
            if len(images):
                yield images

    def _dirty_rows(self, piece: int, seen: list[Keys]) -> Iterator[Images]:
        """The dirty rows here; once the cache grows, those whose keys are not among `seen`."""
        rows: Images = np.empty((piece, self.layout.row_bytes), np.uint8)
        known = np.empty(0, np.uint64)
        cursor, growths = 0, self.cache.num_growths
        while cursor >= 0:
            with self.lock:
                if growths != self.cache.num_growths:
                    growths, cursor = self.cache.num_growths, 0
                    known = np.concatenate([known[:0], *seen])
                count, cursor = self.cache.scan(cursor, "dirty", rows)
            images = rows[:count]
            if len(known):
                images = images[~np.isin(self.layout.keys(images), known)]
            if len(images):
                yield images

    def turns(self) -> list[_C.Turn]:
        """The turns of all tiers from here on down, in the order in which they are taken."""
        return [self.turn, *self.below.turns()]

    def still(self) -> _C.Turns:
        """For a `with` block in which no row is on its way from here on down."""
        return _C.Turns(self.turns())

    def begin_period(self, period: int, horizon: int) -> None:
        """Drops what dies by the horizon, the period or a later one, from here on down; nothing is
        dirty. Within `still`, under the lock."""
        assert_turn(self.turn)
        assert_held(self.lock)
        counts = self.cache
        assert isinstance(counts, CountingCache), "a cache that does not count"
        counts.set_period(period)
        counts.drop_dead(horizon)
        self.below.begin_period(period, horizon)

    def restart(self) -> None:
        """Forgets every cached row: the store has gone to another checkpoint. Within `still`."""
        assert_turn(self.turn)
        self.below.restart()
        with self.lock:
            self.cache.clear()
