"""Recipe C2: the pipeline's stages against each other, delayed at random, over tiny caches.

Above it: test_overlap.py, run.py. Below it: tests/pipeline, whose scenarios train the same batches
at depth 0 and at some depth; the two must agree in every bit, whatever waits when.
"""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import hps
from tests.pipeline.planted import PLANTED
from tests.pipeline.scenario import SOUND, Case, Parts, draw_case, run, run_case
from tests.torture.scratch import scratch_folder


@dataclass
class OverlapReport:
    """What a series of cases met; `violations` must be empty."""

    runs: int = 0
    evictions: int = 0
    refusals: int = 0
    violations: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """What should have happened and has not: a series without it proves nothing."""
        return [name for name in ("runs", "evictions", "refusals") if not getattr(self, name)]

    def __str__(self) -> str:
        return (
            f"stages at depth 1 to 8, each delayed at random ({self.evictions:,} evictions, "
            f"{self.refusals:,} batches that waited for a release)"
        )


def run_overlaps(seed: int, runs: int, plant: str = "") -> OverlapReport:
    """Runs cases drawn from seeds; with a planted fault until the first violation.

    Args:
        seed: of the first case; the others follow.
        runs: how many.
        plant: a fault of tests/pipeline/planted.py.
    """
    report = OverlapReport()
    for number in range(seed, seed + runs):
        with scratch_folder() as folder:
            _run_one(folder, draw_case(number), PLANTED[plant] if plant else SOUND, report)
        if plant and report.violations:
            break
    return report


def _run_one(folder: Path, case: Case, parts: Parts, report: OverlapReport) -> None:
    report.runs += 1
    in_turn = run(replace(case.scenario, is_joint=False), folder / "in turn", 0, scale=20.0)
    try:
        ahead = run_case(case, folder / "ahead", parts)
    except (AssertionError, hps.HpsError) as error:
        report.violations.append(f"{case}: {type(error).__name__}: {error}")
        return
    report.evictions += ahead.evictions
    report.refusals += ahead.refusals
    if ahead != in_turn:
        report.violations.append(f"{case}: {ahead} instead of {in_turn}")


def fresh_seed() -> int:
    """A seed for a series, printed."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return seed
