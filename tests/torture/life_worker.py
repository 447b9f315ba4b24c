"""The process that gets killed with life cycle on: verbs over tiny tiers, periods and checkpoints.

Above it: life_kills.py and life_faults.py, which start it as `python -m tests.torture.life_worker`.
Below it: life_workload.py, worker.py, ParameterServer. An order says what its disk does to it:
nothing, so that it lives until it is killed (K1); it dies at a call of a checkpoint (K2); it is
full (F2).
"""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import hps
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import ParameterServer
from hps.ssd_store import open_store
from tests.torture.faulty_calls import Faults
from tests.torture.ledger import Ledger, Phase, Tally
from tests.torture.life_workload import State, Workload, config, is_turn, read_states
from tests.torture.oracle import NUM_CLIENTS, OracleViolation
from tests.torture.worker import fork_for_orders

REFUSALS = 3  # verbs that are refused before the disk has space again
DROPPED_CALLS = 20  # until a disk that drops what it has no space for has space again
MOST_VERBS = 60  # under a disk that is about to be full


@dataclass(frozen=True)
class LifeOrder:
    """What a worker is to do.

    folder: holds the store and the ledger, and of F2 the states after each verb.
    seed: of the verbs.
    engine: of the store.
    plant: name of a planted bug of life_planted.py, or "".
    dies_at: K2: the call of a checkpoint at which it dies, from 1 on; 0: it does not.
    room: F2: bytes that the disk has still; 0: it is never full.
    environment: variables to set, of the faulty calls.
    """

    folder: str
    seed: int
    engine: str = "segments"
    plant: str = ""
    dies_at: int = 0
    room: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @property
    def store(self) -> Path:
        """Of the worker."""
        return Path(self.folder) / "store"

    @property
    def faults(self) -> Path:
        """The block of its faulty calls."""
        return Path(self.folder) / "faults"

    @property
    def states(self) -> Path:
        """What the store is to hold after each verb."""
        return Path(self.folder) / "states"


