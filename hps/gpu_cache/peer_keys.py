"""PeerKeys: the keys of one table of a batch on a device, deduplicated and divided over the ranks
that own them.

Above it: peers.py, cluster/exchange. Below it: device_plan.py, for a table of which this rank has
no memory: its rows come from their owners. A plan is used again when its PeerKeys are gone.
"""

import weakref
from collections import deque
from itertools import pairwise

import numpy as np
import torch

from hps import _C
from hps.common.arrays import AnyArray, HostArray, is_tensor
from hps.common.row_layout import Keys
from hps.gpu_cache.arena import DeviceArena
from hps.gpu_cache.device import Device, DeviceEvent, VerbOrder
from hps.gpu_cache.device_plan import DevicePlan

_MAX_IDLE_PLANS = 16  # of each table


class _Rows(_C.DeviceTable):
    """Rows [N, D] that will come, as the verbs over plans know a table."""

    def __init__(self, device: Device, arena: DeviceArena, dim: int) -> None:
        words = _C.rows_args(dim)
        super().__init__(words, arena.piece)
        self.args: HostArray = np.frombuffer(words, device.args.dtype("CacheArgs")).copy()
        self.dim = dim


class RowPlans:
    """Plans of keys whose rows will come, that nobody uses now. Any thread may take and give.

    Args:
        device: of their rows.
        order: of the verbs.
        arena: of which their arrays are parts.
    """

    def __init__(self, device: Device, order: VerbOrder, arena: DeviceArena) -> None:
        self._device = device
        self._order = order
        self._arena = arena
        own = weakref.ref(self)  # which the arena does not keep
        arena.on_shortage.append(lambda needed: _drop_idle(own()))
        self._idle: dict[str, deque[DevicePlan]] = {}  # by table, whose batches are of a size
        self._rows: dict[int, _Rows] = {}

    def take(self, table: str, dim: int) -> DevicePlan:
        """A plan for rows of a table, of that dim."""
        idle = self._idle.setdefault(table, deque(maxlen=_MAX_IDLE_PLANS))
        try:
            return idle.pop()
        except IndexError:
            rows = self._rows.setdefault(dim, _Rows(self._device, self._arena, dim))
            return DevicePlan(self._device, self._order, self._arena, rows, rows.args)

    def give(self, table: str, plan: DevicePlan) -> None:
        """Nobody uses it any more; work on it may be queued."""
        self._idle[table].append(plan)

    def drop_idle(self) -> None:
        """Their memory is the arena's again."""
        for idle in list(self._idle.values()):
            idle.clear()


def _drop_idle(plans: RowPlans | None) -> None:
    if plans is not None:
        plans.drop_idle()


class Told:
    """What the device tells the host of a division, where it writes it.

    Args:
        device: which tells.
        lengths: keys of each table.
        num_ranks: of the training.
    """

    def __init__(self, device: Device, lengths: list[int], num_ranks: int) -> None:
        self._device = device
        self._num_ranks = num_ranks
        self._firsts = [0, *np.cumsum(lengths).tolist()]
        total = self._firsts[-1]
        self._host = device.empty_pinned(8 * (total + len(lengths) * (num_ranks + 1)))
        self._words: HostArray = self._host.numpy().view(np.int64)
        self._event: DeviceEvent | None = None
        self.keys_address = self._host.data_ptr()
        self.starts_address = self.keys_address + 8 * total

    def is_queued(self) -> None:
        """The kernels that tell have been queued."""
        self._event = self._device.event()

    def wait(self) -> None:
        """Until they have."""
        assert self._event is not None, "nothing was queued"
        self._event.synchronize()

    def starts(self, table: int) -> list[int]:
        """Where the places of each owner's keys start; how many there are."""
        width = self._num_ranks + 1
        first = self._firsts[-1] + table * width
        found: list[int] = self._words[first : first + width].tolist()
        return found

    def keys(self, table: int, count: int) -> Keys:
        """Distinct keys, owner after owner; a view."""
        first = self._firsts[table]
        return self._words[first : first + count].view(np.uint64)

    def __del__(self) -> None:
        if self._event is not None:
            self._event.synchronize()  # kernels write to it


class Known:
    """Keys as they were, if they are a tensor that counts its changes.

    Args:
        keys: [L]; they are kept, and their memory, so that no others come to lie there.
    """

    def __init__(self, keys: AnyArray) -> None:
        self._keys = keys
        self._memory: torch.Tensor | None = None
        if is_tensor(keys) and not keys.is_inference():
            self._memory, self._version = keys.detach(), keys._version

    def is_same(self, keys: AnyArray) -> bool:
        """True of the very tensor, in the same memory, not changed since as far as torch counts."""
        memory = self._memory
        if keys is not self._keys or memory is None or not is_tensor(keys):
            return False
        return keys._version == self._version and _C.are_same_tensors(keys, memory)


class PeerKeys:
    """Made by `Peers.divide`.

    Args:
        plans: where the plan comes from, and goes with this object.
        table: its name.
        plan: numbered; its slots are places.
        told: of all tables of the batch, and the number of this one.
        ids: memory of the ids of places of all tables, and where this one's begin in it.
        keys: [L], as they came.
    """

    def __init__(
        self,
        plans: RowPlans,
        table: str,
        plan: DevicePlan,
        told: tuple[Told, int],
        ids: tuple[_C.ArenaPart, int],
        keys: AnyArray,
    ) -> None:
        self._plans, self._table = plans, table
        self.plan = plan
        self._told, number = told  # whose memory the keys are views of
        self._starts = self._told.starts(number)
        self._ids, self._ids_start = ids
        self.num_occurrences = len(keys)
        self.num_unique = self._starts[-1]
        self.unique_keys = self._told.keys(number, self.num_unique)
        # Of gradients, float32 [num_unique * dim] by id: memory, and where they begin.
        self.sums: tuple[_C.ArenaPart, int] | None = None
        self.dim = int(plan.table.dim)  # type: ignore[attr-defined]
        self._known = [Known(keys)]
        numbers = np.zeros(1, plan._device.args.dtype("BatchNumbers"))
        numbers["num_unique"] = numbers["window_size"] = self.num_unique
        plan.asked_at = 0
        plan.take_numbers(numbers.view(np.uint8))

    @property
    def counts(self) -> list[int]:
        """Distinct keys of each owner."""
        return [end - start for start, end in pairwise(self._starts)]

    def of_rank(self, rank: int) -> Keys:
        """A view of the distinct keys of one owner."""
        return self.unique_keys[self._starts[rank] : self._starts[rank + 1]]

    def matches(self, keys: AnyArray) -> bool:
        """True if these are the keys of the batch, byte for byte, in their order. The very array
        that was divided, or compared before, is believed; comparing another waits."""
        if any(known.is_same(keys) for known in self._known):
            return True
        given = keys if is_tensor(keys) else torch.from_numpy(keys.view(np.int64))
        if not self.plan.matches(given):
            return False
        self.came_as(keys)
        return True

    def came_as(self, keys: AnyArray) -> None:
        """The same keys, in another array."""
        self._known = [*self._known[:1], Known(keys)]

    def sent(self, kept: _C.RestSlots | None) -> _C.SentTable:
        """The sums of these keys, as a message takes them."""
        assert self.sums is not None, "a message of sums that were not taken"
        ids = self._ids.address + self._ids_start
        return _C.SentTable(self.plan, self.sums[1], ids, self.dim, kept)

    def __del__(self) -> None:
        if hasattr(self, "plan"):
            self._plans.give(self._table, self.plan)
