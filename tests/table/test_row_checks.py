"""Rows that no optimizer can make are refused at every door, by name, and change nothing.

Above it: pytest. Below it: hps/table/row_checks.py.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.common.row_layout import RowLayout
from hps.parameter_server import rows as parameter_server_rows
from hps.parameter_server.parquet import export_table
from hps.service.client import tables as client_tables
from tests.lab import OPTIMIZERS
from tests.service.client.client_lab import service

KEYS = np.array([3, 1, 2**64 - 1], np.uint64)
DIM = 3
# Of each optimizer: what of the state is spoilt, with which value, and how it is called.
BAD_STATE = [
    ("adagrad", 1, -1.0, "accumulator of column 1 is -1"),
    ("adagrad", 2, np.inf, "accumulator of column 2 is inf"),
    ("rowwise_adagrad", 0, -1e-30, "accumulator is -1e-30"),
    ("adam", 0, -0.5, "1 - beta1^t is -0.5"),
    ("adam", 1, 2.5, "1 - beta2^t is 2.5; it must be a number from 0 to 2"),
    ("adam", 3, np.nan, "first moment of column 1 is nan"),
    ("adam", 7, -1.0, "second moment of column 2 is -1"),
    ("ftrl", 0, -np.inf, "z of column 0 is -inf"),
    ("ftrl", 5, -2.0, "n of column 2 is -2"),
]


def optimizer_of(kind: str) -> hps.common.optimizers.Optimizer:
    return next(one for one in OPTIMIZERS if one.kind == kind)


def table_of(kind: str) -> hps.TableConfig:
    return hps.TableConfig(name="ads", dim=DIM, optimizer=optimizer_of(kind))


def good_rows(kind: str) -> tuple[Any, Any]:
    """Rows [3, dim] and a state [3, S] that the optimizer may hold."""
    layout = RowLayout(kind, DIM)
    rows = np.arange(3 * DIM, dtype=np.float32).reshape(3, DIM)
    return rows, np.full((3, layout.state_floats), 0.5, np.float32)


def server_of(folder: Path, kind: str) -> hps.ParameterServer:
    config = hps.Config(
        path=folder / "store", tables=[table_of(kind)], dram=hps.DramCacheConfig(bytes="4MiB")
    )
    return hps.ParameterServer(config)


def refuses(server: Any, rows: Any, state: Any, what: str) -> None:
    """The assign is refused by that name, and every row is as it was."""
    before = server.digest("ads")
    with pytest.raises((hps.NonFiniteError, hps.ConfigError), match=re.escape(what)) as refusal:
        server.assign("ads", KEYS, rows, state)
    assert "table 'ads', key 1:" in str(refusal.value)
    assert server.digest("ads") == before


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [one.kind for one in OPTIMIZERS])
def test_assign_refuses_weights_that_are_not_finite(
    tmp_path: Path, kind: str, value: float
) -> None:
    with server_of(tmp_path, kind) as server:
        rows, state = good_rows(kind)
        server.assign("ads", KEYS, rows, state)
        rows[1, 2] = value
        for given in (None, state):
            refuses(server, rows, given, f"weight of column 2 is {value:g}")


@pytest.mark.parametrize(("kind", "place", "value", "what"), BAD_STATE)
def test_assign_refuses_a_state_that_no_optimizer_makes(
    tmp_path: Path, kind: str, place: int, value: float, what: str
) -> None:
    with server_of(tmp_path, kind) as server:
        rows, state = good_rows(kind)
        server.assign("ads", KEYS, rows, state)
        state[1, place] = value
        refuses(server, rows, state, what)


def test_assign_refuses_weights_whose_new_state_overflows(tmp_path: Path) -> None:
    with server_of(tmp_path, "ftrl") as server:
        rows, state = good_rows("ftrl")
        rows[1, 0] = 3e38
        refuses(server, rows, None, "too large for the state that FTRL starts with")
        server.assign("ads", KEYS, rows, state)


@pytest.mark.parametrize("kind", [one.kind for one in OPTIMIZERS])
def test_what_training_makes_may_be_assigned(tmp_path: Path, kind: str) -> None:
    generator = np.random.default_rng(1)
    with server_of(tmp_path / "a", kind) as server, server_of(tmp_path / "b", kind) as other:
        for scale in (1e-30, 1.0, 1e6, 0.0):
            grads = generator.standard_normal((3, DIM)).astype(np.float32) * np.float32(scale)
            server.push("ads", KEYS, grads)
        for keys, rows, state in server.items("ads", state=True):
            other.assign("ads", keys, rows, state)
        assert other.digest("ads") == server.digest("ads")


@pytest.mark.parametrize("door", ["client", "shard"])
def test_a_service_refuses_and_logs_nothing(
    tmp_path: Path, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if door == "shard":  # a client that does not look
        monkeypatch.setattr(client_tables, "refuse_impossible_rows", lambda *_: None)
    with service(tmp_path, 2, [table_of("adagrad")]) as made, made.client() as client:
        rows, state = good_rows("adagrad")
        client.assign("ads", KEYS, rows, state)
        before, logged = client.digest("ads"), [s.parts.store.log.appended for s in made.shards]
        state[1, 1] = -1.0
        with pytest.raises(hps.ConfigError, match=r"table 'ads', key 1: accumulator of column 1"):
            client.assign("ads", KEYS[1:2], rows[1:2], state[1:2])
        rows[1, 0] = np.nan
        with pytest.raises(hps.NonFiniteError, match=r"table 'ads', key 1: weight of column 0"):
            client.assign("ads", KEYS[1:2], rows[1:2])
        assert client.digest("ads") == before
        assert door == "shard" or [s.parts.store.log.appended for s in made.shards] == logged
        client.push("ads", KEYS, np.ones((3, DIM), np.float32))  # the session goes on


def test_import_refuses_by_name_and_changes_no_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, state = good_rows("adagrad")
    with monkeypatch.context() as patched, server_of(tmp_path / "old", "adagrad") as old:
        patched.setattr(parameter_server_rows, "refuse_impossible_rows", lambda *_: None)
        old.assign("ads", KEYS, rows, np.where(state == 0.5, -1.0, state).astype(np.float32))
        export_table(old, "ads", tmp_path / "bad.parquet")
    with server_of(tmp_path, "adagrad") as server:
        server.assign("ads", KEYS, rows, state)
        before = server.digest("ads")
    assert main(["import", str(tmp_path / "bad.parquet"), str(tmp_path / "store")]) == 1
    said = capsys.readouterr().err
    assert "bad.parquet: table 'ads', key" in said and "accumulator of column 0 is -1" in said
    with hps.open(tmp_path / "store") as server:
        assert server.digest("ads") == before


def test_a_store_of_before_opens_and_verify_tells_what_it_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, state = good_rows("adam")
    rows[1, 1] = np.nan
    with monkeypatch.context() as patched, server_of(tmp_path, "adam") as server:
        patched.setattr(parameter_server_rows, "refuse_impossible_rows", lambda *_: None)
        server.assign("ads", KEYS, rows, state)
    with hps.open(tmp_path / "store") as server:
        assert np.isnan(server.pull("ads", KEYS)[1, 1])
    assert main(["verify", str(tmp_path / "store")]) == 1
    said = capsys.readouterr().err
    assert "table 'ads' holds 1 row(s)" in said and "key 1 is one" in said
    with server_of(tmp_path, "adam") as server:
        server.erase("ads", KEYS[1:2])
    assert main(["verify", str(tmp_path / "store")]) == 0
