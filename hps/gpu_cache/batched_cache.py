"""BatchedCache: what the verbs over several tables of a device ask of the cache of each.

Above it: device_batch.py, device_reserve.py. Below it: device_cache.py is one.
"""

from typing import Protocol

import torch

from hps.common.arrays import AnyArray
from hps.gpu_cache.device import Memory
from hps.gpu_cache.device_plan import DevicePlan


class BatchedCache(Protocol):
    """The cache of a table, as those verbs see it."""

    piece: Memory
    heads: dict[str, bytes]
    dim: int
    row_bytes: int
    epoch: int
    num_swept: int  # buckets a tick of its clock
    number: int  # by which its failure is known
    trial: str  # the kernel that tries its optimizer
    update: str  # the one that applies it

    @property
    def has_pins(self) -> bool:
        """True if no row can have all the pins that it may."""

    def is_current(self, plan: DevicePlan) -> bool:
        """See RowCache."""

    def is_looked_up(self, plan: DevicePlan) -> bool:
        """See QueuedCache."""

    def note_held(self, plan: DevicePlan) -> None:
        """Notes that a plan pins its window, or may."""

    def let_go(self, plan: DevicePlan) -> None:
        """Notes that a plan pins nothing."""

    def safe_bits(self, lr: float) -> int:
        """Gradients up to that magnitude need no trial."""

    def input(self, values: AnyArray) -> torch.Tensor:
        """Values of the device, or of the host, which are copied there."""

    def check_floats(self, values: AnyArray, shape: tuple[int, ...], what: str) -> None:
        """ValueError unless they are of that shape."""
