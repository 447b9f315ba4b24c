"""Keys of whole columns against hashes of each value: csv against Python's own csv module, columns
of arrow in every layout, bags joined, crosses, scaling."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hps
from hps import _C
from hps.reader import ReaderConfig, csv_files, open_reader
from hps.reader.columns import NONE, NULL, NULL_OR_EMPTY, keys_of_columns
from hps.reader.dense import signed_log1p
from tests.reader.reader_twin import xxh64_twin

FIELDS = st.sampled_from(
    [
        *("", "", "a", "7", "007", "NA", "nan", " x ", "é", "日本", "w" * 150, "\0", "\ufeff"),
        *('q"q', '"', "a,b", "n\nn", "\n", "\r\n", "\t", ";", "|", "'", "\\", "1e5"),
    ]
)
NUMBERS = st.sampled_from(["0.5", "-2.25", "", "NA", "1e3", " 4.5 ", "+8"])


@settings(max_examples=150)
@given(data=st.data())
def test_odd_csv_says_what_pythons_own_reader_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever the delimiter, line ends, quotes, borders of blocks, and threads."""
    order = data.draw(st.permutations(["label", "price", "a", "b", "c"]))
    row = st.fixed_dictionaries(
        {"label": st.sampled_from("01"), "price": NUMBERS, "a": FIELDS, "b": FIELDS, "c": FIELDS}
    )
    rows = data.draw(st.lists(row, min_size=1, max_size=40))
    text = io.StringIO()
    writer = csv.DictWriter(
        text,
        order,
        delimiter=data.draw(st.sampled_from(",\t;|")),
        lineterminator=data.draw(st.sampled_from(["\n", "\r\n"])),
        quoting=data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
    )
    writer.writeheader()
    writer.writerows(rows)
    written = text.getvalue()
    if data.draw(st.booleans()):
        written = written.rstrip("\r\n")  # of the last line, no end
    if data.draw(st.booleans()):
        written = "\ufeff" + written
    log = tmp_path_factory.mktemp("csv") / "log.csv"
    log.write_bytes(written.encode())
    tables = [hps.TableConfig(name="ads", dim=2, features=["a", "b", "c"])]
    config = ReaderConfig(
        batch_size=data.draw(st.integers(1, 9)),
        threads=data.draw(st.sampled_from([1, 2])),
        dense_columns=["price"],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "BLOCK_BYTES", data.draw(st.sampled_from([800, 2000, 1 << 20])))
        batches = list(open_reader([log], tables=tables, config=config))
    expected = [
        [[] if not one[name] else [hps.key_of(name, one[name])] for one in rows] for name in "abc"
    ]
    found: list[list[list[int]]] = [[], [], []]
    for batch in batches:
        ids = batch.features["ads"]
        keys, offsets = ids.keys_L.numpy().view(np.uint64).tolist(), ids.offsets.tolist()
        bags = [keys[offsets[bag] : offsets[bag + 1]] for bag in range(len(offsets) - 1)]
        for place in range(3):
            found[place] += bags[place * len(batch) : (place + 1) * len(batch)]
    assert found == expected
    assert [label for one in batches for label in one.labels.tolist()] == [
        float(one["label"]) for one in rows
    ]
    assert [value for one in batches for value in one.dense.flatten().tolist()] == [
        0.0 if one["price"] in ("", "NA") else float(one["price"]) for one in rows
    ]


TYPES = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view()]
TEXTS = st.none() | st.sampled_from(["", "a", "é\0", "x" * 40]) | st.text(max_size=9)


def expected_keys(values: Sequence[str | None], seed: int, rule: int) -> list[list[int]]:
    """Of each value its keys, one or none."""
    bags = []
    for value in values:
        text = "" if value is None else value
        is_missing = (value is None and rule != NONE) or (not text and rule == NULL_OR_EMPTY)
        bags.append([] if is_missing else [xxh64_twin(text.encode(), seed)])
    return bags


