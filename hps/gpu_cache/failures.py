"""Failures: the flag by which a device refuses updates after a gradient that was not finite.

Above it: device_cache.py; one of these is shared by all caches of a device, so that a step is
applied to all tables or to none. Below it: arena.py; the kernels NoteFailure, which sets the flag,
and Apply, which changes nothing while it is set. The host sees it in pinned memory, to which it is
copied after every sum.
"""

from contextlib import AbstractContextManager

from hps.common.arrays import HostArray
from hps.errors import ConfigError
from hps.gpu_cache.arena import DeviceArena
from hps.gpu_cache.device import Device, DeviceEvent
from hps.gpu_cache.host_arrays import HostArrays

_ARENA_BYTES = 2**24
MIN_ARENA_BYTES = 2**16
_SCAN_BYTES, _SCANS_OF_AN_ARENA = 2**18, 32


class Failures:
    """The flag, on the device and as the host last saw it; and what those who share it have
    together: the order of their verbs, and the memory that these work on.

    Args:
        device: of the caches.
        arena_bytes: of the memory for batches.

    Raises:
        ConfigError: the device has not that much memory, or that is too little.
    """

    def __init__(self, device: Device, arena_bytes: int = _ARENA_BYTES) -> None:
        self._device = device
        if arena_bytes < MIN_ARENA_BYTES:
            raise ConfigError(
                f"{arena_bytes} bytes of {device.torch_device} are for batches, and what kernels "
                f"are given needs {MIN_ARENA_BYTES}: raise GpuCacheConfig.batch_bytes "
                "(--gpu-batches), which is an eighth of GpuCacheConfig.bytes (--gpu) where it is "
                "not given"
            )
        dtype = device.args.dtype("Failure")
        self.order = device.order()
        self.arena = DeviceArena(device, arena_bytes)
        self.host_arrays = HostArrays(device, self.order)
        self._part = self.arena.take(dtype.itemsize, from_end=True)
        # Of verbs outside of batches, which must not fail for the batches in flight.
        scan_bytes = min(_SCAN_BYTES, arena_bytes // _SCANS_OF_AN_ARENA)
        self.scan = self.arena.take(scan_bytes, from_end=True)
        self._pinned = device.empty_pinned(dtype.itemsize)
        self._pinned.zero_()
        self._seen: HostArray = self._pinned.numpy().view(dtype)
        self._flag = self._seen["is_set"]
        self._num_caches = 0
        self.batch: object = None  # the verbs of all who share it
        with self.verb():
            device.fill(self._part.memory, 0)
            self._copied: DeviceEvent = device.event()

    @property
    def address(self) -> int:
        """Of the flag on the device."""
        return self._part.address

    def new_cache(self) -> int:
        """The number of another cache, from 1."""
        self._num_caches += 1
        return self._num_caches

    def verb(self) -> AbstractContextManager[object]:
        """A context in which work that sets or reads the flag is queued, one after the other."""
        return self.order.verb(self.arena.piece)

    def show_host(self) -> None:
        """Queues the flag's way to the host; inside `verb`, after what may set it."""
        self._device.copy(self._pinned, self._part.memory)
        self._copied = self._device.event()

    @property
    def is_seen(self) -> bool:
        """True if the host sees a failure; one may be on its way."""
        return bool(self._flag[0])

    def failed_key(self, cache: int, wait: bool) -> int | None:
        """The key of `cache` whose gradient was refused, once, and lets updates go on.

        Args:
            cache: its number; what failed in another cache stays for that one to tell.
            wait: wait for all sums so far; else a failure may be told by a later call.
        """
        if wait:
            self._copied.synchronize()
        if not self.is_seen:
            return None
        self._copied.synchronize()
        if self._seen["cache"][0] != cache:
            return None
        key = int(self._seen["key"][0])
        with self.verb():
            self._device.fill(self._part.memory, 0)
            self.show_host()
        self._copied.synchronize()
        return key
