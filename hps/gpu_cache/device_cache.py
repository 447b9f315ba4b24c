"""DeviceCache: the rows of one table in a device's memory; the verbs of hps/contracts/row_cache.py.

Above it: tiers/top_tier.py. Below it: device_plan.py; device_batch.py, a step's verbs over several
tables, of which this is one; the kernels of csrc/gpu_cache, which hps._C's GpuCache loops over on
the host: the same kernels in the same order here, so both take the same slots. Verbs run on torch's
current stream and wait for nothing but where they return something to the host (reserve, numbers,
images, presence, counters). What a batch's way into its slots waits for is queued by one method and
waited for by another (QueuedCache), so that it needs no lock.

Arrays of keys, outputs and gradients may be tensors on the device, or arrays of the host, which are
copied. Images of rows are arrays of the host.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray
from hps.common.row_layout import Images, Keys, Labels
from hps.contracts.row_cache import AnyRowCache
from hps.contracts.table_verbs import BagsOfTable, RowsOfTable, TableVerbs
from hps.gpu_cache.device import Device
from hps.gpu_cache.device_batch import DeviceBatch
from hps.gpu_cache.device_plan import DevicePlan, State
from hps.gpu_cache.device_rows import DeviceRows
from hps.gpu_cache.failures import Failures
from hps.gpu_cache.host_arrays import written
from hps.gpu_cache.options import CacheOptions
from hps.gpu_cache.pinned import PinnedPiece

_NO_STATISTICS = "Config refuses tables with statistics on a device"


class DeviceCache(DeviceRows):
    """The gpu_cache of one table.

    Args:
        device: whose memory it takes.
        failures: the flag of the device.
        options: keyword arguments of hps._C.gpu_cache_args but `base`; capacity_bytes is the
            budget, all of which is taken at once.

    Raises:
        ConfigError: the budget is too small for a table, or the device has not that much memory.
    """

    def __init__(self, device: Device, failures: Failures, options: CacheOptions) -> None:
        num_bytes, _ = _C.gpu_cache_args(**options, base=0)
        super().__init__(device, failures, device.empty(num_bytes), options)
        self._failures = failures
        if failures.batch is None:
            failures.batch = DeviceBatch(device, failures)
        self._batch = cast("DeviceBatch", failures.batch)
        self.number = failures.new_cache()

    @property
    def together(self) -> TableVerbs | None:
        """See CacheBesideOthers."""
        return self._batch

    def contains(self, keys: AnyArray) -> NDArray[np.uint8]:
        """See RowCache. Waits."""
        return self.ask(keys)()

    def ask(self, keys: AnyArray) -> Callable[[], NDArray[np.uint8]]:
        """See QueuedCache."""
        return self._batch.ask_one(cast("AnyRowCache", self), keys)

    def spare(self, plan: DevicePlan) -> None:
        """See QueuedCache. One that holds rows keeps them."""
        if not _C.holding_plans([plan]):
            plan.drop_arrays()

    # A batch: from its keys to pinned rows and back.

    def make_plan(self, keys: AnyArray, plan: DevicePlan | None) -> DevicePlan:
        """See RowCache."""
        if plan is None:
            plan = DevicePlan(self._device, self._order, self._arena, self, self._args)
        self._batch.make_plan(plan, keys)
        return plan

    def pull(self, plan: DevicePlan, keys: AnyArray, out: AnyArray) -> int:
        """See RowCache."""
        self.make_plan(keys, plan)
        self.find(plan, 0, -1)
        num_missing = plan.num_missing
        if num_missing == 0:
            self.gather(plan, out)
        return num_missing

    def pull_pooled(
        self,
        plan: DevicePlan,
        keys: AnyArray,
        offsets: AnyArray,
        weights: AnyArray | None,
        mean: bool,
        out: AnyArray,
    ) -> int:
        """See RowCache; offsets, weights and out are tensors on the device."""
        self.make_plan(keys, plan)
        self.find(plan, 0, -1)
        num_missing = plan.num_missing
        if num_missing == 0:
            self.pool(plan, offsets, weights, mean, out)
        return num_missing

    def find(self, plan: DevicePlan, first: int, count: int) -> None:
        """See RowCache."""
        plan.set_window(first, count)
        assert plan.state in (State.KEYS, State.FOUND), f"a look-up in state {plan.state}"
        self._batch.find([plan])

    def want(self, plan: DevicePlan) -> None:
        """See RowCache."""
        bound = plan.bound_of_unique
        with self._verb(plan):
            self._device.launch("Want", plan.args("Want", bound=bound), bound)

    def is_current(self, plan: DevicePlan) -> bool:
        """See RowCache. May wait for the look-up."""
        if plan.state is State.PINNED:
            return True
        if plan.state is not State.FOUND or plan.epoch != self.epoch:
            return False
        if plan.has_rows is None:
            plan.has_rows = plan.num_missing == 0
        return bool(plan.has_rows) and plan.is_whole_batch

    def reserve(self, plan: DevicePlan) -> bool:
        """See RowCache. Waits for the look-up; where keys are missing, for the answer and for rows
        that go down."""
        assert plan.state is State.FOUND and plan.epoch == self.epoch, "reserve without find"
        self.begin_reserve(plan)
        return self.end_reserve(plan)

    def is_looked_up(self, plan: DevicePlan) -> bool:
        """See QueuedCache."""
        return bool(plan.is_looked_up)

    def end_find(self, plan: DevicePlan) -> None:
        """See QueuedCache."""
        assert plan.num_missing >= 0

    def begin_reserve(self, plan: DevicePlan) -> bool:
        """See QueuedCache."""
        return self._batch.begin_reserve([plan])

    def end_reserve(self, plan: DevicePlan) -> bool:
        """See QueuedCache."""
        return plan.settle(self.row_bytes)

    def victims(self, plan: DevicePlan) -> Images:
        """See RowCache. Waits for a reserve that is queued."""
        plan.settle(self.row_bytes)
        return plan.victim_images(self.row_bytes)

    def missing_keys(self, plan: DevicePlan) -> Keys:
        """See RowCache. Waits for a reserve that is queued."""
        plan.settle(self.row_bytes)
        return plan.missing_keys()

    def missing_rows(self, plan: DevicePlan) -> Images:
        """See QueuedCache. Waits for a reserve that is queued."""
        plan.settle(self.row_bytes)
        return plan.missing_rows(self.row_bytes)

    def fill(
        self, plan: DevicePlan, rows: Images, found: NDArray[np.uint8], lr: float, create: bool
    ) -> None:
        """See RowCache."""
        own = RowsOfTable(cast("AnyRowCache", self), plan, rows, found, lr, create)
        self._batch.fill([own])

    def cancel(self, plan: DevicePlan) -> None:
        """See RowCache."""
        assert plan.state is State.RESERVED, f"cancel in state {plan.state}"
        self.abandon(plan)

    def abandon(self, plan: DevicePlan) -> None:
        """See RowCache. Waits for a reserve that is queued."""
        self._batch.abandon([plan])

    def release(self, plan: DevicePlan) -> None:
        """See RowCache."""
        self._batch.release([plan])

    # Rows of a batch.

    def gather(self, plan: DevicePlan, out: AnyArray) -> None:
        """See RowCache. Waits if `out` is an array of the host."""
        assert self.is_current(plan), "gather from rows that may have moved"
        self.check_floats(out, (plan.num_occurrences, self.dim), "out [L, dim]")
        host = None if self._is_there(out) else np.asarray(out)
        # All of it is written, or what is not is as it was.
        piece = None
        if host is not None:
            is_whole = plan.is_whole_batch
            arrays = self._host_arrays
            piece = arrays.take(host.nbytes) if is_whole else arrays.put(host)
        with self._verb(plan):
            target = cast("torch.Tensor", out).data_ptr() if piece is None else piece.address
            self._device.launch("Gather", plan.args("Gather", out=target), plan.num_occurrences)
            if piece is not None:
                piece.note_point()
        if host is not None and piece is not None:
            host[:] = written(piece)[: host.nbytes].view(np.float32).reshape(host.shape)

    def pool(
        self,
        plan: DevicePlan,
        offsets: AnyArray,
        weights: AnyArray | None,
        mean: bool,
        out: AnyArray,
    ) -> None:
        """See RowCache; offsets, weights and out are tensors on the device."""
        self._batch.pool(self._bags_of(plan, offsets, weights, mean, out))

    def read_rows(self, plan: DevicePlan, images: Images) -> None:
        """See RowCache. Waits."""
        assert self.is_current(plan), "read_rows of rows that may have moved"
        bound = plan.bound
        if images.shape != (bound, self.row_bytes):
            raise ValueError("images [window, row_bytes] are needed")
        with self._verb(plan):
            rows = self._host_arrays.take(images.nbytes)
            args = plan.args("ReadRow", images=rows.address, bound=bound)
            self._device.launch("ReadRow", args, bound)
            rows.note_point()
        images[:] = written(rows)[: images.nbytes].reshape(images.shape)

    # Updates.

    def sum_gradients(self, plan: DevicePlan, grads: AnyArray, labels: Labels | None = None) -> int:
        """See RowCache. Returns -1 always: `failed_key` tells, once find_overflow has noted it."""
        assert labels is None, _NO_STATISTICS
        self._batch.sum_gradients(self._bags_of(plan, None, None, False, grads))
        return -1

    def sum_bag_gradients(
        self,
        plan: DevicePlan,
        offsets: AnyArray,
        weights: AnyArray | None,
        mean: bool,
        grads: AnyArray,
        labels: Labels | None = None,
    ) -> int:
        """See RowCache; all are tensors on the device. Returns -1 always, as sum_gradients."""
        assert labels is None, _NO_STATISTICS
        self._batch.sum_gradients(self._bags_of(plan, offsets, weights, mean, grads))
        return -1

    def may_overflow(self, plan: DevicePlan, lr: float) -> bool:
        """See RowCache."""
        return True

    def find_overflow(self, plan: DevicePlan, lr: float) -> int:
        """See RowCache. Returns -1 always."""
        self._batch.find_overflow(self._batch.step_of(plan, lr))
        return -1

    def watch(self) -> None:
        """See RowCache."""
        self.is_watched = True

    def sum_here(
        self, plan: DevicePlan, keys: AnyArray, grads: AnyArray, lr: float
    ) -> tuple[int, int]:
        """See RowCache. The second number is -1 always."""
        self.make_plan(keys, plan)
        self.find(plan, 0, -1)
        num_missing = plan.num_missing
        if not num_missing:
            self.sum_gradients(plan, grads)
            self.find_overflow(plan, lr)
        return num_missing, -1

    def failed_key(self, wait: bool) -> int | None:
        """The key whose sum, or whose row after its step, was not finite, once; nothing was updated
        since then.

        Args:
            wait: wait for all sums so far; else a failure may be told by a later call.
        """
        return self._failures.failed_key(self.number, wait)

    def apply(self, plan: DevicePlan, lr: float) -> None:
        """See RowCache. Changes nothing while a refused gradient of any cache is unsaid."""
        self._batch.apply(self._batch.step_of(plan, lr))

    def push(
        self, plan: DevicePlan, grads: AnyArray, lr: float, labels: Labels | None = None
    ) -> int:
        """See RowCache. Returns -1 always."""
        self.sum_gradients(plan, grads, labels)
        self.find_overflow(plan, lr)
        self.apply(plan, lr)
        return -1

    def assign(
        self,
        plan: DevicePlan,
        rows: AnyArray,
        state: AnyArray | None,
        lr: float,
        statistics: Images | None = None,
    ) -> None:
        """See RowCache."""
        assert statistics is None, _NO_STATISTICS
        assert self.is_current(plan), "assign to rows that may have moved"
        count, bound = plan.num_occurrences, plan.bound
        self.check_floats(rows, (count, self.dim), "rows [L, dim]")
        if state is not None:
            self.check_floats(state, (count, self.state_floats), "state [L, state_floats]")
        if count == 0:
            return
        with self._verb(plan):
            last = self._arena.take(4 * plan.bound_of_unique, plans=[plan])
            self._device.fill(last.memory, 0)
            given = [None if one is None else self._readable(one) for one in (rows, state)]
            args = plan.args(
                "Assign",
                rows=_address_of(given[0]),
                state=_address_of(given[1]),
                last=last.address,
                bound=bound,
                lr=lr,
            )
            self._device.launch("FindLast", args, count)
            self._device.launch("Assign", args, bound)
            for one in given:
                if isinstance(one, PinnedPiece):
                    one.note_point()

    def create(self, plan: DevicePlan, lr: float) -> int:
        """See RowCache. Waits."""
        assert self.is_current(plan), "create of rows that may have moved"
        before, bound = self.num_created, plan.bound
        with self._verb(plan):
            self._device.launch("Create", plan.args("Create", bound=bound, lr=lr), bound)
        return self.num_created - before

    # What the verbs of several tables take of this one.

    def _bags_of(self, plan: DevicePlan, *bags: Any) -> _C.DeviceBags:
        return self._batch.bags_of([BagsOfTable(cast("AnyRowCache", self), plan, *bags)])

    # Arrays on their way in.

    def input(self, values: AnyArray, plan: DevicePlan) -> tuple[torch.Tensor, _C.ArenaPart | None]:
        """`values` if it is a tensor on the device, else a copy there, and what keeps its memory.

        Args:
            values: of a batch.
            plan: of that batch.

        Raises:
            BatchMemoryError: the device has no room for a copy.
        """
        if self._is_there(values):
            return cast("torch.Tensor", values), None
        array = np.asarray(values)
        part = self._arena.take(array.nbytes, plans=[plan])
        piece, memory = self._host_arrays.put(array), part.memory
        self._device.copy(memory, torch.from_numpy(piece.array()[: array.nbytes]))
        piece.note_point()
        return memory, part

    def _is_there(self, values: AnyArray) -> bool:
        return isinstance(values, torch.Tensor) and values.device == self._device.torch_device

    def _readable(self, values: AnyArray) -> torch.Tensor | PinnedPiece:
        """A tensor on the device, or a copy of an array where kernels can read it."""
        if self._is_there(values):
            return cast("torch.Tensor", values)
        return self._host_arrays.put(np.asarray(values))

    @staticmethod
    def check_floats(values: AnyArray, shape: tuple[int, ...], what: str) -> None:
        """ValueError unless they are of that shape."""
        if isinstance(values, np.ndarray):
            is_float, in_one = values.dtype == np.float32, values.flags.c_contiguous
        else:
            is_float, in_one = values.dtype == torch.float32, values.is_contiguous()
        if not is_float or not in_one or values.shape != shape:
            raise ValueError(
                f"float32 {what} = {shape} in one piece is needed, not {values.dtype} of shape "
                f"{tuple(values.shape)}"
            )


def _address_of(values: torch.Tensor | PinnedPiece | None) -> int:
    """Of what kernels read; 0 of nothing."""
    if values is None:
        return 0
    address: int = values.address if isinstance(values, PinnedPiece) else values.data_ptr()
    return address
