"""Models by name in the folder of several ranks: what `hps train` under torchrun, `hps predict`,
`evaluate`, `models`, `export` and `hps.Model` make of a promoted name.

Above it: pytest. Below it: rank_nursery.py, hps/cli/models.py, hps/ssd_store/promote.py.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from tests.cluster.rank_nursery import Job, Nursery
from tests.logs import write_criteo


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three days."""
    folder = tmp_path_factory.mktemp("logs")
    return [write_criteo(folder / f"{day}.tsv", 200, seed=day) for day in (1, 2, 3)]


def words(log: Path, store: Path, *others: str) -> list[str]:
    flags = ["--dim", "2", "--hidden", "4", "--batch-size", "64", "--dram", "2MiB"]
    flags += ["--seed", "3", "--threads", "1", "--progress-seconds", "0"]
    return ["train", str(log), "--store", str(store), *flags, *others]


NEXT_DAY = ("--resume", "--new-data")


@pytest.fixture(scope="module")
def trained(ranks: Nursery, logs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two ranks, a model of two days, each under its tag."""
    path = tmp_path_factory.mktemp("trained") / "store"
    ranks.figures(Job(words(logs[0], path, "--tag", "day-1"), 2))
    ranks.figures(Job(words(logs[1], path, "--tag", "day-2", *NEXT_DAY), 2))
    return path


@pytest.fixture
def store(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / "store")


def models(store: Path, out: Path, *others: str) -> Any:
    assert main(["models", str(store), "--json", str(out), *others]) == 0
    return json.loads(out.read_text())


def predictions(log: Path, store: Path, out: Path, name: str) -> Any:
    flags = ["--store", str(store), "--tag", name, "--dram", "8MiB", "--out", str(out)]
    assert main(["predict", str(log), *flags]) == 0
    return np.load(out)


def test_live_is_what_predicts_and_a_roll_back_gives_the_bits_before(
    store: Path, logs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.npy"
    first, second = (predictions(logs[2], store, out, tag) for tag in ("day-1", "day-2"))
    assert (first != second).any()
    capsys.readouterr()
    for others, said in (
        (["--promote", "day-1"], "live is day-1"),
        (["--promote", "day-2", "--as", "live"], "live is day-2; it was day-1"),
        (["--promote", "live", "--as", "canary"], "canary is day-2"),
        (["--promote", "day-2"], "live is day-2, as before"),
    ):
        assert main(["models", str(store), *others]) == 0
        assert capsys.readouterr().out == f"{store}: {said}\n"
    assert (predictions(logs[2], store, out, "live") == second).all()
    listed = models(store, tmp_path / "out")
    assert [one["names"] for one in listed if one["tag"]] == [[], ["canary", "live"]]
    assert models(store, tmp_path / "out", "--show", "canary")["tag"] == "day-2"
    moved = models(store, tmp_path / "out", "--roll-back", "live")
    assert moved == {"name": "live", "checkpoint": "day-1", "id": moved["id"], "before": "day-2"}
    assert (predictions(logs[2], store, out, "live") == first).all()
    with hps.Model.load(store, tag="live", dram="8MiB") as model:
        (batch,) = model.open_reader([logs[2]], batch_size=200)
        assert (model.predict(batch).numpy() == first).all()
    assert main(["models", str(store), "--drop", "canary"]) == 0
    assert main(["lookup", str(store), "--tag", "live", "C1=05db9164"]) == 0
    assert main(["evaluate", str(logs[2]), "--store", str(store), "--tag", "live"]) == 0
    assert "of checkpoint 'live'" in capsys.readouterr().out
    whole = ["--model", "--checkpoint", "live"]
    assert main(["export", str(store), str(tmp_path / "files"), *whole]) == 0
    assert main(["import", str(tmp_path / "files"), str(tmp_path / "alone")]) == 0
    assert (predictions(logs[2], tmp_path / "alone", out, "day-1") == first).all()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_go_on_from_a_name_and_keep_what_has_it(
    ranks: Nursery, store: Path, logs: list[Path], tmp_path: Path, size: int
) -> None:
    """Under the same tag, which is then that of the new one, and by as many ranks or by others."""
    out = tmp_path / "p.npy"
    main(["models", str(store), "--promote", "day-1"])
    before = predictions(logs[2], store, out, "live")
    copy = shutil.copytree(store, tmp_path / "copy")
    flags = ["--resume-from", "live", *NEXT_DAY, "--tag", "other"]
    figures = ranks.figures(Job(words(logs[2], store, *flags), size))
    assert (figures["resumed_from"], figures["total_examples"]) == ("'day-1'", 400)
    flags[1] = "day-1"
    ranks.figures(Job(words(logs[2], copy, *flags), size))
    by_tag = predictions(logs[2], copy, out, "other")
    assert (predictions(logs[2], store, out, "other") == by_tag).all()
    assert (predictions(logs[2], store, out, "live") == before).all()
    found = {one["tag"]: one for one in models(store, tmp_path / "out")}
    assert found["other"]["parent"] == "day-1" and found["day-1"]["names"] == ["live"]


def test_live_survives_the_next_days_under_the_same_tag(
    ranks: Nursery, logs: list[Path], store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "p.npy"
    ranks.figures(Job(words(logs[0], store, *NEXT_DAY), 2))  # it is `final`
    main(["models", str(store), "--promote", "final"])
    before = predictions(logs[2], store, out, "live")
    for log, size in zip(logs[1:], (2, 1), strict=True):
        ranks.figures(Job(words(log, store, *NEXT_DAY), size))
    assert (predictions(logs[2], store, out, "live") == before).all()
    assert (predictions(logs[2], store, out, "final") != before).any()


def test_a_name_is_no_tag_of_a_run_of_ranks(ranks: Nursery, logs: list[Path], store: Path) -> None:
    main(["models", str(store), "--promote", "day-1"])
    ended = ranks.run(Job(words(logs[2], store, "--tag", "live", *NEXT_DAY), 2))
    assert set(ended.statuses) != {0}
    assert "tag='live' (--tag): it is a promoted name" in "".join(ended.err)
    with hps.open(store) as server:
        assert [one["names"] for one in server.checkpoints() if one["tag"] == "day-1"] == [["live"]]


def test_what_cannot_be_promoted_is_told_as_of_a_store_of_one_process(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for others, said in (
        (["--promote", "nothing"], "there is no checkpoint 'nothing'"),
        (["--roll-back", "live"], "'live' is no promoted name; there are: none"),
        (["--drop", "day-1"], "'day-1' is no promoted name"),
        (["--promote", "day-1", "--as", "day-2"], "'day-2' is the tag of a checkpoint"),
        (["--promote", "day-1", "--as", "final"], "'final' cannot be a promoted name"),
    ):
        assert main(["models", str(store), *others]) != 0
        assert said in capsys.readouterr().err
