"""Which checkpoints take a model over: those whose rows it still fits."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.checkpoint.dense_mark import DENSE, DenseMark
from hps.cli.main import main
from hps.contracts.updates import RowUpdate
from hps.parameter_server.server import ParameterServer
from hps.train.checkpoints import newest_with_model
from tests.lab import Lab, keys_of, table

Change = Callable[[ParameterServer], Any]
ONE = np.ones((1, 4), np.float32)

ADMINISTRATIVE: dict[str, Change] = {
    "erase": lambda server: server.erase("ads", keys_of(1)),
    "assign": lambda server: server.assign("ads", keys_of(2), ONE),
    "create": lambda server: server.pull("ads", keys_of(9), create=True),
}
TRAINING: dict[str, Change] = {
    "push": lambda server: server.push("ads", keys_of(2), ONE),
    "apply": lambda server: server.apply([RowUpdate("ads", keys_of(2), ONE)]),
}


def train(server: ParameterServer, tag: str | None = "final", step: int = 1) -> None:
    server.push("ads", keys_of(1, 2, 3), np.ones((3, 4), np.float32))
    server.checkpoint(tag, model={"step": step}, reader={"line": step})


@pytest.mark.parametrize("change", ADMINISTRATIVE)
def test_a_model_goes_with_rows_that_were_not_trained_on(lab: Lab, change: str) -> None:
    with lab.server(table()) as server:
        train(server)
        ADMINISTRATIVE[change](server)
        info = server.checkpoint("pruned")
        assert info["model_from"] == "final"
        digest = server.digest("ads")
        found = newest_with_model(server)
        assert found is not None and (found.name, found.model) == ("pruned", {"step": 1})
        server.restore("final")
        assert server.digest("ads") != digest
        assert server.restore("pruned") == ({"step": 1}, {"line": 1})
        assert server.digest("ads") == digest
    with lab.server(table()) as server:  # the rows are those of "pruned" still, not trained on
        ADMINISTRATIVE[change](server)
        assert server.checkpoint()["model_from"] == "final"
        assert server.checkpoint_state() == ({"step": 1}, {"line": 1})


@pytest.mark.parametrize("change", TRAINING)
def test_a_model_does_not_go_with_rows_that_were_trained_on(lab: Lab, change: str) -> None:
    with lab.server(table()) as server:
        train(server)
        TRAINING[change](server)
        assert "model_from" not in server.checkpoint("rows")
        server.erase("ads", keys_of(1))
        assert "model_from" not in server.checkpoint("pruned")
        assert server.checkpoint_state("rows") == (None, None)
    with lab.server(table()) as server:  # nor in a later session
        server.erase("ads", keys_of(2))
        assert "model_from" not in server.checkpoint("later")
        with pytest.raises(hps.ConfigError, match=r"'later'.* holds no model, and 'final' does"):
            newest_with_model(server)
        server.restore("final")
        found = newest_with_model(server)
        assert found is not None and found.name == "final"


def test_the_model_taken_over_is_that_of_the_checkpoint_gone_back_to(lab: Lab) -> None:
    with lab.server(table()) as server:
        train(server, "day-1", 1)
        train(server, "day-2", 2)
        server.push("ads", keys_of(5), ONE)
        server.restore("day-1")
        server.erase("ads", keys_of(1))
        assert server.checkpoint("pruned")["model_from"] == "day-1"
        assert server.checkpoint_state() == ({"step": 1}, {"line": 1})
        train(server, None, 3)
        assert server.checkpoint("again")["model_from"] == f"id:{server.checkpoints()[-2]['id']}"


@pytest.mark.parametrize("kind", ["native", "rocksdb"])
def test_a_model_is_taken_over_from_a_deleted_checkpoint_too(tmp_path: Path, kind: str) -> None:
    if kind == "rocksdb":
        pytest.importorskip("rocksdict")
    lab = Lab(kind, tmp_path)
    with lab.server(table()) as server:
        train(server)
        server.delete_checkpoint("final")
        server.erase("ads", keys_of(1))
    with lab.server(table()) as server:  # at "last", which leaving the block has taken
        assert [one["tag"] for one in server.checkpoints()] == ["last"]
        assert server.checkpoint_state() == ({"step": 1}, {"line": 1})
        assert server.checkpoint("mine")["model_from"] == "a deleted checkpoint"


def test_what_a_caller_gives_is_never_mixed_with_what_was_stored(lab: Lab) -> None:
    with lab.server(table()) as server:
        train(server)
        info = server.checkpoint("reader-only", reader={"line": 9})
        assert "model_from" not in info
        assert server.checkpoint_state("reader-only") == (None, {"line": 9})
        assert server.checkpoint_state("final") == ({"step": 1}, {"line": 1})


def test_a_checkpoint_that_fails_changes_nothing_about_the_model(twin_disk_lab: Lab) -> None:
    with twin_disk_lab.server(table()) as server:
        train(server)
        server.push("ads", keys_of(7), ONE)
        twin_disk_lab.disk.free_rows = 0
        with pytest.raises(hps.StoreError) as full:
            server.checkpoint("new", model={"step": 2}, reader={"line": 2})
        assert full.value.errno == errno.ENOSPC
        twin_disk_lab.disk.free_rows = None
        assert "model_from" not in server.checkpoint("rows")


def test_checkpoints_of_an_older_hps_open_and_their_models_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab("native", tmp_path)
    monkeypatch.setattr(DenseMark, "blobs", lambda mark: {})
    with lab.server(table()) as server:
        train(server)
        assert DENSE not in server.checkpoint_blobs()
    monkeypatch.undo()
    with lab.server(table()) as server:
        server.erase("ads", keys_of(1))
        assert server.checkpoint("pruned")["model_from"] == "final"
        server.push("ads", keys_of(2), ONE)
        monkeypatch.setattr(DenseMark, "blobs", lambda mark: {})
        server.checkpoint("unknown")
        monkeypatch.undo()
    with lab.server(table()) as server:  # nobody knows what became of these rows
        assert "model_from" not in server.checkpoint("mine")
        with pytest.raises(hps.ConfigError, match="older hps"):
            newest_with_model(server)


def test_compaction_and_import_keep_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, rows = tmp_path / "store", tmp_path / "rows.parquet"
    with hps.ParameterServer(hps.Config(path=store, tables=[table()])) as server:
        train(server)
        assert main(["export", str(store), str(rows), "--table", "ads"]) == 0
        server.delete_checkpoint("final")
    assert main(["compact", str(store)]) == 0
    assert main(["import", str(rows), str(store), "--table", "ads"]) == 0
    capsys.readouterr()
    with hps.open(store) as reader:
        (newest,) = [one["tag"] for one in reader.checkpoints() if one["current"]]
        assert newest == "last"
        assert all(
            reader.checkpoint_state(one["id"]) == ({"step": 1}, {"line": 1})
            for one in reader.checkpoints()
        )
