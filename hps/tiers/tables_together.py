"""TablesTogether: what a step asks of the rows of several tables on one device, asked at once; how
their missing rows come.

Above it: parameter_server/rows.py (pull_tables), parameter_server/batches.py (pin, apply,
release).
Below it: the verbs of the caches' device (hps/contracts/table_verbs.py), BatchRows. Caches of the
host have none of this: their tables are asked one by one, or by a native batch (joint_rows.py).

A step's own objects are looked through by the native core, in a call for all tables. What it does
not know, as updates of one table that are to be joined, goes table by table to the same verbs.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray, OutputPool, PoolArguments
from hps.common.locks import OwnedLock, assert_held
from hps.common.row_layout import Floats
from hps.contracts.row_cache import BatchPlan
from hps.contracts.table_verbs import (
    BagsOfTable,
    BatchMemory,
    CacheBesideOthers,
    RowsOfTable,
    TableVerbs,
)
from hps.tiers.batch_rows import BatchRows
from hps.tiers.cached_tier import MAX_IDLE_PLANS
from hps.tiers.top_tier import TableStack

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling
    from hps.contracts.joint import JointUpdate, Places
    from hps.contracts.reads import PooledRead
    from hps.contracts.updates import RowUpdate


class Parts(Protocol):
    """Pinned rows of several tables, and how the bags of each are pooled."""

    def parts(self, tables: Sequence[str]) -> "tuple[list[BatchRows], list[BagPooling]]":
        """Of some of the tables."""


class TablesTogether:
    """Verbs over the pinned rows of several tables, no table twice in a call.

    Args:
        verbs: of their caches.
        stacks: of the server, by table in its order, all of whose caches are on that device.
        lock: the server's.
        device: of the caches, as torch names it.
    """

    def __init__(
        self, verbs: TableVerbs, stacks: Mapping[str, TableStack], lock: OwnedLock, device: str
    ) -> None:
        self.verbs = self._verbs = verbs
        self._stacks = dict(stacks)
        # In which turns are taken by all who take several.
        self._places = {name: place for place, name in enumerate(stacks)}
        self._lock = lock
        self._device = device
        own = weakref.ref(self)  # whose verbs are not what keeps it

        def spare(needed: Sequence[BatchPlan]) -> None:
            together = own()
            if together is not None:
                together._drop_idle_plans(needed)

        verbs.on_shortage(spare)
        # Of verbs over all tables, not yet with their counters. Guarded by the lock.
        self._seconds = 0.0

    @classmethod
    def of(
        cls, stacks: Mapping[str, TableStack], lock: OwnedLock, device: str
    ) -> "TablesTogether | None":
        """Of a server's tables, or None if each of them is to be asked by itself."""
        caches = [stack.cache for stack in stacks.values()]
        found = [one.together if isinstance(one, CacheBesideOthers) else None for one in caches]
        if not found or found[0] is None or any(verbs is None for verbs in found):
            return None
        return cls(found[0], stacks, lock, device)

    @property
    def memory(self) -> BatchMemory:
        """Of the device, for batches."""
        return self._verbs.memory

    def _drop_idle_plans(self, needed: Sequence[BatchPlan]) -> None:
        """Their memory is the device's again. Called by verbs, which have the lock but for a few.

        Args:
            needed: plans that are being worked on; if there are none, those of the last pulls and
                pushes may be, too.
        """
        if not self._lock._is_owned():  # who keeps plans may be at them
            return
        for stack in self._stacks.values():
            stack.drop_idle_plans()
            if needed and not any(stack.plan is one for one in needed):
                stack.spare_plan()

    def raise_failed(self) -> None:
        """As TableStack.raise_failed of each, which does not wait."""
        if self._verbs.has_failed:
            for stack in self._stacks.values():
                stack.raise_failed(wait=False)

    def keys_of(self, keys: Sequence[AnyArray]) -> "_C.DeviceKeys | None":
        """The keys of several tables as `ask` and `begin` take them; None if some of them are not
        uint64 or int64 [L] in one piece, tensors of the device or tensors or arrays of the host."""
        return self._verbs.keys_of(keys)

    def ask(
        self, stacks: Sequence[TableStack], keys: _C.DeviceKeys
    ) -> Callable[[], NDArray[np.uint8]]:
        """As CachedTier.ask of each, the answers one behind the other. Under the lock, which what
        it returns does not need."""
        assert_held(self._lock)
        return self._verbs.ask([stack.cache for stack in stacks], keys)

    def begin(
        self,
        stacks: Sequence[TableStack],
        keys: _C.DeviceKeys,
        models: Sequence[AnyArray],
        pool: OutputPool,
    ) -> list[BatchRows]:
        """Rows of each table with idle plans, which are to be looked up.

        Args:
            models: what the keys came as.
        """
        with self._lock:
            given, like = list(stacks), list(models)
            return _C.begin_rows(BatchRows, given, keys, like, pool, self._lock, self._device)

    def look_up(self, rows: Sequence[BatchRows], keys: _C.DeviceKeys) -> None:
        """Queues the look-up of the keys of rows that were begun, which pins those of each table
        that has them all: no slot is taken for that, and no other batch's fetch waited for."""
        if not rows:  # a batch of dense features alone
            return
        with self._lock:
            begun = perf_counter()
            pins = [True] * len(rows)
            if rows[0].stack.movers:
                pins = [one.stack.moving is None for one in rows]
            self._verbs.look_up(self._plans_of(rows), keys, pins)
            if len(rows) == len(self._stacks):
                self._seconds += perf_counter() - begun
            else:
                self._share([one.stack for one in rows], begun)

    def end_look_up(self, rows: Sequence[BatchRows]) -> None:
        """Waits for the look-up of all, whose numbers come together. Without the lock."""
        with self._lock:
            plans = self._plans_of(rows)
        at = next((at for at, plan in enumerate(plans) if plan.num_occurrences), None)
        if at is not None:  # one that has keys
            rows[at].stack.end_look_up(plans[at])

    def pin_found(self, rows: Sequence[BatchRows]) -> list[BatchRows]:
        """Those of rows that were looked up which are not pinned by that. After the look-up was
        waited for."""
        with self._lock:
            plans = self._plans_of(rows)
            pinned = self._verbs.pin_found(plans)
        if len(pinned) == len(plans):
            return []
        found = set(pinned)
        return [one for one, plan in zip(rows, plans, strict=True) if plan not in found]

    def _plans_of(self, rows: Sequence[BatchRows]) -> list[BatchPlan]:
        """Of rows that were begun. Under the lock."""
        plans = _C.held_plans(list(rows), BatchRows)
        if plans is None or len(plans) < len(rows):
            return [one.held_plan() for one in rows]  # which says what is wrong
        return cast("list[BatchPlan]", plans)

    def bring(self, rows: Sequence[BatchRows]) -> None:
        """As TableStack.pin of each: takes the turns of all of them, and waits once for the slots
        of all, whose rows then come table by table. After the look-up was waited for.

        Raises:
            CapacityError: the rows of a table cannot all be held; nothing is.
        """
        rows = sorted(rows, key=lambda one: self._places[one.table])
        stacks = [one.stack for one in rows]
        with self._lock:
            plans = [one.held_plan() for one in rows]
        with _C.Turns([stack.turn for stack in stacks]):
            try:
                granted = self._reserve(stacks, plans)
                if all(granted):
                    self._fill(stacks, plans)
            except BaseException:
                self._give_back(stacks, plans)
                raise
            if not all(granted):
                self._give_back(stacks, plans)
        for stack, plan, is_granted in zip(stacks, plans, granted, strict=True):
            if not is_granted:
                with self._lock:
                    raise stack.pieces.capacity_error(plan.unique_keys)

    def _reserve(self, stacks: Sequence[TableStack], plans: Sequence[BatchPlan]) -> list[bool]:
        """Phase 1 of CachedTier, of all tables: which were granted. Within the turns."""
        while True:
            for stack, plan in zip(stacks, plans, strict=True):
                stack.end_look_up(plan)
            with self._lock:
                for stack, plan in zip(stacks, plans, strict=True):
                    stack.moving = plan
                begun = perf_counter()
                is_begun = self._verbs.begin_reserve(plans)
                if not is_begun:  # slots have moved since the look-up, or when one was taken back
                    for stack in stacks:
                        stack.moving = None
                    self._verbs.look_again(plans)
                self._share(stacks, begun)
            if is_begun:
                return self._verbs.end_reserve(plans)

    def _fill(self, stacks: Sequence[TableStack], plans: Sequence[BatchPlan]) -> None:
        """Phases 2 and 3, of tables that were granted. Within the turns."""
        brought = []
        for stack, plan in zip(stacks, plans, strict=True):
            cache = stack.cache
            rows, found = stack.exchange_rows(
                cache.victims(plan), cache.missing_keys(plan), room=stack.room_for(plan)
            )
            brought.append(RowsOfTable(cache, plan, rows, found, float(stack.rates[stack.name])))
        with self._lock:
            begun = perf_counter()
            self._verbs.fill(brought)
            self._share(stacks, begun)
            for stack, plan in zip(stacks, plans, strict=True):
                stack.moving = None
                stack.counters.hits += plan.num_unique - plan.num_missing
                stack.counters.misses += plan.num_missing

    def _give_back(self, stacks: Sequence[TableStack], plans: Sequence[BatchPlan]) -> None:
        with self._lock:
            self._verbs.abandon(plans)
            for stack in stacks:
                stack.moving = None

    def pool(self, reads: Sequence["PooledRead"]) -> bool:
        """Pools reads of pinned rows of this server, each of a table of its own. False, and nothing
        is done, if one of them is anything else."""
        with self._lock:
            bags = self._verbs.new_bags()
            if not _C.pinned_reads(bags, list(reads), self._stacks, BatchRows):
                return False
            begun = perf_counter()
            self._verbs.pool(bags)
            self._share_of(bags, begun)
            return True

    def pool_placed(self, rows: Parts, places: "Places", out: "torch.Tensor") -> bool:
        """Pools the bags of the tables of `places` into out, float32 [B, width]. False, and nothing
        is done, if rows of one were released."""
        with self._lock:
            bags = self._bags_at(rows, places, out, ())
            if bags is None:
                return False
            begun = perf_counter()
            self._verbs.pool(bags)
            self._share_of(bags, begun)
            return True

    def find_placed(self, update: "JointUpdate", rates: dict[str, float]) -> _C.DeviceBags | None:
        """The gradients of an update of PlacedRows; None if rows of a table were released. Under
        the lock."""
        assert_held(self._lock)
        rows, places = cast("Parts", update.rows), update.places
        bags = self._bags_at(rows, places, update.grads.float(), [rates[t] for t in places.tables])
        if bags is not None:
            bags.drop_empty()
        return bags

    def _bags_at(
        self, rows: Parts, places: "Places", values: "torch.Tensor", rates: Sequence[float]
    ) -> _C.DeviceBags | None:
        """The bags of PlacedRows, side by side in values, float32 [B, width]. Under the lock."""
        assert places.first_columns is not None, "features of a table that do not follow each other"
        bags = self._verbs.new_bags()
        own, poolings = rows.parts(places.tables)
        means, firsts, counts = places.are_means, places.first_columns, places.counts
        is_held = _C.placed_bags(
            bags, own, poolings, means, firsts, counts, values, rates, BatchRows
        )
        return bags if is_held else None

    def hold_all(self, rows: Iterable[BatchRows]) -> bool:
        """True if none of these rows was released."""
        given = list(rows)
        with self._lock:
            plans = _C.held_plans(given, BatchRows)
        return plans is not None and len(plans) == len(given)

    def pool_rows(self, asked: "Sequence[tuple[BatchRows, BagPooling, torch.Tensor]]") -> None:
        """As BatchRows.pool of each.

        Raises:
            ConfigError: rows of a table were released, or are of another number of keys; nothing is
                pooled.
        """
        with self._lock:
            tables = []
            for rows, pooling, out in asked:
                plan = rows.held_plan()
                pooling.check(plan.num_occurrences, f"the pinned rows of table {rows.table!r}")
                own: Any = (*pooling.tensors(), pooling.is_mean, out)
                tables.append(BagsOfTable(rows.stack.cache, plan, *own))
            begun = perf_counter()
            self._verbs.pool(self._verbs.bags_of(tables))
            self._share([rows.stack for rows, _, _ in asked], begun)

    def find_bags(
        self, updates: Sequence["RowUpdate"], rates: dict[str, float]
    ) -> _C.DeviceBags | None:
        """The gradients of updates, each of a table of its own, of rows that are pinned, and of
        that server; None if one of them is anything else. Under the lock."""
        assert_held(self._lock)
        bags = self._verbs.new_bags()
        if not _C.pinned_updates(bags, list(updates), self._stacks, BatchRows, rates):
            return None
        bags.drop_empty()
        return bags

    def bags_of(
        self, work: Sequence[tuple[TableStack, BatchRows, Floats, PoolArguments | None]]
    ) -> _C.DeviceBags:
        """The gradients of work that was looked at table by table. Under the lock."""
        assert_held(self._lock)
        tables, rates = [], []
        for stack, rows, grads, bags in work:
            offsets, weights, mean = (None, None, False) if bags is None else bags
            plan = rows.held_plan()
            tables.append(BagsOfTable(stack.cache, plan, offsets, weights, mean, grads))
            rates.append(float(stack.rates[stack.name]))
        return self._verbs.bags_of(tables, rates)

    def sum_gradients(self, bags: _C.DeviceBags, stacks: Sequence[TableStack]) -> None:
        """As TableStack.sum_gradients of each; what is not finite is told later. Under the lock."""
        assert_held(self._lock)
        begun = perf_counter()
        self._verbs.sum_gradients(bags)
        self._verbs.find_overflow(bags)
        self._share(stacks, begun)

    def apply(
        self,
        bags: _C.DeviceBags,
        stacks: Sequence[TableStack],
        applied: Callable[[], object] | None,
    ) -> None:
        """As TableStack.applying of each, and `applied` with it. Under the lock."""
        assert_held(self._lock)
        for stack in stacks:
            stack.changes += 1
        begun = perf_counter()
        self._verbs.apply(bags, applied)
        self._share(stacks, begun)

    def release(self, rows: Sequence[object]) -> bool:
        """As BatchRows.release of each; may be repeated, after an interrupt. False, and nothing is
        done, if one of them is of another kind."""
        given = list(rows)
        with self._lock:
            plans = _C.held_plans(given, BatchRows)
            if plans is None:
                return False
            self._verbs.abandon(cast("list[BatchPlan]", plans))
            _C.give_up_plans(given, MAX_IDLE_PLANS)
        return True

    def count(self) -> None:
        """Adds what was counted to the counters of the tables."""
        with self._lock:
            seconds, self._seconds = self._seconds, 0.0
            for stack in self._stacks.values():
                stack.counters.seconds += seconds / len(self._stacks)
                stack.counters.hits += cast("_C.DeviceTable", stack.cache).take_hits()

    def _share_of(self, bags: _C.DeviceBags, begun: float) -> None:
        """As _share, of the tables of bags that were read of rows."""
        if len(bags) == len(self._stacks):
            self._seconds += perf_counter() - begun
        else:
            self._share(bags.stacks, begun)

    def _share(self, stacks: Sequence[TableStack], begun: float) -> None:
        """Adds what a verb took to the counters of its tables, as if each had taken as long. Under
        the lock."""
        assert_held(self._lock)
        seconds = perf_counter() - begun
        if len(stacks) == len(self._stacks):
            self._seconds += seconds
            return
        for stack in stacks:
            stack.counters.seconds += seconds / len(stacks)
