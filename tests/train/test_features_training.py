"""A features file is part of the model: what trained with it is evaluated, scored and resumed so.

Above it: pytest. Below it: hps/train/, hps/features/.
"""

import copy
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.cli.main import main
from hps.cluster.world.local_world import LocalWorld
from hps.config import TableConfig
from hps.features.open import open_with_features
from hps.reader import ReaderConfig, open_reader
from hps.train import TrainOptions, evaluate_store, train
from hps.train.predict import predict_log
from hps.train.progress import Progress
from tests.cluster.rank_nursery import Job, Nursery
from tests.cluster.ranks import run_ranks
from tests.features.feature_twin import bags_of
from tests.logs import write_criteo

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
TEXTS = ["", "007", "7", "7 ", " ", "é", "\u202e", "18446744073709551616", "-0", "a,b", '"', "NA"]
NUMBERS = [None, 0, -1, 1, -(2**63), 2**63 - 1, 13, 255, 7, 100]


def run(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))


def picks(values: list[Any], seed: int, count: int = 60) -> list[Any]:
    return [values[place] for place in np.random.default_rng(seed).integers(0, len(values), count)]


LABELS = [row % 2 for row in range(60)]
FLOATS = [None, 0.0, 0.5, -2.5, 1e6, 0.1, 3e-9, 7.0]
CRITEO_FEATURES = """
    columns.I1 = {kind = "dense", normalise = true}
    columns.I2 = {kind = "dense", buckets = 4}
    columns.I3 = {kind = "dense", buckets = [-1, 0, 7.5], missing = 3, keep = true, clip = [0, 9]}
    columns.I4 = {kind = "dense", log = false, clip = [-100, 100], normalise = true}
    columns.I5 = {kind = "ignored"}
    columns.C1 = {kind = "categorical", hash_buckets = 5, missing = "key"}
    columns.C2 = {kind = "categorical", missing = "drop"}
    columns.C3 = {kind = "ignored"}
    [crosses.both]
    columns = ["C4", "I2"]
    [crosses.all]
    columns = ["C2", "C1", "I3"]
    hash_buckets = 100
"""
NAMED_FEATURES = """
    columns.click = {kind = "label"}
    columns.price = {kind = "dense", log = true, normalise = true}
    columns.rate = {kind = "dense", missing = -1, buckets = 3, keep = true}
    columns.age = {kind = "dense", clip = [0, 200], missing = 50}
    columns.text = {kind = "categorical", missing = "key", hash_buckets = 7}
    columns.other = {kind = "categorical", missing = "drop"}
    columns.gone = {kind = "ignored"}
    [crosses.both]
    columns = ["text", "rate"]
"""
LISTS = [[1, 2, 3], [], None, [2**63 - 1], [7, 7, -1, 0]]
SEQUENCES = """
    [columns.seen]
    kind = "sequence"
    max_length = 2
    keep = "last"
    missing = "key"
    [crosses.place]
    columns = ["seen", "text", "seen too"]
    max_length = 3
    [columns."seen too"]
    kind = "sequence"
"""


def criteo(folder: Path) -> tuple[Path, dict[str, list[Any]]]:
    columns: dict[str, list[Any]] = {"label": LABELS}
    columns |= {f"I{number}": picks(NUMBERS, number) for number in range(1, 14)}
    columns |= {f"C{number}": picks(TEXTS, 20 + number) for number in range(1, 27)}
    rows = zip(*columns.values(), strict=True)
    lines = ("\t".join("" if value is None else str(value) for value in row) for row in rows)
    (folder / "log").write_text("".join(f"{line}\n" for line in lines))
    return folder / "log", columns


def named() -> dict[str, list[Any]]:
    return {
        "click": LABELS,
        "price": picks(FLOATS, 1),
        "rate": picks(FLOATS, 2),
        "age": picks([*range(0, 250, 9), None], 3),
        "text": picks(TEXTS, 4),
        "other": picks(TEXTS, 5),
        "gone": picks(TEXTS, 6),
    }


