"""A run of DIN from the features file on: what it learns, its bits, and all that reads its model.

Above it: pytest. Below it: `hps train --model din`, hps/features/, hps/train/recipe.py.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.cli.main import main
from hps.features import Features
from hps.service.client.options import ClientConfig
from hps.train import TrainOptions, evaluate_store, train
from hps.train.changed_columns import changed_lines
from tests.cluster.rank_nursery import Job, Nursery
from tests.service.client.client_lab import service
from tests.train.killed_run import killed_after

pytestmark = pytest.mark.usefixtures("one_torch_thread")

NUM_GROUPS, NUM_SEEN = 12, 10
TARGET = '[columns.seen]\nkind = "sequence"\ntarget = "group"\nvocabulary = "seen"\n'
# The sequence and its target in tables of one dim, and a feature beside them of another.
TABLES = TARGET + 'table = "items"\n[crosses.both]\ncolumns = ["group", "seen"]\ndim = 3\n'
SAME_KEYS = '[columns.seen]\nkind = "sequence"\ntarget = "group"\n'


def write(path: Path, seed: int, count: int) -> Path:
    """A log whose clicks follow from the one thing seen that is of the candidate's group.

    A history has a thing of each of ten of twelve groups, one liked or one disliked, at any place;
    the candidate's group is among them. Of a liked one nine in ten are clicked, else one in ten.
    """
    random = np.random.default_rng(seed)
    group = random.integers(0, NUM_GROUPS, count)
    likes = random.integers(0, 2, (count, NUM_GROUPS))
    seen = []
    for row in range(count):
        others = random.permutation(np.delete(np.arange(NUM_GROUPS), group[row]))
        own = random.permutation([group[row], *others[: NUM_SEEN - 1]])
        seen.append((own * 2 + likes[row, own]).tolist())
    chance = np.where(likes[np.arange(count), group], 0.9, 0.1)
    clicks = (random.random(count) < chance).astype(np.int8)
    price = random.random(count)
    lists = pa.array(seen, pa.list_(pa.int64()))
    pq.write_table(pa.table({"label": clicks, "group": group, "seen": lists, "price": price}), path)
    return path


def options(log: Path, store: Path, **changes: Any) -> TrainOptions:
    values: dict[str, Any] = {
        "data": [log],
        "store": store,
        "model": "din",
        "features": Features.from_toml(TARGET),
        "dim": 4,
        "hidden": (8,),
        "batch_size": 64,
        "dram": "8MiB",
        "threads": 1,
        "depth": 0,
        "digest": True,
    }
    return TrainOptions(**{**values, **changes})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write(tmp_path / "log.parquet", 0, 500)


def test_din_sees_what_a_sum_of_the_history_hides(tmp_path: Path) -> None:
    log, test = write(tmp_path / "log.parquet", 0, 8000), write(tmp_path / "t.parquet", 1, 3000)
    learns = {"epochs": 6, "lr": 0.05, "dense_lr": 0.003, "init_std": 0.3, "hidden": (32,)}
    areas = {
        kind: train(options(log, tmp_path / kind, model=kind, test=[test], **learns))["test_auc"]
        for kind in ("din", "deepfm")
    }
    assert areas["din"] > 0.86  # 0.9 of a model that knows it all
    assert areas["deepfm"] < areas["din"] - 0.05


@pytest.mark.parametrize("text", [TARGET, TABLES])
def test_any_depth_and_a_killed_run_give_the_bits_of_the_whole_run(
    tmp_path: Path, log: Path, text: str
) -> None:
    more: dict[str, Any] = {"dropout": 0.3, "optimizer": "adam", "epochs": 2}
    more["features"] = Features.from_toml(text)
    whole = train(options(log, tmp_path / "whole", **more))
    deep = train(options(log, tmp_path / "deep", **more, depth=2))
    with killed_after(2):
        train(options(log, tmp_path / "killed", **more, checkpoint_every=3))
    silent = {"model": None, "features": None, "dim": None, "hidden": None}
    resumed = train(
        options(
            log,
            tmp_path / "killed",
            **{**silent, "depth": 2, "epochs": 2, "resume": True},
        )
    )
    assert 0 < resumed["examples"] < 1000 == whole["examples"]
    for figure in ("digests", "loss_digest", "model_logloss"):
        assert deep[figure] == whole[figure], figure
        assert resumed[figure] == whole[figure], figure


def test_the_model_is_measured_and_scored_by_every_way_in(tmp_path: Path, log: Path) -> None:
    file, store, out = tmp_path / "f.toml", tmp_path / "store", tmp_path / "out.json"
    file.write_text(SAME_KEYS + 'max_length = 4\nkeep = "last"\n')
    words = ["train", str(log), "--features", str(file), "--model", "din", "--store", str(store)]
    small = ["--dim", "4", "--hidden", "8", "--batch-size", "64", "--dram", "8MiB"]
    assert main([*words, *small, "--init-std", "0.5", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["model"] == "din"
    assert main(["evaluate", str(log), "--store", str(store), "--json", str(out)]) == 0
    assert main(["predict", str(log), "--store", str(store), "--out", str(tmp_path / "p.npy")]) == 0
    scores = np.load(tmp_path / "p.npy")
    assert evaluate_store([log], store)["auc"] == json.loads(out.read_text())["auc"]
    with hps.Model.load(store) as model:
        rows = pq.read_table(log).to_pydict()
        keys_read = next(model.open_reader([log], batch_size=500)).features["features"].keys_L
        values = {*rows["group"], *(value for seen in rows["seen"] for value in seen[-4:])}
        own_keys = {hps.key_of("group", value) for value in values}
        assert set(keys_read.numpy().view(np.uint64).tolist()) == own_keys
        found = model.predict({name: rows[name] for name in ("group", "seen", "price")})
        np.testing.assert_allclose(found, scores, rtol=1e-6)
        one = {name: [rows[name][7]] for name in ("group", "seen", "price")}
        np.testing.assert_allclose(model.predict(one), scores[7:8], rtol=1e-5)
        last = {**one, "seen": [rows["seen"][7][-4:]]}
        np.testing.assert_allclose(model.predict(last), scores[7:8], rtol=1e-5)
        other = {**one, "seen": [rows["seen"][7][-4:][::-1][:3]]}
        assert abs(float(model.predict(other)[0]) - scores[7]) > 1e-6
        several = {name: [*one[name], *one[name]] for name in one} | {"group": [[3], [3, 5]]}
        with pytest.raises(hps.ConfigError, match=r"'group' has 2 keys in row 2; .* one key"):
            model.predict(several)
        empty = {**one, "seen": [None]}
        assert bool(torch.isfinite(model.predict(empty)).all())
        keys = [hps.key_of("group", one["seen"][0][-1])]
        assert np.any(model.lookup("features", np.array(keys, np.uint64)))
    value = rows["seen"][0][-1]
    assert main(["lookup", str(store), f"seen={value}", "group=3", "--json", str(out)]) == 0
    seen, group = json.loads(out.read_text())["rows"]
    assert (seen["key"], seen["is_there"]) == (hps.key_of("group", value), True)
    assert seen["rule"] == "hashed as a value of 'group'"
    assert (group["key"], group["rule"]) == (hps.key_of("group", 3), "hashed with its feature")


def test_a_target_of_a_log_of_slots_has_one_key_too(tmp_path: Path) -> None:
    log, random = tmp_path / "log.slots", np.random.default_rng(2)
    lines = [
        " ".join(
            [f"{row % 2}:1", f"{random.integers(9)}:4", *(f"{random.integers(9)}:3" for _ in "ab")]
        )
        for row in range(200)
    ]
    log.write_text("".join(f"{line}\n" for line in lines))
    described = Features.from_toml('[columns.3]\nkind = "sequence"\ntarget = "4"\n')
    train(options(log, tmp_path / "store", features=described, format="slots"))
    with hps.Model.load(tmp_path / "store") as model:
        assert len(model.predict({"3": [[1, 2]], "4": [5]})) == 1
        with pytest.raises(hps.ConfigError, match=r"'4' has 2 keys in row 2; .* one key"):
            model.predict({"3": [[1, 2], [1]], "4": [5, [5, 6]]})


@pytest.mark.parametrize("features", [None, "[columns.seen]\nkind = 'sequence'\n"])
def test_a_log_without_a_target_is_refused_before_a_store_is_made(
    tmp_path: Path, log: Path, features: str | None
) -> None:
    described = None if features is None else Features.from_toml(features)
    with pytest.raises(hps.ConfigError, match=r"model din: .*features\.md.* target = \"item\""):
        train(options(log, tmp_path / "store", features=described))
    assert not (tmp_path / "store").exists()


def test_features_of_several_tables_are_scored_and_looked_up(tmp_path: Path, log: Path) -> None:
    store = tmp_path / "store"
    described = Features.from_toml(TABLES)
    figures = train(options(log, store, features=described, test=[log], init_std=0.5))
    assert list(figures["digests"]) == ["both", "features", "items"]
    assert evaluate_store([log], store)["auc"] == figures["test_auc"]
    rows = pq.read_table(log).slice(0, 3).to_pydict()
    with hps.Model.load(store) as model:
        assert model.module.dims_of_tables == {"features": 4, "items": 4, "both": 3}
        assert model.recipe.sequences == {1: 0}
        given = {name: rows[name] for name in ("group", "seen", "price")}
        whole = model.predict(given)
        changed_history = {**given, "seen": [given["seen"][0][:2], *given["seen"][1:]]}
        moved = np.asarray(model.predict(changed_history)) != np.asarray(whole)
        assert moved.tolist() == [True, False, False]
        with pytest.raises(hps.ConfigError, match=r"'group' has 2 keys in row 2; .* one key"):
            model.predict({**given, "group": [[1], [2, 3], [4]]})
    silent = {"model": None, "features": None, "dim": None, "hidden": None}
    assert train(options(log, store, **silent, resume=True, new_data=True))["examples"] == 500


@pytest.mark.parametrize(
    ("more", "dims"),
    [
        ("dim = 8\n", r"\{'seen': 8, 'group': 4\}"),
        ('table = "items"\n[tables.items]\ndim = 3\n', r"\{'seen': 3, 'group': 4\}"),
    ],
)
def test_a_target_of_another_dim_is_refused_before_a_store_is_made(
    tmp_path: Path, log: Path, more: str, dims: str
) -> None:
    with pytest.raises(hps.ConfigError, match=f"din: the dims {dims} of sequences and their"):
        train(options(log, tmp_path / "store", features=Features.from_toml(TARGET + more)))
    assert not (tmp_path / "store").exists()


def test_compiling_is_refused(tmp_path: Path, log: Path) -> None:
    with pytest.raises(hps.ConfigError, match=r"\(--compile\): model din takes sequences"):
        train(options(log, tmp_path / "store", compile=True))
    assert not (tmp_path / "store").exists()


def test_models_that_sum_take_the_same_file(tmp_path: Path, log: Path) -> None:
    figures = train(options(log, tmp_path / "store", model="lr", dim=None, hidden=None))
    assert figures["examples"] == 500


def changed(store: Path, log: Path, text: str, **more: Any) -> dict[str, Any]:
    silent = {"model": None, "dim": None, "hidden": None}
    flags = {"resume": True, "new_data": True, "change_features": True}
    return train(options(log, store, **silent, **flags, features=Features.from_toml(text), **more))


def logits(store: Path, log: Path) -> np.ndarray[Any, Any]:
    with hps.Model.load(store) as model:
        (batch,) = model.open_reader([log], batch_size=500)
        return np.asarray(model.module(batch).detach())


def test_features_are_changed_and_another_sequence_begins_at_nothing(
    tmp_path: Path, log: Path
) -> None:
    store = tmp_path / "store"
    train(options(log, store, epochs=2, init_std=0.5))
    before = logits(store, log)
    rows = pq.read_table(log)
    wide = rows.append_column("later", rows["seen"])
    pq.write_table(
        wide.select(["later", "price", "seen", "label", "group"]), tmp_path / "w.parquet"
    )
    second = TARGET + '[columns.later]\nkind = "sequence"\ntarget = "group"\n'
    figures = changed(store, tmp_path / "w.parquet", second, limit=1000, init_std=0.5)
    assert figures["examples"] == 0
    np.testing.assert_allclose(logits(store, tmp_path / "w.parquet"), before, rtol=1e-4, atol=1e-5)
    assert before.std() > 1e-2
    figures = changed(store, tmp_path / "w.parquet", second, epochs=4, init_std=0.5)
    assert figures["examples"] > 0 and np.isfinite(figures["train_logloss"])
    with hps.Model.load(store) as model:
        assert model.recipe.sequences == {0: 2, 1: 2}


def test_a_model_cannot_lose_its_last_sequence(tmp_path: Path, log: Path) -> None:
    store = tmp_path / "store"
    train(options(log, store))
    before = logits(store, log)
    with pytest.raises(hps.ConfigError, match="model din: no column is a sequence with a target"):
        changed(store, log, "[columns.seen]\nkind = 'sequence'\n")
    np.testing.assert_array_equal(logits(store, log), before)
    with pytest.raises(hps.ConfigError, match=r"other features than .* columns\.seen is now"):
        train(options(log, store, resume=True, features=Features.from_toml(SAME_KEYS)))


@pytest.mark.parametrize("text", [TARGET, TABLES])
def test_rows_on_servers_make_the_same_model(tmp_path: Path, log: Path, text: str) -> None:
    described = Features.from_toml(text)
    here = train(options(log, tmp_path / "store", features=described))
    with service(tmp_path, 1, tables=()) as servers:
        where = ClientConfig(addresses=servers.addresses, client_id="trainer")
        asked = options(log, None, remote=where, features=described)  # type: ignore[arg-type]
        there = train(asked)
    for figure in ("loss_digest", "model_logloss"):
        assert there[figure] == here[figure]


@pytest.mark.parametrize("text", [TARGET, TABLES])
def test_ranks_take_the_step_of_one_process(
    tmp_path: Path, ranks: Nursery, log: Path, text: str
) -> None:
    (tmp_path / "f.toml").write_text(text)
    words = ["train", str(log), "--model", "din", "--features", str(tmp_path / "f.toml")]
    words += ["--dim", "4", "--hidden", "8", "--batch-size", "100", "--dram", "2MiB", "--lr", "0.1"]
    words += ["--threads", "1", "--progress-seconds", "0", "--optimizer", "sgd"]
    found = []
    for size in (1, 2):
        store = tmp_path / f"of-{size}"
        figures = ranks.figures(Job([*words, "--store", str(store)], size))
        assert figures["examples"] == 500
        of_tables = {}
        with hps.open(store) as server:
            for table in server.tables:
                keys, rows = map(np.concatenate, zip(*server.items(table), strict=True))
                of_tables[table] = rows[np.argsort(keys)]
        found.append((of_tables, figures["train_logloss"]))
    (alone, loss), (together, other_loss) = found
    assert list(alone) == list(together) and sum(map(len, alone.values())) > 30
    for table, rows in alone.items():
        assert rows.shape == together[table].shape, table
        assert np.abs(rows - together[table]).max() < 1e-5, table
    assert loss == pytest.approx(other_loss, abs=1e-5)


OWN = """
import torch
from torch import nn
from hps.models import ClickModel, SequenceRows

