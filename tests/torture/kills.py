"""Recipe K1: SIGKILL at random moments, the oracle asked after each.

Above it: test_kills.py, life_kills.py, run.py. Below it: worker.py, oracle.py. A store is
killed many times, each life going on from what the one before left. Half of the kills are aimed at
a phase, so that the short ones (a recovery, a restore) are met as well; the moment within it is
random.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

import numpy as np

import hps
from hps.ssd_store import verify
from tests.torture.ledger import Ledger, Phase
from tests.torture.oracle import Oracle, OracleViolation
from tests.torture.scratch import scratch_folder
from tests.torture.worker import Order

KILLS_PER_STORE = 50
_ROOT = Path(__file__).resolve().parent.parent.parent
_LONGEST_START = 5.0  # seconds from the order until the worker has begun
LONGEST_LIFE = 0.05  # seconds of a worker that may be killed in any phase
_LONGEST_AIM = 0.5  # seconds after which one that was not met in its phase is killed anyway
_LONGEST_DELAY = 0.0006  # seconds into a phase
AIMS = (None, None, None, Phase.OPENING, Phase.EVICTION, Phase.CHECKPOINT)


@dataclass
class KillReport:
    """What a run of kills met; `violations` must be empty."""

    kills: int = 0
    phases: Counter[str] = field(default_factory=Counter)  # what each worker was doing
    tallies: Counter[str] = field(default_factory=Counter)
    between: int = 0  # kills after which the store was at a checkpoint whose call had not returned
    stores: int = 0
    violations: list[str] = field(default_factory=list)

    def add(self, other: "KillReport") -> None:
        """Takes another run's figures in."""
        self.kills += other.kills
        self.phases.update(other.phases)
        self.tallies.update(other.tallies)
        self.between += other.between
        self.stores += other.stores
        self.violations += other.violations

    def missing(self, restores: bool) -> list[str]:
        """What should have happened and has not: a run without it proves nothing."""
        phases = [Phase.OPENING, Phase.PUSH, Phase.EVICTION, Phase.CHECKPOINT]
        phases += [Phase.RESTORE if restores else Phase.COMPACTION]
        tallies = ["openings", "pushes", "evicted_rows", "appends", "checkpoints"]
        tallies += ["restores" if restores else "compactions"]
        return [f"a kill in {phase.name}" for phase in phases if not self.phases[phase.name]] + [
            name for name in tallies if not self.tallies[name]
        ]

    def __str__(self) -> str:
        phases = ", ".join(f"{name.lower()} {n}" for name, n in sorted(self.phases.items()))
        tallies = ", ".join(f"{name} {n:,}" for name, n in self.tallies.items())
        return (
            f"{self.kills} kills of {self.stores} stores ({phases}; {self.between} left a "
            f"checkpoint that was still being acknowledged); {tallies}"
        )


class AnyOrder(Protocol):
    """What a worker is told, of whichever workload."""

    @property
    def folder(self) -> str:
        """That holds its store and its ledger."""

    def to_line(self) -> str:
        """One line."""


