"""Periods of a store and statistics of its rows: what checkpoints hold of them, and what is
refused.
"""

import json
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps import _C
from hps.cli.main import main
from hps.errors import CorruptionError
from hps.ssd_store import verify
from hps.ssd_store.clone import clone

KEYS = np.array([7, 8, 7], np.uint64)
ONES = np.ones((3, 4), np.float32)
LABELS = np.array([1, 0, 0], np.float32)
ADS = hps.TableConfig(name="ads", dim=4, statistics=True)
PLAIN = hps.TableConfig(name="plain", dim=4)


def config(path: Path, *tables: hps.TableConfig, **others: Any) -> hps.Config:
    return hps.Config(path=path / "store", tables=tables or (ADS, PLAIN), **others)


def counts(server: hps.ParameterServer, keys: Any = KEYS) -> list[list[float]]:
    found = server.statistics("ads", keys)
    return [found[name].tolist() for name in ("show", "click", "last_period")]


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with hps.ParameterServer(config(tmp_path)) as opened:
        yield opened


def test_a_store_begins_at_period_0_and_goes_on_one_by_one(server: hps.ParameterServer) -> None:
    assert server.period == 0
    assert [server.advance_period(), server.advance_period(to=9), server.advance_period()] == [
        1,
        9,
        10,
    ]
    assert server.is_changed
    for wrong in (10, 0):
        with pytest.raises(hps.ConfigError, match=f"to={wrong}.* at period 10"):
            server.advance_period(to=wrong)
    for odd in (1.5, True, "11", -1, 2**31):
        with pytest.raises(hps.ConfigError, match="advance_period: to"):
            server.advance_period(to=odd)  # type: ignore[arg-type]
    assert server.advance_period(to=_C.MAX_PERIOD) == _C.MAX_PERIOD
    server.push("ads", KEYS, ONES)
    assert counts(server)[2] == [_C.MAX_PERIOD] * 3
    with pytest.raises(hps.ConfigError, match="is the last one"):
        server.advance_period()


def test_the_period_stays_while_a_pipeline_is_open(server: hps.ParameterServer) -> None:
    with hps.Pipeline([], server), pytest.raises(hps.ConfigError, match=r"1 open pipeline\(s\)"):
        server.advance_period()
    assert server.advance_period() == 1


