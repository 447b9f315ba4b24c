"""TableBlock: a kernel's argument structs of several tables in one piece of a device's memory, with
the tables' numbers of items for each launch.

Above it: device_batch.py. Below it: device.py; csrc/gpu_cache/tables.h, which finds the table of an
item. All of it goes to the device in one copy.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from typing import Protocol

import numpy as np
import torch

from hps.common.arrays import HostArray
from hps.gpu_cache.device import Device

_HEADS = ("cache", "batch")
_OF_BATCH = "batch."
_POINTER = struct.Struct("<Q")
_TABLES = struct.Struct("<QQq")  # Tables, of csrc/gpu_cache/tables.h


class HasHeads(Protocol):
    """A table, or a batch of one: the bytes of its CacheArgs under "cache", of its BatchArgs under
    "batch"."""

    heads: dict[str, bytes]


class TableBlock:
    """Made, filled and sent within one verb.

    Args:
        device: where.
        kernel: one of those that are given the struct.
        owners: the tables' batches, or the tables, one at least, in their order.
        items: of each launch, the number of items of each table.
        fields: by name, all of the structs beside cache and batch, a value or one a table; and
            those of batch that are others in this verb, as "batch.first_ranks".

    Cost: one copy to the device.
    """

    def __init__(
        self,
        device: Device,
        kernel: str,
        owners: Sequence[HasHeads],
        items: Sequence[Sequence[int]],
        fields: Mapping[str, Sequence[float] | float],
    ) -> None:
        self._device = device
        self._num_tables = len(owners)
        args = device.args
        struct_name = args.table_struct_of(kernel)
        packer = args.packer(struct_name)
        ends = [end for numbers in items for end in accumulate(numbers)]
        self._counts = ends[len(owners) - 1 :: len(owners)]
        self._ends_bytes = 8 * len(ends)
        words = bytearray(self._ends_bytes + len(owners) * packer.size)
        struct.pack_into(f"<{len(ends)}q", words, 0, *ends)
        places = range(self._ends_bytes, len(words), packer.size)
        columns = [
            [owner.heads[name] for owner in owners] if name in _HEADS else _column(fields[name])
            for name in packer.names
        ]
        for at, values in zip(places, zip(*columns, strict=False), strict=True):
            packer.pack_into(words, at, values)
        for name, numbers in fields.items():
            if name.startswith(_OF_BATCH):
                offset = _offset_of(args.dtype(struct_name), name)
                for at, number in zip(places, _column(numbers), strict=False):
                    _POINTER.pack_into(words, at + offset, number)
        pinned = device.empty_pinned(len(words))
        pinned.numpy()[:] = np.frombuffer(words, np.uint8)
        self._memory: torch.Tensor = device.empty(len(words))
        device.copy(self._memory, pinned)

    def tables(self, launch: int) -> HostArray:
        """Tables, as a kernel is given them: an array of one."""
        base = self._memory.data_ptr()
        ends = base + 8 * self._num_tables * launch
        words = bytearray(_TABLES.pack(base + self._ends_bytes, ends, self._num_tables))
        return np.frombuffer(words, self._device.args.dtype("Tables"))

    def launch(self, kernel: str, number: int) -> None:
        """A kernel over all items of a launch, by its number, if there are any."""
        if self._counts[number]:
            self._device.launch(kernel, self.tables(number), self._counts[number])


def _column(values: Sequence[float] | float) -> Iterable[float]:
    """One a table."""
    return values if isinstance(values, Sequence) else repeat(values)


def _offset_of(dtype: np.dtype[np.void], name: str) -> int:
    """Of a field of a struct's batch, "batch.name"."""
    fields = dtype.fields
    assert fields is not None
    batch, start = fields["batch"][:2]
    assert batch.fields is not None
    return int(start) + int(batch.fields[name.removeprefix(_OF_BATCH)][1])
