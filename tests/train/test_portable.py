"""A whole model as plain files: out of one store and into another with equal bits, or not at all.

Above it: pytest. Below it: hps/train/portable.py, `hps export --model`, `hps import`.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cli.main import main
from hps.errors import ConfigError, CorruptionError, HpsError
from hps.ssd_store.promote import promote
from hps.train import TrainOptions, portable, train
from hps.train.model_list import models_of
from hps.train.portable import MANIFEST, export_model, import_model
from tests.forking import in_forked_child
from tests.logs import write_criteo

SMALL = {"hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
FEATURES = '[columns]\nI1 = {kind = "number", scale = "standard"}\n'


def train_on(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("logs")
    return [write_criteo(folder / f"{day}.tsv", 300, seed=day) for day in (1, 2)]


@pytest.fixture(scope="module")
def store(logs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of Adam, whose rows have state, with dropout, learning rates of its own, a test."""
    path = tmp_path_factory.mktemp("trained") / "store"
    more = {"optimizer": "adam", "lr": 0.005, "dropout": 0.1, "dim": 2, "valid": [logs[1]]}
    train_on(logs[0], path, tag="day-1", seed=7, **more)
    return path


@pytest.fixture
def out(store: Path, tmp_path: Path) -> Path:
    export_model(store, tmp_path / "out", "day-1", dram="8MiB")
    return tmp_path / "out"


def bits_of(store: Path, log: Path) -> bytes:
    with hps.Model.load(store, dram="8MiB") as model:
        scores = [model.predict(batch) for batch in model.open_reader([log])]
        digests = {name: model.server.digest(name) for name in model.server.tables}
    return torch.cat(scores).numpy().tobytes() + json.dumps(digests).encode()


def test_what_is_imported_predicts_with_equal_bits(
    store: Path, out: Path, logs: list[Path], tmp_path: Path
) -> None:
    made = import_model(out, tmp_path / "new", dram="8MiB")
    assert (made["tag"], made["state"]) == ("day-1", True) and made["rows"] > 100
    shutil.rmtree(out)
    assert bits_of(tmp_path / "new", logs[1]) == bits_of(store, logs[1])
    (one,) = [one for one in models_of(store).models if one["tag"] == "day-1"]
    (new,) = models_of(tmp_path / "new").models
    same = ("tag", "kind", "dim", "examples", "batches", "train_logloss", "evaluation", "files")
    assert {name: new[name] for name in same} == {name: one[name] for name in same}
    assert one["evaluation"]["auc"] > 0


def test_new_data_goes_on_with_equal_bits(
    store: Path, out: Path, logs: list[Path], tmp_path: Path
) -> None:
    import_model(out, tmp_path / "new", dram="8MiB")
    old = shutil.copytree(store, tmp_path / "old")
    figures = [
        train_on(
            logs[1], path, resume=True, resume_from="day-1", new_data=True, tag="day-2", seed=7
        )
        for path in (old, tmp_path / "new")
    ]
    assert figures[0]["digests"] == figures[1]["digests"]
    assert figures[0]["loss_digest"] == figures[1]["loss_digest"]
    assert bits_of(old, logs[0]) == bits_of(tmp_path / "new", logs[0])


def test_a_model_with_a_features_file_goes_along(logs: list[Path], tmp_path: Path) -> None:
    features = tmp_path / "features.toml"
    assert main(["features", str(logs[0]), "--format", "criteo", "--out", str(features)]) == 0
    train_on(logs[0], tmp_path / "store", features=features, dim=2)
    export_model(tmp_path / "store", tmp_path / "out", dram="8MiB")
    features.unlink()
    import_model(tmp_path / "out", tmp_path / "new", dram="8MiB")
    assert bits_of(tmp_path / "new", logs[1]) == bits_of(tmp_path / "store", logs[1])


def test_learning_rates_that_were_changed_go_along(store: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(store, tmp_path / "old"))
    with hps.open(old, read_only=False) as server:
        (name,) = server.tables
        server.learning_rates[name] = 0.125
        server.checkpoint(tag="slow")
    export_model(old, tmp_path / "out", "slow", dram="8MiB")
    import_model(tmp_path / "out", tmp_path / "new", dram="8MiB")
    with hps.open(tmp_path / "new") as server:
        rates = server.checkpoint_blobs("slow", ["rates.json"])["rates.json"]
    assert json.loads(rates) == {name: 0.125}


