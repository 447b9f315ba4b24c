"""`hps models`: what each checkpoint's model is, and the options that it was trained with.

Above it: pytest. Below it: hps/cli/models.py, hps/train/model_list.py, hps/train/stored_options.py.
"""

import io
import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.checkpoint.blobs import MODEL
from hps.cli.main import main
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, train
from hps.train.model_list import model_of, models_of
from hps.train.stored_options import plain_options
from tests.logs import write_criteo

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}


def train_on(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store with two checkpoints of a run, the second "final", and the run's figures."""
    folder = tmp_path_factory.mktemp("trained")
    log = write_criteo(folder / "é log.tsv", 300)
    return folder / "store", train_on(log, folder / "store", checkpoint_every=3, lr=0.05)


@pytest.fixture
def store(trained: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(trained[0], tmp_path / "copy"))


def listed(store: Path, out: Path, *words: str) -> Any:
    assert main(["models", str(store), "--json", str(out), *words]) == 0
    return json.loads(out.read_text())


def test_models_are_listed_with_what_they_are(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, figures = trained
    first, last = listed(store, tmp_path / "out")
    with hps.open(store) as server:
        kept = server.checkpoints()
    for info, model in zip(kept, (first, last), strict=True):
        assert {name: model[name] for name in ("tag", "id", "created", "rows", "bytes")} == {
            name: info[name] for name in ("tag", "id", "created", "rows", "bytes")
        }
        assert (model["kind"], model["dim"], model["evaluation"]) == ("deepfm", 2, None)
        assert [file["name"] for file in model["files"]] == ["é log.tsv"]
    assert (first["examples"], first["batches"], first["current"]) == (192, 3, False)
    assert (last["examples"], last["batches"], last["current"]) == (300, 5, True)
    assert last["train_logloss"] == pytest.approx(figures["train_logloss"])
    head, one, two = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "model" and one.startswith("id:1 ") and two.startswith("final * ")
    taken = datetime.fromtimestamp(last["created"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert taken in two and two.endswith("é log.tsv") and f"{last['train_logloss']:.5f}" in two


def test_all_about_one_is_shown(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, figures = trained
    model = listed(store, tmp_path / "out", "--show", "final")
    assert model["recipe"]["features"] == {"features": [f"C{n}" for n in range(1, 27)]}
    assert model["options"]["lr"] == 0.05 and model["options"]["checkpoint_every"] == 3
    assert model["options"]["model"] == "deepfm" and model["options"]["dim"] == 2, "settled"
    assert model["totals"]["loss_digest"] == figures["loss_digest"]
    assert model["position"]["line"] == 300 and model["parameters"]["dense_factors"] == [13, 2]
    text = capsys.readouterr().out
    for line in (
        "model final, the current one",
        "DATA: é log.tsv, ",
        "evaluations: none",
        '  kind = "deepfm"',
        "  lr = 0.05",
        '  dram = "8MiB"',
        "  deep.0.weight = [4, 65]",
        "trained on: 300 examples in 5 batches, mean logloss ",
    ):
        assert f"\n{line}" in f"\n{text}", line
    assert listed(store, tmp_path / "out", "--show", "id:1")["examples"] == 192


def test_every_option_is_stored_as_plain_values() -> None:
    options = TrainOptions(
        data=(Path("a"), "b"),
        remote=ClientConfig(addresses=["127.0.0.1:1"], token="secret-token", client_id="me"),
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        lr=np.float64(0.5),
        ignore=("x",),
        resume=True,
        resume_from=3,
    )
    plain = plain_options(options)
    # Those are what a run makes of DATA, or of the folder that it follows.
    assert set(plain) == set(vars(options)) - {"held_out", "followed"}
    assert type(plain["lr"]) is float and type(plain["seed"]) is int
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    buffer.seek(0)
    assert torch.load(buffer, weights_only=True) == plain
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["data"] == ["a", "b"] and plain["lr"] == 0.5 and plain["seed"] == 2**64 - 1
    assert plain["remote"]["addresses"] == ["127.0.0.1:1"] and plain["remote"]["token"] == "..."
    assert "secret" not in json.dumps(plain)


def test_no_secret_of_a_url_is_stored() -> None:
    url = "https://me:secret@host/a.csv?X-Amz-Signature=secret"
    plain = plain_options(TrainOptions(store=Path("s"), data=[url], test=(url,)))
    assert plain["data"] == plain["test"] == ["https://host/a.csv?X-Amz-Signature=..."]
    assert "secret" not in json.dumps(plain)


def test_no_token_is_in_what_a_checkpoint_holds(trained: tuple[Path, Any]) -> None:
    with hps.open(trained[0]) as server:
        blob = server.checkpoint_blobs("final", {MODEL})[MODEL]
    options = torch.load(io.BytesIO(blob), weights_only=True)["options"]
    assert options["remote"] is None and options["store"] == str(trained[0])


def change_model(store: Path, tag: str, **changes: Any) -> None:
    """Takes a checkpoint whose model differs; None leaves a key out."""
    with hps.open(store, read_only=False) as server:
        model, position = server.checkpoint_state("final")
        model = {name: one for name, one in {**model, **changes}.items() if one is not None}
        server.checkpoint(tag, model, position)


def test_a_model_of_an_earlier_version_is_shown_and_goes_on(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change_model(store, "old", options=None)
    model = listed(store, tmp_path / "out", "--show", "old")
    assert model["options"] is None and model["kind"] == "deepfm"
    assert "\noptions: none\n" in capsys.readouterr().out
    log = write_criteo(tmp_path / "more", 100)
    assert train_on(log, store, resume=True, new_data=True)["resumed_from"] == "'old'"
    assert model_of(store, "final")["options"]["new_data"] is True


def test_the_last_evaluation_is_told(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluations = [
        {"examples": 100, "auc": 0.6, "logloss": 0.7},
        {"examples": 200, "auc": float("nan"), "logloss": 0.51234567},
    ]
    change_model(store, "measured", evaluations=evaluations)
    change_model(store, "none", evaluations=[])
    *_, measured, none = listed(store, tmp_path / "out")
    assert measured["evaluation"] == {"examples": 200, "auc": None, "logloss": 0.51234567}
    assert none["evaluation"] is None
    text = capsys.readouterr().out
    assert "auc nan, logloss 0.51235 after 200" in text
    assert len(model_of(store, "measured")["evaluations"]) == 2
    main(["models", str(store), "--show", "measured"])
    assert "\n  examples 100, auc 0.60000, logloss 0.70000\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "model", [{"weights": [1.0]}, {"format_version": 2}, {"totals": 3, "evaluations": 7}, {}]
)
def test_a_model_of_a_users_own_loop_is_listed_as_such(
    tmp_path: Path, model: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    config = hps.Config(path=path, tables=[hps.TableConfig(name="ads", dim=2)])
    with hps.ParameterServer(config) as server:
        server.checkpoint("bare")
        server.checkpoint("own", model, {"files": "a\nb"})
    (found,) = listed(path, tmp_path / "out")
    assert found["tag"] == "own" and found["kind"] is None and found["examples"] is None
    assert "  unknown  " in capsys.readouterr().out
    assert model_of(path, "own")["options"] is None
    assert main(["models", str(path), "--show", "own"]) == 0
    assert "kind: unknown (of a loop of one's own, or" in capsys.readouterr().out
    assert main(["models", str(path), "--show", "bare"]) == 1
    assert "checkpoint 'bare' holds no model" in capsys.readouterr().err


def test_names_that_no_terminal_takes_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    with hps.ParameterServer(hps.Config(path=path, tables=[hps.TableConfig(name="a", dim=2)])) as s:
        s.checkpoint("own", {"a": 1}, {"files": [["x\ny\udcff\x1b[1m", 3], ["z", 4], [], 5]})
    assert main(["models", str(path)]) == 0
    assert capsys.readouterr().out.endswith("  x\\ny\\udcff\\x1b[1m, z\n")


def test_a_current_model_whose_tag_was_deleted_is_listed(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", str(store), "--delete", "final"]) == 0
    capsys.readouterr()
    first, current = listed(store, tmp_path / "out")
    assert first["id"] == 1 and not first["current"]
    assert (current["tag"], current["id"], current["created"]) == (None, None, None)
    assert current["current"] and current["examples"] == 300
    assert "\n(not listed) *  - " in capsys.readouterr().out


def test_where_there_is_no_model_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store"
    hps.ParameterServer(hps.Config(path=path, tables=[hps.TableConfig(name="a", dim=2)])).close()
    assert listed(path, tmp_path / "out") == []
    assert "no checkpoint holds a model" in capsys.readouterr().out
    (tmp_path / "empty").mkdir()
    for wrong in ("no", "empty", "out"):
        assert main(["models", str(tmp_path / wrong)]) == 1
        assert re.fullmatch(r"hps: error: .*there is no store here.*\n", capsys.readouterr().err), (
            wrong
        )
    assert main(["models", str(path), "--show", "day-1"]) == 1
    assert "there is no checkpoint 'day-1'" in capsys.readouterr().err


def test_beside_a_writer_and_nothing_is_changed(store: Path, tmp_path: Path) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in store.iterdir() if file.is_file()}
    with hps.open(store, read_only=False) as server:
        assert [one["tag"] for one in listed(store, tmp_path / "out")] == [None, "final"]
        server.checkpoint("later", *server.checkpoint_state("final"))
        assert [one["tag"] for one in models_of(store).models] == [None, "final", "later"]
    again = {file.name: file.stat().st_mtime_ns for file in store.iterdir() if file.is_file()}
    extras = [name for name in before if name.startswith("extra")]
    assert extras and all(again[name] == before[name] for name in extras)


def test_a_checkpoint_that_goes_while_it_is_read_is_left_out(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a training lets go of its oldest one between the listing and the reading."""
    from hps.train import model_list

    real, asked = model_list._blobs, []

    def blobs(kept: Any, name: Any) -> Any:
        asked.append(name)
        if len(asked) == 1:
            with hps.open(store, read_only=False) as server:
                server.delete_checkpoint(1)
            raise hps.StoreError(2, "the blob has gone")
        return real(kept, name)

    monkeypatch.setattr(model_list, "_blobs", blobs)
    assert [one["tag"] for one in models_of(store).models] == ["final"]

    def broken(kept: Any, name: Any) -> Any:
        raise hps.CorruptionError("damaged")

    monkeypatch.setattr(model_list, "_blobs", broken)
    with pytest.raises(hps.CorruptionError, match="damaged"):
        models_of(store)


def test_the_folder_of_several_ranks(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster"
    assert main(["reshard", str(store), str(path), "--ranks", "3"]) == 0
    (model,) = listed(path, tmp_path / "out")
    assert (model["tag"], model["examples"], model["dim"]) == ("final", 300, 2)
    assert model["rows"] == model_of(store, "final")["rows"]
    assert model_of(path, "final")["options"]["lr"] == 0.05
    (generation,) = path.glob("generation-*")
    shutil.rmtree(generation / "rank-2")  # of another host, as all but the first may be
    assert len(models_of(path).models) == 1
    shutil.rmtree(generation / "rank-0")
    capsys.readouterr()
    assert listed(path, tmp_path / "out") == []
    assert capsys.readouterr().out == (
        "checkpoint final: its first part, where a model would be, is on another host\n"
    )
    assert main(["models", str(path), "--show", "final"]) == 1
    assert "on another host" in capsys.readouterr().err


def test_a_store_of_the_rocksdb_engine(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    log = write_criteo(tmp_path / "log", 100)
    train_on(log, tmp_path / "store", engine="rocksdb")
    (model,) = models_of(tmp_path / "store").models
    assert model["examples"] == 100 and model["current"] and model["dim"] == 2


def test_options_of_a_run_change_no_bit_of_what_it_trains(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", 200)
    one = train_on(log, tmp_path / "one", threads=1)
    other = train_on(log, tmp_path / "other", threads=2, checkpoint_every=1)
    assert one["digests"] == other["digests"] and one["loss_digest"] == other["loss_digest"]
    states = []
    for store in ("one", "other"):
        with hps.open(tmp_path / store) as server:
            states.append(server.checkpoint_state("final")[0])
    assert states[0]["options"] != states[1]["options"]
    for name, tensor in states[0]["model"].items():
        assert torch.equal(tensor, states[1]["model"][name])
