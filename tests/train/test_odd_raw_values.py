"""Odd raw values, given as users have them, are scored as the reader of the log has them."""

import csv
import io
import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as pa_csv

import hps
from hps.cli.main import main
from hps.features import Features
from hps.reader.dense_text import number_of
from hps.train import TrainOptions, train
from tests.logs import NUM_DENSE, NUM_FEATURES

SMALL = {"dim": 2, "hidden": (4,), "batch_size": 64, "dram": "8MiB", "torch_threads": 1, "depth": 0}
NUM_ROWS = 120
Columns = dict[str, list[Any]]
PARQUET: dict[str, tuple[pa.DataType, list[Any]]] = {
    "lists of text": (pa.list_(pa.string()), [["a", None], [""], None, [], ["b", "a"], [None]]),
    "lists of numbers": (pa.list_(pa.int64()), [[7, None], [], None, [-3], [None]]),
    "lists of uint64": (pa.list_(pa.uint64()), [[2**63], [2**64 - 1, 7], [], None, [None, 2**63]]),
    "fixed lists": (pa.list_(pa.int32(), 2), [[7, 8], None, [None, None]]),
    "uint64": (pa.uint64(), [2**63, 2**64 - 1, 7, 0, None]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 2**62 + 1, 7, None]),
    "booleans": (pa.bool_(), [True, False, None]),
    "text": (pa.string(), ["", "a", "NA", "\u00e9", "x\0y", None]),
}


def parquet_log(path: Path, of: str) -> Columns:
    """A log with a column of odd values, its columns but for the label."""
    kind, values = PARQUET[of]
    draw = random.Random(of)
    columns = {
        "u": pa.array([draw.choice(values) for _ in range(NUM_ROWS)], kind),
        "v": pa.array([f"v{row % 5}" for row in range(NUM_ROWS)]),
        "x": pa.array([row / 7 if row % 6 else None for row in range(NUM_ROWS)]),
    }
    pq.write_table(pa.table({"label": [row % 2 for row in range(NUM_ROWS)], **columns}), path)
    return {name: column.to_pylist() for name, column in columns.items()}


def trained(log: Path, **changes: Any) -> Path:
    store = log.with_name(f"{log.name}.store")
    train(TrainOptions(**{"data": [log], "store": store, **SMALL, **changes}))
    return store


def check_all_ways(model: hps.Model, log: Path, columns: Columns) -> None:
    """All rows at once, one by one, some, as arrays of objects: the scores of the reader, in the
    last bit but one (batches of another size)."""
    expected = torch.cat([model.predict(batch) for batch in model.open_reader([log])])
    assert len(set(expected.tolist())) > 3
    ways: dict[str, Callable[[list[Any]], Any]] = {
        "lists": list,
        "tuples": tuple,
        "arrays": as_objects,
    }
    for make in ways.values():
        for size in (NUM_ROWS, 70, 7, 1):
            parts = [
                model.predict({one: make(all_[at : at + size]) for one, all_ in columns.items()})
                for at in range(0, NUM_ROWS, size)
            ]
            torch.testing.assert_close(torch.cat(parts), expected, rtol=0, atol=2e-6)


