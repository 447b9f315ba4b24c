"""Rows that die: when, what knows of it, what a change of the rules does, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.parameter_server import life as rule_changes
from hps.ssd_store import SsdStore, TableSchema, verify
from hps.ssd_store.clone import clone
from hps.table.life_rules import native_rules
from hps.tiers.top_tier import TableStack
from tests.twins import life

ESTABLISHED = hps.Expiry(unseen=30, min_score=0.8, decay=0.98, nonclick=0.1, click=1.0)
BY_AGE = hps.Expiry(unseen=2)
DIM = 4


def ads(expiry: hps.Expiry | None = BY_AGE, **others: Any) -> hps.TableConfig:
    return hps.TableConfig(name="ads", dim=DIM, expiry=expiry, **others)


def opened(path: Path, expiry: hps.Expiry | None = BY_AGE, **others: Any) -> hps.ParameterServer:
    table = ads(expiry, statistics=True)
    return hps.ParameterServer(hps.Config(path=path / "store", tables=[table], **others))


def keys_of(*keys: int) -> Any:
    return np.array(keys, np.uint64)


def show(server: hps.ParameterServer, key: int, shows: int = 1, clicks: int = 0) -> None:
    labels = np.zeros(shows, np.float32)
    labels[:clicks] = 1
    grads = np.ones((shows, DIM), np.float32)
    server.push("ads", np.full(shows, key, np.uint64), grads, labels=labels)


# What an established ads system does with these numbers; docs/life_cycle.md shows it, too.
@pytest.mark.parametrize(
    ("shows", "clicks", "dies_at"), [(8, 0, 1), (9, 0, 6), (1, 1, 12), (6, 1, 31)]
)
def test_rows_die_as_in_an_established_system(
    tmp_path: Path, shows: int, clicks: int, dies_at: int
) -> None:
    with opened(tmp_path, ESTABLISHED) as server:
        show(server, 7, shows, clicks)
        assert server.statistics("ads", keys_of(7))["dies_at"].tolist() == [dies_at]
        if dies_at > 1:
            server.advance_period(to=dies_at - 1)
        assert server.contains("ads", keys_of(7)).tolist() == [True]
        server.advance_period()
        assert server.contains("ads", keys_of(7)).tolist() == [False]


def test_a_score_of_one_and_a_half_dies_by_score_in_the_32nd_period() -> None:
    rules = native_rules(hps.Expiry(min_score=0.8))
    counts = np.array([6], np.float32), np.array([1], np.float32), np.zeros(1, np.uint32)
    assert rules.dies_at(*counts).tolist() == [32]


def test_the_native_arithmetic_is_the_twins() -> None:
    generator = np.random.default_rng(3)
    for unseen, decay in ((None, 0.98), (5, 0.5), (0, 1.0), (60000, 0.99999)):
        expiry = hps.Expiry(unseen=unseen, min_score=0.7, decay=decay, nonclick=0.2, click=2.0)
        rules = native_rules(expiry)
        show = generator.integers(0, 50, 300).astype(np.float32)
        click = np.floor(show * generator.random(300)).astype(np.float32)
        last = generator.integers(0, 1000, 300).astype(np.uint32)
        expected = [
            life.dies_at(rules, *counts)
            for counts in zip(show.tolist(), click.tolist(), last.tolist(), strict=True)
        ]
        assert rules.dies_at(show, click, last).tolist() == expected
        gaps = generator.integers(0, 100, 300).astype(np.uint32)
        scores = np.float32(0.2) * (show - click) + np.float32(2.0) * click
        assert np.array_equal(rules.scores(show, click, gaps), scores * life.powers(decay)[gaps])


def test_a_row_that_never_dies_is_told_so(tmp_path: Path) -> None:
    with opened(tmp_path, hps.Expiry(min_score=0.5, decay=1.0)) as server:
        show(server, 1, 1, 1)
        server.advance_period(to=2**31 - 1)
        assert server.statistics("ads", keys_of(1))["dies_at"].tolist() == [-1]
        assert server.num_rows("ads") == 1


def test_a_key_that_comes_again_is_new(tmp_path: Path) -> None:
    with opened(tmp_path) as server:
        initial = server.pull("ads", keys_of(1))
        show(server, 1, 3, 2)
        once = server.digest("ads")
        show(server, 2)
        server.advance_period(to=2)
        show(server, 2)
        neighbour = server.pull("ads", keys_of(2))
        server.advance_period()
        assert server.num_rows("ads") == 1
        assert np.array_equal(server.pull("ads", keys_of(1)), initial)
        show(server, 1)
        found = server.statistics("ads", keys_of(1, 2))
        decayed = np.float32(1) * (np.float32(0.98) * np.float32(0.98))
        assert found["show"].tolist() == [1.0, decayed + np.float32(1)]
        assert found["click"].tolist() == [0.0, 0.0]
        assert found["last_period"].tolist() == [3, 2]
        assert np.array_equal(server.pull("ads", keys_of(2)), neighbour)
    # Its weights and its optimizer's state are those of a key that was never there.
    with opened(tmp_path / "other") as server:
        show(server, 1, 3, 2)
        assert server.digest("ads") == once
        server.advance_period(to=3)
        show(server, 1)
        expected = server.digest("ads")
    with opened(tmp_path / "third") as server:
        server.advance_period(to=3)
        show(server, 1)
        assert server.digest("ads") == expected


@pytest.mark.parametrize("is_reopened", [False, True])
def test_the_dead_are_absent_to_every_verb(
    tmp_path: Path, is_reopened: bool, ssd: hps.SsdStoreConfig
) -> None:
    server = opened(tmp_path, ssd=ssd)
    try:
        for key in (1, 2, 3):
            show(server, key)
        initial = server.pull("ads", keys_of(4))
        server.advance_period(to=2)
        show(server, 3)
        server.advance_period()
        if is_reopened:
            server.checkpoint()
            server.close()
            server = opened(tmp_path, ssd=ssd)
        assert server.period == 3
        assert server.num_rows("ads") == 1
        assert server.contains("ads", keys_of(1, 2, 3)).tolist() == [False, False, True]
        assert [keys.tolist() for keys, _ in server.items("ads")] == [[3]]
        assert server.erase("ads", keys_of(1, 3, 4)).tolist() == [False, True, False]
        assert server.statistics("ads", keys_of(1, 3))["last_period"].tolist() == [-1, -1]
        assert np.array_equal(server.pull("ads", keys_of(4)), initial)
        assert server.stats()["tables"]["ads"]["rows"] == 0
    finally:
        server.close()


def test_readers_restores_and_clones_use_their_checkpoints_period(
    tmp_path: Path, ssd: hps.SsdStoreConfig
) -> None:
    with opened(tmp_path, ssd=ssd) as server:
        show(server, 1)
        server.checkpoint("young")
        digest = server.digest("ads")
        server.advance_period(to=3)
        assert server.num_rows("ads") == 0
        server.checkpoint("old")
        rows = {one["tag"]: one["rows"] for one in server.checkpoints()}
        assert rows == {"young": 1, "old": 0}
        for tag, count in (("young", 1), ("old", 0)):
            with hps.open(tmp_path / "store", checkpoint=tag) as reader:
                assert reader.num_rows("ads") == count
        server.restore("young")
        assert (server.period, server.num_rows("ads"), server.digest("ads")) == (0, 1, digest)
        server.advance_period()
        assert server.num_rows("ads") == 1
    if ssd.engine == "segments":  # the other has no clones
        clone(tmp_path / "store", tmp_path / "copy", "young")
        with hps.open(tmp_path / "copy") as reader:
            assert (reader.num_rows("ads"), reader.digest("ads")) == (1, digest)
    assert verify(tmp_path / "store") == []


def many(server: hps.ParameterServer, first: int, count: int) -> None:
    keys = np.arange(first, first + count, dtype=np.uint64)
    server.push("ads", keys, np.ones((count, DIM), np.float32))


@pytest.mark.parametrize("is_background", [False, True])
def test_the_bytes_of_the_dead_go(tmp_path: Path, is_background: bool) -> None:
    """What they hid does not come back: an older record of a dead key lies in another segment."""
    with opened(tmp_path, hps.Expiry(unseen=1)) as server:
        for _ in range(3):
            many(server, 0, 40_000)
            server.checkpoint()
        many(server, 50_000, 100)
        server.advance_period()
        many(server, 50_000, 100)
        server.advance_period()
        store = server.parts.tables.store
        assert server.num_rows("ads") == 100
        if is_background:
            many(server, 50_000, 100)
            server.checkpoint()
        else:
            store.compact()
        server.checkpoint()
        store.compact()
        assert store.num_rows("ads") == 100
        assert server.contains("ads", np.arange(0, 40_000, dtype=np.uint64)).sum() == 0
        assert server.stats()["ssd_store"]["segment_bytes"] < 50_000
    with opened(tmp_path, hps.Expiry(unseen=1)) as server:
        assert server.num_rows("ads") == 100


def test_rules_hold_from_the_next_period_on(tmp_path: Path, ssd: hps.SsdStoreConfig) -> None:
    with opened(tmp_path, hps.Expiry(unseen=5), ssd=ssd) as server:
        for key in (1, 2):
            show(server, key)
        server.advance_period(to=3)
        show(server, 2)
    with opened(tmp_path, hps.Expiry(unseen=1), ssd=ssd) as server:
        assert server.statistics("ads", keys_of(1, 2))["dies_at"].tolist() == [6, 9]
        assert server.num_rows("ads") == 2
        server.advance_period()
        # Key 1 would have died in period 2 by the new rules, which began in period 4.
        assert server.contains("ads", keys_of(1, 2)).tolist() == [False, True]
        assert server.statistics("ads", keys_of(2))["dies_at"].tolist() == [5]
    with opened(tmp_path, hps.Expiry(unseen=9), ssd=ssd) as server:
        server.advance_period()  # what died by the rules before does not live again
        assert server.contains("ads", keys_of(1, 2)).tolist() == [False, True]
        assert server.statistics("ads", keys_of(2))["dies_at"].tolist() == [13]
    with opened(tmp_path, None, ssd=ssd) as server:
        server.advance_period()
        assert server.statistics("ads", keys_of(2))["dies_at"].tolist() == [-1]
        server.advance_period(to=1000)
        assert server.num_rows("ads") == 1


def test_a_table_that_only_counted_may_get_rules(tmp_path: Path) -> None:
    with opened(tmp_path, None) as server:
        for key in range(200):
            show(server, key)
        server.advance_period(to=5)
        show(server, 7)
    with opened(tmp_path) as server:
        server.advance_period()
        assert [keys.tolist() for keys, _ in server.items("ads")] == [[7]]


def test_rules_that_would_empty_a_table_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, None) as server:
        show(server, 1)
        show(server, 2)
    with opened(tmp_path, hps.Expiry(min_score=50.0)) as server:
        with pytest.raises(hps.ConfigError, match=r"all 2 rows would die at once.*allow_empty"):
            server.advance_period()
        assert (server.period, server.num_rows("ads")) == (0, 2)
        assert server.advance_period(allow_empty=True) == 1
        assert server.num_rows("ads") == 0


def test_other_rules_cost_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a row lives on, no further one is asked whether all die."""
    with opened(tmp_path, None) as server:
        for key in range(20):
            show(server, key)
    judged = []
    dies_at = rule_changes.RuleChange._dies_at

    def counted(change: Any, images: Any) -> Any:
        judged.append(len(images))
        return dies_at(change, images)

    monkeypatch.setattr(rule_changes, "_PIECE_BYTES", 1)  # a row a piece
    monkeypatch.setattr(rule_changes.RuleChange, "_dies_at", counted)
    with opened(tmp_path, hps.Expiry(unseen=3)) as server:
        server.advance_period()
        assert judged == [1] * 21 and server.num_rows("ads") == 20


