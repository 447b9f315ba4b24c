"""Immortal: what an engine says of periods whose tables' rows never die.

Above it: store.py beside it. Below it: nothing.
"""


class Immortal:
    """The part of hps.contracts.tiers.RowTier that is about rows that die."""

    def set_period(self, period: int) -> None:
        """As `RowTier.set_period`: nothing depends on it."""

    def follow_period(self) -> None:
        """As `RowTier.follow_period`: nothing depends on it."""

    def has_deaths(self, table: str) -> bool:
        """As `RowTier.has_deaths`: False."""
        return False
