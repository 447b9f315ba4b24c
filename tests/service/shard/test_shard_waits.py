"""Who waits for whom in a shard and for how long, who can push out whom, and what is said to be
done: digests beside mutations, reads beside a reopening, owners of sessions, repeats.

Above it: pytest. Below it: shard_lab.py.
"""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest

import hps
from hps.checkpoint.blobs import MODEL
from hps.errors import ChangedError, DeadlineError, FencedError
from hps.service.shard import core as shard_core
from hps.service.shard import reads as shard_reads
from hps.service.shard.gate import Arrivals
from hps.service.shard.shard import Ack, Identity, Shard, Terms
from hps.tiers import scan as table_scan
from tests.service.shard.shard_lab import ShardLab, hps_config
from tests.service.shard.shard_session import KEYS, Session, ones, trained
from tests.twins.update_log import TwinUpdateLog


class DisturbedDigests:
    """Does something after the first part of each digest's first `most` beginnings."""

    def __init__(self, shard: Shard, patch: Any, most: int, disturb: Callable[[], None]) -> None:
        self.count = 0
        self.num_parts = 0
        self._inner = shard.parts.store.server.digest_parts
        self._most, self._disturb = most, disturb
        patch.setattr(table_scan, "_PIECE_BYTES", 2000)
        patch.setattr(shard.parts.store.server, "digest_parts", self._parts)

    def _parts(self, table: str) -> Iterator[tuple[int, int]]:
        self.count += 1
        self.num_parts = 0
        for part in self._inner(table):
            self.num_parts += 1
            if self.num_parts == 1 and self.count <= self._most:
                self._disturb()
            yield part


def push_aside(session: Session) -> None:
    """A push of another thread, which must not have to wait."""
    identity = session.next()
    push = threading.Thread(
        target=lambda: session.shard.push(identity, "sgd", KEYS, ones()), daemon=True
    )
    push.start()
    push.join(60)
    assert not push.is_alive(), "a push waits for a digest"


def test_pushes_go_on_beside_a_digest_which_begins_again(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 8)
    with monkeypatch.context() as patch:
        digests = DisturbedDigests(shard, patch, 1, lambda: push_aside(session))
        found = shard.digest("sgd")
        assert digests.count == 2 and digests.num_parts > 1
    assert found == shard.digest("sgd")


def test_a_small_table_that_changes_all_the_time_has_a_digest_in_the_end(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 8)
    with monkeypatch.context() as patch:
        digests = DisturbedDigests(shard, patch, 3, lambda: push_aside(session))
        found = shard.digest("sgd")
        assert digests.count == 4
    assert found == shard.digest("sgd")


def test_a_large_table_that_changes_all_the_time_holds_nobody_up_for_its_digest(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 8)
    monkeypatch.setattr(shard_reads, "_DIGEST_TURN_SECONDS", 0.05)
    with monkeypatch.context() as patch:
        digests = DisturbedDigests(shard, patch, 9, lambda: None)

        def disturb() -> None:
            if digests.count <= 3:
                push_aside(session)
            else:
                sleep(0.1)

        digests._disturb = disturb
        with pytest.raises(ChangedError, match="stop the clients that write"):
            shard.digest("sgd")
        with pytest.raises(DeadlineError, match="during a digest"):
            shard.digest("sgd", timeout=0.01)
    shard.push(session.next(), "sgd", KEYS, ones())


def test_an_owner_of_many_sessions_pushes_out_its_own(tmp_path: Path) -> None:
    lab = ShardLab(tmp_path, max_sessions=20, max_owned_sessions=5)
    shard = lab.open()
    others = [shard.open_session(f"other-{i}", owner="trainer") for i in range(4)]
    mine = [shard.open_session(f"mine-{i}", owner="hostile") for i in range(40)]
    assert shard.stats()["service"]["sessions"] == 9
    for number, opened in enumerate(others):
        identity = Identity(f"other-{number}", opened.incarnation, 1)
        assert not shard.push(identity, "sgd", KEYS, ones()).is_repeat
    with pytest.raises(FencedError):
        shard.open_session("mine-34", mine[34].incarnation)
    assert shard.open_session("mine-35", mine[35].incarnation).is_known
    lab.kill()
    shard = lab.open()  # whose sessions they were is not known any more, and nobody's are dropped
    nobodys = [shard.open_session(f"nobody-{i}") for i in range(8)]
    for number in range(30):
        shard.open_session(f"more-{number}", owner="hostile")
    for number, opened in enumerate(others):
        assert shard.open_session(f"other-{number}", opened.incarnation).marks.applied == 1
    for number, opened in enumerate(nobodys):
        assert shard.open_session(f"nobody-{number}", opened.incarnation).is_known
    lab.kill()


def test_a_read_waits_for_a_reopening_no_longer_than_it_may(lab: ShardLab) -> None:
    shard, _ = trained(lab, 1)
    until = monotonic() + 30
    with shard.parts.store.gate.change(until), shard.parts.store.gate.alone(until):
        for read in (
            lambda: shard.pull("sgd", KEYS, timeout=0.02),
            lambda: shard.stats(0.02),
            lambda: shard.checkpoints(0.02),
            lambda: next(shard.items("sgd", timeout=0.02)),
        ):
            with pytest.raises(DeadlineError, match="reopened for a new table"):
                read()
    assert shard.pull("sgd", KEYS, timeout=0.02).shape == (3, 4)


def test_a_reopening_waits_for_reads_no_longer_than_it_may_and_they_go_on(lab: ShardLab) -> None:
    lab.config = hps_config(lab.config, dram=hps.DramCacheConfig(bytes=40_000))
    shard, session = trained(lab, 1)
    late = hps.TableConfig(name="late", dim=4)
    with shard.parts.store.gate.read(monotonic() + 1):
        with pytest.raises(DeadlineError, match="1 reads"):
            shard.create_table(late, timeout=0.1)
        assert shard.pull("sgd", KEYS, timeout=0.1).shape == (3, 4)
    shard.push(session.next(), "sgd", KEYS, ones())
    assert shard.create_table(late, timeout=60)


