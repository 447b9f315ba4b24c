"""DeviceArena: one piece of a device's memory, of which batches take parts and give them back.

Above it: failures.py, which all caches of a device share; ring.py, device_plan.py, device_sums.py,
device_cache.py, peers.py, which take parts. Below it: device.py; hps._C.Arena, which knows what is
free. Tables and this piece together are what GpuCacheConfig.bytes says.

All verbs of a device are in one order (VerbOrder), and a part is worked on within verbs alone. So a
part that comes back may be given out at once, to whatever stream: what the next verb does with it
comes after all that the verbs before have queued. The piece itself is recorded for each stream, as
a table's is, for it comes back to the allocator of the device in the end.

What is kept from batch to batch lies at the end of the piece, what comes with a batch and goes with
it before that: where no batch is under way, that is one free part again.
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from hps import _C
from hps.errors import BatchMemoryError
from hps.gpu_cache.device import Device, Memory

Plans = Sequence[_C.DevicePlanState]
_ARRAY_ALIGNMENT = 128  # of arrays in a part: a line of a device's cache


class DeviceArena:
    """Parts of one piece of memory; those who take them queue their work within verbs.

    Args:
        device: where.
        num_bytes: of the piece, all of which is taken at once.

    Raises:
        ConfigError: the device has not that much memory.
    """

    def __init__(self, device: Device, num_bytes: int) -> None:
        self._device = device
        self.num_bytes = num_bytes
        self.piece = Memory(device.empty(num_bytes))
        memory = self.piece.memory
        self._parts = _C.Arena(memory, memory.data_ptr(), num_bytes)
        # Give back what is kept for later, where a part is not to be had. Called with the plans
        # that are being worked on.
        self.on_shortage: list[Callable[[Plans], None]] = []
        # Puts what is kept from batch to batch to the end, where nothing else is in its way.
        self.tidy: Callable[[], None] = lambda: None

    @property
    def used_bytes(self) -> int:
        """Of the parts that somebody has."""
        return self._parts.used_bytes

    @property
    def peak_bytes(self) -> int:
        """That were in use at once so far."""
        return self._parts.peak_bytes

    def find(self, num_bytes: int, from_end: bool = False) -> _C.ArenaPart | None:
        """A part of so many bytes, of any contents, or None if none is free.

        Args:
            from_end: of what is kept from batch to batch.
        """
        return self._parts.part(num_bytes, from_end)

    def take(
        self, *sizes: int, plans: Plans = (), from_end: bool = False, tidy: bool = False
    ) -> _C.ArenaPart:
        """A part of so many bytes, of any contents; where there is none, idle plans give theirs
        back first.

        Args:
            sizes: the one that is wanted, and those that do as well, one after the other.
            plans: that are being worked on, which keep theirs.
            from_end: of what is kept from batch to batch.
            tidy: nothing was taken yet for the work that is queued next, so that what others keep
                may be put elsewhere.

        Raises:
            BatchMemoryError: there is no such part.
        """
        part = self._first_of(sizes, from_end)
        if part is None:
            for spare in self.on_shortage:
                spare(plans)
            part = self._first_of(sizes, from_end)
        if part is None and tidy:
            self.tidy()
            part = self._first_of(sizes, from_end)
        if part is None:
            raise BatchMemoryError(
                f"{self._device.torch_device} has {self.num_bytes} bytes for batches, of which "
                f"{self.used_bytes} are in use, and {self._parts.largest_part} are free in one "
                f"piece; {sizes[-1]} more are needed: raise GpuCacheConfig.batch_bytes "
                "(--gpu-batches), or make batches smaller"
            )
        return part

    def _first_of(self, sizes: Sequence[int], from_end: bool) -> _C.ArenaPart | None:
        for size in sizes:
            part = self._parts.part(size, from_end)
            if part is not None:
                return part
        return None


class Layout:
    """Where named arrays lie in one part, one after the other.

    Args:
        arrays: name -> (dtype, elements), in their order.
    """

    def __init__(self, arrays: Mapping[str, tuple[torch.dtype, int]]) -> None:
        self._places: dict[str, tuple[int, torch.dtype, int]] = {}
        end = 0
        for name, (dtype, count) in arrays.items():
            self._places[name] = (end, dtype, count)
            end += bytes_of(dtype, count)
        self.num_bytes = end

    def address(self, part: _C.ArenaPart, name: str) -> int:
        """Where an array starts."""
        return part.address + self._places[name][0]

    def tensor(self, part: _C.ArenaPart, name: str, count: int = -1) -> torch.Tensor:
        """View of an array, or of its first `count` elements; it does not keep the part."""
        offset, dtype, length = self._places[name]
        num_bytes = (length if count < 0 else count) * dtype.itemsize
        view: torch.Tensor = part.memory[offset : offset + num_bytes].view(dtype)
        return view


def bytes_of(dtype: torch.dtype, count: int) -> int:
    """What an array takes of a part."""
    return -(-count * dtype.itemsize // _ARRAY_ALIGNMENT) * _ARRAY_ALIGNMENT
