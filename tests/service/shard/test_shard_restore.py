"""A shard goes back to a checkpoint: rows and marks together, all sessions end, and a death at any
step leaves the state before it or the one after it.

Above it: pytest. Below it: shard_lab.py.
"""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.errors import FencedError, HpsError, MismatchError
from hps.service.shard.shard import Ack, Shard, Terms
from hps.update_log import Epoch
from hps.update_log import epoch as epoch_file
from tests.lab import keys_of
from tests.service.shard.shard_lab import Death, ShardLab, patch_history
from tests.service.shard.shard_session import CLIENT, KEYS, Session, ones, train, trained

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def test_a_restore_brings_rows_marks_and_the_dense_side_back(lab: ShardLab) -> None:
    shard, session = trained(lab, 5)
    before = shard.digest("sgd")
    info = shard.checkpoint("kept", model=b"the model", reader=b'{"batch": 5}', group="g-1")
    assert info["sessions"] == {CLIENT: (session.incarnation, 5)}
    train(session, 7)
    lineage = shard.lineage
    assert shard.prepare_restore("kept", "g-1")["sessions"] == info["sessions"]
    assert shard.restore("kept", "day-2") == (b"the model", b'{"batch": 5}')
    assert shard.digest("sgd") == before
    assert (lineage, shard.lineage) == ("0", "day-2")
    again = shard.open_session(CLIENT)
    assert again.is_known and again.marks.applied == 5
    assert again.lineage == "day-2"


def test_every_session_ends_with_a_restore_and_no_incarnation_is_given_again(
    lab: ShardLab,
) -> None:
    shard = lab.open()
    first = Session(shard)
    shard.checkpoint("kept")
    second = Session(shard, "other")
    shard.restore("kept")
    for session in (first, second):
        with pytest.raises(FencedError):
            shard.push(session.next(), "sgd", KEYS, ones())
        with pytest.raises(FencedError):
            shard.open_session(session.name, session.incarnation)
    lab.kill()
    shard = lab.open()
    assert not shard.open_session("other").is_known  # it came after the checkpoint
    assert shard.open_session("newest").incarnation > second.incarnation + 1
    with pytest.raises(FencedError, match="restore ended"):
        shard.push(first.next(), "sgd", KEYS, ones())


def test_a_checkpoint_of_another_group_or_none_is_refused_and_nothing_changes(
    lab: ShardLab,
) -> None:
    shard, session = trained(lab, 2)
    shard.checkpoint("kept", group="g-1")
    with pytest.raises(MismatchError, match="g-2"):
        shard.prepare_restore("kept", "g-2")
    with pytest.raises(hps.ConfigError, match="no checkpoint"):
        shard.restore("none")
    train(session, 1)
    assert shard.lineage == "0"
    assert [one["group"] for one in shard.checkpoints()] == ["", "g-1"]


def test_a_death_at_any_step_of_a_restore_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: Counter[str] = Counter()
    for step in range(1, 40):
        folder = tmp_path / str(step)
        folder.mkdir()
        lab = ShardLab(folder, step, log_bytes=10**9)
        with monkeypatch.context() as patch:
            patch_history(patch, lab)
            shard = lab.open()
            session = Session(shard)
            train(session, 3)
            kept = shard.digest("sgd")
            shard.checkpoint("kept")
            train(session, 4)
            if step % 2:  # the records up to the checkpoint are cut
                shard.checkpoint()
            train(session, 2)
            last = shard.digest("sgd")
            lab.steps.dies_at = lab.steps.count + step
            try:
                shard.restore("kept", "anew")
                met["restored"] += 1
            except (Death, hps.StoreError):  # a store that has closed itself writes no HISTORY more
                assert lab.steps.is_dead
                met[lab.steps.last] += 1
            is_over = not lab.steps.is_dead
            lab.kill()
            for deeper in (1 + step % 4, 2 + step % 7):  # the opening dies as well
                try:
                    lab.open(deeper)
                except Death:
                    met[f"opening, {lab.steps.last}"] += 1
                lab.kill()
        shard = lab.open()
        is_new = shard.lineage == "anew"
        assert is_new or not is_over
        assert shard.digest("sgd") == (kept if is_new else last)
        met["new" if is_new else "old"] += 1
        opened = shard.open_session(CLIENT)
        assert opened.marks.applied == (3 if is_new else 9)
        again = Session(shard)
        train(again, 2)
        digest = shard.digest("sgd")
        lab.kill()
        shard = lab.open()
        assert shard.digest("sgd") == digest
        lab.kill()
        if is_over:
            break
    print(met)
    assert met["restored"] == 1 and met["old"] > 1 and met["new"] > 1
    assert any(name.startswith("opening, after store.restore") for name in met)


