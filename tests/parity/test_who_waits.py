"""Keys come by a row alike, to the bit, however the table is trained; and those come by one that a
recount of the batches says.

Above it: pytest. Below it: the batches of test_counts.py, the training of test_deaths.py; real
servers and logical ranks in this process.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.folder.offline import reshard
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, successes
from tests.parity import test_deaths
from tests.parity.test_counts import ALL, BATCHES, FEATURES, skip_without
from tests.parity.test_deaths import PERIODS
from tests.parity.test_deaths_elsewhere import counts, train
from tests.service.client.client_lab import service

COUNT = 6  # shows, of which each occurrence without a click is two
SMALL_GPU = hps.GpuCacheConfig(bytes=130_000, device="cpu")
RULES = {
    "count": hps.Admission(count=COUNT),
    "probability": hps.Admission(probability=0.2),
    "by": hps.Admission(by="users", min_score=0.5),
}


def tables(rule: str) -> list[hps.TableConfig]:
    """Rows die, too; what the score of a key in table "users" admits has no counts of its own."""
    ads, users = test_deaths.tables()
    if rule == "by":
        return [
            replace(ads, expiry=None, statistics=False, admission=RULES[rule]),
            replace(users, statistics=True),
        ]
    rate = 0.5 if rule == "count" else 1.0
    return [replace(ads, admission=RULES[rule], negative_rate=rate), users]


def run(path: Path, rule: str, depth: int = 0, **changes: Any) -> dict[str, Any]:
    """Trains several periods; digests, rows and those that wait after each."""
    config = hps.Config(path=path, **{"tables": tables(rule), "threads": 1, **changes})
    seen: dict[str, Any] = {"rows": [], "waiting": [], "digests": []}
    with hps.ParameterServer(config) as server:
        for _ in test_deaths.trained_periods(server, depth):
            server.advance_period()
            look(server, seen)
        seen["contains"] = server.contains("ads", ALL).tolist()
        tier = "dram_cache" if config.gpu is None else "gpu_cache"
        seen["evictions"] = server.stats()[tier]["evictions"]
    return seen


def look(server: hps.ParameterServer, seen: dict[str, Any]) -> None:
    seen["rows"].append(server.num_rows("ads"))
    waiting = server.stats()["tables"]["ads"].get("waiting")
    seen["waiting"].append(None if waiting is None else waiting["rows"])
    seen["digests"].append([server.digest("ads"), server.digest("users")])


@pytest.fixture(scope="module", params=RULES)
def expected(request: pytest.FixtureRequest, tmp_path_factory: Any) -> tuple[str, dict[str, Any]]:
    found = run(tmp_path_factory.mktemp("store"), request.param)
    assert 5 < found["rows"][-1] < 600
    assert found["evictions"] == 0
    return request.param, found


def recounted() -> list[int]:
    """Rows that Admission(count=COUNT) leaves after each period, were there no rules of death."""
    seen: Counter[int] = Counter()
    found = []
    for period in range(PERIODS):
        for batch in BATCHES[period::PERIODS]:
            ids = batch.features["ads"]
            example = np.tile(np.arange(len(batch)), FEATURES)
            labels = batch.labels.numpy()[np.repeat(example, np.diff(ids.offsets.numpy()))]
            for key, label in zip(ids.keys_L.tolist(), labels.tolist(), strict=True):
                seen[key] += 1 if label else 2
        found.append(sum(shows >= COUNT for shows in seen.values()))
    return found


def test_a_recount_of_the_batches_says_the_same(tmp_path: Path) -> None:
    ads, users = tables("count")
    immortal = [replace(ads, expiry=None), users]
    assert run(tmp_path / "store", "count", tables=immortal)["rows"] == recounted()


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 4},
        {"threads": 4},
        {"instruction_set": "plain"},
        {"instruction_set": "avx2"},
        {"dram": hps.DramCacheConfig(bytes=120_000), "depth": 2, "threads": 3},
        {"ssd": test_deaths.ROCKSDB},
        {"ssd": test_deaths.ROCKSDB, "dram": hps.DramCacheConfig(bytes=120_000), "depth": 2},
        {"tables": True},  # in the other order
        {"gpu": hps.GpuCacheConfig(bytes="4MiB", device="cpu")},
        {"gpu": hps.GpuCacheConfig(bytes="4MiB", device="cpu"), "depth": 4, "threads": 4},
        {"gpu": SMALL_GPU, "dram": hps.DramCacheConfig(bytes=120_000), "depth": 3, "threads": 2},
        {"gpu": SMALL_GPU, "dram": hps.DramCacheConfig(bytes=120_000)},
        {"gpu": SMALL_GPU, "dram": hps.DramCacheConfig(bytes=120_000), "ssd": test_deaths.ROCKSDB},
    ],
    ids=lambda changes: "-".join(str(name) for name in changes),
)
def test_admission_does_not_depend_on_how(
    expected: tuple[str, dict[str, Any]], tmp_path: Path, changes: dict[str, Any]
) -> None:
    skip_without(changes.get("instruction_set"))
    if "ssd" in changes:
        pytest.importorskip("rocksdict")
    rule, one = expected
    if "tables" in changes:
        changes = {"tables": tables(rule)[::-1]}
    found = run(tmp_path / "store", rule, **changes)
    assert (found.pop("evictions") > 0) == ("dram" in changes)
    assert found == {name: value for name, value in one.items() if name != "evictions"}


@pytest.mark.parametrize("depth", [0, 2])
def test_a_store_goes_on_under_other_tiers(
    expected: tuple[str, dict[str, Any]], tmp_path: Path, depth: int
) -> None:
    """Each period in another process, so to speak: what waits goes through a checkpoint."""
    rule, one = expected
    tiers: list[dict[str, Any]] = [
        {"gpu": SMALL_GPU, "dram": hps.DramCacheConfig(bytes=120_000)},
        {},
        {"gpu": hps.GpuCacheConfig(bytes="4MiB", device="cpu")},
    ]
    seen: dict[str, Any] = {"rows": [], "waiting": [], "digests": []}
    for period in range(PERIODS):
        config = hps.Config(path=tmp_path, tables=tables(rule), **tiers[period % len(tiers)])
        with hps.ParameterServer(config) as server:
            test_deaths.train_period(server, period, depth)
            server.advance_period()
            look(server, seen)
            if period == 2:  # what comes after a checkpoint, and is not kept
                server.checkpoint("kept")
                test_deaths.train_period(server, 3, depth)
                server.restore("kept")
            server.checkpoint()
    assert seen == {name: one[name] for name in seen}


@pytest.mark.parametrize(
    ("count", "depth", "is_killed"), [(1, 0, False), (3, 2, False), (3, 0, True)]
)
def test_keys_are_admitted_over_servers(
    expected: tuple[str, dict[str, Any]], tmp_path: Path, count: int, depth: int, is_killed: bool
) -> None:
    rule, one = expected
    with service(tmp_path, count, tables(rule)) as servers:
        with servers.client() as client:
            train(client, depth)
        if is_killed:  # their logs alone have what was pushed
            servers.kill()
    with service(tmp_path, count, tables(rule)) as servers, servers.client() as client:
        assert client.num_rows("ads") == one["rows"][-1]
        assert np.asarray(client.contains("ads", ALL)).tolist() == one["contains"]
        assert [client.digest("ads"), client.digest("users")] == one["digests"][-1]


@pytest.mark.parametrize(("before", "after", "depth"), [(1, 3, 0), (4, 2, 0), (2, 1, 2)])
def test_ranks_and_their_division_keep_who_waits(
    tmp_path: Path, before: int, after: int, depth: int
) -> None:
    path = tmp_path / "store"

    def first(world: LocalWorld) -> Any:
        config = hps.Config(path=path, tables=tables("count"))
        with hps.ClusterParameterServer(config, world) as server:
            train(server, depth, world.rank, before)
            return server.num_rows("ads"), counts(server), server.digest("ads")

    def later(world: LocalWorld) -> Any:
        config = hps.Config(path=tmp_path / "divided", tables=tables("count"))
        with hps.ClusterParameterServer(config, world) as server:
            return server.num_rows("ads"), counts(server), server.digest("ads")

    (trained, *others) = successes(run_ranks(before, first))
    assert all(one == trained for one in others)
    reshard(path, tmp_path / "divided", after)
    assert all(one == trained for one in successes(run_ranks(after, later)))
    reshard(path, tmp_path / "whole", None)
    with hps.ParameterServer(hps.Config(path=tmp_path / "whole", tables=tables("count"))) as server:
        assert (server.num_rows("ads"), counts(server), server.digest("ads")) == trained
