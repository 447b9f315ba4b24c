"""Models of libsvm, libffm and slots: fields, logs without labels, raw columns, and what is said.

Above it: pytest. Below it: hps/train/, hps/reader/raw_lines.py. That raw columns are read as
training read them is in test_features_training.py, too.
"""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import hps
from hps.cli.main import main
from hps.train import TrainOptions, evaluate_store, train
from hps.train.predict import predict_log
from hps.train.progress import Progress
from hps.train.raw_values import RawValues

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
FIELDS = """
[fields]
user = "0-99"
item = ["100-199", 9223372036854775807]
age = 500
more = ["600-601"]
[columns.age]
kind = "dense"
log = true
[columns.more]
kind = "dense"
"""


def run(log: Path, store: Path, told: StringIO | None = None, **changes: Any) -> dict[str, Any]:
    options = TrainOptions(**{"data": [log], "store": store, **SMALL, **changes})
    return train(options, None if told is None else Progress(0, told))


def write(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def bare(log: Path) -> Path:
    """The log without its labels."""
    lines = [line.split(" ", 1)[1] for line in log.read_text().splitlines()]
    return write(log.with_name(f"{log.name}-bare"), lines)


def libsvm(folder: Path, rows: int = 200) -> Path:
    return write(
        folder / "libsvm",
        [
            f"{row % 2} {row % 7}:1 {100 + row % 11}:0.5 500:{row % 5} 601:{row / 8} "
            f"{2**63 - 1}:1 {row % 7}:2"
            for row in range(rows)
        ],
    )


def libffm(folder: Path) -> Path:
    return write(
        folder / "libffm",
        [f"{row % 2} 0:0:{row % 5} 1:{row % 7}:1 2:{row % 9}:0.5 2:3:1" for row in range(200)],
    )


def slots(folder: Path) -> Path:
    return write(
        folder / "slots", [f"{row % 2}:1 {row % 7 + 2}:a {row % 9}:b 3:b" for row in range(200)]
    )


def named_slots(folder: Path) -> Path:
    return write(
        folder / "named",
        [f"click:{row % 2} dense_feature:{row % 5} a:{row % 7} b:{row}" for row in range(200)],
    )


LOGS = {
    "libsvm": (libsvm, {}),
    "libsvm with fields": (libsvm, {"features": FIELDS}),
    "libffm": (libffm, {"dense_columns": ["0"]}),
    "slots": (slots, {}),
    "named slots": (named_slots, {}),
}


@pytest.mark.parametrize("kind", LOGS)
def test_a_log_without_labels_scores_as_with_them(tmp_path: Path, kind: str) -> None:
    make, options = LOGS[kind]
    log = make(tmp_path)
    given = dict(options)
    if "features" in given:
        given["features"] = hps.Features.from_toml(given["features"])
    run(log, tmp_path / "store", epochs=2, **given)
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        predict_log(model, [log], tmp_path / "labelled.npy")
        predict_log(model, [bare(log)], tmp_path / "bare.npy")
    scores = np.load(tmp_path / "labelled.npy")
    assert len(set(scores.tolist())) > 10
    np.testing.assert_array_equal(np.load(tmp_path / "bare.npy"), scores)
    for act in (
        lambda: evaluate_store([bare(log)], tmp_path / "store"),
        lambda: run(bare(log), tmp_path / "other", format=log.name.replace("named", "slots")),
    ):
        with pytest.raises(hps.DataError, match=r"-bare, line 1: the line begins with '"):
            act()


def test_a_run_goes_on_with_the_fields_of_its_model(tmp_path: Path) -> None:
    log, features = libsvm(tmp_path), hps.Features.from_toml(FIELDS)
    whole = run(log, tmp_path / "whole", features=features, epochs=2, test=[log])
    run(log, tmp_path / "store", features=features, epochs=2, limit=150)
    again = run(log, tmp_path / "store", resume=True, epochs=2, test=[log])
    assert again["test_logloss"] == whole["test_logloss"]
    with hps.open(tmp_path / "whole") as one, hps.open(tmp_path / "store") as other:
        assert one.digest("features") == other.digest("features")
    wider = hps.Features.from_toml(FIELDS.replace('"0-99"', '"0-98"'))
    with pytest.raises(hps.ConfigError, match=r"fields.user is now 0-98 and was 0-99"):
        run(log, tmp_path / "store", resume=True, epochs=2, features=wider)
    turned = hps.Features(
        columns=features.columns, fields=dict(reversed(list(features.fields.items())))
    )
    with pytest.raises(hps.ConfigError, match=r"fields come in the order \['more', 'age'"):
        run(log, tmp_path / "store", resume=True, epochs=2, features=turned)
    with pytest.raises(hps.DataError, match="line 201: index 99999 is in no range"):
        log.write_text(log.read_text() + "1 99999:1\n")
        run(log, tmp_path / "store", resume=True, new_data=True)


def test_fields_of_a_model_can_be_changed(tmp_path: Path) -> None:
    log, features = libsvm(tmp_path), hps.Features.from_toml(FIELDS)
    run(log, tmp_path / "store", features=features)
    more = hps.Features.from_toml(FIELDS.replace("[fields]", '[fields]\nnew = "700-900"'))
    told = StringIO()
    change = {"resume": True, "new_data": True, "change_features": True}
    run(log, tmp_path / "store", told, features=more, **change)
    assert "feature 'new' is new" in told.getvalue()
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        assert model.features == {"features": ["new", "user", "item"]}
    ffm = libffm(tmp_path)
    run(ffm, tmp_path / "ffm", dense_columns=["0"])
    run(ffm, tmp_path / "ffm", **change)
    with hps.Model.load(tmp_path / "ffm", dram="8MiB") as model:
        assert model.recipe.num_dense == 1


def scored(store: Path, log: Path) -> tuple[hps.Model, hps.Batch, torch.Tensor]:
    model = hps.Model.load(store, dram="8MiB")
    (batch,) = list(model.open_reader([log], batch_size=999))
    return model, batch, model.predict(batch)


def test_raw_columns_of_libsvm(tmp_path: Path) -> None:
    log = libsvm(tmp_path)
    run(log, tmp_path / "store", features=hps.Features.from_toml(FIELDS))
    model, _, expected = scored(tmp_path / "store", log)
    columns = {
        "user": [[(row % 7, 1), (row % 7, 2.0)] for row in range(200)],
        "item": [{100 + row % 11: 0.5, 2**63 - 1: 1} for row in range(200)],
        "age": [row % 5 for row in range(200)],
        "more": [{601: np.float32(row / 8)} for row in range(200)],
        "label": ["aside"] * 200,
    }
    with model:
        assert torch.equal(model.predict(columns), expected)
        one = {name: [entries[17]] for name, entries in columns.items()}
        torch.testing.assert_close(model.predict(one), expected[17:18])
        empty = {name: [] for name in columns}
        assert model.predict(empty).shape == (0,)
        none = write(tmp_path / "none", ["0", "1 3:1"])
        (batch,) = list(model.open_reader([none]))
        given = {"user": [None, "3"], "item": [[], None], "age": [None, 0], "more": [None, {}]}
        assert torch.equal(model.predict(given), model.predict(batch))
        row = {"user": [3], "item": [100], "age": [1.5], "more": [None]}
        for wrong, why in (
            ({"user": [100]}, "row 1: column 'user': index 100 is one of field 'item'"),
            ({"user": [[3, 99999]]}, "index 99999 is one of no field"),
            ({"user": [-1]}, "row 1: column 'user': key '-1' is not a whole number"),
            ({"user": [2**64]}, f"index {2**64} is one of no field"),
            ({"user": [1.0]}, "column 'user': 1.0 is a float; give a whole number"),
            ({"user": [True]}, "True is no key"),
            ({"user": [""]}, "'' is no key"),
            ({"user": ["3 100:1"]}, "'3 100:1' is no key"),
            ({"user": ["3\n1 4:1"]}, "is no key: it is empty, or has a space or a line end"),
            ({"user": ["#3"]}, "'#3' would begin a comment"),
            ({"user": [(3, 4, 5), (3,)][:1]}, None),
            ({"user": [[(3, 4, 5)]]}, r"\(3, 4, 5\) must be an index and its value"),
            ({"user": [{3: float("nan")}]}, "nan is no finite number"),
            ({"user": [{3: 1e39}]}, r"1e\+39 is no finite number"),
            ({"user": [{3: "1"}]}, "'1' is no number"),
            ({"age": ["1"]}, "column 'age': '1' is no number"),
            ({"age": [True]}, "column 'age': True is no number"),
            (
                {"age": [[(500, 1), (500, 2)]]},
                "row 1: column 'age': index 500 is there twice; it is dense",
            ),
            ({"age": [[500]]}, "500 has no value"),
            ({"more": [3.0]}, "a dense field of several indices; give a mapping"),
        ):
            if why is None:
                model.predict({**row, **wrong})
                continue
            with pytest.raises(hps.DataError, match=why):
                model.predict({**row, **wrong})
        for wrong, why in (
            ({"user": 3}, r"column 'user' is 3; give a list with an entry for each example, such"),
            ({"user": {3: 1}}, r"column 'user' is \{3: 1\}; give a list"),
            ({"user": "3"}, "column 'user' is '3'; give a list"),
            ({"user": [3, 3]}, "lengths differ, {"),
        ):
            with pytest.raises(hps.ConfigError, match=why):
                model.predict({**row, **wrong})
        with pytest.raises(hps.ConfigError, match=r"columns \['age', 'item'\] are missing"):
            model.predict({"user": [3], "more": [None]})
        with pytest.raises(hps.ConfigError, match=r"got list; pass an hps.Batch"):
            model.predict([3])  # type: ignore[arg-type]


def test_raw_columns_of_libffm_and_slots(tmp_path: Path) -> None:
    run(libffm(tmp_path), tmp_path / "ffm", dense_columns=["0"])
    model, _, expected = scored(tmp_path / "ffm", tmp_path / "libffm")
    columns: dict[str, Any] = {
        "0": np.arange(200) % 5,
        "1": np.arange(200) % 7,
        "2": [[(row % 9, 0.5), (3, 1)] for row in range(200)],
    }
    with model:
        assert torch.equal(model.predict(columns), expected)
        weighed = {**columns, "0": [{77: row % 5} for row in range(200)]}
        assert torch.equal(model.predict(weighed), expected)
        with pytest.raises(hps.ConfigError, match=r"columns \['0'\] are missing"):
            model.predict({"1": [1], "2": [2]})
    run(slots(tmp_path), tmp_path / "plain")
    model, _, expected = scored(tmp_path / "plain", tmp_path / "slots")
    columns = {
        "a": [str(row % 7 + 2) for row in range(200)],
        "b": [np.array([row % 9, 3], np.uint8) for row in range(200)],
    }
    with model:
        assert torch.equal(model.predict(columns), expected)
        as_arrow = pa.RecordBatch.from_pydict(
            {"a": [row % 7 + 2 for row in range(200)], "b": [[row % 9, 3] for row in range(200)]}
        )
        assert torch.equal(model.predict(as_arrow), expected)
        with pytest.raises(hps.DataError, match="column 'b': slots have keys alone"):
            model.predict({"a": [1], "b": [{3: 1}]})
    run(named_slots(tmp_path), tmp_path / "named-store")
    model, _, expected = scored(tmp_path / "named-store", tmp_path / "named")
    columns = {
        "dense_feature 1": [row % 5 for row in range(200)],
        "a": [row % 7 for row in range(200)],
        "b": list(range(200)),
    }
    with model:
        assert torch.equal(model.predict(columns), expected)
        with pytest.raises(hps.DataError, match="row 1: found 0 dense values, expected 1"):
            model.predict({"dense_feature 1": [None], "a": [1], "b": [1]})


def test_a_key_with_a_colon_and_hashed_keys_are_those_of_the_log(tmp_path: Path) -> None:
    log = write(
        tmp_path / "slots", [f"{row % 2}:1 x:y{row % 3}:a \u00e9{row % 5}:b" for row in range(80)]
    )
    run(log, tmp_path / "store", hash_keys=True, format="slots")
    model, _, expected = scored(tmp_path / "store", log)
    columns = {
        "a": [f"x:y{row % 3}" for row in range(80)],
        "b": [f"\u00e9{row % 5}" for row in range(80)],
    }
    with model:
        assert torch.equal(model.predict(columns), expected)
        assert len(set(expected.tolist())) > 5


def test_lookup_knows_which_indices_a_field_has(tmp_path: Path) -> None:
    run(libsvm(tmp_path), tmp_path / "store", features=hps.Features.from_toml(FIELDS))
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        raw = RawValues(model.recipe, model.server.tables)
        assert [key.number for key in raw.parse("user=3").keys] == [3]
        assert [key.number for key in raw.parse(f"item={2**63 - 1}").keys] == [2**63 - 1]
        for text, why in (
            ("user=100", "field 'item' has the index 100, not 'user'"),
            ("user=99999", "no field has the index 99999"),
            ("user=x", "'x' is no index"),
            ("age=500", "'age' is a dense column of the model"),
            ("more=600", "'more' is a dense column of the model"),
        ):
            with pytest.raises(hps.ConfigError, match=why):
                raw.parse(text)


def warnings_of(log: Path, store: Path, **changes: Any) -> list[str]:
    told = StringIO()
    run(log, store, told, **changes)
    return [line for line in told.getvalue().splitlines() if "warning" in line]


def test_one_bag_of_many_indices_is_warned_of_once(tmp_path: Path) -> None:
    log = libsvm(tmp_path)
    (said,) = warnings_of(log, tmp_path / "a", model="deepfm", limit=100)
    assert "6 a line, are one feature" in said and "[fields] in a features file" in said
    assert warnings_of(log, tmp_path / "a", resume=True) == []
    assert warnings_of(log, tmp_path / "b", model="lr", dim=0, hidden=()) == []
    features = hps.Features.from_toml(FIELDS)
    assert warnings_of(log, tmp_path / "c", features=features) == []
    single = write(tmp_path / "single", [f"{row % 2} {row % 7}:1" for row in range(80)])
    assert warnings_of(single, tmp_path / "d") == []


def test_numbers_that_are_read_as_weights_are_warned_of(tmp_path: Path) -> None:
    log = libffm(tmp_path)
    (said,) = warnings_of(log, tmp_path / "a")
    assert "field(s) 0 of this libffm log" in said and "--dense-columns 0, or" in said
    assert warnings_of(log, tmp_path / "b", dense_columns=["0"]) == []
    features = hps.Features.from_toml("[columns.0]\nkind = 'dense'\nbuckets = 3\n")
    assert warnings_of(log, tmp_path / "c", features=features) == []
    ignored = hps.Features.from_toml("[columns.0]\nkind = 'ignored'\n")
    assert warnings_of(log, tmp_path / "d", features=ignored) == []


@pytest.mark.parametrize("kind", ["libsvm", "libffm"])
def test_a_generated_log_is_read_back_as_it_was_drawn(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--examples", "300", "--features", "3", "--dense", "2", "--keys", "50"]
    plain, log = tmp_path / "log.parquet", tmp_path / "log"
    assert main(["generate", str(plain), "--format", "parquet", *sizes]) == 0
    assert main(["generate", str(log), "--format", kind, *sizes]) == 0
    assert "log.features.toml says what its columns are" in capsys.readouterr().out
    features = hps.Features.load(tmp_path / "log.features.toml")
    assert warnings_of(log, tmp_path / "store", features=features) == []
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        (batch,) = list(model.open_reader([log], batch_size=999))
    drawn = run_reader(plain)
    np.testing.assert_allclose(batch.dense, drawn.dense, rtol=1e-5, atol=1e-4)
    ids, other = batch.features["features"], drawn.features["features"]
    assert torch.equal(ids.offsets, other.offsets) and len(ids.offsets) == 901
    found = np.unique(ids.keys_L.numpy(), return_inverse=True)[1]
    same = np.unique(other.keys_L.numpy(), return_inverse=True)[1]
    pairs = set(zip(found.tolist(), same.tolist(), strict=True))
    assert len(pairs) == len(set(found.tolist())) == len(set(same.tolist()))


def run_reader(log: Path) -> hps.Batch:
    from hps.reader import ReaderConfig, open_reader

    tables = [hps.TableConfig(name="features", dim=2)]
    return next(open_reader([log], tables=tables, config=ReaderConfig(batch_size=999)))
