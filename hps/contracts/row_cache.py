"""What a cache of rows offers to the server: the verbs of every cache, as types and contracts.

Above it: tiers/cached_tier.py, tiers/top_tier.py and dram_cache/tier.py, which alone call these
verbs. Below it: csrc/dram_cache, csrc/gpu_cache (and, in tests, the twin in tests/twins). Verbs are
issued one at a time; a cache's own threads work inside a verb. On a device, keys, outputs and
gradients may be tensors of that device; images of rows are arrays of the host everywhere.

A plan is one batch of keys: deduplicated, in an order of the cache's own, with the slots found for
them. A window is the range of a plan's unique keys that the last find named; reserve, fill, gather,
apply, assign, create, release and cancel work on it.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import Offsets
from hps.common.json_text import Json
from hps.common.row_layout import Floats, Images, Keys, Labels

# What contains() answers.
ABSENT = 0
STORED = 1
FRESH = 2  # initialised here, stored by nobody
DIRTY = 3  # stored, and newer than the tier below
PENDING = 4  # a batch has taken a slot for it and its row has not arrived: ask below


class BatchPlan(Protocol):
    """One batch of keys. Views stay valid until the plan is made again."""

    @property
    def num_occurrences(self) -> int:
        """L, keys of the batch with their repetitions."""

    @property
    def num_unique(self) -> int:
        """N, distinct keys of the batch; 0 after a pull that did not deduplicate."""

    @property
    def num_missing(self) -> int:
        """Keys of the window that the last find did not find; waits for a device."""

    @property
    def num_looked_up(self) -> int:
        """Keys that the last pull looked up: N, or L if it did not deduplicate."""

    @property
    def unique_keys(self) -> Keys:
        """uint64 [N], in the plan's order, by which windows and culprits are numbered."""

    def matches(self, keys: Keys) -> bool:
        """True if `keys` equal the plan's keys byte for byte."""


Plan = TypeVar("Plan", bound=BatchPlan)


