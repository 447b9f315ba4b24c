"""`hps verify` of a served store: damage of its log is found and named, and nothing is changed.

Above it: pytest. Below it: hps/update_log/verify.py over a shard with the native log.
"""

from pathlib import Path

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.service.shard.shard import Identity, Shard
from hps.update_log import verify as verify_module
from hps.update_log.verify import verify_log

TABLE = hps.TableConfig(name="ads", dim=4)
KEYS = np.arange(100, dtype=np.uint64)
RECORD_BYTES = 16 + 64 + 100 * (8 + 4 * 4)  # of a push: frame, head with names, keys, gradients


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store whose newest checkpoint holds three pushes, and its log three more."""
    path = tmp_path / "store"
    shard = Shard(hps.Config(path=path, tables=[TABLE], dram=hps.DramCacheConfig(bytes="1MiB")))
    session = shard.open_session("trainer-0")
    for sequence in range(1, 7):
        identity = Identity("trainer-0", session.incarnation, sequence)
        shard.push(identity, "ads", KEYS, np.ones((100, 4), np.float32))
        if sequence == 3:
            shard.checkpoint()
    shard.close(checkpoint=False)
    return path


def log_files(store: Path) -> list[Path]:
    return sorted((store / "log").glob("log-*"))


def contents(store: Path) -> dict[str, bytes]:
    """All files, but for the pins of readers, which come and go."""
    files = [path for path in store.rglob("*") if path.is_file()]
    return {str(path.relative_to(store)): path.read_bytes() for path in files}


def test_a_whole_log_is_called_whole_and_is_left_as_it_is(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(store)
    assert main(["verify", str(store)]) == 0
    assert "every checksum holds" in capsys.readouterr().out
    after = contents(store)
    assert {name: after.get(name) for name in before} == before and log_files(store)


def test_a_flipped_byte_of_any_record_but_the_last_is_found_and_its_file_named(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = log_files(store)
    whole = file.read_bytes()
    last = len(whole) - RECORD_BYTES
    for place in range(0, len(whole), 613):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        file.write_bytes(damaged)
        status = main(["verify", str(store)])
        printed = capsys.readouterr()
        assert file.read_bytes() == damaged
        assert status == (1 if place < last else 0), place  # damage of the last one is a tear
        assert (str(file) in printed.out) == (status == 1)
        assert status == 0 or "1 damaged file(s)" in printed.err
    file.write_bytes(whole)
    assert main(["verify", str(store)]) == 0


def test_a_file_that_is_missing_or_too_short_is_found(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file,) = log_files(store)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert main(["verify", str(store)]) == 1
    assert str(file) in capsys.readouterr().out
    file.unlink()
    assert main(["verify", str(store)]) == 1
    assert str(file) in capsys.readouterr().out


def test_a_damaged_history_is_found(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = store / "log" / "HISTORY"
    history.write_bytes(history.read_bytes().replace(b'"number"', b'"nvmber"'))
    assert main(["verify", str(store)]) == 1
    assert str(history) in capsys.readouterr().out


def test_a_store_that_is_being_served_or_never_was_is_verified_too(
    store: Path, tmp_path: Path
) -> None:
    shard = Shard(hps.Config(path=store, tables=[TABLE], dram=hps.DramCacheConfig(bytes="1MiB")))
    session = shard.open_session("trainer-0")
    for sequence in range(session.marks.applied + 1, session.marks.applied + 16):
        identity = Identity("trainer-0", session.incarnation, sequence)
        shard.push(identity, "ads", KEYS, np.ones((100, 4), np.float32))
        if sequence % 7 == 0:
            shard.checkpoint()
        assert verify_log(store) == []
    shard.close()
    assert verify_log(store) == []
    with hps.ParameterServer(hps.Config(path=tmp_path / "plain", tables=[TABLE])) as server:
        server.push("ads", KEYS, np.ones((100, 4), np.float32))
    assert verify_log(tmp_path / "plain") == [] and main(["verify", str(tmp_path / "plain")]) == 0


def test_a_log_that_a_server_cuts_meanwhile_is_looked_at_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a checkpoint has covered may be gone when the log is read: that is no damage."""
    numbers: list[int] = []
    asked: list[int] = []

    class Log:
        @staticmethod
        def verify(folder: str, identity: int, epoch: int, after: int) -> tuple[int, int]:
            asked.append(after)
            if len(asked) == 1:
                raise hps.CorruptionError(f"{folder}/log-1: offset 0: planted")
            return after, 0

    class Native:
        UpdateLog = Log

    monkeypatch.setattr(verify_module, "_C", Native)
    monkeypatch.setattr(verify_module, "_number_in_checkpoint", lambda *_: numbers.pop(0))
    numbers[:] = [3, 5, 5]
    assert verify_log(store) == [] and asked == [3, 5]
    asked.clear()
    numbers[:] = [3, 3]
    ((file, what),) = verify_log(store)
    assert file == str(store / "log" / "log-1") and what == "offset 0: planted"
