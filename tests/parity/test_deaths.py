"""Rows die alike, to the bit, whatever the depth, the budget, the threads, the instructions and the
tiers, and whenever their bytes are cleaned up.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hps
from tests.parity.test_counts import ALL, BATCHES, DIM, FEATURES, skip_without

PERIODS = 6
ROCKSDB = hps.SsdStoreConfig(engine="rocksdb")
EXPIRY = hps.Expiry(unseen=2, min_score=0.9, decay=0.7, nonclick=0.3, click=1.0)


def tables(expiry: hps.Expiry | None = EXPIRY) -> list[hps.TableConfig]:
    features = [f"a{place}" for place in range(FEATURES)]
    return [
        hps.TableConfig(name="ads", dim=DIM, features=features, expiry=expiry),
        hps.TableConfig(name="users", dim=DIM, features=["u"]),
    ]


def trained_periods(server: hps.ParameterServer, depth: int) -> Iterator[int]:
    """Trains on the batches of one period after another; the caller begins the next."""
    for period in range(PERIODS):
        train_period(server, period, depth)
        yield period


def train_period(server: hps.ParameterServer, period: int, depth: int) -> None:
    embeddings, optimizer = hps.SparseEmbeddings(server), hps.RowOptimizer(server)
    with hps.Pipeline(BATCHES[period::PERIODS], server, depth=depth) as pipeline:
        for batch in pipeline:
            embeddings(batch).square().mean().backward()
            optimizer.step()


def run(path: Path, depth: int = 0, *, compacts: bool = False, **changes: Any) -> dict[str, Any]:
    """Trains several periods; rows and digest at the end of each, the counts of the last, and how
    many rows died and were evicted."""
    config = hps.Config(path=path, **{"tables": tables(), "threads": 1, **changes})
    seen: dict[str, Any] = {"rows": [], "digests": [], "deaths": 0}
    with hps.ParameterServer(config) as server:
        for _ in trained_periods(server, depth):
            before = server.num_rows("ads")
            server.advance_period()
            seen["deaths"] += before - server.num_rows("ads")
            if compacts:
                server.checkpoint()
                server.parts.tables.store.compact()
            seen["rows"].append(server.num_rows("ads"))
            seen["digests"].append([server.digest("ads"), server.digest("users")])
        counts = server.statistics("ads", ALL)
        seen["counts"] = {name: part.tolist() for name, part in counts.items()}
        tier = "dram_cache" if config.gpu is None else "gpu_cache"
        seen["evictions"] = server.stats()[tier]["evictions"]
    return seen


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = run(tmp_path_factory.mktemp("store"))
    assert found["deaths"] > 500
    assert found["rows"][-1] > 20
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"depth": 4},
        {"threads": 4},
        {"instruction_set": "plain"},
        {"instruction_set": "avx2"},
        {"compacts": True},
        {"dram": hps.DramCacheConfig(bytes=90_000), "depth": 2, "threads": 3, "evicts": True},
        {"dram": hps.DramCacheConfig(bytes=90_000), "compacts": True, "evicts": True},
        {"ssd": ROCKSDB, "compacts": True},
        {"ssd": ROCKSDB, "dram": hps.DramCacheConfig(bytes=90_000), "depth": 2, "evicts": True},
        {"gpu": hps.GpuCacheConfig(bytes="4MiB", device="cpu")},
        {
            "gpu": hps.GpuCacheConfig(bytes=110_000, device="cpu"),
            "dram": hps.DramCacheConfig(bytes=90_000),
            "depth": 2,
            "threads": 2,
            "evicts": True,
        },
    ],
    ids=lambda changes: "-".join(str(name) for name in changes),
)
def test_deaths_do_not_depend_on_how(
    expected: dict[str, Any], tmp_path: Path, changes: dict[str, Any]
) -> None:
    skip_without(changes.get("instruction_set"))
    if "ssd" in changes:
        pytest.importorskip("rocksdict")
    found = run(tmp_path / "store", **{k: v for k, v in changes.items() if k != "evicts"})
    assert (found.pop("evictions") > 0) == changes.get("evicts", False)
    assert found == {name: value for name, value in expected.items() if name != "evictions"}