class Killer:
    """Starts workers and kills them.

    Args:
        nursery: the process that forks workers, its pipes open.
        seed: of the moments.
        longest_life: seconds of a worker that may be killed in any phase.
    """

    def __init__(
        self,
        nursery: "subprocess.Popen[str]",
        seed: int,
        longest_life: float = LONGEST_LIFE,
    ) -> None:
        assert nursery.stdin is not None and nursery.stdout is not None
        self._input: IO[str] = nursery.stdin
        self._output: IO[str] = nursery.stdout
        self._chance = random.Random(seed)
        self._longest_life = longest_life

    def kill_one(self, order: AnyOrder, aim: Phase | None) -> bool:
        """Starts a worker and kills it; False if it died before by itself."""
        ledger = Ledger(Path(order.folder) / "ledger")
        ledger.phase = Phase.STARTING
        self._input.write(order.to_line())
        self._input.flush()
        pid = int(self._output.readline())
        deadline = time.perf_counter() + _LONGEST_START
        while ledger.phase == Phase.STARTING and time.perf_counter() < deadline:
            time.sleep(0)
        # A slow opening is not the life that is meant, but half of the time where none is.
        awaits_life = aim != Phase.OPENING and (aim is not None or self._chance.random() < 0.5)
        while awaits_life and time.perf_counter() < deadline:
            awaits_life = ledger.phase in (Phase.STARTING, Phase.OPENING)
            time.sleep(0)
        deadline = time.perf_counter() + _LONGEST_AIM
        if aim != Phase.OPENING:
            time.sleep(self._chance.random() * self._longest_life / (1 if aim is None else 2))
        while aim is not None and ledger.phase != aim and time.perf_counter() < deadline:
            time.sleep(0)
        time.sleep(self._chance.random() * _LONGEST_DELAY)
        os.kill(pid, signal.SIGKILL)  # not reaped before the next line, so the pid is still its own
        self._input.write("\n")
        self._input.flush()
        return os.WIFSIGNALED(int(self._output.readline()))


@contextmanager
def nursery(
    module: str = "tests.torture.worker", environment: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """The process that forks workers; ends with the block.

    Args:
        module: whose workers.
        environment: variables that are set for it.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield process
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.wait()
        process.stdout.close()


def look(order: Order, report: KillReport) -> None:
    """Asks the oracle, and verify, about the store that a kill has left.

    Raises:
        OracleViolation: it is at no checkpoint that it may be at.
        HpsError: it does not open.
    """
    ledger = Ledger(Path(order.folder) / "ledger")
    path = Path(order.folder) / "store"
    if not (path / "CURRENT").exists():
        if ledger.attempted.any():
            raise OracleViolation("the store has no CURRENT")
        return
    with hps.open(path, dram="64KiB") as server:
        limits = np.maximum(ledger.acknowledged, ledger.attempted)
        if server.checkpoints():
            found = np.array(Oracle(order.seed).find(server, limits))
            position = server.checkpoint_state()[1]["counts"]
            if position != found.tolist():
                raise OracleViolation(f"the rows are at {found}, the position says {position}")
        else:
            found = np.zeros_like(limits)
    if not ledger.allows(found):
        raise OracleViolation(f"the rows are at {found}, {ledger}")
    report.between += not np.array_equal(found, ledger.acknowledged)
    if damage := verify(path):
        raise OracleViolation(f"verify: {damage}")


def run_kills(seed: int, kills: int, *, restores: bool = False, plant: str = "") -> KillReport:
    """Kills workers until `kills` are reached; a store with a violation is left for a new one.

    Args:
        seed: of keys and moments.
        kills: how many.
        restores: the workers go back to an older tag now and then.
        plant: a bug of planted.py; then the first violation ends the run.
    """
    report = KillReport()
    aims = (*AIMS, Phase.RESTORE if restores else Phase.COMPACTION)
    with nursery() as process:
        killer = Killer(process, seed)
        while report.kills < kills and not (plant and report.violations):
            with scratch_folder() as folder:
                order = Order(str(folder), seed + report.stores, restores, plant)
                report.stores += 1
                for _ in range(min(KILLS_PER_STORE, kills - report.kills)):
                    if not _kill_and_look(killer, order, aims[report.kills % len(aims)], report):
                        break
                report.tallies.update(Ledger(folder / "ledger").tallies())
    return report


def _kill_and_look(killer: Killer, order: Order, aim: Phase | None, report: KillReport) -> bool:
    was_killed = killer.kill_one(order, aim)
    report.kills += 1
    report.phases[Ledger(Path(order.folder) / "ledger").phase.name] += 1
    try:
        look(order, report)
        if not was_killed:
            raise OracleViolation("the worker ended by itself; its error stands above")
    except (OracleViolation, hps.HpsError) as error:
        where = f"seed {order.seed}, kill {report.kills} of the run"
        report.violations.append(f"{where}: {type(error).__name__}: {error}")
        return False
    return True
