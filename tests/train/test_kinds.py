"""A run of each kind of model: on, measured and scored as one run, and flags that do nothing in it.

Above it: pytest. Below it: `hps train`, `hps evaluate`, `hps predict`, hps/train/shape_rules.py.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.models import MODELS
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, train
from hps.train.shape_rules import what_it_lacks
from tests.logs import write_criteo
from tests.service.client.client_lab import service

RUN: dict[str, Any] = {"batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
NEW = ("lr", "fm", "autoint")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_criteo(tmp_path / "log", 256)


def told(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What the command says as it refuses."""
    assert main(words) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("kind", NEW)
def test_a_run_in_two_parts_is_the_whole_run_and_is_measured_and_scored(
    tmp_path: Path, log: Path, kind: str
) -> None:
    out, words = tmp_path / "out.json", ["--dram", "8MiB", "--batch-size", "64"]
    shape = [] if kind == "lr" else ["--dim", "4"]
    shape += ["--hidden", "8", "--dropout", "0.1"] if MODELS[kind].has_deep_part else []
    figures = {}
    begin = ["train", str(log), "--model", kind, *shape, *words, "--threads", "1"]
    for store, limit in (("whole", "0"), ("parts", "128"), ("parts", "0")):
        goes_on = ["--resume"] if store == "parts" and limit == "0" else []
        end = ["--store", str(tmp_path / store), "--limit", limit, "--json", str(out), *goes_on]
        # A run that goes on is not told the model again.
        first = begin if not goes_on else ["train", str(log), *words, "--threads", "1"]
        assert main([*first, *end]) == 0
        figures[store] = json.loads(out.read_text())
    assert figures["parts"]["resumed_from"] == "'final'" and figures["parts"]["examples"] == 128
    for name in ("digests", "loss_digest", "model_logloss"):
        assert figures["parts"][name] == figures["whole"][name]
    scores = {}
    for store in ("whole", "parts"):
        where = ["--store", str(tmp_path / store)]
        assert main(["predict", str(log), *where, "--out", str(tmp_path / "p.npy")]) == 0
        scores[store] = np.load(tmp_path / "p.npy")
        assert main(["evaluate", str(log), *where, "--json", str(out)]) == 0
        measured = json.loads(out.read_text())
    assert np.array_equal(scores["whole"], scores["parts"]) and len(set(scores["whole"])) > 200
    labels = np.array([line[0] == "1" for line in log.read_text().splitlines()])
    right = np.where(labels, scores["parts"], 1 - scores["parts"]).astype(np.float64)
    assert measured["logloss"] == pytest.approx(-np.log(right).mean(), rel=1e-5)
    assert measured["model"] == kind
    with hps.open(tmp_path / "parts") as server:
        recipe = server.checkpoint_state("final")[0]["recipe"]
        assert server.tables["features"].dim == MODELS[kind].row_columns(4)
    has_deep = MODELS[kind].has_deep_part
    assert (recipe["hidden"], recipe["dropout"]) == (([8], 0.1) if has_deep else ([], 0.0))


REFUSED = [
    ("lr", "dim", 8, "model lr has no embedding, its rows are one weight; leave it out"),
    ("lr", "dim", 16, "model lr has no embedding"),  # what other models have by default, too
    ("lr", "hidden", (256, 128), "model lr has no deep part; leave it out"),
    ("fm", "hidden", (8,), "model fm has no deep part"),
    ("fm", "dropout", 0.5, "model fm has no deep part"),
]


