"""Bad lines, bad files and bad configurations: each a typed error that says where and why."""

import gzip
import json
import random

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_twin import LINES, TEXT_FORMATS, assert_same_batches, open_log, tables_of

import hps
from hps.reader import ReaderConfig, open_reader

GOOD_CRITEO = LINES["criteo"][0]
FIELDS = GOOD_CRITEO.split("\t")
BAD_LINES = [
    ("criteo", GOOD_CRITEO + "\tx", r"found 41 columns .* expected 40"),
    ("criteo", "\t".join(FIELDS[:-1]), r"found 39 columns .* expected 40"),
    ("criteo", "\t".join(["2", *FIELDS[1:]]), r"label '2' is not 0 or 1"),
    ("criteo", "\t".join(["", *FIELDS[1:]]), r"label '' is not 0 or 1"),
    ("criteo", "\t".join([*FIELDS[:3], "4x", *FIELDS[4:]]), r"column I3 holds '4x'"),
    ("criteo", "\t".join([*FIELDS[:13], "9" * 19, *FIELDS[14:]]), r"column I13 holds '999"),
    (
        "criteo",
        "\t".join([*FIELDS[:3], "\0\xff", *FIELDS[4:]]),
        r"column I3 holds '\\x00\\xc3\\xbf'",
    ),
    ("libsvm", "yes 1:1", r"label 'yes' is not 0, 1 or -1"),
    ("libsvm", "1 5", r"token '5' is not index:value"),
    ("libsvm", "1 -5:1", r"key '-5' is not a whole number"),
    ("libsvm", "1 18446744073709551616:1", r"key '18446744073709551616' is not a whole number"),
    ("libsvm", "1 5:nan", r"value 'nan' is not a finite number"),
    ("libsvm", "1 5:1e99", r"value '1e99' is not a finite number"),
    ("libsvm", "1 5:", r"value '' is not a finite number"),
    ("libsvm", "1 :1", r"key '' is not a whole number"),
    ("libffm", "1 5:1", r"token '5:1' is not field:index:value"),
    ("libffm", "1 0:x:1", r"key 'x' is not a whole number"),
    ("libffm", "1 0:3:x", r"value 'x' is not a finite number"),
    ("libffm", "1 :3:1", r"token ':3:1' is not field:index:value"),
    ("slots", "2:1 5:1", r"the line begins with '2:1'"),
    ("slots", "0:2 5:1", r"the line begins with '0:2'"),
    ("slots", "5", r"the line begins with '5'"),
    ("slots", "1:1 5", r"token '5' is not key:slot"),
    ("slots", "1:1 5:", r"token '5:' is not key:slot"),
    ("slots", "1:1 x:5", r"key 'x' is not a whole number"),
    ("slots", "click:1 :5", r"token ':5' is not slot:key"),
    ("slots", "click:1 5:x", r"key 'x' is not a whole number"),
    ("slots", "click:1 dense_feature:x 5:1", r"value 'x' is not a finite number"),
    ("slots", "click:1 dense_feature:1 5:1", r"found 1 dense values, expected 0"),
]


