"""Recipe K1, the short form: a killed server opens at a checkpoint that the oracle explains."""

import random

import pytest

from tests.torture.kills import KillReport, run_kills
from tests.torture.planted import PLANTED


def _fresh_seed() -> int:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return seed


def _assert_report(report: KillReport, restores: bool) -> None:
    """All was well; what a run under load may have missed, some more kills will meet."""
    for _ in range(15):
        if report.violations or not report.missing(restores):
            break
        report.add(run_kills(_fresh_seed(), 20, restores=restores))
    assert report.violations == []
    assert not report.missing(restores), f"the run proves nothing; {report}"


def test_a_server_killed_thirty_times_is_always_at_an_acknowledged_checkpoint() -> None:
    report = run_kills(_fresh_seed(), 30)
    _assert_report(report, restores=False)


def test_kills_after_a_restore_never_lead_to_the_abandoned_checkpoint() -> None:
    report = run_kills(_fresh_seed(), 24, restores=True)
    _assert_report(report, restores=True)


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found_by_kills(plant: str) -> None:
    report = run_kills(_fresh_seed(), 300, restores=PLANTED[plant].needs_restores, plant=plant)
    assert report.violations != []
    print(report.violations[0])
