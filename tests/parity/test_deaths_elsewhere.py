"""Rows die over servers and over ranks as in one process, to the bit, also after kills.

Above it: pytest. Below it: the batches of test_counts.py, the rules of test_deaths.py; real servers
and logical ranks in this process.
"""

from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cluster.folder.offline import reshard
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, successes
from tests.parity.test_counts import ALL, BATCHES
from tests.parity.test_deaths import PERIODS, run, tables
from tests.service.client.client_lab import service


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = run(tmp_path_factory.mktemp("store"))
    assert found["deaths"] > 500
    return found


def train(server: Any, depth: int, rank: int = 0, size: int = 1) -> None:
    """As `run` of test_deaths.py, on one of so many ranks, which share the batches."""
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    for period in range(PERIODS):
        with hps.Pipeline(BATCHES[period::PERIODS][rank::size], server, depth=depth) as pipeline:
            for batch in pipeline:
                embeddings(batch).square().mean().backward()
                optimizer.step()
        server.advance_period()


def counts(server: Any) -> dict[str, Any]:
    return {name: part.tolist() for name, part in server.statistics("ads", ALL).items()}


@pytest.mark.parametrize(
    ("count", "depth", "is_killed"), [(1, 0, False), (3, 2, False), (3, 0, True)]
)
def test_rows_die_over_servers(
    expected: dict[str, Any], tmp_path: Path, count: int, depth: int, is_killed: bool
) -> None:
    with service(tmp_path, count, tables()) as servers:
        with servers.client() as client:
            train(client, depth)
        if is_killed:  # their logs alone have what was pushed, and the periods
            servers.kill()
    with service(tmp_path, count, tables()) as servers, servers.client() as client:
        assert client.period == PERIODS
        assert client.num_rows("ads") == expected["rows"][-1]
        assert [client.digest("ads"), client.digest("users")] == expected["digests"][-1]
        assert counts(client) == expected["counts"]


@pytest.mark.parametrize("size", [1, 2, 4])  # that have as many batches each
def test_every_rank_sees_the_same_deaths(tmp_path: Path, size: int) -> None:
    config = hps.Config(path=tmp_path / "store", tables=tables())

    def body(world: LocalWorld) -> tuple[Any, ...]:
        with hps.ClusterParameterServer(config, world) as server:
            train(server, 0, world.rank, size)
            assert server.period == PERIODS
            return server.num_rows("ads"), counts(server)

    results = successes(run_ranks(size, body))
    assert all(one == results[0] for one in results)
    with hps.ParameterServer(hps.Config(path=tmp_path / "one", tables=tables())) as server:
        # The gradients of several ranks are another sum; the counts are not.
        embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
        for period in range(PERIODS):
            batches = BATCHES[period::PERIODS]
            for first in range(0, len(batches), size):
                for batch in batches[first : first + size]:
                    embeddings(batch).square().mean().backward()
                optimizer.step()
            server.advance_period()
        assert results[0] == (server.num_rows("ads"), counts(server))
    with hps.open(config.path) as reader:  # of all parts
        assert (reader.num_rows("ads"), counts(reader)) == results[0]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 2)])
def test_rows_die_after_a_division_among_other_ranks(
    tmp_path: Path, before: int, after: int
) -> None:
    """The one who divides takes rows, periods of death, the period and the rules along."""
    path = tmp_path / "store"

    def first(world: LocalWorld) -> None:
        with hps.ClusterParameterServer(hps.Config(path=path, tables=tables()), world) as server:
            train(server, 0, world.rank, before)

    def later(world: LocalWorld) -> Any:
        config = hps.Config(path=tmp_path / "divided", tables=tables())
        with hps.ClusterParameterServer(config, world) as server:
            seen = [(server.period, server.num_rows("ads"), counts(server))]
            for _ in range(2):
                server.advance_period()
                seen.append((server.period, server.num_rows("ads"), counts(server)))
            return seen

    successes(run_ranks(before, first))
    reshard(path, tmp_path / "divided", after)
    clone_of = tmp_path / "whole"
    reshard(path, clone_of, None)
    (found, *others) = successes(run_ranks(after, later))
    assert all(one == found for one in others)
    assert found[0][1] > found[1][1] > found[2][1]
    with hps.ParameterServer(hps.Config(path=clone_of, tables=tables())) as server:
        for place, one in enumerate(found):
            if place:
                server.advance_period()
            assert (server.period, server.num_rows("ads"), counts(server)) == one
