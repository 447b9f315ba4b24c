"""KeySlots: a fixed number of slots for keys, each key in the one slot that its hash names.

Above it: residuals.py, hot_rows.py, which keep a row beside each. Below it: numpy,
`hps._C.virtual_shards`. Memory is bounded, and what is kept follows from the keys alone.
"""

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.common.row_layout import Keys


class KeySlots:
    """Which key is in which slot.

    Args:
        num_slots: keys that can be held at once.

    >>> slots = KeySlots(64)
    >>> keys = np.array([7, 8], np.uint64)
    >>> found = slots.put(keys)
    >>> slots.find(np.array([8, 9], np.uint64))[1].tolist()
    [True, False]
    """

    def __init__(self, num_slots: int) -> None:
        self._keys: Keys = np.zeros(num_slots, np.uint64)
        self.is_used = np.zeros(num_slots, bool)

    def find(self, keys: Keys) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Of keys [n] the slots, and whether they are in them."""
        slots = _C.virtual_shards(keys, len(self._keys))
        return slots, self.is_used[slots] & (self._keys[slots] == keys)

    def put(self, keys: Keys) -> NDArray[np.uint32]:
        """Puts distinct keys [n] in their slots, whatever was there; of two keys of one slot
        the later one stays. Returns the slots."""
        slots = _C.virtual_shards(keys, len(self._keys))
        self._keys[slots] = keys
        self.is_used[slots] = True
        return slots

    def clear(self) -> None:
        """Holds no key any more."""
        self.is_used[:] = False