def as_objects(values: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    made = np.empty(len(values), object)
    made[:] = values
    return made


@pytest.mark.parametrize("hashes", [True, False])
@pytest.mark.parametrize("of", PARQUET)
def test_columns_of_parquet_are_its_readers(tmp_path: Path, of: str, hashes: bool) -> None:
    columns = parquet_log(tmp_path / "log", of)
    store = trained(tmp_path / "log", hash_keys=hashes, format="parquet")
    with hps.Model.load(store, dram="8MiB") as model:
        check_all_ways(model, tmp_path / "log", columns)


@pytest.mark.parametrize("of", ["lists of text", "lists of numbers", "uint64", "text"])
@pytest.mark.parametrize("count", [1, 2, 100])
def test_what_is_empty_is_an_example_without_keys(tmp_path: Path, of: str, count: int) -> None:
    parquet_log(tmp_path / "log", of)
    given = {"v": ["v1"] * count, "x": [0.5] * count}
    nothing: list[Any] = [None, [], [None], (), [None, None], np.array([]), [math.nan]]
    with hps.Model.load(trained(tmp_path / "log", format="parquet"), dram="8MiB") as model:
        expected = model.predict({**given, "u": [None] * count})
        known = PARQUET[of][1][0]
        assert not torch.equal(model.predict({**given, "u": [known] * count}), expected)
        for value in nothing:
            assert torch.equal(model.predict({**given, "u": [value] * count}), expected), value
        mixed = [None, *nothing[1:5]] * count
        longer = {name: values * 5 for name, values in given.items()}
        scores = model.predict({**longer, "u": mixed})
        torch.testing.assert_close(scores, expected[0].expand(5 * count))
        for kind in (pa.null(), pa.list_(pa.null()), pa.large_list(pa.null())):
            batch = pa.RecordBatch.from_pydict({**given, "u": pa.nulls(count, kind)})
            assert torch.equal(model.predict(batch), expected), kind


@pytest.mark.parametrize("kind", [pa.null(), pa.list_(pa.null())])
def test_a_day_without_any_history_is_read_as_empty_bags(tmp_path: Path, kind: Any) -> None:
    log, day = tmp_path / "log", tmp_path / "day"
    parquet_log(log, "lists of text")
    store = trained(log, format="parquet")
    table = pq.read_table(log)
    empty = [None if pa.types.is_null(kind) else [] for _ in range(NUM_ROWS)]
    meant = table.set_column(1, "u", pa.array(empty, pa.list_(pa.string())))
    seen = table.set_column(1, "u", pa.array(empty, kind))
    no_price = pa.nulls(NUM_ROWS, pa.null())
    with hps.Model.load(store, dram="8MiB") as model:
        scores = []
        for one in (meant, seen):
            pq.write_table(one, day)
            scores.append(torch.cat([model.predict(batch) for batch in model.open_reader([day])]))
            also = model.open_reader(one.to_batches())
            assert torch.equal(torch.cat([model.predict(batch) for batch in also]), scores[-1])
        assert torch.equal(scores[0], scores[1])
        pq.write_table(meant.set_column(3, "x", no_price), day)
        absent = torch.cat([model.predict(batch) for batch in model.open_reader([day])])
        zeros = meant.set_column(3, "x", pa.array([0.0] * NUM_ROWS))
        pq.write_table(zeros, day)
        assert torch.equal(
            absent, torch.cat([model.predict(batch) for batch in model.open_reader([day])])
        )
    pq.write_table(seen, day)
    assert main(["evaluate", str(day), "--store", str(store), "--dram", "8MiB"]) == 0
    train(TrainOptions(data=[log, day], store=tmp_path / "both", format="parquet", **SMALL))
    # A log that begins with it does not say what the column is.
    with pytest.raises(hps.ConfigError, match="'u'"):
        train(TrainOptions(data=[day, log], store=tmp_path / "new", format="parquet", **SMALL))


def test_a_history_of_din_may_be_empty(tmp_path: Path) -> None:
    rows = range(NUM_ROWS)
    log = tmp_path / "log.parquet"
    columns = {
        "hist": [["a", "b"][: row % 3] for row in rows],
        "item": ["ab"[row % 2] for row in rows],
    }
    pq.write_table(pa.table({"label": [row % 2 for row in rows], **columns}), log)
    described = Features.from_toml('[columns.hist]\nkind = "sequence"\ntarget = "item"\n')
    with hps.Model.load(trained(log, model="din", features=described), dram="8MiB") as model:
        check_all_ways(model, log, columns)
        expected = model.predict({"hist": [None], "item": ["a"]})
        for value in ([], [None], ()):
            assert torch.equal(model.predict({"hist": [value], "item": ["a"]}), expected)


TENSORS = [
    ([7, -3], torch.tensor([7, -3])),
    ([7, -3], torch.tensor([7, -3], dtype=torch.int8)),
    ([1, 0], torch.tensor([True, False])),
    ([7, -3], torch.tensor([7.0, -3.0])),
]


@pytest.mark.parametrize(("values", "tensor"), TENSORS)
def test_tensors_are_columns(tmp_path: Path, values: list[int], tensor: torch.Tensor) -> None:
    parquet_log(tmp_path / "log", "int64")
    with hps.Model.load(trained(tmp_path / "log", format="parquet"), dram="8MiB") as model:
        given = {"u": values, "v": ["a", "b"], "x": [0.5, 1.5]}
        expected = model.predict(given)
        found = model.predict({**given, "u": tensor, "x": torch.tensor([0.5, 1.5])})
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([-1, 2**63], "'u' holds -1 beside numbers from 2.63 on"),
        ([1, 2**64], "'u' holds 18446744073709551616"),
        ([[1], [2**64]], "'u' holds 18446744073709551616"),
        ([2**63, 1.5], "column 'u'"),
        (["a", 7], "column 'u': "),
        ([2**63, "a"], "column 'u'"),
    ],
)
def test_numbers_that_no_column_holds_are_named(
    tmp_path: Path, values: list[Any], told: str
) -> None:
    parquet_log(tmp_path / "log", "uint64")
    with hps.Model.load(trained(tmp_path / "log", format="parquet"), dram="8MiB") as model:
        for many in (1, 50):
            rows = {"u": values * many, "v": ["a", "b"] * many, "x": [1.0, 2.0] * many}
            with pytest.raises(hps.ConfigError, match=told):
                model.predict(rows)
        huge = model.predict({"u": [1], "v": ["a"], "x": [2**64]})
        assert torch.equal(huge, model.predict({"u": [1], "v": ["a"], "x": [2.0**64]}))
        with pytest.raises(
            hps.DataError, match=r"'x' holds inf, not a finite number; correct the row$"
        ):
            model.predict({"u": [1], "v": ["a"], "x": [10**400]})