def test_a_restore_that_the_store_refuses_leaves_all_as_it_was(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 3)
    shard.checkpoint("kept")
    train(session, 3)
    before = shard.digest("sgd")

    def refuse(*arguments: Any) -> None:
        raise hps.CorruptionError("segment-1, offset 0: planted")

    monkeypatch.setattr(lab._stores[-1], "restore", refuse)
    with pytest.raises(hps.CorruptionError, match="planted"):
        shard.restore("kept")
    monkeypatch.undo()
    assert shard.lineage == "0" and shard.digest("sgd") == before
    train(session, 1)  # the session goes on
    after = shard.digest("sgd")
    lab.kill()
    assert lab.open().digest("sgd") == after


def test_a_restore_without_space_for_its_intent_changes_nothing(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 3)
    shard.checkpoint("kept")
    train(session, 1)

    def refuse(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(epoch_file, "replace_durably", refuse)
    with pytest.raises(hps.StoreError, match="No space"):
        shard.restore("kept")
    # Nobody knows what HISTORY says: nothing is acknowledged until it is written again.
    with pytest.raises(hps.StoreError):
        shard.push(session.next(), "sgd", KEYS, ones())
    monkeypatch.undo()
    lab.kill()
    shard = lab.open()
    assert shard.open_session(CLIENT, session.incarnation).marks.applied == 4


def test_restoring_the_newest_checkpoint_drops_what_the_log_has(lab: ShardLab) -> None:
    shard, session = trained(lab, 3)
    shard.checkpoint()
    kept = shard.digest("sgd")
    train(session, 3)
    shard.restore()
    assert shard.digest("sgd") == kept
    lab.kill()
    shard = lab.open()
    assert shard.digest("sgd") == kept
    assert shard.open_session(CLIENT).marks.applied == 3


def test_a_restore_survives_deaths_after_it_and_going_back_again(lab: ShardLab) -> None:
    shard, session = trained(lab)
    digests, marks = {}, {}
    for tag in ("first", "second"):
        train(session, 3)
        shard.checkpoint(tag)
        digests[tag], marks[tag] = shard.digest("sgd"), session.sequence
    for tag in ("first", "second", "second", "first"):
        shard.restore(tag)
        assert shard.digest("sgd") == digests[tag]
        lab.kill()
        shard = lab.open()
        assert shard.digest("sgd") == digests[tag]
        session = Session(shard)
        assert session.sequence == marks[tag]
        train(session, 2)
        digest = shard.digest("sgd")
        lab.kill()
        shard = lab.open()
        assert shard.digest("sgd") == digest
    epoch = Epoch.load(Path(lab.config.path))
    assert epoch is not None and epoch.number == 5 and epoch.restoring is None


def test_reads_and_pushes_beside_a_restore_see_the_old_rows_or_the_new_ones(
    lab: ShardLab,
) -> None:
    shard, session = trained(lab)
    shard.push(session.next(), "sgd", KEYS, ones())
    shard.checkpoint("kept")
    seen: set[float] = set()
    is_over = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        while not is_over.is_set():
            seen.update(shard.pull("sgd", KEYS).ravel().tolist())

    def push(shard: Shard) -> None:
        try:
            while not is_over.is_set():
                shard.push(session.next(), "sgd", keys_of(1), ones(1), terms=Terms(Ack.DURABLE))
        except FencedError:
            return
        except HpsError as error:  # the log was closed while it waited
            errors.append(error)

    threads = [threading.Thread(target=read), threading.Thread(target=push, args=(shard,))]
    for thread in threads:
        thread.start()
    for _ in range(3):
        again = Session(shard, "other")
        shard.push(again.next(), "sgd", KEYS, ones())
        shard.restore("kept")
    is_over.set()
    for thread in threads:
        thread.join()
    assert -1.0 in seen and seen <= {-1.0, -2.0}
    assert all(isinstance(error, hps.StoreError) for error in errors)


def test_a_restore_that_is_repeated_under_its_name_takes_nothing_back(lab: ShardLab) -> None:
    shard = lab.open()
    train(Session(shard), 2)
    shard.checkpoint("kept", model=b"the model")
    first = shard.restore("kept", "day-2")
    train(Session(shard), 2)
    digest = shard.digest("sgd")
    assert shard.restore("kept", "day-2") == first == (b"the model", None)
    assert shard.digest("sgd") == digest
    shard.restore("kept", "day-3")
    assert shard.digest("sgd") != digest
