"""Which features a run with --change-features finds, what it says, and what is refused.

Above it: pytest. Below it: hps/train/changed_log.py, changed_columns.py; test_changed_features.py
has what becomes of the weights.
"""

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.cli.main import main
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, evaluate_store, train
from hps.train.loop import TrainingLoop
from hps.train.progress import Progress
from tests.cluster.rank_nursery import Job, Nursery
from tests.logs import write_criteo
from tests.service.client.client_lab import service
from tests.train.changed_lab import (
    OLD,
    SMALL,
    change,
    changed,
    close,
    columns,
    logits,
    nothing,
    only,
    run,
    trained,
    write,
)

WORDS = ["--dram", "8MiB", "--batch-size", "64", "--depth", "0", "--init-std", "0.3"]
NEW = ("slot", "app", "size", "price", "слот")
CHANGES = [
    "feature 'slot' is new",
    "feature 'слот' is new",
    "feature 'os' is gone",
    "dense column 'size' is new",
    "dense column 'age' is gone",
]


def features_of(store: Path) -> tuple[list[str], int]:
    with hps.Model.load(store, dram="8MiB") as model:
        return model.features["features"], model.recipe.num_dense


def text(words: str) -> hps.Features:
    return hps.Features.from_toml(words)


def test_what_is_new_and_what_is_gone_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = trained(tmp_path, "deepfm")
    log = write(tmp_path / "new.parquet", NEW)
    words = ["train", str(log), "--store", str(store), *WORDS, "--resume", "--new-data"]
    assert main([*words, "--change-features"]) == 0
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if " is " in line and "'" in line] == [
        f"hps: {line}" for line in CHANGES
    ]
    assert [line for line in said.out.splitlines() if line in CHANGES] == CHANGES
    assert main([*words, "--change-features"]) == 0  # nothing is left to change
    assert not set(CHANGES) & set(capsys.readouterr().out.splitlines())
    assert main(words) == 0
    assert features_of(store) == (["slot", "app", "слот"], 2)


