"""Readable twin of the native DramCache: the same verbs and rules over a small numpy array.

The set-associative table is replaced by one set of slots with the least recently reserved as
victim, so slots, ages and the moment of an eviction differ from the native cache's; rows, flags,
pins and what a verb returns follow the same contract (hps/contracts/row_cache.py). A refusal also
comes at another fill.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hps.common.row_layout import RowLayout
from hps.contracts.row_cache import DIRTY, FRESH, PENDING, STORED
from hps.errors import ConfigError
from tests.twins import life, row_math
from tests.twins.narrow_rows import NarrowRows

Keys = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
MIN_ROWS = 16


class TwinPlan:
    """One batch of keys: what they are once each, where they stand, which slots hold them."""

    def __init__(self) -> None:
        self.keys: Keys = np.empty(0, np.uint64)
        self.unique_keys: Keys = self.keys
        self.inverse: NDArray[np.int64] = np.empty(0, np.int64)
        self.slots: list[int] = []
        self.window = range(0)
        self.missing: list[int] = []
        self.reserved: list[tuple[int, Bytes | None]] = []
        self.pinned: list[int] = []
        self.is_filled = False
        self.is_resolved = False
        self.epoch = -1  # of the cache when the plan was found whole
        self.sums: Floats = np.empty((0, 0), np.float32)
        # [N] occurrences, and those with label 1, of each key.
        self.shows = self.clicks = np.empty(0, np.int64)

    @property
    def num_occurrences(self) -> int:
        return len(self.keys)

    @property
    def num_looked_up(self) -> int:
        return self.num_unique

    @property
    def num_unique(self) -> int:
        return len(self.unique_keys)

    @property
    def num_missing(self) -> int:
        return len(self.missing)

    def matches(self, keys: Keys) -> bool:
        return bool(np.array_equal(keys, self.keys))

    def rebuild(self, keys: Keys) -> None:
        self.keys = keys.copy()
        found, first, inverse = np.unique(self.keys, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.unique_keys = found[order]
        self.inverse = rank[inverse]
        self.slots = [-1] * len(found)
        self.window = range(0)
        self.missing = []
        self.is_resolved = False

    def positions(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Occurrences whose key is in the window, and the unique index of each."""
        inside = (self.inverse >= self.window.start) & (self.inverse < self.window.stop)
        where = np.flatnonzero(inside)
        return where, self.inverse[where]


