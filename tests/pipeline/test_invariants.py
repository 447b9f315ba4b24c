"""Each of the seven rules is needed: without what enforces it, a run is stopped or turns out wrong.

Above it: pytest. Below it: planted.py (the faults), scenario.py (the run that shows them). That the
same run holds without a fault is what test_parity.py says.
"""

from pathlib import Path

import pytest

import hps
from hps.pipeline.invariants import RULES
from tests.pipeline.planted import PLANTED
from tests.pipeline.scenario import Scenario, run

# What a fault leads to: the check that names the rule, another error, or other rows than depth 0.
SEEN = {
    "I1": "rule I1",
    "I2": "rule I2",
    "I3": "other rows",
    "I4": "rule I4",
    "I5": "other rows",
    "I6, waits": "CapacityError",
    "I6, takes nothing": "CapacityError",
    "I7": "rule I7",
}


def scenario_of(plant: str) -> tuple[Scenario, float]:
    """The run that shows a fault, and its budget in smallest ones: barely one step."""
    if plant == "I5":
        return Scenario(seed=11, loop_seconds=0.002, accumulate=2, has_turns=False), 1.6
    return Scenario(seed=11, loop_seconds=0.002, has_turns=plant == "I7"), 1.0


def what_goes_wrong(folder: Path, plant: str) -> str:
    """What a run with a fault comes to, in words; "" if nothing is wrong with it."""
    scenario, scale = scenario_of(plant)
    sound = run(scenario, folder / "in turn", 0, scale=20.0)
    try:
        planted = run(scenario, folder / "planted", 4, scale=scale, parts=PLANTED[plant])
    except AssertionError as error:
        return str(error)
    except hps.HpsError as error:
        return f"{type(error).__name__}: {error}"
    assert planted.evictions > 500
    return "" if planted == sound else "other rows"


@pytest.mark.parametrize("plant", PLANTED)
def test_without_the_rule_a_run_goes_wrong(tmp_path: Path, plant: str) -> None:
    assert SEEN[plant] in what_goes_wrong(tmp_path, plant)


@pytest.mark.parametrize("plant", ["I5", "I6", "I7"])
def test_the_same_run_without_a_fault_goes_right(tmp_path: Path, plant: str) -> None:
    scenario, scale = scenario_of(plant)
    sound = run(scenario, tmp_path / "in turn", 0, scale=20.0)
    ahead = run(scenario, tmp_path / "ahead", 4, scale=scale)
    assert ahead == sound and ahead.refusals > 0 and ahead.evictions > 500


def test_every_rule_has_a_fault() -> None:
    assert {plant.split(",")[0] for plant in PLANTED} == set(RULES)
