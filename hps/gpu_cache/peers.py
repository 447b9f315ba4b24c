"""Peers: keys, rows and gradients of a device on their way between the ranks of a training.

Above it: cluster/exchange, which says what travels when. Below it: device_batch.py, peer_keys.py,
arena.py; hps._C.PeerVerbs and the kernels of csrc/gpu_cache/peers.h. What travels is deduplicated
once, by the rank that asks, and in a message of all tables a rank; the formats are those of
hps/common/wire.py, made and read by kernels.

Keys on their way and sums have parts of the device's arena. Messages, and the rows of those that
came, have not: a channel works on them outside of the verbs. What formats round away is as large as
it will be when it is made.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.common.arrays import AnyArray, HostArray, as_keys, is_tensor
from hps.common.bags import BagPooling
from hps.common.locks import OwnedLock
from hps.common.sharding import NUM_VIRTUAL
from hps.common.wire_format import Wire
from hps.errors import BatchMemoryError
from hps.gpu_cache.arena import DeviceArena, Layout
from hps.gpu_cache.device import Device, HostCopy, Memory, VerbOrder, to_device
from hps.gpu_cache.device_batch import DeviceBatch
from hps.gpu_cache.device_plan import DevicePlan
from hps.gpu_cache.peer_keys import PeerKeys, RowPlans, Told
from hps.gpu_cache.ring import Chunks

Counts = NDArray[np.int64]  # of rows: of ranks by table


class Exchanging(Protocol):
    """A channel between the ranks, as far as messages of a device go."""

    @property
    def is_queued(self) -> bool:
        """True if it takes tensors of the device, in the order of the work on them."""

    def exchange(
        self, rows: torch.Tensor, counts: list[int], incoming: list[int] | None = None
    ) -> torch.Tensor:
        """Sends runs of rows, one for each rank; returns what came."""


class RestMemory(_C.RestSlots):
    """What is kept of a table's gradients that a narrow format has rounded away: on the rank that
    sends, a fixed number of slots, each key in the one that its hash names.

    Args:
        device: where.
        order: of the verbs.
        dim: of a gradient.
        num_slots: keys that are held at once.
    """

    def __init__(self, device: Device, order: VerbOrder, dim: int, num_slots: int) -> None:
        arrays = {
            "keys": (torch.int64, num_slots),
            "is_used": (torch.int32, num_slots),
            "last": (torch.int32, num_slots),
            "rows": (torch.float32, num_slots * dim),
        }
        self._device, self._order = device, order
        self._layout = layout = Layout(arrays)
        own = DeviceArena(device, layout.num_bytes + _ALIGNMENT)
        self.piece, self._part = own.piece, own.take(layout.num_bytes)
        keys, is_used, last, rows = (layout.address(self._part, name) for name in arrays)
        super().__init__(keys, is_used, last, rows, num_slots)
        with order.verb(self.piece):
            device.fill(layout.tensor(self._part, "last"), 0)
        self.clear()

    def clear(self) -> None:
        """Forgets all."""
        with self._order.verb(self.piece):
            self._device.fill(self._layout.tensor(self._part, "is_used"), 0)


class Peers:
    """Verbs over the tables of a batch, or of a step, no table twice in a call.

    Args:
        batch: verbs over several tables of the device, by which keys are numbered and gradients
            summed.
        num_ranks: of the training.
        lock: of this rank's server, under which idle plans give memory back.
    """

    def __init__(self, batch: DeviceBatch, num_ranks: int, lock: OwnedLock) -> None:
        device, order = batch.device, batch.order
        self._device = device
        self._order = order
        self._batch = batch
        self._arena = batch.arena
        self._num_ranks = num_ranks
        self._lock = lock
        self._plans = RowPlans(device, order, self._arena)
        self._chunks = Chunks(device, self._arena, self._order)
        self._sums: _C.ArenaPart | None = None  # room for those of a step, by id
        ring = _C.BlockRing(self._chunks.next)
        self._native = _C.PeerVerbs(device.launcher, ring, num_ranks, NUM_VIRTUAL)

    @property
    def torch_device(self) -> torch.device:
        """Where rows lie."""
        return self._device.torch_device

    def new_rests(self, dim: int, num_slots: int) -> RestMemory:
        """Memory for what a format rounds away."""
        return RestMemory(self._device, self._order, dim, num_slots)

    # Keys.

    def divide(
        self, keys: Mapping[str, AnyArray], dims: Mapping[str, int], where: str
    ) -> dict[str, PeerKeys]:
        """Deduplicates the keys [L] of each table, and finds their owners. Waits for the device,
        once, for how many there are of each.

        Args:
            keys: by table; tensors there, or of the host.
            dims: of the tables' rows.
            where: the device, as the server names it.

        Raises:
            BatchMemoryError: the device has too little memory for batches; nothing was taken.
        """
        if not keys:
            return {}
        names = list(keys)
        arrays: list[AnyArray] = [as_keys(one, where) for one in keys.values()]
        lengths = [len(array) for array in arrays]
        told = Told(self._device, lengths, self._num_ranks)
        with self._lock:
            plans = [self._plans.take(name, dims[name]) for name in names]
            self._batch.make_plans(plans, arrays)
            ids = self._divide(plans, sum(lengths), told)
        told.wait()
        found, first = {}, 0
        for at, (name, plan) in enumerate(zip(names, plans, strict=True)):
            found[name] = PeerKeys(
                self._plans, name, plan, (told, at), (ids, 4 * first), keys[name]
            )
            first += lengths[at]
        return found

    def _divide(self, plans: list[DevicePlan], total: int, told: Told) -> _C.ArenaPart:
        """Queues the division of so many keys, of plans whose keys are numbered; the ids of places
        of all of them."""
        device = self._device
        arrays = {"owners": torch.int32, "sorted": torch.int32, "positions": torch.int64}
        layout = Layout({name: (dtype, total) for name, dtype in arrays.items()})
        with self._verb(plans):
            try:
                ids = self._arena.take(4 * total, plans=plans)
                scratch = self._arena.take(layout.num_bytes, plans=plans)
            except BatchMemoryError as error:
                raise self._batch.refused([plan.num_occurrences for plan in plans]) from error
            block = self._native.divide(
                plans,
                [layout.address(scratch, name) for name in arrays],
                ids.address,
                told.keys_address,
                told.starts_address,
                device.stream(),
            )
            block.launch("NameOwner", 0)
            if total:
                device.sort(*[layout.tensor(scratch, name) for name in arrays])
            block.launch("GroupKey", 1)
            told.is_queued()
        return ids

    def upload(self, arrays: Sequence[HostArray]) -> list[torch.Tensor]:
        """Keys uint64 [n] of the host as int64 tensors on the device; one copy."""
        total = sum(map(len, arrays))
        memory = self._device.empty(8 * max(1, total))[: 8 * total].view(torch.int64)
        if total:
            with self._verb([], memory):
                to_device(self._device, np.concatenate(list(arrays)), memory)
        return list(torch.split(memory, [len(array) for array in arrays]))

    # Messages.

    def send(
        self,
        tables: Sequence[_C.SentTable],
        dims: Sequence[int],
        counts: Counts,
        wire: Wire,
        plans: Sequence[_C.DevicePlanState],
        *memory: Memory | torch.Tensor,
    ) -> torch.Tensor:
        """A message of rows: uint8, rank after rank, of each table after table.

        Args:
            tables: what they send.
            dims: of their rows.
            counts: rows for each rank.
            wire: how they travel.
            plans, memory: whatever is read.
        """
        num_bytes = _C.PeerVerbs.message_bytes(np.ascontiguousarray(counts), list(dims), wire)
        message = self._device.empty(max(1, num_bytes))[:num_bytes]
        if not num_bytes:
            return message
        with self._verb(plans, message, *memory):
            block = self._native.send(
                list(tables),
                np.ascontiguousarray(counts),
                wire,
                message.data_ptr(),
                self._device.stream(),
            )
            block.launch("MarkLast", 0, "SendRow", 1)
        return message

    def exchange(
        self,
        channel: Exchanging,
        message: torch.Tensor,
        dims: Sequence[int],
        outgoing: Counts,
        incoming: Counts,
        wire: Wire,
    ) -> torch.Tensor:
        """A message to all ranks; that which came. Waits for the device, and for the other ranks,
        unless the channel takes tensors of the device."""
        widths = np.array([wire.num_bytes(1, dim) for dim in dims])
        sizes = [(counts * widths).sum(axis=1).tolist() for counts in (outgoing, incoming)]
        if channel.is_queued:
            return channel.exchange(message, sizes[0], sizes[1])
        with self._verb([], message):
            copy = HostCopy(self._device, message)
        came = channel.exchange(torch.from_numpy(copy.wait()), sizes[0], sizes[1])
        target = self._device.empty(max(1, len(came)))[: len(came)]
        with self._verb([], target):
            to_device(self._device, came.numpy(), target)
        return target

    def receive(
        self, message: torch.Tensor, dims: Sequence[int], counts: Counts, wire: Wire
    ) -> list[torch.Tensor]:
        """Rows that came, of each table float32 [n, D], rank after rank."""
        if wire is Wire.FLOAT32 and len(dims) == 1:
            return [message.view(torch.float32).view(-1, dims[0])]
        totals = counts.sum(axis=0).tolist()
        sizes = [total * dim for total, dim in zip(totals, dims, strict=True)]
        starts = [0, *accumulate(-(-size // _ALIGNED_FLOATS) * _ALIGNED_FLOATS for size in sizes)]
        memory = self._device.empty(max(4, 4 * starts[-1])).view(torch.float32)
        rows = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        with self._verb([], message, memory):
            block = self._native.receive(
                [memory.data_ptr() + 4 * start for start in starts[:-1]],
                list(dims),
                np.ascontiguousarray(counts),
                wire,
                message.data_ptr(),
                self._device.stream(),
            )
            block.launch("ReceiveRow", 0)
        return [own.view(-1, dim) for own, dim in zip(rows, dims, strict=True)]

    # Rows that came.

    def pool(
        self,
        keys: Sequence[PeerKeys],
        rows: Sequence[torch.Tensor],
        poolings: Sequence[BagPooling],
        outs: Sequence[torch.Tensor],
    ) -> None:
        """Sums or means of bags, from rows [N, D] by place, each table's into its out."""
        bags = self._batch.new_bags()
        for one, pooling, out in zip(keys, poolings, outs, strict=True):
            bags.add(one.plan, *pooling.tensors(), pooling.is_mean, out, 0.0)
        with self._verb([one.plan for one in keys], *rows, *bags.tensors):
            addresses = [one.data_ptr() for one in rows]
            block = self._native.pool(bags, addresses, self._device.stream())
            if block is not None:
                block.launch("Pool", 0)

    def gather(self, keys: PeerKeys, rows: torch.Tensor, out: torch.Tensor) -> None:
        """The row of each occurrence, into out [L, D] on the device."""
        with self._verb([keys.plan], rows, out):
            args = keys.plan.args("Gather", out=out.data_ptr())
            args["cache"]["table"]["floats"] = rows.data_ptr() - _HEADER_BYTES
            self._device.launch("Gather", args, len(out))

    def to_host(self, values: torch.Tensor) -> HostArray:
        """A copy. Waits."""
        with self._verb([], values):
            copy = HostCopy(self._device, values)
        return copy.wait().reshape(tuple(values.shape))

    def new_rows(self, num_rows: int, dim: int) -> torch.Tensor:
        """An uninitialised float32 [num_rows, dim] on the device."""
        memory = self._device.empty(max(4, 4 * num_rows * dim))[: 4 * num_rows * dim]
        return memory.view(torch.float32).view(num_rows, dim)

    # Gradients.

    def make_room(self, keys: Sequence[PeerKeys]) -> None:
        """For the sums of a step with these keys, as DeviceBatch.make_room.

        Raises:
            BatchMemoryError: there is not as much.
        """
        having = [one.plan for one in keys if one.num_unique]
        with self._lock, self._verb(having):
            self._batch.make_room(having)
            self._room_of(sum(one.num_unique * one.dim for one in keys), having)

    def _room_of(self, num_floats: int, plans: Sequence[_C.DevicePlanState]) -> _C.ArenaPart:
        """Room for sums by id. Within a verb."""
        wanted = 4 * num_floats
        if self._sums is None or self._sums.num_bytes < wanted:
            before = 0 if self._sums is None else self._sums.num_bytes
            self._sums = None  # what a step has under way is kept by its keys
            sizes = (wanted + wanted // 8, wanted)
            try:
                self._sums = self._arena.take(*sizes, plans=plans, from_end=True)
            except BatchMemoryError:
                self._sums = self._arena.find(before, from_end=True) if before else None
                raise
        return self._sums

    def sum_gradients(
        self,
        keys: Sequence[PeerKeys],
        grads: Sequence[torch.Tensor],
        poolings: Sequence[BagPooling | None],
    ) -> None:
        """Readies sums of occurrences, or of bags, by key, as the caches' own; `judge` takes
        them."""
        with self._lock:  # so that idle plans give memory back where there is none
            self._sum_gradients(keys, grads, poolings)

    def _sum_gradients(
        self,
        keys: Sequence[PeerKeys],
        grads: Sequence[torch.Tensor],
        poolings: Sequence[BagPooling | None],
    ) -> None:
        """The same, under the lock."""
        bags = self._batch.new_bags()
        sizes = [one.num_unique * one.dim for one in keys]
        with self._verb([one.plan for one in keys]):
            room = self._room_of(sum(sizes), [one.plan for one in keys])
        place = room.address
        for one, pooling, own, size in zip(keys, poolings, grads, sizes, strict=True):
            offsets, weights, mean = None, None, False
            if pooling is not None:
                offsets, weights = pooling.tensors()
                mean = pooling.is_mean
            bags.add(one.plan, offsets, weights, mean, own, 0.0)
            one.sums = (room, place)
            place += 4 * size
        self._batch.sum_gradients(bags)

    def judge(
        self,
        keys: Sequence[PeerKeys],
        kept: Sequence[RestMemory | None],
        ordinary: float,
        limit: float,
    ) -> list[tuple[int, float]]:
        """Takes the sums, divides them by the number of ranks, adds what was kept of their keys,
        and looks at them. Waits, once.

        Args:
            ordinary: magnitudes up to it are of no interest.
            limit: the largest magnitude that may travel.

        Returns:
            Of each table the place of the first sum that must not travel, or -1; and the largest
            magnitude, or 0 if that is of no interest.
        """
        dtype = self._device.args.dtype("Verdict")
        rests = [one.piece for one in kept if one is not None]
        with self._verb([one.plan for one in keys], *rests):
            num_bytes = len(keys) * dtype.itemsize
            [place] = self._batch.scratch.take(num_bytes)
            verdicts = self._batch.scratch.tensor(place, num_bytes)
            self._device.fill(verdicts, 0)
            block = self._native.judge(
                [one.sent(rest) for one, rest in zip(keys, kept, strict=True)],
                int(np.float32(ordinary).view(np.uint32)),
                int(np.float32(limit).view(np.uint32)),
                place,
                self._device.stream(),
            )
            block.launch("JudgeSum", 0)
            copy = HostCopy(self._device, verdicts)
        found = copy.wait().view(dtype)
        places = (~found["refused"]).tolist()
        return [
            (place if refused else -1, largest)
            for place, refused, largest in zip(
                places,
                found["refused"].tolist(),
                found["largest"].view(np.float32).tolist(),
                strict=True,
            )
        ]

    def send_sums(
        self,
        keys: Sequence[PeerKeys],
        kept: Sequence[RestMemory | None],
        counts: Counts,
        wire: Wire,
    ) -> torch.Tensor:
        """A message of the sums of keys, to their owners; keeps what is rounded away."""
        message = self.send(
            [one.sent(rest) for one, rest in zip(keys, kept, strict=True)],
            [one.dim for one in keys],
            counts,
            wire,
            [one.plan for one in keys],
            *[one.piece for one in kept if one is not None],
        )
        for one in keys:
            one.sums = None
        return message

    def _verb(
        self, plans: Sequence[_C.DevicePlanState], *memory: Memory | torch.Tensor
    ) -> AbstractContextManager[object]:
        return self._order.verb(self._arena.piece, *memory, plans=list(plans))


_ALIGNMENT = 256  # of memory that a device gives
_ALIGNED_FLOATS = 64  # of rows that came, where each table's begin
_HEADER_BYTES = 16  # of a row in a table, csrc/table/row_layout.h: rows that came have none


def on_device(values: AnyArray, device: torch.device) -> torch.Tensor:
    """A tensor there; copies what lies elsewhere."""
    tensor = values if is_tensor(values) else torch.from_numpy(values)
    return tensor.detach().to(device)