def test_a_batch_in_flight_keeps_the_period(tmp_path: Path) -> None:
    with opened(tmp_path) as server:
        rows = server.pin("ads", keys_of(1))
        with pytest.raises(hps.ConfigError, match=r"1 pins of batches in flight"):
            server.advance_period()
        rows.release()
        server.advance_period()


def test_statistics_of_a_dead_row_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as server:
        server.advance_period(to=9)
        given = {
            "show": np.ones(1, np.float32),
            "click": np.zeros(1, np.float32),
            "last_period": np.array([4]),
        }
        rows = np.ones((1, DIM), np.float32)
        with pytest.raises(hps.ConfigError, match=r"key 1.*would have died in period 7"):
            server.assign("ads", keys_of(1), rows, statistics=given)
        given["last_period"] = np.array([8])
        server.assign("ads", keys_of(1), rows, statistics=given)
        assert server.statistics("ads", keys_of(1))["dies_at"].tolist() == [11]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "unseen=, min_score= or both"),
        ({"unseen": -1}, r"Expiry\.unseen=-1"),
        ({"unseen": 65535}, r"Expiry\.unseen=65535"),
        ({"unseen": 1.5}, r"Expiry\.unseen=1\.5"),
        ({"min_score": 0.0}, r"Expiry\.min_score=0\.0"),
        ({"min_score": float("nan")}, r"Expiry\.min_score=nan"),
        ({"unseen": 3, "decay": 1.01}, r"Expiry\.decay=1\.01"),
        ({"unseen": 3, "decay": 0.0}, r"Expiry\.decay=0\.0"),
        ({"unseen": 3, "nonclick": -0.1}, r"Expiry\.nonclick=-0\.1"),
        ({"unseen": 3, "click": "1"}, r"Expiry\.click='1'"),
        ({"min_score": 1e-50}, r"Expiry\.min_score=1e-50 must be from 1e-30 to 1e\+30"),
        ({"unseen": 3, "nonclick": 1e39}, r"Expiry\.nonclick=1e\+39"),
    ],
)
def test_rules_that_cannot_be_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(hps.ConfigError, match=message):
        hps.Expiry(**fields)
    with pytest.raises(hps.ConfigError, match=r"expiry=3 must be an hps\.Expiry"):
        ads(3)  # type: ignore[arg-type]


