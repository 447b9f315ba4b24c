"""Compaction: space comes back, nothing that anyone still reads goes, and nobody waits for it."""

import threading
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from ssd_twin import dump, fetch, keys_of, make_rows, schema

import hps
from hps.errors import ConfigError, CorruptionError
from hps.ssd_store import SsdStore

KEYS = keys_of(range(3000))


def open_store(path: Path, **options: object) -> SsdStore:
    settings = {"segment_bytes": 2**14, "keep_last": 1, "compact_in_background": False}
    return SsdStore.open(path, [schema()], **{**settings, **options})  # type: ignore[arg-type]


def bytes_on_disk(path: Path) -> int:
    files = [*path.glob("segment-*"), *path.glob("extra-*")]
    return sum(file.stat().st_size for file in files)


def fill(store: SsdStore) -> None:
    """Every segment half dead, in two checkpoints of which the newer one is kept."""
    store.append("ads", make_rows(KEYS, 1))
    store.checkpoint()
    store.append("ads", make_rows(KEYS[::2], 2))
    store.checkpoint(None, {"dense": b"d" * 9000})


def test_compact_gives_space_back_and_keeps_every_row(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store)
        before, rows = bytes_on_disk(tmp_path), dump(store, "ads")
        store.compact()
        assert store.stats()["compactions"] > 0
        assert bytes_on_disk(tmp_path) < before * 0.75
        assert bytes_on_disk(tmp_path) == store.stats()["files_bytes"]
        assert dump(store, "ads") == fetch(store, "ads", KEYS) == rows
        assert store.verify() == []
    with open_store(tmp_path) as store:
        assert dump(store, "ads") == rows
        assert store.extras() == {"dense": b"d" * 9000}
        done = store.stats()["bytes_compacted"]
        store.compact()
        assert store.stats()["bytes_compacted"] == done, "there is nothing left to do"


def test_compact_renews_a_checkpoint_only_if_nothing_was_stored_since(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store)
        (old,) = store.checkpoints()
        store.compact()
        (new,) = store.checkpoints()
        assert new["id"] > old["id"] and new["created"] == old["created"] and new["current"]
        assert new["rows"] == old["rows"] and new["bytes"] < old["bytes"]
        store.append("ads", make_rows(KEYS[::3], 3))
        store.compact()
        assert store.checkpoints() == [new]
        store.close()
    with open_store(tmp_path) as store:
        assert fetch(store, "ads", KEYS[:1])[0] == make_rows(KEYS[:1], 2).tobytes()


def test_compaction_gives_space_back_after_mass_erase(tmp_path: Path) -> None:
    with open_store(tmp_path, compact_in_background=True) as store:
        store.append("ads", make_rows(keys_of(range(20000)), 1))
        store.checkpoint()
        before = bytes_on_disk(tmp_path)
        gone = keys_of([key for key in range(20000) if key % 20])
        assert store.erase("ads", gone).all()
        store.checkpoint()
        end = monotonic() + 60
        while True:
            table = store.stats()["tables"]["ads"]
            if table["segment_bytes"] < 2 * table["live_bytes"] + 2**15 or monotonic() > end:
                break
            sleep(0.01)
        # 19,000 tombstones of 16 bytes are six times the thousand rows that are left.
        assert table["segment_bytes"] < 2 * table["live_bytes"] + 2**15
        store.checkpoint()
        assert bytes_on_disk(tmp_path) < before / 8
        assert store.num_rows("ads") == 1000
        store.erase("ads", keys_of(range(20000)))
        store.checkpoint()
        assert bytes_on_disk(tmp_path) == 0, "no row, no tombstone"


def test_a_reader_keeps_its_digest_while_compaction_and_retention_run(tmp_path: Path) -> None:
    table = hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=1.0))
    ssd = hps.SsdStoreConfig(segment_bytes=2**16, keep_last=1)
    dram = hps.DramCacheConfig(bytes="1MiB")
    config = hps.Config(path=tmp_path, tables=[table], ssd=ssd, dram=dram)
    random = np.random.default_rng(4)
    with hps.ParameterServer(config) as server:
        grads = np.ones((len(KEYS), 4), np.float32)
        server.push("ads", KEYS, grads)
        server.checkpoint("read")
        with hps.open(tmp_path, checkpoint="read", dram="1MiB") as reader:
            digest = reader.digest("ads")
            for _ in range(8):
                server.push("ads", random.permutation(KEYS)[:1000], grads[:1000])
                server.checkpoint()
                server.compact()
                assert reader.digest("ads") == digest
            assert server.stats()["ssd_store"]["compactions"] >= 4
            assert any("checkpoint 1" in holder for holder in server.delete_checkpoint("read"))
            server.compact()
            server.checkpoint()
            assert reader.digest("ads") == digest
            assert reader.pull("ads", KEYS).shape == (len(KEYS), 4)
        before = bytes_on_disk(tmp_path)
        server.checkpoint()
        assert bytes_on_disk(tmp_path) < before