NUMBERS = ["", "1.5", " 1.5\t", "NA", "nan", "null", "+5", "5.", ".5", "-1e-3", "007", "-0"]
NUMBERS += ["1e-400", "123456789012345678901e-20", "4.9e-324", "0.1"]
TEXTS = ["", "7", "007", " ", "NA", "\u00e9", "a,b", '"', "18446744073709551616"]


@pytest.fixture(scope="module")
def text_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Of csv and criteo a model, its log, and the columns as their text."""
    folder = tmp_path_factory.mktemp("texts")
    draw = random.Random(1)
    rows = range(NUM_ROWS)
    of_csv = {
        "user": [draw.choice(TEXTS) for _ in rows],
        "price": [draw.choice(NUMBERS) for _ in rows],
        "size": [repr(draw.uniform(-1, 1) * 10.0 ** draw.randint(-30, 0)) for _ in rows],
    }
    with (folder / "log.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", *of_csv])
        writer.writerows(zip([row % 2 for row in rows], *of_csv.values(), strict=True))
    whole = ["", "5", "-1", "007", "-0", str(2**63 - 1), str(-(2**63)), "0" * 25 + "7"]
    of_criteo = {f"I{one + 1}": [draw.choice(whole) for _ in rows] for one in range(NUM_DENSE)}
    of_criteo |= {f"C{one + 1}": [draw.choice(TEXTS) for _ in rows] for one in range(NUM_FEATURES)}
    lines = zip([str(row % 2) for row in rows], *of_criteo.values(), strict=True)
    (folder / "log").write_text("".join("\t".join(line) + "\n" for line in lines))
    described = Features.from_toml(
        '[columns.price]\nkind = "dense"\nbuckets = [0.2, 1, 6]\nkeep = true\n'
    )
    with ExitStack() as held:
        found: dict[str, Any] = {}
        for kind, name, columns, changes in (
            ("csv", "log.csv", of_csv, {"dense_columns": ("price", "size")}),
            ("csv, described", "described.csv", of_csv, {"features": described}),
            ("criteo", "log", of_criteo, {}),
        ):
            log = folder / name
            if not log.exists():
                log.write_bytes((folder / "log.csv").read_bytes())
            store = trained(log, format=kind.split(",")[0], **changes)
            model = held.enter_context(hps.Model.load(store, dram="8MiB"))
            found[kind] = (model, log, columns, store)
        yield found


@pytest.mark.parametrize("kind", ["csv", "csv, described", "criteo"])
def test_text_of_dense_columns_is_the_readers_number(text_logs: dict[str, Any], kind: str) -> None:
    model, log, columns, _ = text_logs[kind]
    check_all_ways(model, log, columns)
    read = [batch.dense for batch in model.open_reader([log])]
    for size in (NUM_ROWS, 40):
        made = [
            model.batch_of({one: all_[at : at + size] for one, all_ in columns.items()}).dense
            for at in range(0, NUM_ROWS, size)
        ]
        assert torch.cat(made).numpy().tobytes() == torch.cat(read).numpy().tobytes()
    as_bytes = {name: [one.encode() for one in values] for name, values in columns.items()}
    whole = pa.RecordBatch.from_pydict(columns)
    coded = [column.dictionary_encode() for column in whole.columns]
    expected = model.predict(columns)
    assert torch.equal(model.predict(as_bytes), expected)
    assert torch.equal(model.predict(whole), expected)
    assert torch.equal(
        model.predict(pa.RecordBatch.from_arrays(coded, whole.schema.names)), expected
    )


def test_rows_of_a_csv_reader_are_scored_as_they_are(text_logs: dict[str, Any]) -> None:
    model, log, _, _ = text_logs["csv"]
    expected = torch.cat([model.predict(batch) for batch in model.open_reader([log])])
    with log.open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores = [model.predict({name: [text] for name, text in row.items()}) for row in rows]
    torch.testing.assert_close(torch.cat(scores), expected, rtol=0, atol=2e-6)


def test_ids_that_begin_with_zero_are_text_and_to_be_given_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers have lost their zeros, and no row would be found for them."""
    log = tmp_path / "log.csv"
    rows = [f"{row % 2},{row:05d},{row % 9},0{row}\n" for row in range(90)]
    log.write_text("".join(["label,zip,age,n\n", *rows]))
    words = ["train", str(log), "--store", str(tmp_path / "store"), "--dim", "2", "--hidden", "4"]
    words += ["--batch-size", "30", "--dram", "8MiB", "--dense-columns", "n"]
    assert main([*words, "--json", str(tmp_path / "out.json")]) == 0
    told = "columns: 1 feature (hashed with the feature; text, as some numbers begin with 0): zip\n"
    assert told in capsys.readouterr().err
    columns = {
        one["name"]: one for one in json.loads((tmp_path / "out.json").read_text())["columns"]
    }
    assert (columns["zip"]["type"], columns["age"]["type"]) == ("string", "int64")
    # A later log that shows none does not make them numbers.
    later = tmp_path / "later.csv"
    later.write_text("label,zip,age,n\n" + "1,10001,3,4\n0,10002,5,6\n" * 30)
    assert main(["train", str(later), *words[2:], "--resume", "--new-data"]) == 0
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        for many in (1, 90):
            good = {"zip": ["00007"] * many, "age": [3] * many, "n": [7.0] * many}
            model.predict(good)
            model.predict({**good, "zip": [["00007"]] * many})
            model.predict({**good, "zip": [None] * many})
            whole: list[Any] = [[7] * many, [7.0] * many, np.full(many, 7), [[7]] * many]
            for values in whole:
                with pytest.raises(hps.ConfigError, match=r"'zip' is of type .* begin with 0"):
                    model.predict({**good, "zip": values})


