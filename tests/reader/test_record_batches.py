"""Record batches as a log: the batches of the parquet file with the same rows, bit for bit.

Above it: pytest. Below it: hps/reader/batch_source.py, hps/reader/batch_files.py, `open_reader`.
"""

import dataclasses
import gc
import json
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch

import hps
from hps.errors import ConfigError, DataError
from hps.features.features import Features
from hps.features.open import open_with_features
from hps.reader import Reader, ReaderConfig, open_reader
from hps.reader.batch_source import BatchSource
from hps.train.evaluate import evaluate_model
from tests.reader.reader_twin import assert_same_batches

TABLES = [hps.TableConfig(name="ads", dim=4)]
ROWS = 157
ROOT = Path(__file__).resolve().parents[2]


def log_table() -> pa.Table:
    """Rows of every kind of column, with nulls, empty texts and values that are not finite."""
    random = np.random.default_rng(5)
    words = [None, "", "Oslo", "æøå 東京", *"abcdefg"]
    bags = [None, [], [3], [1, None, 2], [7, 7, 8]]
    texts = [words[idx] for idx in random.integers(0, len(words), ROWS)]
    ages = [None if idx % 11 == 0 else float(idx) for idx in range(ROWS)]
    ages[20], ages[90] = float("nan"), float("inf")
    labels: list[int | None] = random.integers(0, 2, ROWS).tolist()
    labels[33], labels[120] = None, 7
    weights = [idx / 8 for idx in range(ROWS)]
    weights[50] = -1.0
    pairs = [None if idx % 9 == 4 else [idx, idx + 1] for idx in range(ROWS)]
    return pa.table(
        {
            "user": pa.array([idx % 19 if idx % 7 else None for idx in range(ROWS)], pa.int64()),
            "age": pa.array(ages, pa.float32()),
            "label": pa.array(labels, pa.int8()),
            "city": pa.array(texts),
            "large": pa.array(texts, pa.large_string()),
            "view": pa.array(texts, pa.string_view()),
            "kind": pa.array(texts).dictionary_encode(),
            "bag": pa.array([bags[idx % 5] for idx in range(ROWS)], pa.list_(pa.int64())),
            "wide": pa.array([bags[idx % 5] for idx in range(ROWS)], pa.large_list(pa.int64())),
            "pair": pa.array(pairs, pa.list_(pa.int32(), 2)),
            "count": pa.array([idx % 4 for idx in range(ROWS)], pa.uint16()),
            "share": pa.array([idx / 3 for idx in range(ROWS)], pa.float64()),
            "score": pa.array(weights, pa.float64()),
            "seen": pa.array([None] * ROWS, pa.timestamp("s")),
        }
    )


def batches_of(table: pa.Table, *sizes: int) -> list[pa.RecordBatch]:
    """Slices of one array each, of the sizes given in turn; some may be empty."""
    whole = table.combine_chunks().to_batches()[0]
    found, first = [], 0
    while first < len(whole):
        size = sizes[len(found) % len(sizes)]
        found.append(whole.slice(first, size))
        first += size
    return found


def chunked(table: pa.Table) -> list[pa.Table]:
    """Tables whose columns are of several chunks, which end elsewhere in each."""
    found = []
    for first, last in ((0, 60), (60, 60), (60, 157)):
        part = table.slice(first, last - first)
        names = part.column_names
        columns = [
            pa.chunked_array(
                [*part.column(name).slice(0, idx).chunks, *part.column(name).slice(idx).chunks],
                part.column(name).type,
            )
            for idx, name in enumerate(names)
        ]
        found.append(pa.table(columns, names=names))
    return found


class Stream:
    """A data frame of another library."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


class Once:
    """A single batch of another library."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self.batch.__arrow_c_array__(requested_schema)