class TwinDramCache:
    """As hps._C.DramCache; see hps/contracts/row_cache.py for what each verb promises."""

    failed_key = None

    def __init__(
        self, *, optimizer_kind: str, dim: int, capacity_bytes: int, **others: Any
    ) -> None:
        is_narrow = bool(others.get("narrow", False))
        layout = RowLayout(optimizer_kind, dim, bool(others.get("statistics", False)), is_narrow)
        self.narrow = NarrowRows(layout, others.get("rounding", "nearest"), others["stream"])
        self.first = 4 * layout.has_statistics  # float from which on rows are alike in all layouts
        self.period = 0
        self.rules: Any = None
        self.more_shows = float(others.get("more_shows", 0.0))
        self.kind, self.dim = optimizer_kind, dim
        self.row_bytes, self.state_floats = layout.row_bytes, layout.state_floats
        self.layout = layout
        self.capacity_rows = capacity_bytes // self.row_bytes
        if self.capacity_rows < MIN_ROWS:
            raise ConfigError(
                f"a dram_cache of {capacity_bytes} bytes is too small: "
                f"{MIN_ROWS * self.row_bytes} are needed at least"
            )
        self.memory_bytes = self.capacity_rows * self.row_bytes
        self.instruction_set = "twin"
        self.num_buckets = self.num_parts = 1
        self.initializer = (
            others["initializer_kind"], others["initializer_numbers"], others["stream"]
        )  # fmt: skip
        self.hyperparameters = list(others["hyperparameters"])
        # Of float32, whatever they are as images.
        self.rows: Bytes = np.zeros((self.capacity_rows, self.narrow.wide.row_bytes), np.uint8)
        self.slot_of: dict[int, int] = {}
        self.free = list(range(self.capacity_rows))[::-1]
        self.age = np.zeros(self.capacity_rows, np.int64)
        self.slot_pins = np.zeros(self.capacity_rows, np.int64)
        self.dirty = np.zeros(self.capacity_rows, bool)
        self.fresh = np.zeros(self.capacity_rows, bool)
        self.pending = np.zeros(self.capacity_rows, bool)
        self.wanted = np.zeros(self.capacity_rows, bool)
        self.num_created = 0
        self.clock = self.epoch = self.evictions = self.write_backs = 0

    @property
    def num_fresh(self) -> int:
        return int(self.fresh.sum())

    @property
    def num_dirty(self) -> int:
        return int(self.dirty.sum())

    @property
    def num_rows(self) -> int:
        return len(self.slot_of) - self.num_fresh

    @property
    def pins(self) -> int:
        return int(self.slot_pins.sum())

    def stats(self) -> dict[str, Any]:
        return {"evictions": self.evictions, "write_backs": self.write_backs}

    def make_plan(self, keys: Keys, plan: TwinPlan | None) -> TwinPlan:
        plan = TwinPlan() if plan is None else plan
        self.abandon(plan)
        plan.rebuild(keys)
        return plan

    def pull(self, plan: TwinPlan, keys: Keys, out: Floats) -> int:
        self.make_plan(keys, plan)
        self.find(plan, 0, -1)
        if not plan.num_missing:
            self.gather(plan, out)
        return plan.num_missing

    def is_current(self, plan: TwinPlan) -> bool:
        return plan.is_resolved and (bool(plan.pinned) or plan.epoch == self.epoch)

    def push(self, plan: TwinPlan, grads: Floats, lr: float, labels: Bytes | None = None) -> int:
        assert self.is_current(plan)
        plan.window = range(plan.num_unique)
        culprit = self.sum_gradients(plan, grads, labels)
        if culprit < 0:
            culprit = self.find_overflow(plan, lr)
        if culprit < 0:
            self.apply(plan, lr)
        return culprit

    def find(self, plan: TwinPlan, first: int, count: int) -> None:
        count = plan.num_unique - first if count < 0 else count
        plan.window = range(first, first + count)
        plan.missing = []
        for i in plan.window:
            plan.slots[i] = self.slot_of.get(int(plan.unique_keys[i]), -1)
            if plan.slots[i] < 0:
                plan.missing.append(i)
        plan.is_resolved = count == plan.num_unique and not plan.missing
        plan.epoch = self.epoch

    def want(self, plan: TwinPlan) -> None:
        slots = [self.slot_of[key] for key in map(int, plan.unique_keys) if key in self.slot_of]
        self.wanted[slots] = True

    def reserve(self, plan: TwinPlan) -> bool:
        held = {plan.slots[i] for i in plan.window if plan.slots[i] >= 0}
        candidates = [s for s in self.slot_of.values() if not self.slot_pins[s] and s not in held]
        candidates.sort(key=lambda slot: (self.wanted[slot], self.age[slot], slot))
        if len(plan.missing) > len(self.free) + len(candidates):
            return False
        self.clock += 1
        plan.reserved, plan.is_filled = [], False
        for i in plan.missing:
            victim: Bytes | None = None
            if self.free:
                slot = self.free.pop()
            else:
                slot = candidates.pop(0)
                victim = self._evict(slot)
            self.rows[slot] = 0
            self.rows[slot].view(np.uint64)[0] = plan.unique_keys[i]
            self.slot_of[int(plan.unique_keys[i])] = slot
            self.pending[slot] = True
            plan.slots[i] = slot
            plan.reserved.append((slot, victim))
            self.epoch += 1
        plan.pinned = [plan.slots[i] for i in plan.window]
        for slot in plan.pinned:
            self.slot_pins[slot] += 1
            self.wanted[slot] = False
            self.age[slot] = self.clock
        return True

    def _evict(self, slot: int) -> Bytes | None:
        victim = self.rows[slot].copy() if self.dirty[slot] else None
        del self.slot_of[int(self.rows[slot].view(np.uint64)[0])]
        self.evictions += 1
        self.write_backs += bool(self.dirty[slot])
        self.dirty[slot] = self.fresh[slot] = False
        self.epoch += 1
        return victim

    def victims(self, plan: TwinPlan) -> Bytes:
        rows = [victim for _, victim in plan.reserved if victim is not None]
        return self.narrow.images(np.stack(rows) if rows else self.rows[:0])

    def missing_keys(self, plan: TwinPlan) -> Keys:
        return plan.unique_keys[plan.missing]

    def fill(self, plan: TwinPlan, rows: Bytes, found: Bytes, lr: float, create: bool) -> None:
        keys = self.missing_keys(plan)
        weights: Floats = np.empty((len(keys), self.dim), np.float32)
        self.initial_weights(keys, weights)
        wide = self.narrow.rows(rows)
        for n, i in enumerate(plan.missing):
            slot = plan.slots[i]
            self.pending[slot] = False
            if found[n]:
                self.rows[slot] = wide[n]
            else:
                self._floats(self.rows[slot])[4 : 4 + self.dim] = weights[n]
                self.fresh[slot] = True
        plan.reserved, plan.is_filled = [], True
        plan.is_resolved = len(plan.window) == plan.num_unique
        plan.epoch = self.epoch
        if create:
            self.create(plan, lr)

    def cancel(self, plan: TwinPlan) -> None:
        if not plan.is_filled:
            for slot, victim in plan.reserved:
                del self.slot_of[int(self.rows[slot].view(np.uint64)[0])]
                self.pending[slot] = False
                if victim is None:
                    self.free.append(slot)
                else:
                    self.rows[slot] = victim
                    self.slot_of[int(victim.view(np.uint64)[0])] = slot
                    self.dirty[slot] = True
            plan.reserved = []
            plan.is_resolved = False
            self.epoch += 1
        self.release(plan)

    def abandon(self, plan: TwinPlan) -> None:
        if plan.pinned and not plan.is_filled:
            self.cancel(plan)
        self.release(plan)

    def release(self, plan: TwinPlan) -> None:
        for slot in plan.pinned:
            assert self.slot_pins[slot] > 0
            self.slot_pins[slot] -= 1
        plan.pinned = []

    def _start_fresh(self, slots: list[int], lr: float) -> int:
        """Fresh rows among the slots become stored ones with the state of a new row."""
        fresh = [slot for slot in slots if self.fresh[slot]]
        rows = self.rows[fresh]
        row_math.start_state(self.kind, self._floats(rows), self.dim, lr, self.hyperparameters)
        self.rows[fresh] = rows
        self._note_period(fresh)
        self._mark_updated(fresh)
        return len(fresh)

    def _floats(self, rows: Bytes) -> Floats:
        """Rows as their optimizer sees them; a view."""
        return rows.view(np.float32)[..., self.first :]

    def set_occurrences(self, plan: TwinPlan, shows: Words | None, clicks: Words | None) -> None:
        for name, each in (("shows", shows), ("clicks", clicks)):
            if each is not None:
                sums = np.zeros(plan.num_unique, np.int64)
                np.add.at(sums, plan.inverse, each)
                setattr(plan, name, sums)

    def set_period(self, period: int) -> None:
        self.period = period

    def set_rules(self, rules: Any) -> None:
        self.rules = rules

    def drop_dead(self, period: int) -> int:
        assert not self.pins
        slots = list(self.slot_of.items())
        deaths = self.rows.view(np.uint32)[:, 5]
        dead = [
            (key, slot)
            for key, slot in slots
            if not self.fresh[slot] and 0 < deaths[slot] <= period
        ]
        for key, slot in dead:
            assert not self.dirty[slot]
            del self.slot_of[key]
            self.free.append(slot)
            self.epoch += 1
        return len(dead)

    def _note_period(self, slots: list[int]) -> None:
        for slot in slots:
            self._count(self.rows[slot], 0, 0)

    def _count(self, row: Bytes, shows: int, clicks: int) -> None:
        if not self.layout.has_statistics:
            return
        counts, periods = row.view(np.float32), row.view(np.uint32)
        before = life.Counts(*counts[2:4].tolist(), *periods[4:6].tolist())
        after = life.counted(self.rules, before, shows, clicks, self.period, self.more_shows)
        counts[2:4] = after.show, after.click
        periods[4:6] = after.last_period, after.dies_at

    def _mark_updated(self, slots: list[int]) -> None:
        self.num_created += int(self.fresh[slots].sum())
        self.fresh[slots] = False
        self.dirty[slots] = True

    def _window_slots(self, plan: TwinPlan) -> list[int]:
        return [plan.slots[i] for i in plan.window]

    def create(self, plan: TwinPlan, lr: float) -> int:
        return self._start_fresh(self._window_slots(plan), lr)

    def gather(self, plan: TwinPlan, out: Floats) -> None:
        where, unique = plan.positions()
        slots = np.asarray(plan.slots, np.int64)[unique]
        out[where] = self._floats(self.rows)[slots, 4 : 4 + self.dim]

    def pull_pooled(
        self, plan: TwinPlan, keys: Keys, offsets: Any, weights: Any, mean: bool, out: Floats
    ) -> int:
        self.make_plan(keys, plan)
        self.find(plan, 0, -1)
        if plan.num_missing == 0:
            self.pool(plan, offsets, weights, mean, out)
        return plan.num_missing

    def pool(self, plan: TwinPlan, offsets: Any, weights: Any, mean: bool, out: Floats) -> None:
        rows: Floats = np.empty((plan.num_occurrences, self.dim), np.float32)
        self.gather(plan, rows)
        row_math.pool_bags(rows, offsets, weights, mean, out)

    def sum_bag_gradients(
        self,
        plan: TwinPlan,
        offsets: Any,
        weights: Any,
        mean: bool,
        grads: Floats,
        labels: Bytes | None = None,
    ) -> int:
        spread = row_math.spread_bags(grads, offsets, weights, mean)
        return self.sum_gradients(plan, spread, labels)

    def sum_gradients(self, plan: TwinPlan, grads: Floats, labels: Bytes | None = None) -> int:
        clicked = plan.inverse[:0] if labels is None else plan.inverse[labels == 1]
        plan.shows = np.bincount(plan.inverse, minlength=plan.num_unique)
        plan.clicks = np.bincount(clicked, minlength=plan.num_unique)
        plan.sums = np.empty((plan.num_unique, self.dim), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for i in range(plan.num_unique):
                plan.sums[i] = row_math.sum_occurrences(grads[plan.inverse == i])
        bad = np.flatnonzero(~np.isfinite(plan.sums).all(axis=1))
        return int(bad[0]) if len(bad) else -1

    def sum_here(self, plan: TwinPlan, keys: Keys, grads: Floats, lr: float) -> tuple[int, int]:
        self.make_plan(keys, plan)
        self.find(plan, 0, -1)
        if plan.num_missing:
            return plan.num_missing, -1
        culprit = self.sum_gradients(plan, grads)
        return 0, culprit if culprit >= 0 else self.find_overflow(plan, lr)

    def may_overflow(self, plan: TwinPlan, lr: float) -> bool:
        return bool((np.abs(plan.sums) > 2**20).any())

    def find_overflow(self, plan: TwinPlan, lr: float) -> int:
        slots = self._window_slots(plan)
        rows = self._floats(self.rows[slots])
        fresh = self.fresh[slots]
        if fresh.any():
            started = rows[fresh]
            row_math.start_state(self.kind, started, self.dim, lr, self.hyperparameters)
            rows[fresh] = started
        window = slice(plan.window.start, plan.window.stop)
        sums, keys = plan.sums[window], plan.unique_keys[window]
        with np.errstate(all="ignore"):
            self.narrow.update(rows, sums, keys, lr, self.hyperparameters)
        bad = np.flatnonzero(~np.isfinite(rows[:, 2:]).all(axis=1))
        return plan.window.start + int(bad[0]) if len(bad) else -1

    is_watched = False

    def watch(self) -> None:
        """Every step is tried as it is."""

    def apply(self, plan: TwinPlan, lr: float) -> None:
        slots = self._window_slots(plan)
        self._start_fresh(slots, lr)
        rows = self.rows[slots]
        window = slice(plan.window.start, plan.window.stop)
        sums, keys = plan.sums[window], plan.unique_keys[window]
        self.narrow.update(self._floats(rows), sums, keys, lr, self.hyperparameters)
        if self.layout.has_statistics:
            for row, shows, clicks in zip(
                rows, plan.shows[window].tolist(), plan.clicks[window].tolist(), strict=True
            ):
                self._count(row, shows, clicks)
        self.rows[slots] = rows
        self._mark_updated(slots)

    def read_rows(self, plan: TwinPlan, images: Bytes) -> None:
        images[:] = self.narrow.images(self.rows[self._window_slots(plan)])

    def _slots_here(self, keys: Keys, flags: Bytes) -> tuple[list[int], list[int]]:
        """Of keys whose flag is 0 and whose rows are stored and in place which, and their slots."""
        is_here = (self.contains(keys) & 1 != 0) & (flags == 0)
        which = np.flatnonzero(is_here).tolist()
        return which, [self.slot_of[int(keys[i])] for i in which]

    def read_here(self, keys: Keys, rows: Bytes, found: Bytes) -> tuple[int, int]:
        which, slots = self._slots_here(keys, found)
        rows[which] = self.narrow.images(self.rows[slots])
        found[which] = 1
        return len(which), int((self.slot_pins[slots] > 0).sum())

    def write_here(self, rows: Bytes, done: Bytes) -> int:
        which, slots = self._slots_here(rows[:, :8].copy().view(np.uint64)[:, 0], done)
        self.rows[slots] = self.narrow.rows(rows[which])
        self._mark_updated(slots)
        done[which] = 1
        return len(which)

    def assign(
        self,
        plan: TwinPlan,
        rows: Floats,
        state: Floats | None,
        lr: float,
        statistics: Bytes | None = None,
    ) -> None:
        where, unique = plan.positions()
        scalars = self.layout.header_scalars
        for position, i in zip(where, unique, strict=True):
            row = self._floats(self.rows[plan.slots[i]])
            row[4 : 4 + self.dim] = self.narrow.kept(rows[position])
            if state is None:
                row_math.start_state(self.kind, row[None], self.dim, lr, self.hyperparameters)
            else:
                row[2 : 2 + scalars] = state[position, :scalars]
                vectors = state[position, scalars:]
                row[4 + self.dim : 4 + self.dim + len(vectors)] = vectors
            self._note_period([plan.slots[i]])
            if statistics is not None:
                given = self.rows[plan.slots[i]]
                given[8:24] = statistics[position]
                if self.rules is not None:
                    counts, periods = given.view(np.float32), given.view(np.uint32)
                    periods[5] = life.dies_at(self.rules, counts[2], counts[3], int(periods[4]))
            self._mark_updated([plan.slots[i]])

    def contains(self, keys: Keys) -> Bytes:
        result = np.zeros(len(keys), np.uint8)
        for i, key in enumerate(keys.tolist()):
            slot = self.slot_of.get(key, -1)
            if slot >= 0:
                stored = DIRTY if self.dirty[slot] else STORED
                result[i] = FRESH if self.fresh[slot] else stored
                if self.pending[slot]:
                    result[i] = PENDING
        return result

    def erase(self, keys: Keys) -> Bytes:
        for key in keys.tolist():
            if self.slot_pins[self.slot_of.get(key, 0)] and key in self.slot_of:
                raise ConfigError(f"key {key} is pinned by a batch in flight; nothing was erased")
        result = self.contains(keys)
        for key in keys.tolist():
            slot = self.slot_of.pop(key, -1)
            if slot >= 0:
                self.dirty[slot] = self.fresh[slot] = False
                self.free.append(slot)
                self.epoch += 1
        return result

    def scan(self, cursor: int, what: str, rows: Bytes) -> tuple[int, int]:
        taken = set(self.slot_of.values())
        count = 0
        for slot in range(cursor, self.capacity_rows):
            if count == len(rows):
                return count, slot
            wanted = self.dirty[slot] if what == "dirty" else not self.fresh[slot]
            if slot in taken and wanted and not self.pending[slot]:
                rows[count] = self.narrow.images(self.rows[slot : slot + 1])[0]
                count += 1
        return count, -1

    @property
    def num_growths(self) -> int:
        return 0

    def mark_clean(self, first_cursor: int, end_cursor: int) -> None:
        end = self.capacity_rows if end_cursor < 0 else end_cursor
        self.dirty[first_cursor:end] = False

    def initial_weights(self, keys: Keys, out: Floats) -> None:
        out[:] = self.narrow.kept(row_math.initial_weights(*self.initializer, keys, self.dim))

    def clear(self) -> None:
        assert not self.pins
        self.slot_of.clear()
        self.free = list(range(self.capacity_rows))[::-1]
        self.dirty[:] = self.fresh[:] = False
        self.epoch += 1
