"""TablesTogether: what a step asks of the rows of several tables on one device, asked at once; how
their missing rows come.

Above it: parameter_server/rows.py (pull_tables), parameter_server/batches.py (pin, apply,
release).
Below it: the verbs of the caches' device (hps/contracts/table_verbs.py), BatchRows. Caches of the
host have none of this: their tables are asked one by one, or by a native batch (joint_rows.py).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, cast

from hps import _C
from hps.common.arrays import AnyArray, PoolArguments
from hps.common.locks import OwnedLock, assert_held
from hps.common.row_layout import Floats, Keys
from hps.contracts.table_verbs import (
    BagsOfTable,
    CacheBesideOthers,
    KeysOfTable,
    OfTable,
    RowsOfTable,
    TableVerbs,
)
from hps.tiers.batch_rows import BatchRows
from hps.tiers.top_tier import TableStack

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling
    from hps.contracts.tiers import Flags


class TablesTogether:
    """Verbs over the pinned rows of several tables, no table twice in a call.

    Args:
        verbs: of their caches.
        lock: the server's.
        device: of the caches, as torch names it.
        stacks: the server's, in its order.
    """

    def __init__(
        self, verbs: TableVerbs, lock: OwnedLock, device: str, stacks: Sequence[TableStack]
    ) -> None:
        self._verbs = verbs
        # In which turns are taken by all who take several.
        self._places = {stack.name: place for place, stack in enumerate(stacks)}
        self._lock = lock
        self._device = device

    @classmethod
    def of(
        cls, stacks: Iterable[TableStack], lock: OwnedLock, device: str
    ) -> "TablesTogether | None":
        """Of a server's tables, or None if each of them is to be asked by itself."""
        stacks = list(stacks)
        caches = [stack.cache for stack in stacks]
        found = [one.together if isinstance(one, CacheBesideOthers) else None for one in caches]
        if not found or found[0] is None or any(verbs is None for verbs in found):
            return None
        return cls(found[0], lock, device, stacks)

    def ask(self, keys: Sequence[tuple[TableStack, Keys]]) -> list[Callable[[], "Flags"]]:
        """As CachedTier.ask of each. Under the lock, which what it returns does not need."""
        assert_held(self._lock)
        return self._verbs.ask([(stack.cache, own) for stack, own in keys])

    def look_up(self, asked: Sequence[tuple[BatchRows, AnyArray]]) -> None:
        """Queues the look-up of the keys of rows that were begun, which pins those of each table
        that has them all: no slot is taken for that, and no other batch's fetch waited for. Under
        the lock."""
        assert_held(self._lock)
        if not asked:  # a batch of dense features alone
            return
        begun = perf_counter()
        self._verbs.look_up(
            [
                KeysOfTable(
                    rows.stack.cache, rows.held_plan(), keys, pins=rows.stack.moving is None
                )
                for rows, keys in asked
            ]
        )
        _share([rows.stack for rows, _ in asked], perf_counter() - begun)

    def pin_found(self, rows: Sequence[BatchRows]) -> list[BatchRows]:
        """Those of rows that were looked up which are pinned. After the look-up was waited for."""
        with self._lock:
            tables = [OfTable(one.stack.cache, one.held_plan()) for one in rows]
            is_pinned = self._verbs.pin_found(tables)
            pinned = [one for one, is_done in zip(rows, is_pinned, strict=True) if is_done]
            for one in pinned:
                one.stack.counters.hits += one.held_plan().num_unique
            return pinned

    def bring(self, rows: Sequence[BatchRows]) -> None:
        """As TableStack.pin of each: takes the turns of all of them, and waits once for the slots
        of all, whose rows then come table by table. After the look-up was waited for.

        Raises:
            CapacityError: the rows of a table cannot all be held; nothing is.
        """
        rows = sorted(rows, key=lambda one: self._places[one.table])
        stacks = [one.stack for one in rows]
        with self._lock:
            tables = [OfTable(one.stack.cache, one.held_plan()) for one in rows]
        with _C.Turns([stack.turn for stack in stacks]):
            try:
                granted = self._reserve(stacks, tables)
                if all(granted):
                    self._fill(stacks, tables)
            except BaseException:
                self._give_back(stacks, tables)
                raise
            if not all(granted):
                self._give_back(stacks, tables)
        for stack, table, is_granted in zip(stacks, tables, granted, strict=True):
            if not is_granted:
                with self._lock:
                    raise stack.capacity_error(table.plan.unique_keys)

    def _reserve(self, stacks: Sequence[TableStack], tables: Sequence[OfTable]) -> list[bool]:
        """Phase 1 of CachedTier, of all tables: which were granted. Within the turns."""
        while True:
            for stack, table in zip(stacks, tables, strict=True):
                stack.end_look_up(table.plan)
            with self._lock:
                for stack, table in zip(stacks, tables, strict=True):
                    stack.moving = table.plan
                begun = perf_counter()
                is_begun = self._verbs.begin_reserve(tables)
                if not is_begun:  # slots have moved since the look-up, or when one was taken back
                    for stack in stacks:
                        stack.moving = None
                    self._verbs.look_again(tables)
                _share(stacks, perf_counter() - begun)
            if is_begun:
                return self._verbs.end_reserve(tables)

    def _fill(self, stacks: Sequence[TableStack], tables: Sequence[OfTable]) -> None:
        """Phases 2 and 3, of tables that were granted. Within the turns."""
        brought = []
        for stack, (cache, plan, _) in zip(stacks, tables, strict=True):
            rows, found = stack.exchange_rows(cache.victims(plan), cache.missing_keys(plan))
            brought.append(RowsOfTable(cache, plan, rows, found, float(stack.rates[stack.name])))
        with self._lock:
            begun = perf_counter()
            self._verbs.fill(brought)
            _share(stacks, perf_counter() - begun)
            for stack, (_, plan, _) in zip(stacks, tables, strict=True):
                stack.moving = None
                stack.counters.hits += plan.num_unique - plan.num_missing
                stack.counters.misses += plan.num_missing

    def _give_back(self, stacks: Sequence[TableStack], tables: Sequence[OfTable]) -> None:
        with self._lock:
            self._verbs.abandon(tables)
            for stack in stacks:
                stack.moving = None

    def pool(self, asked: "Sequence[tuple[BatchRows, BagPooling, torch.Tensor]]") -> None:
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
                bags = pooling.arguments(self._device)
                tables.append(BagsOfTable(rows.stack.cache, plan, *bags, cast("Floats", out)))
            begun = perf_counter()
            self._verbs.pool(tables)
            _share([rows.stack for rows, _, _ in asked], perf_counter() - begun)

    def sum_gradients(
        self, work: Sequence[tuple[TableStack, BatchRows, Floats, PoolArguments | None]]
    ) -> None:
        """As TableStack.sum_gradients of each; what is not finite is told later. Under the lock."""
        assert_held(self._lock)
        tables = []
        for stack, rows, grads, bags in work:
            offsets, weights, mean = (None, None, False) if bags is None else bags
            plan = rows.held_plan()
            tables.append(BagsOfTable(stack.cache, plan, offsets, weights, mean, grads))
        begun = perf_counter()
        self._verbs.sum_gradients(tables)
        self._verbs.find_overflow([_of(stack, rows) for stack, rows, _, _ in work])
        _share([stack for stack, *_ in work], perf_counter() - begun)

    def applying(self, work: Sequence[tuple[TableStack, BatchRows]]) -> Callable[[], None]:
        """As TableStack.applying of each: one call. Under the lock."""
        assert_held(self._lock)
        for stack, _ in work:
            stack.changes += 1
        return partial(self._verbs.apply, [_of(stack, rows) for stack, rows in work])

    def release(self, rows: Sequence[BatchRows]) -> None:
        """As BatchRows.release of each; may be repeated, after an interrupt."""
        with self._lock:
            held = [one for one in rows if one.plan is not None]
            self._verbs.abandon([OfTable(one.stack.cache, one.held_plan()) for one in held])
            for one in held:
                one.give_up_plan()


def _of(stack: TableStack, rows: BatchRows) -> OfTable:
    return OfTable(stack.cache, rows.held_plan(), float(stack.rates[stack.name]))


def _share(stacks: Sequence[TableStack], seconds: float) -> None:
    """Adds what a verb took to the counters of its tables, as if each had taken as long."""
    for stack in stacks:
        stack.counters.seconds += seconds / len(stacks)