def test_where_rows_do_not_die_yet_expiry_is_refused(tmp_path: Path) -> None:
    gpu = hps.GpuCacheConfig(bytes="1MiB", device="cuda:0")
    with pytest.raises(hps.ConfigError, match=r"expiry=.*cuda:0"):
        hps.Config(path=tmp_path / "none", tables=[ads()], gpu=gpu)
    assert not (tmp_path / "none").exists()


def test_a_row_leaves_and_enters_with_its_death(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened(tmp_path) as server:
        show(server, 1)
        server.advance_period(to=2)
        show(server, 2, 2, 1)
        server.advance_period()
        digest = server.digest("ads")
    out = tmp_path / "rows.parquet"
    assert main(["export", str(tmp_path / "store"), str(out)]) == 0
    with hps.ParameterServer(hps.Config(path=tmp_path / "other", tables=[ads()])) as server:
        server.advance_period(to=3)
    assert main(["import", str(out), str(tmp_path / "other")]) == 0
    with hps.open(tmp_path / "other") as reader:
        assert reader.digest("ads") == digest
        assert reader.statistics("ads", keys_of(1, 2))["dies_at"].tolist() == [-1, 5]
    capsys.readouterr()


def test_damage_to_a_period_of_death_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as server:
        show(server, 1)
    (segment,) = (tmp_path / "store").glob("segment-*")
    whole = segment.read_bytes()
    for place in (len(whole) - 52, len(whole) - 8):  # the period, its checksum
        segment.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        ((name, _),) = verify(tmp_path / "store")
        assert name == str(segment)
        with pytest.raises(hps.CorruptionError, match="segment-"):
            opened(tmp_path)
    segment.write_bytes(whole)
    with opened(tmp_path) as server:
        assert server.num_rows("ads") == 1


def test_damage_to_rules_is_found(tmp_path: Path) -> None:
    with opened(tmp_path) as server:
        show(server, 1)
        server.checkpoint()
        rules = json.loads(server.checkpoint_blobs()["period.json"])["rules"]
        assert rules == {"ads": BY_AGE.described()}
        store = server.parts.tables.store
        store.checkpoint("bad", {"period.json": b'{"period": 0, "rules": {"ads": {"unseen": -1}}}'})
    with pytest.raises(hps.CorruptionError, match="holds no rules"):
        hps.open(tmp_path / "store", checkpoint="bad")


def test_tables_that_are_not_named_die_all_the_same(
    tmp_path: Path, ssd: hps.SsdStoreConfig
) -> None:
    tables = [ads(), hps.TableConfig(name="others", dim=DIM, expiry=BY_AGE)]
    config = hps.Config(path=tmp_path / "store", tables=tables, ssd=ssd)
    with hps.ParameterServer(config) as server:
        for name in ("ads", "others"):
            server.push(name, keys_of(1, 2), np.ones((2, DIM), np.float32))
    with opened(tmp_path, ssd=ssd) as server:  # names one of them
        server.advance_period(to=2)
        assert server.num_rows("ads") == 2
        server.advance_period()
        assert server.num_rows("ads") == 0
        assert server.stats()["tables"]["ads"]["expired_rows"] == 2
    with hps.ParameterServer(config) as server:
        assert server.num_rows("others") == 0
        server.push("others", keys_of(1), np.ones((1, DIM), np.float32))
        assert server.statistics("others", keys_of(1))["dies_at"].tolist() == [6]


def two_tables(path: Path, first: hps.Expiry | None, second: hps.Expiry | None) -> Any:
    tables = [
        hps.TableConfig(name=name, dim=DIM, expiry=expiry, statistics=True)
        for name, expiry in (("ads", first), ("others", second))
    ]
    return hps.ParameterServer(hps.Config(path=path / "store", tables=tables))


def test_a_refused_change_of_rules_changes_no_table(tmp_path: Path) -> None:
    with two_tables(tmp_path, hps.Expiry(unseen=1), None) as server:
        for name in ("ads", "others"):
            server.push(name, keys_of(1, 2), np.ones((2, DIM), np.float32))
        digests = [server.digest(name) for name in ("ads", "others")]
    with two_tables(tmp_path, hps.Expiry(unseen=500), hps.Expiry(min_score=99.0)) as server:
        with pytest.raises(hps.ConfigError, match=r"'others'.*all 2 rows would die at once"):
            server.advance_period()
        assert [server.digest(name) for name in ("ads", "others")] == digests
    with two_tables(tmp_path, hps.Expiry(unseen=1), None) as server:
        server.advance_period(to=2)
        assert (server.num_rows("ads"), server.num_rows("others")) == (0, 2)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_change_of_rules_that_failed_is_made_with_the_next_period(
    tmp_path: Path, is_reopened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, hps.Expiry(unseen=1)) as server:
        many(server, 0, 500)
    server = opened(tmp_path, hps.Expiry(unseen=500))
    restart = TableStack.restart

    def fails(stack: TableStack) -> None:
        raise hps.StoreError(28, "no space")

    monkeypatch.setattr(TableStack, "restart", fails)
    with pytest.raises(hps.StoreError):
        server.advance_period()
    monkeypatch.setattr(TableStack, "restart", restart)
    assert server.period == 0
    if is_reopened:  # with the old rules again: rows that have the new ones in part are mended
        server.checkpoint()
        server.close()
        server = opened(tmp_path, hps.Expiry(unseen=1))
    with server:
        server.advance_period()
        dies_at = server.statistics("ads", keys_of(1))["dies_at"].tolist()
        assert dies_at == [2 if is_reopened else 501]
        server.advance_period()
        assert server.num_rows("ads") == (0 if is_reopened else 500)


def test_a_batch_that_is_pinned_meanwhile_keeps_the_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as server:
        show(server, 1)
        held = []
        write_back = TableStack.write_back

        def pins_behind(stack: TableStack) -> int:
            count = write_back(stack)
            held.append(server.pin("ads", keys_of(1)))
            return count

        monkeypatch.setattr(TableStack, "write_back", pins_behind)
        with pytest.raises(hps.ConfigError, match="1 pins of batches in flight"):
            server.advance_period()
        monkeypatch.setattr(TableStack, "write_back", write_back)
        held.pop().release()
        assert server.period == 0
        assert server.advance_period() == 1


def test_a_checkpoint_without_rows_leaves_the_rules(tmp_path: Path) -> None:
    with opened(tmp_path, None) as server:
        server.checkpoint("empty")
    with opened(tmp_path) as server:
        show(server, 1)
        server.restore("empty")
        show(server, 1)
        assert server.statistics("ads", keys_of(1))["dies_at"].tolist() == [3]
        assert server.advance_period(to=3) == 3
        assert server.num_rows("ads") == 0


def test_statistics_are_judged_by_the_rules_in_force(tmp_path: Path) -> None:
    with opened(tmp_path, hps.Expiry(unseen=1)) as server:
        show(server, 1)
        server.advance_period()
        show(server, 1)
        server.checkpoint()
    with opened(tmp_path, hps.Expiry(unseen=500)) as server:
        given = {
            "show": np.ones(1, np.float32),
            "click": np.zeros(1, np.float32),
            "last_period": np.zeros(1, np.int64),
        }
        server.assign("ads", keys_of(2), np.ones((1, DIM), np.float32), statistics=given)
        assert server.statistics("ads", keys_of(2))["dies_at"].tolist() == [2]


def test_space_has_its_bound_without_a_thread(tmp_path: Path) -> None:
    """Dead rows count as such where nobody but appends can bury them."""
    schema = TableSchema.of(ads())
    row_bytes = schema.row_bytes
    with SsdStore.open(tmp_path / "store", [schema], compact_in_background=False) as store:
        for period in range(30):
            rows = np.zeros((60_000, row_bytes), np.uint8)
            rows[:, :8].view(np.uint64)[:, 0] = np.arange(60_000) + period * 60_000
            rows[:, 20:24].view(np.uint32)[:, 0] = period + 1
            store.append("ads", rows)
            store.set_period(period + 1)
        assert store.num_rows("ads") == 0
        # Four full segments of 8 MiB, where 30 times 60,000 rows take 130 MB.
        assert store.stats()["files_bytes"] < 5 * 2**23
