"""Bugs planted in the process that gets killed: each must make the kill recipes fail.

Above it: worker.py. Below it: WatchedStore and Worker, of which each bug is a subclass, so that no
line of hps knows of them. docs/reliability.md lists them.
"""

from dataclasses import dataclass
from typing import Any

from tests.torture.ledger import Phase, Tally
from tests.torture.oracle import Counts
from tests.torture.worker import WatchedStore, Worker


class EarlyWorker(Worker):
    """Acknowledges a checkpoint before the call has returned."""

    def checkpoint(self, tag: str | None = None) -> None:
        self.ledger.acknowledge(self.counts)
        super().checkpoint(tag)


class ForgetfulStore(WatchedStore):
    """Drops one in eight evicted rows on the way down."""

    def append(self, table: str, rows: Any) -> None:
        if self.ledger.phase == Phase.PUSH:
            rows = rows[: len(rows) - len(rows) // 8]
        super().append(table, rows)


class SwappingStore(WatchedStore):
    """Two rows that go down together exchange what they hold, not their keys."""

    def append(self, table: str, rows: Any) -> None:
        if len(rows) > 1:
            rows[[0, 1], 16:] = rows[[1, 0], 16:]
        super().append(table, rows)


class TearingWorker(Worker):
    """Takes its checkpoints within a batch: one table has it, the other has not."""

    def checkpoint(self, tag: str | None = None) -> None:
        places = self.oracle.places(0, int(self.counts[0]) + 1)
        grads = self.oracle.gradients(0, places)
        self.server.push("sgd", self.oracle.keys[places], grads)
        super().checkpoint(tag)


class ReturningWorker(Worker):
    """Restores nothing, and trains on over the checkpoint that was to be abandoned."""

    def restore(self, counts: Counts) -> None:
        self.ledger.attempt(counts)
        self.ledger.acknowledge(counts)
        self.ledger.count(Tally.RESTORES)
        self.counts = counts.copy()
        self.branch += 1


@dataclass(frozen=True)
class Plant:
    """A planted bug: which parts of the worker it replaces."""

    worker: type[Worker] = Worker
    watched: type[WatchedStore] = WatchedStore
    needs_restores: bool = False


PLANTED = {
    "acknowledged-early": Plant(worker=EarlyWorker),
    "evicted-rows-dropped": Plant(watched=ForgetfulStore),
    "rows-swapped": Plant(watched=SwappingStore),
    "batch-torn": Plant(worker=TearingWorker),
    "restore-not-durable": Plant(worker=ReturningWorker, needs_restores=True),
}
