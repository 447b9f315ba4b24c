"""The snapshot of the index: made at a clean close, used for its own checkpoint, never trusted."""

import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from ssd_twin import dump, fetch, keys_of, make_rows, schema

from hps.errors import CorruptionError, StoreError
from hps.ssd_store import SsdStore, verify

TABLES = [schema("ads"), schema("users", 2, "adam")]
KEYS = keys_of(range(0, 40_000, 7)) * np.uint64(0x9E3779B97F4A7C15)


def open_store(path: Path, **options: object) -> SsdStore:
    settings = {
        "segment_bytes": 2**15,
        "snapshot_rows": 0,
        "compact_in_background": False,
        **options,
    }
    return SsdStore.open(path, [] if options.get("read_only") else TABLES, **settings)


def fill(store: SsdStore) -> None:
    """Rows of two tables, some stale, some erased, over many segments."""
    store.append("ads", make_rows(KEYS, 1))
    store.append("ads", make_rows(KEYS[1000:2500], 2))
    store.erase("ads", np.ascontiguousarray(KEYS[::5]))
    store.append("ads", make_rows(KEYS[:50], 3))
    store.append("users", make_rows(KEYS[:900], 4, TABLES[1].row_bytes))


def snapshots(path: Path) -> list[Path]:
    return sorted(path.glob("index-*"))


def loaded_bytes(store: SsdStore) -> int:
    return int(store.stats()["snapshot_bytes"])


