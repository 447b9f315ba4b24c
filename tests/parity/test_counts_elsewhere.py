"""Rows count the same, to the bit, over servers and over ranks as in one process.

Above it: pytest. Below it: the batches of test_counts.py; real servers and logical ranks in this
process.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, successes
from tests.parity.test_counts import ALL, BATCHES, DIM, NUM_BATCHES, run, tables
from tests.service.client.client_lab import service


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("store"))


def train(server: Any, depth: int, rank: int = 0, size: int = 1) -> None:
    """As `run` of test_counts.py, on one of so many ranks, which share the batches."""
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    for part in (BATCHES[: NUM_BATCHES // 2], BATCHES[NUM_BATCHES // 2 :]):
        server.advance_period()
        with hps.Pipeline(part[rank::size], server, depth=depth) as pipeline:
            for batch in pipeline:
                output = embeddings(batch)
                (output.square().mean() + output.mean()).backward()
                optimizer.step()


@pytest.mark.parametrize(("count", "depth"), [(1, 0), (1, 2), (3, 0), (3, 2)])
def test_servers_count_what_one_process_does(
    expected: dict[str, Any], tmp_path: Path, count: int, depth: int
) -> None:
    with service(tmp_path, count, tables()) as servers, servers.client() as client:
        train(client, depth)
        found = {name: part.tolist() for name, part in client.statistics("ads", ALL).items()}
        assert found == expected["counts"]
        assert [client.digest("ads"), client.digest("users")] == expected["digests"]
        assert client.period == 2


def test_servers_that_were_killed_count_what_one_process_does(
    expected: dict[str, Any], tmp_path: Path
) -> None:
    """Their logs alone have what was pushed."""
    with service(tmp_path, 3, tables()) as servers:
        with servers.client() as client:
            train(client, 0)
        servers.kill()
    with service(tmp_path, 3, tables()) as servers, servers.client() as client:
        assert sum(one.stats()["service"]["records_replayed"] for one in servers.shards) > 50
        found = {name: part.tolist() for name, part in client.statistics("ads", ALL).items()}
        assert found == expected["counts"]
        assert client.digest("ads") == expected["digests"][0]
        assert client.period == 2


@pytest.mark.parametrize(("size", "depth"), [(1, 0), (2, 0), (3, 0), (3, 2)])
def test_ranks_count_what_one_process_does(tmp_path: Path, size: int, depth: int) -> None:
    """One whose updates are of as many examples: shows of a sample are rounded at each."""
    expected = run(tmp_path / "one", accumulate=size)
    config = hps.Config(path=tmp_path / "store", tables=tables())

    def body(world: LocalWorld) -> dict[str, Any]:
        with hps.ClusterParameterServer(config, world) as server:
            train(server, depth, world.rank, size)
            assert server.period == 2
            found = server.statistics("ads", ALL[world.rank :])
            return {name: part.tolist() for name, part in found.items()}

    for rank, found in enumerate(successes(run_ranks(size, body))):
        for name, part in found.items():
            assert part == expected["counts"][name][rank:]
    with hps.open(config.path) as reader:  # of all parts
        assert reader.period == 2
        counted = reader.statistics("ads", ALL)
        assert {name: part.tolist() for name, part in counted.items()} == expected["counts"]


def unsampled() -> list[hps.TableConfig]:
    ads, users = tables()
    return [replace(ads, negative_rate=1.0), users]


@pytest.mark.parametrize("where", ["ranks", "servers"])
def test_a_batch_is_added_to_a_count_once(tmp_path: Path, where: str) -> None:
    """At 2^24 a float32 does not grow by one: an addition for each rank or occurrence shows."""
    keys, ones = np.full(3, 7, np.uint64), np.ones((3, DIM), np.float32)
    start = {
        "show": np.full(1, 2.0**24, np.float32),
        "click": np.zeros(1, np.float32),
        "last_period": np.zeros(1, np.int64),
    }

    def one_push(server: Any, keys: Any, labels: Any) -> list[float]:
        server.assign("ads", keys[:1], ones[:1], statistics=start)
        server.push("ads", keys, ones[: len(keys)], labels=labels)
        found = server.statistics("ads", np.array([7], np.uint64))
        return [found["show"].item(), found["click"].item()]

    clicks = np.array([1, 0, 1], np.float32)
    with hps.ParameterServer(hps.Config(path=tmp_path / "one", tables=unsampled())) as server:
        expected = one_push(server, keys, clicks)
    assert expected == [2.0**24 + 4, 2.0]
    if where == "servers":
        with service(tmp_path, 2, unsampled()) as servers, servers.client() as client:
            assert one_push(client, keys, clicks) == expected
        return

    def body(world: LocalWorld) -> list[float]:
        config = hps.Config(path=tmp_path / "ranks", tables=unsampled())
        with hps.ClusterParameterServer(config, world) as server:
            own = slice(world.rank, world.rank + 1)
            return one_push(server, keys[own], clicks[own])

    assert successes(run_ranks(3, body)) == [expected] * 3
