"""Parts of training over ranks, each rank a thread: dense averages, losses, who was slow.

Above it: pytest. Below it: hps/train over in-process ranks; whole runs are in
tests/train/test_training.py.
"""

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cluster.world.world import World
from hps.config import RankEnvironment
from hps.metrics import BinaryMetrics
from hps.report.stragglers import find_stragglers
from hps.train import TrainOptions
from hps.train.dense import average_in_rank_order
from hps.train.joined_metrics import joined_metrics
from hps.train.rank_report import format_ranks, sum_tiers
from hps.train.ranks import TrainingRanks, options_of_rank
from hps.train.run_mark import RunMark, name_of_run
from hps.train.totals import Totals
from hps.types import Batch
from tests.cluster.ranks import run_ranks, successes


def _batch(labels: Sequence[int], global_size: int) -> Batch:
    return Batch({}, torch.zeros(len(labels), 0), torch.tensor(labels), global_size=global_size)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_dense_gradients_are_averaged_in_the_order_of_the_ranks(size: int) -> None:
    """Wherever a gradient stands among the others, so that a resumed run has the same bits."""
    random = np.random.default_rng(size)
    print(f"seed {size}")
    of_ranks = [torch.from_numpy(random.normal(size=101).astype(np.float32)) for _ in range(size)]
    expected = of_ranks[0].clone()
    for values in of_ranks[1:]:
        expected += values
    expected /= size

    def body(world: World) -> Any:
        values = of_ranks[world.rank]
        whole = average_in_rank_order(world.rows, values)
        return [whole, torch.cat([average_in_rank_order(world.rows, values[i:]) for i in (0, 100)])]

    for whole, pieces in run_ranks(size, body):
        assert whole.equal(expected)
        assert pieces.equal(torch.cat([expected, expected[100:]]))


def test_losses_of_all_ranks_are_those_of_the_whole_batches() -> None:
    """Whenever the ranks tell each other, and where one has no example of a batch."""
    random = np.random.default_rng(5)
    print("seed 5")
    sizes = [[3, 4], [0, 1], [2, 2], [5, 0]]
    losses = random.random((4, 2)).astype(np.float32)

    def run(asks_early: bool) -> Any:
        def body(world: World) -> Any:
            totals = Totals(ranks=TrainingRanks(world))
            for of_ranks, loss in zip(sizes, losses, strict=True):
                own = of_ranks[world.rank]
                totals.add(torch.tensor(loss[world.rank]), _batch([0] * own, sum(of_ranks)))
                if asks_early:
                    _ = totals.loss_sum
            return totals.to_dict()

        return run_ranks(2, body)

    early, late = run(True), run(False)
    assert early[0] == early[1] == late[0] == late[1]
    assert early[0]["examples"] == 17 and early[0]["batches"] == 4
    total, chain = 0.0, b""
    for (first, second), loss in zip(sizes, losses.astype(float).tolist(), strict=True):
        of_batch = first * loss[0] + second * loss[1]
        total += of_batch
        mean = struct.pack("<f", of_batch / (first + second))
        chain = hashlib.sha256(chain + mean).digest()
    assert early[0]["loss_sum"] == total and early[0]["loss_digest"] == chain.hex()


def test_one_rank_has_the_loss_digest_of_one_process() -> None:
    alone, ranks = Totals(), run_ranks(1, lambda world: Totals(ranks=TrainingRanks(world)))[0]
    for loss in (0.7, 0.6, 0.1):
        for totals in (alone, ranks):
            totals.add(torch.tensor(loss), _batch([1, 0, 1], 3))
    assert alone.to_dict() == ranks.to_dict()


def test_metrics_of_all_ranks_are_those_of_one_that_has_seen_all() -> None:
    random = np.random.default_rng(1)
    print("seed 1")
    logits, labels = random.normal(size=1000), random.integers(0, 2, 1000)
    whole = BinaryMetrics()
    whole.update(logits, labels)

    def body(world: World) -> Any:
        own = BinaryMetrics()
        own.update(logits[world.rank :: world.size], labels[world.rank :: world.size])
        return joined_metrics(own, TrainingRanks(world)).compute()

    assert run_ranks(3, body) == [whole.compute()] * 3


