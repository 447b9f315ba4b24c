"""What the cluster benchmark rests on: parts that make up the batch, counted keys, a simulator that
gives what a hand calculation gives.

Above it: pytest. Below it: benchmarks/cluster.
"""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cluster.calibrate import slowdown, steps_of
from benchmarks.cluster.cluster_bench import bytes_row, closeness_row
from benchmarks.cluster.rank import Timed
from benchmarks.cluster.simulator import Collective, Machine, Simulation, Work
from benchmarks.cluster.workload import TABLE, Workload
from benchmarks.common.timing import Samples
from hps.common.sharding import ShardMap

LOG = Workload(keys=3000, batch_size=50, features=4, distinct=3)
ONE_CORE = Machine(cores=1, ranks_per_host=1)
MANY_CORES = Machine(cores=64, ranks_per_host=64)


def step(network=0.0, fetch=0.0, compute=0.0, nbytes=None):
    """A step whose compute stage ends with a collective, where nbytes is given."""
    ending = () if nbytes is None else (Collective("rows", nbytes),)
    return {
        "network": (Work(network),),
        "fetch": (Work(fetch),),
        "compute": (Work(compute), *ending),
    }


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_of_the_ranks_make_up_the_batch(size):
    whole = LOG.keys_of(1).reshape(LOG.features, -1)
    parts = [LOG.keys_of(1, rank, size).reshape(LOG.features, -1) for rank in range(size)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)
    batches = [LOG.part(1, rank, size) for rank in range(size)]
    assert sum(len(batch) for batch in batches) == 50
    keys = batches[0].features[TABLE].keys_L.numpy().view(np.uint64)
    assert np.array_equal(keys, parts[0].reshape(-1))


def test_batches_come_again_after_the_distinct_ones():
    assert np.array_equal(LOG.keys_of(1), LOG.keys_of(4))
    assert not np.array_equal(LOG.keys_of(1), LOG.keys_of(2))
    assert len(list(LOG.parts(0, 2, 7))) == 7


def test_foreign_keys_are_those_that_others_own():
    for rank in range(3):
        unique = np.unique(LOG.keys_of(0, rank, 3))
        owned = ShardMap(3).split(unique)
        others = sum(len(owned[other]) for other in range(3) if other != rank)
        assert LOG.foreign_keys(0, rank, 3) == others > 0


@pytest.mark.parametrize(
    ("machine", "depth", "expected"),
    [
        (ONE_CORE, 0, 6.0),  # the stages in turn
        (ONE_CORE, 2, 6.0),  # one core does the same work
        (MANY_CORES, 2, 3.0),  # the longest stage
        (Machine(cores=2, ranks_per_host=1), 2, 3.0),
        (Machine(cores=2, ranks_per_host=1, slowdown=1.5), 2, 4.5),
    ],
)
def test_one_simulated_rank_takes_what_its_stages_and_cores_allow(machine, depth, expected):
    steps = [step(network=1.0, fetch=2.0, compute=3.0)]
    seconds = Simulation(machine, steps, size=1, depth=depth).seconds_per_step()
    assert seconds == pytest.approx(expected, rel=0.01)


def test_simulated_ranks_share_the_cores_of_a_host():
    steps = [step(compute=1.0)]
    shared = Machine(cores=2, ranks_per_host=8)
    assert Simulation(shared, steps, 4).seconds_per_step() == pytest.approx(2.0)
    apart = Machine(cores=2, ranks_per_host=1)
    assert Simulation(apart, steps, 4).seconds_per_step() == pytest.approx(1.0)


def test_a_collective_waits_for_the_slowest_rank_and_takes_its_own():
    mixed = [step(compute=1.0, nbytes=0.0), step(compute=3.0, nbytes=0.0)]
    seconds = Simulation(MANY_CORES, mixed, 2).seconds_per_step(400)
    assert seconds == pytest.approx(0.25 * 1 + 0.75 * 3, rel=0.05)
    costs = Machine(
        cores=64,
        ranks_per_host=1,
        call_seconds=(0.1, 0.2, 0.001),
        latency_seconds=0.5,
        bytes_per_second=100.0,
    )
    seconds = Simulation(costs, [step(compute=1.0, nbytes=40.0)], 4).seconds_per_step()
    foreign = 40.0 * 3 / 4
    expected = 1.0 + (0.1 + 3 * 0.2 + 0.001 * foreign) + 0.5 + foreign / 100.0
    assert seconds == pytest.approx(expected)


def test_one_rank_pays_for_no_collective():
    costs = Machine(cores=64, ranks_per_host=1, call_seconds=(1.0, 1.0, 1.0), latency_seconds=1.0)
    assert Simulation(costs, [step(compute=1.0, nbytes=9.0)], 1).seconds_per_step() == 1.0


def test_recorded_work_is_told_apart_by_stage_and_none_of_it_is_lost():
    calls = {
        "keys": [[1.0, 1.1, 8.0], [1.4, 1.5, 80.0]],
        "rows": [[4.0, 4.2, 640.0]],
        "control": [],
    }
    calls["control"] = [[6.0, 6.5, 1.0]]
    timed = Timed(
        seconds=8.0,
        busy={"network": 1.7, "fetch": 1.0, "compute": 5.3},
        waits={},
        cpu_seconds=8.0,
        bytes_sent=0.0,
        least_bytes=0.0,
        moments=[0.0, 8.0],
        calls=calls,
    )
    (recorded,) = steps_of(timed)
    work = {
        stage: sum(done.seconds for done in operations if isinstance(done, Work))
        for stage, operations in recorded.items()
    }
    assert work == pytest.approx({"network": 1.7, "fetch": 1.0, "compute": 5.3})
    collectives = [
        (done.channel, done.nbytes)
        for operations in recorded.values()
        for done in operations
        if isinstance(done, Collective)
    ]
    assert collectives == [("keys", 8.0), ("keys", 80.0), ("rows", 640.0), ("control", 1.0)]
    longer = replace(timed, seconds=20.0)
    assert slowdown([timed], [timed], 0.5) == slowdown([timed], [longer], 4.0) == 1.0
    assert slowdown([timed], [longer], 2.0) == 1.25


def test_bytes_are_held_against_those_that_must_travel():
    fields = dict.fromkeys(("seconds", "cpu_seconds"), 1.0)
    ranks = [
        Timed(**fields, busy={}, waits={}, bytes_sent=sent, least_bytes=100.0, moments=[], calls={})
        for sent in (105.0, 115.0)
    ]
    row = bytes_row({}, ranks)
    assert row["value"] == 110.0 and row["ratio"] == pytest.approx(1 / 1.1)
    assert row["floor"] == pytest.approx(row["ratio"])


def test_a_prediction_is_close_from_either_side():
    above, below = (closeness_row(2, ms, Samples((10.0, 10.0, 12.5))) for ms in (12.5, 8.0))
    assert above["ratio"] == below["ratio"] == pytest.approx(0.8)
    assert above["spread"]["ratio"] == [pytest.approx(0.8), 1.0]
