"""A model whose rows were erased, or trained on without it: what is measured and gone on from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.train import evaluate_store, train
from tests.train.test_training import options


def open_trained(folder: Path) -> hps.ParameterServer:
    return hps.open(folder / "store", read_only=False)


def some_keys(server: hps.ParameterServer) -> np.ndarray:
    (name,) = server.tables
    keys: np.ndarray = next(server.items(name, batch=100))[0]
    return keys


def test_erased_rows_stay_away_from_evaluate_and_resume(tmp_path: Path) -> None:
    whole = train(options(tmp_path, limit=1000))
    with open_trained(tmp_path) as server:
        (name,) = server.tables
        erased = some_keys(server)
        assert server.erase(name, erased).all()
        assert server.checkpoint(tag="pruned")["model_from"] == "final"
    log = [tmp_path / "train.txt"]
    before, after = (evaluate_store(log, tmp_path / "store", tag) for tag in ("final", None))
    assert after["checkpoint"] == "pruned" and after["rows"] == whole["rows"] - 100
    assert after["logloss"] != before["logloss"] and after["examples"] == before["examples"]
    figures = train(options(tmp_path, limit=1100, resume=True))
    assert figures["resumed_from"] == "'pruned'" and figures["examples"] == 100
    with hps.open(tmp_path / "store") as reader:
        assert not reader.contains(name, erased).all()


def test_rows_trained_on_without_the_model_are_refused_until_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(options(tmp_path, limit=1000))
    with open_trained(tmp_path) as server:
        (name,) = server.tables
        keys = some_keys(server)
        server.push(name, keys, np.ones((len(keys), server.tables[name].dim), np.float32))
        server.checkpoint(tag="pushed")
    log, store = str(tmp_path / "train.txt"), str(tmp_path / "store")
    for words in (
        ["evaluate", log, "--store", store],
        ["train", log, "--store", store, "--dim", "4", "--seed", "3", "--resume"],
    ):
        assert main(words) == 1
        said = capsys.readouterr().err
        assert "'pushed'" in said and "'final'" in said
        assert "--checkpoint final" in said and "--resume-from final" in said
    with pytest.raises(hps.ConfigError, match="holds a trained model"):
        train(options(tmp_path))
    assert evaluate_store([log], store, "final")["checkpoint"] == "final"
    with pytest.raises(hps.ConfigError, match="'pushed' holds no model and position"):
        train(options(tmp_path, resume=True, resume_from="pushed"))
    with pytest.raises(hps.ConfigError, match="set resume"):
        options(tmp_path, resume_from="final")
    figures = train(options(tmp_path, limit=1100, resume=True, resume_from="final"))
    assert figures["resumed_from"] == "'final'" and figures["examples"] == 100
    assert evaluate_store([log], store)["checkpoint"] == "final"


def test_resume_from_goes_back_to_the_rows_of_the_checkpoint_it_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, store = str(tmp_path / "train.txt"), tmp_path / "store"
    whole = train(options(tmp_path, limit=1000, digest=True, checkpoint_every=5))
    with hps.open(store) as reader:
        first = reader.checkpoints()[0]
    assert first["tag"] is None
    words = [
        "train",
        log,
        "--store",
        str(store),
        "--dim",
        "4",
        "--batch-size",
        "100",
        "--seed",
        "3",
    ]
    words += ["--hidden", "16,8", "--dropout", "0.2", "--dram", "16MiB", "--threads", "1"]
    words += ["--scheduler", "warmup", "--scheduler-steps", "8", "--limit", "1000"]
    assert main([*words, "--resume-from", f"id:{first['id']}"]) == 0
    assert f"goes on from checkpoint id:{first['id']}" in capsys.readouterr().err
    with hps.open(store) as reader:
        assert {name: reader.digest(name) for name in reader.tables} == whole["digests"]


def test_a_model_is_measured_on_the_rows_of_its_own_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training beside it replaces the checkpoint of that tag between two openings."""
    train(options(tmp_path, limit=500))
    opened: list[object] = []

    def open_store(*words: Any, **named: Any) -> Any:
        opened.append(words)
        if len(opened) == 2:
            train(options(tmp_path, limit=1000, resume=True))
        return hps.open(*words, **named)

    log, store = [tmp_path / "train.txt"], tmp_path / "store"
    with monkeypatch.context() as patch:
        patch.setattr("hps.train.model_places.open_store", open_store)
        patch.setattr("hps.train.model.open_store", open_store)
        measured = evaluate_store(log, store)
    assert len(opened) == 2
    assert measured["logloss"] == evaluate_store(log, store)["logloss"]
