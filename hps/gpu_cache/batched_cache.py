"""BatchedCache: what the verbs over several tables ask of the cache of each, which a plan names as
its table.

Above it: device_batch.py, device_reserve.py. Below it: device_plan.py; device_cache.py keeps it.
"""

from typing import Protocol, cast

import torch

from hps import _C
from hps.common.arrays import AnyArray
from hps.gpu_cache.device_plan import DevicePlan


class BatchedCache(Protocol):
    """A DeviceCache, as far as that goes."""

    dim: int
    row_bytes: int
    epoch: int

    @property
    def has_pins(self) -> bool:
        """True if no row can have all the pins that it may."""

    def is_current(self, plan: DevicePlan) -> bool:
        """See RowCache."""

    def note_held(self, plan: DevicePlan) -> None:
        """Notes that a plan pins its window, or may."""

    def let_go(self, plan: DevicePlan) -> None:
        """Notes that a plan pins nothing."""

    def input(self, values: AnyArray, plan: DevicePlan) -> tuple[torch.Tensor, _C.ArenaPart | None]:
        """Values of the device, or of the host, which are copied there; and what keeps them."""

    def check_floats(self, values: AnyArray, shape: tuple[int, ...], what: str) -> None:
        """ValueError unless they are of that shape."""


def cache_of(plan: DevicePlan) -> BatchedCache:
    """The cache that made a plan."""
    return cast("BatchedCache", plan.table)
