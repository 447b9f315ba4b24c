"""Reserves: slots for the missing rows of a step, and those rows: one launch a kernel for all
tables of a device.

Above it: device_batch.py. Below it: table_block.py, the kernels of
csrc/gpu_cache/reserve_kernels.h. What the host has to know of a reserve, the kernels write to
pinned memory of the host, all tables' to one piece: it waits once, for the last of them.
"""

from collections.abc import Sequence
from typing import cast

from hps.common.arrays import HostArray
from hps.contracts.table_verbs import OfTable, RowsOfTable
from hps.gpu_cache.answers import Answers
from hps.gpu_cache.batched_cache import BatchedCache
from hps.gpu_cache.device import Device, Memory, VerbOrder
from hps.gpu_cache.device_plan import DevicePlan, State
from hps.gpu_cache.device_sums import starts_of
from hps.gpu_cache.table_block import TableBlock

# Rounds of tables that had a free slot when they were looked up, and of all tables.
_FREE_SLOTS = ("PlaceFirst", "GroupByEmptier", "PlaceEmptier", "PlaceOther")
_VICTIMS = ("PlaceVictimFirst", "PlaceVictimSecond")
_ALIGNMENT = 16  # of row images


class Reserves:
    """Verbs over caches of one device; keeps nothing.

    Args:
        device: of the caches.
        order: of their verbs.
    """

    def __init__(self, device: Device, order: VerbOrder) -> None:
        self._device = device
        self._order = order

    def begin(self, tables: Sequence[OfTable]) -> bool:
        """See TableVerbs.begin_reserve."""
        pairs = _pairs(tables)
        if not all(
            plan.state is State.FOUND and plan.epoch == cache.epoch for cache, plan in pairs
        ):
            return False
        if not pairs:
            return True
        missing = [plan.num_missing for _, plan in pairs]
        # No slot is taken, and none has all the pins that it can have: the host knows the answer.
        is_sure = all(cache.has_pins for cache, _ in pairs) and not any(missing)
        for cache, plan in pairs:
            cache.note_held(plan)
        with self._order.verb(*_memory(tables)):
            # May find no memory; nothing is queued by then. As much as if every key's slot had a
            # row that goes down: how many there are, the host does not know yet.
            sizes = [(count, one.row_bytes) for (one, _), count in zip(pairs, missing, strict=True)]
            answers = None if is_sure else Answers(self._device, sizes)
            self._queue(pairs, missing, answers)
            for at, (cache, plan) in enumerate(pairs):
                if missing[at]:
                    # Refused or not: what was found before may have moved, for all the host knows.
                    cache.epoch += 1
                plan.epoch = cache.epoch
                if answers is None:
                    plan.grant()
                else:
                    plan.expect(answers, at)
        return True

    def _queue(
        self,
        pairs: "Sequence[tuple[BatchedCache, DevicePlan]]",
        missing: Sequence[int],
        answers: "Answers | None",
    ) -> None:
        """All kernels of a reserve. Within a verb."""
        plans = [plan for _, plan in pairs]
        windows = [plan.bound for plan in plans]
        filling = [
            count if count and not plan.found_full else 0
            for plan, count in zip(plans, missing, strict=True)
        ]
        commits = [max(1, count) for count in missing]
        told: dict[str, Sequence[float] | float] = {"victims": 0, "told": 0, "told_keys": 0}
        if answers is not None:
            told |= answers.addresses
        block = TableBlock(
            self._device,
            "Pin",
            plans,
            [windows, filling, missing, commits],
            told | {"bound": commits},
        )
        block.launch("Pin", 0)
        for kernel in _FREE_SLOTS:
            block.launch(kernel, 1)
        for kernel in _VICTIMS:
            block.launch(kernel, 2)
        block.launch("CommitEntry", 3)
        if answers is not None:
            answers.are_queued()

    def fill(self, tables: Sequence[RowsOfTable]) -> None:
        """See TableVerbs."""
        for one in tables:
            plan, count = cast("DevicePlan", one.plan), one.plan.num_missing
            assert plan.state is State.RESERVED, f"fill in state {plan.state}"
            row_bytes = cast("BatchedCache", one.cache).row_bytes
            if one.rows.shape != (count, row_bytes) or one.found.shape != (count,):
                raise ValueError("rows [missing, row_bytes] and found [missing] are needed")
        lacking = [one for one in tables if len(one.found)]
        with self._order.verb(*_memory(tables)):
            if lacking:
                self._fill(lacking)
        for one in tables:
            plan = cast("DevicePlan", one.plan)
            plan.state = State.PINNED
            plan.has_rows = True

    def _fill(self, tables: Sequence[RowsOfTable]) -> None:
        """Of tables that lack rows. Within a verb."""
        device, counts = self._device, [len(one.found) for one in tables]
        # Rows that nobody stored are made on the device.
        sizes = [one.rows.nbytes if one.found.any() else 0 for one in tables]
        images = starts_of([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes])
        flags = [images[-1] + start for start in starts_of(counts)]
        pinned = device.empty_pinned(flags[-1])
        host: HostArray = pinned.numpy()
        for one, size, at, flag in zip(tables, sizes, images, flags, strict=False):
            if size:
                host[at : at + size] = one.rows.reshape(-1)
            host[flag : flag + len(one.found)] = one.found
        memory = device.empty(flags[-1])
        device.copy(memory, pinned)
        base = memory.data_ptr()
        block = TableBlock(
            device,
            "FillRow",
            [cast("DevicePlan", one.plan) for one in tables],
            [counts],
            {
                "images": [base + at for at in images[:-1]],
                "found": [base + at for at in flags[:-1]],
                "bound": counts,
                "creates": [one.create for one in tables],
                "lr": [one.lr for one in tables],
            },
        )
        block.launch("FillRow", 0)

    def cancel(self, tables: Sequence[OfTable]) -> None:
        """Takes back what plans have reserved."""
        pairs = _pairs(tables)
        assert all(plan.state is State.RESERVED for _, plan in pairs), "cancel of what has no slots"
        if not pairs:
            return
        plans = [plan for _, plan in pairs]
        bounds = [plan.bound for plan in plans]
        with self._order.verb(*_memory(tables)):
            fields: dict[str, Sequence[float] | float]
            fields = {"bound": bounds, "victims": 0, "told": 0, "told_keys": 0}
            block = TableBlock(self._device, "Cancel", plans, [bounds], fields)
            block.launch("Cancel", 0)
        for cache, plan in pairs:
            cache.epoch += 1
            plan.forget_reserve()
            cache.let_go(plan)


def _pairs(tables: Sequence[OfTable]) -> "list[tuple[BatchedCache, DevicePlan]]":
    return [(cast("BatchedCache", one.cache), cast("DevicePlan", one.plan)) for one in tables]


def _memory(tables: "Sequence[OfTable | RowsOfTable]") -> list[Memory]:
    """Of the tables and of their batches."""
    found = []
    for one in tables:
        cache, plan = cast("BatchedCache", one.cache), cast("DevicePlan", one.plan)
        found += [cache.piece, *plan.pieces()]
    return found
