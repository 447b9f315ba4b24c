"""Erasure by what rows have counted: which go, where they lie, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.world.local_world import LocalWorld
from tests.cluster.ranks import run_ranks, successes
from tests.parameter_server.test_expiry import keys_of
from tests.service.client.client_lab import service

DIM = 4
DECAYING = hps.Expiry(unseen=60, decay=0.5, nonclick=0.1, click=1.0)
KEYS = np.arange(4000, dtype=np.uint64)


def config(path: Path, expiry: hps.Expiry | None = DECAYING, **others: Any) -> hps.Config:
    table = hps.TableConfig(name="ads", dim=DIM, expiry=expiry, statistics=True)
    plain = hps.TableConfig(name="plain", dim=DIM)
    return hps.Config(path=path / "store", tables=[table, plain], **others)


def fill(server: Any, share: slice = slice(None)) -> None:
    """Key k has 1 + k % 5 shows, k % 3 of them, at most all, clicked, in period k % 4 of 0 to 3."""
    last = KEYS % 4
    for period in range(4):
        keys = KEYS[last == period][share]
        if period:
            server.advance_period()
        given = {
            "show": (1 + keys % 5).astype(np.float32),
            "click": np.minimum(keys % 3, 1 + keys % 5).astype(np.float32),
            "last_period": np.full(len(keys), period, np.int64),
        }
        rows = np.repeat(keys[:, None].astype(np.float32), DIM, axis=1)
        server.assign("ads", keys, rows, statistics=given)


SHOW, CLICK = 1 + KEYS % 5, np.minimum(KEYS % 3, 1 + KEYS % 5)
GAP = 3 - KEYS.astype(np.int64) % 4
POWER = 0.5**GAP
CASES: list[tuple[dict[str, Any], Any]] = [
    ({"show_below": 2}, SHOW * POWER < 2),
    ({"click_below": 0.5}, CLICK * POWER < 0.5),
    ({"unseen_for": 2}, GAP >= 2),
    ({"score_below": 0.4}, (0.1 * (SHOW - CLICK) + CLICK) * POWER < 0.4),
    ({"show_below": 4, "unseen_for": 1, "click_below": 1}, None),
]
CASES[-1] = (CASES[-1][0], (SHOW * POWER < 4) & (GAP >= 1) & (CLICK * POWER < 1))


@pytest.mark.parametrize(
    ("where", "expected"), CASES, ids=lambda case: "-".join(case) if isinstance(case, dict) else ""
)
def test_rows_go_for_which_all_holds(tmp_path: Path, where: dict[str, Any], expected: Any) -> None:
    small = hps.DramCacheConfig(bytes=60_000)  # most rows lie on the SSD, some are dirty in DRAM
    with hps.ParameterServer(config(tmp_path, dram=small)) as server:
        fill(server)
        weights = server.pull("ads", KEYS)
        initial = server.pull("ads", KEYS + np.uint64(2**40))
        server.checkpoint("before")
        assert 0 < expected.sum() < len(KEYS)
        assert server.erase_where("ads", **where) == expected.sum()
        assert np.array_equal(server.contains("ads", KEYS), ~expected)
        assert server.num_rows("ads") == (~expected).sum()
        assert np.array_equal(server.pull("ads", KEYS[~expected]), weights[~expected])
        assert np.abs(server.pull("ads", KEYS[expected])).max() <= 2 * np.abs(initial).max()
        assert server.erase_where("ads", **where) == 0
        digest = server.digest("ads")
        server.checkpoint()
    with hps.open(tmp_path / "store") as reader:
        assert reader.digest("ads") == digest
    with hps.open(tmp_path / "store", checkpoint="before") as reader:
        assert reader.num_rows("ads") == len(KEYS)


def test_without_expiry_nothing_decays(tmp_path: Path) -> None:
    with hps.ParameterServer(config(tmp_path, None)) as server:
        fill(server)
        assert server.erase_where("ads", show_below=2) == (SHOW < 2).sum()


@pytest.mark.parametrize(
    ("table", "where", "message"),
    [
        ("ads", {}, "is needed; rows of given keys go with"),
        ("ads", {"show_below": 0}, "show_below=0 must be a finite"),
        ("ads", {"unseen_for": 0}, "unseen_for=0"),
        ("ads", {"unseen_for": 1.5}, "unseen_for=1"),
        ("ads", {"score_below": float("nan")}, "score_below=nan"),
        ("ads", {"score_below": 1}, "table 'ads' has no expiry, whose numbers make the score"),
        ("plain", {"show_below": 1}, "table 'plain' has no statistics"),
        ("none", {"show_below": 1}, "none"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    tmp_path: Path, table: str, where: dict[str, Any], message: str
) -> None:
    with hps.ParameterServer(config(tmp_path, None)) as server:
        fill(server)
        with pytest.raises(hps.ConfigError, match=message):
            server.erase_where(table, **where)
        assert server.num_rows("ads") == len(KEYS)


def test_what_a_batch_in_flight_holds_stays(tmp_path: Path) -> None:
    with hps.ParameterServer(config(tmp_path)) as server:
        fill(server)
        rows = server.pin("ads", keys_of(1))
        with pytest.raises(hps.ConfigError, match=r"erase_where: 0 open pipeline.* and 1 pins"):
            server.erase_where("ads", unseen_for=1)
        assert server.num_rows("ads") == len(KEYS)
        rows.release()
        assert server.erase_where("ads", unseen_for=1) == (GAP >= 1).sum()
    with (
        hps.open(tmp_path / "store") as reader,
        pytest.raises(hps.ConfigError, match="open read-only"),
    ):
        reader.erase_where("ads", unseen_for=1)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_servers_erase_the_rows_of_one_process(tmp_path: Path, count: int, engine: str) -> None:
    """Once; and again after a kill, where their logs alone have it."""
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    tables = list(config(tmp_path).tables)
    one = config(tmp_path / "one", ssd=hps.SsdStoreConfig(engine=engine))
    with hps.ParameterServer(one) as server:
        fill(server)
        numbers = [server.erase_where("ads", **where) for where, _ in CASES]
        digest = server.digest("ads")
    assert numbers[0] == CASES[0][1].sum() and sum(numbers) < len(KEYS)
    with service(tmp_path, count, tables) as servers:
        with servers.client() as client:
            fill(client)
            assert [client.erase_where("ads", **where) for where, _ in CASES] == numbers
            assert client.digest("ads") == digest
            for table, where, words in (
                ("plain", {"unseen_for": 1}, "has no statistics"),
                ("ads", {}, "rows of given keys go with"),
                ("none", {"unseen_for": 1}, "no table 'none'"),
            ):
                with pytest.raises(hps.ConfigError, match=words):
                    client.erase_where(table, **where)
        servers.kill()
    with service(tmp_path, count, tables) as servers, servers.client() as client:
        assert client.digest("ads") == digest
        assert client.num_rows("ads") == len(KEYS) - sum(numbers)


def test_ranks_erase_together(tmp_path: Path) -> None:
    def body(world: LocalWorld) -> Any:
        with hps.ClusterParameterServer(config(tmp_path), world) as server:
            fill(server, slice(world.rank, None, 2))
            erased = server.erase_where("ads", show_below=2)
            return erased, server.num_rows("ads"), server.contains("ads", KEYS).tolist()

    held = SHOW * POWER < 2
    for found in successes(run_ranks(2, body)):
        assert found == (held.sum(), (~held).sum(), (~held).tolist())


def test_a_bound_of_numpy_is_the_number_that_it_is_in_python(tmp_path: Path) -> None:
    """Shows are float32, which a number of float64 would not be compared in."""
    number = 0.7
    assert np.float32(number) < np.float64(number)
    keys = KEYS[:3]
    counted = {
        "show": np.full(3, number, np.float32),
        "click": np.full(3, number, np.float32),
        "last_period": np.zeros(3, np.int64),
    }
    with hps.ParameterServer(config(tmp_path, hps.Expiry(unseen=60, nonclick=1.0))) as server:
        server.assign("ads", keys, np.ones((3, DIM), np.float32), statistics=counted)
        for name in ("show_below", "click_below", "score_below"):
            for bound in (number, np.float64(number)):
                assert server.erase_where("ads", **{name: bound}) == 0
        assert server.erase_where("ads", show_below=np.float64(0.71)) == 3