@given(data=st.data())
def test_columns_of_every_layout_are_hashed_value_by_value(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 20))
    columns, expected = [], []
    for _ in range(data.draw(st.integers(0, 4))):
        values = data.draw(st.lists(TEXTS, min_size=count, max_size=count))
        around = data.draw(st.lists(TEXTS, max_size=9))
        column: Any = pa.array([*around, *values, *around], pa.string())
        column = column.cast(data.draw(st.sampled_from(TYPES)))
        column = column.slice(len(around), count)  # bits and offsets begin elsewhere
        seed = data.draw(st.sampled_from([0, 2**64 - 1, 12345]))
        rule = data.draw(st.sampled_from([NULL, NULL_OR_EMPTY, NONE]))
        columns.append((column, seed, rule))
        expected.append(expected_keys(values, seed, rule))
    for (keys, offsets), bags in zip(keys_of_columns(columns, True), expected, strict=True):
        assert offsets[0] == 0 and offsets[-1] == len(keys)
        ends = offsets.tolist()
        assert [keys[ends[row] : ends[row + 1]].tolist() for row in range(count)] == bags


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGERS += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@given(data=st.data())
def test_integers_are_hashed_as_their_decimal_text(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(INTEGERS))
    is_signed = bool(pa.types.is_signed_integer(kind))
    low, high = (-(1 << kind.bit_width - 1) if is_signed else 0), 1 << kind.bit_width - is_signed
    # As many digits as may be, each count as often as another.
    sizes = st.integers(0, len(str(high)) - 1).flatmap(
        lambda size: st.integers(-(10**size), 10**size)
    )
    numbers = st.none() | sizes.filter(lambda number: low <= number < high)
    values = data.draw(st.lists(numbers | st.sampled_from([low, high - 1]), max_size=30))
    begin = data.draw(st.integers(0, len(values)))
    column = pa.array(values, kind).slice(begin)
    seed = data.draw(st.sampled_from([0, 2**64 - 1, 12345]))
    rule = data.draw(st.sampled_from([NULL, NULL_OR_EMPTY, NONE]))
    texts = [None if value is None else str(value) for value in values[begin:]]
    ((keys, offsets),) = keys_of_columns([(column, seed, rule)], True)
    bags = [keys[offsets[row] : offsets[row + 1]].tolist() for row in range(len(texts))]
    assert bags == expected_keys(texts, seed, rule)
    ((keys, offsets),) = keys_of_columns(
        [(pa.array([column.to_pylist()], pa.list_(kind)), 7, NULL)], True
    )
    assert keys.tolist() == [key for bag in expected_keys(texts, 7, NULL) for key in bag]


def test_the_hash_of_a_number_is_that_of_its_text_about_each_power_of_ten() -> None:
    numbers = [10**size + more for size in range(20) for more in (-1, 0, 1)] + [2**64 - 1]
    for kind, ones in (
        (pa.uint64(), numbers),
        (
            pa.int64(),
            [sign * one for one in numbers if one < 2**63 for sign in (1, -1)] + [-(2**63)],
        ),
    ):
        ((keys, _),) = keys_of_columns([(pa.array(ones, kind), 9, NULL)], True)
        assert keys.tolist() == [xxh64_twin(str(one).encode(), 9) for one in ones]


def test_what_a_null_is_laid_out_as_does_not_count() -> None:
    """Its bytes may be there all the same."""
    bits, offsets = pa.py_buffer(bytes([0b101])), pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    column = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"abbc"), bits)
    keys = [xxh64_twin(text, 5) for text in (b"a", b"", b"c")]
    ((found, places),) = keys_of_columns([(column, 5, NONE)], True)
    assert found.tolist() == keys and places.tolist() == [0, 1, 2, 3]
    ((found, places),) = keys_of_columns([(column, 5, NULL)], True)
    assert found.tolist() == [keys[0], keys[2]] and places.tolist() == [0, 1, 1, 2]


def test_the_native_hash_gives_no_offsets_where_each_row_has_one_key() -> None:
    numbers = (np.arange(3), None, None, 0, 5, NULL)
    holes = (np.arange(3), None, np.array([0b101], np.uint8), 0, 5, NULL)
    (_, none), (keys, offsets) = _C.hash_columns([numbers, holes])
    assert none is None
    assert offsets is not None and offsets.tolist() == [0, 1, 1, 2] and len(keys) == 2


