"""A features file that puts features into several tables: trained, measured, scored, gone on with.

Above it: pytest. Below it: hps/features/, hps/train/, hps/models/pooling.py.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.cli.main import main
from hps.config import TableConfig
from hps.features.open import open_with_features
from hps.models import MODELS
from hps.reader import ReaderConfig
from hps.reader.store_rules import check_store
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, evaluate_remote, evaluate_store, train
from hps.train.predict import predict_log
from tests.cluster.rank_nursery import Job, Nursery
from tests.features.feature_twin import bags_of
from tests.kinds import POOLING
from tests.service.client.client_lab import service
from tests.train.killed_run import killed_after
from tests.train.test_features_training import (
    assert_same_table,
    criteo,
    csv,
    libffm,
    parquet,
    slots,
)

SMALL = {"hidden": (4,), "batch_size": 16, "dram": "8MiB", "torch_threads": 1, "depth": 0}
NAMED = """
    tables.items.dim = 3
    columns.click = {kind = "label"}
    columns.text = {kind = "categorical", table = "items"}
    columns.other = {kind = "categorical", missing = "drop"}
    columns.gone = {kind = "ignored"}
    columns.rate = {kind = "dense", buckets = 3, keep = true, dim = 5, clip = [-9, 9]}
    columns.price = {kind = "dense", log = true}
    columns.age = {kind = "dense", missing = 50, clip = [0, 200], normalise = true}
    [crosses.both]
    columns = ["rate", "text"]
    table = "items"
"""
LISTS = """
    [columns.seen]
    kind = "sequence"
    max_length = 3
    table = "items"
    pooling = "mean"
    [columns."seen too"]
    kind = "sequence"
    table = "bags"
    pooling = "mean"
"""
FIELDS = """
    columns.1 = {kind = "sequence", table = "items", pooling = "mean"}
    columns.2 = {kind = "categorical", table = "items"}
    [crosses.both]
    columns = ["1", "2"]
    dim = 2
    pooling = "mean"
"""
CATEGORIES = """
    columns.C1 = {kind = "categorical", table = "items"}
    columns.C2 = {kind = "categorical", missing = "key", hash_buckets = 5}
    columns.C4 = {kind = "categorical", table = "items"}
    columns.C5 = {kind = "categorical", table = "items"}
    columns.C9 = {kind = "ignored"}
    columns.C26 = {kind = "categorical", dim = 3}
    columns.I2 = {kind = "dense", buckets = 4, table = "items"}
