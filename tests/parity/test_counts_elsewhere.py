"""Rows count the same, to the bit, over servers as in one process.

Above it: pytest. Below it: the batches of test_counts.py; real servers in this process.
"""

from pathlib import Path
from typing import Any

import pytest

import hps
from tests.parity.test_counts import ALL, BATCHES, NUM_BATCHES, run, tables
from tests.service.client.client_lab import service


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(tmp_path_factory.mktemp("store"))


def train(server: Any, depth: int) -> None:
    """As `run` of test_counts.py."""
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    for part in (BATCHES[: NUM_BATCHES // 2], BATCHES[NUM_BATCHES // 2 :]):
        server.advance_period()
        with hps.Pipeline(part, server, depth=depth) as pipeline:
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
        for server, shard in zip(servers.servers, servers.shards, strict=True):
            server.stop()
            shard.close(checkpoint=False)
    with service(tmp_path, 3, tables()) as servers, servers.client() as client:
        assert sum(one.stats()["service"]["records_replayed"] for one in servers.shards) > 50
        found = {name: part.tolist() for name, part in client.statistics("ads", ALL).items()}
        assert found == expected["counts"]
        assert client.digest("ads") == expected["digests"][0]
        assert client.period == 2
