"""Recipe K1 of the service: SIGKILL of shards under four pushing clients, the oracle after each.

Above it: test_service_kills.py, run.py. Below it: service_shards.py, service_clients.py. A killed
shard's store is copied before the next process opens it; the copy, opened here, must show one
number of pushes for each client, none missing that was acknowledged as logged or durable. At the
end every push that a client has begun is there, once, whatever its acknowledgement.
"""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import hps
from hps.common.sharding import ShardMap
from hps.ssd_store import verify
from tests.torture.oracle import Counts, OracleViolation
from tests.torture.scratch import scratch_folder
from tests.torture.service_chaos import Doors, direct
from tests.torture.service_clients import Ledger, Pushers, pushers
from tests.torture.service_oracle import ServiceOracle
from tests.torture.service_shards import Nursery, Shard, ShardFailure, config, shards

KILLS_PER_STORE = 15
KILLS_BEFORE_A_LOOK = 4  # at the servers' answers, where a bug is planted
_LONGEST_LIFE = 0.08  # seconds between the moment that shards listen, or pushes go on, and a kill
_PART_OF_PUSHES = 0.75  # of kills: they wait for pushes; the others meet openings and retries
_PART_OF_OPENINGS = 0.35  # of kills: the shards are killed again while they start
_LONGEST_OPENING = 0.06  # seconds until then
_LONGEST_WAIT = 5.0  # seconds for pushes to go on


@dataclass
class ServiceReport:
    """What a run met; `violations` must be empty."""

    kills: int = 0
    tallies: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: "ServiceReport") -> None:
        """Takes another run's figures in."""
        self.kills += other.kills
        self.tallies.update(other.tallies)
        self.violations += other.violations

    def missing(self, needed: tuple[str, ...]) -> list[str]:
        """What should have happened and has not: a run without it proves nothing."""
        return [name for name in needed if not self.tallies[name]]

    def __str__(self) -> str:
        return ", ".join(f"{name} {number:,}" for name, number in sorted(self.tallies.items()))


class OneShard:
    """What a client of all shards reads of one of them."""

    def __init__(self, remote: Any, shard: Shard) -> None:
        self._remote = remote
        self._shard = shard

    def items(self, table: str, state: bool) -> Iterator[tuple[Any, Any, Any]]:
        """As RemoteParameterServer.items."""
        for keys, rows, states in self._remote.items(table, state=state):
            places = ShardMap(self._shard.count).split(keys)[self._shard.index]
            yield keys[places], rows[places], states[places]


@dataclass(frozen=True)
class Case:
    """What is tortured, and how.

    seed: of keys and moments.
    plant: a bug of service_planted.py in every server, or "".
    num_shards: that the clients push to.
    doors: what stands between clients and shards, service_chaos.py.
    """

    seed: int
    plant: str = ""
    num_shards: int = 2
    doors: Callable[[list[Shard], int], AbstractContextManager[Doors]] = direct