def test_the_manifest_says_what_the_folder_holds(store: Path, out: Path) -> None:
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["format_version"] == 1 and manifest["hps"] == hps.__version__
    assert manifest["checkpoint"]["tag"] == "day-1" and manifest["seed"] == 7
    assert manifest["model"]["kind"] == "deepfm" and manifest["model"]["examples"] == 300
    assert sorted({MANIFEST, *manifest["files"]}) == sorted(path.name for path in out.iterdir())
    for name, said in manifest["files"].items():
        data = (out / name).read_bytes()
        assert said == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    state = torch.load(out / "model.pt", weights_only=True)
    assert state["recipe"]["kind"] == "deepfm"
    (table,) = manifest["tables"]
    with hps.open(store, checkpoint="day-1") as server:
        assert table["digest"] == server.digest(table["name"])


def test_the_command_line_carries_a_model_under_its_promoted_name(
    store: Path, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Path(shutil.copytree(store, tmp_path / "old"))
    assert main(["models", str(old), "--promote", "day-1"]) == 0
    words = ["export", str(old), str(tmp_path / "é out"), "--model", "--checkpoint", "live"]
    assert main(words) == 0
    assert "model 'day-1'" in capsys.readouterr().out
    assert main(["import", str(tmp_path / "é out"), str(tmp_path / "new")]) == 0
    assert "a model as 'day-1'" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "new")]) == 0
    assert bits_of(tmp_path / "new", logs[1]) == bits_of(store, logs[1])
    for words, said in (
        (["export", str(old), str(tmp_path / "é out"), "--model"], "holds something already"),
        (["export", str(old), str(tmp_path / "a"), "--model", "--table", "t"], "--table"),
        (["export", str(old), str(tmp_path / "no" / "a"), "--model"], "there is no folder"),
        (["export", str(old), str(tmp_path / "a"), "--model", "--checkpoint", "x"], "'x'"),
        (["import", str(tmp_path / "é out"), str(old)], "holds something already"),
        (["import", str(tmp_path / "é out"), str(tmp_path / "b"), "--table", "t"], "--table"),
        (["import", str(old), str(tmp_path / "b")], f"there is no {MANIFEST}"),
    ):
        capsys.readouterr()
        assert main(words) != 0
        assert said in capsys.readouterr().err, words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old", "é out"]