def test_checkpoints_readers_and_clones_have_their_period(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with hps.ParameterServer(config(tmp_path)) as server:
        server.push("ads", KEYS, ONES, LABELS)
        server.checkpoint("first")
        server.advance_period(3)
        server.push("ads", KEYS[:1], ONES[:1], LABELS[:1])
        server.checkpoint("second")
        server.advance_period()
        newest, digest = counts(server), server.digest("ads")
        assert newest == [[3, 1, 3], [2, 0, 2], [3, 0, 3]]
    with hps.open(store, checkpoint="first") as reader:
        assert reader.period == 0 and counts(reader) == [[2, 1, 2], [1, 0, 1], [0, 0, 0]]
        with pytest.raises(hps.ConfigError, match="read-only"):
            reader.advance_period()
    with hps.open(store, checkpoint="second") as reader:
        assert reader.period == 3
    clone(store, tmp_path / "copy")
    for path in (store, tmp_path / "copy"):
        with hps.open(path) as reader:
            assert (reader.period, counts(reader), reader.digest("ads")) == (4, newest, digest)
            assert reader.tables["ads"].statistics and not reader.tables["plain"].statistics
    with hps.ParameterServer(config(tmp_path)) as server:
        server.restore("first")
        assert server.period == 0 and counts(server) == [[2, 1, 2], [1, 0, 1], [0, 0, 0]]
        server.push("ads", KEYS[1:2], ONES[:1])
        assert counts(server)[2] == [0, 0, 0]
        server.restore("second")
        server.push("ads", KEYS[1:2], ONES[:1])
        assert server.period == 3 and counts(server)[2] == [3, 3, 3]


def test_the_engine_over_rocksdb_has_both(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    ssd, store = hps.SsdStoreConfig(engine="rocksdb"), tmp_path / "store"
    with hps.ParameterServer(config(tmp_path, PLAIN, ssd=ssd)) as server:
        server.push("plain", KEYS, ONES)
        plain = server.digest("plain")
    assert b"statistics" not in (store / "ROCKSDB").read_bytes()  # as before there were any
    with hps.ParameterServer(config(tmp_path, ssd=ssd)) as server:
        server.push("ads", KEYS, ONES, LABELS)
        server.checkpoint("first")
        server.advance_period(3)
        server.push("ads", KEYS[:1], ONES[:1], LABELS[:1])
        digest = server.digest("ads")
        assert server.digest("plain") == plain
    with hps.open(store) as reader:
        assert (reader.period, reader.digest("ads")) == (3, digest)
        assert counts(reader) == [[3, 1, 3], [2, 0, 2], [3, 0, 3]]
        assert [piece[2].sum() for piece in reader.items("ads", statistics=True)] == [4]
    with pytest.raises(hps.ConfigError, match="'ads': stored statistics is True"):
        hps.ParameterServer(config(tmp_path, replace(ADS, statistics=False), ssd=ssd))
    with hps.ParameterServer(config(tmp_path, ssd=ssd)) as server:
        assert counts(server) == [[3, 1, 3], [2, 0, 2], [3, 0, 3]]
        server.restore("first")
        assert server.period == 0 and counts(server) == [[2, 1, 2], [1, 0, 1], [0, 0, 0]]
    assert verify(store) == []


_KILLED = """
import os, signal, sys
import numpy as np
import hps
table = hps.TableConfig(name="ads", dim=4, statistics=True)
server = hps.ParameterServer(hps.Config(path=sys.argv[1], tables=[table]))
keys, ones = np.arange(5000, dtype=np.uint64), np.ones((5000, 4), np.float32)
for _ in range(2):
    server.advance_period()
    server.push("ads", keys, ones, np.ones(5000, np.float32))
    server.checkpoint()
server.advance_period()
server.push("ads", keys, ones)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_goes_back_to_the_period_and_the_counts_of_the_checkpoint(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / "store")], check=False)
    assert done.returncode == -signal.SIGKILL
    with hps.ParameterServer(config(tmp_path, ADS)) as server:
        assert server.period == 2
        found = server.statistics("ads", np.arange(5000, dtype=np.uint64))
        assert (found["show"] == 2).all() and (found["click"] == 2).all()
        assert (found["last_period"] == 2).all()


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_periods_need_no_table_with_statistics(tmp_path: Path, engine: str) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    plain = config(tmp_path, PLAIN, ssd=hps.SsdStoreConfig(engine=engine))
    with hps.ParameterServer(plain) as server:
        server.push("plain", KEYS, ONES, LABELS)  # labels of a table that does not count
        server.checkpoint("old")
        assert "period.json" not in server.checkpoint_blobs("old")
        server.advance_period()
    with hps.ParameterServer(plain) as server:
        assert server.period == 1
        server.restore("old")
        assert server.period == 0
    with hps.open(tmp_path / "store") as reader:
        assert reader.period == 0


def test_a_period_that_cannot_be_one_is_damage(tmp_path: Path) -> None:
    with hps.ParameterServer(config(tmp_path, PLAIN)) as server:
        server.parts.checkpoints.save("odd", {"period.json": b'{"period": -3}'})
    with pytest.raises(CorruptionError, match=r"period\.json holds no period"):
        hps.open(tmp_path / "store")


@pytest.mark.parametrize("labels", [[0.5, 0, 1], [np.nan, 0, 1], [np.inf, 0, 0], [-1, 0, 0]])
def test_a_label_other_than_0_and_1_is_refused(
    server: hps.ParameterServer, labels: list[float]
) -> None:
    for table in ("ads", "plain"):
        with pytest.raises(hps.ConfigError, match=r"labels\[0\] is .* 0 or 1"):
            server.push(table, KEYS, ONES, np.array(labels, np.float32))
        assert server.num_rows(table) == 0


def test_labels_of_another_kind_are_refused(server: hps.ParameterServer) -> None:
    for labels, message in (
        (LABELS.astype(np.float64), "labels has dtype float64"),
        (LABELS[:2], r"labels has shape \[2\]; \[3\] is needed"),
        (LABELS[:, None], r"labels has shape \[3, 1\]"),
        ([1.0, 0.0, 0.0], "labels is a list"),
    ):
        with pytest.raises(hps.ConfigError, match=message):
            server.push("ads", KEYS, ONES, labels)  # type: ignore[arg-type]
    assert server.num_rows("ads") == 0
    server.push("ads", torch.from_numpy(KEYS.view(np.int64)), ONES, torch.from_numpy(LABELS))
    assert counts(server) == [[2, 1, 2], [1, 0, 1], [0, 0, 0]]


def test_statistics_are_as_the_keys_are(server: hps.ParameterServer) -> None:
    server.push("ads", KEYS, ONES, LABELS)
    found = server.statistics("ads", torch.tensor([9, 7]))
    assert {name: part.dtype for name, part in found.items()} == {  # type: ignore[union-attr]
        "show": torch.float32,
        "click": torch.float32,
        "last_period": torch.int64,
        "dies_at": torch.int64,
    }
    assert found["last_period"].tolist() == [-1, 0]
    empty = server.statistics("ads", np.empty(0, np.uint64))
    assert [len(part) for part in empty.values()] == [0] * 4
    server.pull("ads", np.array([50], np.uint64))  # which is fresh in its slot, and no row
    assert counts(server, np.array([50], np.uint64)) == [[0], [0], [-1]]
    for call in (
        lambda: server.statistics("plain", KEYS),
        lambda: server.items("plain", statistics=True),
        lambda: server.assign("plain", KEYS, ONES, statistics={}),
    ):
        with pytest.raises(hps.ConfigError, match="'plain' has no statistics"):
            call()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"show": [-1, 1, 1]}, r"key 7: show -1 and click 0"),
        ({"show": [np.inf, 1, 1]}, "show inf"),
        ({"click": [0, 2, 0]}, r"key 8: show 1 and click 2 .* 0 <= click <= show"),
        ({"click": [0, np.nan, 0]}, "click nan"),
        ({"last_period": [0, 0, 5]}, r"last_period is 5, and the store is at period 4"),
        ({"last_period": [0, -1, 0]}, "last_period is -1"),
        ({"last_period": [0.0, 0.0, 0.0]}, "'last_period'.* is float64"),
        ({"show": None}, "'show'"),
    ],
)
def test_counts_that_no_updates_leave_are_refused(
    server: hps.ParameterServer, changes: dict[str, Any], message: str
) -> None:
    server.advance_period(4)
    keys = np.array([7, 8, 9], np.uint64)
    given: dict[str, Any] = {
        "show": np.ones(3, np.float32),
        "click": np.zeros(3, np.float32),
        "last_period": np.zeros(3, np.int64),
    }
    for name, values in changes.items():
        if values is None:
            del given[name]
        else:
            kind = given[name].dtype if name != "last_period" else None
            given[name] = np.array(values, kind)
    with pytest.raises(hps.ConfigError, match=message):
        server.assign("ads", keys, ONES, statistics=given)
    assert server.num_rows("ads") == 0


def test_rows_leave_and_enter_with_their_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, file = tmp_path / "store", tmp_path / "ads.parquet"
    with hps.ParameterServer(config(tmp_path, ADS)) as server:
        server.advance_period(6)
        server.push("ads", KEYS, ONES, LABELS)
        expected, digest = counts(server), server.digest("ads")
    assert main(["export", str(store), str(file)]) == 0
    columns = [field.name for field in __import__("pyarrow.parquet").parquet.read_schema(file)]
    assert columns == ["key", "weights", "state", "show", "click", "last_period"]
    assert main(["import", str(file), str(tmp_path / "new")]) == 0
    with hps.open(tmp_path / "new") as reader:
        assert (reader.period, counts(reader), reader.digest("ads")) == (6, expected, digest)
    younger = tmp_path / "younger"
    with hps.ParameterServer(hps.Config(path=younger, tables=[ADS])) as server:
        server.push("ads", KEYS + 90, ONES)
    assert main(["import", str(file), str(younger)]) != 0
    assert "store is at period 0; advance_period" in capsys.readouterr().err
    with hps.ParameterServer(hps.Config(path=younger, tables=[PLAIN], dram=TINY)) as server:
        server.push("plain", KEYS, ONES)
    plain_file = tmp_path / "plain.parquet"
    assert main(["export", str(younger), str(plain_file), "--table", "plain"]) == 0
    assert main(["import", str(plain_file), str(tmp_path / "new"), "--table", "ads"]) == 0
    assert "statistics of new rows start at 0" in capsys.readouterr().out
    with hps.open(tmp_path / "new") as reader:
        assert counts(reader) == [expected[0], expected[1], [6, 6, 6]]


TINY = hps.DramCacheConfig(bytes="1MiB")


def test_commands_tell_of_periods_and_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    with hps.ParameterServer(config(tmp_path, ADS)) as server:
        server.advance_period(2)
        server.push("ads", KEYS, ONES, LABELS)
    assert main(["stats", str(store), "--json", str(tmp_path / "out.json")]) == 0
    assert "period: 2" in capsys.readouterr().out
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["period"] == 2 and figures["tables"]["ads"]["statistics"] is True
    assert main(["lookup", str(store), "--table", "ads", "--key", "7"]) == 0
    assert "show: 2, click: 1, last period: 2" in capsys.readouterr().out
    assert main(["verify", str(store)]) == 0
    with hps.ParameterServer(config(tmp_path, ADS)) as server:
        _count_wrongly(server)
    assert main(["verify", str(store)]) != 0
    assert "or counts that no optimizer makes (key 7 is one)" in capsys.readouterr().err


def _count_wrongly(server: hps.ParameterServer) -> None:
    """A click more than there are shows, as no verb leaves it."""
    stack = server.parts.tables.stack("ads")
    images = np.zeros((1, stack.layout.row_bytes), np.uint8)
    images.view(np.uint64)[0, 0] = 7
    images.view(np.float32)[0, 3] = 1.0
    server.parts.tables.store.append("ads", images)
    server.checkpoint()


def test_what_is_no_click_counts_as_many_shows_as_its_sample_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = replace(ADS, negative_rate=0.25)
    shows = np.float32(0)
    for table, more in ((sampled, 3), (replace(ADS, negative_rate=0.3), 1 / 0.3 - 1), (ADS, 0)):
        with hps.ParameterServer(config(tmp_path, table)) as server:
            server.push("ads", KEYS, ONES, LABELS)
            server.push("ads", KEYS[:1], ONES[:1])  # one without a label is no click
            shows = shows + (np.float32(2) + np.float32(more) * np.float32(1))
            shows = shows + (np.float32(1) + np.float32(more) * np.float32(1))
            assert counts(server, KEYS[:1])[0] == [float(shows)]
        with hps.open(tmp_path / "store") as reader:
            assert reader.tables["ads"] == table
            assert counts(reader, KEYS[:1])[0] == [float(shows)]
    with hps.ParameterServer(config(tmp_path, sampled)) as server:
        server.advance_period()
    assert main(["stats", str(tmp_path / "store")]) == 0
    assert "what is no click counts as 1 / 0.25 shows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"negative_rate": 0}, "negative_rate=0 must be .* of at least 1e-12 and at most 1"),
        ({"negative_rate": 9e-13}, "negative_rate=9e-13 must be"),
        ({"negative_rate": 1.5}, r"negative_rate=1\.5 must be"),
        ({"negative_rate": float("nan")}, "negative_rate=nan must be"),
        ({"negative_rate": 0.5, "statistics": False}, "negative_rate=0.5 .* give statistics=True"),
    ],
)
def test_a_rate_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(hps.ConfigError, match=message):
        replace(ADS, **fields)


def test_files_of_a_store_say_whether_it_counts(tmp_path: Path) -> None:
    for name, statistics in (("plain", False), ("counting", True)):
        table = hps.TableConfig(name="ads", dim=4, statistics=statistics)
        with hps.ParameterServer(hps.Config(path=tmp_path / name, tables=[table])) as server:
            server.push("ads", KEYS, ONES)
        version = 3 if statistics else 1
        current = (tmp_path / name / "CURRENT").read_bytes()
        assert struct.unpack_from("<I", current, 32) == (version,)
        (segment,) = (tmp_path / name).glob("segment-*")
        header = segment.read_bytes()[:64]
        assert struct.unpack_from("<I", header, 8) == (version,)
        row_bytes = 16 + 16 * statistics + 16 + 16  # header, weights, Adagrad's state
        assert struct.unpack_from("<I", header, 52) == (row_bytes,)
        assert verify(tmp_path / name) == []


@pytest.mark.parametrize("stored", [False, True])
def test_a_store_keeps_whether_a_table_counts(tmp_path: Path, stored: bool) -> None:
    def made(statistics: bool) -> hps.ParameterServer:
        return hps.ParameterServer(
            config(tmp_path, hps.TableConfig(name="ads", dim=4, statistics=statistics))
        )

    with made(stored) as server:
        server.push("ads", KEYS, ONES)
    with pytest.raises(hps.ConfigError, match=f"stored statistics is {stored}, requested"):
        made(not stored)
    with made(stored) as server:
        assert server.num_rows("ads") == 2


def test_a_store_without_a_checkpoint_knows_which_tables_count(tmp_path: Path) -> None:
    hps.ParameterServer(config(tmp_path)).close()
    with hps.open(tmp_path / "store") as reader:
        assert [table.statistics for table in reader.tables.values()] == [True, False]
        assert counts(reader) == [[0, 0, 0], [0, 0, 0], [-1, -1, -1]]


def test_a_store_without_statistics_may_get_a_table_that_counts(tmp_path: Path) -> None:
    with hps.ParameterServer(config(tmp_path, PLAIN)) as server:
        server.push("plain", KEYS, ONES)
        digest = server.digest("plain")
    with hps.ParameterServer(config(tmp_path)) as server:
        server.push("ads", KEYS, ONES, LABELS)
        assert server.digest("plain") == digest
    with hps.open(tmp_path / "store") as reader:
        assert counts(reader)[1] == [1, 0, 1] and reader.digest("plain") == digest


def test_where_rows_do_not_count_yet_statistics_are_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    with pytest.raises(hps.ConfigError, match="'ads' has statistics=True, but a gpu_cache on cuda"):
        config(tmp_path, gpu=hps.GpuCacheConfig(bytes="1GiB", device="cuda:0"))
    with pytest.raises(hps.ConfigError, match="statistics=1 must be True or False"):
        hps.TableConfig(name="ads", dim=4, statistics=1)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
