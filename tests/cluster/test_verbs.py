"""The verbs over all ranks: each rank asks with its own keys and gets what one store would give.

Above it: pytest. Below it: ranks.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cluster.world.local_world import LocalWorld
from hps.contracts.updates import RowUpdate
from tests.cluster.ranks import (
    TABLES,
    Task,
    cluster_server,
    run_ranks,
    successes,
    train,
    train_ranks,
)
from tests.lab import Lab, random_keys


@pytest.mark.parametrize("size", [1, 2, 3])
def test_random_calls_give_what_one_store_gives(tmp_path: Path, size: int) -> None:
    seed = 11
    print(f"seed {seed}")
    # Gradients of eighths, and as many ranks as divide them: every order of sums rounds alike.
    task = Task(optimizer=hps.SGD(lr=0.5), scale=2.0)

    def calls(rank: int) -> Any:
        """A rank's calls: verb, keys, values."""
        generator = np.random.default_rng([seed, rank])
        order = np.random.default_rng(seed).choice(
            ["push", "pull", "create", "assign", "erase", "contains"], 60
        )
        for verb in order:
            keys = random_keys(generator, int(generator.integers(0, 30)), 60)
            values = size * generator.integers(-8, 8, (len(keys), 4)).astype(np.float32)
            yield verb, keys, values

    def call(server: Any, verb: str, keys: Any, values: Any) -> Any:
        if verb == "push":
            return server.push("ads", keys, values)
        if verb == "assign":
            return server.assign("ads", keys, values)
        if verb in ("pull", "create"):
            return server.pull("ads", keys, create=verb == "create").copy()
        return getattr(server, verb)("ads", keys)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path / "ranks") as server:
            answers = [call(server, *one) for one in calls(world.rank)]
            return answers, server.digest("ads"), server.num_rows("ads")

    results = successes(run_ranks(size, body))
    (tmp_path / "alone").mkdir()
    with Lab("native", tmp_path / "alone").server(*task.tables(), scale=task.scale) as server:
        for number, together in enumerate(zip(*map(calls, range(size)), strict=True)):
            verb = together[0][0]
            if verb == "push":  # one step of all gradients, as the ranks take it
                keys = np.concatenate([keys for _, keys, _ in together])
                values = np.concatenate([values for *_, values in together]) / size
                expected = [call(server, verb, keys, values.astype(np.float32))] * size
            elif verb == "erase":
                found = [server.contains("ads", keys) for _, keys, _ in together]
                server.erase("ads", np.concatenate([keys for _, keys, _ in together]))
                expected = found
            else:
                expected = [call(server, *one) for one in together]
            for rank in range(size):
                answer = results[rank][0][number]
                assert np.array_equal(answer, expected[rank]), (number, verb, rank)
        assert server.num_rows("ads") > 10
        for _, digest, num_rows in results:
            assert (digest, num_rows) == (server.digest("ads"), server.num_rows("ads"))


