"""DeviceBatch: a step's verbs over the tables of a device: one launch a kernel for all of them.

Above it: device_cache.py, whose verbs are the case of one table; the server's batches, for a whole
step (hps/contracts/table_verbs.py). Below it: hps._C.DeviceVerbs, which packs what the kernels are
given in a call for all tables, and launches them; ring.py, device_sums.py, arena.py, of whose parts
they and plans are. Tables of several optimizers are tried and applied by a launch for each kind of
optimizer among them: one kernel for all would take the registers of the greediest.

What work that is queued does to pins and slots is noted in the native call that queues it: an
interrupt may come between any two others.
"""

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray
from hps.contracts.row_cache import AnyRowCache, BatchPlan
from hps.contracts.table_verbs import BagsOfTable, BatchMemory, RowsOfTable
from hps.errors import BatchMemoryError
from hps.gpu_cache.arena import DeviceArena
from hps.gpu_cache.batched_cache import BatchedCache, cache_of
from hps.gpu_cache.device import Device, HostCopy, Memory
from hps.gpu_cache.device_plan import DevicePlan, State, plan_bytes
from hps.gpu_cache.device_reserve import Reserves
from hps.gpu_cache.device_sums import SumsRoom, sums_bytes
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.ring import Chunks, Scratch

_ASKED_BYTES, _ASKED_MORE = 9, 512  # of scratch, for a key that is asked for, and for all
_MOVED = "rows that may have moved"
_KEYS_NEEDED = "keys must be int64 or uint64 [L] in one piece: a tensor of the device, or an array"
_DLPACK_KINDS = {"cpu": 1, "cuda": 2}