def test_a_twin_of_a_push_does_not_take_the_push_away_from_its_follower(lab: ShardLab) -> None:
    shard, session = trained(lab)
    first, second = session.next(), session.next()
    marks: list[int] = []

    def push(identity: Identity) -> None:
        marks.append(shard.push(identity, "sgd", KEYS, ones()).marks.applied)

    threads = [threading.Thread(target=push, args=(identity,)) for identity in (first, second)]
    with shard.parts.store.gate.change(monotonic() + 60):
        threads[0].start()
        while not shard.parts.store.gate.num_waiting:
            sleep(0.001)
        with pytest.raises(DeadlineError):  # as one whose client has tried again too soon
            shard.push(first, "sgd", KEYS, ones(), terms=Terms(Ack.LOGGED, 0.02))
        threads[1].start()
        sleep(0.4)  # longer than a push waits for one that has not come
    for thread in threads:
        thread.join()
    assert sorted(marks) == [1, 2] or marks == [2, 2]
    assert shard.open_session(session.name, session.incarnation).marks.applied == 2


def test_a_shard_that_cannot_open_its_store_again_says_so_to_all(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.config = hps_config(lab.config, dram=hps.DramCacheConfig(bytes=40_000))
    shard, session = trained(lab, 3)
    digest = shard.digest("sgd")

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise hps.StoreError(errno.EMFILE, "planted: too many open files")

    assert not shard.is_dead
    with monkeypatch.context() as patch:
        patch.setattr(shard_core, "ParameterServer", refuse)
        with pytest.raises(hps.StoreError, match="planted"):
            shard.create_table(hps.TableConfig(name="late", dim=4))
    assert shard.is_dead and "planted" in shard.failure
    for call in (
        lambda: shard.pull("sgd", KEYS),
        lambda: shard.stats(),
        lambda: shard.push(session.next(), "sgd", KEYS, ones()),
    ):
        with pytest.raises(hps.StoreError, match=r"planted.*start (it|the server) again"):
            call()
    shard.close()
    lab.kill()
    assert lab.open().digest("sgd") == digest


def test_a_create_whose_rows_cannot_be_read_again_is_applied_all_the_same(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab)
    created = shard.create(session.next(), "sgd", KEYS)
    assert created.answer.shape == (3, 4)
    for error in (hps.CorruptionError("planted"), MemoryError("planted")):

        def fail(*arguments: Any, error: Exception = error) -> Any:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(shard.parts.store.server, "pull", fail)
            again = shard.create(session.again(), "sgd", KEYS)
        assert again.is_repeat and again.answer is None
    assert shard.create(session.again(), "sgd", KEYS).answer.shape == (3, 4)


def test_an_erase_that_the_log_cannot_take_back_is_not_called_refused(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, session = trained(lab, 2)

    def full(*arguments: Any) -> Any:
        raise hps.StoreError(errno.ENOSPC, "No space left on device")

    def stopped(*arguments: Any) -> Any:
        raise hps.StoreError(errno.EIO, "planted: the log stopped")

    monkeypatch.setattr(lab._stores[-1], "erase", full)
    monkeypatch.setattr(TwinUpdateLog, "take_back", stopped)
    with pytest.raises(hps.StoreError, match="planted") as caught:
        shard.erase(session.next(), "sgd", np.arange(10, dtype=np.uint64))
    assert caught.value.errno == errno.EIO and "take a refused erase back" in shard.failure


def test_a_list_of_checkpoints_and_their_size_read_no_dense_side(
    lab: ShardLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = trained(lab, 1)
    for number in range(3):
        shard.checkpoint(f"day-{number}", b"m" * 5000, b"r" * 100, f"group-{number}")
    store = lab._stores[-1]
    extras, asked = store.extras, []

    def note(checkpoint: Any = None, names: Any = None) -> Any:
        asked.append(names)
        return extras(checkpoint, names)

    monkeypatch.setattr(store, "extras", note)
    groups = [one["group"] for one in shard.checkpoints()]
    assert groups[-3:] == ["group-0", "group-1", "group-2"]
    assert len(asked) >= 3 and not any(names is None or MODEL in names for names in asked)
    asked.clear()
    assert shard.checkpoint_state_bytes("day-1") == 5000 + 100 + len("group-1")
    assert not any(names is None or MODEL in names for names in asked)
    assert shard.checkpoint_state("day-1") == (b"m" * 5000, b"r" * 100, "group-1")
    assert shard.checkpoint_named("day-1") == (shard.checkpoint_named("day-1")[0], "day-1")


class Curious:
    """Looks whether it is here each time that somebody asks for its hash."""

    def __init__(self, arrivals: "Arrivals[Curious]") -> None:
        self._arrivals = arrivals
        self._is_looking = False
        self.was_here: list[bool] = []

    def __hash__(self) -> int:
        if not self._is_looking:
            self._is_looking = True
            self.was_here.append(self in self._arrivals)
            self._is_looking = False
        return 7


def test_what_is_here_twice_is_here_while_one_of_it_goes() -> None:
    """Else a push would be told of a gap while the one before it waits for its turn."""
    arrivals: Arrivals[Curious] = Arrivals()
    thing = Curious(arrivals)
    arrivals.add(thing)
    arrivals.add(thing)
    thing.was_here.clear()
    arrivals.remove(thing)
    assert thing.was_here and all(thing.was_here)
    arrivals.remove(thing)
    assert thing not in arrivals
