"""Answers: what a device tells the host of a reserve of several tables, and where the rows that it
lacks come: memory of the host, which kernels write and read where it lies.

Above it: device_plan.py, device_reserve.py. Below it: pinned.py; CommitEntry of
csrc/gpu_cache/reserve_kernels.h, which writes, FillRow of moves.h, which reads.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from operator import setitem

from hps.common.arrays import HostArray
from hps.gpu_cache.pinned import PinnedPool

_ALIGNMENT = 256  # of each array
_NUMBERS_BYTES = 256  # at least, of a table's numbers


class Answers:
    """What kernels tell the host of a reserve: numbers, missing keys and victims of each table, and
    room for the missing rows, in one piece of pinned memory.

    Args:
        pool: from which that is taken.
        tables: missing keys of each, and bytes of a row.

    Work that is queued has the addresses: the piece is in use until that is done.
    """

    def __init__(self, pool: PinnedPool, tables: Sequence[tuple[int, int]]) -> None:
        self._queued = queued = [False]
        sizes = [
            (_NUMBERS_BYTES, 8 * count, count * row_bytes, count * row_bytes)
            for count, row_bytes in tables
        ]
        aligned = (-(-size // _ALIGNMENT) * _ALIGNMENT for of_table in sizes for size in of_table)
        starts = [0, *accumulate(aligned)]
        self._piece = piece = pool.take(starts[-1])
        self._parts = [
            [slice(start, start + size) for start, size in zip(starts[4 * at :], own, strict=False)]
            for at, own in enumerate(sizes)
        ]
        names = ("told", "told_keys", "victims")
        self.addresses = {
            name: [piece.address + part[at].start for part in self._parts]
            for at, name in enumerate(names)
        }
        # Builtins, to be called with the queueing of a reserve, and of a fill from here.
        self.note_queued = (partial(setitem, queued, 0, True), piece.note_queued)
        self.note_read = piece.note_queued
        # The point behind those kernels, after it was queued.
        self.note_point = piece.note_point

    @property
    def are_queued(self) -> bool:
        """True if `note_queued` were called: the kernels that tell have been queued."""
        return any(self._queued)

    def wait(self, table: int) -> tuple[HostArray, HostArray, HostArray, HostArray]:
        """Numbers, missing keys, memory of victims, which may be more than there are, and memory
        for missing rows: bytes. Views of memory that lives as long as anyone holds them. Waits."""
        assert self.are_queued, "nothing was queued"
        self.note_point().synchronize()
        array = self._piece.array()
        told, keys, victims, rows = (array[part] for part in self._parts[table])
        return told, keys, victims, rows
