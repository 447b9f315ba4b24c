"""TableBlock: a kernel's argument structs of several tables in one piece of a device's memory, with
the tables' numbers of items for each launch.

Above it: device_batch.py. Below it: device.py; csrc/gpu_cache/tables.h, which finds the table of an
item. All of it goes to the device in one copy.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from hps.common.arrays import HostArray
from hps.gpu_cache.device import Device


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
        dtype = device.args.dtype(device.args.table_struct_of(kernel))
        ends = np.cumsum(np.asarray(items, np.int64), axis=1)
        self._counts: list[int] = ends[:, -1].tolist()
        num_bytes = ends.nbytes + len(owners) * dtype.itemsize
        pinned = device.empty_pinned(num_bytes)
        words = pinned.numpy()
        words[: ends.nbytes].view(np.int64)[:] = ends.reshape(-1)
        structs = words[ends.nbytes :].view(dtype)
        for head in ("cache", "batch"):
            if head in (dtype.names or ()):
                own = b"".join([owner.heads[head] for owner in owners])
                structs[head] = np.frombuffer(own, dtype[head])
        for name, values in fields.items():
            of_batch = name.removeprefix("batch.")
            (structs if of_batch == name else structs["batch"])[of_batch] = values
        self._ends_bytes = ends.nbytes
        self._memory: torch.Tensor = device.empty(num_bytes)
        device.copy(self._memory, pinned)

    def tables(self, launch: int) -> HostArray:
        """Tables, as a kernel is given them: an array of one."""
        tables = np.empty(1, self._device.args.dtype("Tables"))
        base = self._memory.data_ptr()
        ends = base + 8 * self._num_tables * launch
        tables[0] = (base + self._ends_bytes, ends, self._num_tables)
        return tables

    def launch(self, kernel: str, number: int) -> None:
        """A kernel over all items of a launch, by its number."""
        self._device.launch(kernel, self.tables(number), self._counts[number])
