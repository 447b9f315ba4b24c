"""Residuals: what a narrow format rounded away of a key's gradient, to be sent with its next one.

Above it: gradient_exchange.py. Below it: key_slots.py. A key that comes to another's slot takes it,
and what was kept there is forgotten.
"""

import numpy as np

from hps.cluster.exchange.key_slots import KeySlots
from hps.common.row_layout import Floats, Keys

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
        self._slots = KeySlots(num_slots)
        self._rows: Floats = np.zeros((num_slots, dim), np.float32)

    def clear(self) -> None:
        """Forgets all: at a checkpoint, so that training resumed from it has the same bits."""
        self._slots.clear()

    def of(self, keys: Keys) -> Floats:
        """What is kept of distinct keys [n], zeros for others: float32 [n, dim], a copy."""
        slots, is_kept = self._slots.find(keys)
        rows = self._rows[slots]
        rows[~is_kept] = 0.0
        return rows

    def keep(self, keys: Keys, rows: Floats) -> None:
        """Takes what distinct keys [n] have left; of two keys of one slot the later one stays."""
        self._rows[self._slots.put(keys)] = rows