def test_whole_numbers_that_end_in_point_zero_are_told_and_to_be_given_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So pandas writes ids beside missing ones; 785.0 and 785 are two texts, and so two keys."""
    log = tmp_path / "log.csv"
    ids = ["" if row % 7 == 0 else f"{row}.0" for row in range(90)]
    rows = [f"{row % 2},{one},{row % 9}\n" for row, one in enumerate(ids)]
    log.write_text("".join(["label,user,age\n", *rows]))
    words = ["train", str(log), "--dim", "2", "--hidden", "4", "--batch-size", "30"]
    words += ["--dram", "8MiB", "--store"]
    # Of a column that nobody describes a number is made; so much is told.
    assert main([*words, str(tmp_path / "number")]) == 0
    said = capsys.readouterr().err
    assert "warning: column 'user' is read as a number, and all its first values are whole" in said
    assert main([*words, str(tmp_path / "named"), "--dense-columns", "user"]) == 0
    assert "'user' is read as a number" not in capsys.readouterr().err
    features = tmp_path / "features.toml"
    features.write_text('columns.user.kind = "categorical"\n')
    assert main([*words, str(tmp_path / "store"), "--features", str(features)]) == 0
    said = capsys.readouterr().err
    assert "warning: feature 'user' has whole numbers that end in .0, and 785.0 is another" in said
    assert "text, as some whole numbers end in .0): user" in said
    with hps.Model.load(tmp_path / "store", dram="8MiB") as model:
        for many in (1, 90):
            model.predict({"user": ["8.0"] * many, "age": [3] * many})
            for value in (8, 8.0):
                with pytest.raises(hps.ConfigError, match=r"'user' is of type .* end in \.0"):
                    model.predict({"user": [value] * many, "age": [3] * many})


@pytest.mark.parametrize("many", [1, 90])
def test_a_list_of_a_csv_model_is_the_one_value_in_it(text_logs: dict[str, Any], many: int) -> None:
    """An empty text has no key there, also within a list; several values are no row of csv."""
    model, _, _, _ = text_logs["csv"]
    texts = [*TEXTS, None] * many
    columns = {"user": texts, "price": ["1"] * len(texts), "size": ["2"] * len(texts)}
    expected = model.predict(columns)
    in_lists: list[Any] = [
        [[text] for text in texts],
        [[None, text] for text in texts],
        [[text] if text else [] for text in texts],
        pa.array([[text] for text in texts], pa.list_(pa.string(), 1)),
    ]
    for values in in_lists:
        assert torch.equal(model.predict({**columns, "user": values}), expected)
    whole = {name: ["7"] * many for name in columns}
    as_numbers = model.predict({**whole, "user": [[7]] * many})
    assert torch.equal(as_numbers, model.predict(whole))
    several = [["a"], [], ["a", None], ["a", "b"], ["a", "b"]] * many
    row = {name: ["1"] * len(several) for name in columns}
    told = r"predict, row 4: column 'user' holds \['a', 'b'\], and a csv log has one value"
    with pytest.raises(hps.DataError, match=told):
        model.predict({**row, "user": several})
    with pytest.raises(hps.ConfigError, match="booleans"):
        model.predict({**whole, "user": [[True]] * many})


@pytest.mark.parametrize("many", [1, 90])
@pytest.mark.parametrize(
    ("kind", "bad", "told"),
    [
        *(
            (
                "csv",
                bad,
                f"row {{row}}: column 'price' holds {bad!r}, which is no number of its kind",
            )
            for bad in ("abc", " NA", " ", "1_0", "0x10", "\u0663", "1,5", "--5", "None")
        ),
        ("csv", "inf", "row {row}: column 'price' holds inf, not a finite number"),
        ("csv", "NAN", "row {row}: column 'price' holds nan, not a finite number"),
        ("csv", "1e39", "row {row}: column 'price' holds inf, not a finite number"),
        *(
            ("criteo", bad, f"row {{row}}: column 'I3' holds {bad!r}, which is not a whole number")
            for bad in ("1.5", " 5", "+5", "NA", "0x10", str(2**63), "-", "\u0663")
        ),
    ],
)
def test_text_that_is_no_number_is_named_as_the_reader_does(
    text_logs: dict[str, Any], kind: str, bad: str, told: str, many: int
) -> None:
    model, log, columns, _ = text_logs[kind]
    name = "price" if kind == "csv" else "I3"
    good = {one: ["5"] * many for one in columns}
    for place in (0, many - 1):
        values = list(good[name])
        values[place] = bad
        with pytest.raises(hps.DataError) as refused:
            model.predict({**good, name: values})
        assert told.format(row=place + 1) in str(refused.value)
        assert "skip" not in str(refused.value)
    line = log.with_name("bad.csv" if kind == "csv" else "bad")
    cells = {**{one: "5" for one in columns}, name: bad}
    with line.open("w", newline="") as file:
        if kind == "csv":
            writer = csv.writer(file)
            writer.writerows([["label", *cells], ["1", *cells.values()]])
        else:
            file.write("\t".join(["1", *cells.values()]) + "\n")
    with pytest.raises(hps.DataError, match=name):
        list(model.open_reader([line]))


@pytest.mark.parametrize("format_", ["csv", "criteo"])
@given(data=st.data())
@settings(max_examples=150)
def test_the_number_of_a_text_is_that_of_many(format_: str, data: st.DataObject) -> None:
    from hps.reader.dense_text import with_numbers

    text = data.draw(
        st.text(" \t+-.0123456789eEnNaAiIfF", max_size=7)
        | st.floats().map(repr)
        | st.integers(-(2**65), 2**65).map(str)
        | st.text(max_size=3)
        | st.text(" \t\n\r\v\u00a0+1.", max_size=3)
    )
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        return
    batch = pa.RecordBatch.from_pydict({"x": pa.array([text, "1"])})
    try:
        expected = number_of_csv(text) if format_ == "csv" else number_of(text, format_)
    except ValueError:
        with pytest.raises(ValueError):
            number_of(text, format_)
        with pytest.raises(hps.DataError, match="row 1: column 'x'"):
            with_numbers(batch, ["x"], format_)
        return
    (found, one) = with_numbers(batch, ["x"], format_).column("x").to_pylist()
    assert one == 1 and repr(found) == repr(expected) == repr(number_of(text, format_))


def number_of_csv(text: str) -> float | None:
    """As the parser of csv files has it."""
    quoted = text.replace('"', '""')
    column = pa_csv.read_csv(
        io.BytesIO(f'x\n"{quoted}"\n'.encode()),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pa_csv.ConvertOptions(column_types={"x": pa.float64()}),
    )["x"]
    found: float | None = column[0].as_py()
    return found


def test_lookup_takes_the_text_of_a_number_as_the_reader_does(
    text_logs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(text_logs["csv, described"][3])

    def told(text: str) -> str:
        assert main(["lookup", store, f"price={text}"]) == 0
        return capsys.readouterr().out

    missing = hps.key_of("price", "missing")
    for text in ("NA", "nan", "null", "#N/A"):
        line = f"price={text}: key {missing} ('{text}' is a missing number: bucket missing"
        assert line in told(text)
    assert f"price=: key {missing} (bucket missing" in told("")
    assert f"key {hps.key_of('price', 2)} (bucket 2" in told(" +5.")
    for text in ("1_0", " NA", "abc", "inf", "NAN"):
        assert main(["lookup", store, f"price={text}"]) == 1
        assert "finite numbers" in capsys.readouterr().err


def test_the_torch_module_is_at_hand(text_logs: dict[str, Any]) -> None:
    model, log, _, _ = text_logs["csv"]
    assert isinstance(model.module, torch.nn.Module) and not model.module.training
    batch = next(iter(model.open_reader([log], batch_size=NUM_ROWS)))
    with torch.no_grad():
        scores = torch.sigmoid(model.module(batch))
    assert torch.equal(scores, model.predict(batch))
    assert all(torch.is_tensor(one) for one in model.module.state_dict().values())


def test_errors_of_scoring_do_not_say_to_skip(
    text_logs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A score may not be missing; what trains or evaluates may skip."""
    for kind, line in (
        ("csv", "label,user,price,size\n1,a,abc,1\n"),
        ("csv", "label,user,price,size\n1,a,inf,1\n"),
        ("csv", "label,user,price,size\n1,a,1\n"),
        ("criteo", "1\tbad" + "\t" * (NUM_DENSE + NUM_FEATURES - 1) + "\n"),
    ):
        _, _, _, store = text_logs[kind]
        log = tmp_path / ("log.csv" if kind == "csv" else "log")
        log.write_text(line)
        words = [str(log), "--store", str(store), "--dram", "8MiB", "--format", kind]
        assert main(["predict", *words, "--out", str(tmp_path / "out.npy")]) == 1
        said = capsys.readouterr().err
        assert "correct the" in said and "skip" not in said
        assert main(["evaluate", *words]) == 1
        assert "--on-error skip" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["slots", "libffm"])
def test_what_is_empty_is_an_entry_without_keys_of_lines(tmp_path: Path, kind: str) -> None:
    """As in parquet; a key of 64 bits beside nothing stays one."""
    line = {"slots": "{label}:1 {key}:101 7:102\n", "libffm": "{label} 101:{key}:1 102:7:1\n"}[kind]
    rows = (line.format(label=row % 2, key=2**64 - 1 - row % 5) for row in range(60))
    (tmp_path / "log").write_text("".join(rows))
    with hps.Model.load(trained(tmp_path / "log", format=kind), dram="8MiB") as model:
        one = model.predict({"101": [2**64 - 1], "102": [7]})
        assert torch.equal(model.predict({"101": [[None, 2**64 - 1]], "102": [7]}), one)
        none = model.predict({"101": [None], "102": [7]})
        assert not torch.equal(none, one)
        for value in ([], [None], (), np.array([])):
            assert torch.equal(model.predict({"101": [value], "102": [7]}), none)