def parquet(folder: Path) -> tuple[Path, dict[str, list[Any]]]:
    columns = named()
    columns["text"] = [None if text == "NA" else text for text in columns["text"]]
    columns |= {"seen": picks(LISTS, 7), "seen too": picks(LISTS, 8)}
    pq.write_table(pa.table(columns), folder / "log.parquet")
    return folder / "log.parquet", columns


def csv(folder: Path) -> tuple[Path, dict[str, list[Any]]]:
    columns = named()
    rows = zip(*columns.values(), strict=True)
    quoted = (
        ",".join("" if one is None else '"{}"'.format(str(one).replace('"', '""')) for one in row)
        for row in rows
    )
    header = ",".join(columns)
    (folder / "log.csv").write_text("".join(f"{line}\n" for line in (header, *quoted)))
    return folder / "log.csv", columns


Columns = dict[str, Any]
KEYS = pa.list_(pa.uint64())
WEIGHED = pa.map_(pa.uint64(), pa.float64())


def slots(folder: Path) -> tuple[Path, Columns]:
    keys = [0, 7, 2**63, 2**64 - 1]
    rows = list(zip(LABELS, picks(FLOATS[1:], 1), picks(keys, 2), picks(keys, 3), strict=True))
    lines = (
        f"click:{label} dense_feature:{number} 1:{one} 2:{other} 1:5\n"
        for label, number, one, other in rows
    )
    (folder / "log").write_text("".join(lines))
    return folder / "log", {
        "click": LABELS,
        "dense_feature 1": [number for _, number, _, _ in rows],
        "1": pa.array([[one, 5] for _, _, one, _ in rows], KEYS),
        "2": pa.array([other for _, _, _, other in rows], pa.uint64()),
    }


def libffm(folder: Path) -> tuple[Path, Columns]:
    keys = [0, 7, 2**63, 2**64 - 1]
    rows = list(zip(LABELS, picks(keys, 2), picks(keys, 3), picks(FLOATS[1:], 4), strict=True))
    lines = (
        f"{label} 1:{one}:0.5 2:{other}:2 1:5:3 9:1:{number}\n"
        for label, one, other, number in rows
    )
    (folder / "log").write_text("".join(lines))
    return folder / "log", {
        "label": LABELS,
        "1": pa.array([[(one, 0.5), (5, 3.0)] for _, one, _, _ in rows], WEIGHED),
        "2": pa.array([[(other, 2.0)] for _, _, other, _ in rows], WEIGHED),
        "9": [number for _, _, _, number in rows],
    }


def libsvm(folder: Path) -> tuple[Path, Columns]:
    rows = list(zip(LABELS, picks([0, 7, 2**63], 2), strict=True))
    lines = (f"{label} {one}:0.5 {2**64 - 1}:3\n" for label, one in rows)
    (folder / "log").write_text("".join(lines))
    bags = [[(one, 0.5), (2**64 - 1, 3.0)] for _, one in rows]
    return folder / "log", {"label": LABELS, "index": pa.array(bags, WEIGHED)}


def libsvm_fields(folder: Path) -> tuple[Path, Columns]:
    users, items = [0, 7, 0], [2**63, 2**64 - 1, 10]
    rows = list(zip(LABELS, picks(users, 2), picks(items, 3), picks(FLOATS[1:], 4), strict=True))
    lines = (
        f"{label} 5:{number} {user}:0.5 {item}:3 9:1 6:{row}\n"
        for row, (label, user, item, number) in enumerate(rows)
    )
    (folder / "log").write_text("".join(lines))
    return folder / "log", {
        "label": LABELS,
        "u\u0308ser": pa.array([[(user, 0.5), (9, 1.0)] for _, user, _, _ in rows], WEIGHED),
        "item": pa.array([[(item, 3.0)] for _, _, item, _ in rows], WEIGHED),
        "price": [number for _, _, _, number in rows],
        "more": pa.array([[(6, float(row))] for row in range(60)], WEIGHED),
    }


