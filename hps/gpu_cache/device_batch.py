"""DeviceBatch: a step's verbs over the tables of a device: one launch a kernel for all of them.

Above it: device_cache.py, whose verbs are the case of one table; the server's batches, for a whole
step (hps/contracts/table_verbs.py). Below it: table_block.py, device_sums.py, and the kernels of
csrc/gpu_cache that are given Tables. Tables of several optimizers are tried and applied by a launch
for each kind of optimizer among them: one kernel for all would take the registers of the greediest.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hps.common.arrays import AnyArray
from hps.contracts.row_cache import AnyRowCache
from hps.contracts.table_verbs import BagsOfTable, KeysOfTable, OfTable, RowsOfTable
from hps.gpu_cache.batched_cache import BatchedCache
from hps.gpu_cache.device import Device, HostCopy, HostPart, Memory, to_device
from hps.gpu_cache.device_plan import FLAGS_A_WORD, DevicePlan, State
from hps.gpu_cache.device_reserve import Reserves
from hps.gpu_cache.device_sums import Sums, SumsArena, TableSizes, float_sizes, starts_of
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.table_block import TableBlock

_AnyOfTable = OfTable | BagsOfTable | KeysOfTable
_Given = tuple[
    BatchedCache, DevicePlan, torch.Tensor | None, torch.Tensor | None, bool, Any
]  # BagsOfTable, whose arrays are tensors but for gradients of occurrences
_POOL_FIELDS = ("offsets", "weights", "out", "num_examples", "num_features", "is_mean")


class DeviceBatch:
    """Verbs over caches of one device; keeps nothing.

    Args:
        device: of the caches.
        failures: their flag.
    """

    def __init__(self, device: Device, failures: Failures) -> None:
        self._device = device
        self._failures = failures
        self._reserves = Reserves(device, failures.order)

    # hps/contracts/table_verbs.py says what each does.

    def ask(
        self, tables: Sequence[tuple[AnyRowCache, AnyArray]]
    ) -> list[Callable[[], NDArray[np.uint8]]]:
        """See TableVerbs."""
        device, lengths = self._device, [len(keys) for _, keys in tables]
        starts = starts_of(lengths)
        if starts[-1] == 0:
            return [lambda: np.empty(0, np.uint8)] * len(tables)
        caches = [cast("BatchedCache", cache) for cache, _ in tables]
        with self._failures.order.verb(*[cache.piece for cache in caches]):
            given = self._keys_on_device([keys for _, keys in tables])
            presence = device.empty(starts[-1])
            base = presence.data_ptr()
            block = TableBlock(
                device,
                "Contains",
                caches,
                [lengths],
                {
                    "keys": [one.data_ptr() for one in given],
                    "presence": [base + start for start in starts[:-1]],
                    "slots": 0,
                    "first_pinned": 0,
                },
            )
            block.launch("Contains", 0)
            copy = HostCopy(device, presence)
        return [HostPart(copy, *ends).wait for ends in pairwise(starts)]

    def _keys_on_device(self, arrays: Sequence[AnyArray]) -> list[torch.Tensor]:
        """int64 [n] of each, those of the host in one piece of memory. Within a verb."""
        device = self._device
        of_host = {
            at: np.ascontiguousarray(keys).view(np.int64)
            for at, keys in enumerate(arrays)
            if not (isinstance(keys, torch.Tensor) and keys.device == device.torch_device)
        }
        found: dict[int, torch.Tensor] = {}
        if of_host:
            starts = starts_of([len(keys) for keys in of_host.values()])
            copied = device.empty(8 * max(1, starts[-1])).view(torch.int64)[: starts[-1]]
            to_device(device, np.concatenate(list(of_host.values())), copied)
            parts = [copied[first:end] for first, end in pairwise(starts)]
            found = dict(zip(of_host, parts, strict=True))
        return [
            found[at] if at in found else cast("torch.Tensor", keys).view(torch.int64)
            for at, keys in enumerate(arrays)
        ]

    def look_up(self, tables: Sequence[KeysOfTable]) -> None:
        """See TableVerbs."""
        self.make_plans(tables)
        for one, cache, plan in zip(tables, _caches(tables), _plans(tables), strict=True):
            plan.set_window(0, -1)
            # Of rows that may have all their pins the host has to hear.
            if one.pins and cache.has_pins:
                cache.note_held(plan)
                plan.pins_if_whole = True
        self.find([OfTable(one.cache, one.plan) for one in tables])

    def make_plans(self, tables: Sequence[KeysOfTable]) -> None:
        """The keys become the plans', and are numbered."""
        for one in tables:
            one.cache.abandon(one.plan)
        device, plans = self._device, _plans(tables)
        lengths = [len(one.keys) for one in tables]
        on_device = [one.keys for one in tables if isinstance(one.keys, torch.Tensor)]
        with self._failures.order.verb(*_memory(tables), *on_device):
            for plan, length in zip(plans, lengths, strict=True):
                plan.prepare(length)
            given = self._keys_on_device([one.keys for one in tables])
            block = TableBlock(
                device,
                "PlaceKey",
                plans,
                [
                    [plan.num_id_entries for plan in plans],
                    lengths,
                    [-(-length // FLAGS_A_WORD) for length in lengths],
                ],
                {"keys": [one.data_ptr() for one in given]},
            )
            block.launch("BeginPlan", 0)
            block.launch("PlaceKey", 1)
            block.launch("ListFirst", 2)
            block.launch("NumberKey", 1)

    def find(self, tables: Sequence[OfTable]) -> None:
        """Looks each plan's window up, which was set."""
        device, plans, caches = self._device, _plans(tables), _caches(tables)
        states = {plan.state for plan in plans}
        assert states <= {State.KEYS, State.FOUND}, f"a look-up in states {states}"
        bounds, size = [plan.bound for plan in plans], device.args.dtype("BatchNumbers").itemsize
        words = [-(-bound // FLAGS_A_WORD) for bound in bounds]
        with self._failures.order.verb(*_memory(tables)):
            # May find no memory; nothing is queued by then, so that nothing is half done.
            told, host = device.empty(size * len(plans)), device.empty_pinned(size * len(plans))
            block = TableBlock(
                device,
                "FindSlot",
                plans,
                [
                    [max(1, bound) for bound in bounds],
                    [max(1, count) for count in words],
                    [max(own, cache.num_swept) for own, cache in zip(words, caches, strict=True)],
                ],
                {
                    "first": [plan.first for plan in plans],
                    "count": [plan.count for plan in plans],
                    "bound": bounds,
                    "told": [told.data_ptr() + size * at for at in range(len(plans))],
                    "pins": [plan.pins_if_whole for plan in plans],
                },
            )
            block.launch("FindSlot", 0)
            block.launch("ListMissing", 1)
            copy = HostCopy(device, told, host)
            block.launch("EndFind", 2)
        for at, (cache, plan) in enumerate(zip(caches, plans, strict=True)):
            plan.found(HostPart(copy, at * size, (at + 1) * size), cache.epoch)

    def look_again(self, tables: Sequence[OfTable]) -> None:
        """See TableVerbs."""
        moved = [
            one
            for one, cache, plan in zip(tables, _caches(tables), _plans(tables), strict=True)
            if plan.state is not State.FOUND or plan.epoch != cache.epoch
        ]
        for plan in _plans(moved):
            plan.set_window(0, -1)
        if moved:
            self.find(moved)

    def begin_reserve(self, tables: Sequence[OfTable]) -> bool:
        """See TableVerbs."""
        return self._reserves.begin(tables)

    def end_reserve(self, tables: Sequence[OfTable]) -> list[bool]:
        """See TableVerbs."""
        return [
            plan.settle(cache.row_bytes)
            for cache, plan in zip(_caches(tables), _plans(tables), strict=True)
        ]

    def fill(self, tables: Sequence[RowsOfTable]) -> None:
        """See TableVerbs."""
        self._reserves.fill(tables)

    def pin_found(self, tables: Sequence[OfTable]) -> list[bool]:
        """See TableVerbs."""
        pinned = [plan.end_pinning() for plan in _plans(tables)]
        for cache, plan, is_pinned in zip(_caches(tables), _plans(tables), pinned, strict=True):
            if not is_pinned:
                cache.let_go(plan)
        return pinned

    def abandon(self, tables: Sequence[OfTable]) -> None:
        """See TableVerbs."""
        by_state: dict[State, list[OfTable]] = {}
        for one, cache, plan in zip(tables, _caches(tables), _plans(tables), strict=True):
            plan.settle(cache.row_bytes)
            plan.end_pinning()
            by_state.setdefault(plan.state, []).append(one)
            if plan.state not in (State.RESERVED, State.PINNED):
                cache.let_go(plan)
        self._reserves.cancel(by_state.get(State.RESERVED, []))
        self.release(by_state.get(State.PINNED, []))

    def release(self, tables: Sequence[OfTable]) -> None:
        """Drops the pins of plans that pin their windows."""
        plans = _plans(tables)
        assert all(plan.state is State.PINNED for plan in plans), "release of what is not pinned"
        bounds = [plan.bound for plan in plans]
        if not plans:
            return
        with self._failures.order.verb(*_memory(tables)):
            block = TableBlock(
                self._device,
                "Release",
                plans,
                [bounds],
                {"bound": bounds, "victims": 0, "told": 0, "told_keys": 0},
            )
            block.launch("Release", 0)
        for cache, plan in zip(_caches(tables), plans, strict=True):
            # Rows may have moved since the reserve if other batches reserved meanwhile.
            plan.state = State.FOUND
            cache.let_go(plan)

    def pool(self, tables: Sequence[BagsOfTable]) -> None:
        """See TableVerbs; offsets, weights and values are tensors on the device."""
        plans, items, rows = [], [], []
        given = self._given(tables)
        for cache, plan, offsets, weights, mean, out in given:
            assert cache.is_current(plan) and plan.is_whole_batch, "pool of rows not in place"
            assert offsets is not None, "a pool has bags"
            examples, width = out.shape
            features = width // cache.dim
            cache.check_floats(out, (examples, features * cache.dim), "out [B, F * dim]")
            _check_offsets(offsets)
            if offsets.shape[0] != examples * features + 1:
                raise ValueError("offsets [F * B + 1] are needed")
            if examples * features == 0:
                continue
            plans.append(plan)
            items.append(examples * features)
            factors = 0 if weights is None else weights.data_ptr()
            rows.append((offsets.data_ptr(), factors, out.data_ptr(), examples, features, mean))
        if not plans:
            return
        fields = dict(zip(_POOL_FIELDS, zip(*rows, strict=True), strict=True))
        with self._failures.order.verb(*_memory(tables)):
            TableBlock(self._device, "Pool", plans, [items], fields).launch("Pool", 0)

    def sum_gradients(self, tables: Sequence[BagsOfTable]) -> None:
        """See TableVerbs; offsets and weights are tensors on the device, gradients may be arrays of
        the host."""
        given = self._given(tables)
        for cache, plan, offsets, _, _, grads in given:
            if offsets is None:
                shape = (plan.num_occurrences, cache.dim)
                cache.check_floats(grads, shape, "grads [L, dim]")
            else:
                _check_offsets(offsets)
                shape = (offsets.shape[0] - 1, cache.dim)
                cache.check_floats(grads, shape, "grads [F * B, dim]")
        given = [one for one in given if one[1].num_occurrences]
        if not given:
            return
        own = [one for _, _, _, *rest in given for one in rest if isinstance(one, torch.Tensor)]
        with self._failures.order.verb(*_memory(given), *own):
            self._sum(given)

    def _given(self, tables: Sequence[BagsOfTable]) -> "list[_Given]":
        """As they are given, of bags all tensors."""
        given: list[_Given] = []
        for cache, plan, offsets, weights, mean, values in cast("Sequence[_Given]", tables):
            if offsets is None:
                given.append((cache, plan, None, None, False, values))
                continue
            factors = None if weights is None else self.tensor(weights)
            bags = self.tensor(offsets), factors, mean, self.tensor(values)
            given.append((cache, plan, *bags))
        return given

    def _sum(self, tables: "Sequence[_Given]") -> None:
        device, plans = self._device, [plan for _, plan, *_ in tables]
        bounds = [plan.bound_of_unique for plan in plans]
        num_bags = [
            plan.num_occurrences if offsets is None else offsets.shape[0] - 1
            for _, plan, offsets, *_ in tables
        ]
        sizes = [
            TableSizes(one[1].num_occurrences, bound, one[0].dim, bags if one[4] else 0)
            for one, bound, bags in zip(tables, bounds, num_bags, strict=True)
        ]
        runs = [one.most_hot_runs for one in sizes]
        arena = self._take_sums(plans, sizes)
        gradients = [cache.input(values) for cache, *_, values in tables]
        places_of = [offsets for _, _, offsets, *_ in tables]
        fields, num_places = _sum_fields(arena, sizes, [one is not None for one in places_of])
        num_runs = [bound + own for bound, own in zip(bounds, runs, strict=True)]
        fields |= {
            "offsets": [0 if one is None else one.data_ptr() for one in places_of],
            "gradients": [one.data_ptr() for one in gradients],
            "weights": [0 if one[3] is None else one[3].data_ptr() for one in tables],
            "num_bags": num_bags,
            "bound": bounds,
            "most_hot_runs": runs,
        }
        block = TableBlock(device, "SumRun", plans, [num_bags, bounds, num_runs, runs], fields)
        total = sum(one.length for one in sizes)
        places, in_order = arena.tensor("places", total), arena.tensor("sorted_places", total)
        block.launch("SpreadBag", 0)
        device.sort(places, in_order, arena.tensor("positions", total))
        find = device.args.new("FindStart")
        find["sorted_places"], find["starts"] = in_order.data_ptr(), arena.address("starts")
        find["count"] = total
        device.launch("FindStart", find, total)
        block.launch("CountRuns", 1)
        device.prefix_sum(arena.tensor("hot_ranks", num_places))
        block.launch("SumRun", 2)
        block.launch("SumBlock", 3)
        block.launch("CombineRuns", 1)

    def _take_sums(self, plans: Sequence[DevicePlan], sizes: Sequence[TableSizes]) -> SumsArena:
        """Memory for sums, which the plans then have; that of the last sums if these were of the
        same plans' and there is room. Within a verb that has that memory."""
        held = {None if plan.sums is None else plan.sums.arena for plan in plans}
        arena = held.pop() if len(held) == 1 else None
        if arena is None or arena.num_tables != len(plans) or not arena.take(sizes):
            arena = SumsArena(self._device, sizes)
        for plan, start in zip(plans, starts_of(float_sizes(sizes, "sums"))[:-1], strict=True):
            plan.sums = Sums(arena, arena.num_uses, start)
        return arena

    def find_overflow(self, tables: Sequence[OfTable]) -> None:
        """See TableVerbs."""
        tables, failures = _with_keys(tables), self._failures
        if not tables:
            return
        plans, caches = _plans(tables), _caches(tables)
        with failures.order.verb(*_memory(tables), failures.memory):
            names, items = _by_kernel(tables, [cache.trial for cache in caches])
            block = TableBlock(
                self._device,
                names[0],
                plans,
                items,
                {
                    "sums": [_sums(plan).address for plan in plans],
                    "safe": [
                        cache.safe_bits(lr)
                        for cache, (_, _, lr) in zip(caches, tables, strict=True)
                    ],
                    "bound": [plan.bound for plan in plans],
                    "lr": [lr for _, _, lr in tables],
                    "number": [cache.number for cache in caches],
                },
            )
            for launch, name in enumerate(names):
                block.launch(name, launch)
            note = self._device.args.new("NoteFailure")
            note["tables"], note["failure"] = block.tables(0), failures.address
            self._device.launch("NoteFailure", note, 1)
            failures.show_host()

    def apply(self, tables: Sequence[OfTable]) -> None:
        """See TableVerbs."""
        tables, failures = _with_keys(tables), self._failures
        if not tables:
            return
        plans = _plans(tables)
        with failures.order.verb(*_memory(tables), failures.memory):
            names, items = _by_kernel(tables, [cache.update for cache in _caches(tables)])
            block = TableBlock(
                self._device,
                names[0],
                plans,
                items,
                {
                    "sums": [_sums(plan).address for plan in plans],
                    "failure": failures.address,
                    "bound": [plan.bound for plan in plans],
                    "lr": [lr for _, _, lr in tables],
                },
            )
            for launch, name in enumerate(names):
                block.launch(name, launch)

    # What is given.

    def tensor(self, values: AnyArray | None) -> torch.Tensor:
        """Of what bags are pooled from and to: here it is on the device."""
        assert isinstance(values, torch.Tensor), "bags are those of tensors on the device"
        return values


def _sum_fields(
    arena: SumsArena, sizes: Sequence[TableSizes], have_bags: Sequence[bool]
) -> tuple[dict[str, list[int] | int], int]:
    """Fields of SumArgs that point into the arena, or say where in it a table's part begins; the
    number of all places."""
    counts = starts_of([one.length for one in sizes])
    places = starts_of([one.bound + 1 for one in sizes])
    runs = starts_of([one.most_hot_runs for one in sizes])

    def at(name: str, starts: Sequence[int], size: int = 4) -> list[int]:
        base = arena.address(name)
        return [base + size * start for start in starts[:-1]]

    fields: dict[str, list[int] | int] = {
        name: at(name, starts_of(float_sizes(sizes, name))) for name in ("sums", "run_sums")
    }
    divided = at("divided", starts_of(float_sizes(sizes, "divided")))
    fields |= {
        "divided": [at if own.num_divided else 0 for at, own in zip(divided, sizes, strict=True)],
        "bags": [at if has else 0 for at, has in zip(at("bags", counts), have_bags, strict=True)],
        "places": at("places", counts),
        "positions": arena.address("positions"),
        "starts": at("starts", places, 8),
        "hot_ranks": at("hot_ranks", places),
        "run_ids": at("run_ids", runs),
        "first_place": places[:-1],
        "first_position": counts[:-1],
    }
    return fields, places[-1]


def _by_kernel(
    tables: Sequence[OfTable], kernels: Sequence[str]
) -> tuple[list[str], list[list[int]]]:
    """The kernels that differ, and of each the items of all tables: none of those of others."""
    names = list(dict.fromkeys(kernels))
    bounds = [plan.bound for plan in _plans(tables)]
    items = [
        [bound if own == name else 0 for own, bound in zip(kernels, bounds, strict=True)]
        for name in names
    ]
    return names, items


def _with_keys(tables: Sequence[OfTable]) -> list[OfTable]:
    found = []
    for one, cache, plan in zip(tables, _caches(tables), _plans(tables), strict=True):
        assert cache.is_current(plan), "an update of rows that may have moved"
        if plan.num_occurrences:
            found.append(one)
    return found


def _sums(plan: DevicePlan) -> Sums:
    assert plan.sums is not None, "an update without sums"
    return plan.sums


def _check_offsets(offsets: torch.Tensor) -> None:
    if offsets.dtype != torch.int64 or not offsets.is_contiguous():
        raise ValueError("offsets must be int64 [F * B + 1] in one piece")


def _memory(tables: "Sequence[Any]") -> list[Memory]:
    """Of the tables and of their batches."""
    return [piece for one in tables for piece in (one[0].piece, *one[1].pieces())]


def _caches(tables: "Sequence[_AnyOfTable]") -> list[BatchedCache]:
    return cast("list[BatchedCache]", [one[0] for one in tables])


def _plans(tables: "Sequence[_AnyOfTable]") -> list[DevicePlan]:
    return cast("list[DevicePlan]", [one[1] for one in tables])
