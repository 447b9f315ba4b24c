"""Readers that keep some examples, by a hash: the same ones however the log is read."""

import gzip
import math
from itertools import chain, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_twin import (
    MASK,
    assert_same,
    assert_same_batches,
    examples_of,
    open_log,
    parse_twin,
    tables_of,
    xxh64_twin,
)

import hps
from hps.reader import Counts, ReaderConfig
from hps.reader.columns import LogRows
from hps.reader.sample import hash_rows

TEXT_KINDS = ("criteo", "libsvm", "libffm", "slots", "named slots")
KINDS = (*TEXT_KINDS, "parquet", "csv")
RANGES = ((0, 0.1), (0.1, 1.0), (0.25, 0.75))
COLUMNS = {"criteo": [f"C{number}" for number in range(1, 27)], "libsvm": ["index"]}
FEATURES = ["0", "1", "2"]  # of the formats whose lines name them


def line_of(kind: str, number: int, label: int | str) -> str:
    """A line whose content no other number has."""
    if kind == "criteo":
        numbers = [str(number * column % 997) for column in range(12)]
        return "\t".join([str(label), str(number), *numbers, *[f"{number % 89:x}"] * 26])
    tokens = [number, number % 7, 3]
    if kind == "libsvm":
        return " ".join([str(label), *[f"{token}:0.5" for token in tokens]])
    if kind == "libffm":
        return " ".join([str(label), *[f"{idx}:{token}:2" for idx, token in enumerate(tokens)]])
    if kind == "slots":
        return " ".join([f"{label}:1", *[f"{token}:{idx}" for idx, token in enumerate(tokens)]])
    return " ".join([f"click:{label}", *[f"{idx}:{token}" for idx, token in enumerate(tokens)]])


def content_of(kind: str, line: str) -> bytes:
    return line.split("\t" if kind == "criteo" else " ", 1)[1].encode()


def mix_twin(key: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        key = (key ^ (key >> 33)) * factor & MASK
    return key ^ (key >> 33)


def keeps_twin(hashed: int, label: int, low: float, high: float, rate: float) -> bool:
    """As docs/formats.md has it."""
    if not low <= (hashed >> 11) / 2**53 < high:
        return False
    return label == 1 or (mix_twin(hashed ^ 0x9E3779B97F4A7C15) >> 11) / 2**53 < rate


def format_of(kind: str) -> str:
    return kind.split()[-1]


def open_sample(paths, kind, **options):
    if kind in ("parquet", "csv"):
        tables = tables_of(["user", "words"] if kind == "parquet" else ["user", "word"])
    else:
        tables = tables_of(COLUMNS.get(kind, FEATURES))
    return open_log(paths, format_of(kind), **{"tables": tables, **options})


def rows_table(numbers: range, labels: list[int] | None = None) -> pa.Table:
    clicks = [int(number % 3 == 0) for number in numbers] if labels is None else labels
    words = [[f"w{number % 5}"] * (number % 4) for number in numbers]
    return pa.table(
        {
            "label": pa.array(clicks, pa.int8()),
            "score": pa.array([number / 8 for number in numbers], pa.float32()),
            "user": pa.array(list(numbers), pa.int64()),
            "words": pa.array(words, pa.list_(pa.string())),
        }
    )


def write_rows(path: Path, table: pa.Table, group: int = 64) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=group)
    else:
        plain = table.drop_columns(["words"]).append_column(
            "word", pa.array([f"w{number}" for number in table["user"].to_pylist()])
        )
        pa_csv.write_csv(plain, path)
    return path


def write_log(folder: Path, kind: str, num_rows: int = 400) -> list[Path]:
    """Two files, the second compressed where that changes nothing; every third is a click."""
    half = num_rows // 2
    if kind in ("parquet", "csv"):
        parts = (range(half), range(half, num_rows))
        return [
            write_rows(folder / f"{idx}.{kind}", rows_table(part)) for idx, part in enumerate(parts)
        ]
    lines = [line_of(kind, number, int(number % 3 == 0)) for number in range(num_rows)]
    paths = [folder / "0.log", folder / "1.log.gz"]
    paths[0].write_text("".join(line + "\r\n\n" for line in lines[:half]))
    paths[1].write_bytes(gzip.compress("\n".join(lines[half:]).encode()))
    return paths


