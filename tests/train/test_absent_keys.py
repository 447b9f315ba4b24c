"""What scoring says of keys that have no row: shares by feature, and a warning of most of them.

Above it: pytest. Below it: hps/train/absent_keys.py, `hps evaluate`, `hps predict`, `hps.Model`.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.train import TrainOptions, evaluate_store, train
from hps.train.absent_keys import AbsentKeys, format_absent
from hps.train.overlaid_rows import OverlaidRows
from hps.train.predict import predict_log

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
LOGGER = "hps.train.absent_keys"
Change = Callable[[str, str], str]


def write(path: Path, change: Change = lambda _, value: value, rows: range = range(400)) -> Path:
    """Users of 40, items of 10, visits that come once each; a user is missing now and then."""
    lines = ["click,user,item,visit"]
    for row in rows:
        values = {"user": f"{row * 7 % 40}" if row % 20 else "", "item": f"item-{row % 10}"}
        values["visit"] = f"v{row}"
        given = [change(name, value) if value else "" for name, value in values.items()]
        lines.append(f"{row % 3 % 2},{','.join(given)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("absent")
    train(
        TrainOptions(
            data=[write(folder / "log.csv")], store=folder / "store", label="click", **SMALL
        )
    )
    return folder / "store"


def prefixed(name: str, value: str) -> str:
    return value if name == "item" else f"x{value}"


def test_evaluate_counts_keys_without_a_row_by_feature(store: Path, tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", lambda _, value: "77" if value == "7" else value)
    absent = evaluate_store([log], store)["absent_keys"]
    assert absent["examples"] == 400
    # A missing user is no key; one of the 38 that are left is not the training's.
    assert absent["features"]["user"] == {
        "occurrences": 380,
        "absent_share": 10 / 380,
        "distinct": 38,
        "distinct_absent_share": 1 / 38,
    }
    assert absent["features"]["visit"]["absent_share"] == 0.0


def test_scoring_changes_no_share(store: Path, tmp_path: Path) -> None:
    """A key that was read once has a row in the cache alone, which is none."""
    log = write(tmp_path / "log.csv", prefixed)
    with hps.Model.load(store, dram="8MiB") as model:
        found = [predict_log(model, [log], tmp_path / "p.npy")["absent_keys"] for _ in range(2)]
    assert found[0] == found[1]
    assert found[1]["features"]["user"]["distinct_absent_share"] == 1.0


@pytest.mark.parametrize(
    "command", [["evaluate"], ["predict", "--out", "OUT"]], ids=["evaluate", "predict"]
)
def test_commands_say_shares_and_warn_with_values(
    store: Path,
    tmp_path: Path,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, figures = write(tmp_path / "log.csv", prefixed), tmp_path / "figures.json"
    words = [str(tmp_path / "p.csv") if word == "OUT" else word for word in command]
    assert main([*words, str(log), "--store", str(store), "--json", str(figures)]) == 0
    said = capsys.readouterr().out
    assert "keys without a row, of occurrences (of distinct keys): " in said
    assert "user 100.0 % (100.0 %)" in said
    assert "item 0.0 % (0.0 %)" in said
    assert json.loads(figures.read_text())["absent_keys"]["features"]["user"]["distinct"] == 38
    [warning] = [one.getMessage() for one in caplog.records if one.name == LOGGER]
    assert "user (100.0 %, as 'x7', 'x14', 'x21')" in warning
    assert "item" not in warning.split("; look for")[0]


def test_visits_that_come_once_each_are_no_fault(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = write(tmp_path / "log.csv", rows=range(400, 800))
    absent = evaluate_store([log], store)["absent_keys"]["features"]
    assert absent["visit"]["absent_share"] == 1.0
    assert not caplog.records
    everything = write(tmp_path / "bad.csv", lambda _, value: f" {value}", rows=range(12))
    evaluate_store([everything], store)
    assert "visit (100.0 %, as ' v0', ' v1', ' v2')" in caplog.text


def test_predict_warns_once_of_raw_columns(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = {"user": ["7"] * 300, "item": ["item-3"] * 300, "visit": ["v1"] * 300}
    bad = {**good, "user": ["7.0"] * 300}
    key = hps.key_of("user", "7.0")
    with hps.Model.load(store, dram="8MiB") as model:
        model.predict(good)
        assert not caplog.records
        for _ in range(3):
            model.predict(bad)
    [warning] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert f"user (50.0 %, as key {key})" in warning


def test_predict_looks_at_few_of_many_small_batches(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    contains = hps.ParameterServer.contains

    def counted(self: hps.ParameterServer, table: str, keys: Any) -> Any:
        looks.append(len(keys))
        return contains(self, table, keys)

    monkeypatch.setattr(hps.ParameterServer, "contains", counted)
    with hps.Model.load(store, dram="8MiB") as model:
        for _ in range(320):
            model.predict({"user": ["7"], "item": ["item-3"], "visit": ["v1"]})
    assert looks == [3] * 9


def test_versions_are_counted_like_stores(store: Path, tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", prefixed)
    assert main(["publish", str(store), str(tmp_path / "versions")]) == 0
    with hps.Model.load(tmp_path / "versions", cache_dir=tmp_path / "cache") as model:
        found = predict_log(model, [log], tmp_path / "p.npy")["absent_keys"]["features"]
    assert found["user"]["absent_share"] == 1.0
    assert found["item"]["absent_share"] == 0.0


def test_long_logs_are_looked_at_now_and_then(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hps.train.absent_keys._FIRST_EXAMPLES", 100)
    monkeypatch.setattr("hps.train.absent_keys._MOST_KEPT", 16)
    log = write(tmp_path / "log.csv", prefixed, rows=range(6400))
    with hps.Model.load(store, dram="8MiB") as model:
        absent = AbsentKeys(model.loaded)
        for _ in absent.watch(model.open_reader([log], batch_size=10)):
            pass
    figures: dict[str, Any] = absent.figures()
    looked_at = figures["absent_keys"]["examples"]
    assert 6400 / 32 <= looked_at <= 6400 / 32 + 10
    visits = figures["absent_keys"]["features"]["visit"]
    assert visits["occurrences"] == looked_at
    assert looked_at / 2 < visits["distinct"] < looked_at * 2  # by 16 of them
    assert f"; by {looked_at} of the examples" in str(format_absent({**figures, "examples": 6400}))


def test_shares_of_distinct_keys_are_of_all_alike() -> None:
    from hps.train.absent_keys import _MOST_KEPT, _OfFeature

    feature, random = _OfFeature(), np.random.default_rng(0)
    for _ in range(20):  # a quarter of the keys is absent, whatever their frequency
        keys = (random.zipf(1.2, 20_000) % 200_000).astype(np.uint64)
        feature.see(keys, keys % 4 == 0)
    figures = feature.figures()
    assert len(feature._products) == _MOST_KEPT
    assert abs(figures["distinct_absent_share"] - 0.25) < 0.03


def test_rows_on_servers_and_under_overlays_are_not_asked(store: Path, tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", prefixed)
    with hps.Model.load(store, dram="8MiB") as model:
        (batch,) = model.open_reader([log], batch_size=400)
        elsewhere: Any = object()  # of another class than ParameterServer: nothing is asked of it
        absent = AbsentKeys(replace(model.loaded, server=elsewhere))
        assert not absent.see(batch) and absent.figures() == {}
        absent.warn()
        rows = OverlaidRows(model.loaded.server)
        absent = AbsentKeys(replace(model.loaded, rows=rows))
        rows.overlays = {name: elsewhere for name in model.loaded.features}
        assert not absent.see(batch) and absent.figures() == {}
        rows.overlays = {}
        assert absent.see(batch) and absent.suspects() == ["user", "visit"]


def trained(folder: Path, **more: Any) -> Path:
    """A store of the log of `store`, of rows that come otherwise."""
    options = TrainOptions(
        data=[write(folder / "log.csv")], store=folder / "store", label="click", **SMALL | more
    )
    train(options)
    return folder / "store"


def test_rare_keys_of_a_rule_are_expected_to_have_no_row(tmp_path: Path, store: Path) -> None:
    """Half of a feature's occurrences is enough where every key has a row, 95 in 100 where not."""
    ruled = trained(tmp_path, admit_count=5)

    def suspects(of: Path, num_absent: int) -> list[str]:
        log = write(
            tmp_path / "scored.csv",
            lambda name, value: f"x{value}" if int(value[-1]) < num_absent else value,
        )
        with hps.Model.load(of, dram="8MiB") as model:
            absent = AbsentKeys(model.loaded)
            assert absent.see(*model.open_reader([log], batch_size=400))
        return absent.suspects()

    assert "item" not in suspects(store, 4) and "item" in suspects(store, 6)
    assert suspects(ruled, 0) == suspects(ruled, 9) == []  # but for visits, which are all new
    assert "item" in suspects(ruled, 10)


def test_keys_of_two_levels_are_counted_by_their_first_order_weights(tmp_path: Path) -> None:
    """None has a vector, for which its score is too small."""
    two_levels = trained(tmp_path, model="deepfm", two_level=1e6)
    found = evaluate_store([tmp_path / "log.csv"], two_levels)["absent_keys"]["features"]
    assert {name: one["absent_share"] for name, one in found.items()} == {
        "user": 0.0,
        "item": 0.0,
        "visit": 0.0,
    }
    with hps.Model.load(two_levels, dram="8MiB") as model:
        (table,) = model.loaded.features
        assert model.loaded.server.num_rows(table) == 0