class LifeWorker:
    """One life: opens the store where it stands and goes on from there.

    Args:
        order: what it is to do.
        server: over the store.
        ledger: told of what it does; its first count is the number of verbs.
    """

    def __init__(self, order: LifeOrder, server: ParameterServer, ledger: Ledger) -> None:
        self.order = order
        self.server = server
        self.ledger = ledger
        self.workload = Workload(order.seed)
        self.done = number_at(server)
        self.compactions = 0
        self.chance = np.random.default_rng((order.seed, self.done))

    def run(self) -> None:
        """One verb."""
        turns = is_turn(self.done + 1)
        self.ledger.phase = Phase.PERIOD if turns else Phase.PUSH
        self.workload.run(self.server, self.done + 1)
        self.done += 1
        self.ledger.count(Tally.PERIODS if turns else Tally.PUSHES)

    def checkpoint(self) -> None:
        """Acknowledged when the call returns."""
        self.ledger.phase = Phase.CHECKPOINT
        self.ledger.attempt(counts(self.done))
        self.server.checkpoint(reader={"done": self.done})
        self.ledger.acknowledge(counts(self.done))
        self.ledger.count(Tally.CHECKPOINTS)

    def compact(self) -> None:
        """All that is dead goes; the thread of the store has compacted meanwhile as well."""
        self.ledger.phase = Phase.COMPACTION
        self.server.compact()
        compactions = int(self.server.stats()["ssd_store"].get("compactions", 1))
        self.ledger.count(Tally.COMPACTIONS, compactions - self.compactions)
        self.compactions = compactions

    def live(self) -> None:
        """K1: never returns."""
        while True:
            for _ in range(int(self.chance.integers(1, 9))):
                self.run()
            self.checkpoint()
            if self.chance.integers(4) == 0:
                self.compact()

    def die_in_a_checkpoint(self, faults: Faults) -> None:
        """K2: returns if the checkpoint needs no such call."""
        for _ in range(self.order.seed % 2):  # of the opening, or a later one
            self.run()
            self.checkpoint()
        for _ in range(9):  # more than a period
            self.run()
        faults["calls"] = 0
        faults["dies_at"] = self.order.dies_at
        self.checkpoint()
        faults["dies_at"] = 0

    def fill_the_disk(self, faults: Faults) -> None:
        """F2: each verb that is refused has done nothing, and does all when there is space."""
        states = read_states(self.order.states)
        used = sum(file.stat().st_blocks * 512 for file in self.order.store.rglob("*"))
        faults["disk_bytes"] = used + self.order.room
        refusals = 0
        for number in range(MOST_VERBS):
            calls: list[Callable[[], None]] = [self.run]
            if number % 4 == 3:
                calls.append(self.checkpoint)
            if number % 10 == 9:
                calls.append(self.compact)
            for call in calls:
                refusals += self._until_done(call, faults, states, REFUSALS - refusals)
            if faults["drops"] and faults["refusals"] > DROPPED_CALLS:
                break
        faults["disk_bytes"] = 0
        self.checkpoint()
        self._check(states, "in the end")

    def _until_done(
        self, call: Callable[[], None], faults: Faults, states: list[State], patience: int
    ) -> int:
        """Does it, if need be when there is space again; how often it was refused."""
        refusals = 0
        while True:
            before = self.done
            try:
                call()
                return refusals
            except hps.StoreError as error:
                if os.strerror(errno.ENOSPC) not in str(error):
                    raise OracleViolation(f"of a full disk it was said: {error!r}") from error
            refusals += 1
            self.ledger.count(Tally.REFUSALS)
            what = f"after verb {before + 1} was refused by a full disk"
            if self.workload.verb(before + 1) != "erase_where":  # part of which may be done
                self._check(states, what)
            self._read(states, what)
            if refusals >= patience:
                faults["disk_bytes"] = 0

    def _read(self, states: list[State], when: str) -> None:
        """The newest checkpoint is whole, as far as a reader has space to say that it reads."""
        try:
            reader = hps.open(self.order.store, dram="64KiB")
        except hps.StoreError as error:
            if os.strerror(errno.ENOSPC) not in str(error):
                raise
            return
        with reader:
            if State.of(reader) != states[number_at(reader)]:
                raise OracleViolation(f"{when}: the newest checkpoint is not whole")

    def _check(self, states: list[State], when: str) -> None:
        if (found := State.of(self.server)) != states[self.done]:
            raise OracleViolation(f"{when}: {found} instead of {states[self.done]}")


def number_at(server: Any) -> int:
    """How many verbs the newest checkpoint has."""
    position = server.checkpoint_state()[1] if server.checkpoints() else None
    return int(position["done"]) if position else 0


def counts(done: int) -> Any:
    """As the ledger has it."""
    return np.array([done] + [0] * (NUM_CLIENTS - 1))


def work(fields: dict[str, Any]) -> None:
    """One life of a worker."""
    from tests.torture.life_planted import PLANTED, LifePlant

    order = LifeOrder(**fields)
    os.environ.update(order.environment)
    ledger = Ledger(Path(order.folder) / "ledger")
    ledger.phase = Phase.OPENING
    plant = PLANTED.get(order.plant, LifePlant())
    plant.prepare()

    def opened(*args: Any, **options: Any) -> Any:
        return plant.watched(open_store(*args, **options), ledger)

    server = ParameterServer(config(order.store, order.engine), _tiers=Tiers(opened))
    worker = plant.worker(order, server, ledger)
    if not ledger.allows(counts(worker.done)):
        raise OracleViolation(f"opened at {worker.done}, {ledger}")
    ledger.acknowledge(counts(worker.done))
    ledger.count(Tally.OPENINGS)
    if order.dies_at:
        worker.die_in_a_checkpoint(Faults(order.faults, is_new=False))
    elif order.room:
        worker.fill_the_disk(Faults(order.faults, is_new=False))
    else:
        worker.live()


if __name__ == "__main__":
    fork_for_orders(work)
