"""Bounds on the rows of a table: which rows die early as a period begins, in every tier, in what is
stored, and what is refused.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.parameter_server.bounds import NUM_COUNTS, EarlyDeaths, find_lead
from hps.ssd_store import SsdStore, verify
from hps.ssd_store.clone import clone
from tests.parameter_server.test_expiry import keys_of, many

DIM = 4
BY_AGE = hps.Expiry(unseen=5)
BY_SCORE = hps.Expiry(min_score=0.5, decay=1.0, nonclick=0.1, click=1.0)


def opened(
    path: Path,
    expiry: hps.Expiry | None = BY_AGE,
    ssd: hps.SsdStoreConfig | None = None,
    **bounds: Any,
) -> hps.ParameterServer:
    table = hps.TableConfig(name="ads", dim=DIM, expiry=expiry, **bounds)
    files = ssd or hps.SsdStoreConfig()
    return hps.ParameterServer(hps.Config(path=path / "store", tables=[table], ssd=files))


def figures(server: hps.ParameterServer) -> tuple[int, int, int]:
    """max_rows, lead, rows that died early."""
    table = server.stats()["tables"]["ads"]
    return table["max_rows"], table["lead"], table["rows_bounded"]


def train(server: hps.ParameterServer, periods: int) -> None:
    """100 keys a period, of which the next one has 40 again."""
    for period in range(periods):
        many(server, 60 * period, 100)
        server.advance_period()


def there(server: Any) -> list[int]:
    return sorted(int(key) for keys, *_ in server.items("ads") for key in keys)


def test_rows_whose_death_is_nearest_go_first(tmp_path: Path, ssd: hps.SsdStoreConfig) -> None:
    with opened(tmp_path, max_rows=250, ssd=ssd) as server:
        train(server, 3)
        assert (figures(server), server.num_rows("ads")) == ((250, 0, 0), 220)
        many(server, 180, 100)
        assert server.num_rows("ads") == 280  # a bound holds as a period begins
        assert server.statistics("ads", keys_of(0, 60))["dies_at"].tolist() == [6, 7]
        assert server.advance_period() == 4
        # The 60 rows that would die in period 6 have a lead of 2; fewer cannot go.
        assert (figures(server), server.num_rows("ads")) == ((250, 2, 60), 220)
        assert there(server) == list(range(60, 280))
        assert server.stats()["tables"]["ads"]["expired_rows"] == 60
        assert server.contains("ads", keys_of(59, 60)).tolist() == [False, True]
        assert server.statistics("ads", keys_of(59))["last_period"].tolist() == [-1]


def test_the_lead_is_the_least_one() -> None:
    counts = np.zeros(NUM_COUNTS, np.uint64)
    counts[[1, 5, NUM_COUNTS - 1]] = 10, 20, 30
    for most, lead, rows in ((60, 0, 0), (59, 1, 10), (50, 1, 10), (49, 5, 30), (30, 5, 30)):
        assert find_lead(counts, most, allow_empty=False) == EarlyDeaths(lead, rows)
    # By a greater one no row would be left.
    assert find_lead(counts, 29, allow_empty=False) == EarlyDeaths(5, 30)
    assert find_lead(counts, 29, allow_empty=True) == EarlyDeaths(NUM_COUNTS - 1, 60)
    counts[0] = 7
    assert find_lead(counts, 29, allow_empty=False) == EarlyDeaths(NUM_COUNTS - 1, 60)
    assert find_lead(counts, 3, allow_empty=False) == EarlyDeaths(NUM_COUNTS - 1, 60)


def test_bytes_count_as_rows(tmp_path: Path) -> None:
    row_bytes = hps.TableConfig(name="ads", dim=DIM, expiry=BY_AGE).layout.row_bytes
    with opened(tmp_path, max_bytes=251 * row_bytes - 1, max_rows=1000) as server:
        train(server, 4)
        assert figures(server) == (250, 2, 60)
    with opened(tmp_path / "other", max_bytes="1MiB", max_rows=250) as server:
        train(server, 4)
        assert figures(server) == (250, 2, 60)


def test_a_row_that_is_updated_later_lives_by_its_own_death(
    tmp_path: Path, ssd: hps.SsdStoreConfig
) -> None:
    with opened(tmp_path, hps.Expiry(unseen=0), max_rows=300, ssd=ssd) as server:
        many(server, 0, 100)
        server.advance_period()
        many(server, 50, 100)  # of which 50 come anew
        assert there(server) == list(range(50, 150))
    with opened(tmp_path / "other", max_rows=100, ssd=ssd) as server:
        train(server, 2)
        assert (figures(server), there(server)) == ((100, 4, 60), list(range(60, 160)))
        many(server, 0, 10)  # their period of death, 7, is within the lead of the turn before
        assert server.num_rows("ads") == 110
        assert server.statistics("ads", keys_of(0))["show"].tolist() == [1.0]


@pytest.mark.parametrize("compacts", [False, True])
def test_what_died_early_is_dead_in_what_is_stored(
    tmp_path: Path, compacts: bool, ssd: hps.SsdStoreConfig
) -> None:
    """In checkpoints, readers, clones, restores and openings; and whatever moves the bytes before
    they are written down."""
    with opened(tmp_path, max_rows=250, ssd=ssd) as server:
        train(server, 3)
        many(server, 180, 100)
        server.checkpoint("before")
        whole = server.digest("ads")
        server.advance_period()
        store = server.parts.tables.store
        if compacts:
            store.compact()
        expected = server.digest("ads"), there(server), 220
        server.checkpoint("after")
        assert store.num_rows("ads") == 220
        assert {one["tag"]: one["rows"] for one in server.checkpoints()}["after"] == 220
        server.restore("before")
        assert (server.digest("ads"), server.period, figures(server)[1:]) == (whole, 3, (0, 0))
        server.advance_period()
        assert (server.digest("ads"), there(server), server.num_rows("ads")) == expected
        server.restore("after")
        assert (server.digest("ads"), there(server), server.num_rows("ads")) == expected
        assert figures(server) == (250, 2, 60)
    stored: list[tuple[Path, str | None]] = [(tmp_path / "store", "after")]
    if ssd.engine == "segments":  # the other has no clones
        clone(tmp_path / "store", tmp_path / "copy", "after")
        stored.append((tmp_path / "copy", None))
    for path, tag in stored:
        with hps.open(path, checkpoint=tag) as reader:
            assert (reader.digest("ads"), there(reader), reader.num_rows("ads")) == expected
    with opened(tmp_path, max_rows=250, ssd=ssd) as server:
        assert (server.digest("ads"), there(server), server.num_rows("ads")) == expected
    assert verify(tmp_path / "store") == []


def test_a_turn_that_no_checkpoint_has_seen_is_forgotten(
    tmp_path: Path, ssd: hps.SsdStoreConfig
) -> None:
    server = opened(tmp_path, max_rows=250, ssd=ssd)
    train(server, 3)
    many(server, 180, 100)
    server.checkpoint()
    server.advance_period()
    server.parts.tables.close()  # as a kill
    with opened(tmp_path, max_rows=250, ssd=ssd) as server:
        assert (server.period, server.num_rows("ads")) == (3, 280)
        assert server.advance_period() == 4
        assert there(server) == list(range(60, 280))


def test_a_table_is_not_emptied_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with opened(tmp_path, max_rows=30) as server:
        many(server, 0, 100)
        server.advance_period()
        assert (server.num_rows("ads"), figures(server)) == (100, (30, 0, 0))
        assert "'ads' has 100 rows, and may have 30" in caplog.text
        assert "all of these die in one period" in caplog.text
        caplog.clear()
        many(server, 100, 20)
        server.advance_period()  # the 20 are within the bound
        assert (server.num_rows("ads"), figures(server)) == (20, (30, 4, 100))
        many(server, 0, 100)
        assert not caplog.text
        server.advance_period()
        server.advance_period(allow_empty=True)
        assert server.num_rows("ads") == 0


def test_rows_that_never_die_stay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with opened(tmp_path, BY_SCORE, max_rows=10) as server:
        labels = np.ones(30, np.float32)
        grads = np.ones((30, DIM), np.float32)
        server.push("ads", np.arange(30, dtype=np.uint64), grads, labels=labels)
        server.advance_period()
        assert (server.num_rows("ads"), figures(server)) == (30, (10, 0, 0))
        assert "these never die" in caplog.text


def test_bounds_may_change_whenever_the_store_is_opened(
    tmp_path: Path, ssd: hps.SsdStoreConfig
) -> None:
    with opened(tmp_path, ssd=ssd) as server:
        train(server, 4)
        assert "max_rows" not in server.stats()["tables"]["ads"]
        assert server.num_rows("ads") == 280
    with opened(tmp_path, max_rows=200, ssd=ssd) as server:
        assert server.num_rows("ads") == 280
        server.advance_period()
        assert (server.num_rows("ads"), figures(server)) == (160, (200, 2, 120))
    with hps.open(tmp_path / "store", read_only=False) as server:
        assert server.tables["ads"].max_rows == 200  # the stored one
    # Rules that change with the period are those by which rows are counted.
    with opened(tmp_path, hps.Expiry(unseen=20), max_rows=130, ssd=ssd) as server:
        server.advance_period()
        assert figures(server)[1:] == (17, 60)
    with opened(tmp_path, ssd=ssd) as server:
        server.advance_period()
        assert "max_rows" not in server.stats()["tables"]["ads"]


def test_stats_tell_of_the_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(tmp_path, max_rows=250) as server:
        train(server, 4)
    assert main(["stats", str(tmp_path / "store")]) == 0
    told = capsys.readouterr().out
    assert "at most 250 rows as a period begins; in this one 60 died early, by a lead of 2" in told


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_rows": 5, "expiry": None}, r"max_rows=5 has the rows die early.*give expiry="),
        ({"max_bytes": 500, "expiry": None}, r"max_bytes=500 .*give expiry="),
        ({"max_rows": 0}, r"max_rows=0"),
        ({"max_rows": 1.5}, r"max_rows=1\.5"),
        ({"max_bytes": "many"}, r"max_bytes='many' is not a size"),
        ({"max_bytes": 8}, r"max_bytes=8 holds no row; one takes"),
    ],
)
def test_bounds_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(hps.ConfigError, match=message):
        hps.TableConfig(**{"name": "ads", "dim": DIM, "expiry": BY_AGE, **fields})


def test_a_full_disk_at_the_turn_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise hps.StoreError(28, "no space")

    with opened(tmp_path, max_rows=250) as server:
        train(server, 3)
        many(server, 180, 100)
        before = server.digest("ads")
        with monkeypatch.context() as patched:
            patched.setattr(SsdStore, "set_period", refuse)
            with pytest.raises(hps.StoreError):
                server.advance_period()
        assert (server.digest("ads"), server.period, server.num_rows("ads")) == (before, 3, 280)
        server.advance_period()
        assert there(server) == list(range(60, 280))
