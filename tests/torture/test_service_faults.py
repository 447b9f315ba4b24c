"""Recipes F1, F2 and N5 of the service, the short forms, against real server processes.

Above it: pytest. Below it: service_faults.py, service_slow.py. Of Q1 the short form stands in
tests/service/server/test_server_hostile.py; here is its planted bug.
"""

from collections.abc import Iterator

import pytest

from tests.torture.faulty_calls import faulty_nursery, missing_tools
from tests.torture.service_faults import FAULTS, NEEDED, PLANTS, run_faults
from tests.torture.service_hostile import PLANT, run_hostile
from tests.torture.service_recipes import fresh_seed
from tests.torture.service_shards import Nursery
from tests.torture.service_slow import OneAtATime, connect_unbounded, run_slow

RUNS = {"F1": 1, "F2": 2}

pytestmark = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())


@pytest.fixture(scope="module")
def process() -> Iterator[Nursery]:
    with faulty_nursery() as process:
        yield process


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_disk_loses_nothing_that_was_acknowledged(process: Nursery, name: str) -> None:
    report = run_faults(process, name, fresh_seed(), RUNS[name])
    print(report)
    assert report.violations == []
    assert not report.missing(NEEDED[name]), f"the run proves nothing; {report}"


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_bug_about_faulty_disks_is_found(process: Nursery, name: str) -> None:
    report = run_faults(process, name, fresh_seed(), 10, PLANTS[name])
    assert report.violations != []
    print(report.violations[0])


def test_a_server_that_stumbles_over_damage_is_found_by_hostile_requests(process: Nursery) -> None:
    report = run_hostile(process, fresh_seed(), 300, PLANT)
    assert "INTERNAL" in report.violations[0]


def test_a_slow_disk_does_not_hold_up_the_other_shard(process: Nursery) -> None:
    report = run_slow(process, fresh_seed())
    print(report)
    assert report.violations == []
    assert report.missing() == []


def test_a_client_without_a_bound_is_found(process: Nursery) -> None:
    report = run_slow(process, fresh_seed(), attempts=1, connect=connect_unbounded)
    assert "bytes were waiting" in report.violations[-1]


def test_a_client_that_asks_one_shard_after_the_other_is_found(process: Nursery) -> None:
    report = run_slow(process, fresh_seed(), attempts=1, connect=OneAtATime)
    assert "makes pulls of the other" in report.violations[0]
    assert report.missing() == []