def test_an_empty_folder_that_one_is_in_takes_a_model(
    store: Path,
    logs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for folder, words in (
        ("out", ["export", os.path.relpath(store, tmp_path / "out"), ".", "--model"]),
        ("new", ["import", "../out", "./"]),
    ):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert main(words) == 0
        assert "'cd .' leaves that" in capsys.readouterr().out
        monkeypatch.chdir(tmp_path / folder)  # it is a new one
        assert any(Path.cwd().iterdir())
        assert not list(tmp_path.glob("*.partial"))
    assert main(["export", str(store), str(tmp_path / "other"), "--model"]) == 0
    assert "'cd .'" not in capsys.readouterr().out
    assert bits_of(tmp_path / "new", logs[1]) == bits_of(store, logs[1])


def test_a_link_is_no_folder_to_make(
    store: Path, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(path.name for path in tmp_path.iterdir())
    for name in ("link", "dangling"):
        for words in (
            ["export", str(store), str(tmp_path / name), "--model"],
            ["import", str(out), str(tmp_path / name)],
        ):
            capsys.readouterr()
            assert main(words) != 0
            assert f"{name} is a link; name the folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("act", ["open_store", "_info_of", "_export_rows"])
def test_an_export_is_of_one_checkpoint_where_its_name_moves_meanwhile(
    store: Path, logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    old = Path(shutil.copytree(store, tmp_path / "old"))
    train_on(logs[1], old, resume=True, new_data=True, tag="day-2", seed=7)
    promote(old, "day-1")
    done = getattr(portable, act)

    def moved(*given: Any, **named: Any) -> Any:
        promote(old, "day-2")
        return done(*given, **named)

    monkeypatch.setattr(portable, act, moved)
    made = export_model(old, tmp_path / "out", "live", dram="8MiB")
    with hps.open(old, checkpoint="day-1") as server:
        assert made["tables"][0]["digest"] == server.digest(made["tables"][0]["name"])
    assert (made["checkpoint"]["tag"], made["model"]["examples"]) == ("day-1", 300)


def test_an_export_waits_out_a_compaction_that_renews_its_checkpoint(
    store: Path, logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Path(shutil.copytree(store, tmp_path / "old"))
    train_on(logs[1], old, resume=True, new_data=True, tag="day-2", seed=7)
    promote(old, "day-2")
    opened, number = portable.open_store, models_of(old).models[-1]["id"]

    def renewed(*given: Any, **named: Any) -> Any:
        if named.get("checkpoint") == number:
            with hps.open(old, read_only=False) as server:
                server.compact()
        return opened(*given, **named)

    monkeypatch.setattr(portable, "open_store", renewed)
    made = export_model(old, tmp_path / "out", "live", dram="8MiB")
    assert made["checkpoint"]["tag"] == "day-2" and made["checkpoint"]["id"] != number


def test_without_state_rows_start_anew(
    store: Path, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(store), str(tmp_path / "out"), "--model", "--no-state"]
    assert main([*words, "--checkpoint", "day-1"]) == 0
    assert main(["import", str(tmp_path / "out"), str(tmp_path / "new")]) == 0
    assert "optimizer state of" in capsys.readouterr().out
    with (
        hps.Model.load(store, dram="8MiB") as old,
        hps.Model.load(tmp_path / "new", dram="8MiB") as new,
    ):
        (batch,) = old.open_reader([logs[1]], batch_size=300)
        assert (old.predict(batch) == new.predict(batch)).all()
        (name,) = old.server.tables
        assert old.server.digest(name) != new.server.digest(name)


def _damaged(out: Path, name: str) -> Path:
    path = out / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "name", ["model.pt", "reader.json", "rates.json", "tables.json", "table-0.parquet"]
)
def test_a_damaged_file_is_named_and_a_missing_one_told(
    out: Path, name: str, tmp_path: Path
) -> None:
    _damaged(out, name)
    with pytest.raises(CorruptionError, match=f"{name}: it has .* with SHA-256"):
        import_model(out, tmp_path / "new")
    (out / name).write_bytes((out / name).read_bytes()[:-1])
    with pytest.raises(CorruptionError, match=f"{name}: it has"):
        import_model(out, tmp_path / "new")
    (out / name).unlink()
    with pytest.raises(ConfigError, match=f"{name} is missing: this is only part of an export"):
        import_model(out, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_a_damaged_manifest_is_told_wherever_it_is_hit(out: Path, tmp_path: Path) -> None:
    path = out / MANIFEST
    whole = path.read_bytes()
    for place in range(0, len(whole), 37):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(HpsError, match=MANIFEST):
            import_model(out, tmp_path / "new")
    path.write_bytes(whole.replace(b'"format_version": 1', b'"format_version": 2'))
    with pytest.raises(ConfigError, match="format version 2; this hps"):
        import_model(out, tmp_path / "new")
    for text in (b"", b"[]", b"null", b'{"format_version": 1}'):
        path.write_bytes(text)
        with pytest.raises(HpsError, match=MANIFEST):
            import_model(out, tmp_path / "new")
    path.unlink()
    with pytest.raises(ConfigError, match="which is written last"):
        import_model(out, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("verb", ["export", "import"])
def test_a_kill_leaves_all_or_nothing(store: Path, out: Path, tmp_path: Path, verb: str) -> None:
    """Killed before each sync and rename; the run after it takes up what was left."""
    done, number, target = "", 0, tmp_path / "made"
    while done != "done":

        def act(number: int = number) -> str:
            count = 0

            def before(act: Any) -> Any:
                def called(*given: Any) -> Any:
                    nonlocal count
                    if count == number:
                        os._exit(0)
                    count += 1
                    return act(*given)

                return called

            for name in ("fsync", "rename"):
                setattr(os, name, before(getattr(os, name)))
            if verb == "export":
                export_model(store, target, "day-1", dram="8MiB")
            else:
                import_model(out, target, dram="8MiB")
            return "done"

        done = in_forked_child(act)
        assert done in ("", "done"), done
        if target.exists():
            new = tmp_path / f"new-{number}"
            made = import_model(target, new, dram="8MiB") if verb == "export" else None
            with hps.open(new if made else target) as server:
                (name,) = server.tables
                found = server.digest(name)
            with hps.open(store, checkpoint="day-1") as server:
                assert found == server.digest(name)
            shutil.rmtree(target)
        number += 1
    assert number > 1


def test_the_newest_model_leaves_and_rows_alone_do_not(store: Path, tmp_path: Path) -> None:
    made = export_model(store, tmp_path / "out", dram="8MiB")
    newest = next(one for one in models_of(store).models if one["current"])
    assert made["checkpoint"]["id"] == newest["id"]
    config = hps.Config(path=tmp_path / "rows", tables=[hps.TableConfig(name="ads", dim=2)])
    with hps.ParameterServer(config) as server:
        server.pull("ads", np.arange(3, dtype=np.uint64), create=True)
    with pytest.raises(ConfigError, match="no checkpoint holds a model"):
        export_model(tmp_path / "rows", tmp_path / "b")
    assert not (tmp_path / "b").exists() and not (tmp_path / "b.partial").exists()
