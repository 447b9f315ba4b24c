"""A served store is the folder that was opened: its log acknowledges nothing that its path does not
lead to any more, and writes into no other store's log."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.errors import StoreError
from hps.service.shard.answers import Ack, Terms
from hps.service.shard.shard import Identity, Shard
from hps.ssd_store import verify
from hps.update_log import open_update_log
from hps.update_log.verify import verify_log
from tests.forking import refused_in_child

KEYS = np.arange(200, dtype=np.uint64)
GRADS = np.ones((200, 4), np.float32)


def open_shard(path: Path) -> Shard:
    return Shard(hps.Config(path=path, tables=[hps.TableConfig(name="ads", dim=4)], threads=2))


class Client:
    """Pushes in order."""

    def __init__(self, shard: Shard, name: str = "trainer") -> None:
        self.shard = shard
        opened = shard.open_session(name)
        self.name, self.incarnation = name, opened.incarnation
        self.sequence = opened.marks.applied

    def push(self, ack: Ack = Ack.DURABLE) -> None:
        self.sequence += 1
        identity = Identity(self.name, self.incarnation, self.sequence)
        self.shard.push(identity, "ads", KEYS, GRADS, terms=Terms(ack, 30.0))


def files_of(path: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder) / name
            found[str(file)] = (file.stat().st_size, file.stat().st_mtime_ns)
    return found


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved"))


def remove(path: Path) -> None:
    shutil.rmtree(path)


def end(shard: Shard) -> None:
    """Closes one that takes nothing more."""
    with pytest.raises(StoreError):
        shard.close()


@pytest.mark.parametrize("ack", [Ack.LOGGED, Ack.DURABLE])
@pytest.mark.parametrize("lose", [move_away, remove])
def test_no_push_is_acknowledged_once_another_store_has_the_path(
    tmp_path: Path, lose: Callable[[Path], None], ack: Ack
) -> None:
    path = tmp_path / "model"
    first = open_shard(path)
    client = Client(first)
    client.push(ack)
    lose(path)
    innocent = open_shard(path)
    Client(innocent).push()
    before = files_of(path)
    with pytest.raises(StoreError, match="another one has its path now"):
        client.push(ack)
    with pytest.raises(StoreError):
        client.push(ack)
    with pytest.raises(StoreError, match="another one has its path now"):
        first.checkpoint("lost")
    end(first)
    assert files_of(path) == before
    innocent.close()
    assert verify(path) == [] == verify_log(path)
    again = open_shard(path)
    assert again.pull("ads", KEYS).shape == (200, 4)
    again.close()


def test_what_was_acknowledged_before_the_move_is_replayed_where_it_is_now(tmp_path: Path) -> None:
    first = open_shard(tmp_path / "model")
    client = Client(first)
    for _ in range(3):
        client.push()
    expected = first.pull("ads", KEYS).copy()
    move_away(tmp_path / "model")
    with pytest.raises(StoreError, match="was moved to"):
        client.push()
    end(first)
    again = open_shard(tmp_path / "moved")
    # The one that was refused may be there: its record was written, and not acknowledged.
    steps = again.pull("ads", KEYS)[0, 0] / expected[0, 0]
    assert again.pull("ads", KEYS) is not None and steps >= 1 - 1e-6
    assert Client(again).sequence in (3, 4)
    again.close()
    assert verify(tmp_path / "moved") == []


def test_a_restore_writes_no_history_into_a_store_that_took_the_path(tmp_path: Path) -> None:
    path = tmp_path / "model"
    first = open_shard(path)
    Client(first).push()
    first.checkpoint("kept")
    Client(first).push()
    move_away(path)
    innocent = open_shard(path)
    Client(innocent).push()
    before = files_of(path)
    with pytest.raises(StoreError, match="another one has its path now"):
        first.restore("kept")
    with suppress(StoreError):
        first.close()
    assert files_of(path) == before
    innocent.close()
    assert verify(path) == [] == verify_log(path)


def test_a_lock_that_is_gone_ends_the_acknowledgements_of_the_log(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    client = Client(shard)
    client.push()
    (tmp_path / "LOCK").unlink()
    with pytest.raises(StoreError, match=r"LOCK: the file.*was removed"):
        client.push()
    with pytest.raises(StoreError, match="open for writing by"):
        open_shard(tmp_path)
    end(shard)
    again = open_shard(tmp_path)
    Client(again).push()
    again.close()
    assert verify(tmp_path) == [] == verify_log(tmp_path)


def test_a_forked_child_is_refused_every_verb_of_a_shard(tmp_path: Path) -> None:
    shard = open_shard(tmp_path)
    client = Client(shard)
    client.push()
    verbs = [
        client.push,
        lambda: Client(shard, "another"),
        lambda: shard.pull("ads", KEYS),
        lambda: shard.checkpoint("child"),
        lambda: shard.close(),
    ]
    before = files_of(tmp_path)
    assert refused_in_child(verbs) == []
    assert files_of(tmp_path) == before
    client.push()
    shard.close()
    assert verify(tmp_path) == [] == verify_log(tmp_path)


def test_a_forked_child_is_refused_a_log(tmp_path: Path) -> None:
    log = open_update_log(str(tmp_path / "log"), 1, 1, 0)
    number = log.append([b"record"])
    assert log.wait(number, True, 30.0)
    verbs = [
        lambda: log.append([b"child"]),
        lambda: log.wait(number, True, 30.0),
        lambda: log.take_back(number),
        lambda: log.cut(number),
        lambda: log.free_space(),
    ]
    before = files_of(tmp_path)
    assert refused_in_child(verbs) == []
    assert files_of(tmp_path) == before
    assert log.append([b"more"]) == number + 1
    log.close()


def test_a_log_by_a_relative_path_stays_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    log = open_update_log("log", 1, 1, 0)
    monkeypatch.chdir(tmp_path / "there")
    assert log.wait(log.append([b"record"]), True, 30.0)
    log.close()
    assert list((tmp_path / "there").iterdir()) == []
    again = open_update_log(str(tmp_path / "log"), 1, 1, 0)
    assert again.read(2**20) == [(1, b"record")]
    again.close()
