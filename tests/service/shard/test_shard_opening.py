"""A served store is opened: by a shard, by a plain server, under another config, from a copy.

Above it: pytest. Below it: shard_lab.py.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.errors import MismatchError
from hps.parameter_server.opening import Tiers
from hps.service.shard.location import StoreLocation
from hps.service.shard.shard import Shard, ShardOptions
from hps.ssd_store.clone import clone
from hps.update_log import Epoch
from tests.lab import keys_of
from tests.service.shard.shard_lab import ShardLab, hps_config
from tests.service.shard.shard_session import CLIENT, KEYS, Session, ones, train, trained
from tests.twins.update_log import TwinLogDisk


def pair(server: Any, table: str = "sgd") -> tuple[int, int]:
    """The digest of a plain server as a shard gives it."""
    text = server.digest(table)
    return int(text[16:], 16), int(text[:16], 16)


def killed_after(lab: ShardLab, count: int) -> tuple[tuple[int, int], Session]:
    """A shard that was killed with so many pushes in its log; its digest and its client."""
    shard = lab.open()
    session = Session(shard)
    train(session, count)
    digest = shard.digest("sgd")
    lab.kill()
    return digest, session


def test_a_plain_server_over_a_served_store_replays_and_hands_the_marks_on(lab: ShardLab) -> None:
    digest, session = killed_after(lab, 6)
    with lab.embedded() as server:
        history = server.parts.checkpoints.history
        assert history is not None and history.num_replayed == 7
        assert pair(server) == digest
        server.push("sgd", KEYS, ones())  # without a log: its checkpoint holds it
        trained = pair(server)
    lab.kill()
    shard = lab.open()
    assert shard.stats()["service"]["records_replayed"] == 0
    assert shard.digest("sgd") == trained
    assert shard.open_session(CLIENT, session.incarnation).marks.applied == 6
    shard.push(session.next(), "sgd", KEYS, ones())


def test_a_plain_server_that_is_killed_leaves_the_log_to_the_next_opening(lab: ShardLab) -> None:
    digest, session = killed_after(lab, 6)
    server = lab.embedded()
    server.push("sgd", KEYS, ones())
    lab.kill()
    shard = lab.open()
    assert shard.digest("sgd") == digest
    assert shard.open_session(CLIENT, session.incarnation).marks.applied == 6


def test_a_plain_server_that_goes_back_ends_the_sessions(lab: ShardLab) -> None:
    shard, session = trained(lab, 3)
    shard.checkpoint("kept")
    kept = shard.digest("sgd")
    train(session, 4)
    lab.kill()
    with lab.embedded() as server:
        server.restore("kept")
        assert pair(server) == kept
    lab.kill()
    shard = lab.open()
    assert shard.digest("sgd") == kept and shard.lineage != "0"
    opened = shard.open_session(CLIENT)
    assert opened.incarnation > session.incarnation and opened.marks.applied == 3


def test_a_reader_sees_the_newest_checkpoint_and_not_the_log(lab: ShardLab) -> None:
    shard, session = trained(lab, 3)
    shard.checkpoint()
    kept = shard.digest("sgd")
    train(session, 3)
    with hps.open(lab.config.path, dram="64KiB") as reader:
        assert pair(reader) == kept


def test_two_openings_at_once_are_refused(lab: ShardLab) -> None:
    lab.open()
    with pytest.raises(hps.StoreError, match="process"):
        Shard(lab.config, _tiers=lab.tiers())


def test_a_store_of_embedded_training_can_be_served(lab: ShardLab) -> None:
    with lab.embedded() as server:
        server.push("sgd", KEYS, ones())
        trained = pair(server)
    lab.kill()
    with pytest.raises(hps.ConfigError, match="0 of 1 only"):
        Shard(lab.config, ShardOptions(index=1, count=2), _tiers=lab.tiers())
    shard = lab.open()
    assert (shard.index, shard.count) == (0, 1)
    assert shard.digest("sgd") == trained
    session = Session(shard)
    shard.push(session.next(), "sgd", KEYS, ones())
    assert shard.pull("sgd", KEYS).tolist() == (-2 * ones()).tolist()


def test_the_place_of_a_shard_is_fixed_once_it_is_served(tmp_path: Path) -> None:
    lab = ShardLab(tmp_path, index=1, count=4)
    shard = lab.open()
    assert (shard.index, shard.count) == (1, 4)
    shard.close()
    lab.options = ShardOptions(index=1, count=2)
    with pytest.raises(hps.ConfigError, match="shard 1 of 4"):
        lab.open()
    lab.kill()
    lab.options = ShardOptions()
    assert lab.open().count == 4
    lab.kill()


def test_other_numbers_of_an_optimizer_wait_until_the_log_is_applied(lab: ShardLab) -> None:
    digest, _ = killed_after(lab, 3)
    tables = [lab.config.tables[0]]
    eps = hps.Adagrad(lr=0.5, eps=1e-3, initial_accumulator_value=1.0)
    old = lab.config.tables[1]
    tables.append(
        hps.TableConfig(
            name=old.name, dim=old.dim, optimizer=eps, initializer=old.initializer, features=["b"]
        )
    )
    with pytest.raises(hps.ConfigError, match="when the updates were made"):
        lab.embedded(tables=tables)
    lab.kill()
    with hps.open(lab.config.path, read_only=False, dram="64KiB", _tiers=lab.tiers()) as server:
        assert pair(server) == digest
    lab.kill()
    with lab.embedded(tables=tables) as server:
        assert pair(server) == digest


def test_a_plain_server_that_leaves_a_table_of_the_log_out_is_refused(lab: ShardLab) -> None:
    killed_after(lab, 3)
    with pytest.raises(hps.ConfigError, match="changes table 'sgd'"):
        lab.embedded(tables=[lab.config.tables[1]])


def test_a_clone_goes_on_with_the_marks_of_its_checkpoint(lab: ShardLab, tmp_path: Path) -> None:
    shard, session = trained(lab, 3)
    shard.checkpoint("kept")
    kept = shard.digest("sgd")
    train(session, 2)
    clone(lab.config.path, tmp_path / "copy", "kept")
    lab.kill()
    lab.config = hps_config(lab.config, path=tmp_path / "copy")
    shard = lab.open()
    assert shard.digest("sgd") == kept
    session = Session(shard)
    assert session.sequence == 3
    train(session, 2)
    digest = shard.digest("sgd")
    lab.kill()
    assert lab.open().digest("sgd") == digest


def test_a_damaged_or_missing_history_is_told_by_name(lab: ShardLab) -> None:
    killed_after(lab, 3)
    path = Path(lab.config.path)
    file = path / "log" / "HISTORY"
    text = file.read_bytes()
    for damaged in (text[:-1], text.replace(b'"number": 1', b'"number": 2'), b""):
        file.write_bytes(damaged)
        with pytest.raises(hps.CorruptionError, match="HISTORY"):
            lab.open()
        lab.kill()
    file.unlink()
    with pytest.raises(hps.CorruptionError, match="missing beside"):
        lab.embedded()
    lab.kill()
    shutil.rmtree(path / "log")  # as the message says
    shard = lab.open()
    assert shard.num_rows("sgd") == 0
    assert not shard.open_session(CLIENT).is_known


def test_a_history_that_is_older_than_the_checkpoint_is_told(lab: ShardLab) -> None:
    shard = lab.open()
    old = Epoch.load(Path(lab.config.path))
    shard.checkpoint("kept")
    shard.restore("kept")
    shard.checkpoint()
    shard.close()
    assert old is not None
    old.save(Path(lab.config.path))
    with pytest.raises(hps.CorruptionError, match="older copy"):
        lab.open()


def test_a_store_without_tables_is_served_and_tables_come_one_by_one(tmp_path: Path) -> None:
    lab = ShardLab(tmp_path)
    place = StoreLocation(
        path=lab.config.path, dram=lab.config.dram, ssd=lab.config.ssd, seed=3, threads=1
    )
    shard = Shard(place, lab.options, _tiers=lab.tiers())
    assert shard.tables == []
    session = Session(shard)
    with pytest.raises(hps.ConfigError, match="no table 'sgd'"):
        shard.push(session.next(), "sgd", KEYS, ones())
    shard.skip(session.again())
    first, second = lab.config.tables
    assert shard.create_table(first) and not shard.create_table(first)
    train(session, 5)
    digest = shard.digest("sgd")
    assert shard.create_table(second)
    assert shard.digest("sgd") == digest
    train(session, 5)
    shard.push(session.next(), "adagrad", KEYS, ones())
    digests = [shard.digest(name) for name in ("sgd", "adagrad")]
    lab.shard = shard
    lab.kill()
    place = StoreLocation(path=lab.config.path, dram=lab.config.dram, threads=1)
    shard = lab.shard = Shard(place, lab.options, _tiers=lab.tiers())
    assert shard.tables == [first, second] and shard.parts.store.server.config.seed == 3
    assert [shard.digest(name) for name in ("sgd", "adagrad")] == digests
    assert shard.open_session(CLIENT, session.incarnation).marks.applied == 12
    lab.kill()


def test_a_table_that_is_there_otherwise_or_one_too_many_is_refused(tmp_path: Path) -> None:
    lab = ShardLab(tmp_path, max_tables=2)
    shard = lab.open()
    for change in ({"dim": 5}, {"optimizer": hps.Adam()}, {"initializer": hps.Constant(1.0)}):
        table = lab.config.tables[0]
        fields = {name: getattr(table, name) for name in ("dim", "optimizer", "initializer")}
        with pytest.raises(MismatchError, match=next(iter(change))):
            shard.create_table(hps.TableConfig(name="sgd", **{**fields, **change}))
    other_rate = hps.TableConfig(
        name="sgd", dim=4, optimizer=hps.SGD(lr=0.5), initializer=hps.Constant(0.0)
    )
    assert not shard.create_table(other_rate)
    with pytest.raises(hps.CapacityError, match="at most 2"):
        shard.create_table(hps.TableConfig(name="third", dim=4, features=["c"]))
    lab.kill()


def test_a_table_that_the_caches_have_no_room_for_leaves_all_as_it_was(lab: ShardLab) -> None:
    shard, session = trained(lab, 3)
    digest = shard.digest("sgd")
    with pytest.raises(hps.ConfigError, match="too small"):
        shard.create_table(hps.TableConfig(name="large", dim=1000, features=["c"]))
    assert shard.digest("sgd") == digest and len(shard.tables) == 2
    train(session, 2)
    digest = shard.digest("sgd")
    lab.kill()
    assert lab.open().digest("sgd") == digest


def test_a_clean_close_leaves_nothing_to_replay(lab: ShardLab) -> None:
    shard, session = trained(lab, 4)
    digest = shard.digest("sgd")
    shard.close()
    shard.close()
    with pytest.raises(hps.StoreError, match="closed"):
        shard.push(session.next(), "sgd", KEYS, ones())
    shard = lab.open()
    assert shard.stats()["service"]["records_replayed"] == 0
    assert shard.digest("sgd") == digest
    assert [one["tag"] for one in shard.checkpoints()] == ["automatic", "last"]
    with pytest.raises(hps.ConfigError, match="reserved for hps"):
        shard.checkpoint("automatic")


def test_the_engine_rocksdb_can_be_served_too(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    config = hps.Config(
        path=tmp_path / "store",
        tables=[hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=1.0))],
        dram=hps.DramCacheConfig(bytes="64KiB"),
        ssd=hps.SsdStoreConfig(engine="rocksdb"),
        threads=1,
    )
    tiers = Tiers(open_log=TwinLogDisk().open)
    shard = Shard(config, _tiers=tiers)
    session = Session(shard)
    shard.push(session.next(), "ads", keys_of(1, 2), ones(2))
    shard.checkpoint("kept")
    shard.push(session.next(), "ads", keys_of(1, 2), ones(2))
    digest = shard.digest("ads")
    shard.close(checkpoint=False)
    shard = Shard(config, _tiers=tiers)
    assert shard.digest("ads") == digest
    assert shard.stats()["service"]["records_replayed"] == 1
    shard.restore("kept")
    assert shard.open_session(CLIENT).marks.applied == 1
    shard.close()


def test_an_embedded_server_goes_on_with_the_period_of_a_served_store(tmp_path: Path) -> None:
    config = hps.Config(path=tmp_path / "store", tables=[hps.TableConfig(name="ads", dim=4)])
    with hps.ParameterServer(config) as server:
        server.advance_period(4)
    shard = Shard(config)
    session = Session(shard)
    shard.advance_period(session.next(), 6)
    shard.close(checkpoint=False)  # the log has it
    with hps.ParameterServer(config) as server:
        assert server.period == 6
        assert server.advance_period() == 7
    shard = Shard(config)
    assert shard.period == 7
    shard.close()


RULED = hps.TableConfig(
    name="sgd",
    dim=4,
    optimizer=hps.SGD(lr=0.001),
    expiry=hps.Expiry(unseen=5),
    admission=hps.Admission(count=1),
    max_rows=80,
    max_bytes="1MiB",
    dtype="bfloat16",
)


@pytest.mark.parametrize(
    "change",
    [
        {"expiry": hps.Expiry(unseen=9)},
        {"expiry": None, "max_rows": None, "max_bytes": None},
        {"admission": hps.Admission(count=7)},
        {"admission": None},
        {"max_rows": 40},
        {"max_rows": None},
        {"max_bytes": "2MiB"},
        {"rounding": "nearest"},
        {"negative_rate": 0.5},
        {"optimizer": hps.SGD(lr=0.001, weight_decay=0.5)},
    ],
    ids=lambda change: "-".join(map(str, next(iter(change.items())))),
)
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_served_store_is_not_opened_with_other_rules(
    tmp_path: Path, change: dict[str, Any], is_killed: bool
) -> None:
    lab = ShardLab(tmp_path)
    lab.config = hps_config(lab.config, tables=[RULED])
    shard = lab.open()
    shard.push(Session(shard).next(), "sgd", KEYS, ones())
    digest = shard.digest("sgd")
    if not is_killed:
        shard.close()
    lab.kill()
    lab.config = hps_config(lab.config, tables=[replace(RULED, **change)])
    with pytest.raises(MismatchError, match=rf"store: table 'sgd': its {next(iter(change))} is"):
        lab.open()
    lab.kill()
    lab.config = hps_config(lab.config, tables=[RULED])
    shard = lab.open()
    assert shard.tables == [RULED] and shard.digest("sgd") == digest
    lab.kill()


def test_a_served_store_is_opened_with_another_rate_and_share(tmp_path: Path) -> None:
    wide = replace(RULED, dtype="float32")
    lab = ShardLab(tmp_path)
    lab.config = hps_config(lab.config, tables=[wide])
    lab.open()
    lab.kill()
    other = replace(wide, optimizer=hps.SGD(lr=0.5), share=2.0, rounding="nearest")
    lab.config = hps_config(lab.config, tables=[other])
    assert lab.open().tables == [other]
    lab.kill()


def test_how_rows_count_stays_while_a_log_waits(tmp_path: Path) -> None:
    table = hps.TableConfig(name="sgd", dim=4, optimizer=hps.SGD(lr=0.001), statistics=True)
    lab = ShardLab(tmp_path)
    lab.config = hps_config(lab.config, tables=[table])
    shard = lab.open()
    shard.push(Session(shard).next(), "sgd", KEYS, ones())
    lab.kill()
    sampled = replace(table, negative_rate=0.5)
    with pytest.raises(hps.ConfigError, match=r"'sgd': negative_rate=0\.5 was 1\.0 when"):
        lab.embedded(tables=[sampled])
    lab.kill()
    with lab.embedded() as server:
        server.checkpoint()
    lab.kill()
    with lab.embedded(tables=[sampled]) as server:
        server.push("sgd", KEYS[:1], ones()[:1])
        assert server.statistics("sgd", KEYS[:2])["show"].tolist() == [3, 1]
    lab.kill()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rounding_stays_while_a_log_waits(tmp_path: Path, dtype: str) -> None:
    table = hps.TableConfig(name="sgd", dim=4, optimizer=hps.SGD(lr=0.001), dtype=dtype)
    nearest = replace(table, rounding="nearest")
    lab = ShardLab(tmp_path)
    lab.config = hps_config(lab.config, tables=[table])
    shard = lab.open()
    session = Session(shard)
    for _ in range(5):
        shard.push(session.next(), "sgd", KEYS, ones())
    digest = shard.digest("sgd")
    lab.kill()
    if dtype == "bfloat16":
        with pytest.raises(hps.ConfigError, match=r"'sgd': rounding='nearest' was 'stochastic'"):
            lab.embedded(tables=[nearest])
        lab.kill()
        with lab.embedded() as server:
            server.checkpoint()
        lab.kill()
    with lab.embedded(tables=[nearest]) as server:
        assert pair(server) == digest
    lab.kill()


def test_a_period_that_the_store_refuses_is_not_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or no opening would get past it."""
    pytest.importorskip("rocksdict")
    from hps.ssd_store.rocksdb.live_table import LiveTable

    old = LiveTable.dying

    def refuse(self: LiveTable, period: int, horizon: int) -> Any:
        if period == 2:
            raise hps.CorruptionError("damaged")
        return old(self, period, horizon)

    expiry = hps.Expiry(unseen=9)
    config = hps.Config(
        path=tmp_path / "store",
        tables=[hps.TableConfig(name="ads", dim=4, expiry=expiry, max_rows=3)],
        dram=hps.DramCacheConfig(bytes="64KiB"),
        ssd=hps.SsdStoreConfig(engine="rocksdb"),
        threads=1,
    )
    shard = Shard(config)
    session = Session(shard)
    shard.push(session.next(), "ads", keys_of(1, 2), ones(2))
    shard.advance_period(session.next(), 1)
    shard.push(session.next(), "ads", keys_of(3, 4), ones(2))
    refused = session.next()
    with monkeypatch.context() as patch:
        patch.setattr(LiveTable, "dying", refuse)
        with pytest.raises(hps.CorruptionError, match="damaged"):
            shard.advance_period(refused, 2)
        assert shard.num_rows("ads") == 4
        shard.close(checkpoint=False)
        shard = Shard(config)
    assert shard.num_rows("ads") == 4
    shard.advance_period(refused, 2)
    assert shard.num_rows("ads") == 2
    shard.close()
