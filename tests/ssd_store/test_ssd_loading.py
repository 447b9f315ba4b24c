"""Opening from footers: any number of threads gives the same index; damage is named, by order."""

import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ssd_twin import dump, keys_of, make_rows, schema

from hps import _C
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store import SsdStore

TABLES = [schema("ads"), schema("users", 2, "adam")]
FACTOR = np.uint64(0x9E3779B97F4A7C15)


def fill(path: Path, num_keys: int, segment_bytes: int) -> dict[int, bytes]:
    """Overwrites, erasures and erasures undone over many segments; what "ads" then holds."""
    chance = np.random.default_rng(3)
    keys = keys_of(range(num_keys)) * FACTOR
    options = {
        "segment_bytes": segment_bytes,
        "snapshot_rows": 2**40,
        "compact_in_background": False,
    }
    with SsdStore.open(path, TABLES, **options) as store:
        for value in range(4):
            store.append("ads", make_rows(chance.choice(keys, num_keys // 2), value))
            store.erase("ads", chance.choice(keys, num_keys // 9))
            store.append("ads", make_rows(chance.choice(keys, num_keys // 20), value + 10))
        store.append("users", make_rows(keys[:300], 7, TABLES[1].row_bytes))
        store.checkpoint("kept")
        stale = store.stats()["tables"]["ads"]
        assert stale["segments"] > 8 and stale["segment_bytes"] > 1.2 * stale["live_bytes"]
        return dump(store, "ads")


def test_every_number_of_threads_makes_the_same_index(tmp_path: Path) -> None:
    expected = fill(tmp_path, 120_000, 2**19)
    assert len(expected) > 2**16, "a smaller table is loaded by one thread"
    images = []
    for threads in (1, 2, 3, 8):
        with SsdStore.open(tmp_path, TABLES, threads=threads, snapshot_rows=0) as store:
            assert store.stats()["snapshot_bytes"] == 0
            figures = store.stats()["tables"]
            assert store.num_rows("ads") == len(expected)
        (image,) = tmp_path.glob("index-*")
        images.append((image.read_bytes(), figures))
        image.unlink()
    assert len(images[0][0]) > 12 * len(expected)
    with SsdStore.open(tmp_path, [], read_only=True, threads=3) as reader:
        assert dump(reader, "ads") == expected
    assert all(image == images[0] for image in images)


def test_small_segments_and_tombstones_without_records_load_too(tmp_path: Path) -> None:
    with SsdStore.open(tmp_path, TABLES, segment_bytes=80, snapshot_rows=2**40) as store:
        store.append("ads", make_rows(keys_of(range(400)), 1))
        store.checkpoint()
        store.erase("ads", keys_of(range(0, 300, 2)))
        store.append("ads", make_rows(keys_of([2, 4]), 2))
        store.checkpoint()
        expected = dump(store, "ads")
        assert store.stats()["tables"]["ads"]["segments"] > 128, "more than are read at once"
    assert len(expected) == 400 - 150 + 2
    for threads in (1, 4):
        with SsdStore.open(tmp_path, [], read_only=True, threads=threads) as reader:
            assert dump(reader, "ads") == expected


@pytest.mark.parametrize("threads", [1, 4])
def test_the_first_damaged_footer_is_named(tmp_path: Path, threads: int) -> None:
    fill(tmp_path, 120_000, 2**19)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    segments = sorted(tmp_path.glob("segment-*"))
    # In order of their entries: an output of compaction has a later number than its sequence.
    chosen = sorted(
        random.Random(seed).sample(segments[:-1], 3),
        key=lambda file: struct.unpack_from("<QI", file.read_bytes(), 32),
    )
    wholes = [file.read_bytes() for file in chosen]
    for file, whole in zip(chosen, wholes, strict=True):
        (tombstones,) = struct.unpack_from("<Q", whole, len(whole) - 24)
        keys_end = len(whole) - 48 - 16 * tombstones
        damaged = bytearray(whole)
        damaged[keys_end - 100] ^= 4
        file.write_bytes(damaged)
    with pytest.raises(CorruptionError, match=rf"{chosen[0].name}: .*checksum of the footer"):
        SsdStore.open(tmp_path, [], read_only=True, threads=threads)
    for file, whole in zip(chosen, wholes, strict=True):
        file.write_bytes(whole)
    with SsdStore.open(tmp_path, [], read_only=True, threads=threads) as reader:
        assert reader.verify() == []


def test_a_count_that_is_not_the_checkpoints_is_refused(tmp_path: Path) -> None:
    """As if a checkpoint's record and its segments were both whole, but of different moments."""
    with SsdStore.open(tmp_path, TABLES[:1]) as store:
        store.append("ads", make_rows(keys_of(range(60)), 1))
        store.checkpoint("kept")
    (manifest,) = tmp_path.glob("MANIFEST-*")
    log = bytearray(manifest.read_bytes())
    at, chain = 24, _C.crc32c(bytes(log[:24]))
    while True:  # records: u32 length, u32 kind, u32 checksum, payload
        length, kind = struct.unpack_from("<II", log, at)
        if kind == 2:
            break
        chain = struct.unpack_from("<I", log, at + 8)[0]
        at += 12 + length
    assert at + 12 + length == len(log)
    rows = log.index(struct.pack("<QQ", 60, 1), at)  # rows, then the count of segments
    struct.pack_into("<Q", log, rows, 61)
    struct.pack_into("<I", log, at + 8, _C.crc32c(bytes(log[at : at + 8] + log[at + 12 :]), chain))
    manifest.write_bytes(log)
    current = bytearray((tmp_path / "CURRENT").read_bytes())
    digest = np.empty(1, np.uint64)
    _C.hash_strings(np.frombuffer(log, np.uint8), np.array([0, len(log)]), 0, digest)
    struct.pack_into("<Q", current, 24, int(digest[0]))
    struct.pack_into("<I", current, 36, _C.crc32c(bytes(current[:36])))
    (tmp_path / "CURRENT").write_bytes(current)
    with pytest.raises(CorruptionError, match=r"'ads' has 60 rows.*manifest says 61"):
        SsdStore.open(tmp_path, [], read_only=True)


PEAK = """
import sys
from hps.ssd_store import SsdStore
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
SsdStore.open({small!r}, [], read_only=True).close()
before = peak()
with SsdStore.open({path!r}, [], read_only=True, threads=2) as store:
    print(peak() - before, store.num_rows("ads"), store.stats()["snapshot_bytes"])
"""


def test_opening_takes_at_most_sixteen_bytes_a_key(tmp_path: Path) -> None:
    num_keys = 1_100_000
    rows = np.zeros((50_000, 32), np.uint8)
    for name, count in (("small", 50_000), ("store", num_keys)):
        with SsdStore.open(tmp_path / name, TABLES[:1], snapshot_rows=2**40) as store:
            for first in range(0, count, 50_000):
                rows.view(np.uint64)[:, 0] = keys_of(range(first, first + 50_000)) * FACTOR
                store.append("ads", rows)
            store.checkpoint()
    script = PEAK.format(small=str(tmp_path / "small"), path=str(tmp_path / "store"))
    for has_snapshot in (False, True):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        grown, opened, loaded = map(int, done.stdout.split())
        assert opened == num_keys and (loaded > 0) == has_snapshot
        assert 10 * num_keys < grown <= 16 * num_keys + 2**20
        SsdStore.open(tmp_path / "store", []).close()


def test_a_store_opened_without_its_rows_tells_the_rest(tmp_path: Path) -> None:
    with SsdStore.open(tmp_path, TABLES, seed=4) as store:
        store.append("ads", make_rows(keys_of(range(60)), 1))
        store.checkpoint("kept", {"note": b"n"})
    with pytest.raises(ConfigError, match="read_only"):
        SsdStore.open(tmp_path, TABLES, rows=False)
    segment = next(tmp_path.glob("segment-*"))
    segment.write_bytes(b"not read")
    with SsdStore.open(tmp_path, [], read_only=True, rows=False) as store:
        assert (list(store.schemas), store.seed) == (["ads", "users"], 4)
        assert store.extras() == {"note": b"n"}
        assert [one["rows"] for one in store.checkpoints()] == [60]
        for read in (lambda: store.contains("ads", keys_of([1])), lambda: store.num_rows("ads")):
            with pytest.raises(StoreError, match="without its rows"):
                read()
