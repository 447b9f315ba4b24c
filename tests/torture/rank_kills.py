"""Recipe K1 of a cluster: ranks killed at random steps; the training ends with the same bits.

Above it: run.py, test_rank_kills.py. Below it: tests/cluster/rank_nursery.py (ranks as forked
processes, started anew as torchrun does) and torchrun_lab.py (torchrun itself).
"""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.rank_nursery import Job, Nursery
from tests.cluster.torchrun_lab import KILLED, run_torchrun
from tests.logs import write_criteo

PLANT = "generators-forgotten"
NUM_STEPS = 40
_SLOWEST_SECONDS = 30.0  # that a run may take to end after a kill, besides what it takes without
_SLOWER = 4  # a machine may become, from one run to another
_SAME = ("digests", "loss_digest", "train_logloss", "rows", "total_examples")


@dataclass
class RankKillReport:
    """What happened.

    Args:
        kills: of ranks, each of which ended a run.
        resumed: runs that went on from a checkpoint.
        anew: runs that a kill left without any.
        slowest_seconds: from a run's start to the end of its last rank.
        violations: what must not be.
    """

    kills: int = 0
    resumed: int = 0
    anew: int = 0
    slowest_seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def add(self, other: "RankKillReport") -> None:
        """Takes another run's figures in."""
        self.kills += other.kills
        self.resumed += other.resumed
        self.anew += other.anew
        self.slowest_seconds = max(self.slowest_seconds, other.slowest_seconds)
        self.violations += other.violations

    def missing(self) -> list[str]:
        """What a run must have seen to prove anything."""
        seen = {"run killed": self.kills, "run resumed": self.resumed}
        return [what for what, number in seen.items() if not number]

    def __str__(self) -> str:
        return (
            f"ranks killed {self.kills} times, resumed {self.resumed}, anew {self.anew}, "
            f"slowest end {self.slowest_seconds:.1f} s"
        )


def words(log: Path, store: Path) -> list[str]:
    """A run of 40 steps, all of whose state a resumed run must take up."""
    flags = {
        "--store": str(store),
        "--dim": "4",
        "--hidden": "16",
        "--batch-size": "64",
        "--epochs": "2",
        "--dropout": "0.2",
        "--optimizer": "adam",
        "--dram": "2MiB",
        "--seed": "5",
        "--depth": "2",
        "--threads": "1",
        "--progress-seconds": "0",
        "--checkpoint-every": "4",
        "--cluster-timeout": "20",
    }
    return ["train", str(log), *(word for flag in flags.items() for word in flag)]


def run_rank_kills(
    ranks: Nursery, folder: Path, seed: int, num_kills: int, plant: str | None = None
) -> RankKillReport:
    """Trainings on two and three ranks in turn, each killed up to five times.

    Args:
        ranks: starts them.
        folder: empty.
        seed: of who is killed when.
        num_kills: in all.
        plant: a bug to plant in every rank that is started anew, or None.
    """
    draw = random.Random(seed)
    report = RankKillReport()
    log = write_criteo(folder / "log.tsv", 64 * NUM_STEPS // 2)
    whole: dict[int, dict[str, Any]] = {}  # ranks -> figures of a run that nothing kills
    longest: dict[int, float] = {}  # ranks -> seconds that a run which is killed may take
    number = 0
    while report.kills < num_kills:
        size = 2 + number % 2
        if size not in whole:
            start = time.perf_counter()
            whole[size] = ranks.figures(Job(words(log, folder / f"whole-{size}"), size))
            longest[size] = _SLOWEST_SECONDS + _SLOWER * (time.perf_counter() - start)
        store = folder / f"killed-{number}"
        number += 1
        for attempt in range(min(5, num_kills - report.kills)):
            victim = {draw.randrange(size): draw.randrange(12)}
            job = Job(words(log, store), size, dies_at=victim, variables=_restarted(attempt))
            job.plant = plant if attempt else None
            _kill(ranks, job, report, longest[size])
        job = Job(words(log, store), size, variables=_restarted(1))
        job.plant = plant
        _compare(ranks.figures(job), whole[size], report, f"seed {seed}, training {number}")
    return report


def _restarted(attempt: int) -> dict[str, str]:
    return {"TORCHELASTIC_RESTART_COUNT": str(attempt)}


def _kill(ranks: Nursery, job: Job, report: RankKillReport, longest: float) -> None:
    start = time.perf_counter()
    ended = ranks.run(job)
    seconds = time.perf_counter() - start
    report.slowest_seconds = max(report.slowest_seconds, seconds)
    (victim,) = job.dies_at
    if ended.statuses[victim] == 0:
        return  # the run was at its end before the step came
    report.kills += 1
    if seconds > longest:
        report.violations.append(f"after the kill of rank {victim} ranks stayed {seconds:.0f} s")
    others = [status for rank, status in enumerate(ended.statuses) if rank != victim]
    if 0 in others:
        report.violations.append(f"rank {victim} was killed, others ended well: {ended.statuses}")
    if any("Traceback" in text for text in ended.err):
        report.violations.append(f"an error that is not told in a line: {ended.err}")


def _compare(
    figures: dict[str, Any], whole: dict[str, Any], report: RankKillReport, what: str
) -> None:
    report.resumed += figures["resumed_from"] is not None
    report.anew += figures["resumed_from"] is None
    for name in _SAME:
        if figures[name] != whole[name]:
            report.violations.append(
                f"{what}: {name} is {figures[name]}, without kills {whole[name]}"
            )


def run_torchrun_kills(
    ranks: Nursery, folder: Path, seed: int, num_kills: int, flags: Sequence[str] = ()
) -> RankKillReport:
    """One training under torchrun, which restarts it after each of the kills.

    Args:
        ranks: run the training that nothing kills.
        folder: empty.
        seed: of who is killed when.
        num_kills: one an attempt.
        flags: of torchrun, besides.
    """
    draw = random.Random(seed)
    report = RankKillReport()
    log = write_criteo(folder / "log.tsv", 64 * NUM_STEPS // 2)
    whole = ranks.figures(Job(words(log, folder / "whole"), 2))
    out = folder / "out.json"
    # Each attempt comes at least one checkpoint further, so that none is at the end too early.
    kills = [(draw.randrange(2), 4 + draw.randrange(3)) for _ in range(num_kills)]
    start = time.perf_counter()
    done = run_torchrun([*words(log, folder / "store"), "--json", str(out)], 2, kills, flags)
    report.slowest_seconds = time.perf_counter() - start
    report.kills = done.stderr.count(KILLED)
    if done.returncode:
        report.violations.append(f"torchrun ended with {done.returncode}: {done.stderr[-2000:]}")
        return report
    _compare(json.loads(out.read_text()), whole, report, f"seed {seed}, kills {kills}")
    return report
