"""Reserves: slots for the missing rows of a step, and those rows: one launch a kernel for all
tables of a device.

Above it: device_batch.py. Below it: hps._C.DeviceVerbs, which packs what kernels are given; the
kernels of csrc/gpu_cache/reserve_kernels.h. What the host has to know of a reserve, the kernels
write to pinned memory of the host, all tables' to one piece: it waits once, for the last of them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from hps import _C
from hps.contracts.table_verbs import RowsOfTable
from hps.gpu_cache.answers import Answers
from hps.gpu_cache.batched_cache import cache_of
from hps.gpu_cache.device import Device, VerbOrder
from hps.gpu_cache.device_plan import DevicePlan, State
from hps.gpu_cache.pinned import PinnedPool

# Rounds of tables that had a free slot when they were looked up, and of all tables.
_FREE_SLOTS = ("PlaceFirst", 1, "GroupByEmptier", 1, "PlaceEmptier", 1, "PlaceOther", 1)
_VICTIMS = ("PlaceVictimFirst", 2, "PlaceVictimSecond", 2)


class Reserves:
    """What is queued within the verbs of a DeviceBatch; keeps pinned memory alone.

    Args:
        device: of the caches.
        order: of its verbs.
        native: its packer.
    """

    def __init__(self, device: Device, order: VerbOrder, native: _C.DeviceVerbs) -> None:
        self._device = device
        self._pool = PinnedPool(device, order)
        self._native = native

    def begin(self, plans: list[DevicePlan]) -> None:
        """Of plans whose windows were looked up, with numbers that are known. Within a verb."""
        caches = [cache_of(plan) for plan in plans]
        missing = [plan.num_missing for plan in plans]
        # No slot is taken, and none has all the pins that it can have: the host knows the answer.
        is_sure = all(cache.has_pins for cache in caches) and not any(missing)
        for cache, plan in zip(caches, plans, strict=True):
            cache.note_held(plan)
        # May find no memory; nothing is queued by then. As much as if every key's slot had a row
        # that goes down: how many there are, the host does not know yet.
        sizes = [(count, one.row_bytes) for one, count in zip(caches, missing, strict=True)]
        answers = None if is_sure else Answers(self._pool, sizes)
        for at, (cache, plan) in enumerate(zip(caches, plans, strict=True)):
            if missing[at]:
                # Refused or not: what was found before may have moved, for all the host knows.
                cache.epoch += 1
            plan.epoch = cache.epoch
            plan.victims = plan.missing = plan.incoming = None
            if answers is not None:
                plan.expect(answers, at)
        self._queue(plans, answers)

    def _queue(self, plans: list[DevicePlan], answers: Answers | None) -> None:
        """All kernels of a reserve."""
        told: dict[str, list[int]] = {"victims": [], "told": [], "told_keys": []}
        if answers is not None:
            told = answers.addresses
        block = self._native.reserve(plans, **told, stream=self._device.stream())
        queue = partial(block.launch, "Pin", 0, *_FREE_SLOTS, *_VICTIMS, "CommitEntry", 3)
        if answers is None:
            _C.call_all([queue, *_becoming(State.RESERVED, plans)])
        else:
            _C.call_all([queue, *answers.note_queued])
            answers.note_point()

    def fill(self, tables: Sequence[RowsOfTable]) -> None:
        """See TableVerbs. Within a verb."""
        for one in tables:
            plan, count = cast("DevicePlan", one.plan), one.plan.num_missing
            assert plan.state is State.RESERVED, f"fill in state {plan.state}"
            if one.rows.shape != (count, cache_of(plan).row_bytes) or one.found.shape != (count,):
                raise ValueError("rows [missing, row_bytes] and found [missing] are needed")
        lacking = [one for one in tables if len(one.found)]
        plans = [cast("DevicePlan", one.plan) for one in tables]
        if lacking:
            self._fill(lacking, partial(_C.set_pinned, plans))
        else:
            _C.set_pinned(plans)

    def _fill(self, tables: Sequence[RowsOfTable], note: Callable[[], None]) -> None:
        """Of tables that lack rows; `note`, a native call, comes with the queueing."""
        plans = [cast("DevicePlan", one.plan) for one in tables]
        arriving = [plan.arriving(one.rows) for one, plan in zip(tables, plans, strict=True)]
        block = self._native.fill(
            plans,
            [address for _, address in arriving],
            [one.found for one in tables],
            [one.create for one in tables],
            [one.lr for one in tables],
            self._device.stream(),
        )
        read = list(dict.fromkeys(answers for answers, _ in arriving))
        queue = partial(block.launch, "FillRow", 0)
        _C.call_all([queue, note, *(answers.note_read for answers in read)])
        for answers in read:
            answers.note_point()
        for plan in plans:
            plan.answers = None

    def cancel(self, plans: list[DevicePlan]) -> None:
        """Takes back what plans have reserved. Within a verb."""
        assert all(plan.state is State.RESERVED for plan in plans), "cancel of what has no slots"
        block = self._native.release(plans, self._device.stream())
        for plan in plans:
            cache_of(plan).epoch += 1
        _C.call_all([partial(block.launch, "Cancel", 0), *_becoming(State.KEYS, plans)])
        for plan in plans:
            plan.victims = plan.missing = plan.incoming = plan.answers = None
            cache_of(plan).let_go(plan)


def _becoming(state: State, plans: Sequence[DevicePlan]) -> list[Callable[[], None]]:
    """To be called where no interrupt may come between."""
    return [partial(setattr, plan, "state", state) for plan in plans]
