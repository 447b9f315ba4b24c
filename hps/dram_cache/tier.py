"""DramTier: a dram_cache over the ssd_store, offering to a gpu_cache above it what a store offers.

Above it: the TableStack of the gpu_cache. Below it: tiers/cached_tier.py, whose phases and rules
hold here as well, with a turn of its own; StoreTable.

The tiers are not inclusive. A fetch copies upwards and the copy here stays, so the highest copy of
a row is the truth and the one here may be older. A row that comes down is newer than what is here:
it updates the row if that is here, else it is put into a slot, else it goes on to the store. So a
write_back never waits for a pin. A row that no tier stores takes no slot.
"""

import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from hps.common.locks import OwnedLock, assert_held, assert_turn
from hps.common.row_layout import Images, Keys
from hps.contracts.row_cache import AnyRowCache, BatchPlan, CacheBelow
from hps.dram_cache.descending_rows import DescendingRows, Mask
from hps.errors import ConfigError, StoreError
from hps.tiers.cached_tier import MAX_SCRATCH_BYTES, CachedTier

if TYPE_CHECKING:
    from hps.config import TableConfig
    from hps.contracts.tiers import Flags, TableTier

# So few keys that are refused slots are not divided further.
_SMALLEST_PIECE = 64

Indices = NDArray[np.intp]


class WarmRows:
    """Rows of a batch that wait in the dram_cache, pinned, for the gpu_cache to fetch them.

    Made by `ParameterServer.warm`. Dropping the object releases it, too.
    """

    _tier: "DramTier | None" = None  # an interrupted __init__ is dropped as well
    # What their table's new keys wait by, warmed as well; released with these.
    beside: "WarmRows | None" = None
    gives_way = False

    def __init__(self, tier: "DramTier | None") -> None:
        self.plans: list[BatchPlan] = []
        self._tier = tier

    @property
    def num_rows(self) -> int:
        """Rows that are pinned in the dram_cache."""
        return sum(plan.num_unique for plan in self.plans)

    @property
    def is_released(self) -> bool:
        """True when no row is pinned any more."""
        return not self.plans and (self.beside is None or self.beside.is_released)

    def keys(self) -> Keys:
        """Those of the rows, uint64 [N]."""
        return np.concatenate([np.empty(0, np.uint64), *(one.unique_keys for one in self.plans)])

    def release(self) -> None:
        """Drops the pins; nothing to do the second time."""
        if self._tier is not None:
            self._tier.release(self)
        if self.beside is not None:
            self.beside.release()

    def __enter__(self) -> "WarmRows":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if self._tier is not None and self.plans:
            self.release()


