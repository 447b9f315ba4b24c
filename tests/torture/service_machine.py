"""Recipes M1 and R1: a state machine over all verbs of a client, with kills of either shard.

Above it: test_service_machine.py, run.py. Below it: service_shards.py (two server processes),
service_model.py (what they must hold). One verb after the other is called, some of them while
shards are killed and started again. Each must do what it says: all of it, once, whatever died
meanwhile. After every kill all rows, states and checkpoints are compared with the model.

M1 calls every verb alike. R1 is about tables and restores: it makes tables, goes back to
checkpoints that are older than they are, and kills in the middle of most of that.
"""

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hps
from hps.ssd_store import verify
from hps.update_log.verify import verify_log
from tests.torture.machine_verbs import READS, VERBS, Verbs
from tests.torture.scratch import scratch_folder
from tests.torture.service_clients import DEADLINE, let_go
from tests.torture.service_model import Model, ModelViolation
from tests.torture.service_shards import Nursery, Shard, ShardFailure

KILLS_PER_STORE = 20
_LONGEST_CALL = 0.03  # seconds between the beginning of a call and the kill
_PART_OF_OPENINGS = 0.3  # of kills: the shard is killed again while it starts
_LONGEST_OPENING = 0.06
_CLIENTS = ("first", "second")
_LAST = 12  # calls that a violation tells of
_SHARD_OPTIONS = ["--dram", "512KiB", "--log-bytes", "1KiB"]


@dataclass(frozen=True)
class MachineRecipe:
    """One recipe.

    what: it does, in words.
    weights: how often each verb is called, and so which.
    kills: part of the calls during which shards are killed.
    needed: tallies without which a run proves nothing.
    plant: bug of service_planted.py that it must find.
    """

    what: str
    weights: dict[str, int]
    kills: float
    needed: tuple[str, ...]
    plant: str


_OF_TABLES = {
    "create_table": 6, "restore": 5, "push": 5, "checkpoint": 4, "assign": 2, "erase": 2,
    "pull_create": 1, "delete_checkpoint": 1, "reopen": 1, "items": 1, "half_create": 2,
    "half_restore": 2, "advance_period": 1,
}  # fmt: skip

MACHINES = {
    "M1": MachineRecipe(
        "all verbs of a client, shards killed meanwhile",
        {**dict.fromkeys(VERBS, 3), **dict.fromkeys(READS, 1), "push": 6, "erase": 5},
        0.15,
        (
            "kills", "replayed", "automatic checkpoints", "restored", "tables half made",
            "half restored", *VERBS,
        ),
        "pushes-alone",
    ),
    "R1": MachineRecipe(
        "tables made, checkpoints older than them restored, shards killed in the middle",
        _OF_TABLES,
        0.35,
        (
            "kills", "replayed", "killed in create_table", "killed in restore", "tables emptied",
            "tables refused", "openings killed", "tables half made", "half restored",
        ),
        "tables-forgotten",
    ),
}  # fmt: skip


@dataclass
class MachineReport:
    """What a run met; `violations` must be empty."""

    tallies: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: "MachineReport") -> None:
        """Takes another run's figures in."""
        self.tallies.update(other.tallies)
        self.violations += other.violations

    def missing(self, needed: Sequence[str]) -> list[str]:
        """What should have happened and has not: a run without it proves nothing."""
        return [name for name in needed if not self.tallies[name]]

    def __str__(self) -> str:
        return ", ".join(f"{name} {number:,}" for name, number in sorted(self.tallies.items()))


