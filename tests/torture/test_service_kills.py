"""Recipes K1 and N1 to N4 of the service, the short forms, against real server processes."""

import pytest

from tests.torture.service_kills import ServiceReport
from tests.torture.service_recipes import RECIPES, fresh_seed, run_recipe

KILLS = {"K1": 30, "N1": 4, "N2": 4, "N3": 4, "N4": 4}
PLANTED = [(name, plant) for name, recipe in RECIPES.items() for plant in recipe.plants]


def _assert_premise(name: str, report: ServiceReport) -> None:
    """What a run under load may have missed, some more kills will meet."""
    for _ in range(4):
        if not report.missing(RECIPES[name].needed):
            break
        report.add(run_recipe(name, fresh_seed(), 4))
    assert not report.missing(RECIPES[name].needed), f"the run proves nothing; {report}"


@pytest.mark.parametrize("name", RECIPES)
def test_killed_shards_have_every_push_once(name: str) -> None:
    report = run_recipe(name, fresh_seed(), KILLS[name])
    _assert_premise(name, report)
    print(report)
    assert report.violations == []
    assert report.kills >= KILLS[name]


@pytest.mark.parametrize(("name", "plant"), PLANTED)
def test_a_planted_bug_is_found(name: str, plant: str) -> None:
    report = run_recipe(name, fresh_seed(), 60, plant)
    assert report.violations != []
    print(report.violations[0])
