"""Recipes K1 and N1 to N4 of the service, the short forms, against real server processes."""

from collections.abc import Iterator

import pytest

from tests.torture.service_kills import ServiceReport
from tests.torture.service_recipes import RECIPES, fresh_seed, run_recipe
from tests.torture.service_shards import Nursery, nursery

KILLS = {"K1": 12, "N1": 3, "N2": 3, "N3": 3, "N4": 3}
PLANTED = [(name, plant) for name, recipe in RECIPES.items() for plant in recipe.plants]


@pytest.fixture(scope="module")
def process() -> Iterator[Nursery]:
    with nursery() as process:
        yield process


def _assert_report(process: Nursery, name: str, report: ServiceReport) -> None:
    """All was well; what a run under load may have missed, some more kills will meet."""
    for _ in range(25):
        if report.violations or not report.missing(RECIPES[name].needed):
            break
        report.add(run_recipe(process, name, fresh_seed(), 4))
    print(report)
    assert report.violations == []
    assert not report.missing(RECIPES[name].needed), f"the run proves nothing; {report}"


@pytest.mark.parametrize("name", RECIPES)
def test_killed_shards_have_every_push_once(process: Nursery, name: str) -> None:
    report = run_recipe(process, name, fresh_seed(), KILLS[name])
    _assert_report(process, name, report)
    assert report.kills >= KILLS[name]


@pytest.mark.parametrize(("name", "plant"), PLANTED)
def test_a_planted_bug_is_found(process: Nursery, name: str, plant: str) -> None:
    report = run_recipe(process, name, fresh_seed(), 200, plant)
    found = [violation for violation in report.violations if "deadline passed" not in violation]
    assert found != []
    print(found[0])
