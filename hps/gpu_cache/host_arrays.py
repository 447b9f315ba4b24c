"""HostArrays: arrays of the host that kernels read and write where they lie, in pinned memory: each
element crosses the bus as often as in a copy, and no memory of the device is taken.

Above it: device_rows.py, device_cache.py. Below it: pinned.py.
"""

import numpy as np

from hps.common.arrays import HostArray
from hps.gpu_cache.device import Device, VerbOrder
from hps.gpu_cache.pinned import PinnedPiece, PinnedPool


class HostArrays:
    """Of a device.

    Args:
        device: whose kernels.
        order: of its verbs.

    What is given is for kernels that are queued next, within a verb; then its `note_point` is due.
    """

    def __init__(self, device: Device, order: VerbOrder) -> None:
        self._pool = PinnedPool(device, order)

    def take(self, num_bytes: int) -> PinnedPiece:
        """Memory of any contents."""
        piece = self._pool.take(max(1, num_bytes))
        piece.note_queued()  # before it is: nothing comes between, and who drops it now waits
        return piece

    def put(self, array: HostArray) -> PinnedPiece:
        """A copy of an array, which may change at once."""
        piece = self.take(array.nbytes)
        piece.array()[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return piece


def written(piece: PinnedPiece) -> HostArray:
    """uint8 of what kernels have written there; a view, which keeps the piece. Waits."""
    piece.note_point().synchronize()
    return piece.array()