@pytest.mark.parametrize(
    ("text", "offsets", "bits", "words"),
    [
        (2, [0, 3], None, "offsets do not fit"),
        (4, [-1, 3], None, "offsets do not fit"),
        (4, [0, 3, 2], None, "offsets do not fit"),
        (4, [], None, "one offset at least"),
        (4, [0, 2], [], "too few bits"),
    ],
)
def test_columns_that_point_outside_are_refused(
    text: int, offsets: list[int], bits: list[int] | None, words: str
) -> None:
    valid = None if bits is None else np.array(bits, np.uint8)
    for kind in (np.int32, np.int64):
        column = (np.zeros(text, np.uint8), np.array(offsets, kind), valid, 0, 0, 0)
        with pytest.raises(ValueError, match=words):
            _C.hash_columns([column])
    good = (np.zeros(4, np.uint8), np.array([0, 2]), None, 0, 0, 0)
    longer = (np.zeros(4, np.uint8), np.array([0, 2, 4]), None, 0, 0, 0)
    with pytest.raises(ValueError, match="differ in rows"):
        _C.hash_columns([good, longer])
    with pytest.raises(ValueError, match="a rule is"):
        _C.hash_columns([(*good[:5], 3)])


@given(st.lists(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=3), max_size=4), max_size=4))
def test_bags_are_joined_in_their_order(runs: list[list[list[int]]]) -> None:
    given_runs = []
    for place, bags in enumerate(runs):
        begin = place % 3  # the keys before it are of no bag
        keys = [7] * begin + [key for bag in bags for key in bag] + [9]
        offsets = np.cumsum([begin, *map(len, bags)])
        given_runs.append((np.array(keys, np.uint64), offsets.astype(np.int64)))
    keys, offsets = _C.join_bags(given_runs)
    bags = [bag for run in runs for bag in run]
    assert keys.view(np.uint64).tolist() == [key for bag in bags for key in bag]
    assert offsets.tolist() == [0, *np.cumsum([len(bag) for bag in bags]).tolist()]
    with pytest.raises(ValueError, match="do not fit the keys"):
        _C.join_bags([(np.zeros(2, np.uint64), np.array([0, 3]))])


def test_logarithms_keep_their_sign() -> None:
    odd = [0.0, -0.0, 1.0, -1.0, 1e300, -1e300, 5e-324, math.inf, -math.inf, 2.0**53]
    logs = signed_log1p(np.array(odd).reshape(2, 5), np.zeros((2, 5), np.bool_))
    expected = [math.copysign(math.log1p(abs(number)), number) for number in odd]
    assert logs.tobytes() == np.array(expected, np.float32).tobytes() and logs.shape == (2, 5)
    assert math.isnan(signed_log1p(np.array([math.nan]))[0])
    assert signed_log1p(np.array([9.0]), np.array([True])).tolist() == [-0.5]
    with pytest.raises(ValueError, match="differ in length"):
        _C.signed_log1p(np.zeros(2), np.zeros(1, np.float32))


def test_a_slice_of_rows_keeps_the_keys_that_it_points_into(tmp_path: Path) -> None:
    """Batches that lie across blocks, of features that some rows lack."""
    lines = [f"{row % 2},{'' if row % 3 == 0 else row},{row}" for row in range(3000)]
    log = tmp_path / "log.csv"
    log.write_text("label,a,b\n" + "\n".join(lines) + "\n")
    tables = [hps.TableConfig(name="ads", dim=2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_files, "BLOCK_BYTES", 700)
        batches = list(open_reader([log], tables=tables, config=ReaderConfig(batch_size=128)))
    row = 0
    for batch in batches:
        ids, count = batch.features["ads"], len(batch)
        rows = range(row, row + count)
        has = [number for number in rows if number % 3]
        expected = [hps.key_of("a", n) for n in has] + [hps.key_of("b", n) for n in rows]
        assert ids.keys_L.numpy().view(np.uint64).tolist() == expected
        lengths = [int(number % 3 != 0) for number in rows] + [1] * count
        assert np.diff(ids.offsets.numpy()).tolist() == lengths
        row += count
    assert row == 3000
