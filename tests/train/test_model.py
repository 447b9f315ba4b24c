"""A stored model scores what it was trained to read: batches, raw columns, logs."""

import csv
import json
import math
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hps
from hps.cli.main import main
from hps.metrics import BinaryMetrics
from hps.train import TrainOptions, evaluate_store, train
from hps.train.given_columns import record_batch_of
from hps.train.predict import predict_log
from tests.logs import NUM_DENSE, NUM_FEATURES, write_criteo

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
ODD_CATEGORIES = [
    "",
    "007",
    "7",
    "7 ",
    " ",
    "é",
    "\u202e",
    "18446744073709551616",
    "-0",
    "a,b",
    '"',
]
ODD_NUMBERS = [None, 0, -1, 1, -(2**63), 2**63 - 1, 13]


def train_on(log: Path, store: Path, **changes: Any) -> Path:
    train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))
    return store


def odd_criteo(path: Path) -> dict[str, list[Any]]:
    """A criteo log of odd values, and its columns as they were meant."""
    generator = np.random.default_rng(5)
    columns: dict[str, list[Any]] = {"label": [row % 2 for row in range(60)]}
    for number in range(1, NUM_DENSE + 1):
        picks = generator.integers(0, len(ODD_NUMBERS), 60)
        columns[f"I{number}"] = [ODD_NUMBERS[pick] for pick in picks]
    for number in range(1, NUM_FEATURES + 1):
        picks = generator.integers(0, len(ODD_CATEGORIES), 60)
        columns[f"C{number}"] = [ODD_CATEGORIES[pick] for pick in picks]
    rows = zip(*columns.values(), strict=True)
    lines = ("\t".join("" if value is None else str(value) for value in row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines))
    return columns


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, list[Any]]]:
    """Log, store and columns of a log of odd values."""
    folder = tmp_path_factory.mktemp("criteo")
    columns = odd_criteo(folder / "log")
    return folder / "log", train_on(folder / "log", folder / "store", epochs=3), columns


def scores_of(store: Path, log: Path, **changes: Any) -> torch.Tensor:
    """As the reader of the log has its batches."""
    with hps.Model.load(store, dram="8MiB") as model:
        return torch.cat([model.predict(batch) for batch in model.open_reader([log], **changes)])


def test_raw_columns_of_criteo_are_the_keys_and_numbers_of_its_text(criteo: Any) -> None:
    log, store, columns = criteo
    expected = scores_of(store, log)
    assert expected.shape == (60,) and expected.dtype == torch.float32
    assert 0 < float(expected.min()) < float(expected.max()) <= 1
    with hps.Model.load(store, dram="8MiB") as model:
        assert torch.equal(model.predict(columns), expected)
        assert torch.equal(model.predict(pa.RecordBatch.from_pydict(columns)), expected)
        without = {name: values for name, values in columns.items() if name != "label"}
        without |= {"C1": [value or None for value in columns["C1"]]}  # as arrow has empty ones
        assert torch.equal(model.predict(without), expected)
        coded = pa.array(columns["C2"]).dictionary_encode()
        assert torch.equal(model.predict({**columns, "C2": coded}), expected)
        as_bytes = [value.encode() for value in columns["C3"]]
        assert torch.equal(model.predict({**columns, "C3": as_bytes}), expected)
        for row in (0, 17):
            one = {name: [values[row]] for name, values in columns.items()}
            one |= {name: pa.array(one[name], pa.int64()) for name in one if name[0] == "I"}
            torch.testing.assert_close(model.predict(one), expected[row : row + 1])


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.floats(width=64),
    st.text(max_size=4),
    st.sampled_from(["a\0", "x" * 2000, "007", "\u00e9"]),
)


def column_of_arrow(values: list[Any], is_dense: bool) -> pa.Array | None:
    """What arrow makes of the values alone, or of them with a little help; None of others."""
    try:
        column = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        try:
            return helped_column(values, is_dense)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return None
    if pa.types.is_null(column.type):
        column = column.cast(pa.float64() if is_dense else pa.string())
    return column


def helped_column(values: list[Any], is_dense: bool) -> pa.Array:
    """Of numbers of several types, of NaN among others, of whole numbers from 2^63 on."""
    if is_dense:
        if any(isinstance(value, str) for value in values):
            raise TypeError("text among numbers")
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    known = [None if isinstance(value, float) and math.isnan(value) else value for value in values]
    is_whole = all(value is None or isinstance(value, int) for value in known)
    is_large = is_whole and any(value is not None and value >= 2**63 for value in known)
    return pa.array(known, pa.uint64() if is_large else None)


