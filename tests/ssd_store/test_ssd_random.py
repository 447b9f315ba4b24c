"""Random operations on SsdStore and on its dict twin agree, across crashes and reopening."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ssd_twin import EDGE_KEYS, StoreTwin, dump, fetch, keys_of, make_rows, schema

from hps.ssd_store import SsdStore

TABLES = [schema("ads", 4), schema("users", 2, "adam")]
POOL = np.array(EDGE_KEYS + [(i * 0x9E3779B97F4A7C15) % 2**64 for i in range(3, 400)], np.uint64)


def open_store(store_class: Any, path: Path, **options: Any) -> Any:
    return store_class.open(path, TABLES, segment_bytes=2**14, keep_last=2, seed=5, **options)


def compare(store: SsdStore, twin: StoreTwin) -> None:
    for table in twin.tables:
        assert dump(store, table) == twin.state[table]
        assert fetch(store, table, POOL) == twin.state[table]
        assert store.num_rows(table) == len(twin.state[table])
    listed = {info["id"]: info["tag"] for info in store.checkpoints()}
    assert listed == {number: tag for number, (tag, _) in twin.checkpoints.items()}


@pytest.mark.parametrize("seed", range(6))
def test_random_operations_agree_with_the_twin(store_class: Any, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    twin = StoreTwin([table.name for table in TABLES])
    in_background = seed % 2 == 1  # else every step happens in the same order again
    has_snapshots = seed % 3 == 1
    options: dict[str, Any] = {}
    if store_class is SsdStore:
        options["compact_in_background"] = in_background
        options["snapshot_rows"] = 0 if has_snapshots else 2**40
    store = open_store(store_class, tmp_path, **options)
    num_from_snapshot = 0
    verbs = ["append", "erase", "checkpoint", "restore", "delete", "crash", "compact"]
    counts = dict.fromkeys(verbs, 0)
    num_compactions = num_renewed = 0
    for step in range(220):
        table = chance.choice(TABLES)
        keys = np.array(chance.choices(POOL.tolist(), k=chance.randrange(0, 90)), np.uint64)
        action = chance.choices(list(counts), [60, 20, 10, 4, 3, 5, 10])[0]
        counts[action] += 1
        if action == "append":
            rows = make_rows(keys, step, table.row_bytes)
            store.append(table.name, rows)
            twin.append(table.name, rows)
        elif action == "erase":
            assert store.erase(table.name, keys).tolist() == twin.erase(table.name, keys)
        elif action == "checkpoint":
            tag = chance.choice([None, None, "a", "b"])
            info = store.checkpoint(tag, {"step": str(step).encode()})
            twin.checkpoint(tag)
            assert info["rows"] == sum(len(rows) for rows in twin.state.values())
        elif action == "restore":
            number = chance.choice([None, *twin.checkpoints])
            store.restore(number)
            twin.restore(number)
        elif action == "delete" and twin.checkpoints:
            number = chance.choice(list(twin.checkpoints))
            store.delete_checkpoint(number)
            twin.delete(number)
        elif action == "crash":
            num_compactions += store.stats().get("compactions", 0)
            if has_snapshots and step % 4:
                store.checkpoint()
                twin.checkpoint(None)
            store.close()  # as a kill it returns to the current checkpoint
            store = open_store(store_class, tmp_path, **options)
            twin.restore(None)
            num_from_snapshot += store.stats().get("snapshot_bytes", 0) > 0
        elif action == "compact":
            before = twin.current_id
            store.compact(chance.choice([None, table.name]))
            twin.compact([info["id"] for info in store.checkpoints()])
            num_renewed += twin.current_id != before
        if step % 10 == 0 or action in ("restore", "crash"):
            compare(store, twin)
    assert min(counts.values()) > 0
    assert num_renewed > 0
    if store_class is SsdStore:
        assert num_compactions > 3
        assert (num_from_snapshot > 0) == has_snapshots
    compare(store, twin)
    assert store.verify() == []
    for number, (_, state) in twin.checkpoints.items():
        with store_class.open(tmp_path, [], read_only=True, checkpoint=number) as reader:
            assert {table: dump(reader, table) for table in twin.tables} == state
    store.close()


def test_duplicates_in_one_append_keep_the_last(store_class: Any, tmp_path: Path) -> None:
    with open_store(store_class, tmp_path) as store:
        rows = make_rows(keys_of([5, 6, 5, 5]), 0)
        rows[:, 31] = [1, 2, 3, 4]
        store.append("ads", rows)
        assert {key: row[31] for key, row in dump(store, "ads").items()} == {5: 4, 6: 2}


def test_fetch_keeps_the_callers_order_and_leaves_absent_rows_alone(
    store_class: Any, tmp_path: Path
) -> None:
    with open_store(store_class, tmp_path) as store:
        store.append("ads", make_rows(keys_of([1, 2, 3]), 7))
        keys = keys_of([3, 9, 1, 3])
        rows = np.full((4, 32), 255, np.uint8)
        found = np.zeros(4, np.uint8)
        store.fetch("ads", keys, rows, found)
        assert found.tolist() == [1, 0, 1, 1]
        assert (rows[1] == 255).all()
        assert (rows[[0, 2, 3]] == make_rows(keys_of([3, 1, 3]), 7)).all()


def test_empty_batches_are_no_operation(store_class: Any, tmp_path: Path) -> None:
    none = keys_of([])
    with open_store(store_class, tmp_path) as store:
        store.append("ads", make_rows(none, 0))
        assert fetch(store, "ads", none) == {}
        assert store.erase("ads", none).tolist() == []
        assert dump(store, "ads") == {}


def test_scan_is_not_changed_by_what_happens_meanwhile(store_class: Any, tmp_path: Path) -> None:
    with open_store(store_class, tmp_path) as store:
        keys = keys_of(range(1000))
        store.append("ads", make_rows(keys, 1))
        before = dump(store, "ads")
        seen: dict[int, bytes] = {}
        for number, piece in enumerate(store.scan("ads", 64)):
            seen |= {int(row[:8].view(np.uint64)[0]): row.tobytes() for row in piece}
            store.append("ads", make_rows(keys[number * 50 :][:200], 2))
            store.erase("ads", np.ascontiguousarray(keys[number::7]))
            store.checkpoint()
        assert seen == before
        assert dump(store, "ads") != before
        before, scan = dump(store, "ads"), store.scan("ads", 64)
        store.erase("ads", keys)  # before the first piece
        assert {
            int(row[:8].view(np.uint64)[0]): row.tobytes() for piece in scan for row in piece
        } == before


def test_segments_roll_over_and_dead_ones_are_removed(tmp_path: Path) -> None:
    with open_store(SsdStore, tmp_path) as store:
        keys = keys_of(range(2000))
        store.append("ads", make_rows(keys, 1))
        assert store.stats()["tables"]["ads"]["segments"] > 3
        store.checkpoint("first")
        first = set(tmp_path.glob("segment-*"))
        store.append("ads", make_rows(keys, 2))
        store.checkpoint()
        assert first < set(tmp_path.glob("segment-*")), "a tagged checkpoint keeps its files"
        assert store.stats()["checkpoint_only_bytes"] > 0
        store.delete_checkpoint("first")
        assert not first & set(tmp_path.glob("segment-*"))
        assert store.stats()["checkpoint_only_bytes"] == 0
        assert dump(store, "ads").keys() == set(range(2000))


def test_tombstones_hide_older_rows_after_reopening(store_class: Any, tmp_path: Path) -> None:
    keys = keys_of(EDGE_KEYS)
    with open_store(store_class, tmp_path) as store:
        store.append("ads", make_rows(keys, 1))
        store.checkpoint()
        assert store.erase("ads", keys[:4]).tolist() == [1, 1, 1, 1]
        store.append("ads", make_rows(keys[:1], 2))
        assert store.erase("ads", keys[3:]).tolist() == [0, 1, 1]
        store.checkpoint()
    with open_store(store_class, tmp_path) as store:
        assert dump(store, "ads") == {0: make_rows(keys[:1], 2).tobytes()}
        store.erase("ads", keys)
        store.checkpoint()
        store.checkpoint()
        assert segment_count(tmp_path) == 0, "nothing lives, so no segment is needed"
    with open_store(store_class, tmp_path) as store:
        assert dump(store, "ads") == {}


def segment_count(path: Path) -> int:
    return len(list(path.glob("segment-*")))