@pytest.mark.parametrize(("kind", "name", "value", "words"), REFUSED)
def test_a_flag_that_does_nothing_is_refused_by_new_and_resumed_runs(
    tmp_path: Path, log: Path, kind: str, name: str, value: Any, words: str
) -> None:
    where = {"data": [log], "store": tmp_path / "store"}
    given = {name: value}
    for goes_on in ({}, {"resume": True}, {"resume_if_any": True}):
        with pytest.raises(hps.ConfigError, match=rf"\(--{name}\): {words}"):
            TrainOptions(**where, model=kind, **given, **goes_on)
    train(TrainOptions(**where, model=kind, limit=64, **RUN))
    if value == value:  # NaN is no limit of any model
        for silent in (True, False):
            known = {} if silent else {"model": kind}
            with pytest.raises(hps.ConfigError, match=rf"\(--{name}\): {words}"):
                train(TrainOptions(**where, **RUN, **given, **known, resume=True))
    figures = train(TrainOptions(**where, **RUN, resume=True, new_data=True))
    assert figures["model"] == kind and figures["resumed_from"] is not None


def test_what_a_kind_stores_may_be_given_and_nothing_else(tmp_path: Path) -> None:
    where: dict[str, Any] = {"data": ["log"], "store": tmp_path / "store"}
    bare = TrainOptions(**where, model="lr")
    assert TrainOptions(**where, model="lr", dim=0, hidden=(), dropout=0.0).table() == bare.table()
    settled = bare.settled()
    assert (settled.dim, settled.hidden, settled.dropout) == (0, (), 0.0)
    assert settled.settled() == settled and settled.table().dim == 1
    assert TrainOptions(**where, model="fm").table().dim == 17
    for kind in MODELS:
        if "dim" not in what_it_lacks(kind):
            with pytest.raises(hps.ConfigError, match="dim=0 must be a whole number from 1"):
                TrainOptions(**where, model=kind, dim=0)
    for wrong in (0.0, False, "0"):
        with pytest.raises(hps.ConfigError, match="dim="):
            TrainOptions(**where, model="lr", dim=wrong)
    for kind, most, why in (("fm", 4095, "give 4095 or less"), ("autoint", 4096, "from 1 to 4096")):
        assert TrainOptions(**where, model=kind, dim=most).table().dim == 4096
        with pytest.raises(hps.ConfigError, match=why):
            TrainOptions(**where, model=kind, dim=most + 1)


def test_the_command_line_says_which_flag_does_nothing(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--model", "lr"]
    said = told(capsys, [*words, "--dim", "16"])
    assert said == (
        "hps: error: dim=16 (--dim): model lr has no embedding, its rows are one weight; leave it "
        "out\n"
    )
    assert "hidden=(8,) (--hidden): model lr has no deep part" in told(
        capsys, [*words, "--hidden", "8"]
    )
    assert not (tmp_path / "store").exists()
    assert main([*words, "--hidden", "", "--dropout", "0", "--limit", "64"]) == 0
    with pytest.raises(SystemExit):
        main([*words, "--dim", "0"])


def test_a_store_of_lr_is_no_store_of_another_model(tmp_path: Path, log: Path) -> None:
    where = {"data": [log], "store": tmp_path / "store"}
    hps.ParameterServer(TrainOptions(**where, model="lr").server_config()).close()
    with pytest.raises(hps.ConfigError, match=r"--dim 4: .* 1 columns?, .* give another --model"):
        train(TrainOptions(**where, model="deepfm", dim=4, **RUN))
    with pytest.raises(hps.ConfigError, match=r"--dim 4: .* 1 columns?, .* give --dim 1,"):
        train(TrainOptions(**where, model="dlrm", dim=4, **RUN))
    assert train(TrainOptions(**where, model="lr", **RUN))["rows"] > 100


def test_servers_hold_the_rows_of_lr_and_tell_its_shape(tmp_path: Path, log: Path) -> None:
    with service(tmp_path, 1, tables=()) as servers:
        where = {"remote": ClientConfig(addresses=servers.addresses, client_id="trainer")}
        train(TrainOptions(data=[log], **where, model="lr", **RUN))
        with pytest.raises(hps.ConfigError, match=r"dim=8 \(--dim\): model lr has no embedding"):
            train(TrainOptions(data=[log], **where, **RUN, dim=8, resume=True, new_data=True))
        figures = train(TrainOptions(data=[log], **where, **RUN, resume=True, new_data=True))
    assert figures["model"] == "lr" and figures["total_examples"] == 512