class RowCache(Protocol[Plan]):
    """A fixed budget of memory that holds rows of one table; generic in its plans.

    A cache takes no plans but its own. The tiers hand each back to the cache that made it, and see
    every cache as a RowCache[BatchPlan].
    """

    @property
    def failed_key(self) -> Callable[[bool], int | None] | None:
        """Of a cache on a device, which cannot return a culprit at once: tells, once find_overflow
        was called and then once, the key whose sum, or whose row after its step, was not finite, or
        None; True waits for all sums so far. Until it has told, apply changes nothing. None of
        other caches."""

    @property
    def capacity_rows(self) -> int:
        """Slots of the whole budget."""

    @property
    def memory_bytes(self) -> int:
        """Bytes in use, everything counted; never above the budget. A dram_cache grows as its rows
        need it."""

    @property
    def epoch(self) -> int:
        """Grows whenever a slot may have moved or been freed."""

    @property
    def num_growths(self) -> int:
        """How often the cache has grown: cursors of `scan` are good until it grows again. It does
        so in a `reserve` that misses keys, and never if it is not a dram_cache."""

    @property
    def num_rows(self) -> int:
        """Rows here that are not fresh."""

    @property
    def num_fresh(self) -> int:
        """Rows here that nobody stored yet."""

    @property
    def num_created(self) -> int:
        """Fresh rows that have become stored ones since the cache was made; never falls."""

    @property
    def num_dirty(self) -> int:
        """Rows here that are newer than the tier below."""

    @property
    def pins(self) -> int:
        """Pins of all slots, summed."""

    def make_plan(self, keys: Keys, plan: Plan | None) -> Plan:
        """Copies and deduplicates `keys`; into `plan` if one is given."""

    def pull(self, plan: Plan, keys: Keys, out: Floats) -> int:
        """make_plan, find all, and gather if nothing is missing; returns the number missing.

        Where keys hardly repeat, and nothing is missing, each occurrence may be looked up by
        itself; the plan is empty then.
        """

    def pull_pooled(
        self,
        plan: Plan,
        keys: Keys,
        offsets: Offsets,
        weights: Floats | None,
        mean: bool,
        out: Floats,
    ) -> int:
        """make_plan, find all, and pool if nothing is missing; returns the number missing."""

    def push(self, plan: Plan, grads: Floats, lr: float, labels: Labels | None = None) -> int:
        """sum_gradients, find_overflow and, if all is finite, apply, on a plan found whole; -1 or
        the culprit."""

    def is_current(self, plan: Plan) -> bool:
        """True if the plan was found whole and no slot has moved since."""

    def find(self, plan: Plan, first: int, count: int) -> None:
        """Makes [first, first + count) the window and looks it up; -1 is all from `first` on.

        A key whose row is on its way (see PENDING) counts as found. `plan.num_missing` tells the
        others.
        """

    def want(self, plan: Plan) -> None:
        """Marks those of the plan's keys that are here as wanted, whatever the window: they are
        victims only where no other can be, until their next use."""

    def reserve(self, plan: Plan) -> bool:
        """Pins the window and takes slots for what is missing; False: refused, nothing taken."""

    def victims(self, plan: Plan) -> Images:
        """View of the dirty rows that reserve put out; write them below before anything else."""

    def missing_keys(self, plan: Plan) -> Keys:
        """View of the window's missing keys, in the plan's order."""

    def fill(
        self, plan: Plan, rows: Images, found: NDArray[np.uint8], lr: float, create: bool
    ) -> None:
        """Publishes the missing rows, even if there are none: copies those found, initialises the
        others as fresh. After it the window is pinned and whole."""

    def cancel(self, plan: Plan) -> None:
        """Undoes a reserve that was not filled: victims return, still dirty; pins are dropped."""

    def abandon(self, plan: Plan) -> None:
        """Takes back what the plan holds, however far it came: cancel, release or nothing."""

    def create(self, plan: Plan, lr: float) -> int:
        """Stores the window's fresh rows as they are; returns how many."""

    def gather(self, plan: Plan, out: Floats) -> None:
        """Copies the window's embeddings to all their positions in out [L, D]."""

    def pool(
        self, plan: Plan, offsets: Offsets, weights: Floats | None, mean: bool, out: Floats
    ) -> None:
        """Pools the batch, which the window is: see hps/common/bags.py.

        offsets int64 [F*B + 1] feature-major, weights float32 [L] or None, out float32 [B, F * D];
        on a device all are tensors of it.
        """

    def release(self, plan: Plan) -> None:
        """Drops the window's pins."""

    def sum_gradients(self, plan: Plan, grads: Floats, labels: Labels | None = None) -> int:
        """Sums grads [L, D] per unique key into the plan; -1 or the first non-finite unique key.

        A cache on a device returns -1 always: `failed_key` tells; grads on a device are to stay as
        they are until the step is applied. In a table with statistics the occurrences of each
        key are counted, too, and with labels, uint8 [L] of 0 or 1, its clicks.
        """

    def sum_bag_gradients(
        self,
        plan: Plan,
        offsets: Offsets,
        weights: Floats | None,
        mean: bool,
        grads: Floats,
        labels: Labels | None = None,
    ) -> int:
        """The same of gradients of bags [F*B, D], as `pool` takes them; no [L, D] is made. Labels
        are the occurrences', [L]."""

    def sum_here(self, plan: Plan, keys: Keys, grads: Floats, lr: float) -> tuple[int, int]:
        """make_plan, find all, and, if nothing is missing, sum_gradients and find_overflow; the
        number missing, and what they returned. One call, where a thread would wait its turn between
        four."""

    def may_overflow(self, plan: Plan, lr: float) -> bool:
        """True if find_overflow may find a key; a device, which cannot tell, says True."""

    def find_overflow(self, plan: Plan, lr: float) -> int:
        """The first unique key of the window, whose rows are here, that a step of the plan's sums
        would not leave finite; -1 if there is none. Changes no row. Goes before `apply`.

        Nearly free where no gradient is large: see csrc/optimizer/safe_gradient.h. On a device -1
        always: `failed_key` tells, also of what sum_gradients found.
        """

    @property
    def is_watched(self) -> bool:
        """True once watch() was called, or a step may have left a row that is not tame."""

    def watch(self) -> None:
        """From now on every update is tried first: a row came that is not tame."""

    def apply(self, plan: Plan, lr: float) -> None:
        """Runs the optimizer once a unique key of the window with the plan's sums. A fresh row's
        state starts here, with this lr, so that it does not depend on when the row came up. With
        the sums goes what was counted, in the cache's period."""

    def assign(
        self,
        plan: Plan,
        rows: Floats,
        state: Floats | None,
        lr: float,
        statistics: Images | None = None,
    ) -> None:
        """Sets the window's rows from [L, D] and [L, S]; the last occurrence of a key wins.

        Statistics, [L, 16] as rows have them, are set, too; without them counts stay, and the last
        period is the cache's.
        """

    def read_rows(self, plan: Plan, images: Images) -> None:
        """Copies the window's row images, in the plan's unique order, to [window, row_bytes]."""

    def contains(self, keys: Keys) -> NDArray[np.uint8]:
        """uint8 [L]: ABSENT, STORED, FRESH, DIRTY or PENDING; odd where the row here is stored."""

    def erase(self, keys: Keys) -> NDArray[np.uint8]:
        """Drops keys; uint8 [L] as contains() was before it. ConfigError, and nothing dropped, if a
        key is pinned, as one that is on its way is."""

    def scan(self, cursor: int, what: str, rows: Images) -> tuple[int, int]:
        """Copies "stored" or "dirty" rows from `cursor` on; (count, next cursor or -1)."""

    def mark_clean(self, first_cursor: int, end_cursor: int) -> None:
        """The dirty rows of a scanned range are safely below; -1 is the end."""

    def initial_weights(self, keys: Keys, out: Floats) -> None:
        """What absent keys [n] read as, into out [n, D]; touches no slot."""

    def clear(self) -> None:
        """Drops every row."""

    def stats(self) -> Json:
        """Counters since the start; at least evictions and write_backs."""