def numbers_of(reader) -> list[int]:
    """The numbers of the examples, which each row and line has in it."""
    found = []
    for batch in reader:
        size = len(batch)
        if reader.format == "criteo":
            found += batch.dense[:, 0].double().expm1().round().long().tolist()
            continue
        if reader.format in ("parquet", "csv"):
            found += (batch.dense[:, 0] * 8).long().tolist()
            continue
        ids = batch.features["t0"]
        found += ids.keys_L[ids.offsets[:size]].tolist()  # of the first feature
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [(0.1,), (0.5,), (0.05, 0.3, 0.9), (1e-300,), (1 - 2**-53,)])
def test_ranges_that_meet_part_a_log(tmp_path, kind, cuts):
    paths = write_log(tmp_path, kind)
    whole = numbers_of(open_sample(paths, kind))
    parts = [
        numbers_of(open_sample(paths, kind, hash_range=(low, high), batch_size=7))
        for low, high in pairwise([0, *cuts, 1])
    ]
    assert len(whole) == 400 and sorted(chain(*parts)) == sorted(whole)
    for part in parts:
        chosen = set(part)
        assert part == [number for number in whole if number in chosen]
    if cuts == (0.5,):
        assert all(150 < len(part) < 250 for part in parts)


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_a_line_is_kept_by_what_follows_its_label(tmp_path, kind):
    """The rule of docs/formats.md, so that other programs can draw the same sample."""
    log = tmp_path / "log"
    labels = [number % 2 for number in range(600)]
    lines = [line_of(kind, number, label) for number, label in enumerate(labels)]
    log.write_text("\n".join(lines))
    for low, high in ((0, 1), *RANGES):
        for rate in (1, 0.3):
            kept = [
                line
                for line, label in zip(lines, labels, strict=True)
                if keeps_twin(xxh64_twin(content_of(kind, line)), label, low, high, rate)
            ]
            reader = open_sample(log, kind, hash_range=(low, high), negative_rate=rate)
            found = examples_of(reader, reader.features)
            assert_same(found, [parse_twin(format_of(kind), line) for line in kept])
            assert reader.counts == Counts(len(kept), 0) and 0 < len(kept) <= 600


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_nothing_but_the_content_chooses(tmp_path_factory, data):
    """Files, their order, batches, threads, parts, line ends, compression: the same examples."""
    kind = data.draw(st.sampled_from(KINDS))
    draw = data.draw(st.randoms(use_true_random=False))
    folder = tmp_path_factory.mktemp("log")
    low, high = data.draw(st.sampled_from([*RANGES, (0, 1)]))
    sample = {"hash_range": (low, high), "negative_rate": data.draw(st.sampled_from([1, 0.4]))}
    numbers = list(range(120))
    expected = numbers_of(open_sample(write_log(folder, kind, 120), kind, **sample))
    draw.shuffle(numbers)
    paths = []
    for idx, part in enumerate(cut(numbers, draw)):
        if kind in ("parquet", "csv"):
            table = rows_table(range(120)).take(pa.array(part, pa.int64()))
            paths.append(write_rows(folder / f"x{idx}.{kind}", table, draw.randint(1, 30)))
            continue
        end = draw.choice(["\n", "\r\n", "\n\n \n" if kind != "criteo" else "\n\n"])
        text = "".join(line_of(kind, row, int(row % 3 == 0)) + end for row in part).encode()
        paths.append(folder / f"x{idx}.log{draw.choice(['', '.gz'])}")
        paths[-1].write_bytes(gzip.compress(text) if paths[-1].suffix == ".gz" else text)
    options = {"batch_size": draw.randint(1, 50), "threads": draw.randint(1, 3), **sample}
    options |= {"shuffle_files": draw.choice([None, 3]), "epochs": 2}
    if draw.random() < 0.5:
        options["on_error"] = "skip"
    size = draw.randint(1, 3)
    found = []
    for rank in range(size):
        found += numbers_of(open_sample(paths, kind, part=(rank, size), **options))
    assert sorted(found) == sorted(expected * 2)


