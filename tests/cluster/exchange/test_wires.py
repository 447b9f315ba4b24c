"""What travels between ranks: how many bytes, in which format, and what a format loses.

Above it: pytest. Below it: tests/cluster/ranks.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.exchange.residuals import Residuals
from hps.cluster.world.local_world import LocalWorld
from hps.common.sharding import ShardMap
from tests.cluster.ranks import (
    TABLES,
    Model,
    Task,
    cluster_server,
    largest_difference,
    run_ranks,
    successes,
    train,
    train_ranks,
)
from tests.lab import Lab


@pytest.mark.parametrize("size", [2, 3])
def test_no_rank_sends_much_more_than_distinct_keys_rows_and_gradients(
    tmp_path: Path, size: int
) -> None:
    task = Task(num_batches=6, num_examples=4000, num_keys=3000, scale=30.0)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            train(server, task, 2, world.rank, size)
            stats = server.stats()["cluster"]
            return sum(stats[name]["bytes_sent"] for name in ("keys", "rows", "control"))

    sent = successes(run_ranks(size, body))
    # A key of another rank costs its 8 bytes and its gradient; one of this rank that another asks
    # for costs its row.
    least = [0] * size
    for rank in range(size):
        for batch in task.batches(rank, size):
            for name in TABLES:
                keys = np.unique(batch.features[name].keys_L.numpy().view(np.uint64))
                for owner, places in enumerate(ShardMap(size).split(keys)):
                    if owner != rank:
                        least[rank] += len(places) * (8 + 4 * 4)
                        least[owner] += len(places) * 4 * 4
    assert min(least) > 100_000
    for rank in range(size):
        assert least[rank] <= sent[rank] < 1.02 * least[rank]


@pytest.mark.parametrize("wire, tolerance", [("float16", 2e-3), ("bfloat16", 1e-2), ("int8", 2e-2)])
def test_narrow_formats_train_to_nearly_the_same_table(
    tmp_path: Path, wire: str, tolerance: float
) -> None:
    exact = train_ranks(Task(num_batches=12), 2, 0, tmp_path / "exact")
    options = hps.ClusterConfig(row_wire=wire, gradient_wire=wire)
    task = Task(num_batches=12, options=options)
    first = train_ranks(task, 2, 0, tmp_path / "first")
    again = train_ranks(task, 2, 4, tmp_path / "again")
    assert first.digests == again.digests and first.losses == again.losses
    assert 0 < largest_difference(first, exact) < tolerance


def test_a_narrow_format_sends_fewer_bytes(tmp_path: Path) -> None:
    def sent(wire: str) -> int:
        options = hps.ClusterConfig(row_wire=wire, gradient_wire=wire)
        task = Task(num_batches=3, num_examples=600, num_keys=2000, options=options)

        def body(world: LocalWorld) -> Any:
            with cluster_server(task, world, tmp_path / wire) as server:
                train(server, task, 0, world.rank, 2)
                return server.stats()["cluster"]["rows"]["bytes_sent"]

        return sum(successes(run_ranks(2, body)))

    whole = sent("float32")
    assert sent("bfloat16") == whole // 2
    assert sent("int8") == whole // 2  # of rows of 4: a scale and 4 codes


def test_what_a_format_rounds_away_comes_with_the_next_gradient(tmp_path: Path) -> None:
    # A gradient of 1 and others of 1/1000: in int8 the small ones alone would round to nothing.
    keys = np.array([7], np.uint64)
    grads = np.array([[1.0, 0.001, 0.001, 0.001]], np.float32)

    def moved(folder: Path, num_slots: int) -> Any:
        task = Task(optimizer=hps.SGD(lr=1.0), options=hps.ClusterConfig(gradient_wire="int8"))

        def body(world: LocalWorld) -> Any:
            with cluster_server(task, world, folder) as server:
                if not num_slots:
                    server._exchanges.gradients.sums.residuals.clear()  # no feedback
                before = server.pull("ads", keys).copy()
                for _ in range(200):
                    server.push("ads", keys, grads)
                return before - server.pull("ads", keys)

        return successes(run_ranks(2, body))[0][0]

    assert np.allclose(moved(tmp_path / "with", 1), 200 * grads, rtol=0.05)
    assert (moved(tmp_path / "without", 0)[1:] == 0).all()  # premise


def test_a_resumed_training_has_the_bits_of_one_that_went_on(tmp_path: Path) -> None:
    options = hps.ClusterConfig(row_wire="float16", gradient_wire="int8")
    task = Task(num_batches=16, options=options)

    def body(world: LocalWorld) -> Any:
        digests = []
        for folder, stops in (("through", [16]), ("in-two", [8, 16])):
            batches = list(task.batches(world.rank, 2))
            own = Lab("native", tmp_path / folder).config(*task.tables(), scale=4.0)
            first = 0
            for stop in stops:
                with hps.ClusterParameterServer(own, world, options) as server:
                    model, optimizer = Model(server, 2), hps.RowOptimizer(server)
                    for number in range(first, stop):
                        model.loss(batches[number]).backward()
                        optimizer.step()
                        if number == 7:
                            server.checkpoint()
                    first = stop
                    digest = server.digest("ads")
            digests.append(digest)
        return digests

    (through, in_two), other = successes(run_ranks(2, body))
    assert through == in_two and other == [through, in_two]


def test_options_that_differ_are_refused_on_every_rank(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> Any:
        task = Task(options=hps.ClusterConfig(hot_rows=10 * world.rank))
        with (
            pytest.raises(hps.ConfigError, match=r"hot_rows is \d+ on rank [01] and"),
            cluster_server(task, world, tmp_path),
        ):
            pass
        return world.control.gather(1)

    assert successes(run_ranks(2, body)) == [[1, 1], [1, 1]]


def test_gradients_too_large_for_their_format_are_refused(tmp_path: Path) -> None:
    task = Task(options=hps.ClusterConfig(gradient_wire="float16"))
    keys = np.array([7], np.uint64)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            with pytest.raises(hps.NonFiniteError, match="rank 1, table 'ads', key 7"):
                value = 1e6 if world.rank == 1 else 1.0
                server.push("ads", keys, np.full((1, 4), value, np.float32))
            return server.num_rows("ads")

    assert successes(run_ranks(2, body)) == [0, 0]


def test_residuals_are_bounded_and_belong_to_their_key() -> None:
    generator = np.random.default_rng(3)
    residuals = Residuals(3, num_slots=64)
    kept: dict[int, Any] = {}
    for _ in range(50):
        keys = np.unique(generator.integers(0, 500, 20).astype(np.uint64))
        rows = generator.random((len(keys), 3), np.float32)
        residuals.keep(keys, rows)
        kept.update(zip(keys.tolist(), rows, strict=True))
    found = residuals.of(np.arange(500, dtype=np.uint64))
    is_kept = found.any(axis=1)
    assert 50 < is_kept.sum() <= 64
    assert all((found[key] == kept[key]).all() for key in np.flatnonzero(is_kept))
    residuals.clear()
    assert not residuals.of(np.arange(500, dtype=np.uint64)).any()


@pytest.mark.parametrize("field", ["row_wire", "gradient_wire"])
def test_an_unknown_format_is_refused_by_its_flag(field: str) -> None:
    flag = f"--{field.replace('_', '-')}"
    with pytest.raises(hps.ConfigError, match=rf"{field} \({flag}\)='int4' must be one of"):
        hps.ClusterConfig(**{field: "int4"})