LIBSVM_FIELDS = """
    [fields]
    "u\u0308ser" = ["0-4", "7-9"]
    price = 5
    more = [6, 5000]
    item = "*"
    [columns.price]
    kind = "dense"
    buckets = 3
    keep = true
    [columns.more]
    kind = "dense"
    normalise = true
    [columns."u\u0308ser"]
    kind = "sequence"
    max_length = 1
    hash_buckets = 9
    [crosses.both]
    columns = ["item", "u\u0308ser"]
"""
LIBFFM_DENSE = "\n[columns.9]\nkind = 'dense'\nclip = [0, 1]\n"


FIELDS = """
    columns.1 = {kind = "sequence", max_length = 1, keep = "last", hash_buckets = 9}
    columns.2 = {kind = "categorical", hash_buckets = 3}
    [crosses.both]
    columns = ["2", "1"]
"""
FORMATS = {
    "criteo": (criteo, CRITEO_FEATURES),
    "parquet": (parquet, NAMED_FEATURES + SEQUENCES),
    "csv": (csv, NAMED_FEATURES),
    "slots": (
        slots,
        FIELDS + "\n[columns.'dense_feature 1']\nkind = 'dense'\nbuckets = 3\nkeep = true",
    ),
    "libffm": (libffm, FIELDS + LIBFFM_DENSE),
    "libsvm with fields": (libsvm_fields, LIBSVM_FIELDS),
    "libsvm": (libsvm, "columns.index = {kind = 'sequence', max_length = 1, hash_buckets = 4}"),
}


def assert_same(found: hps.Batch, expected: hps.Batch) -> None:
    assert_same_table(found, expected, "features")


def assert_same_table(found: hps.Batch, expected: hps.Batch, table: str) -> None:
    own, other = found.features[table], expected.features[table]
    assert torch.equal(own.keys_L, other.keys_L) and torch.equal(own.offsets, other.offsets)
    assert (own.weights_L is None) == (other.weights_L is None)
    if own.weights_L is not None and other.weights_L is not None:
        assert torch.equal(own.weights_L, other.weights_L)
    assert torch.equal(found.dense, expected.dense)


@pytest.mark.parametrize("kind", FORMATS)
def test_training_evaluation_and_prediction_see_the_same(tmp_path: Path, kind: str) -> None:
    write, text = FORMATS[kind]
    log, columns = write(tmp_path)
    features = hps.Features.from_toml(text)
    kind = kind.partition(" ")[0]
    figures = run(log, tmp_path / "store", format=kind, features=features, test=[log], epochs=2)
    config = ReaderConfig(format=kind, batch_size=64)
    tables = [TableConfig(name="features", dim=2)]
    reader = open_with_features([log], tables=tables, config=config, features=features)
    (trained,) = list(reader)
    names = reader.features["features"]
    raw = open_reader(log, tables=tables, config=reader.config)
    (before,) = list(raw)
    assert list(names) != list(raw.features["features"]) or kind == "libsvm"
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        assert model.features == {"features": list(names)}
        (scored,) = list(model.open_reader([log]))
        assert_same(scored, trained)
        expected = model.predict(scored)
        out = tmp_path / "out.npy"
        predict_log(model, [log], out)
        np.testing.assert_array_equal(np.load(out), expected.numpy())
        without = {name: one for name, one in columns.items() if name not in ("label", "click")}
        used = {name: one for name, one in columns.items() if name not in ("I5", "C3", "gone")}
        batches = [pa.RecordBatch.from_pydict(one) for one in (columns, used)]
        for given in (columns, without, used, *batches):
            assert_same(model.batch_of(given), trained)
            assert torch.equal(model.predict(given), expected)
        for row in (0, 17):  # one at a time, as a server has them
            one = {name: pa.array(values).slice(row, 1) for name, values in without.items()}
            found, wanted = bags_of(model.batch_of(one), names)[0], bags_of(trained, names)[row]
            assert found == wanted
            assert torch.equal(model.batch_of(one).dense[0], trained.dense[row])
    measured = evaluate_store([log], tmp_path / "store", batch_size=64)
    assert measured["auc"] == pytest.approx(figures["test_auc"])
    assert not torch.equal(before.features["features"].keys_L, trained.features["features"].keys_L)


