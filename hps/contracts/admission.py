"""What decides which new keys of a table come by a row, as the table's stack asks it.

Above it: tiers/top_tier.py, tiers/joint_rows.py. Below it: tiers/admission.py, which does it.
"""

from collections.abc import Callable
from typing import Protocol

from hps.common.row_layout import Keys
from hps.contracts.row_cache import BatchPlan
from hps.types import Pins


class Gate(Protocol):
    """Of one table; asked within the server's updates."""

    @property
    def is_prepared(self) -> bool:
        """True if `prepare` holds something."""

    def prepare(self, plan: BatchPlan) -> bool:
        """Holds what the fresh rows of a plan's window wait by; False if it cannot be held at once.

        The window's rows are in place and stay there. Without the lock. `release` comes afterwards,
        whatever is raised.
        """

    def prepare_here(self, plan: BatchPlan) -> bool:
        """As prepare, where nothing has to be fetched for it; else False. Under the lock."""

    def bring_ahead(self, plan: BatchPlan) -> Pins | None:
        """Brings what the fresh rows of a pinned plan wait by, and holds it until it is released,
        as far as there is room; None where there is nothing to bring. From any thread, without the
        lock."""

    def require(self, plan: BatchPlan) -> None:
        """As prepare; CapacityError if it is False."""

    def deciding(self, plan: BatchPlan) -> Callable[[], None]:
        """To be called next, then the update, with nothing between: marks the fresh rows that it is
        to leave alone. The plan has its sums. One native call. Under the lock."""

    def release(self) -> None:
        """Lets go of what was prepared; nothing to do the second time."""

    def prepare_to_forget(self, keys: Keys) -> None:
        """Holds what keys [L] wait by, so that `forget` of them needs no disk. Where that is too
        much to hold at once nothing is. Without the lock; `release` comes afterwards, as well."""

    def forget(self, keys: Keys) -> None:
        """Keys [L] wait no more, and if they come again begin anew."""


def and_forget(gate: Gate | None, keys: Keys, change: Callable[[], None]) -> None:
    """Changes the rows of keys [L], which wait no more then: all of it, or where the change raises,
    or the disk is full, nothing. Without the lock."""
    if gate is None:
        change()
        return
    try:
        gate.prepare_to_forget(keys)
        change()
        gate.forget(keys)
    finally:
        gate.release()
