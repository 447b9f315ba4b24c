"""Rows that most ranks ask for may lie on every rank: that changes what travels, and no bit.

Above it: pytest. Below it: tests/cluster/ranks.py, hps/cluster/exchange/hot_rows.py.
"""

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cluster.exchange.hot_rows import PERIOD_STEPS
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import (
    TABLES,
    Model,
    Task,
    cluster_server,
    run_ranks,
    successes,
    train_ranks,
)

NUM_BATCHES = 2 * PERIOD_STEPS + 8


def num_hot(server: Any) -> dict[str, int]:
    tables = server._exchanges.hot.tables
    return {name: int(table.slots.is_used.sum()) for name, table in tables.items()}


@pytest.mark.parametrize(
    "size, wire, optimizer", [(2, "float32", hps.Adam(lr=0.05)), (3, "int8", hps.Adagrad(lr=0.1))]
)
def test_hot_rows_change_no_bit(tmp_path: Path, size: int, wire: str, optimizer: Any) -> None:
    def task(hot_rows: int) -> Task:
        options = hps.ClusterConfig(hot_rows=hot_rows, row_wire=wire)
        return Task(
            num_batches=NUM_BATCHES, num_keys=40, optimizer=optimizer, options=options, seed=5
        )

    without = train_ranks(task(0), size, 0, tmp_path / "without")
    for depth in (0, 2):
        hot = train_ranks(task(30), size, depth, tmp_path / f"depth-{depth}")
        assert hot.digests == without.digests and hot.losses == without.losses


def train_on(folder: Path, size: int, hot_rows: int, steps: range) -> list[Any]:
    """Goes on at the newest checkpoint and leaves another; digests and hot rows of each rank."""
    task = Task(num_batches=steps.stop, num_keys=40, num_examples=120, seed=5)
    options = hps.ClusterConfig(hot_rows=hot_rows, row_wire="bfloat16", gradient_wire="int8")
    dram = hps.DramCacheConfig(bytes="256KiB")
    config = hps.Config(path=folder, tables=task.tables(), dram=dram, seed=7, threads=1)

    def body(world: LocalWorld) -> Any:
        with hps.ClusterParameterServer(config, world, options) as server:
            model, optimizer = Model(server, size), hps.RowOptimizer(server)
            log = islice(task.batches(world.rank, size), steps.start, None)
            with hps.Pipeline(log, server, 2) as batches:
                for batch in batches:
                    model.loss(batch).backward()
                    optimizer.step()
                    if batch.position["batch"] == NUM_BATCHES // 2:
                        server.checkpoint()
            counts = num_hot(server) if hot_rows else {}
            return {name: server.digest(name) for name in TABLES}, counts

    return successes(run_ranks(size, body))


def test_runs_with_hot_rows_repeat_to_the_same_bits_resumed_or_moved_to_other_ranks(
    tmp_path: Path,
) -> None:
    half = NUM_BATCHES // 2
    assert half > PERIOD_STEPS  # each half chooses its own
    whole = train_on(tmp_path / "whole", 2, 30, range(NUM_BATCHES))
    assert train_on(tmp_path / "again", 2, 30, range(NUM_BATCHES)) == whole
    first = train_on(tmp_path / "half", 2, 30, range(half))
    for name in ("moved", "moved-without"):
        shutil.copytree(tmp_path / "half", tmp_path / name)
    resumed = train_on(tmp_path / "half", 2, 30, range(half, NUM_BATCHES))
    moved = train_on(tmp_path / "moved", 3, 30, range(half, NUM_BATCHES))
    without = train_on(tmp_path / "moved-without", 3, 0, range(half, NUM_BATCHES))
    assert resumed[0][0] == whole[0][0] != first[0][0]
    assert moved[0][0] == without[0][0] != whole[0][0]
    for found in (whole, first, resumed, moved):
        assert all(counts == found[0][1] for _, counts in found)
        assert min(found[0][1].values()) > 2


def test_hot_rows_are_the_same_everywhere_and_follow_every_change(tmp_path: Path) -> None:
    task = Task(
        num_batches=PERIOD_STEPS + 6,
        num_keys=40,
        num_examples=200,
        options=hps.ClusterConfig(hot_rows=30),
    )

    def replicas_are_current(server: Any) -> bool:
        for name in TABLES:
            table = server._exchanges.hot.tables[name]
            places = np.flatnonzero(table.slots.is_used)
            keys = table.slots._keys[places]
            stored = server.pull(name, keys)
            if not np.array_equal(table.rows[torch.from_numpy(places)].numpy(), stored):
                return False
        return True

    def body(world: LocalWorld) -> Any:
        counts = []
        with cluster_server(task, world, tmp_path) as server:
            model, optimizer = Model(server, 3), hps.RowOptimizer(server)
            with hps.Pipeline(task.batches(world.rank, 3), server, 2) as batches:
                for batch in batches:
                    model.loss(batch).backward()
                    optimizer.step()
                    counts.append(num_hot(server))
                    assert replicas_are_current(server)
            keys = np.arange(3, dtype=np.uint64)
            changes = [
                lambda: server.push("ads", keys, np.ones((3, 4), np.float32)),
                lambda: server.assign("ads", keys, np.ones((3, 4), np.float32)),
                lambda: server.erase("ads", keys),
                lambda: server.pull("ads", keys, create=True),
            ]
            for change in changes:
                table = server._exchanges.hot.tables["ads"]
                table.slots.is_used[0] = True
                change()
                assert num_hot(server) == dict.fromkeys(TABLES, 0)
            return counts

    first, *others = successes(run_ranks(3, body))
    assert all(other == first for other in others)
    assert first[PERIOD_STEPS - 2] == dict.fromkeys(TABLES, 0)
    assert all(10 < count <= 30 for count in first[PERIOD_STEPS].values())


def test_rows_that_every_rank_has_do_not_travel_in_the_forward_pass(tmp_path: Path) -> None:
    def sent(hot_rows: int) -> list[int]:
        task = Task(
            num_batches=PERIOD_STEPS + 3,
            num_keys=40,
            num_examples=200,
            options=hps.ClusterConfig(hot_rows=hot_rows),
        )

        def body(world: LocalWorld) -> Any:
            spent = []
            with cluster_server(task, world, tmp_path / str(hot_rows)) as server:
                model, optimizer = Model(server, 2), hps.RowOptimizer(server)
                with hps.Pipeline(task.batches(world.rank, 2), server, 0) as batches:
                    for batch in batches:
                        before = world.rows.bytes_sent
                        loss = model.loss(batch)
                        spent.append(world.rows.bytes_sent - before)
                        loss.backward()
                        optimizer.step()
            return spent

        return [sum(of_batch) for of_batch in zip(*successes(run_ranks(2, body)), strict=True)]

    hot, without = sent(4000), sent(0)
    assert hot[:PERIOD_STEPS] == without[:PERIOD_STEPS]
    assert sum(hot[PERIOD_STEPS:]) < 0.05 * sum(without[PERIOD_STEPS:])
