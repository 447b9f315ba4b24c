"""Rows die early alike, to the bit, whatever the depth, the budget, the tiers and whenever bytes
are cleaned up; over ranks as in one process; over servers by shares, also after kills.

Above it: pytest. Below it: the batches of test_counts.py, the rules of test_deaths.py.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, successes
from tests.parity import test_deaths
from tests.parity.test_counts import ALL
from tests.parity.test_deaths_elsewhere import counts, train
from tests.service.client.client_lab import service

MOST = 90
# By which rows die in many different periods.
EXPIRY = hps.Expiry(unseen=30, min_score=0.1, decay=0.7, nonclick=0.3, click=1.0)


def bounded(expiry: hps.Expiry | None = EXPIRY) -> list[hps.TableConfig]:
    ads, users = unbounded(expiry)
    return [replace(ads, max_rows=MOST), users]


unbounded = test_deaths.tables


@pytest.fixture(scope="module", autouse=True)
def bounds_everywhere() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(test_deaths, "tables", bounded)
        yield


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, bounds_everywhere: Any) -> dict[str, Any]:
    found = test_deaths.run(tmp_path_factory.mktemp("store"))
    assert all(0 < rows <= MOST for rows in found["rows"])
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 2, "threads": 3, "dram": hps.DramCacheConfig(bytes=90_000)},
        {"ssd": test_deaths.ROCKSDB, "dram": hps.DramCacheConfig(bytes=90_000)},
        {"compacts": True, "gpu": hps.GpuCacheConfig(bytes="4MiB", device="cpu")},
    ],
    ids=lambda changes: "-".join(str(name) for name in changes),
)
def test_early_deaths_do_not_depend_on_how(
    expected: dict[str, Any], tmp_path: Path, changes: dict[str, Any]
) -> None:
    if "ssd" in changes:
        pytest.importorskip("rocksdict")
    found = test_deaths.run(tmp_path / "store", **changes)
    for name in ("rows", "digests", "counts"):
        assert found[name] == expected[name]


def test_ranks_count_together(tmp_path: Path) -> None:
    """The lead comes of the rows of all ranks; those of one would have another."""
    config = hps.Config(path=tmp_path / "store", tables=bounded())

    def body(world: LocalWorld) -> Any:
        with hps.ClusterParameterServer(config, world) as server:
            server.pull("ads", ALL[:100], create=True)
            train(server, 0, world.rank, 2)
            early = server.stats()["tables"]["ads"]["rows_bounded"]
            return server.num_rows("ads"), counts(server), early

    found, other = successes(run_ranks(2, body))
    assert found == other
    with hps.ParameterServer(hps.Config(path=tmp_path / "one", tables=bounded())) as server:
        server.pull("ads", ALL[:100], create=True)
        train_as_ranks(server, 2)
        early = server.stats()["tables"]["ads"]["rows_bounded"]
        assert (server.num_rows("ads"), counts(server), early) == found


def train_as_ranks(server: hps.ParameterServer, size: int) -> None:
    """The same counts as those of so many ranks."""
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    for period in range(test_deaths.PERIODS):
        batches = test_deaths.BATCHES[period :: test_deaths.PERIODS]
        for first in range(0, len(batches), size):
            for batch in batches[first : first + size]:
                embeddings(batch).square().mean().backward()
            optimizer.step()
        server.advance_period()


@pytest.mark.parametrize("count", [1, 3])
def test_servers_keep_to_their_shares(expected: dict[str, Any], tmp_path: Path, count: int) -> None:
    with service(tmp_path, count, bounded()) as servers:
        with servers.client() as client:
            train(client, 0)
            before = client.num_rows("ads"), client.digest("ads"), counts(client)
        for shard in servers.shards:
            figures = shard.parts.store.server.stats()["tables"]["ads"]
            assert (figures["max_rows"], figures["rows"] <= MOST // count) == (MOST // count, True)
        servers.kill()
    with service(tmp_path, count, bounded()) as servers, servers.client() as client:
        assert (client.num_rows("ads"), client.digest("ads"), counts(client)) == before
    if count == 1:
        assert before == (expected["rows"][-1], expected["digests"][-1][0], expected["counts"])


def test_a_log_is_not_replayed_by_other_bounds(tmp_path: Path) -> None:
    with service(tmp_path, 1, bounded()) as servers:
        with servers.client() as client:
            client.pull("ads", ALL[:10], create=True)
            client.advance_period()
        (path,) = (shard.parts.store.server.config.path for shard in servers.shards)
        servers.kill()
    with pytest.raises(hps.ConfigError, match=r"max_rows=None was 90 when.*leave its `with`"):
        hps.ParameterServer(hps.Config(path=path, tables=unbounded(EXPIRY)))