class Machine(Verbs):
    """Two shards, two clients, a model.

    Args:
        recipe: how often what is done.
        found: the shards, running.
        seed: of everything.
        tallies: gets what happened.
    """

    def __init__(
        self, recipe: MachineRecipe, found: list[Shard], seed: int, tallies: Counter[str]
    ) -> None:
        super().__init__(Model(), random.Random(seed), tallies)
        self._recipe = recipe
        self._shards = found
        self._clients: dict[str, Any] = {}
        self._killer: threading.Thread | None = None
        self.last: deque[str] = deque(maxlen=_LAST)

    # What Verbs asks for.

    def client(self) -> Any:
        """One of the clients, which then is the one in use."""
        name = self.chance.choice(_CLIENTS)
        if name not in self._clients:
            addresses = [shard.address for shard in self._shards]
            self._clients[name] = hps.RemoteParameterServer(addresses, name, deadline=DEADLINE)
        return self._clients[name]

    def note(self, words: str) -> None:
        """Says what is being called."""
        self.last[-1] = f"{self.last[-1]} {words}"

    def others(self, client: Any) -> list[Any]:
        """The clients that are open, but for one."""
        return [one for one in self._clients.values() if one is not client]

    def let_others_go(self, client: Any) -> None:
        """All clients but one know tables, or a history, of before."""
        for name, one in list(self._clients.items()):
            if one is not client:
                let_go(one)
                del self._clients[name]

    def await_shards(self) -> None:
        """Until nothing dies any more, and all shards listen."""
        if self._killer is not None:
            self._killer.join()

    # Steps.

    def step(self) -> None:
        """One call, perhaps with a kill in the middle, and then a look at everything.

        Raises:
            ModelViolation: something is not as it must be. HpsError: a call failed. ShardFailure:
                a shard did not start.
        """
        verb = self.chance.choices(list(self._recipe.weights), list(self._recipe.weights.values()))[
            0
        ]
        self.last.append(verb)
        self.is_killed = self.chance.random() < self._recipe.kills
        if not self.is_killed:
            self.call(verb)
            return
        self._flush_clients()  # what was acknowledged in memory goes with its client
        self.count_automatic(self.client().stats())
        self.tallies[f"killed in {verb}"] += 1
        with self._killing():
            self.call(verb)
        if self.is_in_memory:  # a restart may have forgotten it, and only its client has it
            self._flush_clients()
        self.look()

    def _flush_clients(self) -> None:
        for one in self._clients.values():
            one.flush()
        self.is_in_memory = False

    @contextmanager
    def _killing(self) -> Iterator[None]:
        """Shards die, and come back, at some moment of the block or soon after it began."""
        victims = self.chance.sample(self._shards, self.chance.randint(1, len(self._shards)))
        pauses = [self.chance.random() * _LONGEST_CALL]
        if self.chance.random() < _PART_OF_OPENINGS:
            pauses.append(self.chance.random() * _LONGEST_OPENING)
        self.note(f"(killed: {[shard.index for shard in victims]} after {pauses} s)")
        failures: list[BaseException] = []
        self._killer = threading.Thread(target=self._kill, args=(victims, pauses, failures))
        self._killer.start()
        try:
            yield
        finally:
            self.await_shards()
            if failures:
                raise failures[0]

    def _kill(
        self, victims: list[Shard], pauses: list[float], failures: list[BaseException]
    ) -> None:
        try:
            for number, pause in enumerate(pauses):
                time.sleep(pause)
                for shard in victims:
                    self.tallies["openings killed"] += number > 0 and not shard.is_ready()
                    self.tallies["kills"] += 1
                    shard.kill()
                for shard in victims:
                    shard.start()
            for shard in victims:
                shard.wait_until_ready()
        except ShardFailure as error:
            failures.append(error)

    def look(self) -> None:
        """All rows, states and checkpoints are those of the model."""
        client = self.client()
        stats = client.stats()
        self.tallies["replayed"] += stats["service"]["records_replayed"]
        self.count_automatic(stats)
        self._expect(client.period, self.model.period, "period")
        for name in self.model.tables:
            self.check_table(client, name)
        self.model.check_checkpoints(client.checkpoints())

    def finish(self) -> None:
        """Everything once more after a last kill, and the files as they lie there then."""
        self.last.append("finish")
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        for shard in self._shards:
            shard.kill()
            if damage := [*verify(shard.store), *verify_log(shard.store)]:
                raise ModelViolation(f"verify of shard {shard.index}: {damage}")
            shard.start()
        for shard in self._shards:
            shard.wait_until_ready()
        self.look()
        self.close()

    def close(self) -> None:
        """Lets go of the clients."""
        for client in self._clients.values():
            let_go(client)
        self._clients.clear()


def run_machine(
    process: Nursery, name: str, seed: int, kills: int, plant: str = ""
) -> MachineReport:
    """Runs one recipe until so many kills; the first violation ends it.

    Args:
        process: where the shards' processes come from.
        name: of the recipe.
        seed: of the first store; those of further ones follow.
        kills: how many; one may meet both shards.
        plant: a bug in every server, or "".
    """
    report = MachineReport()
    while report.tallies["kills"] < kills and not report.violations:
        most = min(kills, report.tallies["kills"] + KILLS_PER_STORE)
        with scratch_folder() as folder:
            _run_store(process, folder, MACHINES[name], (seed, most, plant), report)
        report.tallies["stores"] += 1
        seed += 1
    return report


def _run_store(
    process: Nursery,
    folder: Path,
    recipe: MachineRecipe,
    case: tuple[int, int, str],
    report: MachineReport,
) -> None:
    seed, most, plant = case
    found = [Shard(process, folder, index, 2, plant) for index in range(2)]
    machine = Machine(recipe, found, seed, report.tallies)
    try:
        for shard in found:
            shard.options += _SHARD_OPTIONS
            shard.start()
        for shard in found:
            shard.wait_until_ready()
        while report.tallies["kills"] < most:
            machine.step()
        machine.finish()
    except (ModelViolation, ShardFailure, hps.HpsError) as error:
        calls = "; ".join(machine.last)
        report.violations.append(f"seed {seed}: {type(error).__name__}: {error}; calls: {calls}")
    finally:
        machine.close()
        for shard in found:
            shard.end()