@pytest.mark.parametrize(("kind", "line", "reason"), BAD_LINES)
def test_a_bad_line_names_file_line_and_reason(tmp_path, kind, line, reason):
    log = tmp_path / "some.log"
    log.write_text("\n".join([*LINES[kind][:4], "", line, *LINES[kind][4:]]) + "\n")
    # With features named, no scan for them meets the bad line first.
    named = {"libffm": ["0"], "slots": ["101"]}.get(kind)
    reader = open_log(log, kind, tables=tables_of(named))
    assert len(next(reader)) == 3  # what comes before the bad line's batch is handed out
    for _ in range(2):  # and the error stays
        with pytest.raises(hps.DataError, match=rf"some\.log, line 6: {reason}"):
            next(reader)
    assert reader.counts.examples == 3

    reader = open_log(log, kind, on_error="skip", threads=2)
    states = [reader.state_dict()]
    batches = []
    for batch in reader:
        batches.append(batch)
        states.append(batch.position)
    assert sum(map(len, batches)) == 10
    assert (reader.counts.examples, reader.counts.skipped) == (10, 1)
    clean = tmp_path / "clean.log"
    clean.write_text("\n".join(LINES[kind]))
    for one, other in zip(batches, open_log(clean, kind), strict=True):
        assert one.labels.equal(other.labels) and one.dense.equal(other.dense)
        assert one.features["t0"].keys_L.equal(other.features["t0"].keys_L)
        assert one.features["t0"].offsets.equal(other.features["t0"].offsets)
    for state in states:
        resumed = open_log(log, kind, on_error="skip")
        resumed.load_state_dict(state)
        list(resumed)
        assert (resumed.counts.examples, resumed.counts.skipped) == (10, 1)


def test_resume_counts_every_skipped_line_once(tmp_path):
    log = tmp_path / "log"
    log.write_text("bad\n1 1:1\nbad\n0 2:1\n\nbad\nbad\n1 3:1\n0 4:1\nbad\n")
    options = {"on_error": "skip", "batch_size": 2, "epochs": 3}
    reader = open_log(log, "libsvm", **options)
    batches = list(reader)
    assert [batch.position["skipped"] for batch in batches] == [2, 4, 7, 9, 12, 14]
    assert reader.counts.skipped == 15
    for done in range(1, len(batches) + 1):
        resumed = open_log(log, "libsvm", **options)
        resumed.load_state_dict(batches[done - 1].position)
        assert_same_batches(list(resumed), batches[done:])
        assert resumed.counts.skipped == 15


def test_a_bad_line_is_numbered_after_a_resume_and_across_files(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1 1:1\n\n0 2:1\n")
    second.write_text("1 3:1\n1 4:1\nbad\n")
    reader = open_log([first, second], "libsvm", batch_size=1)
    for _ in range(3):
        state = next(reader).position
    other = open_log([first, second], "libsvm", batch_size=1)
    other.load_state_dict(state)
    next(other)
    with pytest.raises(hps.DataError, match="second, line 3: label 'bad'"):
        next(other)


@pytest.mark.parametrize("kind", ["libffm", "slots"])
def test_the_scan_for_features_names_a_bad_line(tmp_path, kind):
    log = tmp_path / "log"
    log.write_text("\n".join([*LINES[kind], "zzz"]))
    with pytest.raises(hps.DataError, match="log, line 11: "):
        _ = open_log(log, kind).features
    assert (
        len(open_log(log, kind, on_error="skip").features["t0"])
        == {
            "libffm": 4,
            "slots": 5,
        }[kind]
    )


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_cut_or_damaged_stream_names_the_file(tmp_path, suffix):
    number = random.Random(1)
    text = "".join(f"{row % 2} {number.getrandbits(64)}:1\n" for row in range(20000)).encode()
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    packed = pack(text, 1)
    whole = tmp_path / f"whole{suffix}"
    whole.write_bytes(packed)
    assert sum(map(len, open_log(whole, "libsvm", batch_size=500))) == 20000
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 255
    broken = tmp_path / f"broken{suffix}"
    for content in (packed[:-3], packed[: len(packed) // 2], bytes(damaged), b"not packed"):
        broken.write_bytes(content)
        with pytest.raises(hps.DataError, match=r"broken"):
            list(open_log(broken, "libsvm", batch_size=500))
    broken.write_bytes(packed[: len(packed) // 2])
    counts = []
    for threads in (1, 2):
        reader = open_log(broken, "libsvm", batch_size=10, threads=threads)
        with pytest.raises(hps.DataError, match="ends early"):
            list(reader)
        counts.append(reader.counts.examples)
    assert counts[0] == counts[1] > 0


def test_a_missing_file_is_a_store_error(tmp_path):
    with pytest.raises(hps.StoreError, match="nowhere"):
        open_log(tmp_path / "nowhere", "criteo")
    with pytest.raises(hps.StoreError, match="directory"):
        open_log(tmp_path, "criteo")


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"format": "tsv"}, "format='tsv' must be one of"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"epochs": 0}, "epochs=0"),
        ({"threads": -1}, "threads=-1"),
        ({"dense": -1}, "dense=-1"),
        ({"on_error": "stop"}, "on_error='stop'"),
        ({"label": ""}, "label=''"),
    ],
)
def test_a_config_out_of_limits_is_refused(fields, match):
    with pytest.raises(hps.ConfigError, match=match):
        ReaderConfig(**{"format": "criteo", **fields})


