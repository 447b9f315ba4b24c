"""Parquet logs: roles and types of columns, nulls, resume, bad rows, damaged files."""

import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_twin import (
    Example,
    assert_same,
    assert_same_batches,
    examples_of,
    key_twin,
    open_log,
    tables_of,
)

import hps

LABELS = [0, 1, 1, 0, 1, 0, 0, 1, 1, 0]
AGES = [0.5, None, 2.0, -1.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
USERS = [1, 2**63 - 1, -1, None, 5, 6, 7, 8, 9, -(2**63)]
ITEMS = [0, 2**64 - 1, 2**63, 3, 4, None, 6, 7, 8, 9]
CITIES = ["Oslo", "", None, "Rio", "a name of more than thirty-two bytes in all", *"abcde"]
GENRES = [["x", "y"], [], None, ["z"], ["x", None, "x"], [""], ["a"], ["b"], ["c"], ["d", "e"]]
HISTORY = [[1, 2], None, [3], [], [4, None, 5], [6], [7], [8], [9, 9], [2**63 - 1]]
BOUGHT = [True, False, None, True, False, True, False, True, False, True]
PRICES = [Decimal(row) / 4 for row in range(9)] + [None]
MARKS = [[True], [], None, [False, True], [None], *[[True]] * 5]
CODES = [b"ab", b"\0\1", None, *[b"zz"] * 7]
FEATURES = ("user", "item", "city", "kind", "genres", "history", "bought", "marks", "code", "view")


def log_table():
    return pa.table(
        {
            "user": pa.array(USERS, pa.int64()),
            "age": pa.array(AGES, pa.float32()),
            "label": pa.array(LABELS, pa.int8()),
            "item": pa.array(ITEMS, pa.uint64()),
            "city": pa.array(CITIES),
            "kind": pa.array(CITIES).dictionary_encode(),
            "genres": pa.array(GENRES, pa.list_(pa.string())),
            "history": pa.array(HISTORY, pa.large_list(pa.int64())),
            "score": pa.array([row / 4 for row in range(10)], pa.float64()),
            "bought": pa.array(BOUGHT),
            "price": pa.array(PRICES, pa.decimal128(9, 2)),
            "marks": pa.array(MARKS, pa.list_(pa.bool_())),
            "code": pa.array(CODES, pa.binary(2)),
            "view": pa.array(CITIES, pa.string_view()),
            "seen": pa.array([None] * 10, pa.timestamp("s")),
        }
    )


def open_parquet(path, **options):
    """A reader of all columns but the one that nothing can be made of."""
    return open_log(path, "parquet", **{"ignore": ["seen"], **options})


def expected_rows(hash_keys=True):
    def number(feature, value):
        return key_twin(feature, str(value)) if hash_keys else value % 2**64

    rows = []
    for row in range(10):
        bags = {
            "user": [] if USERS[row] is None else [number("user", USERS[row])],
            "item": [] if ITEMS[row] is None else [number("item", ITEMS[row])],
            "city": [] if CITIES[row] is None else [key_twin("city", CITIES[row])],
            "kind": [] if CITIES[row] is None else [key_twin("kind", CITIES[row])],
            "genres": [key_twin("genres", word) for word in GENRES[row] or () if word is not None],
            "history": [number("history", key) for key in HISTORY[row] or () if key is not None],
            "bought": [] if BOUGHT[row] is None else [number("bought", int(BOUGHT[row]))],
            "marks": [number("marks", int(mark)) for mark in MARKS[row] or () if mark is not None],
            "view": [] if CITIES[row] is None else [key_twin("view", CITIES[row])],
            "code": [] if CODES[row] is None else [key_twin("code", CODES[row].decode())],
        }
        rows.append(
            Example(
                float(LABELS[row]),
                [AGES[row] or 0.0, row / 4, float(PRICES[row] or 0)],
                {name: [(key, 1.0) for key in keys] for name, keys in bags.items() if keys},
            )
        )
    return rows


def write_log(path, table=None, **options):
    pq.write_table(
        log_table() if table is None else table, path, **{"row_group_size": 4, **options}
    )
    return path


@pytest.mark.parametrize("hash_keys", [False, True, None])
def test_reads_every_type_of_column(tmp_path, hash_keys):
    reader = open_parquet(write_log(tmp_path / "log.parquet"), hash_keys=hash_keys)
    assert reader.features == {"t0": FEATURES}
    assert reader.dense_columns == ["age", "score", "price"]
    assert_same(examples_of(reader, reader.features), expected_rows(hash_keys is not False))


def test_tables_share_out_the_columns(tmp_path):
    tables = [*tables_of(["item", "user"]), hps.TableConfig(name="rest", dim=2)]
    reader = open_parquet(write_log(tmp_path / "log.parquet"), tables=tables)
    assert reader.features["rest"] == FEATURES[2:]
    assert_same(examples_of(reader, reader.features), expected_rows())
    with pytest.raises(hps.ConfigError, match=r"\['seen'\]; it has \['user', 'item'"):
        open_log(tmp_path / "log.parquet", "parquet", tables=tables_of(["seen"]))
    reader = open_log(tmp_path / "log.parquet", "parquet", tables=tables_of(["city"]))
    assert [set(row.bags) for row in examples_of(reader, reader.features)][:3] == [
        {"city"},
        {"city"},
        set(),
    ]


def test_resume_equals_uninterrupted_at_every_batch(tmp_path):
    paths = [write_log(tmp_path / f"{idx}.parquet", row_group_size=idx + 2) for idx in range(3)]
    for size, drop_last in ((1, False), (4, True), (7, False), (100, False)):
        options = {"epochs": 2, "batch_size": size, "drop_last": drop_last}
        batches = list(open_parquet(paths, **options))
        for done in range(len(batches) + 1):
            reader = open_parquet(paths, **options)
            state = reader.state_dict()
            for _ in range(done):
                state = next(reader).position
            other = open_parquet(paths, **options)
            other.load_state_dict(json.loads(json.dumps(state)))
            assert_same_batches(list(other), batches[done:])


@pytest.mark.parametrize("row_group_size", [3, 4, 100])
def test_bad_rows_are_named_or_skipped(tmp_path, row_group_size):
    table = log_table()
    labels = pa.array([0, 1, None, 3, 1, 0, 0, 1, 1, 0], pa.int8())
    scores = pa.array([0.0] * 8 + [np.nan, 1.0])
    table = table.set_column(2, "label", labels).set_column(8, "score", scores)
    log = write_log(tmp_path / "log.parquet", table, row_group_size=row_group_size)
    with pytest.raises(
        hps.DataError, match=r"log\.parquet, row 3: the label in column 'label' is missing"
    ):
        list(open_parquet(log))
    options = {"on_error": "skip", "batch_size": 2}
    reader = open_parquet(log, **options)
    batches = list(reader)
    assert (reader.counts.examples, reader.counts.skipped) == (7, 3)
    rows = [expected_rows()[row] for row in (0, 1, 4, 5, 6, 7, 9)]
    found = examples_of(batches, reader.features)
    assert [row.bags for row in found] == [row.bags for row in rows]
    for done in range(1, len(batches)):
        other = open_parquet(log, **options)
        other.load_state_dict(batches[done - 1].position)
        assert_same_batches(list(other), batches[done:])
        assert other.counts.skipped == 3


def test_files_that_do_not_fit_are_refused(tmp_path):
    log = write_log(tmp_path / "log.parquet")
    with pytest.raises(hps.ConfigError, match=r"no column 'click' for the label"):
        open_log(log, "parquet", label="click")
    with pytest.raises(hps.ConfigError, match=r"dense=5, but .* has 3 columns of floats"):
        open_log(log, "parquet", dense=5)
    with pytest.raises(hps.DataError, match=r"'city' cannot be a label"):
        list(open_parquet(log, label="city"))
    other = write_log(tmp_path / "other.parquet", log_table().drop_columns(["city"]))
    with pytest.raises(hps.DataError, match=r"other\.parquet has no column 'city'"):
        list(open_parquet([log, other]))
    damaged = log.read_bytes()[:-30] + b"\xff" * 22 + log.read_bytes()[-8:]
    for content, words in {
        b"": "it is empty",
        b"PAR": "it begins with b'PAR' and not with",
        b"label,a\n0,1\n": "it begins with b'labe' .* a model reads one format alone",
        b"PAR1 nonsense": "it begins as one and has no footer at its end",
        log.read_bytes()[:-20]: "it begins as one and has no footer at its end",
        damaged: "its footer is damaged: ",
    }.items():
        other.write_bytes(content)
        with pytest.raises(hps.DataError, match=rf"other\.parquet is not a parquet file: {words}"):
            open_parquet(other)
    state = {**next(open_parquet(log)).position, "offset": 11}
    reader = open_parquet(log)
    reader.load_state_dict(state)
    with pytest.raises(hps.ConfigError, match="has 10 rows; the position 11"):
        next(reader)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 1),
            st.none() | st.integers(0, 2**64 - 1),
            st.none() | st.text(max_size=40),
            st.none() | st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=4),
        ),
        min_size=1,
        max_size=20,
    ),
    size=st.integers(1, 8),
)
def test_random_rows_come_back(tmp_path, rows, size):
    labels, numbers, words, lists = zip(*rows, strict=True)
    table = pa.table(
        {
            "label": pa.array(labels),
            "number": pa.array(numbers, pa.uint64()),
            "word": pa.array(words, pa.string()),
            "list": pa.array(lists, pa.list_(pa.int64())),
        }
    )
    reader = open_log(write_log(tmp_path / "log.parquet", table), "parquet", batch_size=size)
    found = examples_of(reader, reader.features)
    assert [row.label for row in found] == list(labels)
    for row, number, word, items in zip(found, numbers, words, lists, strict=True):
        key = None if number is None else key_twin("number", str(number))
        assert row.bags.get("number", []) == ([] if number is None else [(key, 1.0)])
        assert row.bags.get("word", []) == ([] if word is None else [(key_twin("word", word), 1.0)])
        keys = [key_twin("list", str(key)) for key in items or () if key is not None]
        assert [key for key, _ in row.bags.get("list", [])] == keys