"""
FORMATS = {
    "criteo": (criteo, CATEGORIES, {"items": ["C1", "C4", "C5", "I2"], "C26": ["C26"]}),
    "parquet": (parquet, NAMED + LISTS, {"items": ["text", "seen", "both"], "bags": ["seen too"]}),
    "csv": (csv, NAMED, {"items": ["text", "both"]}),
    "libffm": (
        libffm,
        f"columns.9.kind = 'dense'\n{FIELDS}",
        {"items": ["1", "2"], "both": ["both"]},
    ),
    "slots": (slots, FIELDS, {"items": ["1", "2"], "both": ["both"]}),
}


def features_of(text: str) -> hps.Features:
    return hps.Features.from_toml(text)


def run(log: Path, store: Path, text: str | None, **changes: Any) -> dict[str, Any]:
    features = None if text is None else features_of(text)
    options: dict[str, Any] = {"model": "wide_deep", "dim": 2, **SMALL, **changes}
    if options.get("resume"):
        options |= {name: changes.get(name) for name in ("model", "dim", "hidden")}
    return train(TrainOptions(data=[log], store=store, features=features, **options))


def assert_same(found: hps.Batch, expected: hps.Batch) -> None:
    assert list(found.features) == list(expected.features)
    for table in expected.features:
        assert_same_table(found, expected, table)


@pytest.mark.parametrize("kind", FORMATS)
def test_training_evaluation_and_prediction_see_the_same_tables(tmp_path: Path, kind: str) -> None:
    write, text, tables = FORMATS[kind]
    log, columns = write(tmp_path)
    how: dict[str, Any] = {"format": kind, "init_std": 0.5, "batch_size": 64, "epochs": 3}
    figures = run(log, tmp_path / "store", text, test=[log], **how)
    reader = open_with_features(
        [log],
        tables=[TableConfig(name="features", dim=2)],
        config=ReaderConfig(format=kind, batch_size=64),
        features=features_of(text),
    )
    (trained,) = list(reader)
    assert {name: list(reader.features[name]) for name in tables} == tables
    assert all(len(trained.features[name].keys_L) for name in reader.features)
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        names = {table: list(found) for table, found in reader.features.items()}
        assert model.features == names and list(model.features) == list(names)
        assert set(figures["digests"]) == set(names) == set(model.server.tables)
        (scored,) = list(model.open_reader([log], batch_size=64))
        assert_same(scored, trained)
        expected = model.predict(scored)
        out = tmp_path / "out.npy"
        predict_log(model, [log], out)
        np.testing.assert_array_equal(np.load(out), expected.numpy())
        for given in () if columns is None else (columns, pa.RecordBatch.from_pydict(columns)):
            assert_same(model.batch_of(given), trained)
            assert torch.equal(model.predict(given), expected)
        _check_vectors(model, scored)
    measured = evaluate_store([log], tmp_path / "store")
    assert measured["auc"] == pytest.approx(figures["test_auc"])


def _check_vectors(model: hps.Model, batch: hps.Batch) -> None:
    """What the dense part gets is what one reads of each example's rows, one after the other."""
    transform = model.recipe.make_transform()
    assert transform is not None
    expected = []
    for table, names in model.features.items():
        ids = batch.features[table]
        for place, name in enumerate(names):
            pooled = []
            for row in range(len(batch)):
                bag = place * len(batch) + row
                own = slice(int(ids.offsets[bag]), int(ids.offsets[bag + 1]))
                rows = model.lookup(table, ids.keys_L[own])
                rows = rows if isinstance(rows, np.ndarray) else rows.numpy()
                if ids.weights_L is not None:
                    rows = rows * ids.weights_L[own].numpy()[:, None]
                count = max(1, len(rows)) if transform.measured.is_mean(name) else 1
                pooled.append(rows.sum(axis=0, dtype=np.float64) / count)
            expected.append(np.stack(pooled))
    with torch.no_grad():
        vectors, first = model.module.embed_side_by_side(batch)
    wanted = np.concatenate([one[:, :-1] for one in expected], axis=1)
    np.testing.assert_allclose(vectors.numpy(), wanted, rtol=1e-5, atol=1e-7)
    of_features = np.stack([one[:, -1:] for one in expected], axis=1)
    np.testing.assert_allclose(first.numpy(), of_features, rtol=1e-5, atol=1e-7)
    assert np.abs(wanted).max() > 0.1


def test_a_file_that_names_the_one_table_trains_the_same_bits(tmp_path: Path) -> None:
    log, _ = parquet(tmp_path)
    plain = "columns.click = {kind = 'label'}\ncolumns.seen = {kind = 'sequence'}\n"
    said = plain.replace("'sequence'", "'sequence', table = 'features', pooling = 'sum'")
    before = run(log, tmp_path / "before", plain, test=[log])
    now = run(log, tmp_path / "now", f"{said}tables.features.dim = 2", dim=7, test=[log])
    assert list(before["digests"]) == ["features"]
    names = ("digests", "loss_digest", "test_logloss", "rows")
    assert [now[name] for name in names] == [before[name] for name in names]
    mean = run(log, tmp_path / "mean", said.replace("'sum'", "'mean'"), test=[log])
    assert mean["loss_digest"] != now["loss_digest"] and mean["rows"] == now["rows"]


@pytest.mark.parametrize("depth", [0, 2])
def test_a_killed_run_goes_on_to_the_same_bits_in_every_table(tmp_path: Path, depth: int) -> None:
    log, _ = parquet(tmp_path)
    how: dict[str, Any] = {"epochs": 5, "checkpoint_every": 3, "depth": depth, "test": [log]}
    whole = run(log, tmp_path / "whole", NAMED + LISTS, **how)
    with killed_after(3):
        run(log, tmp_path / "killed", NAMED + LISTS, **how)
    rest = run(log, tmp_path / "killed", None, resume=True, **how)
    assert list(whole["digests"]) == ["bags", "features", "items", "rate"]
    for name in ("digests", "train_logloss", "test_logloss", "rows"):
        assert rest[name] == whole[name]
    if depth:
        assert (
            run(log, tmp_path / "0", NAMED + LISTS, **{**how, "depth": 0})["digests"]
            == (whole["digests"])
        )


