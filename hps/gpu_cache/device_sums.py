"""SumsRoom: what a sum of gradients works on, for all tables that are summed up at once.

Above it: device_batch.py; a plan keeps the one of its sums until they are applied, or it is made of
other keys. Below it: arena.py; hps._C.DeviceVerbs says how many elements each array needs, and
gives each table its part of them; csrc/gpu_cache/sums.h says what every array is for.

Steps come one after the other, and the sums of one are over when the next begins: so they have one
memory, whose room is made when a batch is pinned.
"""

from collections.abc import Sequence
from operator import ge

import torch

from hps import _C
from hps.errors import BatchMemoryError
from hps.gpu_cache.arena import DeviceArena, Layout, Plans, bytes_of

# In the order of SumsLayout (csrc/bindings/device_plan.h).
_ARRAYS = {
    "arrived": torch.int32,
    "unordered": torch.int32,
    "origins": torch.int32,
    "keys": torch.int64,
    "arrivals": torch.int32,
    "row_keys": torch.int32,
    "weights": torch.float32,
    "run_sums": torch.float32,
    "divided": torch.float32,
}


def sums_bytes(sizes: Sequence[int]) -> int:
    """What sums take that need so many elements of each array."""
    return sum(bytes_of(dtype, size) for dtype, size in zip(_ARRAYS.values(), sizes, strict=True))


class Sums(_C.SumsLayout):
    """Memory for sums; the tables' parts lie one behind the other in each array.

    Args:
        arena: of the device.
        part: of it, for all arrays.
        elements: of each array, in their order.
    """

    def __init__(self, arena: DeviceArena, part: _C.ArenaPart, elements: Sequence[int]) -> None:
        layout = Layout(
            dict(zip(_ARRAYS, zip(_ARRAYS.values(), elements, strict=True), strict=True))
        )
        super().__init__(arena.piece, [layout.address(part, name) for name in _ARRAYS], elements)
        self._part = part
        self.elements = list(elements)

    def has_room(self, sizes: Sequence[int]) -> bool:
        """True if it has so many elements of each array."""
        return all(map(ge, self.elements, sizes))


class SumsRoom:
    """The sums of a device's steps, one after the other.

    Args:
        arena: of its memory.
    """

    def __init__(self, arena: DeviceArena) -> None:
        self._arena = arena
        self._kept: Sums | None = None

    def make(self, sizes: Sequence[int], plans: Plans) -> None:
        """Room for a step to come, of so many elements of each array. Within a verb.

        Args:
            plans: of the step.

        Raises:
            BatchMemoryError: there is not as much; what there was is there.
        """
        if self.has_room(sizes):
            return
        busy = self._kept if self.is_busy else None  # which has what it has anyway
        # Arrays of which the steps so far have needed more will be needed again.
        before = self.let_go()
        most = [max(size + size // 8, old) for size, old in zip(sizes, before, strict=True)]
        try:
            wanted = sums_bytes(most)
            part = self._arena.take(wanted, sums_bytes(sizes), plans=plans, from_end=True)
        except BatchMemoryError:
            self._kept = busy
            self.take_again(before)
            raise
        self._kept = Sums(self._arena, part, most if part.num_bytes >= wanted else sizes)

    def has_room(self, sizes: Sequence[int]) -> bool:
        """True if `make` has nothing to do."""
        kept = self._kept  # another thread may make room at once
        return kept is not None and kept.has_room(sizes)

    def take(self, sizes: Sequence[int], plans: Plans) -> Sums:
        """Memory for sums that begin now.

        Raises:
            BatchMemoryError: there is not as much; nothing is queued by then.
        """
        if self.is_busy:
            self._kept = None  # other plans have it for as long as they need it
        self.make(sizes, plans)
        assert self._kept is not None
        return self._kept

    def let_go(self) -> list[int]:
        """Gives its part back, if no step has it; how many elements of each array that had."""
        kept, self._kept = self._kept, None
        return [0] * len(_ARRAYS) if kept is None else kept.elements

    def take_again(self, elements: Sequence[int]) -> None:
        """As much as it had, which is free, unless it has some."""
        if self._kept is None and any(elements):
            part = self._arena.find(sums_bytes(elements), from_end=True)
            self._kept = None if part is None else Sums(self._arena, part, elements)

    @property
    def is_busy(self) -> bool:
        """True if plans are to be updated by what is there."""
        kept = self._kept
        return kept is not None and kept.num_pending > 0
