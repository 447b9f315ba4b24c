"""Models by name: tags of runs, their lineage, promotion and roll-back from the command line.

Above it: pytest. Below it: hps/cli/models.py, hps/train/end_tag.py, hps/train/lineage.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.errors import ConfigError
from hps.parameter_server.opening import Tiers
from hps.ssd_store import open_store
from hps.ssd_store.promote import promote
from hps.ssd_store.promoted import Promotion, held
from hps.train import TrainOptions, train
from hps.train.progress import Progress
from tests.logs import write_criteo

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}


def train_on(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three days."""
    folder = tmp_path_factory.mktemp("logs")
    return [write_criteo(folder / f"{day}.tsv", 200, seed=day) for day in (1, 2, 3)]


@pytest.fixture
def store(logs: list[Path], tmp_path: Path) -> Path:
    """A model of two days, each under its tag."""
    path = tmp_path / "store"
    train_on(logs[0], path, tag="day-1")
    train_on(logs[1], path, tag="day-2", resume=True, new_data=True)
    return path


class At(Progress):
    """Acts after the first batch of a run."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(0)
        self._act: Callable[[], object] | None = act

    def update(self, *_: Any) -> None:
        act, self._act = self._act, None
        if act is not None:
            act()


def given_by_an_earlier_version(store: Path, tag: str, name: str) -> None:
    """Promotes to a name, also to one that is refused now."""
    with held(store) as promotions, hps.open(store) as server:
        created = next(one["created"] for one in server.checkpoints() if one["tag"] == tag)
        promotions.with_history(name, [Promotion(created, tag, created)]).save(store)


def models(store: Path, out: Path, *words: str) -> Any:
    assert main(["models", str(store), "--json", str(out), *words]) == 0
    return json.loads(out.read_text())


def predictions(log: Path, store: Path, out: Path, name: str) -> Any:
    words = [str(log), "--store", str(store), "--tag", name, "--dram", "8MiB", "--out", str(out)]
    assert main(["predict", *words]) == 0
    return np.load(out)


def test_a_run_is_kept_under_its_tag_with_its_parent(
    store: Path, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_on(logs[2], store, tag="day-3b", resume_from="day-1", resume=True, new_data=True)
    found = {one["tag"]: one for one in models(store, tmp_path / "out") if one["tag"]}
    assert {name: one["parent"] for name, one in found.items()} == {
        "day-1": None,
        "day-2": "day-1",
        "day-3b": "day-1",
    }
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("day-2 ") and " day-1 " in line for line in lines)
    train_on(logs[0], store, resume=True, resume_from="day-2", new_data=True)
    shown = models(store, tmp_path / "out", "--show", "final")
    assert [one["checkpoint"] for one in shown["lineage"]] == ["day-1", "day-2"]
    assert [one["examples"] for one in shown["lineage"]] == [200, 400]


def test_a_restart_of_the_same_log_is_no_parent(logs: list[Path], tmp_path: Path) -> None:
    train_on(logs[0], tmp_path / "store", tag="a", limit=128)
    train_on(logs[0], tmp_path / "store", tag="a", resume=True)
    (one,) = models(tmp_path / "store", tmp_path / "out")
    assert (one["tag"], one["parent"], one["examples"]) == ("a", None, 200)


def test_a_tag_that_is_taken_is_refused_before_anything_is_trained(
    store: Path, logs: list[Path], tmp_path: Path
) -> None:
    before = models(store, tmp_path / "out")
    for words in (
        {"tag": "day-1", "resume": True, "new_data": True},
        {"tag": "day-2", "resume": True, "new_data": True},
        {"tag": "day-1", "resume": True},
    ):
        with pytest.raises(ConfigError, match=r"tag='day-.' \(--tag\): .* keeps a checkpoint of t"):
            train_on(logs[1], store, **words)
    main(["models", str(store), "--promote", "day-1"])
    with pytest.raises(ConfigError, match=r"tag='live' \(--tag\): it is a promoted name"):
        train_on(logs[1], store, tag="live", resume=True, new_data=True)
    after = models(store, tmp_path / "out")
    assert [one | {"names": []} for one in after] == before


@pytest.mark.parametrize(
    ("name", "words"),
    [("final", {}), ("best", {"valid_share": 0.2, "tag": "day-3"})],
)
def test_a_name_of_earlier_versions_is_told_before_anything_is_trained(
    store: Path, logs: list[Path], tmp_path: Path, name: str, words: dict[str, Any]
) -> None:
    given_by_an_earlier_version(store, "day-1", name)
    before = models(store, tmp_path / "out")
    with pytest.raises(ConfigError, match=rf"'{name}' is a promoted name in .* --drop {name}\)"):
        train_on(logs[2], store, resume=True, new_data=True, **words)
    assert models(store, tmp_path / "out") == before
    train_on(logs[2], store, resume=True, new_data=True, tag="day-3")
    assert main(["models", str(store), "--drop", name]) == 0
    train_on(logs[2], store, resume=True, new_data=True, **{**words, "tag": None})


def test_what_was_trained_is_kept_where_its_name_is_promoted_meanwhile(
    store: Path, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = At(lambda: given_by_an_earlier_version(store, "day-1", "day-3"))
    words = {"resume": True, "new_data": True, "tag": "day-3"}
    figures = train(TrainOptions(data=[logs[2]], store=store, **SMALL, **words), told)
    assert figures["total_examples"] == 600
    assert "the tag 'day-3' became a promoted name while the run" in capsys.readouterr().err
    (current,) = [one for one in models(store, tmp_path / "out") if one["current"]]
    assert (current["tag"], current["examples"]) == (None, 600)
    assert models(store, tmp_path / "out", "--show", "day-3")["tag"] == "day-1"


def test_a_run_that_had_nothing_to_train_gives_the_tag(
    store: Path, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(logs[1]), "--store", str(store), "--resume", "--tag", "day-9"]
    assert main([*words, "--dram", "8MiB", "--batch-size", "64"]) == 0
    assert "nothing to train on: checkpoint 'day-9' is the model" in capsys.readouterr().err
    found = {one["tag"]: one for one in models(store, tmp_path / "out")}
    assert found["day-9"]["examples"] == found["day-2"]["examples"] == 400
    assert found["day-9"]["current"]
    train_on(logs[1], store, resume=True, tag="day-9")
    again = {one["tag"]: one for one in models(store, tmp_path / "out")}
    assert again["day-9"] == found["day-9"], "no new checkpoint"


def test_a_run_goes_on_from_one_checkpoint_where_its_name_moves_meanwhile(
    store: Path, logs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hps.train import beginning

    assert main(["models", str(store), "--promote", "day-1"]) == 0
    check = beginning.check_measured_logs

    def moved(*given: Any) -> None:
        assert main(["models", str(store), "--promote", "day-2"]) == 0
        check(*given)

    monkeypatch.setattr(beginning, "check_measured_logs", moved)
    words = {"resume": True, "new_data": True, "tag": "other"}
    found = train_on(logs[2], store, resume_from="live", **words)
    monkeypatch.undo()
    train_on(logs[2], store, resume_from="day-1", **{**words, "tag": "same"})
    with hps.open(store, checkpoint="other") as one, hps.open(store, checkpoint="same") as same:
        assert one.digest("features") == same.digest("features")
    assert (found["resumed_from"], found["total_examples"]) == ("'day-1'", 400)
    listed = {one["tag"]: one["parent"] for one in models(store, tmp_path / "out")}
    assert listed["other"] == listed["same"] == "day-1"


def test_a_checkpoint_that_is_replaced_while_a_run_begins_is_told(
    store: Path, logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On servers, where others may take one of the same name."""
    restore = hps.ParameterServer.restore

    def replaced(server: hps.ParameterServer, tag: str | int | None = None) -> Any:
        model, reader = server.checkpoint_state("day-1")
        assert model is not None
        server.checkpoint(tag="day-1", model=model, reader=reader)
        return restore(server, tag)

    monkeypatch.setattr(hps.ParameterServer, "restore", replaced)
    with pytest.raises(ConfigError, match="'day-1' was replaced by another one of its name while"):
        train_on(logs[2], store, resume=True, resume_from="day-1", new_data=True, tag="x")


