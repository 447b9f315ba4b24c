"""Recovery: kill -9 at any moment, restore to older checkpoints, other layouts, full disks."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ssd_twin import dump, fetch, keys_of, make_rows, schema

from hps.errors import ConfigError, StoreError
from hps.ssd_store import SsdStore, TableSchema

# Steps and checkpoints for ever; checkpoint n holds exactly what apply_step(1) to (n) leave.
WRITER = """
import sys
sys.path.insert(0, {tests!r})
from test_ssd_recovery import apply_step
from ssd_twin import schema
from {module} import {name}
with {name}.open({path!r}, [schema()], segment_bytes=2**14) as store:
    number = int(store.extras().get("number", b"0"))
    while True:
        number += 1
        apply_step(store, number)
        store.checkpoint(None, {{"number": str(number).encode(), "blob": bytes(5000)}})
        print(number, flush=True)
"""


def apply_step(store: Any, number: int) -> None:
    chance = np.random.default_rng(number)
    for part in range(3):
        store.append(
            "ads", make_rows(chance.integers(0, 3000, 200).astype(np.uint64), number + part)
        )
    store.erase("ads", chance.integers(0, 3000, 60).astype(np.uint64))


def test_kill_at_random_moments_returns_to_the_newest_checkpoint(
    store_class: Any, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills_between = 0
    replayed = 0
    with store_class.open(tmp_path / "replay", [schema()]) as replay:
        rounds = 6 if store_class is SsdStore else 3
        while rounds > 0 or (kills_between == 0 and rounds > -30):
            rounds -= 1
            script = WRITER.format(
                tests=str(Path(__file__).parent),
                module=store_class.__module__,
                name=store_class.__name__,
                path=str(path),
            )
            process = subprocess.Popen(
                [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=os.getcwd()
            )
            assert process.stdout is not None
            seen = [int(process.stdout.readline()) for _ in range(chance.randrange(1, 4))]
            time.sleep(chance.uniform(0, 0.03))
            process.send_signal(signal.SIGKILL)
            printed = [*seen, *(int(line) for line in process.stdout if line.endswith(b"\n"))]
            process.wait()
            with store_class.open(path, [schema()], segment_bytes=2**14) as store:
                number = int(store.extras()["number"])
                assert number in (printed[-1], printed[-1] + 1)
                kills_between += number > seen[0]
                while replayed < number:
                    replayed += 1
                    apply_step(replay, replayed)
                assert dump(store, "ads") == dump(replay, "ads")
                assert store.verify() == []
    assert kills_between > 0


def test_appends_after_the_checkpoint_do_not_show_up(store_class: Any, tmp_path: Path) -> None:
    with store_class.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(keys_of(range(10)), 1))
        store.checkpoint()
        store.append("ads", make_rows(keys_of(range(5, 20)), 2))
        store.erase("ads", keys_of([0, 1]))
    with store_class.open(tmp_path, [schema()]) as store:
        assert fetch(store, "ads", keys_of(range(30))) == {
            key: make_rows(keys_of([key]), 1).tobytes() for key in range(10)
        }


def test_restore_to_an_older_tag_then_more_then_reopen(store_class: Any, tmp_path: Path) -> None:
    with store_class.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(keys_of([1, 2]), 1))
        store.checkpoint("day-1", {"position": b"one"})
        store.append("ads", make_rows(keys_of([2, 3]), 2))
        store.checkpoint("day-2", {"position": b"two"})
        store.restore("day-1")
        assert store.extras() == {"position": b"one"}
        day_1 = dump(store, "ads")
    with store_class.open(tmp_path, [schema()]) as store:
        assert dump(store, "ads") == day_1, (
            "a kill after restore returns to the restored checkpoint"
        )
        store.append("ads", make_rows(keys_of([9]), 3))
        store.checkpoint()
        after = dump(store, "ads")
    with store_class.open(tmp_path, [schema()]) as store:
        assert dump(store, "ads") == after
        assert after.keys() == {1, 2, 9}
        store.restore("day-2")
        assert store.num_rows("ads") == 3
        assert store.extras("day-1") == {"position": b"one"}


def test_deleting_the_current_checkpoint_does_not_lose_it(store_class: Any, tmp_path: Path) -> None:
    with store_class.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(keys_of([1, 2]), 1))
        store.checkpoint("only")
        store.delete_checkpoint("only")
        assert store.checkpoints() == []
        with pytest.raises(ConfigError, match="only"):
            store.restore("only")
    with store_class.open(tmp_path, [schema()]) as store:
        assert store.num_rows("ads") == 2
        assert store.checkpoints() == []


def test_file_numbers_are_never_used_again(tmp_path: Path) -> None:
    seen: set[str] = set()
    for value in range(4):
        with SsdStore.open(tmp_path, [schema()]) as store:
            store.append("ads", make_rows(keys_of([value]), value))
            names = {file.name for file in tmp_path.glob("segment-*")}
            assert not names & seen
            seen |= names
            if value == 1:
                store.erase("ads", keys_of([value]))
                store.checkpoint()
                store.checkpoint()
                store.checkpoint()


def test_manifest_is_rewritten_when_it_has_grown(tmp_path: Path) -> None:
    with SsdStore.open(tmp_path, [schema()], segment_bytes=2**16, keep_last=1) as store:
        store.append("ads", make_rows(keys_of(range(100)), 1))
        store.checkpoint("kept", {"blob": b"k" * 4000})
        manifests = set()
        for number in range(12):
            blobs = {f"blob-{i}": bytes([number]) * 4000 for i in range(60)}
            store.checkpoint(None, blobs)
            manifests |= {file.name for file in tmp_path.glob("MANIFEST-*")}
        assert len(manifests) > 1
        assert len(list(tmp_path.glob("MANIFEST-*"))) == 1
    with SsdStore.open(tmp_path, [schema()]) as store:
        assert store.extras()["blob-59"] == bytes([11]) * 4000
        assert store.extras("kept") == {"blob": b"k" * 4000}
        assert store.num_rows("ads") == 100


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (schema(dim=8), "dim is 4, requested is 8"),
        (schema(optimizer="adam"), "optimizer is sgd, requested is adam"),
        (
            TableSchema(
                name="ads",
                dim=4,
                optimizer="sgd",
                initializer="uniform",
                numbers=(0.0, 1.0),
                row_bytes=32,
            ),
            r"initializer is normal\(0.01, 0\), requested is uniform\(0, 1\)",
        ),
    ],
)
def test_another_layout_is_refused_by_name(
    store_class: Any, tmp_path: Path, other: TableSchema, words: str
) -> None:
    store_class.open(tmp_path, [schema()], seed=3).close()
    with pytest.raises(ConfigError, match="table 'ads': stored " + words):
        store_class.open(tmp_path, [other], seed=3)
    store_class.open(tmp_path, [schema()], seed=3).close()


def test_another_seed_is_refused_and_tables_may_be_added(store_class: Any, tmp_path: Path) -> None:
    with store_class.open(tmp_path, [schema()], seed=3) as store:
        store.append("ads", make_rows(keys_of([1]), 1))
        store.checkpoint("one-table")
    for tables in ([schema()], []):
        with pytest.raises(ConfigError, match=f"{tmp_path}: stored seed is 3, requested is 4"):
            store_class.open(tmp_path, tables, seed=4)
    with store_class.open(tmp_path, [schema("users", 8), schema()], seed=3) as store:
        assert store.num_rows("users") == 0
        store.append("users", make_rows(keys_of([7]), 1, 48))
        store.checkpoint()
        store.restore("one-table")
        assert (store.num_rows("ads"), store.num_rows("users")) == (1, 0)
    with store_class.open(tmp_path, []) as store:
        assert list(store.schemas) == ["ads", "users"]
        assert store.seed == 3


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """Makes the system refuse files larger than this: to the store, as a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


@pytest.mark.parametrize("limit", [40, 500, 5000, 20000])
def test_full_disk_is_a_typed_error_and_the_store_goes_on(tmp_path: Path, limit: int) -> None:
    with SsdStore.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(keys_of(range(100)), 1))
        store.checkpoint("safe")
        store.append("ads", make_rows(keys_of(range(50)), 2))
        before = dump(store, "ads")
        with file_size_limit(limit):
            with pytest.raises(StoreError) as full:
                store.append("ads", make_rows(keys_of(range(100, 1100)), 3))
                store.checkpoint("full")
            assert full.value.errno in (errno.EFBIG, errno.ENOSPC)
            assert fetch(store, "ads", keys_of(range(100))) == before
        store.append("ads", make_rows(keys_of(range(100, 1100)), 3))
        store.checkpoint("after")
        after = dump(store, "ads")
        assert len(after) == 1100
    with SsdStore.open(tmp_path, [schema()]) as store:
        assert dump(store, "ads") == after
        store.restore("safe")
        assert store.num_rows("ads") == 100
        assert store.verify() == []