def test_without_the_flag_the_refusal_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = trained(tmp_path, "deepfm")
    log = write(tmp_path / "new.parquet", NEW)
    before = features_of(store)
    words = ["train", str(log), "--store", str(store), *WORDS, "--resume"]
    assert main([*words, "--new-data"]) == 1
    assert "--change-features gives the model the columns" in capsys.readouterr().err
    file = tmp_path / "features.toml"
    file.write_text("[columns.app]\nkind = 'ignored'")
    flags = (["--features", str(file)], ["--ignore", "app"], ["--dense-columns", "size"])
    for given in flags:
        assert main([*words, "--new-data", *given]) == 1
        assert "--new-data --change-features changes the features" in capsys.readouterr().err
    assert main([*words, "--change-features"]) == 1
    assert "give new_data (--new-data) too" in capsys.readouterr().err
    with_file = tmp_path / "file"
    run(tmp_path / "old.parquet", with_file, "lr", features=text("columns.os = {kind='ignored'}"))
    with pytest.raises(hps.ConfigError, match=r"columns\.os is now not.*--change-features"):
        change(log, with_file, features=file, change_features=False)
    assert features_of(store) == before


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"model": "lr"}, "model='deepfm', this run asks for 'lr'"),
        ({"hash_keys": False}, "hash_keys=True, this run asks for False"),
        ({"dropout": 0.5}, "dropout=0.0, this run asks for 0.5"),
        ({"label": "os"}, "label='label', this run asks for 'os'"),
        ({"shared_vocabulary": True}, "shared_vocabulary=False, this run asks for True"),
        ({"accumulate": 2}, "accumulate=1"),
        ({"ignore": ["none"]}, r"no columns \['none'\]"),
        ({"ignore": ["app", "slot", "слот"]}, "new.parquet has no feature, and a model"),
        ({"features": text("columns.age = {kind = 'dense'}")}, r"columns\.age.*no such column"),
        ({"test": ["old.parquet"]}, r"lacks features that .* has: \['slot', 'слот'\]|size"),
    ],
)
def test_what_is_refused_leaves_the_store_as_it_was(
    tmp_path: Path, flags: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = trained(tmp_path, "deepfm")
    log = write(tmp_path / "new.parquet", NEW)
    with hps.open(store) as server:
        before = server.checkpoints(), server.digest("features")
    with pytest.raises(hps.ConfigError, match=reason):
        change(log, store, **flags)
    with hps.open(store) as server:
        assert (server.checkpoints(), server.digest("features")) == before
    assert features_of(store) == (["app", "os"], 2)


def test_a_run_that_dies_after_the_change_goes_on_without_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = trained(tmp_path, "deepfm")
    shutil.copytree(store, tmp_path / "whole")
    log = write(tmp_path / "new.parquet", NEW)
    whole = change(log, tmp_path / "whole", epochs=2)

    def dies(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(TrainingLoop, "run", dies)
        change(log, store, epochs=2)
    assert features_of(store) == (["slot", "app", "слот"], 2)
    rest = change(log, store, epochs=2, new_data=False, change_features=False)
    assert rest["examples"] == whole["examples"] == 512
    assert rest["digests"] == whole["digests"] and rest["loss_digest"] == whole["loss_digest"]


def test_a_checkpoint_from_before_keeps_its_features(tmp_path: Path) -> None:
    store = trained(tmp_path, "wide_deep")
    with hps.open(store, read_only=False) as server:
        server.checkpoint(tag="before")
    log = write(tmp_path / "new.parquet", NEW)
    measured = evaluate_store([tmp_path / "old.parquet"], store, checkpoint="before")
    change(log, store)
    again = evaluate_store([tmp_path / "old.parquet"], store, checkpoint="before")
    assert again["auc"] == measured["auc"] and again["logloss"] == measured["logloss"]
    assert evaluate_store([log], store)["examples"] == 256
    # And back: with the features before there is nothing to change.
    back = change(tmp_path / "old.parquet", store, resume_from="before")
    assert back["resumed_with"] == [] and features_of(store) == (["app", "os"], 2)


def test_the_same_columns_are_the_same_run(tmp_path: Path) -> None:
    store = trained(tmp_path, "dcn_v2")
    shutil.copytree(store, tmp_path / "plain")
    log = tmp_path / "old.parquet"
    flagged, plain = change(log, store), change(log, tmp_path / "plain", change_features=False)
    assert flagged["digests"] == plain["digests"] and flagged["resumed_with"] == []
    assert flagged["loss_digest"] == plain["loss_digest"]


def test_a_run_with_nothing_to_go_on_from_trains_a_new_model(tmp_path: Path) -> None:
    log = write(tmp_path / "log.parquet", OLD)
    flags = {"new_data": True, "change_features": True}
    figures = run(log, tmp_path / "new", "lr", resume_if_any=True, **flags)
    assert figures["examples"] == 256 and figures["resumed_from"] is None
    same = run(log, tmp_path / "other", "lr")
    assert same["digests"] == figures["digests"]


SCALED = """
    columns.price = {kind = "dense", normalise = true}
    columns.age = {kind = "dense", buckets = 3, keep = true}
    columns.os = {kind = "categorical", hash_buckets = 5}
    crosses.both = {columns = ["app", "os"]}
"""


def moved(path: Path) -> Path:
    """A log in which prices and ages are others than those that were measured."""
    values = columns(seed=3)
    values |= {name: [100 + 7 * one for one in values[name]] for name in ("price", "age")}
    pq.write_table(pa.table(values), path)
    return path


def test_what_was_measured_stays_for_columns_that_are_described_alike(tmp_path: Path) -> None:
    store = trained(tmp_path, "deepfm", features=text(SCALED))
    shutil.copytree(store, tmp_path / "new")
    log = moved(tmp_path / "moved.parquet")
    more = SCALED + '\ncolumns.size = {kind = "dense", normalise = true}'
    more += '\n[crosses.all]\ncolumns = ["app", "slot", "age"]'
    figures = change(log, tmp_path / "new", features=text(more), limit=3 * 256)
    new = [f"feature {name!r} is new" for name in ("slot", "слот", "all")]
    assert figures["resumed_with"] == [*new, "dense column 'size' is new"]
    given = only(("app", "os", "price", "age", "size"), slot=nothing(), слот=nothing())
    close(
        logits(tmp_path / "new", {**given, "slot": nothing(), "слот": nothing()}),
        logits(store, only(OLD)),
    )
    with hps.Model.load(store, dram="8MiB") as old, hps.Model.load(tmp_path / "new") as model:
        before, now = (one.recipe.make_transform() for one in (old, model))
    assert before is not None and now is not None
    for name in ("price", "age"):
        assert now.measured.column(name) == before.measured.column(name)
    assert str(now.measured.column("size")).count("mean=0.") == 1
    # The file is the model's from here on: without --features it is taken again.
    assert change(log, tmp_path / "new")["resumed_with"] == []


def test_what_is_made_otherwise_begins_as_new(tmp_path: Path) -> None:
    store = trained(tmp_path, "wide_deep", features=text(SCALED))
    other = SCALED.replace("normalise = true", "normalise = true, clip = [0, 1]")
    other = other.replace("hash_buckets = 5", "hash_buckets = 6").replace(
        "buckets = 3", "buckets = 4"
    )
    new = changed(tmp_path, store, OLD, features=text(other))
    with hps.Model.load(new, dram="8MiB") as model, hps.Model.load(store, dram="8MiB") as old:
        after, before = (one.module.state_dict() for one in (model, old))
        assert model.features == old.features == {"features": ["app", "os", "age", "both"]}
    first, was = after["deep.0.weight"], before["deep.0.weight"]
    assert torch.equal(first[:, :4], was[:, :4]) and not first[:, 4:17].any()  # os, age, both
    assert torch.equal(first[:, 17], was[:, 17]) and was[:, 4:].any(dim=0).all()  # age, kept
    assert after["dense_first_order"][0] == 0 != before["dense_first_order"][0]
    lines = change(tmp_path / "new.parquet", store, features=text(other))["resumed_with"]
    kinds = ["feature 'os'", "feature 'age'", "feature 'both'", "dense column 'price'"]
    assert lines == [f"{one} is made otherwise: it begins as a new one" for one in kinds]


def test_what_the_file_says_as_it_was_changes_nothing(tmp_path: Path) -> None:
    store = trained(tmp_path, "deepfm")
    said = "columns.os = {kind = 'categorical'}\ncolumns.age = {kind = 'dense', log = false}"
    assert change(tmp_path / "old.parquet", store, features=text(said))["resumed_with"] == []
    gone = "columns.os = {kind = 'ignored'}\ncolumns.age = {kind = 'ignored'}"
    lines = change(tmp_path / "old.parquet", store, features=text(gone))["resumed_with"]
    assert lines == ["feature 'os' is gone", "dense column 'age' is gone"]
    assert change(tmp_path / "old.parquet", store)["resumed_with"] == []  # still ignored
    lines = change(tmp_path / "old.parquet", store, features=text(said))["resumed_with"]
    assert lines == ["feature 'os' is new", "dense column 'age' is new"]
    lines = change(tmp_path / "old.parquet", store, ignore=["app"])["resumed_with"]
    assert lines == ["feature 'app' is gone"]
    back = "columns.app = {kind = 'categorical'}"
    lines = change(tmp_path / "old.parquet", store, features=text(back))["resumed_with"]
    assert lines == ["feature 'app' is new"]


def test_columns_that_the_model_has_stay_what_they_are(tmp_path: Path) -> None:
    log = write(tmp_path / "log.parquet", OLD)
    store = tmp_path / "store"
    flags = {"dense_columns": ["os", "price"], "ignore": ["age"]}
    run(log, store, "deepfm", **flags)
    new = write(tmp_path / "new.parquet", (*OLD, "size", "slot"))
    assert change(new, store)["resumed_with"] == [
        "feature 'slot' is new",
        "dense column 'size' is new",
    ]
    said = change(new, store, dense_columns=["price"])["resumed_with"]
    assert said == [
        "feature 'os' is new",
        "dense column 'os' is gone",
        "dense column 'size' is gone",
    ]


def test_a_feature_of_csv_stays_one_where_its_values_look_like_numbers(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    rows = [(row % 2, f"k{row % 5}", row / 7) for row in range(200)]
    first.write_text("label,key,n\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    second.write_text(
        "label,key,n,more,new\n" + "".join(f"{a},{c},{c},{c},x{b}\n" for a, b, c in rows)
    )
    run(first, tmp_path / "store", "deepfm")
    said = change(second, tmp_path / "store")["resumed_with"]
    assert said == ["feature 'new' is new", "dense column 'more' is new"]
    assert change(second, tmp_path / "store", change_features=False)["examples"] == 200


CRITEO_CHANGE = """
    columns.C3 = {kind = "ignored"}
    columns.I2 = {kind = "ignored"}
    crosses.two = {columns = ["C1", "C2"]}
"""
CRITEO_LINES = ["feature 'two' is new", "feature 'C3' is gone", "dense column 'I2' is gone"]


def test_logs_whose_columns_have_no_names(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "criteo", 100)
    run(log, tmp_path / "store", "dlrm")
    lines = change(log, tmp_path / "store", features=text(CRITEO_CHANGE))["resumed_with"]
    assert lines == CRITEO_LINES
    slots = tmp_path / "slots"
    slots.write_text("".join(f"click:{row % 2} 1:{row % 7} 2:5\n" for row in range(100)))
    run(slots, tmp_path / "slotted", "wide_deep", format="slots")
    slots.write_text(
        "".join(f"click:{row % 2} dense_feature:0.5 1:{row % 7} 7:5\n" for row in range(100))
    )
    lines = change(slots, tmp_path / "slotted")["resumed_with"]
    assert lines == [
        "feature '7' is new",
        "feature '2' is gone",
        "dense column 'dense_feature 1' is new",
    ]
    fields = tmp_path / "libffm"
    fields.write_text("".join(f"{row % 2} 1:{row % 7}:1 2:5:1\n" for row in range(100)))
    run(fields, tmp_path / "fielded", "fm", format="libffm")
    fields.write_text("".join(f"{row % 2} 3:{row % 7}:1 2:5:1\n" for row in range(90)))
    lines = change(fields, tmp_path / "fielded")["resumed_with"]
    assert lines == ["feature '3' is new", "feature '1' is gone"]
    fields.write_text("")
    for flags in ({}, {"allow_empty": True}):
        with pytest.raises(hps.ConfigError, match="libffm has no feature, and a model needs one"):
            change(fields, tmp_path / "fielded", **flags)


OWN = """
import torch
from torch import nn
from hps.models import ClickModel, DeepFM

class Plain(ClickModel):
    def _build(self, hidden, dropout):
        self.first = nn.Linear(self.num_features * self.dim + self.num_dense, 1)

    @property
    def output_bias(self):
        return self.first.bias

    def forward(self, batch):
        vectors = self.embed(batch).flatten(1)
        return self.first(torch.cat([vectors, self.dense_of(batch)], dim=1)).squeeze(1)

class Says(Plain):
    def input_axes(self, fields):
        return {"first.weight": {1: fields.side_by_side(self.dim)}}

class Wrong(Plain):
    def input_axes(self, fields):
        return {"first.weight": {1: fields.columns()}}

class Forgets(Says):
    def _build(self, hidden, dropout):
        super()._build(hidden, dropout)
        self.scales = nn.Parameter(torch.ones(self.num_features))

class Raises(Plain):
    def input_axes(self, fields):
        return {"first.weight": {1: fields.nothing}}
"""


def test_an_own_model_says_which_weights_go_with_which_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    refusals = {
        "Plain": "Plain does not say which of its weights go with which feature.*input_axes",
        "Wrong": r"input_axes of its class says 2 inputs for dimension 1 of first\.weight \[1, 10",
        "Forgets": r"stored weights scales \[2\] become \[2\] by input_axes .* makes \[3\]",
        "Raises": r"input_axes failed at line .*mine\.py.*AttributeError",
    }
    for name, reason in refusals.items():
        run(write(tmp_path / "old.parquet", OLD), tmp_path / name, f"mine.py:{name}")
        with pytest.raises(hps.ConfigError, match=reason):
            change(write(tmp_path / "new.parquet", NEW), tmp_path / name)
        assert change(tmp_path / "old.parquet", tmp_path / name)["examples"] == 256
    store = trained(tmp_path, "mine.py:Says")
    new = changed(tmp_path, store, NEW)
    expected = logits(store, only(OLD, os=nothing(), age=[0.0] * 256))
    close(logits(new, only(NEW)), expected)


def test_the_means_of_adam_go_along_and_its_steps_stay(tmp_path: Path) -> None:
    store = trained(tmp_path, "deepfm")
    new = changed(tmp_path, store, ("slot", "os", "size", "price"))
    states = []
    for folder in (store, new):
        with hps.open(folder) as server:
            states.append(server.checkpoint_state()[0])
    before, after = states
    names = list(before["model"])
    assert names == list(after["model"])
    own, kept = (state["dense_optimizer"]["state"] for state in (after, before))
    place = names.index("deep.0.weight")
    dim = SMALL["dim"]
    for key in ("exp_avg", "exp_avg_sq"):
        now, was = own[place][key], kept[place][key]
        assert now.shape == after["model"]["deep.0.weight"].shape
        assert torch.equal(now[:, dim : 2 * dim], was[:, dim : 2 * dim])  # os
        assert not now[:, :dim].any() and not now[:, 2 * dim].any()  # slot, size
        assert torch.equal(now[:, 2 * dim + 1], was[:, 2 * dim]) and was.any()  # price
    assert all(own[number]["step"] == kept[number]["step"] == 12 for number in kept)
    for name in ("totals", "evaluations", "schedulers", "row_optimizer"):
        assert after[name] == before[name], name
    assert torch.equal(after["random"], before["random"])


def test_a_schedule_goes_on_over_the_change(tmp_path: Path) -> None:
    warm = {"scheduler": "warmup", "scheduler_steps": 100}
    store = trained(tmp_path, "deepfm", **warm)
    log = write(tmp_path / "new.parquet", NEW)
    figures = change(log, store, **warm)
    assert figures["resumed_with"] == CHANGES
    with hps.open(store) as server:
        state = server.checkpoint_state()[0]
    assert [scheduler["last_epoch"] for scheduler in state["schedulers"]] == [16, 16]


def test_ranks_change_alike_also_where_one_is_killed_and_all_start_anew(
    tmp_path: Path, ranks: Nursery
) -> None:
    store, out, file = tmp_path / "store", tmp_path / "out.json", tmp_path / "features.toml"
    log = write_criteo(tmp_path / "log", 256)
    file.write_text(CRITEO_CHANGE)
    words = ["train", str(log), "--store", str(store), *WORDS, "--json", str(out)]
    ended = ranks.run(Job([*words, "--dim", "4", "--hidden", "8"], 2))
    assert ended.statuses == [0, 0], ended.err
    shutil.copytree(store, tmp_path / "plain")
    words += ["--resume", "--new-data", "--change-features", "--features", str(file)]
    words += ["--epochs", "2"]
    killed = ranks.run(Job(words, 2, dies_at={1: 3}))
    assert killed.statuses[1] == -9
    anew = ranks.run(Job(words, 2, variables={"TORCHELASTIC_RESTART_COUNT": "1"}))
    assert anew.statuses == [0, 0], anew.err
    said = "".join([*killed.err, *anew.err])
    assert [said.count(f"hps: {line}\n") for line in CRITEO_LINES] == [1, 1, 1]
    rest = json.loads(out.read_text())
    words[words.index(str(store))] = str(tmp_path / "plain")
    ended = ranks.run(Job(words, 2))
    assert ended.statuses == [0, 0], ended.err
    whole = json.loads(out.read_text())
    assert whole["resumed_with"] == CRITEO_LINES and rest["resumed_with"] == []
    assert rest["digests"] == whole["digests"] and rest["loss_digest"] == whole["loss_digest"]


def test_a_model_whose_rows_lie_on_servers_is_changed_likewise(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old.parquet", OLD), write(tmp_path / "new.parquet", NEW)
    alone = tmp_path / "alone"
    run(old, alone, "deepfm")
    expected = change(new, alone)
    with service(tmp_path, 1, tables=()) as servers:
        remote = ClientConfig(addresses=servers.addresses, client_id="trainer")
        where: dict[str, Any] = {"remote": remote, **SMALL, "lr": 0.2, "dense_lr": 0.02}
        where |= {"init_std": 0.3, "depth": 0}
        train(TrainOptions(data=[old], **where))
        flags = {"resume": True, "new_data": True}
        with pytest.raises(hps.ConfigError, match="no columns of numbers"):
            train(TrainOptions(data=[new], **where, **flags))
        said = StringIO()
        figures = train(
            TrainOptions(data=[new], **where, **flags, change_features=True), Progress(0, said)
        )
    assert all(f"hps: {line}\n" in said.getvalue() for line in CHANGES)
    assert figures["resumed_with"] == CHANGES == expected["resumed_with"]
    assert figures["loss_digest"] == expected["loss_digest"]


def test_the_flags_of_a_run_can_be_repeated_to_go_on(tmp_path: Path) -> None:
    store = trained(tmp_path, "deepfm", OLD)
    log = write(tmp_path / "new.parquet", NEW)
    flags = {"ignore": ["slot"], "features": text("columns.app = {kind = 'ignored'}")}
    lines = ["feature 'слот' is new", "feature 'app' is gone", *CHANGES[2:]]
    assert change(log, store, **flags)["resumed_with"] == lines
    again = {"new_data": False, "change_features": False, "epochs": 2}
    assert change(log, store, **flags, **again)["examples"] == 256
    with pytest.raises(hps.ConfigError, match=r"ignore=\['slot', 'app'\], this run asks for"):
        change(log, store, **{**flags, **again, "ignore": ["size"]})


def test_dense_columns_without_stored_names_cannot_be_told_apart(tmp_path: Path) -> None:
    store = trained(tmp_path, "deepfm")
    with hps.open(store, read_only=False) as server:
        model, position = server.checkpoint_state("final")
        del model["recipe"]["reader"]["dense_columns"]  # as an earlier version stored it
        server.checkpoint(tag="final", model=model, reader=position)
    with pytest.raises(hps.ConfigError, match="2 dense columns, whose names an earlier version"):
        change(write(tmp_path / "new.parquet", NEW), store)
    assert change(tmp_path / "old.parquet", store, change_features=False)["examples"] == 256


def test_a_second_feature_takes_the_only_path_of_a_dlrm_of_one(tmp_path: Path) -> None:
    store = trained(tmp_path, "dlrm", ("app",))
    new = changed(tmp_path, store, ("app", "os"))
    scores = logits(new, only(("app", "os")))
    assert scores.std() == 0 and logits(store, only(("app",))).std() > 0
    log = tmp_path / "new.parquet"
    assert change(log, new, epochs=4)["examples"] == 1024
    assert logits(new, only(("app", "os"))).std() > 0
