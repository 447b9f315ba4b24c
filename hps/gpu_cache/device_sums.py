"""SumsArena: what a sum of gradients works on, for all tables that are summed up at once; Sums:
what one table has of it.

Above it: device_batch.py; device_plan.py, which keeps a batch's sums until they are applied. Below
it: device.py; csrc/gpu_cache/sums.h says what every array is for.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from hps.gpu_cache.device import Arena, Device

_RUN_LENGTH = 32  # csrc/optimizer/binary_counter.h
_ALIGNED = 64  # floats: a table's sums begin with a sector


class TableSizes(NamedTuple):
    """Of one table's part.

    Args:
        length: L, occurrences.
        bound: distinct keys, or more.
        dim: floats of a gradient.
        num_divided: gradients of means.
    """

    length: int
    bound: int
    dim: int
    num_divided: int

    @property
    def most_hot_runs(self) -> int:
        """Runs that keys of more than one run can have together."""
        return self.length // (_RUN_LENGTH // 2) + 1


class Sums(NamedTuple):
    """One table's gradients by key, float32 [bound, dim].

    Args:
        arena: in which they lie.
        use: of the arena, which may have been given to other sums since.
        start: the first one's number, in floats.
    """

    arena: "SumsArena"
    use: int
    start: int

    @property
    def address(self) -> int:
        """Where they start."""
        assert self.arena.num_uses == self.use, "the sums were overwritten by others"
        return self.arena.address("sums") + 4 * self.start


class SumsArena(Arena):
    """Memory for sums; the tables' parts lie one behind the other in each array."""

    def __init__(self, device: Device, tables: Sequence[TableSizes]) -> None:
        room = {name: (dtype, size + size // 8) for name, (dtype, size) in _arrays(tables).items()}
        super().__init__(device, room)
        self.num_tables = len(tables)
        self.num_uses = 0

    def take(self, tables: Sequence[TableSizes]) -> bool:
        """For other sums; False if there is not room enough."""
        if not self.has_room(_arrays(tables)):
            return False
        self.num_uses += 1
        return True


def starts_of(sizes: Sequence[int]) -> list[int]:
    """Where each begins of parts that lie one behind the other, and where the last one ends.

    >>> starts_of([3, 0, 2])
    [0, 3, 3, 5]
    """
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def float_sizes(tables: Sequence[TableSizes], name: str) -> list[int]:
    """Of an array of floats the elements that each table has."""
    rows = {"sums": "bound", "run_sums": "most_hot_runs", "divided": "num_divided"}[name]
    return [-(-getattr(one, rows) * one.dim // _ALIGNED) * _ALIGNED for one in tables]


def _arrays(tables: Sequence[TableSizes]) -> dict[str, tuple[torch.dtype, int]]:
    count = sum(one.length for one in tables)
    places = sum(one.bound + 1 for one in tables)
    assert places < 2**31, "more distinct keys than a sort has places for"
    floats = {
        name: (torch.float32, sum(float_sizes(tables, name)))
        for name in ("sums", "run_sums", "divided")
    }
    return {
        "places": (torch.int32, count),
        "sorted_places": (torch.int32, count),
        "positions": (torch.int64, count),
        "bags": (torch.int32, count),
        "starts": (torch.int64, places),
        "hot_ranks": (torch.int32, places),
        "run_ids": (torch.int32, sum(one.most_hot_runs for one in tables)),
        **floats,
    }
