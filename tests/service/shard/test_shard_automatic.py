"""A checkpoint that a shard takes by itself: changes wait while its rows are taken, not while the
disk is waited for; whatever comes in between, rows, marks and log agree.

Above it: pytest. Below it: shard_lab.py.
"""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

import hps
from hps.errors import DeadlineError
from hps.service.shard import checkpointer
from hps.service.shard.gate import Gate
from tests.service.shard.shard_lab import ShardLab
from tests.service.shard.test_shard_mutations import Session, ones

# The shard's own thread dies with it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
KEYS = np.arange(40, dtype=np.uint64)
PATIENCE = 30.0  # seconds that nothing here may take


@pytest.fixture
def lab(tmp_path: Path) -> Any:
    lab = ShardLab(tmp_path)
    yield lab
    lab.kill()


class SlowDisk:
    """Checkpoints of a lab's shard stop where they wait for the disk, until `go_on` is set."""

    def __init__(self, lab: ShardLab) -> None:
        self.is_taken, self.go_on = threading.Event(), threading.Event()
        self.number = 0  # of the last record in the checkpoint
        self.error: hps.StoreError | None = None
        store = lab._stores[-1]
        inner = store.checkpoint

        def checkpoint(tag: Any, extras: Any, taken: Callable[[], object] | None = None) -> Any:
            def wait() -> None:
                assert taken is not None
                assert lab.shard is not None
                self.number = lab.shard.parts.store.history.number
                taken()
                self.is_taken.set()
                assert self.go_on.wait(PATIENCE)

            if self.error is not None and taken is not None:
                wait()
                raise self.error
            return inner(tag, extras, None if taken is None else wait)

        store.checkpoint = checkpoint

    def push_until_taken(self, session: Session) -> None:
        """Pushes of the same rows until a checkpoint waits for the disk."""
        deadline = monotonic() + PATIENCE
        while not self.is_taken.is_set():
            push(session)
            assert monotonic() < deadline

    def finish(self, session: Session) -> None:
        """Lets the checkpoint come to its end."""
        self.go_on.set()
        checkpointer = session.shard.parts.store.checkpointer
        deadline = monotonic() + PATIENCE
        while not checkpointer.taken + checkpointer.failures and monotonic() < deadline:
            sleep(0.005)


def push(session: Session) -> None:
    session.shard.push(session.next(), "sgd", KEYS, ones(len(KEYS)))


def expected(count: int) -> Any:
    return np.full((len(KEYS), 4), -float(count), np.float32)


def test_changes_go_on_while_an_automatic_checkpoint_waits_for_the_disk(lab: ShardLab) -> None:
    session = Session(lab.open())
    disk = SlowDisk(lab)
    disk.push_until_taken(session)
    with ThreadPoolExecutor(1) as pool:  # nobody lets the checkpoint go on before they are through
        pool.submit(lambda: [push(session) for _ in range(5)]).result(PATIENCE)
    history = session.shard.parts.store.history
    assert history.kept_number == 0 and history.number >= disk.number + 5
    disk.finish(session)
    assert history.kept_number == disk.number
    opening = 1  # the session's record
    with hps.open(lab.config.path, checkpoint="automatic") as checkpoint:
        assert checkpoint.pull("sgd", KEYS).tolist() == expected(disk.number - opening).tolist()
    lab.kill()
    shard = lab.open()
    assert shard.pull("sgd", KEYS).tolist() == expected(session.sequence).tolist()
    assert shard.open_session(session.name).marks.applied == session.sequence


def test_a_restore_beside_an_automatic_checkpoint_is_not_undone_by_its_end(lab: ShardLab) -> None:
    session = Session(lab.open())
    push(session)
    shard = session.shard
    shard.checkpoint("kept")
    disk = SlowDisk(lab)
    disk.push_until_taken(session)
    with ThreadPoolExecutor(1) as pool:
        restoring = pool.submit(shard.restore, "kept", "day-2")
        sleep(0.05)
        assert not restoring.done()
        disk.finish(session)
        restoring.result(PATIENCE)
    history = shard.parts.store.history
    assert (history.number, history.kept_number) == (0, 0) and shard.lineage == "day-2"
    again = Session(shard)
    push(again)
    lab.kill()
    assert lab.open().pull("sgd", KEYS).tolist() == expected(2).tolist()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_checkpoint_that_fails_after_its_rows_are_taken_takes_no_change_back(
    lab: ShardLab, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "_FIRST_PAUSE", PATIENCE)
    session = Session(lab.open())
    disk = SlowDisk(lab)
    disk.error = hps.StoreError(number, "planted")
    disk.push_until_taken(session)
    push(session)
    disk.finish(session)
    shard = session.shard
    assert bool(shard.failure) == (number == errno.EIO)
    assert shard.parts.store.history.kept_number == 0
    assert shard.pull("sgd", KEYS).tolist() == expected(session.sequence).tolist()
    lab.kill()
    assert lab.open().pull("sgd", KEYS).tolist() == expected(session.sequence).tolist()


def test_a_turn_that_lets_others_in_waits_for_them_when_it_is_taken_again() -> None:
    gate = Gate()
    with gate.change(monotonic() + 1) as turn:
        with pytest.raises(DeadlineError):
            gate.take(monotonic())
        turn.let_others()
        turn.let_others()
        gate.take(monotonic())
        with pytest.raises(DeadlineError):
            turn.take_again(monotonic() + 0.01)
        gate.give()
        turn.take_again(monotonic())
        with pytest.raises(DeadlineError):
            gate.take(monotonic())
    with gate.change(monotonic()):
        assert gate.num_waiting == 0
