"""Two ranks that read the same batches come to the bits of one: skipped batches, several a step,
rows taken back, look-ups, checkpoints and delays between them included.

Above it: pytest. Below it: tests/pipeline/scenario.py, ranks.py. Half a gradient and its other half
add up to it in every bit, so one rank's outcome is what two must have.
"""

import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, stage_threads, successes
from tests.lab import Lab
from tests.pipeline.scenario import SOUND, TABLES, Delays, Run, Scenario, run


def run_on_two(scenario: Scenario, folder: Path, depth: int, scale: float, kind: str) -> Any:
    """What each of two ranks came to: digests, losses, rows, positions, and batches given back."""

    draws = threading.Lock()  # torch has one generator for all threads

    def body(world: LocalWorld) -> Any:
        own = folder / f"rank-{world.rank}"
        own.mkdir(parents=True)
        config = Lab(kind, own).config(*scenario.tables(), scale=scale)
        with hps.ClusterParameterServer(config, world) as server:
            # The ranks' delays differ, and so does when each takes rows back.
            with draws:
                training = Run(scenario, server, SOUND, Delays(scenario.seed + world.rank))
            training._gives_back = random.Random(world.rank)
            training.train(depth)
            assert server.pins == 0 and server.num_open_pipelines == 0
            digests = {name: server.digest(name) for name in TABLES}
            rows = {name: server.num_rows(name) for name in TABLES}
            outcome = (digests, training._losses.hexdigest(), rows, training.positions)
            return outcome, training.num_given_back, len(server.checkpoints())

    return successes(run_ranks(2, body))


@pytest.mark.parametrize(
    "depth, seed, kind", [(0, 7, "native"), (3, 8, "native"), (3, 7, "gpu"), (0, 8, "gpu")]
)
def test_two_ranks_come_to_the_bits_of_one(
    tmp_path: Path, depth: int, seed: int, kind: str
) -> None:
    torch.set_num_threads(1)
    scenario = Scenario(
        seed=seed,
        optimizer=("adagrad", "adam")[seed % 2],
        accumulate=1 + seed % 2,
        num_batches=50,
        gives_back=True,
        lookahead=4 if depth else 0,
    )
    expected = run(scenario, tmp_path / "alone", 0, scale=4.0)
    (first, first_given, checkpoints), (second, second_given, _) = run_on_two(
        scenario, tmp_path / "two", depth, 2.0, kind
    )
    alone = (expected.digests, expected.losses, expected.rows, expected.positions)
    assert first == second == alone
    assert checkpoints > 0
    assert not depth or first_given + second_given > 0
    assert stage_threads() == []