def cut(numbers: list[int], draw: Random) -> list[list[int]]:
    places = sorted(draw.randint(0, len(numbers)) for _ in range(2))
    parts = [numbers[: places[0]], numbers[places[0] : places[1]], numbers[places[1] :]]
    return [part for part in parts if part]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_sample_goes_on_from_any_position(tmp_path, kind, on_error):
    paths = write_log(tmp_path, kind)
    options = {"hash_range": (0.2, 0.9), "negative_rate": 0.5, "batch_size": 16, "epochs": 2}
    options["on_error"] = on_error
    whole = list(open_sample(paths, kind, **options))
    assert len(whole) > 10 and sum(map(len, whole)) == whole[-1].position["examples"]
    for number in range(len(whole)):
        reader = open_sample(paths, kind, **options, threads=1 + number % 3)
        reader.load_state_dict(whole[number].position)
        assert_same_batches(list(reader), whole[number + 1 :])


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_share_the_batches_of_a_sample(tmp_path, kind):
    paths = write_log(tmp_path, kind)
    options = {"hash_range": (0.1, 0.8), "negative_rate": 0.5, "batch_size": 16}
    whole = list(open_sample(paths, kind, **options))
    for size in (2, 3):
        readers = [open_sample(paths, kind, part=(rank, size), **options) for rank in range(size)]
        features = readers[0].features
        for batch, *parts in zip(whole, *readers, strict=True):
            assert [part.position for part in parts] == [batch.position] * size
            assert [part.global_size for part in parts] == [len(batch)] * size
            assert_same(examples_of(parts, features), examples_of([batch], features))


def bounds(num_draws: int, share: float) -> tuple[float, float]:
    """Six standard deviations around the mean."""
    margin = 6 * math.sqrt(num_draws * share * (1 - share))
    return num_draws * share - margin, num_draws * share + margin


@pytest.mark.parametrize("kind", ["criteo", "libsvm", "parquet"])
def test_shares_are_those_asked_for(tmp_path, kind):
    paths = write_log(tmp_path, kind, 6000)  # 4,000 negatives
    for low, high, rate in ((0, 0.1, 1), (0.1, 1, 1), (0, 1, 0.1), (0, 0.3, 0.3), (0.7, 1, 0.3)):
        sample = {"hash_range": (low, high), "negative_rate": rate}
        labels = np.concatenate([batch.labels for batch in open_sample(paths, kind, **sample)])
        clicks = int(labels.sum())
        for count, num_draws, share in (
            (clicks, 2000, high - low),
            (len(labels) - clicks, 4000, (high - low) * rate),
        ):
            least, most = bounds(num_draws, share)
            assert least <= count <= most


def test_both_hashes_are_independent(tmp_path):
    """Of the negatives in a range the same share is kept as of all."""
    log = tmp_path / "log"
    log.write_text("".join(line_of("libsvm", number, 0) + "\n" for number in range(20_000)))
    kept = set(numbers_of(open_sample(log, "libsvm", negative_rate=0.25)))
    for low in (0, 0.25, 0.5, 0.75):
        in_range = numbers_of(open_sample(log, "libsvm", hash_range=(low, low + 0.25)))
        least, most = bounds(len(in_range), 0.25)
        assert least < len(kept & set(in_range)) < most