def test_results_are_of_the_kind_of_the_keys(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> Any:
        with cluster_server(Task(), world, tmp_path) as server:
            keys = torch.arange(5)
            out = torch.empty(5, 4)
            assert server.pull("ads", keys, out=out) is out
            assert torch.equal(server.pull("ads", keys), out)
            assert np.array_equal(server.pull("ads", keys.numpy()), out.numpy())
            assert server.contains("ads", keys).dtype == torch.bool
            return server.contains("ads", keys.numpy()).any()

    assert successes(run_ranks(2, body)) == [False, False]


def test_keys_of_a_batch_in_flight_are_not_erased(tmp_path: Path) -> None:
    task = Task(num_batches=4)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            server.pull("ads", torch.arange(1000, 1050), create=True)
            with hps.Pipeline(task.batches(world.rank, 2), server, 0) as batches:
                batch = next(batches)
                keys = batch.features["ads"].keys_L if world.rank == 0 else torch.empty(0).long()
                with pytest.raises(hps.ConfigError, match="pinned by a batch in flight"):
                    server.erase("ads", keys)
                batch = next(batches)  # the ranks are still in step
            erased = server.erase("ads", torch.arange(1000 + 25 * world.rank, 1050))
            return int(erased.sum()), server.num_rows("ads")

    # Every rank hears of what was there before the call, whoever asks for it besides.
    assert successes(run_ranks(2, body)) == [(50, 0), (25, 0)]


@pytest.mark.parametrize("verb", ["pull", "push", "contains"])
def test_wrong_arguments_are_refused_before_anything_is_sent(tmp_path: Path, verb: str) -> None:
    def body(world: LocalWorld) -> Any:
        with cluster_server(Task(), world, tmp_path) as server:
            arguments = [np.zeros((2, 3), np.float32)] if verb == "push" else []
            with pytest.raises(hps.ConfigError):
                getattr(server, verb)("adds", np.zeros(2, np.uint64), *arguments)
            with pytest.raises(hps.ConfigError):
                getattr(server, verb)("ads", np.zeros(2, np.float32), *arguments)
            return server.num_rows("ads")  # the ranks are still in step

    assert successes(run_ranks(2, body)) == [0, 0]


def test_evaluation_reads_rows_that_no_rank_has_stored(tmp_path: Path) -> None:
    task = Task(num_batches=5)

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, tmp_path) as server:
            embedding = hps.SparseEmbedding(server, "ads").eval()
            sums = [float(embedding(batch).sum()) for batch in task.batches(world.rank, 2)]
            return sum(sums), server.num_rows("ads")

    (first, zero), (second, _) = successes(run_ranks(2, body))
    assert zero == 0
    (tmp_path / "alone").mkdir()
    with Lab("native", tmp_path / "alone").server(*task.tables(), scale=task.scale) as server:
        embedding = hps.SparseEmbedding(server, "ads").eval()
        alone = sum(float(embedding(batch).sum()) for batch in task.batches())
    assert first + second == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("hot_rows", [0, 8])
def test_the_tables_of_a_rank_may_stand_in_any_order(tmp_path: Path, hot_rows: int) -> None:
    task = Task(num_batches=40, options=hps.ClusterConfig(hot_rows=hot_rows))

    def body(world: LocalWorld) -> Any:
        own = tmp_path / f"{hot_rows}-{world.rank}"
        own.mkdir()
        tables = task.tables() if world.rank else task.tables()[::-1]
        with (
            Lab(task.kind, own).server(*tables, scale=task.scale) as local,
            hps.ClusterParameterServer.over(local, world, task.options) as server,
        ):
            train(server, task, 2, world.rank, 2)
            return {name: server.digest(name) for name in TABLES}

    same_order = train_ranks(task, 2, 2, tmp_path / "same")
    assert successes(run_ranks(2, body)) == [same_order.digests] * 2


