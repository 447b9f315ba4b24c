"""Text formats against their plain Python twins: values, line ends, positions, threads."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import zstandard
from reader_twin import (
    LINES,
    NAMED_SLOT_LINES,
    SAMPLES,
    TEXT_FORMATS,
    assert_same,
    assert_same_batches,
    dense_twin,
    examples_of,
    key_twin,
    open_log,
    parse_twin,
    tables_of,
    xxh64_twin,
)

import hps
from hps import _C
from hps.reader import ReaderConfig, open_reader


def write_log(path, kind, end="\n", final=True, lines=None):
    text = end.join(lines or LINES[kind]) + (end if final else "")
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize("size", [*range(70), 100, 1000])
def test_key_hash_equals_an_independent_xxh64(size):
    data = bytes((7 * i + size) % 256 for i in range(size))
    for seed in (0, 1, 2**63, 2**64 - 1):
        assert _C.xxh64(data, seed) == xxh64_twin(data, seed)
    assert xxh64_twin(b"") == 0xEF46DB3751D8E999  # published test value


@pytest.mark.parametrize("kind", TEXT_FORMATS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_reads_every_line_end_and_blank_lines(tmp_path, kind, end, final):
    log = write_log(tmp_path / "log", kind, end, final)
    reader = open_log(log, kind)
    examples = examples_of(reader, reader.features)
    assert_same(examples, [parse_twin(kind, line) for line in LINES[kind]])
    assert reader.counts.examples == 10 and reader.counts.skipped == 0


def test_reads_named_slots_with_dense_values(tmp_path):
    log = write_log(tmp_path / "log", "slots", lines=NAMED_SLOT_LINES)
    reader = open_log(log, "slots")
    assert reader.features == {"t0": ("1", "2", "ad")} and reader.num_dense == 2
    expected = [parse_twin("slots", line) for line in NAMED_SLOT_LINES]
    assert_same(examples_of(reader, reader.features), expected)


@pytest.mark.parametrize("kind", ["libsvm", "libffm", "slots"])
def test_hash_keys_hashes_the_raw_text(tmp_path, kind):
    reader = open_log(write_log(tmp_path / "log", kind), kind, hash_keys=True)
    expected = [parse_twin(kind, line, hash_keys=True) for line in LINES[kind]]
    assert_same(examples_of(reader, reader.features), expected)


def test_shared_vocabulary_gives_equal_values_equal_keys(tmp_path):
    log = write_log(tmp_path / "log", "criteo")
    tables = [
        *tables_of(["C2", "C1"], shared=True),
        hps.TableConfig(name="rest", dim=4),
    ]
    reader = open_log(log, "criteo", tables=tables)
    assert reader.features["t0"] == ("C2", "C1")
    assert reader.features["rest"] == tuple(f"C{i}" for i in range(3, 27))
    examples = examples_of(reader, reader.features)
    for line, example in zip(LINES["criteo"], examples, strict=True):
        fields = line.split("\t")
        for name, column in (("C1", 14), ("C2", 15)):
            assert example.bags[name] == [(key_twin(name, fields[column], shared=True), 1.0)]
        assert example.bags["C3"] == [(key_twin("C3", fields[16]), 1.0)]


def test_an_unnamed_feature_is_left_out_only_if_no_table_takes_all(tmp_path):
    log = write_log(tmp_path / "log", "slots")
    reader = open_log(log, "slots", tables=tables_of(["101"], ["9", "none"]))
    for line, example in zip(LINES["slots"], examples_of(reader, reader.features), strict=True):
        expected = parse_twin("slots", line).bags
        assert example.bags == {name: expected[name] for name in ("101", "9") if name in expected}
    state = open_log(log, "slots").state_dict()
    log.write_text(log.read_text() + "1:1 5:new\n")
    state["files"] = [["log", log.stat().st_size]]  # as of a feature that was overlooked
    reader = open_log(log, "slots")
    reader.load_state_dict(state)
    with pytest.raises(hps.DataError, match=r"line 11: feature 'new' is not among"):
        list(reader)


@pytest.mark.parametrize("kind", TEXT_FORMATS)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_resume_equals_uninterrupted_at_every_batch(tmp_path, kind, suffix):
    paths = []
    for number in range(3):
        text = ("\n".join(LINES[kind][number:]) + "\n\n").encode()
        if suffix == ".gz":
            half = len(text) // 2
            text = gzip.compress(text[:half]) + gzip.compress(text[half:])
        elif suffix == ".zst":
            text = zstandard.compress(text[:50]) + zstandard.compress(text[50:])
        paths.append(tmp_path / f"log{number}{suffix}")
        paths[-1].write_bytes(text)
    for drop_last in (False, True):
        options = {"epochs": 2, "batch_size": 4, "drop_last": drop_last}
        batches = list(open_log(paths, kind, **options))
        assert sum(map(len, batches)) == (48 if drop_last else 54)
        for done in range(len(batches) + 1):
            reader = open_log(paths, kind, **options)
            state = reader.state_dict()
            for _ in range(done):
                state = next(reader).position
                assert state == reader.state_dict()
            other = open_log(paths, kind, **options)
            other.load_state_dict(json.loads(json.dumps(state)))
            assert_same_batches(list(other), batches[done:])


@pytest.mark.parametrize("kind", TEXT_FORMATS)
def test_threads_and_batch_size_change_no_example(tmp_path, kind):
    lines = LINES[kind] * 2500
    log = write_log(tmp_path / "log", kind, lines=lines)
    alone = list(open_log(log, kind, batch_size=999))
    for threads in (2, 3, 4):
        assert_same_batches(list(open_log(log, kind, batch_size=999, threads=threads)), alone)
    expected = [parse_twin(kind, line) for line in LINES[kind]]
    reader = open_log(log, kind, batch_size=10, threads=2)
    for _ in range(5):
        assert_same(examples_of([next(reader)], reader.features), expected)
    whole = next(open_log(log, kind, batch_size=25000))
    assert torch.cat([batch.labels for batch in alone]).equal(whole.labels)


def test_iterating_goes_on_after_break_and_starts_over_after_the_end(tmp_path):
    reader = open_log(write_log(tmp_path / "log", "libsvm"), "libsvm")
    for _ in reader:
        break
    assert sum(len(batch) for batch in reader) == 7
    assert sum(len(batch) for batch in reader) == 10
    reader.close()


def test_a_line_longer_than_the_buffer_is_read_whole(tmp_path):
    line = "1 " + " ".join(f"{i}:1" for i in range(200000))
    log = write_log(tmp_path / "log", "libsvm", lines=["0 1:1", line, "0 2:1"])
    reader = open_log(log, "libsvm", threads=1)
    lengths = [len(example.bags["index"]) for example in examples_of(reader, reader.features)]
    assert lengths == [1, 200000, 1]


def test_criteo_takes_other_numbers_of_columns(tmp_path):
    log = tmp_path / "log"
    log.write_text("1\t5\tx\ty\tz\n0\t\t\ty\t\n")
    reader = open_log(log, "criteo", dense=1)
    assert reader.features == {"t0": ("C1", "C2", "C3")} and reader.num_dense == 1
    first, second = examples_of(reader, reader.features)
    assert first.bags["C3"] == [(key_twin("C3", "z"), 1.0)]
    assert second.bags["C1"] == [(key_twin("C1", ""), 1.0)] and second.dense == [-0.5]


def test_missing_below_zero_and_zero_are_three_dense_values(tmp_path):
    log = tmp_path / "log"
    numbers = ["", "-1", "-2", "-3", "0", "1", "-9223372036854775808"]
    log.write_text("".join(f"0\t{number}\tx\n" for number in numbers))
    told = next(open_log(log, "criteo", dense=1, batch_size=7)).dense[:, 0].tolist()
    assert len(set(told)) == len(numbers)
    np.testing.assert_allclose(told, [dense_twin(number, "signed_log1p") for number in numbers])
    before = open_log(log, "criteo", dense=1, batch_size=7, dense_transform="log1p")
    assert next(before).dense[:, 0].tolist() == [0, 0, 0, 0, 0, np.float32(np.log1p(1)), 0]


def test_no_whole_number_is_read_as_a_missing_one(tmp_path):
    """Those next to the one whose logarithm would be that of a missing number."""
    log = tmp_path / "log"
    log.write_text("".join(f"0\t{number}\tx\n" for number in range(-2000, 40000)))
    dense = next(open_log(log, "criteo", dense=1, batch_size=42000)).dense[:, 0]
    assert len(dense.unique()) == 42000 and not (dense == -0.5).any()


def test_slots_are_read_by_their_logarithm_if_asked_for(tmp_path):
    log = tmp_path / "log"
    log.write_text("click:1 dense_feature:-3 dense_feature:9.5 1:4\n")
    reader = open_log(log, "slots", dense_transform="signed_log1p")
    np.testing.assert_allclose(next(reader).dense, [[-np.log1p(3), np.log1p(9.5)]], rtol=1e-6)


def test_an_empty_log_has_no_batch(tmp_path):
    (tmp_path / "log").write_bytes(b"")
    for kind in TEXT_FORMATS:
        assert list(open_log(tmp_path / "log", kind)) == []


@pytest.mark.parametrize(
    ("name", "kind", "rows"),
    [
        ("criteo_200.tsv", "criteo", 200),
        ("criteo_ffm_200.libffm", "libffm", 200),
        ("slots_10.txt", "slots", 10),
        ("slots_named_80.txt", "slots", 80),
    ],
)
def test_reads_real_samples(name, kind, rows):
    if not (SAMPLES / name).exists():
        pytest.skip(f"{name} is not beside this checkout (../shared/data)")
    config = ReaderConfig(format=kind, batch_size=64)
    reader = open_reader(SAMPLES / name, tables=tables_of(None), config=config)
    lines = (SAMPLES / name).read_text().splitlines()
    some = examples_of([replace(next(reader))], reader.features)[: min(rows, 20)]
    assert_same(some, [parse_twin(kind, line) for line in lines[:20]])
    assert sum(len(batch) for batch in reader) == max(rows - 64, 0)
