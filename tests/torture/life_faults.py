"""Recipes K2 and F2 with life cycle on: a death at each call of a checkpoint; a disk that is full.

Above it: test_life_kills.py, run.py. Below it: life_worker.py, faulty_calls.py, life_kills.py.
"""

import os
import random
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import hps
from tests.torture.faulty_calls import Faults, faulty_calls
from tests.torture.kills import nursery
from tests.torture.ledger import Ledger
from tests.torture.life_kills import MODULE, look
from tests.torture.life_worker import MOST_VERBS, LifeOrder, counts, number_at
from tests.torture.life_workload import Reference, State, Workload, config, reference
from tests.torture.oracle import OracleViolation
from tests.torture.scratch import scratch_folder

FIRST_VERBS = 40  # of the store to which it happens
MOST_CALLS = 400  # of a checkpoint
MOST_ROOM = 120_000  # bytes that a disk still has when it is about to be full
DROPS = "full-disk-ignored"
K2_PLANT = "period-acknowledged-early"


@dataclass
class FaultReport:
    """What a run met; `violations` must be empty."""

    tallies: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def missing(self, needed: tuple[str, ...]) -> list[str]:
        """What should have happened and has not: a run without it proves nothing."""
        return [name for name in needed if not self.tallies[name]]

    def __str__(self) -> str:
        return ", ".join(f"{name} {number:,}" for name, number in sorted(self.tallies.items()))


NEEDED = {
    "K2": ("deaths", "whole checkpoints", "early deaths"),
    "F2": ("refused calls", "refused verbs", "early deaths"),
}


class FaultLab:
    """A store that each run begins with, and what it is to hold later.

    Args:
        process: a nursery whose workers have the faulty calls.
        folder: for stores.
        seed: of the verbs.
        undisturbed: of that seed.
    """

    def __init__(
        self, process: "subprocess.Popen[str]", folder: Path, seed: int, undisturbed: Reference
    ) -> None:
        self._process = process
        self._folder = folder
        self._seed = seed
        self._undisturbed = undisturbed
        self._begun = folder / "begun"
        with hps.ParameterServer(config(self._begun / "store")) as server:
            workload = Workload(seed)
            for number in range(1, FIRST_VERBS + 1):
                workload.run(server, number)
                if number % 10 == 0:
                    server.checkpoint(reader={"done": number})
        undisturbed.write(self._begun / "states", FIRST_VERBS + MOST_VERBS + 20)
        Ledger(self._begun / "ledger").acknowledge(counts(FIRST_VERBS))
        Ledger(self._begun / "ledger").attempt(counts(FIRST_VERBS))

    def run(self, name: str, *, dies_at: int = 0, room: int = 0, plant: str = "") -> "Ended":
        """One worker over a copy of the store; what is left is compared, and goes on.

        Raises:
            OracleViolation: it is not what it should be.
        """
        folder = self._folder / name
        shutil.copytree(self._begun, folder)
        faults = Faults(folder / "faults")
        faults["drops"] = int(plant == DROPS)
        order = LifeOrder(
            str(folder),
            self._seed,
            plant="" if plant == DROPS else plant,
            dies_at=dies_at,
            room=room,
            environment=faults.environment(folder / "store"),
        )
        status = self._life(order)
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        try:
            if not is_killed and status:
                raise OracleViolation("the worker ended with an error, which stands above")
            look(order, self._undisturbed)
            self._go_on(order)
            tallies = Ledger(folder / "ledger").tallies()
        finally:
            shutil.rmtree(folder)
        return Ended(is_killed, faults["refusals"], tallies["refusals"])

    def _life(self, order: LifeOrder) -> int:
        """Its wait status."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(order.to_line() + "\n")
        process.stdin.flush()
        process.stdout.readline()  # its pid
        return int(process.stdout.readline())

    def _go_on(self, order: LifeOrder) -> None:
        """Some more verbs over what was left, and a checkpoint. A writer may find a checkpoint
        whole that a reader did not see yet."""
        with hps.ParameterServer(config(order.store)) as server:
            done = number_at(server)
            if not Ledger(Path(order.folder) / "ledger").allows(counts(done)):
                raise OracleViolation(f"a writer finds it at {done}")
            for number in range(done + 1, done + 9):
                Workload(self._seed).run(server, number)
            found = State.of(server)
            if found != self._undisturbed.at(done + 8):
                raise OracleViolation(f"going on from {done}: {found}")
            server.checkpoint()


@dataclass(frozen=True)
class Ended:
    """How a worker ended: whether it died, how many calls found the disk full, and how many verbs
    were refused."""

    is_killed: bool
    full_calls: int
    refused_verbs: int


@contextmanager
def faulty_workers() -> Iterator["subprocess.Popen[str]"]:
    """A nursery whose workers have the faulty calls; ends with the block."""
    with faulty_calls() as environment, nursery(MODULE, environment) as process:
        yield process


def run_crashes(
    process: "subprocess.Popen[str]", seed: int, *, stride: int = 1, plant: str = ""
) -> FaultReport:
    """K2: a worker for every call of a checkpoint, which dies there.

    Args:
        process: of `faulty_workers`.
        seed: of the verbs.
        stride: 1: at every call; n: at every n-th.
        plant: a bug of life_planted.py; then the first violation ends the run.
    """
    report = FaultReport()
    first = 1 + seed % stride
    with scratch_folder() as folder, reference(folder, seed) as undisturbed:
        lab = FaultLab(process, folder, seed, undisturbed)
        for call in range(first, MOST_CALLS, stride):
            try:
                ended = lab.run(f"call-{call}", dies_at=call, plant=plant)
            except (OracleViolation, hps.HpsError) as error:
                report.violations.append(_told(seed, f"call {call}", error))
                if plant:
                    break
                continue
            report.tallies["deaths"] += ended.is_killed
            if not ended.is_killed:
                report.tallies["whole checkpoints"] += 1
                break
        report.tallies["early deaths"] += undisturbed.early_deaths
    return report


def run_full_disks(
    process: "subprocess.Popen[str]", seed: int, runs: int, plant: str = ""
) -> FaultReport:
    """F2: disks that are full after X bytes, X at random.

    Args:
        process: of `faulty_workers`.
        seed: of verbs and disks.
        runs: how many.
        plant: DROPS, or ""; with it the first violation ends the run.
    """
    report, chance = FaultReport(), random.Random(seed)
    with scratch_folder() as folder, reference(folder, seed) as undisturbed:
        lab = FaultLab(process, folder, seed, undisturbed)
        for number in range(runs):
            room = 1 + int(chance.random() ** 2 * MOST_ROOM)
            try:
                ended = lab.run(f"disk-{number}", room=room, plant=plant)
            except (OracleViolation, hps.HpsError) as error:
                report.violations.append(_told(seed, f"{room} bytes left", error))
                if plant:
                    break
                continue
            report.tallies["refused calls"] += ended.full_calls
            report.tallies["refused verbs"] += ended.refused_verbs
            report.tallies["disks that were full"] += ended.full_calls > 0
            report.tallies["runs"] += 1
        report.tallies["early deaths"] += undisturbed.early_deaths
    return report


def _told(seed: int, where: str, error: Exception) -> str:
    return f"seed {seed}, {where}: {type(error).__name__}: {error}"
