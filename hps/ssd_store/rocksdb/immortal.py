"""Immortal: what an engine says of periods whose tables' rows never die.

Above it: store.py beside it. Below it: nothing.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


class Immortal:
    """The part of hps.contracts.tiers.RowTier that is about rows that die."""

    def set_period(self, period: int, horizons: Mapping[str, int] | None = None) -> None:
        """As `RowTier.set_period`: nothing depends on it."""

    def count_deaths(self, table: str, period: int) -> NDArray[np.uint64]:
        """As `RowTier.count_deaths`, for which nobody asks here."""
        raise AssertionError(f"table {table!r} has no periods of death")

    def follow_period(self) -> None:
        """As `RowTier.follow_period`: nothing depends on it."""

    def has_deaths(self, table: str) -> bool:
        """As `RowTier.has_deaths`: False."""
        return False