class Again:
    """An iterable that can be read again."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.calls = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.calls += 1
        yield from batches_of(self.table, 40)


class Same:
    """An iterable that gives the same iterator each time."""

    def __init__(self, table: pa.Table) -> None:
        self.given = iter(batches_of(table, 40))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.given


AGAIN: dict[str, Callable[[pa.Table], Any]] = {
    "callable": lambda table: lambda: iter(batches_of(table, 10, 0, 23)),
    "callable of a list": lambda table: lambda: batches_of(table, 1),
    "callable of a table": lambda table: lambda: table,
    "callable of a reader": lambda table: lambda: table.to_reader(13),
    "callable of a dataset": lambda table: lambda: ds.dataset(table),
    "list": lambda table: batches_of(table, 50),
    "tuple of tables": lambda table: tuple(chunked(table)),
    "table": lambda table: table,
    "one batch": lambda table: batches_of(table, ROWS)[0],
    "dataset": ds.dataset,
    "scanner": lambda table: ds.dataset(table).scanner(batch_size=30),
    "frame": Stream,
    "frames": lambda table: [Stream(table.slice(0, 90)), Stream(table.slice(90))],
    "foreign batches": lambda table: [Once(batch) for batch in batches_of(table, 77)],
    "iterable": Again,
}
ONCE: dict[str, Callable[[pa.Table], Any]] = {
    "generator": lambda table: (batch for batch in batches_of(table, 12)),
    "reader": lambda table: table.to_reader(29),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_size": 1},
    {"batch_size": 1000},
    {"dense": 3},
    {"dense_columns": ["share", "count"]},
    {"nan_columns": ["age"]},
    {"dense_transform": "signed_log1p"},
    {"vocabularies": {"large": "city"}},
    {"separators": {"large": "1"}},
    {"label": "count"},
    {"needs_labels": False, "label": "absent", "weight": "none", "group": "neither"},
    {"weight": "score"},
    {"group": "user"},
    {"group": "kind", "ignore": ["seen", "kind"]},
    {"hash_keys": False},
    {"epochs": 3},
    {"shuffle_files": 4, "epochs": 2},
    {"shuffle_buffer": 30, "shuffle_seed": 3, "epochs": 2},
    {"drop_last": True},
    {"threads": 2},
    {"hash_range": (0.2, 0.7)},
    {"negative_rate": 0.4},
    {"part": (1, 3)},
    {"part": (2, 3), "shuffle_buffer": 20, "weight": "score"},
]
# Of text alone.
OF_TEXT = {"format", "fields", "slot_layout", "delimiter"}
SETTLED = {"ignore": ["seen"], "on_error": "skip", "batch_size": 10}


def opened(data: Any, **options: Any) -> Reader:
    return open_reader(data, tables=TABLES, config=ReaderConfig(**{**SETTLED, **options}))


def without_files(batches: Sequence[hps.Batch]) -> list[hps.Batch]:
    """With positions that two sources of the same rows have in common; dense values as bits."""
    for batch in batches:
        assert batch.position is not None
        batch.position = {**batch.position, "files": []}
        batch.dense = batch.dense.view(torch.int32)
    return list(batches)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return log_table()


@pytest.fixture(scope="module")
def parquet(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    pq.write_table(table, path, row_group_size=64)
    return path


def test_every_field_of_the_configuration_is_tried() -> None:
    tried = {name for options in [*OPTIONS, SETTLED] for name in options}
    assert tried | OF_TEXT == {field.name for field in dataclasses.fields(ReaderConfig)}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_are_those_of_the_parquet_file(
    options: dict[str, Any], table: pa.Table, parquet: Path
) -> None:
    expected_reader = opened(parquet, **options)
    expected = without_files(list(expected_reader))
    assert expected
    for name in ("callable", "list", "tuple of tables", "dataset"):
        reader = opened(AGAIN[name](table), **options)
        assert_same_batches(without_files(list(reader)), expected)
        assert reader.counts == expected_reader.counts
        assert reader.features == expected_reader.features
        assert reader.num_dense == expected_reader.num_dense


@pytest.mark.parametrize("name", [*AGAIN, *ONCE])
def test_every_way_to_give_batches_gives_the_same(
    name: str, table: pa.Table, parquet: Path
) -> None:
    make = {**AGAIN, **ONCE}[name]
    reader = opened(make(table))
    expected = without_files(list(opened(parquet)))
    assert_same_batches(without_files(list(reader)), expected)
    assert reader.format == "parquet"
    if name in AGAIN:
        assert_same_batches(without_files(list(reader)), expected)  # a loop over it again


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("options", [{}, {"shuffle_buffer": 25}, {"negative_rate": 0.5}], ids=str)
def test_a_position_goes_on_exactly(name: str, options: dict[str, Any], table: pa.Table) -> None:
    options = {"epochs": 2, "batch_size": 16, **options}
    batches = list(opened(AGAIN[name](table), **options))
    for number in range(0, len(batches), 3):
        reader = opened(AGAIN[name](table), **options)
        reader.load_state_dict(json.loads(json.dumps(batches[number].position)))
        assert_same_batches(list(reader), batches[number + 1 :])


def test_a_position_counts_rows_whatever_the_batches(table: pa.Table) -> None:
    reader = opened(batches_of(table, 11), on_error="skip")
    first = next(reader)
    assert first.position is not None and first.position["offset"] == 10
    other = opened(lambda: iter(batches_of(table, 3)))
    other.load_state_dict(first.position)
    assert_same_batches(list(other), list(reader))


def test_a_position_beyond_the_last_row_is_refused(table: pa.Table) -> None:
    batches = list(opened([table]))
    reader = opened([table.slice(0, 40)])
    assert batches[6].position is not None
    reader.load_state_dict(batches[6].position)
    with pytest.raises(ConfigError, match=r"of list gave 40 rows; the position \d+ is not"):
        next(reader)


@pytest.mark.parametrize("name", ONCE)
def test_an_iterator_is_read_once(name: str, table: pa.Table) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read in epochs=2; pass a callable"):
        opened(ONCE[name](table), epochs=2)
    reader = opened(ONCE[name](table))
    batches = list(reader)
    with pytest.raises(ConfigError, match="it was read already; pass a callable"):
        list(reader)
    with pytest.raises(ConfigError, match="it was read already; pass a callable"):
        reader.load_state_dict(batches[2].position or {})
        next(reader)
    fresh = opened(ONCE[name](table))
    with pytest.raises(ConfigError, match="a position in it cannot be taken up; pass a callable"):
        fresh.load_state_dict(batches[2].position or {})
    fresh.load_state_dict(opened(ONCE[name](table)).state_dict())  # the beginning is no resume
    assert_same_batches(list(fresh), batches)


def test_a_loop_over_an_iterator_goes_on_after_a_break(table: pa.Table) -> None:
    expected = list(opened([table]))
    reader = opened(batch for batch in batches_of(table, 12))
    for _ in reader:
        break
    assert_same_batches(list(reader), expected[1:])


def test_a_callable_is_called_once_an_epoch(table: pa.Table) -> None:
    calls = []

    def read() -> Iterator[pa.RecordBatch]:
        calls.append(1)
        return iter(batches_of(table, 30))

    reader = opened(read, epochs=3)
    assert calls == [1]  # for its columns, and the first epoch goes on with it
    list(reader)
    assert len(calls) == 3
    again = Again(table)
    list(opened(again, epochs=2))
    assert again.calls == 2


def test_few_batches_are_held(table: pa.Table) -> None:
    made_so_far: list[weakref.ref[pa.RecordBatch]] = []
    most = 0

    def read() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for number in range(40):
            made = pa.record_batch({"label": [number % 2] * 50, "item": [number] * 50})
            made_so_far.append(weakref.ref(made))
            gc.collect()
            most = max(most, sum(one() is not None for one in made_so_far))
            yield made
            del made

    before = pa.total_allocated_bytes()
    largest = 0
    gc.freeze()  # only what is made from now on is looked at, 40 times
    try:
        for _ in opened(read, ignore=[], batch_size=50):
            largest = max(largest, pa.total_allocated_bytes() - before)
    finally:
        gc.unfreeze()
    assert most <= 1
    assert largest < 8 * 50 * 2 * 8


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"label": 5}, "label 5.0 in column 'label' is not 0, 1 or -1"),
        ({"age": float("inf")}, "column 'age' holds inf, not a finite number"),
        ({"w": -2.0}, "the weight in column 'w' is -2.0"),
    ],
)
def test_a_bad_row_is_named_by_its_batch(changed: dict[str, Any], message: str) -> None:
    row = {"label": 1, "item": 3, "age": 0.5, "w": 1.0}
    good = pa.Table.from_pylist([row] * 4)
    bad = pa.Table.from_pylist([row, row, {**row, **changed}, row])

    def read_day() -> Iterator[pa.Table]:
        yield from (good, good.slice(0, 0), bad.slice(1), good)

    config = {"ignore": [], "weight": "w", "batch_size": 2}
    with pytest.raises(
        DataError, match=re.escape(f"record batches of read_day, batch 3, row 2: {message}")
    ):
        list(opened(read_day, **config, on_error="raise"))
    reader = opened(read_day, **config)
    assert sum(len(batch) for batch in reader) == 10
    assert (reader.counts.examples, reader.counts.skipped) == (10, 1)


def test_a_batch_without_any_value_of_a_column_is_read_as_missing(table: pa.Table) -> None:
    first = pa.table({"label": [1, 0], "item": [[1], [2, 3]], "age": [0.5, 1.5]})
    for item in (pa.nulls(2), pa.array([[], [None]]), pa.nulls(2, pa.list_(pa.null(), 3))):
        empty = pa.table({"label": [1, 1], "item": item, "age": pa.nulls(2)})
        (batch,) = opened([first, empty], ignore=[], batch_size=9)
        assert batch.features["ads"].offsets.tolist() == [0, 1, 3, 3, 3]
        assert batch.dense.tolist() == [[0.5], [1.5], [0.0], [0.0]]


def test_batches_must_agree(table: pa.Table) -> None:
    first = pa.table({"label": [1, 0], "item": [1, 2], "age": [0.5, 1.5]})

    def refused(second: pa.Table, message: str) -> None:
        for data in ([first, second], lambda: iter([first, second]), iter([first, second])):
            reader = opened(data, ignore=[])
            with pytest.raises(DataError, match=message):
                list(reader)

    text = pa.table({"label": [1], "item": [1], "age": ["old"]})
    refused(text, r"batch 2: column 'age' is of type string, which does not fit that of .* batch 1")
    floats = pa.table({"label": [1], "item": [1.5], "age": [1.0]})
    refused(floats, r"batch 2: column 'item' is of type double")
    refused(pa.table({"label": [1], "item": [1]}), r"batch 2 has no column 'age'")
    refused(pa.table({"item": [1], "age": [1.0]}), r"batch 2 has no column 'label'")
    nested = pa.table({"label": [1], "item": [{"of": 1}], "age": [1.0]})
    refused(nested, r"batch 2: column 'item' is of type struct")
    twice = pa.Table.from_arrays([*first.columns, first["age"]], names=[*first.column_names, "age"])
    refused(twice, r"batch 2 has no column 'age' \(or more than one of this name\)")
    # Another order, more columns and other types of the same role are no matter.
    alike = pa.table({"new": [1], "age": pa.array([2], pa.int32()), "item": ["1"], "label": [1]})
    batches = list(opened([first, alike], ignore=[]))
    keys = batches[0].features["ads"].keys_L.tolist()
    assert keys[0] == keys[2] and batches[0].dense.tolist() == [[0.5], [1.5], [2.0]]


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (lambda: None, ConfigError, "of <lambda>: it gave None, not an iterator"),
        (lambda: 7, ConfigError, "it gave 7, not an iterator"),
        (lambda: "day.parquet", ConfigError, "it gave 'day.parquet'"),
        (lambda: {"label": [1]}, ConfigError, "it gave {'label'"),
        (lambda: ["day.parquet"], DataError, "batch 1: it is a str, not a pyarrow.RecordBatch"),
        (lambda: [{"label": 1}], DataError, "batch 1: it is a dict"),
        ([pa.array([1, 2])], DataError, "batch 1: it is a Int64Array"),
        (lambda: iter(()), DataError, "of <lambda> gives no record batch"),
        ([], ConfigError, "paths is empty"),
        (iter(()), ConfigError, "paths is empty"),
        (7, ConfigError, "7 is neither the name of a file"),
        (None, ConfigError, "None is neither the name of a file"),
        ([7.5], ConfigError, "7.5 is neither the name of a file"),
    ],
)
def test_what_gives_no_batches_is_refused(data: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        opened(data, ignore=[])


def test_something_else_among_the_batches_is_named(table: pa.Table) -> None:
    reader = opened([table, None])
    with pytest.raises(DataError, match=r"of list, batch 2: it is a NoneType, not a pyarrow"):
        list(reader)


def test_a_callable_that_gives_its_iterator_again_is_told(table: pa.Table) -> None:
    given = iter(batches_of(table, 20))
    reader = opened(lambda: given, epochs=2)
    with pytest.raises(ConfigError, match="it gave the iterator of the time before"):
        list(reader)
    same = Same(table)
    reader = opened(same, epochs=2)
    with pytest.raises(ConfigError, match="of Same: it gave the iterator of the time before"):
        list(reader)
    rest = iter(batches_of(table, 20))
    reader = opened(lambda: (batch for batch in rest), epochs=2)
    with pytest.raises(ConfigError, match="gave record batches before, and none this time"):
        list(reader)


def test_errors_of_the_source_say_where(table: pa.Table) -> None:
    def fails() -> Iterator[pa.Table]:
        yield table
        raise KeyError("the store is gone")

    reader = opened(fails)
    with pytest.raises(KeyError) as caught:
        list(reader)
    assert caught.value.__notes__ == ["record batches of fails, batch 2"]

    def arrow_fails() -> Iterator[pa.Table]:
        yield table
        raise pa.ArrowInvalid("a stream that ends early")

    reader = opened(arrow_fails)
    with pytest.raises(DataError, match="of arrow_fails, batch 2: a stream that ends early"):
        list(reader)
    once = ds.Scanner.from_batches(table.to_batches(), schema=table.schema)
    reader = opened(once)
    list(reader)
    with pytest.raises(ConfigError, match="it was read already; pass a callable"):
        list(reader)


def test_a_log_without_rows_yields_nothing(table: pa.Table) -> None:
    none = table.slice(0, 0)
    for data in ([none], none, lambda: iter([none, none]), ds.dataset(none)):
        assert list(opened(data, epochs=2)) == []


@pytest.mark.parametrize("kind", ["criteo", "libsvm", "libffm", "slots"])
def test_formats_of_text_are_refused(kind: str, table: pa.Table) -> None:
    with pytest.raises(ConfigError, match=f"read as parquet, and the log is said to be {kind}"):
        open_reader([table], tables=TABLES, config=ReaderConfig(format=kind))


def test_dictionaries_are_their_values() -> None:
    """Those that parquet does not have: a null among the values, and text of another layout."""
    places = pa.array([0, 1, 2, 0], pa.int8())  # no null of their own

    def coded(values: pa.Array) -> pa.Array:
        return pa.DictionaryArray.from_arrays(places, values)

    columns = {
        "label": pa.array([1, 0, 1, 0]),
        "view": coded(pa.array(["x", None, "y"], pa.string_view())),
        "kind": coded(pa.array(["x", None, "y"])),
        "price": coded(pa.array([1.5, None, 2.5])),
    }
    plain = {
        name: pa.array(column.to_pylist(), pa.string() if name in ("view", "kind") else None)
        for name, column in columns.items()
    }
    options = {"ignore": [], "dense_transform": "signed_log1p"}
    expected = list(opened([pa.table(plain)], **options))
    found = list(opened([pa.table(columns), pa.table(columns).slice(4)], **options))
    assert_same_batches(found, expected)
    assert expected[0].dense[1].item() == -0.5


def test_callables_and_files_make_one_log(table: pa.Table, tmp_path: Path) -> None:
    parts = [table.slice(0, 60), table.slice(60, 50), table.slice(110)]
    paths = []
    for number, part in enumerate(parts):
        paths.append(tmp_path / f"{number}.parquet")
        pq.write_table(part, paths[-1])
    options = {"shuffle_files": 2, "epochs": 3, "batch_size": 7}
    expected = without_files(list(opened(paths, **options)))
    days = [lambda part=part: iter(part.to_batches(8)) for part in parts]
    assert_same_batches(without_files(list(opened(days, **options))), expected)
    datasets = [ds.dataset(part) for part in parts]
    assert_same_batches(without_files(list(opened(datasets, **options))), expected)
    mixed = [days[0], paths[1], days[2]]
    assert_same_batches(without_files(list(opened(mixed, **options))), expected)
    assert_same_batches(list(opened(tmp_path.glob("0.*"))), list(opened(paths[0])))


def test_a_features_file_is_applied(table: pa.Table, parquet: Path) -> None:
    text = '[columns.age]\nkind = "dense"\nbuckets = 4\n[columns.count]\nkind = "dense"\n'
    text += '[columns.seen]\nkind = "ignored"\n'

    def described(data: Any) -> list[hps.Batch]:
        config = ReaderConfig(batch_size=20, on_error="skip")
        features = Features.from_toml(text)
        reader = open_with_features(data, tables=TABLES, config=config, features=features)
        return without_files(list(reader))

    expected = described(parquet)
    for name in ("callable", "list", "dataset"):
        assert_same_batches(described(AGAIN[name](table)), expected)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_pipeline_reads_batches(depth: int, table: pa.Table, tmp_path: Path) -> None:
    expected = list(opened([table]))
    config = hps.Config(
        path=str(tmp_path / "store"),
        tables=TABLES,
        dram=hps.DramCacheConfig(bytes="16MiB"),
    )
    with hps.ParameterServer(config) as server:
        reader = opened(lambda: iter(batches_of(table, 9)))
        with hps.Pipeline(reader, server, depth=depth) as batches:
            taken = [next(iter(batches)).labels for _ in range(3)]
            position = batches.state_dict()
        assert [one.tolist() for one in taken] == [one.labels.tolist() for one in expected[:3]]
        assert reader.state_dict() == expected[2].position
        assert_same_batches(list(reader), expected[3:])
        assert position["examples"] == expected[1].position["examples"]
        once = opened(batch for batch in batches_of(table, 9))
        with hps.Pipeline(once, server, depth=depth) as batches:
            next(iter(batches))  # what was read ahead is lost, and says so
        if depth:
            with pytest.raises(ConfigError, match="it was read already; pass a callable"):
                next(once)


def test_a_model_is_measured_on_batches(parquet: Path, table: pa.Table, tmp_path: Path) -> None:
    small: dict[str, Any] = {"dim": 3, "hidden": (8,), "batch_size": 32, "dram": "8MiB"}
    small |= {"torch_threads": 1, "threads": 1, "depth": 0, "on_error": "skip"}
    small |= {"ignore": ["seen"]}
    store = tmp_path / "store"
    hps.train.train(hps.train.TrainOptions(data=[parquet], store=store, **small))
    with hps.Model.load(store) as model:
        expected = evaluate_model(model.module, model.open_reader([parquet]))
        for name in ("callable", "list", "dataset"):
            reader = model.open_reader(AGAIN[name](table))
            assert evaluate_model(model.module, reader) == expected
        once = model.open_reader(iter(chunked(table)))
        assert evaluate_model(model.module, once)["examples"] == expected["examples"] > 100


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/formats.md").read_text(encoding="utf-8")
    section = page.split("## Record batches of arrow\n")[1].split("\n## ")[0]
    example = section.split("```python\n")[1].split("```")[0]
    exec(compile(example, "docs/formats.md", "exec"), {})
    assert capsys.readouterr().out == "1200 examples in 2 epochs\n"


def test_a_source_has_no_bytes(table: pa.Table) -> None:
    source = BatchSource(table)
    with pytest.raises(ConfigError, match="record batches have no bytes"):
        source.open()
    assert not source.samefile("x")
    assert repr(BatchSource(len)) == "BatchSource(<built-in function len>)"