def contents(path: Path) -> dict[str, dict[int, bytes]]:
    """All rows, by a reader that does not see a snapshot."""
    hidden = [file.rename(file.with_name("hidden-" + file.name)) for file in snapshots(path)]
    with open_store(path, read_only=True) as reader:
        assert loaded_bytes(reader) == 0
        rows = {table: dump(reader, table) for table in reader.schemas}
    for file in hidden:
        file.rename(file.with_name(file.name.removeprefix("hidden-")))
    return rows


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A store with a checkpoint "kept" and its snapshot."""
    path = tmp_path / "store"
    with open_store(path) as store:
        fill(store)
        store.checkpoint("kept", {"note": b"n"})
    assert store.closing_bytes == snapshots(path)[0].stat().st_size
    return path


def test_a_clean_close_leaves_a_snapshot_that_the_next_opening_uses(closed: Path) -> None:
    expected = contents(closed)
    assert min(len(rows) for rows in expected.values()) > 500
    names = snapshots(closed)
    for read_only in (True, False, False):
        with open_store(closed, read_only=read_only) as store:
            assert loaded_bytes(store) == names[0].stat().st_size
            assert {table: dump(store, table) for table in store.schemas} == expected
            assert fetch(store, "ads", KEYS) == expected["ads"]
            assert store.verify() == []
        assert store.closing_bytes == 0, "it is there already"
        assert snapshots(closed) == names


def test_a_store_goes_on_from_a_snapshot_as_from_footers(closed: Path, tmp_path: Path) -> None:
    """Live counts, chunks and tombstones: later calls do the same, and free the same files."""
    plain = tmp_path / "plain"
    shutil.copytree(closed, plain)
    snapshots(plain)[0].unlink()
    seen = []
    for path, has_snapshot in ((closed, True), (plain, False)):
        with open_store(path, keep_last=1) as store:
            assert (loaded_bytes(store) > 0) == has_snapshot
            steps = [store.stats()["tables"]]
            store.append("ads", make_rows(KEYS[3000:4200], 5))
            store.erase("ads", np.ascontiguousarray(KEYS[:2000]))
            store.checkpoint()
            store.delete_checkpoint("kept")
            steps.append(store.stats()["tables"])
            store.erase("ads", KEYS)
            store.checkpoint()
            store.checkpoint()
            steps.append(store.stats()["tables"])
            seen.append((steps, len(list(path.glob("segment-*"))), dump(store, "users")))
    for steps in zip(seen[0][0], seen[1][0], strict=True):
        for table in ("ads", "users"):
            counts = [
                {k: v for k, v in step[table].items() if k != "index_bytes"} for step in steps
            ]
            assert counts[0] == counts[1]
    assert seen[0][1:] == seen[1][1:]
    assert seen[0][0][2]["ads"]["segments"] == 0, "all segments of an empty table were dropped"


def test_there_is_at_most_one_and_it_goes_with_its_checkpoint(closed: Path) -> None:
    first = snapshots(closed)
    with open_store(closed) as store:
        store.append("ads", make_rows(KEYS[:10], 9))
        assert snapshots(closed) == first, "a kill would return to its checkpoint"
        store.checkpoint()
        assert snapshots(closed) == []
    second = snapshots(closed)
    assert len(second) == 1 and second != first
    with open_store(closed) as store:
        assert loaded_bytes(store) == second[0].stat().st_size
        store.restore("kept")
        assert snapshots(closed) == []
    assert len(snapshots(closed)) == 1
    with open_store(closed) as store:
        assert loaded_bytes(store) > 0
        store.erase("ads", KEYS)
        store.restore()
        assert loaded_bytes(store) > 0, "going back to the checkpoint needs no footers either"
        assert store.num_rows("ads") == len(contents(closed)["ads"])


def test_none_is_left_where_it_would_be_wrong_or_of_no_use(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store)
    assert store.closing_bytes == 0, "nothing is in a checkpoint"
    with open_store(tmp_path) as store:
        fill(store)
        store.checkpoint("kept")
        store.append("ads", make_rows(KEYS[:10], 9))
    assert store.closing_bytes == 0, "more is stored than the checkpoint holds"
    with open_store(tmp_path) as store:
        store.erase("ads", KEYS[1:2])
    assert store.closing_bytes == 0, "less is stored than the checkpoint holds"
    with open_store(tmp_path, read_only=True) as store:
        assert store.num_rows("ads") > 0
    assert store.closing_bytes == 0, "a reader writes nothing"
    with open_store(tmp_path, snapshot_rows=10_000) as store:
        assert 0 < sum(store.num_rows(table) for table in store.schemas) < 10_000
    assert store.closing_bytes == 0 and snapshots(tmp_path) == []


def test_a_damaged_snapshot_is_never_used_and_no_damage_of_the_store(closed: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    (file,) = snapshots(closed)
    expected = contents(closed)
    whole = file.read_bytes()
    head = int.from_bytes(whole[8:16], "little") + 16
    assert 100 < head < len(whole)
    places = [*range(0, 24), *(chance.randrange(head) for _ in range(60))]
    places += [chance.randrange(len(whole)) for _ in range(120)]
    pieces = [(whole[:byte] + bytes([whole[byte] ^ 1 << chance.randrange(8)]) + whole[byte + 1 :])
              for byte in places]  # fmt: skip
    pieces += [whole[:length] for length in (9, 100, head - 1, head, len(whole) - 1)] + [
        whole + b"x"
    ]
    for number, piece in enumerate(pieces):
        file.write_bytes(piece)
        assert verify(closed) == [], number
        with open_store(closed, read_only=True) as reader:
            assert loaded_bytes(reader) == 0, number
            assert reader.num_rows("ads") == len(expected["ads"])
            if number % 20 == 0:
                assert {table: dump(reader, table) for table in reader.schemas} == expected
    with open_store(closed) as store:
        assert loaded_bytes(store) == 0 and snapshots(closed) == []
        assert dump(store, "ads") == expected["ads"]
    assert store.closing_bytes > 0, "and a good one takes its place"


def test_what_a_killed_process_left_of_one_is_no_damage(closed: Path) -> None:
    (file,) = snapshots(closed)
    whole = file.read_bytes()
    for left in (b"", bytes(5), bytes(len(whole)), bytes(8) + whole[8:]):
        file.write_bytes(left)
        assert verify(closed) == []
        with open_store(closed, read_only=True) as reader:
            assert loaded_bytes(reader) == 0 and reader.num_rows("users") == 900
    with open_store(closed):
        assert snapshots(closed) == []


def test_one_of_another_checkpoint_or_store_is_not_used(closed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    with open_store(other) as store:
        store.append("ads", make_rows(KEYS[:100], 1))
        store.checkpoint("kept")
    (old,) = snapshots(closed)
    foreign, whole = snapshots(other)[0].read_bytes(), old.read_bytes()
    with open_store(closed, snapshot_rows=2**40) as store:
        store.append("ads", make_rows(keys_of([1]), 9))
        store.checkpoint("newer")
    assert snapshots(closed) == []
    for left in (whole, foreign):
        old.write_bytes(left)  # as a process that knows of no snapshots may leave it
        with open_store(closed, read_only=True) as reader:
            assert loaded_bytes(reader) == 0
            assert fetch(reader, "ads", keys_of([1])) != {}
        with open_store(closed, read_only=True, checkpoint="kept") as reader:
            assert (loaded_bytes(reader) > 0) == (left is whole)
            assert fetch(reader, "ads", keys_of([1])) == {}
    with open_store(closed, snapshot_rows=2**40):
        assert snapshots(closed) == []


def test_one_of_a_copy_that_went_another_way_is_not_used(closed: Path, tmp_path: Path) -> None:
    """Equal in every number: store, checkpoint, segments, rows. Only the digest tells."""
    copy = tmp_path / "copy"
    shutil.copytree(closed, copy)
    for path, first in ((closed, 10**6), (copy, 2 * 10**6)):
        with open_store(path) as store:
            store.append("ads", make_rows(keys_of(range(first, first + 500)), 1))
            store.checkpoint("next")
    (ours,), (theirs,) = snapshots(closed), snapshots(copy)
    assert ours.name == theirs.name and ours.read_bytes() != theirs.read_bytes()
    shutil.copy(theirs, ours)
    with open_store(closed, read_only=True) as reader:
        assert loaded_bytes(reader) == 0
        assert len(fetch(reader, "ads", keys_of(range(10**6, 10**6 + 500)))) == 500


def test_a_segment_that_is_missing_or_cut_off_is_noticed_beside_a_snapshot(closed: Path) -> None:
    for segment in sorted(closed.glob("segment-*"))[:3]:
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-1])
        with pytest.raises(CorruptionError, match=segment.name):
            open_store(closed, read_only=True)
        segment.write_bytes(b"\0" + whole[1:])
        with pytest.raises(CorruptionError, match=segment.name):
            open_store(closed, read_only=True)
        segment.unlink()
        with pytest.raises(StoreError, match=segment.name):
            open_store(closed, read_only=True)
        segment.write_bytes(whole)
    with open_store(closed, read_only=True) as reader:
        assert loaded_bytes(reader) > 0


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_close_succeeds_when_the_disk_is_full(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store)
    store.checkpoint("kept")
    with file_size_limit(20_000):
        store.close()
    assert store.closing_bytes == 0 and snapshots(tmp_path) == []
    assert verify(tmp_path) == []
    with open_store(tmp_path) as store:
        assert store.num_rows("users") == 900
    assert store.closing_bytes > 20_000


def test_a_reader_opens_beside_a_writer_that_came_from_the_same_snapshot(closed: Path) -> None:
    with open_store(closed) as writer, open_store(closed, read_only=True) as reader:
        assert loaded_bytes(reader) == loaded_bytes(writer) > 0
        before = dump(reader, "ads")
        writer.append("ads", make_rows(KEYS, 8))
        writer.checkpoint()
        assert snapshots(closed) == []
        assert dump(reader, "ads") == before
