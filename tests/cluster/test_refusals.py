"""A step is taken by all ranks or by none: gradients that are not finite, scalers, learning rates.

Above it: pytest. Below it: ranks.py.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cluster.exchange.sums import LARGEST_SUM
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import Model, Task, cluster_server, rows_of, run_ranks, successes
from tests.front import one_feature, one_feature_batch


def bags(keys: dict[str, list[int]], number: int = 0) -> hps.Batch:
    """A batch of two tables with one key an example."""
    num_examples = len(keys["ads"])
    return hps.Batch(
        {name: one_feature(of_table) for name, of_table in keys.items()},
        torch.full((num_examples, 1), float(num_examples)),
        torch.ones(num_examples),
        {"batch": number},
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("is_pinned", [True, False])
@pytest.mark.parametrize("bad_rank", [0, 2])
def test_a_bad_gradient_of_one_rank_changes_no_row_of_any(
    tmp_path: Path, bad: float, is_pinned: bool, bad_rank: int
) -> None:
    task = Task(num_batches=3)

    def body(world: LocalWorld) -> Any:
        log = [bags({"users": [4, 5, 6], "ads": [7, 8, 9]}) for _ in range(2)]
        with cluster_server(task, world, tmp_path) as server:
            users, ads = (hps.SparseEmbedding(server, name) for name in ("users", "ads"))
            optimizer = hps.RowOptimizer(server)

            def step(batch: hps.Batch, scale: float) -> None:
                loss = users(batch).sum() + (ads(batch)[1] * scale).sum()
                loss.backward()
                optimizer.step()

            batches = hps.Pipeline(log, server, 1) if is_pinned else None
            with batches if batches is not None else nullcontext():
                step(next(batches) if batches is not None else log[0], 1.0)
                before = rows_of(server)
                with pytest.raises(hps.NonFiniteError) as refusal:
                    batch = next(batches) if batches is not None else log[1]
                    step(batch, bad if world.rank == bad_rank else 1.0)
                assert f"rank {bad_rank}, table 'ads', key 8" in str(refusal.value)
                after = rows_of(server)
                same = all(
                    before[name].keys() == after[name].keys()
                    and all((row == after[name][key]).all() for key, row in before[name].items())
                    for name in before
                )
                # Pending until it is dropped; then training goes on.
                assert not server.pending_gradients.is_empty
                optimizer.zero_grad()
                optimizer.step()
            return same, sum(len(rows) for rows in before.values())

    results = successes(run_ranks(3, body))
    assert [same for same, _ in results] == [True] * 3
    assert sum(count for _, count in results) == 6


def test_a_refused_step_may_end_the_pipeline_and_another_one_goes_on(tmp_path: Path) -> None:
    task = Task(num_batches=30)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            model, optimizer = Model(server, 2), hps.RowOptimizer(server)
            with (
                pytest.raises(hps.NonFiniteError),
                hps.Pipeline(task.batches(world.rank, 2), server, 4) as batches,
            ):
                for number, batch in enumerate(batches):
                    bad = number == 5 and world.rank == 1
                    (model.loss(batch) * (float("nan") if bad else 1.0)).backward()
                    optimizer.step()
            optimizer.zero_grad()
            with hps.Pipeline(task.batches(world.rank, 2), server, 4) as batches:
                for batch in batches:
                    model.loss(batch).backward()
                    optimizer.step()
            return server.num_rows("ads")

    first, second = successes(run_ranks(2, body))
    assert first == second > 50


@pytest.mark.parametrize("value, is_refused", [(0.99 * LARGEST_SUM, False), (3.4e38, True)])
def test_sums_that_could_add_up_to_an_infinity_are_refused(
    tmp_path: Path, value: float, is_refused: bool
) -> None:
    task = Task(optimizer=hps.SGD(lr=2.0**-126))
    keys = np.array([7], np.uint64)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            try:
                server.push("ads", keys, np.full((1, 4), value, np.float32))
            except hps.NonFiniteError:
                return None
            return server.pull("ads", keys)[0, 0]

    results = successes(run_ranks(3, body))
    if is_refused:
        assert results == [None] * 3
    else:
        assert results == pytest.approx([-value * 2.0**-126] * 3, rel=0.05)


def test_a_scaler_skips_a_step_on_all_ranks_and_keeps_one_scale(tmp_path: Path) -> None:
    task = Task(num_batches=6)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            model, optimizer = Model(server, 3), hps.RowOptimizer(server)
            scaler = hps.ClusterGradScaler(server, "cpu", init_scale=1024.0, growth_interval=3)
            scales, changed = [], []
            with hps.Pipeline(task.batches(world.rank, 3), server, 2) as batches:
                for number, batch in enumerate(batches):
                    before = server.digest("ads")
                    bad = number == 3 and world.rank == 1
                    loss = model.loss(batch) * (1e38 if bad else 1.0)
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    scales.append(scaler.get_scale())
                    changed.append(server.digest("ads") != before)
            return scales, changed

    results = successes(run_ranks(3, body))
    assert results[0] == results[1] == results[2]
    scales, changed = results[0]
    assert scales == [1024.0, 1024.0, 2048.0, 1024.0, 1024.0, 1024.0]
    assert changed == [True, True, True, False, True, True]


def test_learning_rates_that_differ_are_refused_on_every_rank(tmp_path: Path) -> None:
    task = Task()

    def body(world: LocalWorld) -> Any:
        log = [one_feature_batch([1, 2, 3])]
        with cluster_server(task, world, tmp_path) as server:
            embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
            optimizer.param_groups[0]["lr"] = 0.5 + world.rank  # of ads
            embedding(log[0]).sum().backward()
            with pytest.raises(hps.ConfigError, match=r"'ads'.*differ: \[0.5, 1.5\]"):
                optimizer.step()
            return server.num_rows("ads")

    assert successes(run_ranks(2, body)) == [0, 0]


def test_a_rank_without_a_gradient_takes_part_in_the_step(tmp_path: Path) -> None:
    task = Task(optimizer=hps.SGD(lr=1.0))

    def body(world: LocalWorld) -> Any:
        log = [one_feature_batch([1, 2, 3], number) for number in range(4)]
        with cluster_server(task, world, tmp_path) as server:
            embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
            keys = torch.arange(1, 4)
            before = server.pull("ads", keys).clone()
            with hps.Pipeline(log, server, 2) as batches:
                for number, batch in enumerate(batches):
                    output = embedding(batch).sum()
                    if number != 2 or world.rank == 0:
                        output.backward()
                    optimizer.step()
            return (before - server.pull("ads", keys)).tolist()

    # Three steps of both ranks with a mean of 1, one of 1 and nothing: a mean of a half.
    for steps in successes(run_ranks(2, body)):
        assert np.allclose(steps, 3.5, atol=1e-6)