def test_what_is_resumed_finds_the_dim_of_the_run(tmp_path: Path) -> None:
    """--dim is not stored by name: the tables tell, those whose dim the file does not say."""
    log, _ = parquet(tmp_path)
    columns = """
        columns.click.kind = "label"
        columns.age = {kind = "categorical", table = "a"}
    """
    first_said = f"tables.a.dim = 3\n{columns}"
    run(log, tmp_path / "store", first_said, dim=5)
    run(log, tmp_path / "store", first_said, resume=True, new_data=True)
    run(log, tmp_path / "store", None, resume=True, new_data=True, dim=5)
    with pytest.raises(hps.ConfigError, match=r"trained with dim=5, this run asks for 3 \(--dim\)"):
        run(log, tmp_path / "store", None, resume=True, new_data=True, dim=3)
    every = f"tables.a.dim = 3\ntables.features.dim = 4\n{columns}"
    run(log, tmp_path / "every", every, dim=5, optimizer="sgd")
    again = run(log, tmp_path / "every", None, resume=True, new_data=True)
    assert again["examples"] == 60
    with hps.open(tmp_path / "every") as server:
        assert {table.dim for table in server.tables.values()} == {4, 5}
        assert {table.optimizer.kind for table in server.tables.values()} == {"sgd"}
    with pytest.raises(hps.ConfigError, match=r"columns\.age is now .*'b'.* and was .*'a'"):
        other = every.replace('table = "a"', 'table = "b"').replace("tables.a", "tables.b")
        run(log, tmp_path / "every", other, resume=True, new_data=True)
    with pytest.raises(hps.ConfigError, match=r"tables\.a is now \{'dim': 8\} and was \{'dim': 3"):
        other = every.replace("dim = 3", "dim = 8")
        run(log, tmp_path / "every", other, resume=True, new_data=True)


def test_another_learning_rate_is_said_once_for_all_tables(tmp_path: Path) -> None:
    log, _ = parquet(tmp_path)
    run(log, tmp_path / "store", NAMED + LISTS, lr=0.5)
    again = run(log, tmp_path / "store", None, resume=True, new_data=True, lr=0.25)
    assert again["resumed_with"] == ["lr 0.5 of the checkpoint is now 0.25"]
    with hps.open(tmp_path / "store") as server:
        groups = server.checkpoint_state("final")[0]["row_optimizer"]["param_groups"]
    assert [group["lr"] for group in groups] == [0.25] * 4


@pytest.mark.parametrize("kind", POOLING)
def test_every_model_trains_over_two_tables_of_one_dim(tmp_path: Path, kind: str) -> None:
    log, _ = parquet(tmp_path)
    text = (NAMED + LISTS).replace("tables.items.dim = 3", "").replace(", dim = 5", "")
    lacks = {"lr": {"dim": None, "hidden": None}, "fm": {"hidden": None}}.get(kind, {})
    figures = run(log, tmp_path / "store", text, model=kind, test=[log], **lacks)
    assert list(figures["digests"]) == ["bags", "features", "items"]
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        (batch,) = list(model.open_reader([log], batch_size=64))
        assert model.module.embed(batch).shape == (60, 6, model.module.columns)
    rest = run(log, tmp_path / "store", None, resume=True, new_data=True)
    assert rest["examples"] == 60
    unequal = {"model": kind, **lacks}
    if kind == "lr":
        with pytest.raises(hps.ConfigError, match="dim = 3 of 'items': model lr has no embedding"):
            run(log, tmp_path / "none", NAMED + LISTS, **unequal)
    elif not MODELS[kind].takes_any_dims:
        words = r"dims \{'bags': 2, 'features': 2, 'items': 3, 'rate': 5\} must be equal.*dcn_v2"
        with pytest.raises(hps.ConfigError, match=words):
            run(log, tmp_path / "none", NAMED + LISTS, **unequal)
    else:
        run(log, tmp_path / "store of unequal dims", NAMED + LISTS, **unequal)
    assert not (tmp_path / "none").exists()


OWN = """
import torch
from torch import nn
from hps.models import ClickModel, MLP

class Sides(ClickModel):
    takes_any_dims = True

    def _build(self, hidden, dropout):
        self.deep = MLP(self.width + self.num_dense, hidden, dropout, output=1)

    @property
    def output_bias(self):
        return self.deep.output_bias

    def forward(self, batch):
        vectors, none = self.embed_side_by_side(batch)
        assert none.shape == (len(batch), self.num_features, 0)
        return self.deep(torch.cat([vectors, self.dense_of(batch)], dim=1)).squeeze(1)

class Strict(Sides):
    takes_any_dims = False

class Cube(Sides):
    def forward(self, batch):
        return self.embed(batch).sum(dim=(1, 2))
"""


def test_a_model_of_ones_own_says_that_it_takes_any_dims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log, _ = parquet(tmp_path)
    Path("mine.py").write_text(OWN)
    figures = run(log, tmp_path / "store", NAMED + LISTS, model="mine.py:Sides", test=[log])
    assert evaluate_store([log], tmp_path / "store")["auc"] == figures["test_auc"]
    with pytest.raises(hps.ConfigError, match=r"Strict: the tables' dims .* must be equal"):
        run(log, tmp_path / "none", NAMED + LISTS, model="mine.py:Strict")
    assert not (tmp_path / "none").exists()
    with pytest.raises(hps.ConfigError, match=r"Cube\.embed: .* embed_side_by_side takes unequal"):
        run(log, tmp_path / "cube", NAMED + LISTS, model="mine.py:Cube")


