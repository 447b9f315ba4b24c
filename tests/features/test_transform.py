"""What becomes of a batch: against a twin that works example by example from the raw values.

Above it: pytest. Below it: hps/features/, the readers.
"""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.config import TableConfig
from hps.features import Column, Features, Scale
from hps.features.measure import measured
from hps.features.open import open_with_features
from hps.features.transform import FeatureTransform
from hps.reader import Reader, ReaderConfig, open_reader
from hps.reader.column_use import DENSE, FEATURE, IGNORED
from tests.features.feature_twin import MANY, bags_of, dense_of, features_of

TABLES = [TableConfig(name="features", dim=4)]


def read(log: Path, text: str, **config: Any) -> Reader:
    return open_with_features(
        log, tables=TABLES, config=ReaderConfig(**config), features=Features.from_toml(text)
    )


@pytest.mark.parametrize("format_", ["criteo", "csv"])
def test_the_threads_of_a_reader_change_no_bit(tmp_path: Path, format_: str) -> None:
    rows = criteo_rows() * 600  # so many that waking a thread is worth it
    text = MANY
    for old, new in (("a", "C1"), ("b", "C2"), ("c", "C3"), ("x", "I1"), ("y", "I2")):
        text = text.replace(f"columns.{old}]", f"columns.{new}]").replace(f'"{old}"', f'"{new}"')
    log = tmp_path / f"log.{format_}"
    names = [f"I{n}" for n in range(1, 14)] + [f"C{n}" for n in range(1, 27)]
    if format_ == "criteo":
        write_criteo(log, rows)
    else:
        cells = [["" if one is None else one for one in [1, *n, *t]] for n, t in rows]
        with log.open("w", newline="") as file:
            csv.writer(file).writerows([["label", *names], *cells])
    found = []
    for threads in (1, 3):
        reader = read(log, text, format=format_, batch_size=15000, threads=threads)
        found.append(list(reader))
        assert sum(map(len, found[-1])) == len(rows)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.dense, other.dense)
        for table, ids in one.features.items():
            assert torch.equal(other.features[table].keys_L, ids.keys_L)
            assert torch.equal(other.features[table].offsets, ids.offsets)


NOTHING = "[columns.C1]\nkind = 'categorical'\n[columns.I1]\nkind = 'dense'\nlog = true\n"


def write_criteo(path: Path, rows: Sequence[tuple[Sequence[Any], Sequence[str]]]) -> Path:
    lines = (
        "\t".join(["1", *("" if one is None else str(one) for one in numbers), *texts])
        for numbers, texts in rows
    )
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


WHOLE = [None, 0, 1, -1, 2, 9, 10, 11, -10, 99, 1000, 2**19, -(2**63), 2**63 - 1]


def criteo_rows() -> list[tuple[list[Any], list[str]]]:
    texts = ["", "a", "007", " ", "é", '"', "18446744073709551616"]
    return [
        ([WHOLE[(row + number) % len(WHOLE)] for number in range(13)], [texts[row % 7]] * 26)
        for row in range(28)
    ]


def test_numbers_of_criteo_are_compared_as_the_log_has_them(tmp_path: Path) -> None:
    """Though the reader has taken logarithms: bounds, clips and missing numbers are exact."""
    rows = criteo_rows()
    log = write_criteo(tmp_path / "log", rows)
    text = """
        [columns.I1]
        kind = "dense"
        buckets = [-10, -0.5, 0, 1, 9.5, 10, 524288]
        [columns.I2]
        kind = "dense"
        log = false
        clip = [-5, 1000]
        [columns.I3]
        kind = "dense"
        log = false
        missing = 2.5
        [columns.I4]
        kind = "dense"
        clip = [0, 99]
        [columns.I5]
        kind = "dense"
        clip = [1, 99]
        missing = 0
        normalise = {mean = 1.5, std = 0.7}
        [columns.I6]
        kind = "dense"
        buckets = [1.1, 1.3]
        missing = 1.2
        keep = true
        [columns.I7]
        kind = "dense"
        normalise = {mean = 1.5, std = 0.7}
    """
    reader = read(log, text, format="criteo", batch_size=28)
    features = Features.from_toml(text)
    (batch,) = list(reader)
    (names,) = reader.features.values()
    assert names[-2:] == ("I1", "I6") and len(names) == 28 and reader.num_dense == 12
    found = bags_of(batch, names)
    for row, (numbers, texts) in enumerate(rows):
        bags = {f"C{n + 1}": [hps.key_of(f"C{n + 1}", texts[n])] for n in range(26)}
        dense = {f"I{n + 1}": numbers[n] for n in range(13)}
        assert found[row] == features_of(features, bags, dense)
        for place, name in enumerate(f"I{n}" for n in range(2, 14)):
            column = features.column(name) or Column(name=name, kind="dense")
            expected = dense_of(column, dense[name], is_log=True)
            assert batch.dense[row, place].item() == pytest.approx(expected, rel=3e-6), name


