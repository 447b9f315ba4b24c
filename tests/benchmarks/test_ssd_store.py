"""What the ssd_store benchmark rests on: batches, cold files, raw reads of the right records.

Above it: pytest. Below it: benchmarks/ssd_store.
"""

import json

import numpy as np
import pytest

from benchmarks.common.keys import hashed_keys
from benchmarks.common.timing import Samples
from benchmarks.ssd_store import page_cache
from benchmarks.ssd_store.hps_store import HpsStore
from benchmarks.ssd_store.record_file import (
    CHECKSUM_BYTES,
    GAPS,
    SEGMENT_HEADER_BYTES,
    AnnouncedMap,
    RawReads,
    RecordFile,
)
from benchmarks.ssd_store.records import Batch, Data, ZipfBatches
from benchmarks.ssd_store.ssd_costs import checksum_cost
from benchmarks.ssd_store.ssd_store_bench import rows_beside

DATA = Data(rows=30_000, record_bytes=80)
NUM_SEGMENTS = 4


@pytest.fixture
def raw(tmp_path, record_file):
    store = HpsStore(tmp_path / "hps", DATA.record_bytes)
    for places in np.array_split(DATA.by_place(), NUM_SEGMENTS):
        store.store.append("rows", DATA.records(places))
        store.store.checkpoint("kept")  # seals the segment
    assert len(store.files()) == NUM_SEGMENTS
    reads = RawReads(record_file, store)
    yield reads
    reads.close()
    store.close()


@pytest.fixture
def record_file(tmp_path):
    file = RecordFile(tmp_path / "records", DATA.record_bytes)
    file.load(DATA.in_order(DATA.by_place()))
    return file


def test_batches_have_distinct_keys_in_the_order_they_name():
    for batch in (DATA.uniform(500, 1), ZipfBatches(DATA, 500).next()):
        assert len(np.unique(batch.keys)) == len(batch.keys) == len(batch.places)
        assert (np.diff(batch.keys.astype(object)) > 0).all()
        assert np.array_equal(DATA.records(batch.places)[:, :8].copy().view("u8")[:, 0], batch.keys)
    loose = DATA.uniform(500, 1, is_sorted=False)
    assert set(loose.keys) == set(DATA.uniform(500, 1).keys)
    assert not (np.diff(loose.keys.astype(object)) > 0).all()


@pytest.mark.parametrize("gap", GAPS)
def test_raw_reads_bring_the_records_that_were_asked_for(raw, gap):
    raw._gap = gap
    num_pages = -(-DATA.rows * (DATA.record_bytes + 4) // page_cache.PAGE)
    starts = np.arange(NUM_SEGMENTS) * (DATA.rows // NUM_SEGMENTS)
    ends = Batch(hashed_keys(starts), starts, NUM_SEGMENTS)
    batches = ((DATA.uniform(3000, 2), num_pages), (DATA.uniform(7, 3, False), 7), (ends, 4))
    for batch, most in batches:
        try:
            found = raw.get(batch)
        except PermissionError as error:
            pytest.skip(f"io_uring is not allowed here: {error}")
        assert np.array_equal(found, DATA.records(batch.places))
        assert 0 < raw.notes["reads"] <= most < len(batch.keys) + 1


def test_an_announced_map_reads_the_same(record_file):
    announced = AnnouncedMap(record_file)
    batch = DATA.uniform(3000, 4)
    announced.begin()
    assert np.array_equal(announced.get(batch), DATA.records(batch.places))
    announced.end()


def test_only_the_store_that_is_linked_without_checksums_has_none(tmp_path):
    try:
        libraries = checksum_cost.libraries()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    memory = np.zeros(3000 * DATA.record_bytes, np.uint8)
    batch = DATA.uniform(3000, 5)
    segment_of = {}
    for name, library in libraries.items():
        store = checksum_cost.RowStore(library, tmp_path / name, DATA.record_bytes, memory)
        store.load(DATA)
        assert np.array_equal(store.get(batch), DATA.records(batch.places))
        segment_of[name] = store.files()[0]
        flip(segment_of[name], batch.places[7])
        if name == checksum_cost.WITH:
            with pytest.raises(OSError, match="row_store_fetch"):
                store.get(batch)
        else:
            assert np.array_equal(
                np.flatnonzero(store.get(batch) != DATA.records(batch.places)),
                [8 * DATA.record_bytes - 1],
            )
        store.close()
    checked, _, unsummed = (segment_of[name].read_bytes() for name in libraries)
    assert checked[-4:] != bytes(4) == unsummed[-4:], "of the footer"
    reader = checksum_cost.RowStore(
        libraries[checksum_cost.WITHOUT], tmp_path / checksum_cost.WITH, DATA.record_bytes, memory,
        read_only=True,
    )  # fmt: skip
    reader.get(batch)
    reader.close()


def flip(segment, record):
    """Changes the last byte of a record."""
    offset = SEGMENT_HEADER_BYTES + (record + 1) * (DATA.record_bytes + CHECKSUM_BYTES)
    with segment.open("r+b") as file:
        file.seek(offset - CHECKSUM_BYTES - 1)
        byte = file.read(1)[0]
        file.seek(offset - CHECKSUM_BYTES - 1)
        file.write(bytes([byte ^ 1]))


def test_dropped_files_are_cold_and_warmed_ones_are_not(record_file, raw):
    files = [record_file.path]
    if not raw.is_direct:
        pytest.skip("the temporary folder lies in memory")
    page_cache.warm(files)
    assert page_cache.drop(files) <= page_cache.MOST_RESIDENT
    page_cache.warm(files)
    assert page_cache.resident_part(files) == 1.0


def test_the_floor_stands_at_the_best_mode_of_a_peer():
    samples = {
        "hps": Samples((4.0, 4.0)),
        "RocksDB, slow": Samples((1.0, 1.0)),
        "RocksDB, fast": Samples((2.0, 2.0)),
        "LMDB": Samples((3.0, 3.0)),
    }
    rows = {row["baseline"]: row for row in rows_beside({"figure": "get warm"}, "x", samples)}
    assert {name: row["floor"] for name, row in rows.items()} == {
        "RocksDB, slow": None,
        "RocksDB, fast": 4.0,
        "LMDB": None,
    }
    assert rows["RocksDB, fast"]["ratio"] == 2.0


def test_a_result_can_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.ssd_store.plot import plot

    samples = {"hps": Samples((4.0,)), "LMDB": Samples((3.0,))}
    rows = []
    for figure, keys in (("get cold", "uniform"), ("get cold", "zipf"), ("get warm", "uniform")):
        axes = {"figure": figure, "keys": keys, "order": "sorted", "record_bytes": 64}
        rows += rows_beside(axes, "M keys/s", samples)
    rows += rows_beside({"figure": "put", "keys": "uniform", "record_bytes": 64}, "x", samples)
    result = {
        "commit": "c",
        "machine": {"cpu": "x", "cores": 2},
        "axes": {"rows": 10, "batch": 5},
        "rows": json.loads(json.dumps(rows)),
    }
    plot(result, tmp_path / "out.png")
    assert (tmp_path / "out.png").stat().st_size > 10_000
