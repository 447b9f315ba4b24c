"""Rows of two levels have the same bits over servers and over ranks as in one process; and the keys
that have a vector are those that a recount of the batches says.

Above it: pytest. Below it: the batches of test_counts.py, hps/models/fm.py; real servers and
logical ranks in this process.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cluster.folder.offline import reshard
from hps.cluster.world.local_world import LocalWorld
from hps.models import FactorizationMachine
from tests.cluster.ranks import run_ranks, successes
from tests.parity.test_counts import ALL, BATCHES, FEATURES
from tests.service.client.client_lab import service

DIM, PERIODS, SCORE = 3, 3, 2.0
NAMES = ("ads", "ads.first_order")
EXPIRY = hps.Expiry(unseen=1, min_score=0.3, decay=0.5)


def tables() -> list[hps.TableConfig]:
    """The vectors' table last: the order of tables is no matter."""
    rule = hps.Admission(by=NAMES[1], min_score=SCORE)
    optimizer = hps.Adagrad(lr=0.1)
    return [
        hps.TableConfig(name=NAMES[1], dim=1, optimizer=optimizer, expiry=EXPIRY),
        hps.TableConfig(name=NAMES[0], dim=DIM, optimizer=optimizer, expiry=EXPIRY, admission=rule),
    ]


def batches_of(period: int) -> list[hps.Batch]:
    """With the ids of both tables, as the reader of a training gives them."""
    found = []
    for batch in BATCHES[period::PERIODS]:
        own = {"ads": batch.features["ads"]}
        found.append(hps.Batch(own, batch.dense, batch.labels).with_ids_of({NAMES[1]: NAMES[0]}))
    return found


def train(server: Any, depth: int, rank: int = 0, size: int = 1) -> None:
    """On one of so many ranks, which share the batches."""
    torch.manual_seed(0)
    model, optimizer = FactorizationMachine(server, {"ads": FEATURES}, 0), hps.RowOptimizer(server)
    for period in range(PERIODS):
        with hps.Pipeline(batches_of(period)[rank::size], server, depth=depth) as pipeline:
            for batch in pipeline:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(
                    model(batch), batch.labels, reduction="sum"
                )
                loss.backward()
                optimizer.step()
        server.advance_period()


def seen(server: Any) -> list[Any]:
    counts = [
        {name: np.asarray(part).tolist() for name, part in server.statistics(table, ALL).items()}
        for table in NAMES
    ]
    return [counts, [server.num_rows(name) for name in NAMES]]


def digests(server: Any) -> list[str]:
    return [server.digest(name) for name in NAMES]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], list[str]]:
    path = tmp_path_factory.mktemp("store")
    with hps.ParameterServer(hps.Config(path=path, tables=tables(), threads=1)) as server:
        train(server, 0)
        found, (vectors, weights) = seen(server), (server.num_rows(name) for name in NAMES)
        assert 20 < vectors < weights - 20
        return found, digests(server)


def test_a_recount_of_the_batches_says_the_same(expected: tuple[list[Any], list[str]]) -> None:
    scores: dict[int, float] = {}
    last: dict[int, int] = {}
    has_vector: set[int] = set()
    for period in range(PERIODS):
        for batch in batches_of(period):
            ids = batch.features["ads"]
            lengths = ids.offsets.diff()
            labels = batch.labels.repeat(FEATURES).repeat_interleave(lengths).tolist()
            keys = ids.keys_L.tolist()
            has_vector |= {key for key in {*keys} if scores.get(key, 0.0) >= SCORE - 1e-6}
            for key, label in zip(keys, labels, strict=True):
                scores[key] = scores.get(key, 0.0) + (1.0 if label else 0.1)
                last[key] = period
        for key in [*scores]:  # as the next period begins
            scores[key] *= EXPIRY.decay
            assert EXPIRY.min_score is not None
            if scores[key] < EXPIRY.min_score - 1e-6 or period + 1 - last[key] > 1:
                del scores[key]
                has_vector.discard(key)
    counts, (vectors, weights) = expected[0]
    assert (vectors, weights) == (len(has_vector), len(scores))
    found = {int(key) for key, at in zip(ALL, counts[0]["last_period"], strict=True) if at >= 0}
    assert found == has_vector


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 4, "threads": 3},
        {"instruction_set": "plain"},
        {"gpu": hps.GpuCacheConfig(bytes="4MiB", device="cpu"), "depth": 2},
        {
            "gpu": hps.GpuCacheConfig(bytes=70_000, device="cpu"),
            "dram": hps.DramCacheConfig(bytes=90_000),
            "threads": 2,
            "evicts": True,
        },
        {
            "gpu": hps.GpuCacheConfig(bytes=70_000, device="cpu"),
            "dram": hps.DramCacheConfig(bytes=90_000),
            "depth": 3,
            "evicts": True,
        },
    ],
    ids=lambda changes: "-".join(str(name) for name in changes),
)
def test_how_it_is_trained_is_no_matter(
    expected: tuple[list[Any], list[str]], tmp_path: Path, changes: dict[str, Any]
) -> None:
    given = {name: value for name, value in changes.items() if name not in ("depth", "evicts")}
    config = hps.Config(path=tmp_path, tables=tables()[::-1], **given)
    with hps.ParameterServer(config) as server:
        train(server, changes.get("depth", 0))
        assert (seen(server), digests(server)) == expected
        tier = "dram_cache" if config.gpu is None else "gpu_cache"
        assert (server.stats()[tier]["evictions"] > 0) == changes.get("evicts", False)


@pytest.mark.parametrize(
    ("count", "depth", "is_killed"), [(1, 0, False), (3, 2, False), (3, 0, True)]
)
def test_servers_have_the_bits_of_one_process(
    expected: tuple[list[Any], list[str]], tmp_path: Path, count: int, depth: int, is_killed: bool
) -> None:
    with service(tmp_path, count, tables()) as servers:
        with servers.client() as client:
            train(client, depth)
        if is_killed:  # their logs alone have what was pushed, and the periods
            servers.kill()
    with service(tmp_path, count, tables()) as servers, servers.client() as client:
        assert (seen(client), digests(client)) == expected


@pytest.mark.parametrize("size", [1, 2, 4])  # that have as many batches each
def test_ranks_have_the_keys_of_one_process_with_batches_as_large(
    tmp_path: Path, size: int
) -> None:
    config = hps.Config(path=tmp_path / "store", tables=tables())

    def body(world: LocalWorld) -> Any:
        with hps.ClusterParameterServer(config, world) as server:
            train(server, 0, world.rank, size)
            return seen(server)

    results = successes(run_ranks(size, body))
    assert all(one == results[0] for one in results)
    with hps.ParameterServer(hps.Config(path=tmp_path / "one", tables=tables())) as server:
        model = FactorizationMachine(server, {"ads": FEATURES}, 0)
        optimizer = hps.RowOptimizer(server)
        for period in range(PERIODS):
            batches = batches_of(period)
            for first in range(0, len(batches), size):
                for batch in batches[first : first + size]:
                    model(batch).sum().backward()
                optimizer.step()  # of what all ranks have seen
            server.advance_period()
        assert seen(server) == results[0]
    reshard(tmp_path / "store", tmp_path / "whole", None)
    with hps.ParameterServer(hps.Config(path=tmp_path / "whole", tables=tables())) as server:
        assert seen(server) == results[0]