@pytest.mark.parametrize("kind", KINDS)
def test_equal_impressions_are_on_one_side(tmp_path, kind):
    """Clicked or not, with their labels spelled otherwise, in any file, among others."""
    spellings = {0: ["0", "-1", "0.0"], 1: ["1", "+1", "1.0"]}
    if kind in ("parquet", "csv"):
        table = pa.concat_tables([rows_table(range(60), [row] * 60) for row in (0, 1, -1, 1, 0, 1)])
        paths = [write_rows(tmp_path / f"a.{kind}", table)]
    else:
        rows = [
            (number, label, turn) for number in range(60) for label in (0, 1) for turn in (0, 1, 2)
        ]
        text = "".join(line_of(kind, n, spellings[label][turn]) + "\n" for n, label, turn in rows)
        paths = [tmp_path / "a.log"]
        paths[0].write_text(text)
    found = numbers_of(open_sample(paths, kind, hash_range=(0.3, 0.7)))
    counts = {number: found.count(number) for number in set(found)}
    assert 5 < len(counts) < 55 and set(counts.values()) == {6}
    sampled = numbers_of(open_sample(paths, kind, negative_rate=0.4))
    counts = {number: sampled.count(number) for number in set(sampled)}
    assert len(counts) == 60 and set(counts.values()) == {3, 6}


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_bad_lines_outside_the_sample_are_not_seen(tmp_path, kind):
    lines = [line_of(kind, number, number % 2) for number in range(100)]
    sides = [keeps_twin(xxh64_twin(content_of(kind, line)), 1, 0, 0.5, 1) for line in lines]
    tail = "\t\t\t" if kind == "criteo" else " no:token:x::"
    bad = next(
        line + tail
        for line in lines
        if not keeps_twin(xxh64_twin(content_of(kind, line + tail)), 1, 0, 0.5, 1)
    )
    log = tmp_path / "log"
    log.write_text("\n".join([*lines[:50], bad, *lines[50:]]))
    for part in ((0, 1), (1, 2)):
        options = {"batch_size": 200, "part": part}
        kept = open_sample(log, kind, hash_range=(0, 0.5), **options)
        assert sum(batch.global_size for batch in kept) == sum(sides)
        other = open_sample(log, kind, hash_range=(0.5, 1), **options)
        if part == (0, 1):
            with pytest.raises(hps.errors.DataError, match=r"log, line 51: "):
                list(other)
    for low, high, skipped in ((0, 0.5, 0), (0.5, 1, 1)):
        reader = open_sample(log, kind, hash_range=(low, high), on_error="skip")
        count = sum(map(len, reader))
        assert reader.counts == Counts(count, skipped)
        assert count == (sum(sides) if low == 0 else 100 - sum(sides))


@pytest.mark.parametrize("kind", TEXT_KINDS)
def test_a_line_whose_label_cannot_be_read_is_no_negative(tmp_path, kind):
    log = tmp_path / "log"
    bad = line_of(kind, 7, "2")
    log.write_text("".join(line_of(kind, number, 0) + "\n" for number in range(20)) + bad)
    with pytest.raises(hps.errors.DataError, match="line 21: "):
        list(open_sample(log, kind, negative_rate=1e-9))
    reader = open_sample(log, kind, negative_rate=1e-9, on_error="skip")
    assert list(reader) == [] and reader.counts == Counts(0, 1)
    # Another rank's part is not parsed; its bad line is counted all the same.
    assert next(open_sample(log, kind, negative_rate=1e-9, part=(0, 2))).global_size == 1


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_bad_rows_outside_the_sample_are_not_seen(tmp_path, kind):
    table = rows_table(range(200))
    score = table["score"].to_pylist()
    score[120] = math.inf
    table = table.set_column(1, "score", pa.array(score, pa.float32()))
    paths = [write_rows(tmp_path / f"a.{kind}", table)]
    sides = {}
    for low, high in ((0, 0.5), (0.5, 1)):
        sample = {"hash_range": (low, high)}
        reader = open_sample(paths, kind, on_error="skip", **sample)
        found = numbers_of(reader)
        sides[low] = reader.counts.skipped
        if sides[low]:
            with pytest.raises(hps.errors.DataError, match=r"row 121\)?: "):
                list(open_sample(paths, kind, **sample))
        else:
            assert numbers_of(open_sample(paths, kind, **sample)) == found
    assert sorted(sides.values()) == [0, 1]