def test_a_file_that_says_what_is_trains_the_same_bits(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", 300)
    text = "columns.I1 = {kind = 'dense', log = true}\ncolumns.C1 = {kind = 'categorical'}"
    features = hps.Features.from_toml(text)
    plain = run(log, tmp_path / "plain", test=[log])
    same = run(log, tmp_path / "same", features=features, test=[log])
    other = run(
        log, tmp_path / "other", features=hps.Features.from_toml(text.replace("C1", "C2")), seed=0
    )
    fold = hps.Features.from_toml("columns.C1 = {kind = 'categorical', hash_buckets = 9}")
    folded = run(log, tmp_path / "folded", features=fold)
    assert plain["digests"] == same["digests"] == other["digests"] != folded["digests"]
    assert plain["test_logloss"] == same["test_logloss"]
    assert folded["rows"] < plain["rows"]


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    log, _ = criteo(tmp_path)
    features = tmp_path / "features.toml"
    features.write_text(CRITEO_FEATURES)
    whole = run(log, tmp_path / "whole", features=features, epochs=6)
    run(log, tmp_path / "half", features=features, epochs=6, limit=180)
    assert not (tmp_path / "none").exists()
    rest = run(log, tmp_path / "half", resume=True, epochs=6)  # the file is the model's
    assert rest["digests"] == whole["digests"] and rest["train_logloss"] == whole["train_logloss"]
    again = run(log, tmp_path / "half", resume=True, features=features, epochs=7)
    assert again["examples"] == 60


def test_another_file_is_refused_when_resuming(tmp_path: Path) -> None:
    log, _ = criteo(tmp_path)
    features = hps.Features.from_toml(CRITEO_FEATURES)
    run(log, tmp_path / "store", features=features)
    again = {"resume": True, "new_data": True}
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        transform = model.recipe.make_transform()
    assert transform is not None and transform.asked == features != transform.measured
    moved = replace(features, columns=features.columns[::-1])
    for same in (features, transform.measured, moved):
        run(log, tmp_path / "store", features=same, **again)
    other = hps.Features.from_toml(CRITEO_FEATURES.replace("hash_buckets = 5", "hash_buckets = 6"))
    with pytest.raises(hps.ConfigError, match=r"other features .*columns\.C1 is now .*6.* was .*5"):
        run(log, tmp_path / "store", features=other, **again)
    fewer = replace(features, crosses=features.crosses[:1])
    with pytest.raises(hps.ConfigError, match=r"crosses\.all is now not described"):
        run(log, tmp_path / "store", features=fewer, **again)
    swapped = replace(features, crosses=features.crosses[::-1])
    with pytest.raises(hps.ConfigError, match=r"in the order \['all', 'both'\]"):
        run(log, tmp_path / "store", features=swapped, **again)
    run(log, tmp_path / "plain")
    with pytest.raises(hps.ConfigError, match="without a features file, this run asks for feat"):
        run(log, tmp_path / "plain", features=features, **again)


def test_a_recipe_of_another_transform_is_another_model(tmp_path: Path) -> None:
    log, _ = criteo(tmp_path)
    run(log, tmp_path / "store", features=hps.Features.from_toml(CRITEO_FEATURES))
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        recipe = model.recipe
    recipe.check_same(recipe)
    assert recipe.transform is not None
    for column, change in (("I1", {"normalise": {"mean": 0, "std": 1}}), ("C1", {"kind": "x"})):
        transform = copy.deepcopy(recipe.transform)
        transform["measured"]["columns"][column] |= change
        with pytest.raises(hps.ConfigError, match=r"trained with other features \(--features\)"):
            recipe.check_same(replace(recipe, transform=transform))
    broken = replace(recipe, transform=transform)
    with pytest.raises(hps.ConfigError, match=r"model's features: columns\.C1\.kind"):
        broken.make_transform()
    with pytest.raises(hps.ConfigError, match="are none of hps"):
        replace(recipe, transform={"raw": {}}).make_transform()


def test_a_model_without_features_is_stored_as_it_was(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", 100)
    run(log, tmp_path / "store")
    with hps.open(tmp_path / "store") as server:
        model, position = server.checkpoint_state("final")
    assert "transform" not in model["recipe"] and "transform" not in position
    assert "nan_columns" not in model["recipe"]["reader"]


def test_the_command_prints_what_is_made_of_each_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, _ = criteo(tmp_path)
    file = tmp_path / "features.toml"
    file.write_text(CRITEO_FEATURES)
    flags = ["--dim", "2", "--hidden", "4", "--dram", "8MiB", "--depth", "0"]
    command = ["train", str(log), "--store", str(tmp_path / "store"), *flags]
    assert main([*command, "--features", str(file)]) == 0
    said = capsys.readouterr().err
    assert "columns: 1 feature (cross of C2 and C1 and I3, folded into 100 keys): all" in said
    assert "(hashed with the feature; a missing value has a key, folded into 5 keys): C1" in said
    assert "missing is 0; less" in said and "left out by the features file): I5 (integer)" in said
    assert main([*command, "--features", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
    file.write_text("[columns.C1]\nkind = 'text'")
    assert main([*command, "--features", str(file)]) == 1
    assert "features.toml, line 2: columns.C1.kind" in capsys.readouterr().err


def test_a_test_log_of_the_same_columns_has_no_other_ones(tmp_path: Path) -> None:
    log, _ = parquet(tmp_path)
    said = StringIO()
    options: dict[str, Any] = {**SMALL, "data": [log], "test": [log], "store": tmp_path / "store"}
    text = NAMED_FEATURES.replace(", keep = true", "")
    train(TrainOptions(**options, features=hps.Features.from_toml(text)), Progress(0, said))
    assert "its bucket is a feature instead): rate" in said.getvalue()
    told = [line for line in said.getvalue().splitlines() if "is trained on, too" not in line]
    assert "--test" not in "".join(told)
    fewer = tmp_path / "fewer.parquet"
    pq.write_table(pq.read_table(log).drop_columns(["text"]), fewer)
    with pytest.raises(hps.ConfigError, match=r"features that the log does not have: \['text'\]"):
        run(log, tmp_path / "2", test=[fewer], features=hps.Features.from_toml(text))


def test_a_flag_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    log, _ = parquet(tmp_path)
    features = hps.Features.from_toml(NAMED_FEATURES)
    with pytest.raises(hps.ConfigError, match=r"the label is said to be 'age' \(--label\)"):
        run(log, tmp_path / "store", features=features, label="age")
    assert not (tmp_path / "store").exists()
    with pytest.raises(hps.ConfigError, match=r"columns\.other: .* to be left out \(--ignore\)"):
        run(log, tmp_path / "store", features=features, ignore=["other"])
    assert not (tmp_path / "store").exists()
    stored = run(log, tmp_path / "store", features=features, label="click", ignore=["seen"])
    told = {(column["name"], column["kind"]) for column in stored["columns"]}
    assert ("seen", "ignored") in told and ("gone", "ignored") in told
    run(log, tmp_path / "store", resume=True, new_data=True, test=[log])


def test_ranks_train_with_a_features_file_as_one_does(tmp_path: Path, ranks: Nursery) -> None:
    log, _ = criteo(tmp_path)
    file = tmp_path / "features.toml"
    file.write_text(CRITEO_FEATURES)
    alone = run(log, tmp_path / "alone", features=file, test=[log], epochs=2)
    words = ["train", str(log), "--store", str(tmp_path / "ranks"), "--features", str(file)]
    words += ["--test", str(log), "--epochs", "2", "--dim", "2", "--hidden", "4", "--depth", "0"]
    words += ["--batch-size", "64", "--dram", "8MiB"]
    together = ranks.figures(Job(words, 2))
    assert together["rows"] == alone["rows"]
    assert together["test_logloss"] == pytest.approx(alone["test_logloss"], rel=1e-4)


def test_ranks_with_other_features_are_refused(tmp_path: Path) -> None:
    log, _ = criteo(tmp_path)

    def of_rank(world: LocalWorld) -> None:
        features = hps.Features.from_toml(
            f"columns.C1 = {{kind = 'categorical', hash_buckets = {5 + world.rank}}}"
        )
        asked = {"data": [log], "store": tmp_path / "ranks", "features": features}
        train(TrainOptions(**{**SMALL, **asked}), None, world)

    failures = run_ranks(2, of_rank)
    assert "rank 1 has features=" in str(failures[0].error)


def _weighted_rows() -> dict[str, list[Any]]:
    generator = np.random.default_rng(5)
    return {
        "label": [int(one) for one in generator.integers(0, 2, 200)],
        "user": [f"u{one}" for one in generator.integers(0, 9, 200)],
        "place": [f"p{one}" for one in generator.integers(0, 30, 200)],
        "count": [float(one) for one in generator.integers(1, 4, 200)],
        "age": [float(one) for one in generator.integers(18, 90, 200)],
    }


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_weights_and_groups_of_a_file_are_those_of_the_flags(tmp_path: Path, ending: str) -> None:
    table, log = pa.table(_weighted_rows()), tmp_path / f"log.{ending}"
    if ending == "parquet":
        pq.write_table(table, log)
    else:
        pa_csv.write_csv(table, log)
    text = "columns.count.kind = 'weight'\ncolumns.user.kind = 'group'"
    said = run(log, tmp_path / "a", features=hps.Features.from_toml(text), test=[log])
    flags = run(log, tmp_path / "b", weight="count", group="user", test=[log])
    plain = run(log, tmp_path / "c", ignore=["count"])
    names = ("digests", "loss_digest", "test_gauc", "test_auc")
    assert [said[name] for name in names] == [flags[name] for name in names]
    assert said["loss_digest"] != plain["loss_digest"] and said["test_gauc"] is not None
    # The stored model has them: a run that goes on needs no flag, and another one is refused.
    more = {"resume": True, "new_data": True}
    again = run(log, tmp_path / "a", **more)
    assert again["loss_digest"] == run(log, tmp_path / "b", **more)["loss_digest"]
    with pytest.raises(hps.ConfigError, match="weight"):
        run(log, tmp_path / "a", weight="age", **more)
    with pytest.raises(hps.ConfigError, match="the weight is said to be 'age'"):
        run(log, tmp_path / "d", features=hps.Features.from_toml(text), weight="age")


def test_a_survey_with_weights_and_groups_changes_nothing(tmp_path: Path) -> None:
    log, out = tmp_path / "log.parquet", tmp_path / "f.toml"
    pq.write_table(pa.table(_weighted_rows()), log)
    words = ["--weight", "count", "--group", "user", "--ignore", "age"]
    assert main(["features", str(log), *words, "--out", str(out)]) == 0
    text = out.read_text()
    assert '[columns.count]\nkind = "weight"' in text
    changes: dict[str, Any] = {"weight": "count", "group": "user", "ignore": ["age"]}
    plain = run(log, tmp_path / "a", **changes)
    told = run(log, tmp_path / "b", features=out, **changes)
    assert told["digests"] == plain["digests"] and told["loss_digest"] == plain["loss_digest"]
