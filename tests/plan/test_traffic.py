"""What `hps plan` says of the network, beside what ranks send.

Above it: pytest. Below it: hps/plan/, benchmarks/cluster (a DeepFM on ranks that are threads).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.cluster.rank import RunOptions
from benchmarks.cluster.ranks import run_threads
from benchmarks.cluster.workload import Workload
from hps.cluster.world.local_world import local_worlds
from hps.plan import PlanQuestion, make_plan
from hps.train.dense import average_in_rank_order

LOG = Workload(keys=20_000, batch_size=600, features=6, dense=2, distinct=8)
# Depth 0: else keys and rows of later batches are sent ahead, and more of them or fewer at the last
# timed step than at the first, as the machine happens to be loaded.
OPTIONS = RunOptions(log=LOG, dim=4, depth=0, steps=8, warm_up=4, dram="16MiB")
QUESTION = PlanQuestion(
    keys=LOG.keys, dim=OPTIONS.dim + 1, features=LOG.features, batch_size=LOG.batch_size
)


@pytest.mark.parametrize(
    ("ranks", "wires"), [(2, {}), (3, {}), (2, {"row_wire": "bfloat16", "gradient_wire": "int8"})]
)
def test_ranks_send_what_the_plan_expects(ranks, wires):
    timed = run_threads(replace(OPTIONS, cluster=wires), ranks)
    plan = make_plan(replace(QUESTION, ranks=ranks, **wires)).network
    expected = plan.keys + plan.rows + plan.gradients
    found = np.mean([rank.bytes_sent for rank in timed])
    assert found == pytest.approx(expected, rel=0.02)
    # And what was counted key by key, of which the expectation is an average.
    if not wires:
        assert np.mean([rank.least_bytes for rank in timed]) == pytest.approx(expected, rel=0.02)


def test_distinct_keys_of_the_ranks_are_the_expected_ones():
    found = [len(np.unique(LOG.keys_of(number, rank, 3))) for number in range(8) for rank in (0, 2)]
    step = make_plan(replace(QUESTION, ranks=3)).step
    assert np.mean(found) == pytest.approx(step.rank_keys, rel=0.01)
    whole = [len(np.unique(LOG.keys_of(number))) for number in range(8)]
    assert np.mean(whole) == pytest.approx(step.batch_keys, rel=0.01)


def test_dense_gradients_send_what_the_plan_expects():
    worlds = local_worlds(3)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda w: average_in_rank_order(w.rows, torch.ones(3000)), worlds))
    plan = make_plan(replace(QUESTION, ranks=3, dense_parameters=3000)).network
    assert plan.dense > 0
    assert [world.rows.bytes_sent for world in worlds] == pytest.approx([plan.dense] * 3)