def test_tables_that_do_not_fit_are_refused(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(LINES["criteo"]))
    config = ReaderConfig(format="criteo")
    with pytest.raises(hps.ConfigError, match=r"does not have: \['C27'\]; it has \['C1', "):
        open_reader(log, tables=tables_of(["C1", "C27"]), config=config)
    with pytest.raises(hps.ConfigError, match="paths is empty"):
        open_reader([], tables=tables_of(None), config=config)
    with pytest.raises(hps.ConfigError, match="tables is empty"):
        open_reader(log, tables=[], config=config)
    with pytest.raises(hps.ConfigError, match="features=None"):
        open_reader(log, tables=tables_of(None, None), config=config)
    with pytest.raises(hps.ConfigError, match="'C1' appears in tables"):
        open_reader(log, tables=tables_of(["C1"], ["C1"]), config=config)
    with pytest.raises(hps.ConfigError, match="has no dense values"):
        open_reader(log, tables=tables_of(None), config=ReaderConfig(format="libsvm", dense=1))
    with pytest.raises(hps.DataError, match=r"too few.*--dense"):
        open_reader(log, tables=tables_of(None), config=ReaderConfig(format="criteo", dense=50))


def test_a_position_that_does_not_fit_is_refused(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(LINES["criteo"]))
    reader = open_log(log, "criteo")
    state = next(reader).position
    for change, match in [
        ({"format": "slots"}, "of format 'slots'"),
        ({"file": 1}, "file number 1"),
        ({"files": [["other", state["files"][0][1]]]}, "'other'.*log"),
        ({"files": [["log", 3]]}, "'log' of 3 bytes"),
        ({"files": state["files"] * 2}, "only 1 are given"),
        ({"files": []}, "a log of 0 files"),
        ({"files": None}, "names and sizes"),
        ({"offset": "x"}, "not a reader's position"),
        ({"features": {"t0": ["C1"]}}, "features"),
        ({"features": {"other": ["C1"]}}, "other tables"),
        ({"dense": 3}, "dense"),
    ]:
        with pytest.raises(hps.ConfigError, match=match):
            open_log(log, "criteo").load_state_dict({**state, **change})
    for offset in (state["offset"] + 1, 10**9):
        other = open_log(log, "criteo")
        other.load_state_dict({**json.loads(json.dumps(state)), "offset": offset})
        with pytest.raises(hps.ConfigError, match="no line begins at byte"):
            next(other)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(TEXT_FORMATS),
    suffix=st.sampled_from(["", ".gz", ".zst"]),
    data=st.one_of(
        st.binary(max_size=300),
        st.text(alphabet="01:\t\n\r .-+e9#clik", max_size=300).map(str.encode),
    ),
    on_error=st.sampled_from(["raise", "skip"]),
)
def test_random_bytes_give_batches_or_a_typed_error(tmp_path, kind, suffix, data, on_error):
    log = tmp_path / f"log{suffix}"
    log.write_bytes(data)
    dense = 1 if kind == "criteo" else None
    try:
        for batch in open_log(log, kind, on_error=on_error, dense=dense):
            assert len(batch) > 0
    except hps.DataError:
        assert on_error == "raise" or suffix or kind == "criteo"