def test_every_fetched_row_is_the_newest_while_all_else_goes_on(tmp_path: Path) -> None:
    """One thread appends growing values; others fetch and compare with what was acknowledged."""
    errors: list[BaseException] = []
    fetches = [0]
    begun, acknowledged = np.zeros((2, len(KEYS)), np.uint64)
    stop = threading.Event()
    with open_store(tmp_path, compact_in_background=True) as store:
        store.append("ads", make_rows(KEYS, 0))
        base = make_rows(KEYS, 0).view(np.uint64)[:, 2]

        def read() -> None:
            rows = np.zeros((len(KEYS), 32), np.uint8)
            found = np.zeros(len(KEYS), np.uint8)
            try:
                while not stop.is_set():
                    least = acknowledged.copy()
                    store.fetch("ads", KEYS, rows, found)
                    values = rows.view(np.uint64)[:, 2] - base
                    assert found.all()
                    assert (values >= least).all(), "a row is older than an acknowledged append"
                    assert (values <= begun).all()
                    fetches[0] += 1
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        random = np.random.default_rng(2)
        end, latest = monotonic() + 1.5, monotonic() + 60
        value = 0
        while not errors and (
            monotonic() < end
            or ((fetches[0] < 10 or not store.stats()["compactions"]) and monotonic() < latest)
        ):
            value += 1
            chosen = random.permutation(len(KEYS))[:1000]
            begun[chosen] = value
            store.append("ads", make_rows(KEYS[chosen], value))
            acknowledged[chosen] = value
            if value % 8 == 0:
                store.checkpoint()
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert store.stats()["compactions"] > 0


def test_what_was_written_is_counted_over_all_sessions(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store)
        store.compact()
        first = store.stats()
        assert first["bytes_appended"] == (3000 + 1500) * 36
        assert 0 < first["bytes_compacted"] <= 3000 * 36
        assert 1 < first["write_amplification"] < 2.5
        total = sum(first[f"bytes_{part}"] for part in ("appended", "compacted", "overhead"))
        assert first["write_amplification"] == total / first["bytes_appended"]
    with SsdStore.open(tmp_path, [], read_only=True) as store:
        assert store.stats()["bytes_appended"] == first["bytes_appended"]
        assert store.stats()["bytes_compacted"] == first["bytes_compacted"]
        assert store.stats()["bytes_written"] == 0


def test_damage_is_named_and_reads_of_the_rest_go_on(tmp_path: Path) -> None:
    with open_store(tmp_path) as store:
        fill(store)
        segment = min(tmp_path.glob("segment-*"))
        whole = bytearray(segment.read_bytes())
        whole[64 + 36 + 20] ^= 1  # of record 1, which is live
        segment.write_bytes(whole)
        with pytest.raises(CorruptionError, match=segment.name):
            store.compact()
        assert store.stats()["compaction_failures"] == 1
        assert store.stats()["compactions"] > 0
        assert len(fetch(store, "ads", KEYS[2:])) == 2998


def test_options_out_of_range_are_refused_by_name(tmp_path: Path) -> None:
    for name, value in (
        ("compaction_threshold", 0.0),
        ("compaction_threshold", 1.0),
        ("compaction_bytes_per_second", 0),
    ):
        with pytest.raises(ConfigError, match=name):
            open_store(tmp_path, **{name: value})
    with open_store(tmp_path) as store, pytest.raises(ConfigError, match="no table 'nope'"):
        store.compact("nope")


def test_a_lower_threshold_keeps_less_dead_bytes(tmp_path: Path) -> None:
    kept = {}
    for threshold in (0.2, 0.8):
        path = tmp_path / str(threshold)
        with open_store(path, compaction_threshold=threshold, segment_bytes=2**13) as store:
            random = np.random.default_rng(3)
            for value in range(50):
                store.append("ads", make_rows(random.permutation(KEYS)[:500], value))
            assert store.stats()["append_waits"] > 0
            kept[threshold] = store.stats()["tables"]["ads"]["segment_bytes"]
    assert kept[0.2] * 2 < kept[0.8]