def test_a_state_that_only_some_ranks_give_is_refused_on_all(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> Any:
        with cluster_server(Task(), world, tmp_path) as server:
            keys, ones = np.array([1, 2], np.uint64), np.ones((2, 4), np.float32)
            with pytest.raises(hps.ConfigError, match=r"state on rank\(s\) \[1\]"):
                server.assign("ads", keys, ones, ones if world.rank else None)
            server.assign("ads", keys, ones, ones)  # the ranks are in step
            return server.num_rows("ads")

    assert successes(run_ranks(2, body)) == [2, 2]


def test_a_row_of_one_rank_that_no_optimizer_makes_is_refused_on_all(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> Any:
        with cluster_server(Task(), world, tmp_path) as server:
            keys = np.arange(8, dtype=np.uint64) + 8 * world.rank
            rows = np.ones((8, 4), np.float32)
            server.assign("ads", keys, rows)
            before = server.digest("ads")
            rows[3, 2] = np.nan if world.rank else 2.0
            with pytest.raises(hps.NonFiniteError, match="key 11: weight of column 2 is nan"):
                server.assign("ads", keys, rows)
            return server.digest("ads") == before

    assert successes(run_ranks(2, body)) == [True, True]


@pytest.mark.parametrize("verb", ["apply", "push"])
@pytest.mark.parametrize("kind", ["native", "gpu"])
def test_a_step_that_overflows_at_one_owner_changes_no_rank(
    tmp_path: Path, kind: str, verb: str
) -> None:
    """Each rank's sum is fine, also squared; what they come to at the owner is not."""

    def body(world: LocalWorld) -> Any:
        with cluster_server(Task(kind=kind), world, tmp_path) as server:
            keys = np.arange(40, dtype=np.uint64)
            ones = np.ones((40, 4), np.float32)
            table = next(name for name, one in server.tables.items() if one.optimizer.kind != "sgd")

            def step(grads: Any) -> None:
                if verb == "push":
                    server.push(table, keys, grads)
                else:
                    server.apply([RowUpdate(table, keys, grads)])

            step(ones)
            before = server.digest(table)
            bad = ones.copy()
            bad[11, 2] = 2e19 if world.rank == 0 else 1.9e19
            with pytest.raises(hps.NonFiniteError, match="key 11"):
                step(bad)
            is_whole = server.digest(table) == before
            step(ones)
            return is_whole and server.digest(table) != before

    assert successes(run_ranks(2, body)) == [True, True]


@pytest.mark.parametrize("is_opened", [True, False])
def test_loops_over_the_tables_are_in_step_whatever_the_order_of_a_ranks_config(
    tmp_path: Path, is_opened: bool
) -> None:
    task = Task(num_batches=6)

    @contextmanager
    def opened(world: LocalWorld, tables: list[Any]) -> Iterator[Any]:
        config = hps.Config(path=tmp_path / "cluster", tables=tables, threads=1)
        if is_opened:
            with hps.ClusterParameterServer(config, world) as server:
                yield server
            return
        own = replace(config, path=tmp_path / str(world.rank))
        with hps.ParameterServer(own) as local:
            yield hps.ClusterParameterServer.over(local, world)

    def body(world: LocalWorld) -> Any:
        tables = task.tables()[:: 1 - 2 * world.rank]
        with opened(world, tables) as server:
            assert list(server.local.tables) == [table.name for table in tables]
            for number, name in enumerate(server.tables):
                keys = np.arange(10 * (number + 1), dtype=np.uint64)
                server.pull(name, keys, create=True)
            train(server, task, 2, world.rank, 2)
            groups = [group["table"] for group in hps.RowOptimizer(server).param_groups]
            return groups, {name: server.num_rows(name) for name in server.tables}

    first, second = successes(run_ranks(2, body))
    assert first == second and first[0] == sorted(TABLES) == list(first[1])


def test_ranks_of_other_tables_are_refused_at_the_start(tmp_path: Path) -> None:
    task = Task()

    def body(world: LocalWorld) -> Any:
        tables = task.tables()
        if world.rank == 1:
            tables[0] = replace(tables[0], dim=8)
        config = hps.Config(path=tmp_path / str(world.rank), tables=tables, threads=1)
        with (
            hps.ParameterServer(config) as local,
            pytest.raises(hps.ConfigError, match=r"tables\.users\.dim: it is 4 on rank 0 and 8 on"),
        ):
            hps.ClusterParameterServer.over(local, world)

    successes(run_ranks(2, body))


def test_a_server_without_a_folder_of_all_ranks_says_that_it_has_no_checkpoints(
    tmp_path: Path,
) -> None:
    config = hps.Config(path=tmp_path, tables=Task().tables(), threads=1)

    def body(world: LocalWorld) -> None:
        with hps.ParameterServer(config) as local:
            server = hps.ClusterParameterServer.over(local, world)
            assert not server.is_changed
            assert server.checkpoints() == [] and server.checkpoint_state() == (None, None)
            for verb in (server.checkpoint, server.restore):
                with pytest.raises(hps.ConfigError, match="over, without a folder of all ranks"):
                    verb()

    successes(run_ranks(1, body))


@pytest.mark.parametrize("size", [1, 2])
def test_a_server_has_ranks_where_there_are_several(tmp_path: Path, size: int) -> None:
    def body(world: LocalWorld) -> list[bool]:
        with cluster_server(Task(), world, tmp_path) as server:
            if server.ranks is None:
                return [server.local.ranks is None]
            return [server.ranks.agree(flag) for flag in (world.rank == 1, False)]

    assert successes(run_ranks(size, body)) == ([[True]] if size == 1 else [[True, False]] * 2)