def test_a_store_whose_tables_have_other_dims_is_refused_as_the_file_says_it(
    tmp_path: Path,
) -> None:
    log, _ = parquet(tmp_path)
    options: dict[str, Any] = {**SMALL, "model": "wide_deep", "dim": 2}
    asked = TrainOptions(data=[log], store=tmp_path / "store", **options)
    names = {name: ["x"] for name in ("features", "items", "bags", "rate")}
    hps.ParameterServer(asked.server_config(names)).close()
    words = r"features, line \d+: dim = 3 of table 'items': its rows in store .* have dim 2; "
    with pytest.raises(hps.ConfigError, match=words):
        run(log, tmp_path / "store", NAMED + LISTS)
    equal = (NAMED + LISTS).replace("dim = 3", "dim = 2").replace("dim = 5", "dim = 2")
    with pytest.raises(hps.ConfigError, match=r"--dim 4: the rows of store .* have 3 columns"):
        run(log, tmp_path / "store", equal, dim=4)
    run(log, tmp_path / "store", equal)
    hps.ParameterServer(
        TrainOptions(data=[log], store=tmp_path / "one", **options).server_config()
    ).close()
    with pytest.raises(hps.ConfigError, match=r"holds the tables \['features'\], this run needs"):
        run(log, tmp_path / "one", NAMED + LISTS)


def test_tables_that_no_feature_or_two_things_are_in_are_refused(tmp_path: Path) -> None:
    log, _ = parquet(tmp_path)
    label = "columns.click.kind = 'label'\n"
    for text, words in (
        ("tables.spare.dim = 4", r"features, line 2: tables\.spare: no feature lies in it"),
        ("columns.text = {kind = 'categorical', table = 'ä'}", "must be the name of a table"),
    ):
        with pytest.raises(hps.ConfigError, match=words):
            run(log, tmp_path / "none", label + text)
    named = tmp_path / "named.csv"
    named.write_text("label,features\n1,a\n0,b\n")
    with pytest.raises(hps.ConfigError, match=r"columns\.features\.dim: .* all features that have"):
        run(named, tmp_path / "none", "columns.features = {kind = 'categorical', dim = 4}")
    wide = f"{label}columns.text = {{kind = 'categorical', dim = 4096}}"
    with pytest.raises(hps.ConfigError, match=r"4096 of 'text': .* give 4095 or less"):
        run(log, tmp_path / "none", wide)
    assert not (tmp_path / "none").exists()


