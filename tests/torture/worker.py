"""The process that gets killed: it trains the oracle's batches over tiny tiers, for ever.

Above it: kills.py, which starts it as `python -m tests.torture.worker`. Below it: ParameterServer.
Starting Python takes longer than most lives, so the process that is started only imports; for each
line on its standard input (an Order) it forks a worker and prints its pid; at the next line, sent
after the kill, it reaps the worker and prints its wait status.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hps
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import ParameterServer
from hps.ssd_store import SsdStore
from tests.torture.ledger import Ledger, Phase, Tally
from tests.torture.oracle import NUM_CLIENTS, Counts, Oracle, OracleViolation, tables

DRAM_BYTES = 22_000  # two buckets a table, 128 rows, of the oracle's 1600 keys
SEGMENT_BYTES = 2**16
KEPT = "kept"


@dataclass(frozen=True)
class Order:
    """What a worker is to do.

    folder: holds the store and the ledger.
    seed: of the oracle.
    restores: go back to an older tag now and then, leaving newer checkpoints behind.
    plant: name of a planted bug of planted.py, or "".
    """

    folder: str
    seed: int
    restores: bool = False
    plant: str = ""

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self)) + "\n"


class WatchedStore:
    """The server's SsdStore, noting in the ledger when rows go down and checkpoints are made."""

    def __init__(self, store: SsdStore, ledger: Ledger) -> None:
        self.store = store
        self.ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def append(self, table: str, rows: Any) -> None:
        phase = self.ledger.phase
        if phase == Phase.PUSH:
            self.ledger.phase = Phase.EVICTION
            self.ledger.count(Tally.EVICTED_ROWS, len(rows))
        self.store.append(table, rows)
        self.ledger.count(Tally.APPENDS)
        self.ledger.phase = phase


def config(folder: str | Path) -> hps.Config:
    """Of the store in a torture folder."""
    return hps.Config(
        path=Path(folder) / "store",
        tables=tables(),
        dram=hps.DramCacheConfig(bytes=DRAM_BYTES),
        ssd=hps.SsdStoreConfig(segment_bytes=SEGMENT_BYTES),
        threads=2,
    )


def open_server(order: Order, ledger: Ledger, watched: type[WatchedStore]) -> ParameterServer:
    """The store opened for writing, behind a WatchedStore."""
    return ParameterServer(
        config(order.folder),
        _tiers=Tiers(lambda *args, **options: watched(SsdStore.open(*args, **options), ledger)),
    )


class Worker:
    """One life: opens the store where it stands and goes on from there.

    The clients take turns by a rule that differs from branch to branch, and each opening and each
    restore begins a new branch: what was left behind can never be mistaken for what came after it.
    """

    def __init__(self, order: Order, server: ParameterServer, ledger: Ledger) -> None:
        self.order = order
        self.server = server
        self.ledger = ledger
        self.oracle = Oracle(order.seed)
        position = server.checkpoint_state()[1] or {"counts": [0] * NUM_CLIENTS, "branch": 0}
        self.counts: Counts = np.array(position["counts"])
        self.branch = position["branch"] + 1
        self.compactions = 0
        self.chance = np.random.default_rng((order.seed, self.branch, *self.counts))

    def train(self, num_batches: int) -> None:
        """Batches of one client if restores are about, of all in a random order otherwise."""
        for _ in range(num_batches):
            turn = self.branch if self.order.restores else int(self.chance.integers(1000))
            client = turn % NUM_CLIENTS
            self.ledger.phase = Phase.PUSH
            self.oracle.push(self.server, client, int(self.counts[client]) + 1)
            self.counts[client] += 1
            self.ledger.count(Tally.PUSHES)

    def checkpoint(self, tag: str | None = None) -> None:
        """Acknowledged when the call returns."""
        self.ledger.phase = Phase.CHECKPOINT
        self.ledger.attempt(self.counts)
        position = {"counts": self.counts.tolist(), "branch": self.branch}
        self.server.checkpoint(tag, reader=position)
        self.ledger.acknowledge(self.counts)
        self.ledger.count(Tally.CHECKPOINTS)

    def compact(self) -> None:
        """All that is dead goes; the thread of the store has compacted meanwhile as well."""
        self.ledger.phase = Phase.COMPACTION
        self.server.compact()
        compactions = int(self.server.stats()["ssd_store"]["compactions"])
        self.ledger.count(Tally.COMPACTIONS, compactions - self.compactions)
        self.compactions = compactions

    def restore(self, counts: Counts) -> None:
        """Back to the tagged checkpoint, which was at `counts`."""
        self.ledger.phase = Phase.RESTORE
        self.ledger.attempt(counts)
        self.server.restore(KEPT)
        self.ledger.acknowledge(counts)
        self.ledger.count(Tally.RESTORES)
        self.counts = counts.copy()
        self.branch += 1

    def live(self) -> None:
        """Never returns."""
        while True:
            self.train(int(self.chance.integers(1, 9)))
            if not self.order.restores:
                self.checkpoint()
                if self.chance.integers(4) == 0:
                    self.compact()
                continue
            self.checkpoint(KEPT)
            kept = self.counts.copy()
            for _ in range(int(self.chance.integers(1, 3))):
                self.train(3)
                self.checkpoint()
            self.restore(kept)
            self.train(3)
            self.checkpoint()


def work(order: Order) -> None:
    """One life of a worker; never returns."""
    from tests.torture.planted import PLANTED

    ledger = Ledger(Path(order.folder) / "ledger")
    ledger.phase = Phase.OPENING
    plant = PLANTED.get(order.plant)
    server = open_server(order, ledger, plant.watched if plant else WatchedStore)
    worker = (plant.worker if plant else Worker)(order, server, ledger)
    if not ledger.allows(worker.counts):
        raise OracleViolation(f"opened at {worker.counts}, {ledger}")
    ledger.acknowledge(worker.counts)
    ledger.count(Tally.OPENINGS)
    worker.live()


def fork_for_orders(live: Callable[[dict[str, Any]], None]) -> None:
    """Forks a worker for each order, until the input ends; one that returns has done it all.

    Args:
        live: a worker's life, given the fields of its order.
    """
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                live(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        print(pid, flush=True)
        sys.stdin.readline()
        _, status = os.waitpid(pid, 0)
        print(status, flush=True)


if __name__ == "__main__":
    fork_for_orders(lambda order: work(Order(**order)))