class Mean(ClickModel):
    takes_sequences = True

    def _build(self, hidden, dropout):
        self.output = nn.Linear(self.num_features * self.dim, 1)

    @property
    def output_bias(self):
        return self.output.bias

    def forward(self, batch):
        vectors = []
        for own in self.embed_apart(batch):
            if isinstance(own, SequenceRows):
                own = own.sums(own.rows) / own.lengths.clamp(min=1).unsqueeze(1)
            vectors.append(own)
        return self.output(torch.cat(vectors, dim=1)).squeeze(1)
"""


def test_a_model_of_one_s_own_takes_sequences(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    train(options(log, tmp_path / "store", model="own.py:Mean", hidden=None))
    scores = logits(tmp_path / "store", log)
    assert scores.shape == (500,) and scores.std() > 1e-4
    bad = OWN.replace("takes_sequences = True", "takes_sequences = 1")
    (tmp_path / "bad.py").write_text(bad)
    with pytest.raises(hps.ConfigError, match="has takes_sequences=1; it must be True or False"):
        options(log, tmp_path / "bad", model="bad.py:Mean")
    takes = (
        "    def __init__(self, server, features, num_dense, hidden, dropout): ...\n    def _build"
    )
    (tmp_path / "bad.py").write_text(OWN.replace("    def _build", takes))
    with pytest.raises(hps.ConfigError, match=r"dropout, sequences=\.\.\.\) is: .*unexpected"):
        options(log, tmp_path / "bad", model="bad.py:Mean")


def test_a_column_of_another_vocabulary_begins_as_new(tmp_path: Path, log: Path) -> None:
    train(options(log, tmp_path / "store"))
    train(options(log, tmp_path / "same", features=Features.from_toml(SAME_KEYS)))
    with hps.Model.load(tmp_path / "store") as own, hps.Model.load(tmp_path / "same") as other:
        assert changed_lines(own.recipe, other.recipe) == [
            "feature 'seen' is made otherwise: it begins as a new one"
        ]
        said = Features.from_toml(SAME_KEYS + 'vocabulary = "group"\n')
        assert other.recipe.transform is not None
        same = {**other.recipe.transform, "measured": said.to_dict()}
        assert changed_lines(other.recipe, replace(other.recipe, transform=same)) == []
