"""What a shard does when disk, log or store fail: reads go on, changes get a typed error, nothing
that was acknowledged is lost, and it goes on when space returns.

Above it: pytest. Below it: shard_lab.py.
"""

import errno
import threading
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

import hps
from hps import _C
from hps.errors import DeadlineError
from hps.service.shard import checkpointer
from hps.service.shard.core import ServedStore
from hps.service.shard.shard import Ack, Shard, Terms
from hps.table.rows_where import RowsWhere
from tests.service.shard.shard_lab import ShardLab, hps_config
from tests.service.shard.shard_session import CLIENT, KEYS, Session, ones, train, trained
from tests.twins.update_log import TwinUpdateLog

MANY = np.arange(1000, 2000, dtype=np.uint64)


def full(*arguments: Any, **options: Any) -> Any:
    raise hps.StoreError(errno.ENOSPC, "No space left on device")


def broken(*arguments: Any, **options: Any) -> Any:
    raise hps.StoreError(errno.EIO, "planted: a sync failed")


def fail_half_way(lab: ShardLab, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The next erase takes half of its keys, and fails."""
    store = lab._stores[-1]
    erase = store.erase

    def half(table: str, keys: Any) -> Any:
        erase(table, keys[: len(keys) // 2])
        raise error

    monkeypatch.setattr(store, "erase", half)


def test_a_full_disk_refuses_a_push_before_anything_and_takes_it_when_there_is_space(
    lab: ShardLab,
) -> None:
    shard, session = trained(lab, 2)
    digest = shard.digest("sgd")
    lab.logs.free_bytes = 10
    identity = session.next()
    for _ in range(2):
        with pytest.raises(hps.StoreError, match="no space") as error:
            shard.push(identity, "sgd", MANY[:3], ones())
        assert error.value.errno == errno.ENOSPC
    assert shard.digest("sgd") == digest and not shard.failure
    assert shard.pull("sgd", MANY[:3]).tolist() == np.zeros((3, 4)).tolist()
    lab.logs.free_bytes = None
    assert not shard.push(identity, "sgd", MANY[:3], ones()).is_repeat


def test_a_push_whose_evicted_rows_find_no_space_is_not_logged(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 8)
    records = shard.stats()["service"]["records"]
    monkeypatch.setattr(lab._stores[-1], "append", full)
    identity = session.next()
    with pytest.raises(hps.StoreError, match="No space"):
        shard.push(identity, "sgd", MANY[:100], ones(100))
    assert shard.stats()["service"]["records"] == records and shard.parts.store.server.pins == 0
    assert (shard.pull("sgd", np.arange(40, dtype=np.uint64)) == -1).all()
    monkeypatch.undo()
    assert not shard.push(identity, "sgd", MANY[:100], ones(100)).is_repeat


def test_a_full_disk_gets_the_space_that_the_log_keeps_for_later(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.open_log = partial(_C.UpdateLog.open, file_bytes=2**13)
    shard = lab.open()
    session = Session(shard)
    train(session, 60)
    shard.checkpoint()
    folder = lab.config.path / "log"
    assert len(list(folder.glob("spare-*"))) > 2
    monkeypatch.setattr(lab._stores[-1], "append", full)
    with pytest.raises(hps.StoreError, match="No space"):
        for first in range(0, 1000, 100):
            shard.push(session.next(), "sgd", MANY[first : first + 100], ones(100))
    assert len(list(folder.glob("spare-*"))) <= 1  # the next file


def test_automatic_checkpoints_go_on_when_space_returns(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "_FIRST_PAUSE", 0.01)
    shard, session = trained(lab)
    with monkeypatch.context() as patch:
        patch.setattr(lab._stores[-1], "checkpoint", full)
        while not shard.stats()["service"]["checkpoint_failures"]:
            train(session, 1)
        assert "No space" in shard.stats()["service"]["checkpoint_error"] and not shard.failure
        train(session, 1)
    deadline = monotonic() + 30
    while not shard.stats()["service"]["checkpoints"] and monotonic() < deadline:
        sleep(0.01)
    stats = shard.stats()["service"]
    assert stats["checkpoints"] > 0 and stats["log_bytes"] < lab.options.log_bytes


def test_a_sync_that_failed_ends_all_changes_and_keeps_what_was_acknowledged(
    lab: ShardLab,
) -> None:
    shard, session = trained(lab, 3)
    durable = Terms(Ack.DURABLE, 5)
    shard.push(session.next(), "sgd", MANY[:3], ones(), terms=durable)
    lab.logs.fails_syncs = True
    with pytest.raises(hps.StoreError, match="sync failed"):
        shard.push(session.next(), "sgd", MANY[:3], ones(), terms=durable)
    identity = session.next()
    for _ in range(2):
        with pytest.raises(hps.StoreError, match="sync failed"):
            shard.push(identity, "sgd", MANY[:3], ones(), terms=Terms(Ack.MEMORY, 5))
    with pytest.raises(hps.StoreError):
        shard.open_session("other")
    assert shard.pull("sgd", MANY[:3]).tolist() == (-2 * ones()).tolist()
    lab.kill()
    lab.logs.fails_syncs = False
    shard = lab.open()
    assert shard.open_session(CLIENT, session.incarnation).marks.applied >= 4


def test_a_store_that_failed_ends_all_changes_and_reads_go_on(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 2)
    digest = shard.digest("sgd")
    monkeypatch.setattr(lab._stores[-1], "checkpoint", broken)
    with pytest.raises(hps.StoreError, match="planted"):
        shard.checkpoint()
    with pytest.raises(hps.StoreError, match=r"takes no changes.*planted"):
        shard.push(session.next(), "sgd", KEYS, ones())
    assert "planted" in shard.failure and shard.digest("sgd") == digest
    shard.close()
    lab.kill()
    assert lab.open().digest("sgd") == digest


def test_an_erase_that_the_store_refused_whole_never_was(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 2)
    digest = shard.digest("sgd")
    keys = np.arange(10, dtype=np.uint64)
    identity = session.next()
    taken: list[int] = []
    take_back = TwinUpdateLog.take_back

    def note(self: TwinUpdateLog, number: int) -> None:
        taken.append(number)
        take_back(self, number)

    monkeypatch.setattr(TwinUpdateLog, "take_back", note)
    with monkeypatch.context() as patch:
        patch.setattr(lab._stores[-1], "erase", full)
        with pytest.raises(hps.StoreError, match="No space"):
            shard.erase(identity, "sgd", keys)
    assert len(taken) == 1 and not shard.failure and shard.digest("sgd") == digest
    shard.skip(identity)
    shard.push(session.next(), "sgd", MANY[:10], ones(10))
    digest = shard.digest("sgd")
    lab.kill()
    assert lab.open().digest("sgd") == digest


def test_a_change_that_is_logged_and_fails_half_way_is_whole_after_the_next_opening(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 4)
    keys = np.arange(60, dtype=np.uint64)
    shard.checkpoint()  # so that the rows lie in the store
    fail_half_way(lab, monkeypatch, hps.StoreError(errno.EIO, "planted"))
    with pytest.raises(hps.StoreError, match="planted"):
        shard.erase(session.next(), "sgd", keys)
    monkeypatch.undo()
    with pytest.raises(hps.StoreError, match="in the log could not be applied"):
        shard.push(session.again(), "sgd", KEYS, ones())
    assert shard.num_rows("sgd") > 0
    shard.close()
    lab.kill()
    shard = lab.open()
    again = shard.erase(session.again(), "sgd", keys)
    assert again.is_repeat and again.answer.all()
    assert not shard.contains("sgd", keys).any()


def test_a_close_whose_checkpoint_fails_loses_nothing(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab)
    monkeypatch.setattr(lab.logs.chance, "random", lambda: 1.0)  # nothing is written unasked
    monkeypatch.setattr(lab.chance, "randint", lambda low, high: low)  # nor by a kill
    for number in range(3):
        keys = MANY[40 * number :][:40]
        shard.push(session.next(), "sgd", keys, ones(40), terms=Terms(Ack.MEMORY))
    assert lab.logs.logs[-1].pending
    digest = shard.digest("sgd")
    monkeypatch.setattr(lab._stores[-1], "checkpoint", full)
    with pytest.raises(hps.StoreError, match="No space"):
        shard.close()
    lab.kill()
    shard = lab.open()
    assert shard.stats()["service"]["records_replayed"] == 4 and shard.digest("sgd") == digest


def test_a_wait_that_takes_too_long_says_that_the_change_is_applied(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab)
    with monkeypatch.context() as patch:
        patch.setattr(TwinUpdateLog, "wait", lambda self, number, durable, timeout: False)
        with pytest.raises(DeadlineError, match="is applied"):
            shard.push(session.next(), "sgd", KEYS, ones(), terms=Terms(Ack.DURABLE, 0.1))
        with pytest.raises(DeadlineError):
            shard.flush(Ack.DURABLE, 0.1)
    again = shard.push(session.again(), "sgd", KEYS, ones(), terms=Terms(Ack.DURABLE, 5))
    assert again.is_repeat and again.marks.durable == 1
    shard.flush(Ack.DURABLE)


def test_a_restore_starts_anew_where_the_log_has_failed(lab: ShardLab) -> None:
    shard, session = trained(lab, 2)
    shard.checkpoint("kept")
    kept = shard.digest("sgd")
    lab.logs.fails_syncs = True
    with pytest.raises(hps.StoreError):
        shard.push(session.next(), "sgd", KEYS, ones(), terms=Terms(Ack.DURABLE, 5))
    lab.logs.fails_syncs = False
    shard.restore("kept")
    assert shard.digest("sgd") == kept
    again = Session(shard)
    train(again, 2)
    digest = shard.digest("sgd")
    lab.kill()
    assert lab.open().digest("sgd") == digest


def test_a_close_while_an_automatic_checkpoint_is_taken_waits_for_it_and_ends(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab)
    begun, may_end = threading.Event(), threading.Event()
    store = lab._stores[-1]
    checkpoint = store.checkpoint

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert may_end.wait(30)
        return checkpoint(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store, "checkpoint", slow)
        patch.setattr(shard.parts.store.checkpointer, "_is_due", lambda: not begun.is_set())
        shard.push(session.next(), "sgd", KEYS, ones(), terms=Terms(Ack.MEMORY))
        assert begun.wait(30)
        closing = threading.Thread(target=shard.close, daemon=True)
        closing.start()
        while not shard.parts.store.checkpointer._stop.is_set():
            sleep(0.001)
        sleep(0.05)  # into its wait for the thread
        may_end.set()
        closing.join(60)
    assert not closing.is_alive() and shard.parts.store.is_closed


def test_automatic_checkpoints_go_on_after_an_error_of_any_kind(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "_FIRST_PAUSE", 0.01)
    shard, session = trained(lab)
    errors: list[Exception] = [MemoryError("planted: no memory")]
    checkpoint = lab._stores[-1].checkpoint

    def fails_once(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return checkpoint(*arguments)

    monkeypatch.setattr(lab._stores[-1], "checkpoint", fails_once)
    deadline = monotonic() + 30
    while not shard.stats()["service"]["checkpoints"] and monotonic() < deadline:
        train(session, 1)
    stats = shard.stats()["service"]
    assert stats["checkpoint_failures"] == 1 and "no memory" in stats["checkpoint_error"]


@pytest.mark.parametrize(
    "error",
    [
        hps.StoreError(errno.ENOSPC, "planted"),
        hps.CorruptionError("planted"),
        MemoryError("planted"),
    ],
)
def test_what_is_in_the_log_is_never_called_refused(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    shard, session = trained(lab, 4)
    shard.checkpoint()  # so that the rows lie in the store
    kept = len(shard.checkpoints())
    fail_half_way(lab, monkeypatch, error)
    with pytest.raises(hps.StoreError, match="planted") as raised:
        shard.erase(session.next(), "sgd", np.arange(60, dtype=np.uint64))
    assert raised.value.errno == errno.EIO
    monkeypatch.undo()
    # Half a change must be in no checkpoint.
    with pytest.raises(hps.StoreError, match="takes no changes"):
        shard.checkpoint()
    assert len(shard.checkpoints()) == kept


def test_a_log_that_failed_for_space_does_not_call_an_applied_change_refused(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 1)
    monkeypatch.setattr(TwinUpdateLog, "wait", full)
    with pytest.raises(hps.StoreError, match="No space") as error:
        shard.push(session.next(), "sgd", KEYS, ones(), terms=Terms(Ack.DURABLE, 5))
    assert error.value.errno == errno.EIO and "No space" in shard.failure


def test_a_table_whose_checkpoint_fails_is_not_there(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.config = hps_config(lab.config, dram=hps.DramCacheConfig(bytes=40_000))
    shard, session = trained(lab, 1)
    table = hps.TableConfig(name="late", dim=4)
    save = ServedStore.save
    saves: list[str] = []

    def second_is_full(self: Any, *arguments: Any) -> Any:
        saves.append("")
        return full() if len(saves) == 2 else save(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ServedStore, "save", second_is_full)
        with pytest.raises(hps.StoreError, match="No space"):
            shard.create_table(table)
    if shard.create_table(table):
        shard.push(session.next(), "late", KEYS, ones(), terms=Terms(Ack.DURABLE, 5))
    digest = shard.digest("late")
    lab.kill()
    assert lab.open().digest("late") == digest


def _damage(store: Path) -> None:
    """One bit in the middle of the rows."""
    files = [file for file in store.rglob("*") if file.is_file()]
    kept = [file for file in files if not file.relative_to(store).parts[0].startswith(("l", "L"))]
    file = max(kept, key=lambda one: one.stat().st_size)
    assert file.stat().st_size > 500_000
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()  # which others may have a link to
    file.write_bytes(data)


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_an_erasure_that_cannot_read_a_row_is_not_in_the_log(tmp_path: Path, engine: str) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    config = hps.Config(
        path=tmp_path / "store",
        tables=[hps.TableConfig(name="ads", dim=8, statistics=True)],
        dram=hps.DramCacheConfig(bytes="1MiB"),
        ssd=hps.SsdStoreConfig(engine=engine),
        threads=1,
    )
    keys, grads = np.arange(20_000, dtype=np.uint64), np.ones((20_000, 8), np.float32)
    shard = Shard(config)
    session = Session(shard)
    for start in range(0, 20_000, 4000):
        piece = slice(start, start + 4000)
        shard.push(session.next(), "ads", keys[piece], grads[piece])
    shard.close()
    _damage(tmp_path / "store")
    shard = Shard(config)
    session = Session(shard)
    shard.push(session.next(), "ads", keys[:5], grads[:5])
    session.next()
    for _ in range(2):
        with pytest.raises(hps.CorruptionError):
            shard.erase_where(session.again(), "ads", RowsWhere(show_below=5))
        assert shard.num_rows("ads") == 20_000 and not shard.failure
    shard.push(session.again(), "ads", keys[:5], grads[:5])  # the number is free
    rows = shard.pull("ads", keys[:5])
    shard.close(checkpoint=False)
    shard = Shard(config)
    assert np.array_equal(shard.pull("ads", keys[:5]), rows)
    assert shard.open_session(CLIENT).marks.applied == session.sequence
    shard.close(checkpoint=False)
