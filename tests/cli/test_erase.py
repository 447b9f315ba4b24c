"""`hps erase`: what goes, what stays in which checkpoint, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main

ALL = np.arange(10, dtype=np.uint64) + np.uint64(2**64 - 10)


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Path:
    tables = [hps.TableConfig(name=name, dim=2) for name in ("ads", "users")]
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=tables)) as server:
        server.assign("ads", ALL, np.ones((10, 2), np.float32))
        server.checkpoint("first")
        server.assign("users", ALL[:2], np.ones((2, 2), np.float32))
        server.checkpoint()
    return tmp_path / "store"


def erase(store: Path, text: str, *flags: str) -> Any:
    keys, out = store.parent / "keys.txt", store.parent / "erased.json"
    keys.write_text(text)
    assert main(["erase", str(store), "--keys", str(keys), *flags, "--json", str(out)]) == 0
    return json.loads(out.read_text())


def test_rows_go_and_it_tells_who_still_holds_them(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = erase(store, f"{2**64 - 1}\n\n 0xfffffffffffffff6 \n5\n{2**64 - 1}\n")
    assert (found["keys"], found["erased"]) == (3, {"ads": 2, "users": 1})
    tags = {one["tag"]: one["rows"] for one in found["held_by"]}
    assert tags == {"first": {"ads": 2}, None: {"ads": 2, "users": 1}} or tags == {
        "first": {"ads": 2, "users": 0},
        None: {"ads": 2, "users": 1},
    }
    assert "checkpoint first still holds 2 rows" in capsys.readouterr().out
    with hps.open(store) as reader:
        assert (reader.num_rows("ads"), reader.num_rows("users")) == (8, 1)
    assert main(["checkpoints", str(store), "--delete", "first"]) == 0
    again = erase(store, f"{2**64 - 1}\n", "--table", "ads")
    assert again["erased"] == {"ads": 0}
    assert all(one["tag"] != "first" for one in again["held_by"])


def test_keys_without_rows_are_no_error(store: Path) -> None:
    found = erase(store, "1\n2\n")
    assert found == {"keys": 2, "erased": {"ads": 0, "users": 0}, "held_by": []}


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("1\nx7\n", [], "keys.txt:2: 'x7' is no key"),
        (f"{2**64}\n", [], "keys.txt:1"),
        ("-1\n", [], "keys.txt:1"),
        ("\n", [], "holds no key"),
        ("1\n", ["--table", "none"], "the store has the tables ['ads', 'users']"),
    ],
)
def test_what_is_no_key_is_refused_and_nothing_goes(
    store: Path, text: str, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = store.parent / "keys.txt"
    keys.write_text(text)
    assert main(["erase", str(store), "--keys", str(keys), *flags]) != 0
    assert message in capsys.readouterr().err
    with hps.open(store) as reader:
        assert reader.num_rows("ads") == 10


def test_rows_go_by_what_they_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [("ads", True), ("plain", False), ("users", True)]
    tables = [hps.TableConfig(name=name, dim=2, statistics=counts) for name, counts in names]
    with hps.ParameterServer(hps.Config(path=tmp_path / "store", tables=tables)) as server:
        for name in ("ads", "plain", "users"):
            server.push(name, ALL, np.ones((10, 2), np.float32))
        server.checkpoint("first")
        server.advance_period()
        server.push("ads", ALL[:4], np.ones((4, 2), np.float32))
    out = tmp_path / "erased.json"
    asked = ["erase", str(tmp_path / "store"), "--unseen-for", "1", "--show-below", "2"]
    assert main([*asked, "--table", "ads", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["where"] == {"unseen_for": 1, "show_below": 2}
    assert found["erased"] == {"ads": 6}
    held = {one["tag"]: one["rows"] for one in found["held_by"]}
    assert held == {"first": {"ads": 6}, "last": {"ads": 6}}
    told = capsys.readouterr().out
    assert "table ads: 6 rows are erased, 4 are left" in told
    assert "checkpoint first still holds 6 rows of these keys" in told
    assert main(asked) == 0  # of all tables that count
    with hps.open(tmp_path / "store") as reader:
        assert [reader.num_rows(name) for name in ("ads", "plain", "users")] == [4, 10, 0]


def test_keys_and_a_predicate_are_not_given_at_once(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = store.parent / "keys.txt"
    keys.write_text("1\n")
    for asked in ([], ["--keys", str(keys), "--unseen-for", "1"]):
        assert main(["erase", str(store), *asked]) != 0
        assert "which rows? Give --keys, or --show-below" in capsys.readouterr().err
    assert main(["erase", str(store), "--unseen-for", "1"]) != 0
    assert "no table has statistics; give --keys" in capsys.readouterr().err