def test_rows_are_hashed_by_their_values(tmp_path):
    """Equal in parquet and csv, whatever the order of features, the type and the sign of a 0."""
    random = np.random.default_rng(5)
    counts = random.integers(0, 4, 50)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    keys = random.integers(0, 2**63, int(offsets[-1])).astype(np.uint64)
    single = random.integers(0, 2**63, 50).astype(np.uint64)
    ones = np.arange(51)
    dense = random.random((50, 2)).astype(np.float32)
    dense[3], dense[4] = (0.0, -0.0), (-0.0, 0.0)
    hashed = hash_rows(["a", "é"], [keys, single], [offsets, ones], dense)
    assert (hash_rows(["é", "a"], [single, keys], [ones, offsets], dense) == hashed).all()
    positive = dense.copy()
    positive[3:5] = 0
    assert (hash_rows(["a", "é"], [keys, single], [offsets, ones], positive) == hashed).all()
    assert (hash_rows(["é", "a"], [keys, single], [offsets, ones], dense) != hashed)[
        counts > 0
    ].all()
    for row in range(50):
        total = xxh64_twin(positive[row].tobytes())
        for name, of_row in (("a", keys[offsets[row] : offsets[row + 1]]), ("é", single[[row]])):
            total += xxh64_twin(of_row.tobytes(), xxh64_twin(name.encode()))
        assert total & MASK == hashed[row]
    half = hash_rows(["a"], [keys[offsets[20] :]], [offsets[20:] - offsets[20]], dense[20:])
    assert (half == hash_rows(["a"], [keys], [offsets], dense)[20:]).all()


def test_parquet_and_csv_of_the_same_values_have_the_same_sample(tmp_path):
    table = rows_table(range(300)).drop_columns(["words"])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=7)
    pa_csv.write_csv(table, tmp_path / "a.csv")
    options = {"tables": tables_of(["user"]), "hash_range": (0.2, 0.6), "batch_size": 1000}
    left, right = (
        next(open_log(tmp_path / f"a.{kind}", kind, **options)) for kind in ("parquet", "csv")
    )
    assert 60 < len(left) < 180 and left.dense.equal(right.dense)
    assert left.features["t0"].keys_L.equal(right.features["t0"].keys_L)


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_without_an_example_that_is_kept_is_empty(tmp_path, kind):
    """A range of one of 2^53 steps; then a file of which nothing is kept, between two others."""
    paths = write_log(tmp_path, kind, 40)
    nothing = open_sample(paths, kind, hash_range=(0.5, 0.5 + 1e-16), epochs=3)
    assert list(nothing) == [] and nothing.counts == Counts(0, 0)
    one = numbers_of(open_sample(paths, kind, hash_range=(0, 0.02)))
    for rank in range(2):
        part = {"part": (rank, 2), "epochs": 2}
        assert list(open_sample(paths, kind, hash_range=(0.5, 0.5 + 1e-16), **part)) == []
    assert numbers_of(open_sample([*paths] * 2, kind, hash_range=(0, 0.02))) == one * 2


def test_ranks_share_a_batch_of_which_each_piece_of_text_has_little(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(line_of("libsvm", number, 0) + "\n" for number in range(100_000)))
    whole = open_sample(log, "libsvm", hash_range=(0, 0.001), batch_size=1000)
    found = numbers_of(whole)
    assert 40 < len(found) < 180
    of_ranks = [
        numbers_of(
            open_sample(log, "libsvm", hash_range=(0, 0.001), batch_size=1000, part=(rank, 2))
        )
        for rank in range(2)
    ]
    assert list(chain(*of_ranks)) == found


NO_RANGES = [(0.5, 0.5), (0.6, 0.5), (-0.1, 1), (0, 1.1), (0,), (0, 0.5, 1), "01", 0.5, (None, 1)]
NO_RANGES += [(math.nan, 1), (0, math.nan), (0, math.inf), (False, True), ("0", "1"), {0: 1, 1: 2}]