def test_a_description_of_what_is_makes_the_same_bits(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", criteo_rows())
    plain = open_reader(log, tables=TABLES, config=ReaderConfig(format="criteo", batch_size=9))
    reader = read(log, NOTHING, format="criteo", batch_size=9)
    for one, other in zip(plain, reader, strict=True):
        assert torch.equal(one.dense, other.dense)
        assert torch.equal(one.features["features"].keys_L, other.features["features"].keys_L)
        assert torch.equal(one.features["features"].offsets, other.features["features"].offsets)
    assert reader.features == plain.features and reader.num_dense == plain.num_dense
    assert [use.why for use in reader.columns] == [use.why for use in plain.columns]


@pytest.mark.parametrize("rule", ["drop", "key"])
def test_empty_categories_of_criteo(tmp_path: Path, rule: str) -> None:
    log = write_criteo(tmp_path / "log", criteo_rows())
    text = f"[columns.C2]\nkind = 'categorical'\nmissing = '{rule}'\nhash_buckets = 2\n"
    reader = read(log, text, format="criteo", batch_size=28)
    (batch,) = list(reader)
    found = bags_of(batch, reader.features["features"])
    for row, (_, texts) in enumerate(criteo_rows()):
        folded = hps.key_of("C2", hps.key_of("C2", texts[1]) % 2)
        instead = [] if rule == "drop" else [hps.key_of("C2", "")]
        assert found[row]["C2"] == (instead if texts[1] == "" else [folded])


def test_dense_columns_of_parquet_with_nulls_and_nan(tmp_path: Path) -> None:
    nan, log = float("nan"), tmp_path / "log.parquet"
    table = {
        "label": [0, 1, 0, 1],
        "c": ["a", None, "", "b"],
        "plain": pa.array([1.0, None, 3.0, 4.0]),
        "filled": pa.array([1.0, None, nan, 4.0]),
        "logged": pa.array([1.0, None, nan, -4.0]),
        "bucket": pa.array([0.7, None, nan, 0.69], pa.float64()),
        "whole": pa.array([1, None, 2**63 - 1, -5]),
        "time": pa.array([0, 0, 0, 0], pa.timestamp("s")),
    }
    pq.write_table(pa.table(table), log)
    text = """
        columns.filled = {kind = "dense", missing = 9}
        columns.logged = {kind = "dense", log = true}
        columns.bucket = {kind = "dense", buckets = [0.7], keep = true}
        columns.whole = {kind = "dense", clip = [0, 10], missing = -7}
        columns.time = {kind = "ignored"}
        columns.c = {kind = "categorical", missing = "key"}
    """
    reader = read(log, text, batch_size=4)
    (batch,) = list(reader)
    assert reader.dense_columns == ["plain", "filled", "logged", "bucket", "whole"]
    two, five = np.log1p(np.float32(1)), -np.log1p(np.float32(4))
    expected = np.array(
        [[1, 1, two, 0.7, 1], [0, 9, -0.5, 0, 0], [3, 9, -0.5, 0, 10], [4, 4, five, 0.69, 0]]
    )
    np.testing.assert_allclose(batch.dense, expected, rtol=1e-6)
    found = bags_of(batch, reader.features["features"])
    buckets = [hps.key_of("bucket", number) for number in (1, "missing", "missing", 0)]
    assert [row["bucket"] for row in found] == [[key] for key in buckets]
    texts = [hps.key_of("c", text) for text in ("a", "", "", "b")]
    assert [row["c"] for row in found] == [[key] for key in texts]
    with pytest.raises(hps.DataError, match="row 3: column 'filled' holds nan"):
        list(read(log, "columns.time = {kind = 'ignored'}", batch_size=4))
    told = {(use.name, use.kind): use.why for use in reader.columns}
    assert told["bucket", FEATURE].startswith("the number of one of 2 buckets")
    assert told["whole", DENSE] == "from 0 to 10; missing is -7"
    assert told["logged", DENSE] == "log1p(x), below 0 -log1p(-x); missing is -0.5"
    assert ("time", IGNORED) in told


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_bad_numbers_of_csv_are_bad_where_missing_ones_are_not(
    tmp_path: Path, on_error: str
) -> None:
    log = tmp_path / "log.csv"
    log.write_text("label,c,x\n1,a,1.5\n0,b,\n1,c,NA\n0,d,1.2.3\n1,e,2.5\n")
    reader = read(log, "columns.x = {kind = 'dense', missing = 7}", on_error=on_error, batch_size=9)
    if on_error == "raise":
        with pytest.raises(hps.DataError, match=r"1\.2\.3"):
            list(reader)
    else:
        (batch,) = list(reader)
        assert batch.dense.flatten().tolist() == [1.5, 7.0, 7.0, 2.5]
        assert reader.counts.skipped == 1


def test_csv_reads_numbers_as_text_where_they_are_categories(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("click,version,age,x\n1,1.50,30,0.5\n0,1.5,40,1.5\n")
    text = """
        columns.click = {kind = "label"}
        columns.version = {kind = "categorical"}
        columns.age = {kind = "dense"}
    """
    reader = read(log, text, batch_size=2)
    (batch,) = list(reader)
    assert batch.labels.tolist() == [1, 0]
    assert reader.features == {"features": ("version",)}
    expected = [[hps.key_of("version", value)] for value in ("1.50", "1.5")]
    assert [row["version"] for row in bags_of(batch, ["version"])] == expected
    assert reader.dense_columns == ["age", "x"]
    assert batch.dense.tolist() == [[30.0, 0.5], [40.0, 1.5]]


def write_texts(folder: Path) -> dict[str, Path]:
    logs = {
        "libsvm": "1 7:0.5 9:2\n0 8:1\n",
        "libffm": "1 0:7:0.5 1:9:2 0:8:4\n0 0:8:1\n",
        "slots": "1:1 7:3 9:4 8:3\n0:1 8:3\n",
    }
    for kind, text in logs.items():
        (folder / kind).write_text(text)
    return {kind: folder / kind for kind in logs}


def test_features_without_columns_are_folded_and_crossed(tmp_path: Path) -> None:
    logs = write_texts(tmp_path)
    text = "columns.index = {kind = 'sequence', max_length = 1, hash_buckets = 5}"
    reader = read(logs["libsvm"], text, format="libsvm", batch_size=2)
    (batch,) = list(reader)
    assert batch.features["features"].weights_L is not None
    assert batch.features["features"].weights_L.tolist() == [0.5, 1.0]
    found = bags_of(batch, ["index"])
    assert found == [{"index": [hps.key_of("index", 2)]}, {"index": [hps.key_of("index", 3)]}]
    for kind, parts in (("libffm", ["0", "1"]), ("slots", ["3", "4"])):
        text = f"[crosses.both]\ncolumns = {parts}\n"
        reader = read(logs[kind], text, format=kind, batch_size=2)
        (batch,) = list(reader)
        assert reader.features == {"features": (*parts, "both")}
        twin = {parts[0]: [7, 8], parts[1]: [9]}
        expected = [features_of(Features.from_toml(text), twin, {})]
        expected += [{parts[0]: [8], parts[1]: [], "both": []}]
        assert bags_of(batch, reader.features["features"]) == expected


MISFITS = [
    ("columns.X1 = {kind = 'dense'}", "the log has no column 'X1'; dense columns are .*'I13'"),
    ("columns.C27 = {kind = 'categorical'}", "the log has no column 'C27'"),
    ("columns.C1 = {kind = 'dense'}", "C1: kind = 'dense', but in a log of criteo it is a feature"),
    ("columns.I1 = {kind = 'categorical'}", "in a log of criteo it is dense, whose buckets can"),
    ("columns.I1 = {kind = 'label'}", "has its label at the beginning of the line"),
    ("columns.I1 = {kind = 'weight'}", "kind = 'weight': only parquet and csv have"),
    ("columns.Z = {kind = 'ignored'}", "the log has no column 'Z'"),
    ("[crosses.C5]\ncolumns = ['C1', 'C2']", "a column of the log has this name"),
    ("[crosses.x]\ncolumns = ['C1', 'C99']", "the log has no column 'C99'"),
    ("[crosses.x]\ncolumns = ['C1', 'I2']", "'I2' is dense; give it buckets"),
    ("".join(f"[columns.C{n}]\nkind='ignored'\n" for n in range(1, 27)), "no feature is left"),
]


@pytest.mark.parametrize(("text", "words"), MISFITS)
def test_what_does_not_fit_the_log_is_refused(tmp_path: Path, text: str, words: str) -> None:
    log = write_criteo(tmp_path / "log", criteo_rows())
    with pytest.raises(hps.ConfigError, match=words):
        read(log, text, format="criteo")


NAMED_MISFITS = [
    ("columns.no = {kind = 'ignored'}", {}, "the log has no such column; it has .*'price'"),
    ("columns.app = {kind = 'dense'}", {}, "its values are of type string, not numbers"),
    ("columns.price = {kind = 'categorical'}", {}, "of type double, of which no keys are made"),
    ("columns.label = {kind = 'ignored'}", {}, "it is the column of labels"),
    ("columns.app = {kind = 'label'}", {"label": "age"}, "the label is said to be 'age'"),
    (
        "columns.price = {kind = 'dense', log = false}",
        {"dense_transform": "signed_log1p"},
        "read with logarithms of all dense values",
    ),
    (
        "columns.price = {kind = 'dense', log = true}",
        {"dense_transform": "log1p"},
        "can be read by one of",
    ),
]


@pytest.mark.parametrize(("text", "config", "words"), NAMED_MISFITS)
def test_what_does_not_fit_columns_with_names_is_refused(
    tmp_path: Path, text: str, config: dict[str, Any], words: str
) -> None:
    log = tmp_path / "log.parquet"
    table = {"label": [0, 1], "app": ["a", "b"], "age": [1, 2], "price": [0.5, 1.5]}
    pq.write_table(pa.table(table), log)
    with pytest.raises(hps.ConfigError, match=words):
        read(log, text, format="parquet", **config)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("columns.no = {kind = 'ignored'}", 1, "columns.no: the log has no such column"),
        ("[columns]\nage = {kind = 'dense'}\napp = {kind = 'dense'}", 3, "columns.app: kind = 'de"),
        ("[columns.app]\n\nkind = 'dense'", 3, "columns.app: kind = 'dense', but its values"),
        ("\ncolumns.price.kind = 'categorical'", 2, "columns.price: kind = 'categorical'"),
        ("[columns.age]\nkind='dense'\n[columns.app]\nkind='label'", 4, "columns.app: kind = 'la"),
        ("[crosses.age]\ncolumns = ['app', 'age']", 1, "crosses.age: a column of the log has"),
        ("[crosses.x]\ncolumns = [\n'app', 'no']", 2, "crosses.x.columns: the log has no column"),
        ("[crosses.x]\ncolumns = ['app', 'price']", 2, "crosses.x: column 'price' is dense"),
        ("[tables.a]\ndim = 3", 1, "tables.a: no feature lies in it"),
        (
            "[columns.app]\nkind = 'sequence'\ntarget = 'price'",
            3,
            "columns.app.target: 'price' is a dense column",
        ),
        (
            "[columns.app]\nkind = 'categorical'\nvocabulary = 'price'",
            3,
            "columns.app.vocabulary: 'price' is a dense column",
        ),
        (
            "[columns.app]\nkind = 'categorical'\nvocabulary = 'age'\nhash_buckets = 9",
            4,
            "columns.app.hash_buckets: ",
        ),
    ],
)
def test_a_fault_that_the_log_shows_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    log = tmp_path / "log.parquet"
    table = {"label": [0, 1], "app": ["a", "b"], "age": [1, 2], "price": [0.5, 1.5]}
    pq.write_table(pa.table(table), log)
    features = hps.Features.from_toml(text, "my.toml")
    label = {"label": "age"} if "label" in text else {}
    with pytest.raises(hps.ConfigError) as refused:
        open_with_features(
            log,
            tables=[TableConfig(name="features", dim=2)],
            config=ReaderConfig(format="parquet", **label),
            features=features,
        )
    assert str(refused.value).startswith(f"my.toml, line {line}: {words}"), refused.value


