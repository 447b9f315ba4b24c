"""Recipe K1 with life cycle on: SIGKILL while rows are admitted, counted, die and are compacted.

Above it: test_life_kills.py, run.py. Below it: life_worker.py, life_workload.py, kills.py. After
each kill the store must be what an undisturbed one was after the acknowledged verb, or after the
one whose checkpoint was under way.
"""

from dataclasses import dataclass
from pathlib import Path

import hps
from hps.ssd_store import verify
from hps.ssd_store.engine import ROCKSDB_MANIFEST
from tests.torture.kills import AIMS, Killer, KillReport, nursery
from tests.torture.ledger import Ledger, Phase
from tests.torture.life_worker import LifeOrder, counts, number_at
from tests.torture.life_workload import Reference, State, reference
from tests.torture.oracle import OracleViolation
from tests.torture.scratch import scratch_folder

MODULE = "tests.torture.life_worker"
KILLS_PER_STORE = 30
LONGEST_LIFE = 0.2  # seconds: an opening of these tables takes longer than of the plain ones
_PHASES = (Phase.OPENING, Phase.PUSH, Phase.EVICTION, Phase.CHECKPOINT, Phase.COMPACTION)
_NEEDED = ("openings", "pushes", "periods", "evicted_rows", "appends", "checkpoints", "compactions")


@dataclass
class LifeReport(KillReport):
    """What a run of kills met."""

    deaths: int = 0
    early_deaths: int = 0

    def add(self, other: KillReport) -> None:
        """Takes another run's figures in."""
        super().add(other)
        assert isinstance(other, LifeReport)
        self.deaths += other.deaths
        self.early_deaths += other.early_deaths

    def missing_life(self) -> list[str]:
        """What should have happened and has not: a run without it proves nothing."""
        phases = [*_PHASES, Phase.PERIOD]
        found = {**self.tallies, "deaths": self.deaths, "early deaths": self.early_deaths}
        return [f"a kill in {phase.name}" for phase in phases if not self.phases[phase.name]] + [
            name for name in (*_NEEDED, "deaths", "early deaths") if not found.get(name)
        ]

    def note(self, undisturbed: Reference) -> None:
        """Takes in what has died in a store."""
        self.deaths += undisturbed.deaths
        self.early_deaths += undisturbed.early_deaths

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.deaths:,} deaths, {self.early_deaths:,} of them early"


def look(order: LifeOrder, undisturbed: Reference) -> int:
    """Compares what a kill has left with an undisturbed store; after which verb it is.

    Raises:
        OracleViolation: it is not what it should be, or at no checkpoint that it may be at.
        HpsError: it does not open.
    """
    ledger = Ledger(Path(order.folder) / "ledger")
    names = ("CURRENT", ROCKSDB_MANIFEST)
    if not any((order.store / name).exists() for name in names):
        if ledger.attempted.any():
            raise OracleViolation(f"the store has none of {names}")
        return 0
    with hps.open(order.store, dram="64KiB") as reader:
        done = number_at(reader)
        if not ledger.allows(counts(done)):
            raise OracleViolation(f"the store is at {done}, {ledger}")
        if reader.checkpoints() and (found := State.of(reader)) != undisturbed.at(done):
            raise OracleViolation(f"at {done}: {found} instead of {undisturbed.at(done)}")
    if damage := verify(order.store):
        raise OracleViolation(f"verify: {damage}")
    return done


def run_life_kills(
    seed: int, kills: int, *, engine: str = "segments", plant: str = ""
) -> LifeReport:
    """Kills workers until `kills` are reached; a store with a violation is left for a new one.

    Args:
        seed: of verbs and moments.
        kills: how many.
        engine: of the stores.
        plant: a bug of life_planted.py; then the first violation ends the run.
    """
    report = LifeReport()
    aims = (*AIMS, Phase.COMPACTION, Phase.PERIOD)
    with nursery(MODULE) as process:
        killer = Killer(process, seed, LONGEST_LIFE)
        while report.kills < kills and not (plant and report.violations):
            own = seed + report.stores
            with scratch_folder() as folder, reference(folder, own) as undisturbed:
                order = LifeOrder(str(folder), own, engine, plant)
                report.stores += 1
                for _ in range(min(KILLS_PER_STORE, kills - report.kills)):
                    aim = aims[report.kills % len(aims)]
                    if not _kill_and_look(killer, order, aim, undisturbed, report):
                        break
                report.tallies.update(Ledger(folder / "ledger").tallies())
                report.note(undisturbed)
    return report


def _kill_and_look(
    killer: Killer,
    order: LifeOrder,
    aim: Phase | None,
    undisturbed: Reference,
    report: LifeReport,
) -> bool:
    was_killed = killer.kill_one(order, aim)
    report.kills += 1
    ledger = Ledger(Path(order.folder) / "ledger")
    report.phases[ledger.phase.name] += 1
    acknowledged = int(ledger.acknowledged[0])
    try:
        report.between += look(order, undisturbed) != acknowledged
        if not was_killed:
            raise OracleViolation("the worker ended by itself; its error stands above")
    except (OracleViolation, hps.HpsError) as error:
        where = f"seed {order.seed}, kill {report.kills} of the run"
        report.violations.append(f"{where}: {type(error).__name__}: {error}")
        return False
    return True
