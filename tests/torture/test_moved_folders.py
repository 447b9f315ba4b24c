"""Recipe I1, the short form: a folder that moves under its writer costs no told checkpoint."""

import random

import pytest

from tests.torture.identity import PLANTS, IdentityReport, run_identity


def _fresh_seed() -> int:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return seed


@pytest.mark.parametrize(("engine", "runs"), [("segments", 12), ("rocksdb", 4)])
def test_folders_that_move_under_a_writer_cost_nothing_acknowledged(engine: str, runs: int) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    report = IdentityReport()
    for _ in range(25):  # what one run has missed, another one meets
        found = run_identity(_fresh_seed(), runs, engine)
        report.tallies.update(found.tallies)
        assert found.violations == []
        if not report.missing():
            return
    assert report.missing() == [], f"the run proves nothing; {report}"


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_is_found_by_folders_that_move(plant: str) -> None:
    if PLANTS[plant] == "rocksdb":
        pytest.importorskip("rocksdict")
    report = run_identity(_fresh_seed(), 200, PLANTS[plant], plant)
    assert report.violations != []
    print(report.violations[0])