def test_the_slowest_rank_of_each_stage_is_named() -> None:
    def stages(network: float, compute: float, exchange: float) -> Any:
        return {
            "network": {"busy_seconds": network},
            "copy": {"busy_seconds": 0.0},
            "compute": {"busy_seconds": compute, "exchange_seconds": exchange},
        }

    # All are as long in compute: rank 2 computes, the others wait for it.
    of_ranks = [stages(1.0, 9.0, 6.0), stages(4.0, 9.0, 5.0), stages(1.0, 9.0, 0.5)]
    found = find_stragglers(of_ranks)
    assert found["network"] == {"rank": 1, "seconds": 4.0, "median_seconds": 1.0, "ratio": 4.0}
    assert found["compute"]["rank"] == 2 and found["compute"]["ratio"] == 8.5 / 4.0
    assert "copy" not in found
    table = format_ranks({"size": 3, "stragglers": found, "bytes_sent": [2**20, 2**21, 0]})
    assert "compute" in table and "2.12" in table and "2.0 MiB" in table
    tiers = [{"dram_cache": {"hits": number, "engine": "x"}} for number in (1, 2, 3)]
    assert sum_tiers(tiers) == {"dram_cache": {"hits": 6, "engine": "x"}}


def test_a_restart_goes_on_with_its_own_run_alone(tmp_path: Path) -> None:
    """What was begun by another run, or by one that is over, is no reason to go on."""

    def is_restart(options: TrainOptions, num_restarts: int) -> bool:
        def body(world: World) -> bool:
            place = RankEnvironment(
                rank=world.rank, size=2, local_rank=world.rank, num_restarts=num_restarts
            )
            mark = RunMark(tmp_path / str(world.rank), name_of_run(options, place))
            return mark.is_restart(world, place)

        first, second = successes(run_ranks(2, body))
        assert first == second
        return bool(first)

    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    old, new = (TrainOptions(data=[log], store=tmp_path) for log in ("old", "new"))
    place = RankEnvironment(rank=1, size=2, local_rank=1)
    mark = RunMark(tmp_path / "1", name_of_run(old, place))
    assert not is_restart(old, 1)
    mark.set()
    assert is_restart(old, 1) and not is_restart(new, 1)
    again = RankEnvironment(rank=1, size=2, local_rank=1, run_id="another")
    assert name_of_run(old, again) != name_of_run(old, place)
    assert not is_restart(new, 0) and not is_restart(old, 1)  # a first attempt has removed it
    mark.set()
    mark.remove()
    assert not is_restart(old, 1)
    with pytest.raises(hps.StoreError, match="RUN"):  # no run begins that its restart cannot know
        RunMark(tmp_path / "missing", "run").set()


def test_options_become_those_of_a_rank(tmp_path: Path) -> None:
    place = RankEnvironment(rank=3, size=4, local_rank=1, local_size=2)

    def of(changes: dict[str, Any], is_restarted: bool = False) -> Any:
        options = TrainOptions(**{"data": ["log"], "store": tmp_path, **changes})
        return options_of_rank(options, place, is_restarted)

    assert of({"gpu": "1GiB"}).device == of({"gpu": "1GiB", "device": "cuda"}).device == "cuda:1"
    assert of({"gpu": "1GiB", "device": "cpu"}).device == "cpu"
    assert of({"gpu": "1GiB", "device": "cuda:1"}).device == "cuda:1"
    assert of({"threads": 5}).threads == 5 and of({}).threads >= 1
    assert of({"trace": "file"}).trace == "file.rank-3"
    assert not of({}).resume and of({}, is_restarted=True).resume
    again = of({"resume": True, "new_data": True}, is_restarted=True)
    assert again.resume and not again.new_data
    with pytest.raises(
        hps.ConfigError, match="--device cuda:0 under torchrun: rank 1 of a host takes"
    ):
        of({"gpu": "1GiB", "device": "cuda:0"})
    remote = {"store": None, "remote": hps.service.client.options.ClientConfig(addresses=["h:1"])}
    with pytest.raises(hps.ConfigError, match="--server under torchrun"):
        of(remote)