class DeviceBatch:
    """Verbs over the caches of one device, which share it.

    Args:
        device: of the caches.
        failures: their flag.
    """

    def __init__(self, device: Device, failures: Failures) -> None:
        self.device = self._device = device
        self._failures = failures
        self.order = self._order = failures.order
        place = device.torch_device
        self._place = (_DLPACK_KINDS[place.type], place.index or 0)
        self.arena = self._arena = failures.arena
        self.scratch = self._scratch = Scratch(self._arena)
        self._sums = SumsRoom(self._arena)
        _keep_tidy(self._arena, self)
        self._chunks = Chunks(device, self._arena, self._order)
        ring = _C.BlockRing(self._chunks.next)
        self._native = _C.DeviceVerbs(device.launcher, ring, *self._place)
        self._reserves = Reserves(device, self._order, self._native)
        self._numbers_bytes = device.args.dtype("BatchNumbers").itemsize

    # hps/contracts/table_verbs.py says what each does.

    @property
    def has_failed(self) -> bool:
        """See TableVerbs."""
        return self._failures.is_seen

    @property
    def memory(self) -> BatchMemory:
        """See TableVerbs."""
        arena = self._arena
        return BatchMemory(arena.num_bytes, arena.used_bytes, arena.peak_bytes)

    def on_shortage(self, spare: Callable[[Sequence[BatchPlan]], None]) -> None:
        """See TableVerbs."""
        self._arena.on_shortage.append(
            cast("Callable[[Sequence[_C.DevicePlanState]], None]", spare)
        )

    def tidy(self) -> None:
        """What is kept from batch to batch goes to the end of the arena. Within a verb for which
        nothing was taken of that."""
        if self._sums.is_busy:
            return
        scratch, sums = self._scratch.let_go(), self._sums.let_go()
        self._scratch.take_again(scratch)
        self._sums.take_again(sums)

    def keys_of(self, keys: Sequence[AnyArray]) -> _C.DeviceKeys | None:
        """See TableVerbs."""
        found = _C.DeviceKeys(*self._place)
        return found if found.add(list(keys)) else None

    def _needed_keys(self, keys: Sequence[AnyArray]) -> _C.DeviceKeys:
        """Of each table; ValueError if they are not as they are needed."""
        found = self.keys_of(keys)
        if found is None:
            raise ValueError(_KEYS_NEEDED)
        return found

    def ask(
        self, caches: Sequence[AnyRowCache], keys: _C.DeviceKeys
    ) -> Callable[[], NDArray[np.uint8]]:
        """See TableVerbs."""
        if keys.count == 0:
            return lambda: np.empty(0, np.uint8)
        tables = list(cast("Sequence[_C.DeviceTable]", caches))
        with self._verb([], *[table.piece for table in tables], *keys.tensors):
            try:
                return self._ask(tables, keys).wait
            except BatchMemoryError:  # batches under way have what all would need: in pieces
                most = max(1, (self._scratch.num_bytes - _ASKED_MORE) // _ASKED_BYTES)
            parts = [keys.piece(first, most) for first in range(0, keys.count, most)]
            copies = [self._ask(tables, part) for part in parts]
        return lambda: np.concatenate([copy.wait() for copy in copies])

    def _ask(self, tables: list[_C.DeviceTable], keys: _C.DeviceKeys) -> HostCopy:
        """Within a verb."""
        presence, copied = self._scratch.take(keys.count, 8 * keys.num_of_host)
        stream = self._device.stream()
        block = self._native.contains(tables, keys, presence, copied, stream)
        block.launch("Contains", 0)
        return HostCopy(self._device, self._scratch.tensor(presence, keys.count))

    def ask_one(self, cache: AnyRowCache, keys: AnyArray) -> Callable[[], NDArray[np.uint8]]:
        """`ask` of one table."""
        return self.ask([cache], self._needed_keys([keys]))

    def look_up(
        self, plans: Sequence[BatchPlan], keys: _C.DeviceKeys, pins: Sequence[bool]
    ) -> None:
        """See TableVerbs."""
        made = list(cast("Sequence[DevicePlan]", plans))
        with self._making(made, keys):
            self._make_plans(made, keys)
            _C.start_windows(made, pins)
            self._find(made)

    def make_plan(self, plan: DevicePlan, keys: AnyArray) -> None:
        """The keys become the plan's, and are numbered."""
        self.make_plans([plan], [keys])

    def make_plans(self, plans: list[DevicePlan], keys: Sequence[AnyArray]) -> None:
        """The keys become each plan's, and are numbered."""
        found = self._needed_keys(keys)
        with self._making(plans, found):
            self._make_plans(plans, found)

    def _making(
        self, plans: list[DevicePlan], keys: _C.DeviceKeys
    ) -> AbstractContextManager[object]:
        """A verb that makes plans, which hold nothing then."""
        self._give_back(plans)
        return self._verb(plans, *keys.tensors)

    def _make_plans(self, plans: list[DevicePlan], keys: _C.DeviceKeys) -> None:
        try:
            num_copied = self._native.prepare(plans, keys)
            [copied] = self._scratch.take(8 * num_copied, plans=plans)
            block = self._native.place(plans, keys, copied, self._device.stream())
        except BatchMemoryError as error:
            self._forget(plans)
            raise self.refused(keys.lengths) from error
        except BaseException:
            self._forget(plans)
            raise
        block.launch("BeginPlan", 0, "PlaceKey", 1, "ListFirst", 2, "NumberKey", 1)

    @staticmethod
    def _forget(plans: list[DevicePlan]) -> None:
        """Plans whose keys were not numbered have none."""
        for plan in plans:
            if plan.state in (State.KEYS, State.FOUND):
                plan.clear()

    def find(self, plans: Sequence[DevicePlan]) -> None:
        """Looks each plan's window up, which was set."""
        with self._verb(plans := list(plans)):
            self._find(plans)

    def _find(self, plans: list[DevicePlan]) -> None:
        num_bytes = self._numbers_bytes * len(plans)
        # May find no memory; nothing is queued by then, so that nothing is half done.
        host = self._device.empty_pinned(num_bytes)
        [told] = self._scratch.take(num_bytes, plans=plans)
        block = self._native.find(plans, told, self._device.stream())
        queue = partial(block.launch, "FindSlot", 0, "ListMissing", 1, "EndFind", 2)
        _C.call_all([queue, partial(_C.note_found, plans, None)])
        # Where an interrupt leaves this out, who needs the numbers asks for them.
        _C.note_found(plans, HostCopy(self._device, self._scratch.tensor(told, num_bytes), host))

    def look_again(self, plans: Sequence[BatchPlan]) -> None:
        """See TableVerbs."""
        moved = [
            plan for plan in cast("Sequence[DevicePlan]", plans) if not _C.are_reservable([plan])
        ]
        for plan in moved:
            plan.set_window(0, -1)
        if moved:
            self.find(moved)

    def begin_reserve(self, plans: Sequence[BatchPlan]) -> bool:
        """See TableVerbs."""
        given = list(cast("Sequence[DevicePlan]", plans))
        if not _C.are_reservable(given):
            return False
        if given:
            self._take_numbers(given)
            with self._verb(given):
                self._reserves.begin(given)
        return True

    def end_reserve(self, plans: Sequence[BatchPlan]) -> list[bool]:
        """See TableVerbs."""
        given = cast("Sequence[DevicePlan]", plans)
        return [plan.settle(cache_of(plan).row_bytes) for plan in given]

    def fill(self, tables: Sequence[RowsOfTable]) -> None:
        """See TableVerbs."""
        with self._verb([cast("DevicePlan", one.plan) for one in tables]):
            self._reserves.fill(tables)

    def pin_found(self, plans: Sequence[BatchPlan]) -> list[BatchPlan]:
        """See TableVerbs."""
        given = list(cast("Sequence[DevicePlan]", plans))
        self._take_numbers(given)
        self.make_room(given)
        return cast("list[BatchPlan]", _C.end_pinning(given))

    def make_room(self, plans: list[DevicePlan]) -> None:
        """For the sums of a step with these plans, whose numbers are known: it is not to fail for
        want of memory. Means and weights of bags, of which a plan knows nothing, may need more.

        Raises:
            BatchMemoryError: there is not as much.
        """
        sizes = self._native.sizes_to_sum(plans)
        if self._sums.has_room(sizes):
            return
        try:
            with self._verb(plans):
                self._sums.make(sizes, plans)
        except BatchMemoryError as error:
            raise self.refused([plan.num_occurrences for plan in plans], sizes) from error

    def refused(self, lengths: Sequence[int], sizes: Sequence[int] = ()) -> BatchMemoryError:
        """That the memory for batches is too small for plans of so many keys, and, if sizes of
        arrays are given, for their sums."""
        args, arena = self._device.args, self._arena
        of_plans = sum(plan_bytes(args, length) for length in lengths)
        sums = f" and {sums_bytes(sizes)} for the sums of its step" if sizes else ""
        return BatchMemoryError(
            f"a batch of {sum(lengths)} keys in {len(lengths)} tables needs {of_plans} bytes for "
            f"its plans{sums}; {self._device.torch_device} has {arena.num_bytes} bytes for all "
            f"batches, of which {arena.used_bytes} are in use: raise GpuCacheConfig.batch_bytes "
            "(--gpu-batches; an eighth of GpuCacheConfig.bytes, --gpu, where it is not given), "
            "make batches smaller, or lower the depth or accumulate of a pipeline"
        )

    def _take_numbers(self, plans: list[DevicePlan]) -> None:
        """Waits for the look-ups of plans."""
        for plan in _C.take_numbers(plans):
            assert plan.num_missing >= 0  # asks for them anew

    def abandon(self, plans: Sequence[BatchPlan]) -> None:
        """See TableVerbs."""
        given = list(cast("Sequence[DevicePlan]", plans))
        if len(_C.plans_in(given, State.PINNED)) < len(given):
            self._settle(given)
        self.release(_C.plans_in(given, State.PINNED))

    def _settle(self, plans: list[DevicePlan]) -> None:
        """Waits for what is queued of plans; then those that do not pin hold nothing."""
        self.end_reserve(plans)
        pinning = [plan for plan in plans if plan.pins_if_whole]
        self._take_numbers(pinning)
        _C.end_pinning(pinning)
        if reserved := _C.plans_in(plans, State.RESERVED):
            with self._verb(reserved):
                self._reserves.cancel(reserved)
        _C.holding_plans(plans)

    def _give_back(self, plans: list[DevicePlan]) -> None:
        """Plans of any state hold nothing then."""
        if holding := _C.holding_plans(plans):
            self.abandon(holding)

    def release(self, plans: Sequence[DevicePlan]) -> None:
        """Drops the pins of plans that pin their windows."""
        plans = list(plans)
        assert len(_C.plans_in(plans, State.PINNED)) == len(plans), "release of what is not pinned"
        if not plans:
            return
        with self._verb(plans):
            block = self._native.release(plans, self._device.stream())
            _C.call_all([partial(block.launch, "Release", 0), partial(_C.set_released, plans)])

    # Rows of a batch.

    def new_bags(self) -> _C.DeviceBags:
        """See TableVerbs."""
        return _C.DeviceBags(*self._place)

    def bags_of(self, tables: Sequence[BagsOfTable], rates: Sequence[float] = ()) -> _C.DeviceBags:
        """See TableVerbs."""
        bags = self.new_bags()
        for at, (cache, given, offsets, weights, mean, own) in enumerate(tables):
            plan, values = cast("DevicePlan", given), cast("AnyArray", own)
            if not isinstance(values, torch.Tensor):  # gradients
                values = self._gradients(bags, cast("BatchedCache", cache), plan, offsets, values)
            bags.add(plan, offsets, weights, mean, values, rates[at] if rates else 0.0)
        return bags

    def _gradients(
        self,
        bags: _C.DeviceBags,
        cache: BatchedCache,
        plan: DevicePlan,
        offsets: Any,
        values: AnyArray,
    ) -> torch.Tensor:
        """Those of the host on the device, as long as the bags are."""
        num_rows = plan.num_occurrences if offsets is None else len(offsets) - 1
        what = "grads [L, dim]" if offsets is None else "grads [F * B, dim]"
        cache.check_floats(values, (num_rows, cache.dim), what)
        with self._verb([plan]):
            tensor, part = cache.input(values, plan)
            if part is not None:
                bags.keep(part)
            return tensor.view(torch.float32).view(values.shape)

    def pool(self, bags: _C.DeviceBags) -> None:
        """See TableVerbs."""
        plans = cast("list[DevicePlan]", bags.plans)
        for plan in _C.uncertain_plans(plans, whole=True):
            assert _is_current(plan) and plan.is_whole_batch, f"pool of {_MOVED}"
        with self._verb(plans, *bags.tensors):
            block = self._native.pool(bags, self._device.stream())
            if block is not None:
                block.launch("Pool", 0)

    def sum_gradients(self, bags: _C.DeviceBags) -> None:
        """See TableVerbs."""
        sizes = self._native.sum_sizes(bags)  # also of those without keys: shapes are checked
        num_tables = len(bags)
        bags.drop_empty()
        if not len(bags):
            return
        if len(bags) < num_tables:
            sizes = self._native.sum_sizes(bags)
        device = self._device
        plans = cast("list[DevicePlan]", bags.plans)
        with self._verb(plans, *bags.tensors):
            _C.end_updates(plans)  # of an earlier step
            try:
                sums = self._sums.take(sizes, plans)
            except BatchMemoryError as error:
                raise self.refused([plan.num_occurrences for plan in plans], sizes) from error
            block = self._native.sum(bags, sums, device.stream())
            block.launch(
                *("SpreadBag", 0, "PlaceTerms", 1, "PutBag", 2, "OrderTerms", 3, "SumRun", 4)
            )

    def find_overflow(self, bags: _C.DeviceBags) -> None:
        """See TableVerbs."""
        failures = self._failures
        if not (plans := _with_keys(bags)):
            return
        with self._verb(plans):
            block = self._native.try_updates(bags, self._device.stream())
            block.launch_kinds("Try")
            self._native.note_failure(block, failures.address)
            failures.show_host()

    def apply(self, bags: _C.DeviceBags, applied: Callable[[], object] | None = None) -> None:
        """See TableVerbs."""
        failures = self._failures
        told = [] if applied is None else [applied]
        if not (plans := _with_keys(bags)):
            _C.call_all(told)
            return
        with self._verb(plans):
            block = self._native.apply(bags, failures.address, self._device.stream())
            _C.call_all([partial(block.launch_kinds, "Apply"), *told])

    def step_of(self, plan: DevicePlan, lr: float) -> _C.DeviceBags:
        """What find_overflow and apply take of one plan, whose gradients were summed."""
        bags = self.new_bags()
        bags.add_step(plan, lr)
        return bags

    def _verb(
        self, plans: list[DevicePlan], *memory: Memory | torch.Tensor
    ) -> AbstractContextManager[object]:
        return self._order.verb(self._arena.piece, *memory, plans=plans)


def _keep_tidy(arena: DeviceArena, batch: DeviceBatch) -> None:
    own = weakref.ref(batch)  # which the arena does not keep

    def tidy() -> None:
        batch = own()
        if batch is not None:
            batch.tidy()

    arena.tidy = tidy


def _with_keys(bags: _C.DeviceBags) -> list[DevicePlan]:
    """The plans of bags, all of whose rows are in place; those without keys are left out."""
    for plan in _C.uncertain_plans(cast("list[DevicePlan]", bags.plans), whole=False):
        assert _is_current(plan), f"an update of {_MOVED}"
    bags.drop_empty()
    return cast("list[DevicePlan]", bags.plans)


def _is_current(plan: DevicePlan) -> bool:
    """True if the plan's rows are in place. May wait."""
    return cache_of(plan).is_current(plan)
