"""A model's kind and sizes are kept with it: a run that goes on has them from there."""

import json
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main, make_parser
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, train
from tests.logs import write_criteo
from tests.service.client.client_lab import service

# No value is a new model's own.
SHAPE: dict[str, Any] = {"model": "dlrm", "dim": 4, "hidden": (6,), "dropout": 0.25}
SHAPE |= {"optimizer": "adam"}
RUN: dict[str, Any] = {"batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
GOES_ON = {"resume": True, "new_data": True}
OTHERS = [
    ({"model": "deepfm", "dim": 16}, r"model='dlrm', .* asks for 'deepfm' \(--model\)"),
    ({"dim": 8, "hidden": (8,)}, r"dim=4, .* asks for 8 \(--dim\)"),
    ({"hidden": (6, 6)}, r"hidden=\[6\], .* asks for \[6, 6\] \(--hidden\)"),
    ({"dropout": 0.0}, r"dropout=0.25, .* asks for 0.0 \(--dropout\)"),
    ({"optimizer": "adagrad"}, r"optimizer='adam', .* asks for 'adagrad' \(--optimizer\)"),
]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_criteo(tmp_path / "log", 128)


def run(log: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(data=[log], **RUN, **changes))


def test_a_second_day_is_trained_on_without_the_models_flags(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--batch-size", "64"]
    out = tmp_path / "out.json"
    assert main([*words, "--model", "dlrm", "--dim", "8", "--hidden", "32"]) == 0
    assert main([*words, "--resume", "--new-data", "--json", str(out)]) == 0, capsys.readouterr()
    figures = json.loads(out.read_text())
    assert figures["model"] == "dlrm" and figures["total_examples"] == 256


def test_a_shape_that_is_not_given_is_the_stored_models(tmp_path: Path, log: Path) -> None:
    first, other = {"store": tmp_path / "first"}, {"store": tmp_path / "other"}
    for where in (first, other):
        run(log, **where, **SHAPE)
    silent, told = run(log, **first, **GOES_ON), run(log, **other, **GOES_ON, **SHAPE)
    assert silent["model"] == "dlrm" and silent["digests"] == told["digests"]
    assert silent["loss_digest"] == told["loss_digest"]


@pytest.mark.parametrize("new_data", [True, False])
def test_a_shape_that_contradicts_the_model_is_refused_by_name_kind_first(
    tmp_path: Path, log: Path, new_data: bool
) -> None:
    where = {"store": tmp_path / "store"}
    run(log, **where, **SHAPE)
    for changes, words in OTHERS:
        with pytest.raises(hps.ConfigError, match=words):
            run(log, **where, resume=True, new_data=new_data, **changes)


def test_servers_tell_the_shape_of_their_model(tmp_path: Path, log: Path) -> None:
    with service(tmp_path, 1, tables=()) as servers:
        where = {"remote": ClientConfig(addresses=servers.addresses, client_id="trainer")}
        rows = run(log, **where, **SHAPE)["rows"]
        for changes, words in OTHERS:
            with pytest.raises(hps.ConfigError, match=f"service .* {words}"):
                run(log, **where, **GOES_ON, **changes)
        figures = run(log, **where, **GOES_ON)
    assert figures["model"] == "dlrm" and figures["rows"] == rows


def test_a_run_that_does_not_say_that_it_goes_on_is_told_so_before_any_width(
    tmp_path: Path, log: Path
) -> None:
    run(log, store=tmp_path / "store", **SHAPE)
    with pytest.raises(hps.ConfigError, match=r"holds a trained model .* --resume"):
        run(log, store=tmp_path / "store")


def test_a_new_model_has_the_shape_of_before(tmp_path: Path, log: Path) -> None:
    bare = TrainOptions(data=[log], store=tmp_path / "store", resume_if_any=True, **RUN)
    settled = bare.settled()
    values = [settled.model, settled.dim, settled.hidden, settled.dropout, settled.optimizer]
    assert values == ["deepfm", 16, (256, 128), 0.0, "adagrad"] and settled.table() == bare.table()
    figures = train(bare)
    assert figures["model"] == "deepfm" and figures["resumed_from"] is None
    with hps.open(tmp_path / "store") as server:
        assert server.tables["features"].dim == 17
        recipe = server.checkpoint_state("final")[0]["recipe"]
    assert recipe["hidden"] == [256, 128] and recipe["kind"] == "deepfm"


def test_flags_of_the_shape_that_are_not_given_are_none() -> None:
    parse = make_parser("train").parse_args
    bare, given = parse(["train", "log"]), parse(["train", "log", "--hidden", "", "--dim", "16"])
    assert [getattr(bare, name) for name in SHAPE] == [None] * 5
    assert given.hidden == () and given.dim == 16


def test_the_widest_rows_of_a_stored_model_may_be_asked_for_by_name(tmp_path: Path) -> None:
    where: dict[str, Any] = {"data": ["log"], "store": tmp_path}
    assert TrainOptions(**where, dim=4096, resume=True).dim == 4096
    for changes in ({"model": "deepfm", "resume": True}, {}):
        with pytest.raises(hps.ConfigError, match=r"model deepfm takes 1 .* give 4095"):
            TrainOptions(**where, dim=4096, **changes)