@given(st.data())
def test_columns_of_few_values_are_those_that_arrow_makes_of_each(data: st.DataObject) -> None:
    length = data.draw(st.sampled_from([1, 1, 2, 3, 70]))
    values = st.lists(PLAIN, min_size=length, max_size=length) | st.sampled_from(
        [0, 0.5, -0.0, math.nan, "", "a", "b" * 300, None, 2**63 - 1, -(2**63), 2**63, True]
    ).map(lambda value: [value] * length)
    columns = {name: data.draw(values) for name in ("a", "b", "c", "d", "e")}
    if data.draw(st.booleans()):
        columns["c"] = tuple(columns["c"])
    names = data.draw(st.permutations(sorted(columns)))
    expected = {name: column_of_arrow(list(columns[name]), name in ("a", "b")) for name in names}
    if any(column is None for column in expected.values()):
        with pytest.raises((pa.ArrowException, TypeError, ValueError, OverflowError)):
            record_batch_of(columns, names, ("a", "b"))
        return
    batch = record_batch_of(columns, names, ("a", "b"))
    assert batch.schema.names == list(names)
    for name in names:
        found, column = batch.column(name), expected[name]
        assert found.type == column.type
        assert repr(found.to_pylist()) == repr(column.to_pylist())


def test_columns_of_other_lengths_and_values_alone_make_no_batch() -> None:
    with pytest.raises(ValueError, match="length"):
        record_batch_of({"a": [1, 2], "b": ["x"]}, ["a", "b"], ())
    with pytest.raises(TypeError, match=r"column 'a' is 'x'; give a list"):
        record_batch_of({"a": "x"}, ["a"], ())
    with pytest.raises(ValueError, match="surrogate"):
        record_batch_of({"a": ["\ud800"]}, ["a"], ())
    assert len(record_batch_of({"a": [], "b": np.empty(0)}, ["a", "b"], ("b",))) == 0


