"""SumsArena: what a sum of gradients works on, for all tables that are summed up at once.

Above it: device_batch.py; a plan keeps the one of its sums until they are applied. Below it:
device.py; hps._C.DeviceVerbs says how many elements each array needs, and gives each table its part
of them; csrc/gpu_cache/sums.h says what every array is for.
"""

from collections.abc import Sequence

import torch

from hps import _C
from hps.gpu_cache.device import Arena, Device

# In the order of SumsLayout (csrc/bindings/device_plan.h).
_ARRAYS = {
    "arrived": torch.int32,
    "unordered": torch.int32,
    "rows": torch.int32,
    "keys": torch.int64,
    "arrivals": torch.int32,
    "row_keys": torch.int32,
    "weights": torch.float32,
    "run_sums": torch.float32,
    "divided": torch.float32,
}


class SumsArena(_C.SumsLayout):
    """Memory for sums; the tables' parts lie one behind the other in each array.

    Args:
        device: where.
        sizes: elements that each array needs, in their order; there is room for some more.
    """

    def __init__(self, device: Device, sizes: Sequence[int]) -> None:
        room = [size + size // 8 for size in sizes]
        arrays = dict(zip(_ARRAYS, zip(_ARRAYS.values(), room, strict=True), strict=True))
        self.arena = Arena(device, arrays)
        addresses = [self.arena.address(name) for name in arrays]
        super().__init__(self.arena.piece, addresses, room)
