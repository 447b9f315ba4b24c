"""Bugs planted in the process that is killed with life cycle on: each must make a recipe fail.

Above it: life_worker.py. Below it: WatchedStore, LifeWorker and parts of hps, of which each bug
replaces one in that process alone. docs/reliability.md lists them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hps.ssd_store import SsdStore
from hps.table.waiting import is_records
from hps.tiers.cached_tier import CachedTier
from tests.torture.ledger import Phase
from tests.torture.life_worker import LifeWorker, counts
from tests.torture.worker import WatchedStore


class EarlyLifeWorker(LifeWorker):
    """Acknowledges a checkpoint before the call has returned."""

    def checkpoint(self) -> None:
        self.ledger.acknowledge(counts(self.done))
        super().checkpoint()


class UncountingStore(WatchedStore):
    """Drops the records of keys that wait on the way down."""

    def append(self, table: str, rows: Any) -> None:
        if is_records(table) and self.ledger.phase == Phase.PUSH:
            rows = rows[: len(rows) - len(rows) // 4]
        super().append(table, rows)


def _forget_the_period() -> None:
    """An opening does not tell the store in which period its checkpoint is."""
    SsdStore.follow_period = _nothing  # type: ignore[method-assign]


def _keep_the_dead() -> None:
    """As a period begins the caches keep the rows that are dead."""
    CachedTier.begin_period = _nothing  # type: ignore[method-assign]


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True)
class LifePlant:
    """A planted bug: what it replaces."""

    worker: type[LifeWorker] = LifeWorker
    watched: type[WatchedStore] = WatchedStore
    prepare: Callable[[], None] = _nothing


PLANTED = {
    "period-forgotten": LifePlant(prepare=_forget_the_period),
    "dead-rows-kept": LifePlant(prepare=_keep_the_dead),
    "records-dropped": LifePlant(watched=UncountingStore),
    "period-acknowledged-early": LifePlant(worker=EarlyLifeWorker),
}