def test_scores_are_those_that_evaluate_measures(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", 300)
    store = train_on(log, tmp_path / "store")
    figures = evaluate_store([log], store, batch_size=64)
    scores = scores_of(store, log, batch_size=64)
    labels = torch.tensor([float(line[0]) for line in log.read_text().splitlines()])
    metrics = BinaryMetrics()
    metrics.update(torch.logit(scores.double()).float(), labels)
    assert metrics.compute()["auc"] == pytest.approx(figures["auc"], abs=1e-3)
    assert metrics.compute()["logloss"] == pytest.approx(figures["logloss"], rel=1e-4)


PARQUET = {
    "app": [1, 2, None, 4] * 20,
    "os": ["a", None, "", "é"] * 20,
    "seen": [[1, 2], [], None, [7]] * 20,
    "price": [0.5, 1.5, -2.0, 1e3] * 20,
}


@pytest.mark.parametrize("hash_keys", [True, False])
def test_raw_columns_of_parquet_and_logs_without_labels(tmp_path: Path, hash_keys: bool) -> None:
    log, bare = tmp_path / "log.parquet", tmp_path / "bare.parquet"
    pq.write_table(pa.table({"click": [0, 1] * 40, **PARQUET}), log)
    pq.write_table(pa.table(PARQUET), bare)
    store = train_on(log, tmp_path / "store", label="click", hash_keys=hash_keys, epochs=2)
    expected = scores_of(store, log)
    assert torch.equal(scores_of(store, bare, needs_labels=False), expected)
    with pytest.raises(hps.ConfigError, match="no column 'click' for the label"):
        scores_of(store, bare)
    with hps.Model.load(store, dram="8MiB") as model:
        assert model.features == {"features": ["app", "os", "seen"]}
        assert torch.equal(model.predict(PARQUET), expected)
        assert torch.equal(model.predict(pa.RecordBatch.from_pydict(PARQUET)), expected)
        arrays = {**PARQUET, "price": np.array(PARQUET["price"], np.float32)}
        assert torch.equal(model.predict(arrays), expected)
        assert model.predict({name: values[:0] for name, values in arrays.items()}).shape == (0,)
        keys = model.batch_of(PARQUET).features["features"].keys_L[:3]
        assert model.lookup("features", keys).shape == (3, 3)


def test_what_cannot_be_scored_is_refused_by_name(tmp_path: Path, criteo: Any) -> None:
    _, store, columns = criteo
    with hps.Model.load(store, dram="8MiB") as model:
        some = {name: values for name, values in columns.items() if name not in ("C3", "I2")}
        with pytest.raises(hps.ConfigError, match=r"columns \['I2', 'C3'\] are missing"):
            model.predict(some)
        with pytest.raises(hps.DataError, match=r"column 'C3' is of type double"):
            model.predict({**columns, "C3": [0.5] * 60})
        with pytest.raises(hps.DataError, match=r"row 2: column 'I2' holds nan"):
            model.predict({**columns, "I2": [1.0, float("nan")] * 30})
        with pytest.raises(hps.ConfigError, match="make no batch"):
            model.predict({**columns, "C3": ["a"] * 59})
        with pytest.raises(hps.ConfigError, match="got list"):
            model.predict([1, 2])  # type: ignore[arg-type]
        with pytest.raises(hps.DataError, match="no column 'I1'"):
            model.predict(pa.RecordBatch.from_pydict(some).select(["C1"]))
        with pytest.raises(hps.ConfigError, match="read-only"):
            model.server.push("features", np.zeros(1, np.uint64), np.zeros((1, 3), np.float32))
    with pytest.raises(hps.HpsError, match="closed"):
        model.predict(columns)
    libsvm = tmp_path / "libsvm"
    libsvm.write_text("".join(f"{row % 2} {row % 7}:1\n" for row in range(80)))
    other = train_on(libsvm, tmp_path / "other")
    with hps.Model.load(other, dram="8MiB") as model:
        with pytest.raises(hps.ConfigError, match=r"columns \['index'\] are missing"):
            model.predict({"user": [1]})
        assert model.predict(next(model.open_reader([libsvm], batch_size=9))).shape == (9,)
    with pytest.raises(hps.ConfigError, match="'day-9'"):
        hps.Model.load(store, "day-9")
    rows_alone = hps.Config(path=tmp_path / "rows", tables=[hps.TableConfig(name="ads", dim=2)])
    with hps.ParameterServer(rows_alone) as server:
        server.checkpoint(tag="rows")
    with pytest.raises(hps.ConfigError, match="holds no model"):
        hps.Model.load(tmp_path / "rows", "rows")


def test_a_model_is_one_checkpoint_beside_a_training_and_for_many_threads(tmp_path: Path) -> None:
    log = write_criteo(tmp_path / "log", 300)
    store = train_on(log, tmp_path / "store")
    with hps.open(store, read_only=False) as server:
        server.checkpoint("day-1", *server.checkpoint_state("final"))
    first = scores_of(store, log)
    with hps.Model.load(store, dram="8MiB") as model:
        batches = list(model.open_reader([log], batch_size=50))
        train_on(log, store, resume=True, new_data=True)
        found: list[Any] = [None] * 4

        def score(place: int) -> None:
            found[place] = torch.cat([model.predict(batch) for batch in batches])

        threads = [threading.Thread(target=score, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for scores in found:
            torch.testing.assert_close(scores, first)
            assert torch.equal(scores, found[0])
    assert not torch.equal(scores_of(store, log), first)
    with hps.Model.load(store, "day-1", dram="8MiB") as model:
        assert torch.equal(torch.cat([model.predict(b) for b in model.open_reader([log])]), first)
        assert "checkpoint day-1" in repr(model) or "day-1" in repr(model)


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
def test_predict_writes_one_probability_an_example_in_order(
    tmp_path: Path, criteo: Any, kind: str
) -> None:
    log, store, _ = criteo
    out, figures = tmp_path / f"scores.{kind}", tmp_path / "figures"
    words = ["predict", str(log), "--store", str(store), "--out", str(out), "--dram", "8MiB"]
    assert main([*words, "--json", str(figures), "--batch-size", "7"]) == 0
    if kind == "npy":
        scores = np.load(out)
    elif kind == "csv":
        with out.open() as file:
            head, *lines = csv.reader(file)
        assert head == ["probability"]
        scores = np.array([line[0] for line in lines], np.float32)
    else:
        scores = pq.read_table(out)["probability"].to_numpy()
    assert scores.dtype == np.float32
    assert np.array_equal(scores, scores_of(store, log, batch_size=7).numpy())
    told = json.loads(figures.read_text())
    assert told["examples"] == 60 and told["checkpoint"] == "final"
    assert told["mean"] == pytest.approx(float(scores.mean()), rel=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == [out.name, "figures"] or not [
        path for path in tmp_path.iterdir() if path.name.startswith(".")
    ]


def write_users(path: Path) -> dict[str, list[Any]]:
    """A log of parquet or csv whose users are no feature; its columns."""
    columns: dict[str, list[Any]] = {
        "label": [row % 2 for row in range(50)],
        "user": [["é", "", "a,b", '"', "007"][row % 5] for row in range(50)],
        "item": [f"i{row % 7}" for row in range(50)],
        "price": [row / 8 for row in range(50)],
    }
    if path.suffix == ".parquet":
        columns["tags"] = [["x"] * (row % 3) for row in range(50)]
        pq.write_table(pa.table(columns), path, row_group_size=20)
        return columns
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([columns, *zip(*columns.values(), strict=True)])
    return columns


@pytest.mark.parametrize("out", ["scores.csv", "scores.parquet"])
@pytest.mark.parametrize("name", ["log.csv", "log.parquet"])
def test_columns_of_the_log_stand_beside_the_scores(tmp_path: Path, name: str, out: str) -> None:
    columns = write_users(tmp_path / name)
    store = train_on(tmp_path / name, tmp_path / "store", ignore=("user",))
    words = ["predict", str(tmp_path / name), "--store", str(store), "--dram", "8MiB"]
    keep = ["--keep", "user", "--keep", "item", "--keep", "price", "--keep", "user"]
    assert main([*words, "--out", str(tmp_path / out), *keep]) == 0
    if out.endswith(".csv"):
        with (tmp_path / out).open(newline="") as file:
            head, *rows = csv.reader(file)
        found = dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))
        numbers = ["probability"] if name.endswith(".csv") else ["price", "probability"]
        found = {**found, **{one: list(map(float, found[one])) for one in numbers}}
    else:
        found = pq.read_table(tmp_path / out).to_pydict()
    if name.endswith(".csv"):  # whose columns are text
        columns["price"] = [str(price) for price in columns["price"]]
    assert list(found) == ["user", "item", "price", "probability"]
    assert all(found[one] == columns[one] for one in ("user", "item", "price"))
    expected = scores_of(store, tmp_path / name, batch_size=4096).numpy()
    assert np.array_equal(np.array(found["probability"], np.float32), expected)


@pytest.mark.parametrize("out", ["scores.csv", "scores.parquet"])
def test_numbers_of_csv_are_kept_as_the_file_has_them(tmp_path: Path, out: str) -> None:
    texts = ["1.50", "9007199254740993", "NA", "", " 7", "1e3"]
    log = tmp_path / "log.csv"
    rows = [f"{row % 2},i{row % 5},{texts[row % 6]}\n" for row in range(60)]
    log.write_text("".join(["label,item,price\n", *rows]))
    store = train_on(log, tmp_path / "store", dense_columns=("price",))
    with hps.Model.load(store, dram="8MiB") as model:
        predict_log(model, [log], tmp_path / out, keep=["price", "label"])
    if out.endswith(".csv"):
        with (tmp_path / out).open(newline="") as file:
            found = [(row["price"], row["label"]) for row in csv.DictReader(file)]
    else:
        table = pq.read_table(tmp_path / out)
        found = list(zip(*(table[name].to_pylist() for name in ("price", "label")), strict=True))
    assert found == [(texts[row % 6], str(row % 2)) for row in range(60)]


def test_kept_columns_follow_the_order_of_files_and_may_be_views(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        write_users(tmp_path / name)
        table = pq.read_table(tmp_path / name)
        users = pa.array([f"{name}-{row}" for row in range(len(table))]).cast(pa.string_view())
        place = table.schema.get_field_index("user")
        pq.write_table(table.set_column(place, "user", users), tmp_path / name)
    logs = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    store = train_on(logs[0], tmp_path / "store", ignore=("user",))
    orders = []
    with hps.Model.load(store, dram="8MiB") as model:
        for seed in (None, 0, 1, 2, 3):
            out = tmp_path / f"{seed}.csv"
            predict_log(model, logs, out, keep=["user"], shuffle_files=seed)
            with out.open(newline="") as file:
                orders.append([row["user"] for row in csv.DictReader(file)])
            reader = model.open_reader(logs, shuffle_files=seed)
            first = Path(reader._order(0)[0]).name
            assert orders[-1][0] == f"{first}-0"
    assert len(set(map(tuple, orders))) == 2


def test_what_cannot_stand_beside_scores_is_refused_before_anything_is_scored(
    tmp_path: Path, criteo: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_users(tmp_path / "log.parquet")
    store = train_on(tmp_path / "log.parquet", tmp_path / "store")

    def refusal(log: Path, store: Path, out: str, *keep: str) -> str:
        words = ["predict", str(log), "--store", str(store), "--out", str(tmp_path / out)]
        flags = [word for name in keep for word in ("--keep", name)]
        assert main([*words, *flags, "--dram", "8MiB"]) == 1
        assert not (tmp_path / out).exists()
        return capsys.readouterr().err

    log = tmp_path / "log.parquet"
    assert "no columns ['usr']" in refusal(log, store, "a.csv", "user", "usr")
    assert ".npy holds the scores alone" in refusal(log, store, "a.npy", "user")
    assert "columns ['tags'] hold lists" in refusal(log, store, "a.csv", "tags")
    assert "a log of criteo has no columns" in refusal(*criteo[:2], "a.csv", "C1")
    table = pq.read_table(log)
    pq.write_table(table.append_column("probability", table["price"]), log)
    assert "written as 'probability', too" in refusal(log, store, "a.csv", "probability")


def test_a_row_with_nothing_but_a_kept_column_is_no_example_and_is_told(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("label,user,item\n" + "".join(f"{row % 2},u,i{row}\n" for row in range(9)))
    store = train_on(log, tmp_path / "store", ignore=("user",))
    log.write_text(log.read_text() + ",u,\n")
    with hps.Model.load(store, dram="8MiB") as model:
        assert predict_log(model, [log], tmp_path / "a.csv")["examples"] == 9
        with pytest.raises(hps.DataError, match=r"--keep user: 9 examples .* has 10 values"):
            predict_log(model, [log], tmp_path / "b.csv", keep=["user"])
    assert not (tmp_path / "b.csv").exists()


def test_predict_refuses_before_it_works_and_leaves_what_is_there(
    tmp_path: Path, criteo: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    log, store, _ = criteo

    def refusal(*words: object) -> str:
        assert main(["predict", "--store", str(store), *map(str, words)]) == 1
        return capsys.readouterr().err

    assert "must end in one of .parquet, .csv, .npy" in refusal(log, "--out", tmp_path / "a.txt")
    assert "--out" in refusal(log, "--out", tmp_path / "no" / "a.npy")
    out = tmp_path / "a.npy"
    out.write_text("kept")
    bad = tmp_path / "bad"
    bad.write_bytes(log.read_bytes() + b"1\tbad\n")
    assert "line 61" in refusal(bad, "--out", out)
    empty = tmp_path / "empty"
    empty.write_text("")
    assert "no example to score" in refusal(empty, "--out", out)
    assert out.read_text() == "kept" and len(list(tmp_path.iterdir())) == 3
    assert "is a file of DATA" in refusal(
        bad.rename(tmp_path / "b.csv"), "--out", tmp_path / "b.csv"
    )
    assert "asks for 'libsvm'" in refusal(log, "--out", out, "--format", "libsvm")


def test_predict_of_a_model_that_skipped_bad_lines_stops_at_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{row % 2} {row % 7}:1\n" for row in range(80)) + "bad\n")
    store = train_on(log, tmp_path / "store", on_error="skip")
    link, out = tmp_path / "link.npy", tmp_path / "scores.npy"
    out.write_text("kept")
    link.symlink_to(out)
    with hps.Model.load(store, dram="8MiB") as model:
        with pytest.raises(hps.DataError, match="line 81"):
            predict_log(model, [log], link)
        assert out.read_text() == "kept"
        log.write_text(log.read_text()[:-4])
        assert predict_log(model, [log], link)["examples"] == 80
    assert link.is_symlink() and np.load(out).shape == (80,)


@pytest.mark.parametrize("value", [7, 7.5, None, "text", b"text", np.int64(7)])
def test_a_value_where_a_column_is_wanted_is_refused_by_name(criteo: Any, value: object) -> None:
    row: dict[str, object] = {f"I{n}": [1] for n in range(1, 14)}
    row |= {f"C{n}": ["x"] for n in range(1, 27)}
    with hps.Model.load(criteo[1]) as model:
        said = re.escape(f"column 'C3' is {value!r}; give a list with a value for each example")
        with pytest.raises(hps.ConfigError, match=said):
            model.predict(row | {"C3": value})
        assert len(model.predict(row)) == 1