def test_features_of_numbers_as_they_stand_share_the_rows_of_their_table(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("click:1 1:5 2:5 2:6 3:5\nclick:0 1:6 3:7\n")
    plain = run(log, tmp_path / "plain", None, format="slots")
    assert plain["rows"] == 3
    apart = "columns.3 = {kind = 'categorical', table = 'own'}"
    figures = run(log, tmp_path / "apart", apart, format="slots")
    assert figures["rows"] == 4
    with hps.open(tmp_path / "apart") as server:
        assert {name: server.num_rows(name) for name in server.tables} == {"features": 2, "own": 2}


def test_all_features_in_a_table_of_another_name(tmp_path: Path) -> None:
    """The reader reads them into one of its own, which the store has not."""
    log, columns = csv(tmp_path)
    names = ("text", "other", "gone", "age")
    text = "columns.click.kind = 'label'\n" + "\n".join(
        f"columns.{name} = {{kind = 'categorical', table = 'all'}}" for name in names
    )
    figures = run(log, tmp_path / "store", text, test=[log], valid=[log], shared_vocabulary=True)
    assert list(figures["digests"]) == ["all"]
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        (batch,) = list(model.open_reader([log], batch_size=64))
        assert torch.equal(model.predict(columns), model.predict(batch))
        examples = bags_of(batch, model.features["all"])
        assert any(example["text"] == [hps.key_of(None, "007")] for example in examples)
    run(log, tmp_path / "store", None, resume=True, new_data=True)
    assert main(["lookup", str(tmp_path / "store"), "text=007"]) == 0


def test_lookup_and_models_speak_of_the_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, _ = parquet(tmp_path)
    run(log, tmp_path / "store", NAMED + LISTS)
    store = str(tmp_path / "store")
    assert main(["lookup", store, "seen=7", "rate=0.5", "other=007", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["table"] for row in rows] == ["items", "rate", "features"]
    assert [len(row["embedding"]) for row in rows] == [3, 5, 2]
    assert rows[0]["key"] == hps.key_of("seen", 7) and rows[1]["key"] == hps.key_of("rate", 2)
    crossed = struct.pack("<2Q", hps.key_of("rate", 2), hps.key_of("text", "007"))
    key = str(hps.key_of("both", crossed))
    assert main(["lookup", store, "--key", key, "--table", "items"]) == 0
    assert f"key {key} of table 'items'" in capsys.readouterr().out
    assert main(["lookup", store, "--key", key]) == 1
    assert "4 tables (" in capsys.readouterr().err
    assert main(["models", store, "--json", "-"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["dim"] is None
    assert listed["dims"] == {"features": 2, "items": 3, "bags": 2, "rate": 5}
    assert main(["models", store]) == 0
    assert "  3/2/5  " in capsys.readouterr().out
    assert main(["models", store, "--show", "final"]) == 0
    shown = capsys.readouterr().out
    assert "dim 3/2/5 (3 of items, 2 of features, 2 of bags, 5 of rate)" in shown
    assert '"pooling": "mean"' in shown


def test_rows_on_servers_are_those_of_a_store(tmp_path: Path) -> None:
    log, _ = parquet(tmp_path)
    alone = run(log, tmp_path / "alone", NAMED + LISTS, test=[log])
    options: dict[str, Any] = {**SMALL, "data": [log], "model": "wide_deep", "dim": 2}
    options["features"] = features_of(NAMED + LISTS)
    with service(tmp_path, 2, tables=()) as servers:
        remote = ClientConfig(addresses=servers.addresses, client_id="trainer")
        figures = train(TrainOptions(**options, remote=remote, test=[log]))
        assert figures["loss_digest"] == alone["loss_digest"]
        assert figures["test_logloss"] == alone["test_logloss"]
        again = {**options, "features": None, "model": None, "dim": None, "hidden": None}
        train(TrainOptions(**again, remote=remote, resume=True, new_data=True))
        measured = evaluate_remote([log], remote)
        assert measured["examples"] == 60 and measured["rows"] == alone["rows"]
    with service(tmp_path / "other", 1, tables=[TableConfig(name="items", dim=9)]) as servers:
        remote = ClientConfig(addresses=servers.addresses, client_id="trainer")
        words = r"table 'items' of .* its dim is 9, not 4 .*--dim or the features file"
        with pytest.raises(hps.ConfigError, match=words):
            train(TrainOptions(**options, remote=remote))
        with servers.client() as client:
            assert list(client.tables) == ["items"]  # no other was made


def test_ranks_train_several_tables_as_one_does(tmp_path: Path, ranks: Nursery) -> None:
    log, _ = parquet(tmp_path)
    file = tmp_path / "features.toml"
    file.write_text(NAMED + LISTS)
    alone = run(log, tmp_path / "alone", NAMED + LISTS, test=[log], epochs=3)
    words = ["train", str(log), "--store", str(tmp_path / "ranks"), "--features", str(file)]
    words += ["--test", str(log), "--epochs", "3", "--dim", "2", "--hidden", "4", "--depth", "0"]
    words += ["--batch-size", "16", "--dram", "8MiB", "--model", "wide_deep"]
    words += ["--checkpoint-every", "2", "--resume-if-any"]
    assert ranks.run(Job(words, 2, dies_at={1: 5})).statuses[1] == -9
    together = ranks.figures(Job(words, 2, variables={"TORCHELASTIC_RESTART_COUNT": "1"}))
    assert together["resumed_from"] is not None
    assert together["rows"] == alone["rows"] and set(together["digests"]) == set(alone["digests"])
    assert together["test_logloss"] == pytest.approx(alone["test_logloss"], rel=1e-4)


def test_the_rules_of_keys_of_a_store_are_found_in_whatever_table(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table({"label": [0, 1] * 20, "site": list(range(40))}), log)
    text = "columns.site = {kind = 'categorical', table = 'own'}"
    run(log, tmp_path / "store", text, hash_keys=False)
    tables = [TableConfig(name="features", dim=2)]
    with hps.open(tmp_path / "store") as server:
        for rule in (False, True, None):
            config = ReaderConfig(hash_keys=rule)
            reader = open_with_features(
                [log], tables=tables, config=config, features=features_of(text)
            )
            if rule is not None:  # it was said
                check_store(reader, server)
                continue
            with pytest.raises(hps.ConfigError, match=r"raw.*hashed"):
                check_store(reader, server)
