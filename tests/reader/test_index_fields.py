"""Fields of libsvm and dense fields of libffm: what users may write, and what lines become.

Above it: pytest. Below it: hps/reader/, csrc/reader/. The twin looks an index up range by range.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_twin import Example as Line
from reader_twin import assert_same, assert_same_batches, examples_of, open_log, tables_of

import hps
from hps import _C
from hps.reader import ReaderConfig
from hps.reader.index_fields import IndexFields

LAST = 2**64 - 1
FIELDS = {"user": "0-9", "b\u00fcch er": ["100-199", 250], "gone": 300, "rest": "*"}


def field_twin(given: Mapping[str, Any], index: int) -> str | None:
    """By looking at every range."""
    for name, said in given.items():
        for one in said if isinstance(said, list) else [said]:
            if one != "*":
                ends = [int(end) for end in str(one).split("-")]
                if ends[0] <= index <= ends[-1]:
                    return name
    return next((name for name, said in given.items() if said == "*"), None)


def line_twin(given: Mapping[str, Any], text: str, dense: Mapping[int, int]) -> Line:
    """A good line of libsvm; `dense`: index -> its place."""
    label, *tokens = text.split()
    line = Line(1.0 if label == "1" else 0.0, [0.0] * len(dense))
    for token in tokens:
        index, value = token.split(":")
        if int(index) in dense:
            line.dense[dense[int(index)]] = float(value)
            continue
        name = field_twin(given, int(index))
        assert name is not None
        line.bags.setdefault(name, []).append((int(index), float(value)))
    return line


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def batch(log: Path, kind: str = "libsvm", **options: Any) -> hps.Batch:
    (found,) = list(open_log(log, kind, batch_size=999, **options))
    return found


LINES = [
    "1 3:0.5 100:1 250:2 9:0.25",
    f"0 {LAST}:1 {2**63}:-2 199:1e-3",
    "-1",
    "1 5:1 5:2 5:1",  # an index that comes again is two keys of a bag
    "0 250:1 0:1 300:7 10:1 99:1 200:1",
]


def test_every_field_is_a_feature_of_its_own_in_the_order_of_the_fields(tmp_path: Path) -> None:
    reader = open_log(write(tmp_path / "log", *LINES), "libsvm", fields=FIELDS)
    assert reader.features == {"t0": ("user", "b\u00fcch er", "gone", "rest")}
    assert reader.num_dense == 0
    examples = examples_of(reader, reader.features)
    assert_same(examples, [line_twin(FIELDS, line, {}) for line in LINES])
    assert examples[3].bags == {"user": [(5, 1.0), (5, 2.0), (5, 1.0)]}


def test_a_field_that_no_table_takes_is_passed_over(tmp_path: Path) -> None:
    log = write(tmp_path / "log", *LINES)
    reader = open_log(log, "libsvm", fields=FIELDS, tables=tables_of(["rest"], ["user"]))
    assert reader.features == {"t0": ("rest",), "t1": ("user",)}
    for line, example in zip(LINES, examples_of(reader, reader.features), strict=True):
        bags = line_twin(FIELDS, line, {}).bags
        assert example.bags == {name: bags[name] for name in ("rest", "user") if name in bags}
    with pytest.raises(hps.ConfigError, match=r"does not have: \['index'\]"):
        open_log(log, "libsvm", fields=FIELDS, tables=tables_of(["index"]))


def test_hashed_keys_are_those_of_the_text_with_the_field(tmp_path: Path) -> None:
    log = write(tmp_path / "log", "1 007:1 7:2 0100:1")
    reader = open_log(log, "libsvm", fields=FIELDS, hash_keys=True)
    (line,) = examples_of(reader, reader.features)
    assert line.bags == {
        "user": [(hps.key_of("user", "007"), 1.0), (hps.key_of("user", "7"), 2.0)],
        "b\u00fcch er": [(hps.key_of("b\u00fcch er", "0100"), 1.0)],
    }
    with pytest.raises(hps.DataError, match="line 1: key 'x' is not a whole number"):
        batch(write(tmp_path / "bad", "1 x:1"), fields=FIELDS, hash_keys=True)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1 10:1", "index 10 is in no range of the fields"),
        (f"1 3:1 {LAST}:1", f"index {LAST} is in no range"),
        ("1 -3:1", "key '-3' is not a whole number"),
        (f"1 {2**64}:1", f"key '{2**64}' is not a whole number from 0 to 2^64 - 1"),
        ("1 20:1 20:2", "index 20 is there twice; it is dense, one number an example"),
        ("1 20:inf", "value 'inf' is not a finite number"),
        ("3:1", "the line begins with '3:1' and has no label; expected 0, 1 or -1 before it"),
    ],
)
def test_a_line_that_no_field_fits_is_named(tmp_path: Path, line: str, why: str) -> None:
    log = write(tmp_path / "log", "1 3:1", "", line, "0 20:4")
    options = {"fields": {"user": "0-9", "age": 20}, "dense_columns": ["age"]}
    with pytest.raises(hps.DataError) as caught:
        batch(log, **options)
    assert f"{log}, line 3: {why}" in str(caught.value)
    reader = open_log(log, "libsvm", on_error="skip", **options)
    examples = examples_of(reader, reader.features)
    assert reader.counts.skipped == 1
    assert [one.dense for one in examples] == [[0.0], [4.0]]  # nothing of the bad one is left
    assert [one.bags for one in examples] == [{"user": [(3, 1.0)]}, {}]


def test_dense_fields_are_columns_and_an_index_that_is_not_there_is_zero(tmp_path: Path) -> None:
    fields = {"age": 20, "x": ["31-32", 30, 40], "user": "*"}
    lines = ["1 30:1.5 3:1 40:-2", "0 20:7 32:0.1 31:3 33:1", "0"]
    log = write(tmp_path / "log", *lines)
    reader = open_log(log, "libsvm", fields=fields, dense_columns=["x", "age"], threads=2)
    columns = [use.name for use in reader.columns if use.kind == "dense"]
    assert columns == ["x 30", "x 31", "x 32", "x 40", "age"] and reader.num_dense == 5
    places = {30: 0, 31: 1, 32: 2, 40: 3, 20: 4}
    examples = examples_of(reader, reader.features)
    assert_same(examples, [line_twin(fields, line, places) for line in lines])
    for wrong, why in (
        ({"dense_columns": ["user"]}, "the rest of the indices"),
        ({"dense_columns": ["nobody"]}, r"\['nobody'\]: in libsvm they are fields"),
        ({"dense_columns": ["age"], "dense": 2}, "ReaderConfig.dense=2"),
        ({"dense_columns": ["age"], "tables": tables_of(["age"])}, "names .'age'., whose values"),
        ({"dense_columns": ["age"], "fields": {"age": "0-70000"}}, "70,001; 65,536 may be"),
        ({"dense_columns": ["age"], "fields": None}, "names of fields; say which indices"),
        (
            {"dense_columns": ["x", "x 5"], "fields": {"x": "4-5", "x 5": 9}},
            "2 dense values are called 'x 5'",
        ),
    ):
        with pytest.raises(hps.ConfigError, match=why):
            open_log(log, "libsvm", **{"fields": fields, **wrong})


def test_dense_fields_of_libffm_are_the_values_whatever_the_index(tmp_path: Path) -> None:
    log = write(tmp_path / "log", "1 0:0:0.5 \u00e9:3:1 7:9:2", "0 7:4:1", "-1 \u00e9:3:2 0:77:-1")
    reader = open_log(log, "libffm", dense_columns=["7", "0"])
    assert reader.features == {"t0": ("\u00e9",)} and reader.num_dense == 2
    assert [use.name for use in reader.columns if use.kind == "dense"] == ["7", "0"]
    examples = examples_of(reader, reader.features)
    assert [one.dense for one in examples] == [[2.0, 0.5], [1.0, 0.0], [0.0, -1.0]]
    assert [one.bags for one in examples] == [{"\u00e9": [(3, 1.0)]}, {}, {"\u00e9": [(3, 2.0)]}]
    assert reader.state_dict()["dense_columns"] == ["7", "0"]
    named = open_log(log, "libffm", dense_columns=["7"], tables=tables_of(["\u00e9", "none"]))
    assert [one.dense for one in examples_of(named, named.features)] == [[2.0], [1.0], [0.0]]
    twice = write(tmp_path / "twice", "1 0:0:1 0:1:1 7:1:1")
    with pytest.raises(hps.DataError, match="line 1: field '0' is there twice; it is dense"):
        batch(twice, "libffm", dense_columns=["0"])
    with pytest.raises(hps.ConfigError, match=r"\['8'\]: the log has no such field; it has"):
        _ = open_log(log, "libffm", dense_columns=["8"]).features
    with pytest.raises(hps.ConfigError, match=r"names .'0'., whose values are dense"):
        open_log(log, "libffm", dense_columns=["0"], tables=tables_of(["0"]))


_INDEX = st.one_of(st.integers(0, 40), st.sampled_from([2**63 - 1, 2**63, LAST - 1, LAST]))


@st.composite
def fields_and_lines(draw: st.DrawFn) -> tuple[dict[str, Any], list[str], list[str]]:
    """Fields, lines that fit them, and which of the fields are dense."""
    cuts = sorted(draw(st.sets(_INDEX, min_size=1, max_size=12)))
    names = ["a", "b\u00e9", "c d"]
    given: dict[str, list[Any]] = {}
    for low, high in zip(cuts, [*cuts[1:], LAST + 1], strict=True):
        last = draw(st.integers(low, min(high - 1, low + 20)))
        name = draw(st.sampled_from([*names, None]))
        if name is not None:
            given.setdefault(name, []).insert(0, low if low == last else f"{low}-{last}")
    fields: dict[str, Any] = dict(given)
    if draw(st.booleans()) or not fields:
        fields["rest"] = "*"
    dense = [name for name in given if draw(st.booleans())]
    lines = []
    for _ in range(draw(st.integers(1, 6))):
        indices = [one for one in draw(st.lists(_INDEX, max_size=8)) if field_twin(fields, one)]
        seen: set[int] = set()
        kept = [
            one
            for one in indices
            if field_twin(fields, one) not in dense or not (one in seen or seen.add(one))
        ]
        tokens = [f" {one}:{draw(st.integers(-3, 3))}" for one in kept]
        lines.append(f"{draw(st.sampled_from('01'))}{''.join(tokens)}")
    return fields, lines, dense


@settings(max_examples=300)
@given(fields_and_lines())
def test_any_fields_divide_any_lines_as_the_twin_does(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[dict[str, Any], list[str], list[str]]
) -> None:
    fields, lines, dense = case
    parsed = IndexFields.of(fields)
    assert IndexFields.of(parsed.to_dict()) == parsed
    for index in (0, 1, 7, 39, 41, 2**63, LAST):
        assert parsed.field_of(index) == field_twin(fields, index)
    places: dict[int, int] = {}
    for name in dense:
        places |= {index: len(places) + n for n, index in enumerate(parsed.indices(name))}
    log = write(tmp_path_factory.mktemp("any") / "log", *lines)
    reader = open_log(log, "libsvm", fields=fields, dense_columns=dense or None)
    assert reader.num_dense == len(places)
    examples = examples_of(reader, reader.features)
    assert_same(examples, [line_twin(fields, line, places) for line in lines])


def test_parts_threads_and_positions_cut_the_same_batches(tmp_path: Path) -> None:
    rows = [
        f"{row % 2} {row % 10}:1 20:{row / 8} {100 + row % 100}:1 {300 + row}:2"
        for row in range(9000)
    ]
    log = write(tmp_path / "log", *rows)
    fields = {"user": "0-9", "age": 20, "item": "100-199", "rest": "*"}
    options = {"fields": fields, "dense_columns": ["age"], "batch_size": 999}
    alone = list(open_log(log, "libsvm", **options))
    assert_same_batches(list(open_log(log, "libsvm", threads=3, **options)), alone)
    assert alone[0].dense[:4, 0].tolist() == [0.0, 0.125, 0.25, 0.375]
    other = open_log(log, "libsvm", **options)
    other.load_state_dict(alone[4].position)
    assert_same_batches(list(other), alone[5:])
    parts = [next(open_log(log, "libsvm", part=(rank, 2), **options)) for rank in (0, 1)]
    joined = np.concatenate([part.dense.numpy() for part in parts])
    np.testing.assert_array_equal(joined, alone[0].dense.numpy())


def test_a_position_of_other_fields_is_refused(tmp_path: Path) -> None:
    log = write(tmp_path / "log", "1 3:1", "0 4:1", "0 4:1", "1 5:1")
    reader = open_log(log, "libsvm", fields={"a": "0-3", "b": "4-9"})
    state = next(reader).position
    assert state["fields"] == {"a": "0-3", "b": "4-9"}
    for fields in ({"a": "0-4", "b": "5-9"}, None, {"b": "4-9", "a": "0-3"}):
        with pytest.raises(hps.ConfigError, match=r"the position is of"):
            open_log(log, "libsvm", fields=fields).load_state_dict(state)
    with pytest.raises(hps.ConfigError, match="field 'a' has the indices None, this reader"):
        plain = next(open_log(log, "libsvm")).position
        open_log(log, "libsvm", fields={"a": "*"}).load_state_dict(plain)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"a": "5-3"}, "a: '5-3' must be an index, a range"),
        ({"a": []}, r"a: \[\] must be"),
        ({"a": ""}, "a: '' must be"),
        ({"a": -1}, "a: -1 must be"),
        ({"a": "-1"}, "a: '-1' must be"),
        ({"a": LAST + 1}, "must be an index"),
        ({"a": str(LAST + 1)}, "must be an index"),
        ({"a": True}, "a: True must be"),
        ({"a": 1.0}, r"a: 1\.0 must be"),
        ({"a": "\u0663"}, "must be an index"),
        ({"a": "1-2-3"}, "must be an index"),
        ({"a": [[1]]}, "must be an index"),
        ({"a": ["*"]}, "must be an index"),
        ({"a": None}, "a: None must be"),
        ({"a": "9" * 5000}, "must be an index"),
        ({"a": "0-9", "\u00e9": "9-12"}, "fields.\u00e9: 9 is in field 'a', too"),
        ({"a": "0-99", "b": ["200", "5-7"]}, "fields.b: 5-7 is in field 'a', too"),
        ({"a": [3, "1-3"]}, "a: 3 is in this field twice"),
        ({"a": "*", "b": "*"}, "what 'a' has; one field has the rest"),
        ({"": 1}, "is not a text of at least one letter"),
        ({3: 1}, "is not a text of at least one letter"),
        ([1], "is no table"),
    ],
)
def test_fields_that_are_none_are_refused_by_name(fields: Any, why: str) -> None:
    with pytest.raises(hps.ConfigError, match=why) as caught:
        ReaderConfig(format="libsvm", fields=fields)
    assert str(caught.value).startswith("ReaderConfig.fields")


def test_fields_and_dense_fields_of_other_formats_are_refused() -> None:
    assert ReaderConfig(format="libsvm", fields={}).fields is None
    with pytest.raises(hps.ConfigError, match="of the indices of libsvm, and the log is read as"):
        ReaderConfig(format="libffm", fields={"a": 1})
    with pytest.raises(hps.ConfigError, match=r"dense_columns=.*the log is read as slots"):
        ReaderConfig(format="slots", dense_columns=["1"])
    with pytest.raises(hps.ConfigError, match="slot_layout='key' must be"):
        ReaderConfig(format="slots", slot_layout="key")
    with pytest.raises(hps.ConfigError, match="slot_layout='key:slot' must be"):
        ReaderConfig(format="libsvm", slot_layout="key:slot")


@pytest.mark.parametrize(
    ("ranges", "num_dense"),
    [
        ([(5, 3, 0)], 0),
        ([(0, 5, 0), (5, 9, 0)], 0),
        ([(9, 9, 0), (0, 1, 0)], 0),
        ([(0, 5, 1)], 0),
        ([(0, 5, 1)], 5),
        ([(0, 2**64 - 1, 1)], 5),
    ],
)
def test_the_parser_takes_no_ranges_that_lead_outside(ranges: Any, num_dense: int) -> None:
    schema = _C.TextSchema("libsvm", [(b"a", 0, 0)], [1])
    schema.num_dense = num_dense
    schema.set_index_ranges(ranges)
    with pytest.raises(hps.ConfigError, match="schema does not fit"):
        _C.TextParser(schema, _C.ThreadPool(1))
