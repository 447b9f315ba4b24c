"""Where two checkpoints of one store differ, and 64 bits that are kept of records.

Above it: pytest, Hypothesis. Below it: csrc/ssd_store/changes.cc, record_marks.cc.
"""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings

import hps
from hps import _C
from hps.ssd_store.store import SsdStore
from tests.publish.publish_lab import a_server, a_table, push
from tests.ssd_store.test_open_beside import STEPS, contents, do


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_what_differs_is_among_the_changes_once(steps: list[tuple[str, object]]) -> None:
    tables = (a_table(), a_table("users", 2, expiry=hps.Expiry(unseen=2)))
    with tempfile.TemporaryDirectory() as folder, a_server(Path(folder) / "s", *tables) as server:
        for first in range(0, 3000, 1000):
            for table in ("ads", "users"):
                push(server, np.arange(first, first + 1000, dtype=np.uint64), 1.0, table)
            server.checkpoint()
        path, since = server.config.path, server.period
        with SsdStore.open(path, [], read_only=True) as before:
            old = {table: contents(before, table) for table in ("ads", "users")}
            for verb, what in steps:
                do(server, verb, what)
            server.checkpoint()
            for shares in (False, True):
                with SsdStore.open(
                    path, [], read_only=True, beside=before, shares_index=shares
                ) as after:
                    for table in ("ads", "users"):
                        check(before, after, table, old[table], server.period, since)


def check(
    before: SsdStore, after: SsdStore, table: str, old: dict[int, bytes], period: int, since: int
) -> None:
    new = contents(after, table)
    changes = after.changes_since(before, table, period, since)
    others = np.frombuffer(changes.others, np.uint64).tolist()
    rows: dict[int, bytes] = {}
    for images, places in after.scan_placed(table, 7, changes):
        keys = images.view(np.uint64)[:, 0].copy()
        assert np.array_equal(after.places(table, keys), places)
        for key, image in zip(keys.tolist(), images, strict=True):
            assert key not in rows
            rows[key] = image.tobytes()
    assert all(new[key] == image for key, image in rows.items())
    assert others == sorted(set(others)) and not rows.keys() & set(others)
    asked = np.array(others, np.uint64)
    moved = before.places(table, asked) != after.places(table, asked)
    assert moved.any(axis=1).all()  # nothing that lies in one place in both
    differ = {key for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
    assert differ <= rows.keys() | set(others)
    keys = np.array(sorted(old.keys() | new.keys() | {999_999}), np.uint64)
    for store, known in ((before, old), (after, new)):
        is_there = store.places(table, keys)[:, 0] != 0
        assert is_there.tolist() == [key in known for key in keys.tolist()]


def test_what_no_update_has_touched_is_not_among_the_changes(tmp_path: Path) -> None:
    with a_server(tmp_path / "s") as server:
        push(server, np.arange(5000, dtype=np.uint64), 1.0)
        server.checkpoint()
        with SsdStore.open(server.config.path, [], read_only=True) as before:
            push(server, np.array([3, 4, 9000], np.uint64), 1.0)
            server.erase("ads", np.array([5], np.uint64))
            server.checkpoint()
            with SsdStore.open(server.config.path, [], read_only=True) as after:
                changes = after.changes_since(before, "ads", 0, 0)
                scan = after.scan_placed("ads", 64, changes)
                keys = [key for images, _ in scan for key in images.view(np.uint64)[:, 0].tolist()]
                assert sorted(keys) == [3, 4, 9000]
                assert np.frombuffer(changes.others, np.uint64).tolist() == [5]
                assert set(before.segments("ads")) < set(after.segments("ads"))


def marks_of(rows: np.ndarray) -> np.ndarray:
    marks = np.empty(len(rows), np.uint64)
    _C.marks_of(rows, marks)
    return marks


def test_marks_tell_rows_apart_by_any_bit() -> None:
    row = np.random.default_rng(1).integers(0, 256, 68).astype(np.uint8)
    rows = np.repeat(row[None], 1 + 8 * 68, axis=0)
    for bit in range(8 * 68):
        rows[1 + bit, bit // 8] ^= 1 << bit % 8
    marks = marks_of(rows)
    assert len(set(marks.tolist())) == len(rows) and 0 not in marks
    assert (marks_of(np.repeat(row[None], 3, axis=0)) == marks[0]).all()


def test_marks_are_found_by_place_until_their_segment_goes() -> None:
    marks = _C.RecordMarks()
    places = np.array([[7, 0], [7, 5000], [9, 3]], np.uint64)
    marks.note(places, np.array([11, 12, 13], np.uint64))
    asked = np.array([[9, 3], [7, 5000], [7, 1], [8, 0], [9, 4], [0, 0], [7, 0]], np.uint64)
    found = np.empty(len(asked), np.uint64)
    marks.find(asked, found)
    assert found.tolist() == [13, 12, 0, 0, 0, 0, 11]
    assert marks.memory_bytes >= 8 * 5005
    marks.keep([9])
    marks.find(asked, found)
    assert found.tolist() == [13, 0, 0, 0, 0, 0, 0] and marks.memory_bytes < 1000
