"""Recipes M1 and R1, the short forms, against real server processes."""

from collections.abc import Iterator

import pytest

from tests.torture.service_machine import MACHINES, MachineReport, run_machine
from tests.torture.service_recipes import fresh_seed
from tests.torture.service_shards import Nursery, nursery

KILLS = {"M1": 10, "R1": 25}
_MORE = 20  # runs that may be added until all has happened that should
_NEEDED = ("kills", "replayed")  # of the short form; `make torture` goes on until all scenes were
_PLANTED_KILLS = 100  # of one run with a bug; it meets the scene of the bug nearly always


@pytest.fixture(scope="module")
def process() -> Iterator[Nursery]:
    with nursery() as process:
        yield process


@pytest.mark.parametrize("name", MACHINES)
def test_shards_do_what_is_asked_whatever_is_killed_meanwhile(process: Nursery, name: str) -> None:
    report = run_machine(process, name, fresh_seed(), KILLS[name])
    for _ in range(_MORE):
        if report.violations or not report.missing(_NEEDED):
            break
        report.add(run_machine(process, name, fresh_seed(), KILLS[name]))
    print(report)
    assert report.violations == []
    assert not report.missing(_NEEDED), f"the run proves nothing; {report}"


@pytest.mark.parametrize("name", MACHINES)
def test_a_planted_bug_is_found(process: Nursery, name: str) -> None:
    report = MachineReport()
    for _ in range(_MORE):
        report.add(run_machine(process, name, fresh_seed(), _PLANTED_KILLS, MACHINES[name].plant))
        if report.violations:
            break
    assert report.violations != []
    print(report.violations[0])
