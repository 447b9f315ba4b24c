"""Residuals: what a narrow format rounded away of a key's gradient, to be sent with its next one.

Above it: gradient_exchange.py. Below it: numpy, `hps._C.virtual_shards`. A table of a fixed number
of slots, one key each: a key that comes to another's slot takes it, and what was kept there is
forgotten. So the memory is bounded, and what is kept follows from the gradients alone.
"""

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.row_layout import Floats, Keys

NUM_SLOTS = 2**16


class Residuals:
    """Of one table, on the rank that sends.

    Args:
        dim: of a gradient.
        num_slots: keys that it can hold at once.

    >>> residuals = Residuals(2)
    >>> keys = np.array([7], np.uint64)
    >>> residuals.keep(keys, np.array([[0.5, 0.0]], np.float32))
    >>> residuals.of(keys).tolist(), residuals.of(keys + np.uint64(1)).tolist()
    ([[0.5, 0.0]], [[0.0, 0.0]])
    """

    def __init__(self, dim: int, num_slots: int = NUM_SLOTS) -> None:
        self._num_slots = num_slots
        self._dim = dim
        self.clear()

    def clear(self) -> None:
        """Forgets all: at a checkpoint, so that training resumed from it has the same bits."""
        self._keys: Keys = np.zeros(self._num_slots, np.uint64)
        self._is_used = np.zeros(self._num_slots, bool)
        self._rows: Floats = np.zeros((self._num_slots, self._dim), np.float32)

    def of(self, keys: Keys) -> Floats:
        """What is kept of distinct keys [n], zeros for others: float32 [n, dim], a copy."""
        slots = self._slots(keys)
        rows = self._rows[slots]
        rows[~(self._is_used[slots] & (self._keys[slots] == keys))] = 0.0
        return rows

    def keep(self, keys: Keys, rows: Floats) -> None:
        """Takes what distinct keys [n] have left; of two keys of one slot the later one stays."""
        slots = self._slots(keys)
        self._keys[slots] = keys
        self._is_used[slots] = True
        self._rows[slots] = rows

    def _slots(self, keys: Keys) -> NDArray[np.uint32]:
        return _C.virtual_shards(keys, self._num_slots)
