"""Recipe K1 of publishing, the short form: a publisher and a model's server, killed under load."""

from collections.abc import Iterator

import pytest

from tests.torture.publishing_kills import (
    PublishingCase,
    publishing_nursery,
    run_publishing_kills,
)
from tests.torture.publishing_planted import PLANTED
from tests.torture.service_recipes import fresh_seed
from tests.torture.service_shards import Nursery

# What six kills always meet.
NEEDED = ("versions published", "bases", "look-ups", "scores", "publishers killed")
KILLS = 6


@pytest.fixture(scope="module")
def process() -> Iterator[Nursery]:
    with publishing_nursery() as process:
        yield process


def test_killed_publishers_and_servers_leave_nothing_half_visible(process: Nursery) -> None:
    report = run_publishing_kills(process, PublishingCase(fresh_seed()), KILLS)
    for _ in range(10):
        if report.violations or not report.missing(NEEDED):
            break
        report.add(run_publishing_kills(process, PublishingCase(fresh_seed()), 3))
    print(report)
    assert report.violations == []
    assert not report.missing(NEEDED), f"the run proves nothing; {report}"


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found(process: Nursery, plant: str) -> None:
    case = PublishingCase(fresh_seed(), plant, PLANTED[plant].who)
    report = run_publishing_kills(process, case, 100)
    assert report.violations != []
    print(report.violations[0])
