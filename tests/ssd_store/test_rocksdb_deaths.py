"""What the engine over RocksDB does about rows that die: its counts, its entries, its bytes."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import hps
from hps.errors import CorruptionError, StoreError
from hps.ssd_store import TableSchema
from hps.ssd_store.rocksdb import burial
from hps.ssd_store.rocksdb.database import RocksDbDatabase
from hps.ssd_store.rocksdb.deaths import ABSENT, NO_ROWS, Change, Deaths
from hps.ssd_store.rocksdb.manifest import RocksDbManifest

pytest.importorskip("rocksdict")
from hps.ssd_store.rocksdb.store import RocksDbStore

MORTAL = TableSchema.of(hps.TableConfig(name="ads", dim=4, statistics=True))
Keys = NDArray[np.uint64]


def opened(path: Path, **options: Any) -> RocksDbStore:
    return RocksDbStore.open(path / "store", [MORTAL], segment_bytes=2**16, **options)


def keys_of(first: int, end: int) -> Keys:
    return np.arange(first, end, dtype=np.uint64)


def rows_that_die(keys: Keys, deaths: Any) -> NDArray[np.uint8]:
    rows = np.zeros((len(keys), MORTAL.row_bytes), np.uint8)
    rows[:, :8].view(np.uint64)[:, 0] = keys
    rows[:, 20:24].view(np.uint32)[:, 0] = deaths
    return rows


def living(store: RocksDbStore) -> dict[int, int]:
    """Periods of death of all rows, by key."""
    found: dict[int, int] = {}
    for rows in store.scan("ads"):
        keys, deaths = rows.view(np.uint64)[:, 0], rows.view(np.uint32)[:, 5]
        found |= dict(zip(keys.tolist(), deaths.tolist(), strict=True))
    return found


def records_of(store: RocksDbStore) -> int:
    """How many are there, dead or not."""
    live: Any = store._live
    now = live.tables["ads"].deaths.now
    return int(now.num_records)


def test_counts_and_entries_follow_every_write(tmp_path: Path) -> None:
    """Against a dict; the dead are erased in pieces at any time, or not at all."""
    generator = np.random.default_rng(5)
    model: dict[int, int] = {}
    period, early = 0, 0
    store = opened(tmp_path, compact_in_background=False)
    for step in range(120):
        keys = generator.integers(0, 300, 60).astype(np.uint64)
        deaths = (period + generator.integers(1, 9, 60)) * (generator.random(60) < 0.8)
        store.append("ads", rows_that_die(keys, deaths))
        model |= dict(zip(keys.tolist(), deaths.tolist(), strict=True))
        gone = generator.integers(0, 300, 9).astype(np.uint64)
        told = [key in model for key in gone.tolist()]
        firsts = [key not in gone[:i] for i, key in enumerate(gone)]
        expected = [a and b for a, b in zip(told, firsts, strict=True)]
        assert store.erase("ads", gone).tolist() == expected
        model = {key: death for key, death in model.items() if key not in set(gone.tolist())}
        if step % 4 == 3:
            period += 1
            horizon = period + int(generator.integers(0, 3))
            early += sum(period < death <= horizon for death in model.values())
            store.set_period(period, {"ads": horizon})
            model = {key: death for key, death in model.items() if not 0 < death <= horizon}
        if step % 7 == 6:
            store._change(store._open_live_or_raise().bury)
        if step % 10 == 9:
            extras = {"period.json": json.dumps({"period": period}).encode()}
            store.checkpoint(extras=extras)
            if step % 20 == 19:
                store.close()
                store = opened(tmp_path, compact_in_background=False)
        assert living(store) == model
        assert store.num_rows("ads") == len(model)
        counts = store.count_deaths("ads", period)
        gaps = Counter(death and death - period for death in model.values())
        assert {gap: n for gap, n in enumerate(counts.tolist()) if n} == gaps
    assert early > 100
    with store:
        store.compact()
        assert records_of(store) == len(model)
        assert living(store) == model and store.verify() == []


def test_a_thread_erases_the_dead_at_its_pace(tmp_path: Path) -> None:
    with opened(tmp_path, compaction_bytes_per_second=200_000) as store:
        store.append("ads", rows_that_die(keys_of(0, 20_000), 3))
        store.append("ads", rows_that_die(keys_of(20_000, 20_100), 9))
        store.set_period(3)
        assert store.num_rows("ads") == 100
        assert records_of(store) > 8000  # the first piece has gone, and the next one waits
    with opened(tmp_path) as store:
        assert records_of(store) == 0
        store.append("ads", rows_that_die(keys_of(0, 20_000), 3))
        store.append("ads", rows_that_die(keys_of(20_000, 20_100), 9))
        store.set_period(3)
        until = time.monotonic() + 30
        while records_of(store) > 100 and time.monotonic() < until:
            time.sleep(0.01)
        assert records_of(store) == store.num_rows("ads") == len(living(store)) == 100


def test_the_bytes_of_the_dead_go(tmp_path: Path) -> None:
    with opened(tmp_path, keep_last=1, compact_in_background=False) as store:
        store.append("ads", rows_that_die(keys_of(0, 40_000), 3))
        store.append("ads", rows_that_die(keys_of(40_000, 40_100), 9))
        store.checkpoint()
        before = store.stats()["files_bytes"]
        store.set_period(3)
        made = store.checkpoint(extras={"period.json": b'{"period": 3}'})
        assert made["rows"] == 100 and records_of(store) == 40_100
        assert store.stats()["files_bytes"] > before  # of rows that were not erased yet
        space = store.space_of_compact()
        store.compact()
        assert store.stats()["files_bytes"] < before / 10
        assert space["written_bytes"] < before / 10 < space["freed_bytes"]
        assert [one["rows"] for one in store.checkpoints()] == [100]
    with opened(tmp_path) as store:
        assert store.num_rows("ads") == records_of(store) == 100


def test_compaction_in_a_new_period_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    with opened(tmp_path, compact_in_background=False) as store:
        store.append("ads", rows_that_die(keys_of(0, 10), 3))
        made = store.checkpoint()
        store.set_period(5)
        store.compact()
        assert store.checkpoints() == [made]
        store.restore()
        assert store.num_rows("ads") == 10


def test_a_checkpoint_that_is_refused_leaves_the_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        store.append("ads", rows_that_die(keys_of(0, 10), 3))
        store.append("ads", rows_that_die(keys_of(10, 30), 9))
        store.set_period(1, {"ads": 3})
        live: Any = store._live

        def refuse(batch: Any) -> None:
            raise Exception("IO error: No space left on device: While appending to file")

        with monkeypatch.context() as patch:
            patch.setattr(live.database, "_write", refuse)
            with pytest.raises(StoreError, match="make space"):
                store.checkpoint()
        assert store.num_rows("ads") == len(living(store)) == 20
        store.checkpoint()
        assert records_of(store) == 20


def test_rows_that_no_entry_leads_to_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, compact_in_background=False) as store:
        store.append("ads", rows_that_die(keys_of(0, 10), 3))
        live: Any = store._live
        monkeypatch.setattr(live.database, "due", lambda *_: NO_ROWS)
        with pytest.raises(CorruptionError, match=r"'ads': 0 rows were found .* 10 are expected"):
            store.set_period(1, {"ads": 3})
        assert store.num_rows("ads") == 10
        store.set_period(3)
        with pytest.raises(CorruptionError, match=r"'ads': 10 dead rows are expected"):
            store.compact()


def test_tables_whose_rows_live_for_ever_are_written_as_before(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append("ads", rows_that_die(keys_of(0, 10), 0))
        store.checkpoint()
        text = (tmp_path / "store" / "ROCKSDB").read_bytes()
        assert b'"deaths"' not in text and b'"expired"' not in text
        store.append("ads", rows_that_die(keys_of(5, 8), [3, 4, 4]))
        store.checkpoint()
    checkpoint = RocksDbManifest.load(tmp_path / "store").current
    assert checkpoint is not None and checkpoint.counts_of("ads") == {0: 7, 3: 1, 4: 2}


def damage_entries(path: Path) -> None:
    """Of a checkpoint with 20,000 rows that die, in the smaller one of its two sorted files."""
    files = sorted(path.glob("store/cut-*/db/*.sst"), key=lambda file: file.stat().st_size)
    assert len(files) == 2
    content = bytearray(files[0].read_bytes())
    for place in range(100, len(content) // 2, 4096):
        content[place] ^= 255
    files[0].write_bytes(content)


def make_20_000(path: Path) -> None:
    with RocksDbStore.open(path / "store", [MORTAL]) as store:
        store.append("ads", rows_that_die(keys_of(0, 20_000), 3))
        store.append("ads", rows_that_die(keys_of(20_000, 20_100), 9))
        store.checkpoint()


def test_damaged_entries_are_made_again_of_the_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_20_000(tmp_path)
    damage_entries(tmp_path)
    with RocksDbStore.open(tmp_path / "store", [MORTAL], compact_in_background=False) as store:
        store.check_period(1, {"ads": 3})
        assert "the entries of its rows that die are damaged" in caplog.text
        store.set_period(1, {"ads": 3})
        assert store.num_rows("ads") == len(living(store)) == 100
        store.append("ads", rows_that_die(keys_of(0, 10), 5))
        store.checkpoint()
    assert len(caplog.records) == 1
    with opened(tmp_path, compact_in_background=False) as store:
        store.set_period(5, {"ads": 9})
        store.compact()
        assert records_of(store) == 100 and store.num_rows("ads") == 0


def test_the_dead_are_erased_whose_entries_are_damaged(tmp_path: Path) -> None:
    make_20_000(tmp_path)
    damage_entries(tmp_path)
    with RocksDbStore.open(tmp_path / "store", [MORTAL], compact_in_background=False) as store:
        store.set_period(3)
        store.compact()
        assert records_of(store) == store.num_rows("ads") == 100


def test_marks_without_a_record_are_damage(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append("ads", rows_that_die(keys_of(0, 10), 3))
        store.set_period(1, {"ads": 3})
        live: Any = store._live
        list(live.database.remove(live.tables["ads"]._number, keys_of(0, 2)))
        with pytest.raises(CorruptionError, match=r"'ads': 2 rows that died early are expected"):
            store.checkpoint()


def test_erasing_that_fails_is_told_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(burial, "RETRY_SECONDS", 0.02)
    with opened(tmp_path) as store:
        store.append("ads", rows_that_die(keys_of(0, 10), 3))
        store.append("ads", rows_that_die(keys_of(10, 30), 9))
        assert (store.stats()["dead_rows"], store.stats()["erasing_failure"]) == (0, "")
        live: Any = store._live
        tries = []

        def refuse(batch: Any) -> None:
            tries.append(batch)
            raise Exception("IO error: No space left on device: While appending to file")

        with monkeypatch.context() as patch:
            patch.setattr(live.database, "_write", refuse)
            store.set_period(3)
            wait_until(lambda: len(tries) > 3)
            stats = store.stats()
            assert stats["dead_rows"] == 10 and "No space left" in stats["erasing_failure"]
        wait_until(lambda: store.stats()["dead_rows"] == 0)
        wait_until(lambda: store.stats()["erasing_failure"] == "")
        assert records_of(store) == 20
    (warning,) = caplog.records
    assert warning.name.startswith("hps.") and "dead rows keep their space" in warning.message


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so() and time.monotonic() < until:
        time.sleep(0.01)
    assert is_so()


def test_entries_have_a_place_only_where_rows_die(tmp_path: Path) -> None:
    """So that an hps before there was expiry opens what has none."""
    rocksdict = pytest.importorskip("rocksdict")

    def families() -> list[str]:
        newest = max(tmp_path.glob("store/cut-*/db"))
        return sorted(rocksdict.Rdict.list_cf(str(newest), rocksdict.Options(raw_mode=True)))

    with opened(tmp_path, keep_last=1) as store:
        store.append("ads", rows_that_die(keys_of(0, 10), 0))
        store.checkpoint()
        assert families() == ["default", "table-0"]
    with opened(tmp_path, keep_last=1) as store:
        store.append("ads", rows_that_die(keys_of(5, 8), 3))
        store.checkpoint()
        assert families() == ["deaths-0", "default", "table-0"]
        store.erase("ads", keys_of(5, 8))
        store.checkpoint()
    with opened(tmp_path, read_only=True) as reader:
        assert reader.num_rows("ads") == 7
    with opened(tmp_path) as store:
        store.append("ads", rows_that_die(keys_of(5, 8), 3))
        store.set_period(1, {"ads": 3})
        assert store.num_rows("ads") == 7


def test_marks_go_one_by_one_without_a_copy_of_all() -> None:
    generator = np.random.default_rng(3)
    keys = np.unique(generator.integers(0, 2**63, 2000).astype(np.uint64))
    deaths = Deaths({9: len(keys)}, 3)
    deaths.begin(4, keys, np.full(len(keys), 9))
    frozen, left = deaths.now.frozen(), set(keys.tolist())
    num_copies, last = 0, deaths.now.early
    for piece in np.array_split(generator.permutation(keys), 100):
        deaths.take(Change(piece, np.full(len(piece), 9), np.full(len(piece), ABSENT)))
        left -= set(piece.tolist())
        now = deaths.now
        assert (now.num_early, now.num_records, now.num_living) == (len(left), len(left), 0)
        assert now.early.has(keys).tolist() == [key in left for key in keys.tolist()]
        num_copies += now.early is not last
        last = now.early
    assert 1 < num_copies < 15 and deaths.counts == {}
    assert frozen.early.has(keys).all()


@pytest.mark.parametrize("is_changed", [False, True])
def test_what_was_found_by_a_check_of_a_period_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    """Unless a row has changed since."""
    read, due = [], RocksDbDatabase.due

    def counted(*arguments: Any) -> Any:
        read.append(arguments[1:])
        return due(*arguments)

    monkeypatch.setattr(RocksDbDatabase, "due", counted)
    with opened(tmp_path, compact_in_background=False) as store:
        store.append("ads", rows_that_die(keys_of(0, 100), 3))
        store.append("ads", rows_that_die(keys_of(100, 130), 4))
        store.check_period(1, {"ads": 3})
        assert len(read) == 1
        if is_changed:
            store.append("ads", rows_that_die(keys_of(0, 10), 5))
        store.set_period(1, {"ads": 3})
        assert len(read) == 1 + is_changed
        left = [*(range(10) if is_changed else ()), *range(100, 130)]
        assert sorted(living(store)) == left and store.num_rows("ads") == len(left)
        for horizon in (3, 4):  # what another horizon wants is read
            store.check_period(2, {"ads": horizon})
        assert len(read) == 3 + is_changed
