"""Recipe K1 of a cluster, with other numbers of ranks: a rank is killed, and the folder goes on
with as many ranks as are drawn; each opening has the rows of the newest checkpoint that was taken.

Above it: run.py, test_rank_kills.py. Below it: rank_kills.py (what a run is),
tests/cluster/rank_nursery.py (ranks as forked processes).
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

import hps
from tests.cluster.rank_nursery import Job, Nursery
from tests.logs import write_criteo
from tests.torture.rank_kills import NUM_STEPS, words

PLANT = "bit-lost-in-moves"
_SIZES = (1, 2, 3)
_EVERY = 4  # steps between checkpoints, as `words` has them


@dataclass
class RankCountReport:
    """What happened.

    Args:
        kills: of ranks, each of which ended a run.
        moves: openings by another number of ranks than before.
        finished: trainings that came to their end.
        violations: what must not be.
    """

    kills: int = 0
    moves: int = 0
    finished: int = 0
    violations: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """What a run must have seen to prove anything."""
        seen = {"run killed": self.kills, "move": self.moves}
        return [what for what, number in seen.items() if not number]

    def __str__(self) -> str:
        return (
            f"ranks killed {self.kills} times, {self.moves} times gone on with another number, "
            f"{self.finished} trainings at their end"
        )


def run_rank_counts(
    ranks: Nursery, folder: Path, seed: int, num_kills: int, plant: str | None = None
) -> RankCountReport:
    """Trainings that are killed and gone on with by other numbers of ranks.

    Args:
        ranks: starts them.
        folder: empty.
        seed: of who is killed when, and of the numbers.
        num_kills: in all.
        plant: a bug to plant in ranks that look at what a kill has left, or None.
    """
    draw = random.Random(seed)
    report = RankCountReport()
    log = write_criteo(folder / "log.tsv", 64 * NUM_STEPS // 2)
    number = 0
    while report.kills < num_kills:
        store = folder / f"store-{number}"
        number += 1
        size, steps = draw.choice((2, 3)), 0
        while report.kills < num_kills:
            what = f"seed {seed}, training {number}, {size} rank(s) at step {steps}"
            dies_after = draw.randrange(_EVERY + 1, 3 * _EVERY)
            resume = ["--resume"] if steps else []
            victim = {draw.randrange(size): dies_after}
            ended = ranks.run(Job([*words(log, store), *resume], size, dies_at=victim))
            if any("Traceback" in text for text in ended.err):
                report.violations.append(f"{what}: not told in a line: {ended.err}")
            if set(ended.statuses) == {0}:
                report.finished += 1
                break
            report.kills += 1
            # The victim had come through so many steps: all ranks had the checkpoints before.
            acknowledged = steps + dies_after // _EVERY * _EVERY
            before, size = size, draw.choice([other for other in _SIZES if other != size])
            report.moves += 1
            steps = _look(ranks, Job(words(log, store), size, plant=plant), store, report, what)
            if steps < acknowledged:
                report.violations.append(
                    f"{what}: {before} rank(s) had taken the checkpoint of step {acknowledged}, "
                    f"{size} rank(s) are at {steps}"
                )
    return report


def _look(ranks: Nursery, job: Job, store: Path, report: RankCountReport, what: str) -> int:
    """Has ranks open the folder and train nothing; returns the step at which they found it."""
    digests = _digests(store)
    words_to_look = [*job.words, "--resume", "--limit", "1"]
    ended = ranks.figures(Job(words_to_look, job.size, plant=job.plant))
    if ended["digests"] != digests:
        report.violations.append(
            f"{what}: {job.size} rank(s) found {ended['digests']}, it was {digests}"
        )
    if _digests(store) != digests:
        report.violations.append(f"{what}: an opening by {job.size} rank(s) changed the rows")
    if ended["examples"]:
        report.violations.append(f"{what}: {job.size} rank(s) trained where there was nothing to")
    return int(ended["total_batches"])


def _digests(store: Path) -> dict[str, str]:
    """As one process reads it, which moves nothing."""
    with hps.open(store) as reader:
        return {name: reader.digest(name) for name in reader.tables}