class DramTier(CachedTier):
    """One table's dram_cache as the tier below a cache; arguments as CachedTier."""

    def __init__(
        self,
        config: "TableConfig",
        cache: AnyRowCache,
        below: "TableTier",
        lock: OwnedLock,
        rates: dict[str, float],
    ) -> None:
        super().__init__(config, cache, below, lock, rates)
        assert isinstance(cache, CacheBelow), "a cache whose rows move by key"
        self._warm: weakref.WeakSet[WarmRows] = weakref.WeakSet()  # guarded by the lock
        with lock:
            self._plan = self.take_plan()  # guarded by the turn
        self._descending = DescendingRows()  # guarded by the lock

    # The verbs of a tier that the cache above it uses; see hps.contracts.tiers.TableTier.

    # A thread that warms a batch has the turn while it waits for the SSD. The cache above, which
    # works on the batch before, must not wait for it: what lies here is read and written under the
    # lock alone, and a row that needs a slot descends when the turn is had.

    def fetch(self, keys: Keys, rows: Images, found: "Flags") -> None:
        """What the store has is put into slots here as far as there are any, else only read."""
        found[:] = 0
        with self.lock, self.counters:
            if self.turn.num_asking and self._fetch_now(keys, rows, found):
                return
        with self.turn:
            with self.lock, self.counters:
                self._read_here(keys, rows, found)  # nothing is on its way within the turn
                away = np.flatnonzero(found == 0)
                self.counters.misses += len(away)
            if len(away):
                self._fetch_away(away, keys, rows, found)

    def _fetch_now(self, keys: Keys, rows: Images, found: "Flags") -> bool:
        """Without the turn: True if what is stored of the keys is here, or descends; what is, was
        copied in any case. Under the lock."""
        assert_held(self.lock)
        self._read_here(keys, rows, found)
        away = keys[found == 0]
        if self.contains(away).any():
            return False
        self.counters.misses += len(away)
        return True

    def _read_here(self, keys: Keys, rows: Images, found: "Flags") -> None:
        """Copies the newest images of keys that are here, or descend, and that were not found
        before, to their places in `rows`; says which, and counts them. Under the lock."""
        assert_held(self.lock)
        descends = self._descending.read(keys, rows) & (found == 0)
        found[descends] = 1
        num_here, num_pinned = self._rows_here.read_here(keys, rows, found)
        # Who pins rows here has warmed them, and they were counted then.
        self.counters.hits += int(descends.sum()) + num_here - num_pinned

    def _fetch_away(self, away: Indices, keys: Keys, rows: Images, found: "Flags") -> None:
        """The rows of keys, by their places, that are below. Within the turn."""
        assert_turn(self.turn)
        are_all = len(away) == len(keys)
        if are_all:  # they are read to where they are wanted
            self.below.fetch(keys, rows, found)
            images, came = rows, found
        else:
            images, came = self.fetch_below(keys[away])
        if not came.all():
            stored = np.flatnonzero(came)
            away, images = away[stored], images[stored]
        if not are_all:
            rows[away], found[away] = images, 1
        self._put(keys[away], images, is_newer=False)

    def append(self, rows: Images, *, takes_slots: bool = True) -> None:
        keys = self.layout.keys(rows)
        with self.lock, self.counters:
            descends = self._descending.holds(keys)  # what comes is put before these
            away = descends | ~self._write_here(rows, ~descends)
            if takes_slots and away.any() and self._may_descend(int(away.sum())):
                self._descending.add(keys[away], rows[away])
                return
        if away.any():
            with self.turn:
                self._settle()
                self._put_or_pass_on(keys[away], rows[away], takes_slots)

    def _may_descend(self, count: int) -> bool:
        """True if so many rows may wait for another thread's turn to end. Under the lock."""
        assert_held(self.lock)
        limit = MAX_SCRATCH_BYTES // self.layout.row_bytes
        return self.turn.num_asking > 0 and self._descending.num_rows + count <= limit

    def _settle(self) -> None:
        """Within the turn: puts what could not wait for it."""
        assert_turn(self.turn)
        while True:
            with self.lock:
                piece = self._descending.oldest
                if piece is None:
                    return
                keys, images = piece.newest()
            self._put_or_pass_on(keys, images, takes_slots=True)
            with self.lock:
                self._descending.remove(piece)

    def _put_or_pass_on(self, keys: Keys, rows: Images, takes_slots: bool) -> None:
        """Within the turn: into slots, onto the rows that are here, or to the tier below."""
        assert_turn(self.turn)
        rest: Indices = np.arange(len(keys))
        if takes_slots:
            rest = self._put(keys, rows, is_newer=True)
        if not len(rest):
            return
        with self.lock, self.counters:
            which = np.zeros(len(keys), np.bool_)
            which[rest] = True
            which &= ~self._write_here(rows, which)
        if which.any():
            self.below.append(rows[which])

    def _write_here(self, rows: Images, which: Mask) -> Mask:
        """Sets those rows, of the images in `which`, that are here and published; says which were
        set. Under the lock."""
        assert_held(self.lock)
        done: Flags = (~which).view(np.uint8)
        self._rows_here.write_here(rows, done)
        is_set: Mask = which & (done != 0)
        return is_set

    @property
    def _rows_here(self) -> CacheBelow:
        """The cache, whose rows move by key."""
        return cast("CacheBelow", self.cache)

    def refuse_pinned(self, keys: Keys) -> None:
        assert_turn(self.turn)
        self.below.refuse_pinned(keys)
        for rows in list(self._warm):
            if rows.gives_way:
                self.release(rows)
            for plan in rows.plans:
                held = keys[np.isin(keys, plan.unique_keys)]
                if len(held):
                    raise ConfigError(
                        f"table {self.name!r}: key {held[0]} is pinned by a batch in flight; "
                        f"erase it when that batch is done (nothing was erased)"
                    )

    def erase(self, keys: Keys) -> "Flags":
        stored = self.contains(keys)
        self.drop(keys)
        return stored

    def num_rows(self) -> int:
        return self.below.num_rows()

    # What the tiers from here on down hold: also what descends.

    def contains(self, keys: Keys) -> "Flags":
        return super().contains(keys) | self._descending.holds(keys)

    def drop(self, keys: Keys) -> None:
        try:
            super().drop(keys)
        finally:
            self._descending.forget(keys[super().contains(keys) == 0])

    def write_back(self) -> int:
        with self.turn:
            self._settle()
        return super().write_back()

    def scan(self, batch_rows: int) -> Iterator[Images]:
        self._settle()  # within `still`
        yield from super().scan(batch_rows)

    def restart(self) -> None:
        super().restart()
        with self.lock:
            self._descending.clear()

    # Batches that are fetched ahead.

    def warm(self, keys: Keys, *, gives_way: bool = False) -> WarmRows:
        """Brings those of the distinct keys that are stored here and pins them, as far as slots can
        be had.

        Args:
            gives_way: they are let go of where keys of theirs are erased, which is refused else.
        """
        warm = WarmRows(self)
        warm.gives_way = gives_way
        try:
            with self.turn:
                self._settle()
                with self.lock:
                    self._warm.add(warm)
                    # Without what descends again by now: the tier below may not have it, and a slot
                    # would be filled with a fresh row that hides the one that comes.
                    is_stored = super().contains(keys) != 0
                parts = [keys[is_stored]]
                while parts:
                    part = parts.pop()
                    is_divisible = len(part) > _SMALLEST_PIECE
                    if len(part) and not self._warm_whole(part, warm) and is_divisible:
                        middle = len(part) // 2
                        parts += [part[:middle], part[middle:]]
        except BaseException:
            warm.release()
            raise
        return warm

    def release(self, rows: WarmRows) -> None:
        """Drops the pins of warmed rows."""
        with self.lock:
            while rows.plans:
                self.cache.abandon(rows.plans[-1])  # may be repeated, after an interrupt
                self.keep_plan(rows.plans.pop())
            self._warm.discard(rows)

    def _warm_whole(self, keys: Keys, warm: WarmRows) -> bool:
        """Within the turn: brings and pins all of the keys, or returns False."""
        assert_turn(self.turn)
        with self.lock:
            plan = self.take_plan()
            warm.plans.append(plan)  # before it holds anything
            self.cache.make_plan(keys, plan)
        if self.bring(plan, 0, -1):
            return True
        with self.lock:
            self.keep_plan(warm.plans.pop())
        return False

    # How rows are put and read.

    def _put(self, keys: Keys, images: Images, *, is_newer: bool) -> Indices:
        """Puts rows into slots, piece by piece; returns the indices of those that got none.

        Args:
            is_newer: the rows are newer than the tier below, and than the rows that are here.
        """
        assert_turn(self.turn)
        refused: list[Indices] = []
        largest = max(1, self.cache.capacity_rows // 2)
        spans = [(first, min(first + largest, len(keys))) for first in range(0, len(keys), largest)]
        while spans:
            first, end = spans.pop()
            try:
                is_put = self._put_whole(keys[first:end], images[first:end], is_newer)
            except StoreError:  # the disk is full: what lies in the slots cannot go down
                refused += [np.arange(*span) for span in (*spans, (first, end))]
                break
            if is_put:
                continue
            if end - first <= _SMALLEST_PIECE:
                refused.append(np.arange(first, end))
            else:
                middle = (first + end) // 2
                spans += [(first, middle), (middle, end)]
        return np.concatenate(refused) if refused else np.empty(0, np.intp)

    def _put_whole(self, keys: Keys, images: Images, is_newer: bool) -> bool:
        def source(missing: Keys) -> tuple[Images, Images]:
            return images[_places(keys, missing)], np.ones(len(missing), np.uint8)

        def visit() -> None:
            if is_newer:
                all_set = self._write_here(images, np.ones(len(keys), np.bool_)).all()
                assert all_set, "rows that are not in place"

        with self.lock:
            self.cache.make_plan(keys, self._plan)
        return self.bring(self._plan, 0, -1, visit, source)


def _places(keys: Keys, wanted: Keys) -> Indices:
    """Where each of `wanted` is in `keys`, which holds it once."""
    order = np.argsort(keys)
    return order[np.searchsorted(keys, wanted, sorter=order)]