class Run:
    """Clients and shards of one scratch folder, killed and looked at.

    Args:
        nursery: where processes come from.
        folder: for the stores.
        case: what is tortured how.
        report: gets what happened.
    """

    def __init__(self, nursery: Nursery, folder: Path, case: Case, report: ServiceReport) -> None:
        self._nursery = nursery
        self._folder = folder
        self._case = case
        self._report = report
        self._chance = random.Random(case.seed)
        self._oracle = ServiceOracle(case.seed, case.num_shards)

    def run(self, kills: int) -> None:
        """Kills so many times, then compares what is there with what was sent, to the last push."""
        case = self._case
        self._report.tallies["stores"] += 1
        with shards(self._nursery, self._folder, case.num_shards, case.plant) as found:
            with case.doors(found, case.seed) as doors:
                with pushers(doors.addresses, self._oracle) as clients:
                    self._torture(found, clients, kills)
                self._report.tallies.update(doors.tallies)
            if not self._report.violations:
                self._finish(found, clients.ledger)

    def _torture(self, found: list[Shard], clients: Pushers, kills: int) -> None:
        for _ in range(kills):
            try:
                self._kill(found, clients)
            except ShardFailure as error:
                self._report.violations.append(f"seed {self._case.seed}: {error}")
            self._report.violations += clients.problems
            if self._report.violations:
                return
        clients.end()
        self._report.tallies["pushes"] += int(clients.ledger.begun.sum())
        self._report.violations += clients.problems
        if not self._report.violations:
            self._look_at_servers(found, clients)

    def _kill(self, found: list[Shard], clients: Pushers) -> None:
        if self._chance.random() < _PART_OF_PUSHES:
            self._wait_for_pushes(clients)
        time.sleep(self._chance.random() * _LONGEST_LIFE)
        victims = self._chance.sample(found, self._chance.randint(1, len(found)))
        kept = clients.ledger.kept
        self._report.kills += 1
        for shard in victims:
            self._report.tallies["sessions that went on"] += shard.num_resumed()
            shard.kill()
        copies = [shard.copy() for shard in victims]
        for shard in victims:
            shard.start()
        if self._chance.random() < _PART_OF_OPENINGS:
            self._kill_again(victims)
        for shard, copy in zip(victims, copies, strict=True):
            self._look(shard, copy, kept, clients.ledger)
        for shard in victims:
            shard.wait_until_ready()

    def _kill_again(self, victims: list[Shard]) -> None:
        """Most of them have not listened yet: they are replaying their logs."""
        time.sleep(self._chance.random() * _LONGEST_OPENING)
        for shard in victims:
            self._report.tallies["openings killed"] += not shard.is_ready()
            shard.kill()
            shard.start()

    def _wait_for_pushes(self, clients: Pushers) -> None:
        """Until all clients have found the shards again, or one has failed."""
        before = clients.ledger.acknowledged
        deadline = time.monotonic() + _LONGEST_WAIT
        while (clients.ledger.acknowledged == before).any() and time.monotonic() < deadline:
            if clients.problems:
                return
            time.sleep(0.002)

    def _look(self, shard: Shard, copy: Path, kept: Counts, ledger: Ledger) -> Counts | None:
        """What a shard's rows show; None after a violation, which is in the report then."""
        where = f"seed {self._case.seed}, kill {self._report.kills}, shard {shard.index}"
        begun = ledger.begun
        try:
            with contextlib.closing(hps.ParameterServer(config(copy))) as server:
                marks = self._oracle.marks(server, shard.index, begun)
                history = server.parts.checkpoints.history
            if (marks < kept).any():
                raise OracleViolation(f"at {marks}, but {kept} were acknowledged")
            if damage := verify(copy):
                raise OracleViolation(f"verify: {damage}")
        except (OracleViolation, hps.HpsError) as error:
            self._report.violations.append(f"{where}: {type(error).__name__}: {error}")
            return None
        self._report.tallies["replayed"] += 0 if history is None else history.num_replayed
        self._report.tallies["ahead of what was acknowledged"] += int((marks > kept).any())
        return marks

    def _look_at_servers(self, found: list[Shard], clients: Pushers) -> None:
        """What the servers answer is what their stores will show."""
        begun = clients.ledger.begun
        for shard in found:
            view = OneShard(clients.remotes[0], shard)
            try:
                marks = self._marks_of(view, shard, begun)
                if not np.array_equal(marks, begun):
                    raise OracleViolation(f"at {marks}, sent were {begun}")
            except (OracleViolation, hps.HpsError) as error:
                where = f"seed {self._case.seed}, answers of shard {shard.index}"
                self._report.violations.append(f"{where}: {type(error).__name__}: {error}")

    def _marks_of(self, view: OneShard, shard: Shard, begun: Counts) -> Counts:
        """A stream over a connection that was cut before is begun again, as a user would."""
        for _ in range(3):
            with contextlib.suppress(hps.RemoteError):
                return self._oracle.marks(view, shard.index, begun)
        return self._oracle.marks(view, shard.index, begun)

    def _finish(self, found: list[Shard], ledger: Ledger) -> None:
        """All has been answered and flushed: every push is there once, also after a kill."""
        for shard in found:
            shard.kill()
            marks = self._look(shard, shard.store, ledger.begun, ledger)
            if marks is not None and not np.array_equal(marks, ledger.begun):
                self._report.violations.append(f"at {marks} in the end, sent were {ledger.begun}")


def run_kills(process: Nursery, case: Case, kills: int) -> ServiceReport:
    """Kills shards until `kills` are reached; a store with a violation is left for a new one.

    Args:
        process: where the shards' processes come from.
        case: the first store's; the seeds of further ones follow. One with a planted bug ends with
            the first violation.
        kills: how many; one may meet several shards.
    """
    report = ServiceReport()
    while report.kills < kills and not (case.plant and report.violations):
        found = ServiceReport()
        with scratch_folder() as folder:
            here = replace(case, seed=case.seed + report.tallies["stores"])
            most = KILLS_BEFORE_A_LOOK if case.plant else KILLS_PER_STORE
            Run(process, folder, here, found).run(min(most, kills - report.kills))
        report.add(found)
    return report