@pytest.mark.parametrize("wrong", NO_RANGES)
def test_a_range_that_is_none_is_refused(wrong):
    with pytest.raises(hps.ConfigError, match=r"hash_range=.* 0 <= low < high <= 1"):
        ReaderConfig(hash_range=wrong)


@pytest.mark.parametrize("wrong", [0, -0.1, 1.01, math.nan, math.inf, True, None, "0.5", (0.5,)])
def test_a_rate_that_is_none_is_refused(wrong):
    with pytest.raises(hps.ConfigError, match=r"negative_rate=.* above 0 and at most 1"):
        ReaderConfig(negative_rate=wrong)


def test_a_rate_needs_labels():
    with pytest.raises(hps.ConfigError, match=r"negative_rate=0\.5 chooses by labels"):
        ReaderConfig(negative_rate=0.5, needs_labels=False)
    assert ReaderConfig(negative_rate=1, needs_labels=False).negative_rate == 1


@pytest.mark.parametrize("kind", ["criteo", "parquet"])
def test_a_position_is_of_one_sample(tmp_path, kind):
    paths = write_log(tmp_path, kind)
    plain = open_sample(paths, kind, hash_range=(0, 1))
    next(plain)
    assert not {"hash_range", "negative_rate"} & set(plain.state_dict())
    open_sample(paths, kind).load_state_dict(plain.state_dict())
    sampled = open_sample(paths, kind, hash_range=[0.1, 1], negative_rate=0.5)
    next(sampled)
    state = sampled.state_dict()
    assert state["hash_range"] == [0.1, 1.0] and state["negative_rate"] == 0.5
    for options, name in (
        ({"hash_range": (0.1, 1)}, r"negative_rate=0\.5, this reader has None"),
        ({"negative_rate": 0.5}, r"hash_range=\[0.1, 1.0\], this reader has None"),
        ({"hash_range": (0, 1), "negative_rate": 0.5}, r"hash_range=\[0.1"),
        ({"hash_range": (0.2, 1), "negative_rate": 0.5}, r"this reader has \[0.2, 1.0\]"),
        ({"hash_range": (0.1, 1), "negative_rate": 0.25}, r"this reader has 0\.25"),
    ):
        reader = open_sample(paths, kind, **options)
        with pytest.raises(hps.ConfigError, match=name):
            reader.load_state_dict(state)
        assert reader.counts == Counts(0, 0)
    other = open_sample(paths, kind, hash_range=(0.1, 1))
    with pytest.raises(hps.ConfigError, match="hash_range=None, this reader has"):
        other.load_state_dict(plain.state_dict())


def test_features_are_those_of_the_whole_log(tmp_path):
    """Both sides of a log have the same columns, also where its lines name them."""
    log = tmp_path / "log"
    log.write_text("".join(f"{row % 2}:1 5:{row}\n" for row in range(50)))
    sides = [open_log(log, "slots", hash_range=bounds) for bounds in ((0, 0.2), (0.2, 1))]
    assert sides[0].features == sides[1].features
    assert len(sides[0].features["t0"]) == 50
    assert sum(len(batch) for side in sides for batch in side) == 50


def test_rows_alone_are_taken_with_their_keys():
    counts = np.array([2, 0, 3, 1])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows = LogRows(
        labels=np.arange(4, dtype=np.float32),
        dense=np.arange(8, dtype=np.float32).reshape(4, 2),
        keys=[np.arange(6, dtype=np.uint64)],
        offsets=[offsets],
        row_ends=np.arange(1, 5),
        num_skipped=np.zeros(4, np.int64),
    )
    taken = rows.only(np.array([True, True, False, True]))
    assert taken.labels.tolist() == [0, 1, 3] and taken.row_ends.tolist() == [1, 2, 4]
    assert taken.keys[0].tolist() == [0, 1, 5] and taken.offsets[0].tolist() == [0, 2, 2, 3]
    assert len(rows.only(np.zeros(4, bool))) == 0
