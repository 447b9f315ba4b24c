"""Around a checkpoint: leftovers, pins of others, copies, closing, the size of the manifest."""

import os
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ssd_twin import dump, fetch, keys_of, make_rows, schema

from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store import SsdStore

KEYS = keys_of(range(60))


def test_restore_checks_segment_headers_before_it_commits(tmp_path: Path) -> None:
    with SsdStore.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(KEYS, 1))
        store.checkpoint("old")
        segment = next(tmp_path.glob("segment-*"))
        store.append("ads", make_rows(KEYS, 2))
        store.checkpoint("new")
        whole = bytearray(segment.read_bytes())
        whole[20] ^= 1
        segment.write_bytes(whole)
        before = dump(store, "ads")
        with pytest.raises(CorruptionError, match=segment.name):
            store.restore("old")
        assert dump(store, "ads") == before
        assert [one["tag"] for one in store.checkpoints() if one["current"]] == ["new"]


def test_a_leftover_that_cannot_be_removed_fails_no_checkpoint(tmp_path: Path) -> None:
    with SsdStore.open(tmp_path, [schema()]) as store:
        (tmp_path / "segment-000000000001").mkdir()  # which unlink refuses
        store.append("ads", make_rows(KEYS, 1))
        assert store.checkpoint("one")["rows"] == 60
        store.restore("one")
        assert store.delete_checkpoint("one") == []
    with SsdStore.open(tmp_path, [schema()]) as store:
        assert store.num_rows("ads") == 60


def test_an_unreadable_pin_keeps_everything(tmp_path: Path) -> None:
    with SsdStore.open(tmp_path, [schema()], keep_last=1) as store:
        pin = tmp_path / "pins" / "reader-1-1"
        pin.symlink_to(pin)  # a loop, which even root cannot open
        for value in (1, 2, 3):
            store.append("ads", make_rows(KEYS, value))
            store.checkpoint()
        assert len(list(tmp_path.glob("segment-*"))) >= 3
        pin.unlink()
        store.checkpoint()


def test_a_copy_without_the_folder_of_pins_can_be_read(store_class: Any, tmp_path: Path) -> None:
    with store_class.open(tmp_path / "store", [schema()]) as store:
        store.append("ads", make_rows(KEYS, 1))
        store.checkpoint("one")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "pins")
    with store_class.open(tmp_path / "copy", [schema()], read_only=True) as reader:
        assert len(fetch(reader, "ads", KEYS)) == 60
        assert reader.verify() == []


def test_close_gives_the_lock_up_while_a_scan_lives(tmp_path: Path) -> None:
    store = SsdStore.open(tmp_path, [schema()])
    store.append("ads", make_rows(KEYS, 1))
    pieces = store.scan("ads", 7)
    next(pieces)
    native = store._native
    assert native is not None
    store.close()
    store.close()
    with SsdStore.open(tmp_path, [schema()]) as other:
        other.append("ads", make_rows(KEYS, 2))
        with pytest.raises(StoreError, match="closed"):
            next(pieces)
        with pytest.raises(StoreError, match="closed"):
            native.append(0, make_rows(KEYS, 3))
        with pytest.raises(StoreError, match="closed"):
            native.num_rows(0)
        other.checkpoint("one")


def test_delete_needs_a_name(store_class: Any, tmp_path: Path) -> None:
    with store_class.open(tmp_path, [schema()]) as store:
        store.checkpoint("one")
        with pytest.raises(ConfigError, match="tag or id"):
            store.delete_checkpoint(None)  # type: ignore[arg-type]
        assert len(store.checkpoints()) == 1


def test_a_refused_checkpoint_leaves_no_extras_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with SsdStore.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(keys_of(range(3000)), 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (50000, hard))
        try:
            with pytest.raises(StoreError):
                store.checkpoint("one", {"dense": bytes(20000)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list(tmp_path.glob("extra*")) == []
        store.checkpoint("one", {"dense": bytes(20000)})
        assert len(list(tmp_path.glob("extra*"))) == 1


def test_the_manifest_stays_short_over_many_sessions(tmp_path: Path) -> None:
    blob = {"position": os.urandom(4000)}
    largest = 0
    for _ in range(40):
        with SsdStore.open(tmp_path, [schema()], keep_last=1) as store:
            for _ in range(20):
                store.checkpoint(None, blob)
        largest = max(largest, *(file.stat().st_size for file in tmp_path.glob("MANIFEST-*")))
    assert largest < 2**20 + 2**18


def test_erased_keys_stay_erased_when_the_disk_refuses_their_footer(tmp_path: Path) -> None:
    keys = np.arange(2**20 + 10, dtype=np.uint64)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with SsdStore.open(tmp_path, [schema()]) as store:
        store.append("ads", make_rows(keys, 1))
        store.checkpoint("full")
        store.append("ads", make_rows(keys_of([0]), 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, hard))
        try:
            assert store.erase("ads", keys).all()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert store.num_rows("ads") == 0
        store.checkpoint("empty")
    with SsdStore.open(tmp_path, [schema()]) as store:
        assert store.num_rows("ads") == 0