def test_a_name_that_moves_to_a_newer_checkpoint_while_it_is_opened_is_opened(
    store: Path,
) -> None:
    promote(store, "day-1")
    opened: list[Any] = []

    def then_moved(*given: Any, **named: Any) -> Any:
        opened.append(open_store(*given, **named))
        if len(opened) == 1:
            with hps.open(store, read_only=False) as server:
                server.checkpoint(tag="day-3")
            promote(store, "day-3")
        return opened[-1]

    with hps.open(store, checkpoint="live", _tiers=Tiers(open_store=then_moved)) as server:
        model, _ = server.checkpoint_state()
        assert model is not None and model["totals"]["examples"] == 400
    assert len(opened) == 2


def test_a_server_goes_back_to_one_checkpoint_where_a_name_moves_meanwhile(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote(store, "day-1")
    with hps.open(store, checkpoint="day-1") as server:
        digest = server.digest("features")
    with hps.open(store, read_only=False) as server:
        rows = server.parts.tables.store
        extras = rows.extras

        def then_moved(*given: Any) -> Any:
            found = extras(*given)
            promote(store, "day-2")
            return found

        monkeypatch.setattr(rows, "extras", then_moved)
        model, _ = server.restore("live")
        assert model is not None and model["totals"]["examples"] == 200
        assert server.digest("features") == digest


@pytest.mark.parametrize("tag", ["", "best", "last", "a b", "ünï", "automatic", "x" * 65, "id:1"])
def test_what_cannot_be_the_tag_of_a_run_is_refused(tag: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tag="):
        TrainOptions(data=["log"], store=tmp_path / "store", tag=tag)
    log = write_criteo(tmp_path / "log.tsv", 10)
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--tag", tag]
    try:
        status = main(words)
    except SystemExit as ended:  # a word that is no value is refused by the parser
        status = int(str(ended.code))
    assert status != 0 and not (tmp_path / "store").exists()


def test_live_is_what_predicts_and_a_roll_back_gives_the_bits_before(
    store: Path, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        predictions(logs[2], store, tmp_path / "p.npy", tag) for tag in ("day-1", "day-2")
    )
    assert (first != second).any()
    for words, said in (
        (["--promote", "day-1"], "live is day-1"),
        (["--promote", "day-2", "--as", "live"], "live is day-2; it was day-1"),
        (["--promote", "live", "--as", "canary"], "canary is day-2"),
        (["--promote", "day-2"], "live is day-2, as before"),
    ):
        capsys.readouterr()
        assert main(["models", str(store), *words]) == 0
        assert capsys.readouterr().out == f"{store}: {said}\n"
    assert (predictions(logs[2], store, tmp_path / "p.npy", "live") == second).all()
    listed = models(store, tmp_path / "out")
    assert [one["names"] for one in listed if one["tag"]] == [[], ["canary", "live"]]
    assert "day-2 * (canary, live)" in capsys.readouterr().out
    moved = models(store, tmp_path / "out", "--roll-back", "live")
    assert moved == {"name": "live", "checkpoint": "day-1", "id": moved["id"], "before": "day-2"}
    assert (predictions(logs[2], store, tmp_path / "p.npy", "live") == first).all()
    with hps.Model.load(store, tag="live", dram="8MiB") as model:
        (batch,) = model.open_reader([logs[2]], batch_size=200)
        assert (model.predict(batch).numpy() == first).all()
    assert main(["models", str(store), "--drop", "canary"]) == 0
    words = ["lookup", str(store), "--tag", "live", "C1=05db9164"]
    assert main(words) == 0
    assert main(["evaluate", str(logs[2]), "--store", str(store), "--tag", "live"]) == 0
    assert "of checkpoint 'live'" in capsys.readouterr().out


def test_live_survives_the_next_day_under_the_same_tag(
    logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    train_on(logs[0], store)
    assert main(["models", str(store), "--promote", "final"]) == 0
    before = predictions(logs[2], store, tmp_path / "p.npy", "live")
    for log in logs:
        train_on(log, store, resume=True, new_data=True)
    assert (predictions(logs[2], store, tmp_path / "p.npy", "live") == before).all()
    assert (predictions(logs[2], store, tmp_path / "p.npy", "final") != before).any()
    train_on(logs[0], store, resume_from="live", resume=True, new_data=True, tag="other")
    found = {one["tag"]: one for one in models(store, tmp_path / "out")}
    assert found["other"]["examples"] == 400


def test_what_holds_no_model_is_not_promoted(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hps.open(store, read_only=False) as server:
        server.push("features", np.array([1], np.uint64), np.ones((1, 3), np.float32))
        server.checkpoint(tag="rows")
    for words, said in (
        (["--promote", "rows"], "checkpoint 'rows' holds no model"),
        (["--promote", "nothing"], "there is no checkpoint 'nothing'"),
        (["--roll-back", "live"], "'live' is no promoted name; there are: none"),
        (["--drop", "day-1"], "'day-1' is no promoted name"),
        (["--as", "live"], "--as names what --promote gives"),
        (["--promote", "day-1", "--as", "day-2"], "'day-2' is the tag of a checkpoint"),
    ):
        assert main(["models", str(store), *words]) != 0
        assert said in capsys.readouterr().err


def test_a_name_moves_beside_an_open_trainer(store: Path, tmp_path: Path) -> None:
    with hps.open(store, read_only=False) as server:
        assert main(["models", str(store), "--promote", "day-1"]) == 0
        assert [one["names"] for one in server.checkpoints() if one["tag"] == "day-1"] == [["live"]]
        with pytest.raises(ConfigError, match="promoted as 'live'"):
            server.delete_checkpoint("day-1")
        assert main(["lookup", str(store), "C1=05db9164"]) == 0, "reading goes on, too"
        server.restore("live")
        assert server.checkpoint(tag="day-1b")["model_from"] == "day-1"
