"""Answers: what a device tells the host of a reserve of several tables, where it writes it.

Above it: device_plan.py, device_reserve.py. Below it: device.py; CommitEntry of
csrc/gpu_cache/reserve_kernels.h, which writes.
"""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from operator import setitem

from hps.common.arrays import HostArray
from hps.gpu_cache.device import Device, DeviceEvent, VerbOrder

_NUMBERS_BYTES = 256  # at least, of a table's numbers; what follows is as aligned
_ALIGNMENT = 16  # of row images


class Answers:
    """What kernels tell the host of a reserve: numbers, missing keys and victims of each table, in
    one piece of pinned memory, which they write to.

    Args:
        device: of the caches.
        order: of its verbs.
        tables: missing keys of each, and bytes of a row.

    Work that is queued has the addresses: the memory is kept until that is done.
    """

    # What an interrupted __init__ leaves.
    _queued: Sequence[bool] = ()

    def __init__(self, device: Device, order: VerbOrder, tables: Sequence[tuple[int, int]]) -> None:
        self._device = device
        self._order = order
        self._event: DeviceEvent | None = None
        self._queued = queued = [False]
        self.note_queued = partial(setitem, queued, 0, True)
        sizes = [
            (_NUMBERS_BYTES, -(-8 * count // _ALIGNMENT) * _ALIGNMENT, count * row_bytes)
            for count, row_bytes in tables
        ]
        starts = [0, *accumulate(size for of_table in sizes for size in of_table)]
        self._missing = [count for count, _ in tables]
        self._parts = [starts[at : at + 4] for at in range(0, len(starts) - 1, 3)]
        self._host = device.empty_pinned(starts[-1])
        base = self._host.data_ptr()
        names = ("told", "told_keys", "victims")
        self.addresses = {
            name: [base + part[at] for part in self._parts] for at, name in enumerate(names)
        }

    @property
    def are_queued(self) -> bool:
        """True if `note_queued`, a builtin that is called with the queueing, was called: the
        kernels that tell have been queued."""
        return any(self._queued)

    def note_point(self) -> DeviceEvent:
        """The point behind those kernels, for which `wait` waits."""
        event = self._event
        if event is None:
            with self._order.verb():
                self._event = event = self._device.event()
        return event

    def wait(self, table: int) -> tuple[HostArray, HostArray, HostArray]:
        """Numbers, missing keys, and memory of victims, which may be more than there are: bytes.
        Views of memory that lives as long as anyone holds them. Waits."""
        assert self.are_queued, "nothing was queued"
        self.note_point().synchronize()
        array: HostArray = self._host.numpy()
        numbers, keys, victims = (array[first:end] for first, end in pairwise(self._parts[table]))
        size = self._device.args.dtype("BatchNumbers").itemsize
        return numbers[:size], keys[: 8 * self._missing[table]], victims

    def __del__(self) -> None:
        if self.are_queued:
            self.note_point().synchronize()