def test_several_tables_are_refused(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", criteo_rows())
    tables = [TableConfig(name="a", dim=2, features=["C1"]), TableConfig(name="b", dim=2)]
    with pytest.raises(hps.ConfigError, match=r"has the tables \['a', 'b'\]"):
        open_with_features(
            log, tables=tables, config=ReaderConfig(format="criteo"), features=Features()
        )


def test_numbers_are_measured_over_the_first_examples(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, 1000, (10_500, 13))
    numbers[10_000:] = 10**6  # beyond what is looked at
    log = write_criteo(tmp_path / "log", [(row, ["a"] * 26) for row in numbers.tolist()])
    text = """
        columns.I1 = {kind = "dense", normalise = true}
        columns.I2 = {kind = "dense", buckets = 10}
        columns.I3 = {kind = "dense", normalise = true, log = false, clip = [0, 500]}
    """
    reader = read(log, text, format="criteo", part=(1, 2))
    transform = reader.transform
    assert isinstance(transform, FeatureTransform)
    first = numbers[:10_000]
    logs = np.log1p(first[:, 0])
    scale = transform.measured.columns[0].normalise
    assert isinstance(scale, Scale)
    assert (scale.mean, scale.std) == (pytest.approx(logs.mean()), pytest.approx(logs.std()))
    scale = transform.measured.columns[2].normalise
    assert isinstance(scale, Scale) and scale.mean == pytest.approx(first[:, 2].clip(0, 500).mean())
    bounds = transform.measured.columns[1].buckets
    assert isinstance(bounds, tuple) and len(bounds) == 9
    assert all(bound == int(bound) for bound in bounds)
    counts = np.bincount(np.searchsorted(bounds, first[:, 1], side="right"))
    assert len(counts) == 10 and counts.min() > 900 and counts.max() < 1100
    assert measured(transform.measured, reader) is transform.measured


def test_columns_of_one_number_or_none_are_measured_without_harm(tmp_path: Path) -> None:
    log = tmp_path / "log.parquet"
    table = {
        "label": [0, 1, 0],
        "c": ["a", "b", "c"],
        "same": pa.array([0.1, 0.1, 0.1]),
        "none": pa.array([None, None, None], pa.float64()),
    }
    pq.write_table(pa.table(table), log)
    text = """
        columns.same = {kind = "dense", normalise = true, buckets = 5, keep = true}
        columns.none = {kind = "dense", normalise = true, buckets = 5, keep = true}
    """
    reader = read(log, text)
    transform = reader.transform
    assert isinstance(transform, FeatureTransform)
    (batch,) = list(reader)
    assert torch.equal(batch.dense, torch.zeros(3, 2))
    assert transform.measured.columns[0].buckets == transform.measured.columns[1].buckets == ()
    found = bags_of(batch, ["c", "same", "none"])[0]
    assert found["same"] == [hps.key_of("same", 0)]
    assert found["none"] == [hps.key_of("none", "missing")]


def test_parts_of_ranks_are_parts_of_the_whole(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", criteo_rows())
    text = "columns.I1 = {kind = 'dense', buckets = 3}\n[crosses.x]\ncolumns = ['C1', 'I1']\n"
    (whole,) = list(read(log, text, format="criteo", batch_size=28))
    names = read(log, text, format="criteo").features["features"]
    rows, dense = [], []
    for rank in range(3):
        (part,) = list(read(log, text, format="criteo", batch_size=28, part=(rank, 3)))
        assert part.global_size == 28 and part.position == whole.position
        rows += bags_of(part, names)
        dense.append(part.dense)
    assert rows == bags_of(whole, names) and torch.equal(torch.cat(dense), whole.dense)


def test_a_position_goes_on_with_the_same_transform_alone(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", criteo_rows())
    text = "columns.C1 = {kind = 'categorical', hash_buckets = 3}"
    config = {"format": "criteo", "batch_size": 10}
    first = read(log, text, **config)
    batches = list(first)
    position = batches[0].position
    json.dumps(position)
    again = read(log, text, **config)
    again.load_state_dict(position)
    for expected, found in zip(batches[1:], again, strict=True):
        assert found.position == expected.position
        assert torch.equal(found.features["features"].keys_L, expected.features["features"].keys_L)
    plain = open_reader(log, tables=TABLES, config=ReaderConfig(**config))
    for reader in (plain, read(log, text.replace("3", "4"), **config)):
        with pytest.raises(hps.ConfigError, match="the position is of batches with the transform"):
            reader.load_state_dict(position)
    assert "transform" not in plain.state_dict()
    next(plain)
    with pytest.raises(hps.ConfigError, match="a batch was read already"):
        plain.use(first.transform)  # type: ignore[arg-type]
