"""Recipes K1, K2 and F2 with life cycle on, the short forms: a store that rows are admitted to, and
die in, is after every kill what an undisturbed one was.

Above it: pytest. Below it: life_kills.py, life_faults.py.
"""

import subprocess
from collections.abc import Iterator

import pytest

from tests.torture.faulty_calls import missing_tools
from tests.torture.life_faults import (
    DROPS,
    K2_PLANT,
    NEEDED,
    faulty_workers,
    run_crashes,
    run_full_disks,
)
from tests.torture.life_kills import run_life_kills
from tests.torture.life_planted import PLANTED
from tests.torture.service_recipes import fresh_seed

KILLS = {"segments": 14, "rocksdb": 10}
STRIDE = 5  # of the calls of a checkpoint
DISKS = 6

needs_tools = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())


@pytest.fixture(scope="module")
def process() -> Iterator["subprocess.Popen[str]"]:
    with faulty_workers() as process:
        yield process


@pytest.mark.parametrize("engine", KILLS)
def test_a_kill_leaves_the_rows_of_a_checkpoint(engine: str) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    report = run_life_kills(fresh_seed(), KILLS[engine], engine=engine)
    for _ in range(10):  # what a run under load may have missed, some more kills will meet
        if report.violations or not report.missing_life():
            break
        report.add(run_life_kills(fresh_seed(), 20, engine=engine))
    assert report.violations == []
    assert not report.missing_life(), f"the run proves nothing; {report}"


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_about_the_life_of_rows_is_found(plant: str) -> None:
    report = run_life_kills(fresh_seed(), 200, plant=plant)
    assert report.violations != []
    print(report.violations[0])


@needs_tools
def test_a_checkpoint_of_a_period_dies_at_any_call(process: "subprocess.Popen[str]") -> None:
    report = run_crashes(process, fresh_seed(), stride=STRIDE)
    print(report)
    assert report.violations == []
    assert not report.missing(NEEDED["K2"]), f"the run proves nothing; {report}"


@needs_tools
def test_a_full_disk_changes_no_row_and_no_period(process: "subprocess.Popen[str]") -> None:
    report = run_full_disks(process, fresh_seed(), DISKS)
    print(report)
    assert report.violations == []
    assert not report.missing(NEEDED["F2"]), f"the run proves nothing; {report}"


@needs_tools
def test_planted_bugs_are_found_by_crashes_and_full_disks(
    process: "subprocess.Popen[str]",
) -> None:
    assert run_crashes(process, fresh_seed(), stride=STRIDE, plant=K2_PLANT).violations != []
    assert run_full_disks(process, fresh_seed(), 40, DROPS).violations != []
