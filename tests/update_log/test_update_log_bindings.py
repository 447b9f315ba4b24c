"""The native log as Python sees it: what it takes and refuses, who runs beside it, kills.

Above it: pytest. Below it: hps._C.UpdateLog. Its faults are in tests/native/update_log_*_test.cc.
"""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hps import _C
from hps.errors import CapacityError, ConfigError, CorruptionError, StoreError


def open_log(path: Path, after: int = 0, **options: int) -> _C.UpdateLog:
    return _C.UpdateLog.open(str(path), 7, 1, after, **options)


def read_all(log: _C.UpdateLog) -> list[bytes]:
    records = []
    while piece := log.read(1000):
        records += [payload for _, payload in piece]
    return records


def test_a_record_is_made_of_any_buffers(tmp_path: Path) -> None:
    keys = np.arange(5, dtype=np.uint64)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    rows.setflags(write=False)
    parts = [b"head", bytearray(b"more"), memoryview(b"view"), keys, rows, b""]
    log = open_log(tmp_path)
    assert log.append(parts) == 1 and log.append([]) == 2 and log.append(tuple(parts)) == 3
    with pytest.raises(ValueError, match="not C-contiguous"):
        log.append([b"never", keys[::2]])
    with pytest.raises(TypeError):
        log.append([b"never", "text"])  # type: ignore[list-item]
    log.close()
    expected = b"headmoreview" + keys.tobytes() + rows.tobytes()
    assert read_all(open_log(tmp_path)) == [expected, b"", expected]


def test_a_push_of_a_hundred_thousand_keys_comes_back(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    keys = chance.integers(0, 2**64, 100_000, np.uint64)
    grads = chance.standard_normal((100_000, 16), np.float32)
    log = open_log(tmp_path)
    for _ in range(12):  # more than a file
        log.append([b"h" * 48, keys, grads])
    log.close()
    records = read_all(open_log(tmp_path))
    assert len(records) == 12 and len(list(tmp_path.glob("log-*"))) == 2
    assert set(records) == {b"h" * 48 + keys.tobytes() + grads.tobytes()}


UNFIT: dict[str, tuple[Callable[[_C.UpdateLog], Any], type[Exception], str]] = {
    "too long": (lambda log: log.append([bytes(70 * 2**20)]), CapacityError, "73400320 bytes"),
    "take back another": (lambda log: log.take_back(1), ConfigError, "1 is not that"),
    "cut ahead": (lambda log: log.cut(3), ConfigError, "the last is 2"),
    "read late": (lambda log: log.read(1), ConfigError, "before the first append"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path, name: str) -> None:
    call, error, message = UNFIT[name]
    log = open_log(tmp_path)
    log.append([b"one"])
    log.append([b"two"])
    with pytest.raises(error, match=message):
        call(log)
    assert log.appended == 2 and log.wait(2, True, 10.0)


def test_sizes_too_small_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="file_bytes=1000 must be at least 1024"):
        open_log(tmp_path, file_bytes=1000)
    with pytest.raises(ConfigError, match="buffer_bytes=4096 must be at least 16384"):
        open_log(tmp_path, buffer_bytes=4096)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_log_refuses_and_still_tells_its_numbers(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([b"one"])
    log.close()
    log.close()
    for call in (lambda: log.append([b"two"]), lambda: log.take_back(1), lambda: log.read(1)):
        with pytest.raises(StoreError, match="has been closed") as raised:
            call()
        assert raised.value.errno == errno.EBADF
    assert (log.appended, log.logged, log.durable) == (1, 1, 1)
    assert log.wait(1, True, 0.0)


def test_damage_names_the_file_and_the_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(3):
        log.append([bytes(100)])
    log.close()
    file = tmp_path / "log-000000000001"
    data = bytearray(file.read_bytes())
    data[56 + 120 + 50] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptionError, match="log-000000000001: offset 176: record 2 is expected"):
        open_log(tmp_path)


def test_a_torn_final_record_is_dropped_and_said_to_be(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(3):
        log.append([b"%d" % number * 100])
    log.close()
    file = tmp_path / "log-000000000001"
    os.truncate(file, file.stat().st_size - 30)
    log = open_log(tmp_path)
    assert log.dropped_bytes == 120 - 30
    assert read_all(log) == [b"0" * 100, b"1" * 100] and log.append([b"again"]) == 3


def test_other_python_threads_run_while_one_waits(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([b"one"])
    assert log.wait(1, True, 10.0)
    waiting = threading.Event()
    answers: list[bool] = []

    def wait() -> None:
        waiting.set()
        answers.append(log.wait(2, False, 30.0))

    waiter = threading.Thread(target=wait)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # the waiter lets go of the GIL by itself, or not at all
    try:
        waiter.start()
        assert waiting.wait(30)
        assert log.append([b"two"]) == 2  # too late if the waiter kept the GIL
        waiter.join()
    finally:
        sys.setswitchinterval(interval)
    assert answers == [True]


WORKER = """
import sys
from hps import _C
log = _C.UpdateLog.open(sys.argv[1], 7, 1, 0, file_bytes=4096)
for number in range(1, 10**9):
    log.append([b"%d" % number * 50])
    if number % 3 == 0:
        assert log.wait(number, number % 9 == 0, 60.0)
        print(number, flush=True)
"""


def test_what_was_logged_survives_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        lines = [worker.stdout.readline() for _ in range(40)]
        worker.send_signal(signal.SIGKILL)
        lines += worker.stdout.readlines()
    assert worker.returncode == -signal.SIGKILL
    acknowledged = int([line for line in lines if line.endswith("\n")][-1])
    records = read_all(open_log(tmp_path))
    assert len(records) >= acknowledged >= 120
    assert records == [b"%d" % number * 50 for number in range(1, len(records) + 1)]