# What the tiers hold: a cache that gets back only the plans that it made.
AnyRowCache = RowCache[BatchPlan]
Plan_contra = TypeVar("Plan_contra", bound=BatchPlan, contravariant=True)


@runtime_checkable
class CacheBelow(Protocol):
    """A cache that another one fetches from and writes back to: a dram_cache. Rows of distinct keys
    move by key, without a plan, and take no slot; what is not stored here, or is on its way, does
    not move."""

    def read_here(self, keys: Keys, rows: Images, found: NDArray[np.uint8]) -> tuple[int, int]:
        """Copies the images of those of keys [n] whose found[i] is 0 to rows[i], and sets that to
        1; how many were copied, and how many of these are pinned."""

    def write_here(self, rows: Images, done: NDArray[np.uint8]) -> int:
        """Sets the rows of those images [n] whose done[i] is 0, and sets that to 1; they are dirty
        then. How many were set."""


@runtime_checkable
class QueuedCache(Protocol[Plan_contra]):
    """A cache on a device: what it answers is queued at once, and waited for without the server's
    lock, under which others queue their verbs meanwhile."""

    def is_looked_up(self, plan: Plan_contra) -> bool:
        """True if the last thing done with the whole plan was to look it up, and no slot has moved
        since. Waits for nothing."""

    def end_find(self, plan: Plan_contra) -> None:
        """Waits for what the look-up has found, which `begin_reserve` needs. Without the lock."""

    def begin_reserve(self, plan: Plan_contra) -> bool:
        """Queues a reserve of a window that was looked up. False, and nothing is queued, if slots
        have moved since: find again.

        The plan's slots are taken, for all who queue something later.
        """

    def end_reserve(self, plan: Plan_contra) -> bool:
        """Waits for what `begin_reserve` queued, missing keys and victims with it; as `reserve`. By
        any thread, without the lock. Others of its verbs wait by themselves, if they need it."""

    def missing_rows(self, plan: Plan_contra) -> Images:
        """View of memory for the rows of missing_keys: what a fill finds there is not copied by the
        host once more."""

    def ask(self, keys: Keys) -> Callable[[], NDArray[np.uint8]]:
        """Queues `contains`; what it returns waits, and needs no lock."""

    def spare(self, plan: Plan_contra) -> None:
        """Gives the memory of a plan back that nobody works on; of no keys from now on."""


@runtime_checkable
class CountingCache(Protocol[Plan_contra]):
    """A cache of rows with statistics: those of the host."""

    def set_occurrences(
        self,
        plan: Plan_contra,
        shows: NDArray[np.uint32] | None,
        clicks: NDArray[np.uint32] | None,
    ) -> None:
        """What each occurrence [L] of a plan stands for, right after its sums: so many shows, and
        of these so many clicks, which wants sums that were given labels. None: what was counted."""

    def set_period(self, period: int) -> None:
        """In which updates count from now on, and rows are created and assigned."""

    def set_rules(self, rules: _C.LifeRules | None) -> None:
        """By which rows decay and die from now on; None: they do neither."""

    def drop_dead(self, period: int) -> int:
        """Drops the rows that are dead in the period; how many. No row is pinned, and no such row
        is dirty."""


@runtime_checkable
class AdmittingCache(Protocol[Plan_contra]):
    """A cache whose `apply` may leave fresh rows as they are: those of the host."""

    def list_fresh(self, plan: Plan_contra, beside: AnyRowCache | None) -> int:
        """Lists the window's fresh rows, all of whose rows are in place, and looks their keys up in
        another cache of the kind, if one is given; returns how many it lacks, with those whose rows
        are on their way."""

    def fresh_keys(self, plan: Plan_contra) -> Keys:
        """The keys that are listed, uint64 [K]."""

    def admit_counted(self, plan: Plan_contra, records: AnyRowCache, least: float) -> None:
        """Counts what the plan's sums say of each listed key in its record, and has the plan's
        next `apply` leave alone the rows of those that occurred fewer than `least` times. Of the
        others the record is emptied, and the row begins with what was counted before.

        Args:
            records: the cache in which they were looked up, of rows with statistics; none was
                missing, and none has moved since.
        """

    def admit_scored(
        self, plan: Plan_contra, scores: AnyRowCache, least: float, others: _C.LifeRules
    ) -> None:
        """The same by the decayed scores of the rows there, 0 of those that are fresh; `others` are
        the rules of a table that has none. A row with statistics begins with the decayed counts of
        the row there."""

    def admit_drawn(self, plan: Plan_contra, number: int, probability: float) -> None:
        """The same by a draw on the table's stream, the key and a number."""
