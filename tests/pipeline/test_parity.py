"""Any depth gives the rows, losses and positions of depth 0, whatever the timing and the budget.

Above it: pytest. Below it: scenario.py.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.scenario import Outcome, Scenario, draw_case, run, run_case

DEPTHS = (1, 2, 4, 8)
NUM_SEEDS = 30


@pytest.fixture(scope="module")
def in_turn(tmp_path_factory: pytest.TempPathFactory) -> dict[Scenario, Outcome]:
    """Outcomes at depth 0, made once a scenario."""
    folder = tmp_path_factory.mktemp("in-turn")

    class Outcomes(dict[Scenario, Outcome]):
        def __missing__(self, scenario: Scenario) -> Outcome:
            self[scenario] = run(scenario, folder / str(len(self)), 0, scale=20.0)
            return self[scenario]

    return Outcomes()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("scale", [1.0, 2.0, 20.0])
def test_any_depth_gives_the_bits_of_depth_0(
    tmp_path: Path, in_turn: dict[Scenario, Outcome], depth: int, optimizer: str, scale: float
) -> None:
    scenario = Scenario(seed=7, optimizer=optimizer, loop_seconds=0.002)
    joint = replace(scenario, is_joint=True)
    outcome = run(joint, tmp_path / "joint", depth, scale=scale)
    assert outcome == in_turn[scenario]
    outcome = run(scenario, tmp_path / "by table", depth, scale=scale)
    assert outcome == in_turn[scenario]
    assert (outcome.evictions > 200) == (scale < 20)
    assert outcome.evictions == 0 or min(outcome.rows.values()) > 4 * 64
    if scale == 1.0:  # 128 slots for up to 100 keys a batch: no two batches fit
        assert outcome.refusals > 0


@pytest.mark.parametrize("depth", [0, 2, 8])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_a_gpu_cache_on_top_changes_nothing(
    tmp_path: Path, in_turn: dict[Scenario, Outcome], depth: int, optimizer: str, scale: float
) -> None:
    scenario = Scenario(seed=7, optimizer=optimizer, loop_seconds=0.002)
    joint = replace(scenario, is_joint=depth == 2)
    outcome = run(joint, tmp_path, depth, scale=scale, kind="gpu")
    assert outcome == in_turn[scenario]
    assert outcome.evictions > 100
    if depth and scale == 1.0:
        assert outcome.refusals > 0


@pytest.mark.parametrize("number", range(NUM_SEEDS))
def test_random_delays_change_nothing(
    tmp_path: Path, number: int, in_turn: dict[Scenario, Outcome]
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    case = draw_case(seed)
    assert run_case(case, tmp_path) == in_turn[replace(case.scenario, is_joint=False)]
