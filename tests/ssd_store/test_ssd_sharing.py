"""Two processes at one store: one writes, readers stand beside it at a checkpoint of their own."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ssd_twin import dump, fetch, keys_of, make_rows, row_files, schema

from hps.errors import ConfigError, StoreError
from hps.ssd_store import verify

KEYS = keys_of(range(500))

HOLD = """
import sys, time
sys.path.insert(0, {tests!r})
from ssd_twin import schema
from {module} import {name}
store = {name}.open({path!r}, [schema()], read_only={read_only})
print("open", flush=True)
time.sleep(60)
"""


def hold_open(store_class: Any, path: Path, read_only: bool) -> subprocess.Popen[bytes]:
    script = HOLD.format(
        tests=str(Path(__file__).parent),
        module=store_class.__module__,
        name=store_class.__name__,
        path=str(path),
        read_only=read_only,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=os.getcwd()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    return process


def test_a_second_writer_is_told_the_first_ones_pid_and_what_to_do(
    store_class: Any, tmp_path: Path
) -> None:
    process = hold_open(store_class, tmp_path, read_only=False)
    who = f"open for writing by process {process.pid} of host {os.uname().nodename}; end it first"
    with pytest.raises(StoreError, match=f"{re.escape(who)}, or read beside it: hps.open"):
        store_class.open(tmp_path, [schema()])
    process.send_signal(signal.SIGKILL)
    process.wait()
    store_class.open(tmp_path, [schema()]).close()


def test_a_second_writer_in_the_same_process_is_refused(store_class: Any, tmp_path: Path) -> None:
    refused = pytest.raises(StoreError, match=f"process {os.getpid()}")
    with store_class.open(tmp_path, [schema()]), refused:
        store_class.open(tmp_path, [schema()])


def test_a_reader_keeps_its_checkpoint_while_the_writer_goes_on(
    store_class: Any, tmp_path: Path
) -> None:
    with store_class.open(tmp_path, [schema()], segment_bytes=2**14, keep_last=1) as writer:
        writer.append("ads", make_rows(KEYS, 1))
        writer.checkpoint("old")
        old_files = row_files(tmp_path)
        reader = store_class.open(tmp_path, [schema()], read_only=True, checkpoint="old")
        before = dump(reader, "ads")
        writer.append("ads", make_rows(KEYS, 2))
        writer.checkpoint()
        holders = writer.delete_checkpoint("old")
        assert holders == [f"process {os.getpid()} (checkpoint 1)"]
        writer.checkpoint()
        assert old_files <= row_files(tmp_path)
        assert dump(reader, "ads") == before
        assert fetch(reader, "ads", KEYS) == before
        reader.close()
        writer.checkpoint()
        assert not old_files & row_files(tmp_path)
        assert list((tmp_path / "pins").iterdir()) == []


def test_a_dead_readers_pin_vanishes(store_class: Any, tmp_path: Path) -> None:
    with store_class.open(tmp_path, [schema()], keep_last=1) as writer:
        writer.append("ads", make_rows(KEYS, 1))
        writer.checkpoint()
        old_files = row_files(tmp_path)
        process = hold_open(store_class, tmp_path, read_only=True)
        writer.append("ads", make_rows(KEYS, 2))
        writer.checkpoint()
        assert old_files <= row_files(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(list((tmp_path / "pins").iterdir())) == 1
        writer.checkpoint()
        assert not old_files & row_files(tmp_path)
        assert list((tmp_path / "pins").iterdir()) == []


def test_a_new_writer_respects_a_living_reader_of_a_deleted_checkpoint(
    store_class: Any, tmp_path: Path
) -> None:
    with store_class.open(tmp_path, [schema()], keep_last=1) as writer:
        writer.append("ads", make_rows(KEYS, 1))
        writer.checkpoint()
        reader = store_class.open(tmp_path, [], read_only=True)
        writer.append("ads", make_rows(KEYS, 2))
        writer.checkpoint()
    with store_class.open(tmp_path, [schema()], keep_last=1) as writer:
        writer.checkpoint()
        assert dump(reader, "ads")[7] == make_rows(KEYS[7:8], 1).tobytes()
        reader.close()


def test_a_reader_writes_nothing(store_class: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store here"):
        store_class.open(tmp_path / "none", [schema()], read_only=True)
    with store_class.open(tmp_path, [schema()]) as writer:
        writer.append("ads", make_rows(KEYS, 1))
        writer.checkpoint("kept")
    names = sorted(tmp_path.iterdir())
    with store_class.open(tmp_path, [schema()], read_only=True) as reader:
        for mutate in (
            lambda: reader.append("ads", make_rows(KEYS, 2)),
            lambda: reader.erase("ads", KEYS),
            lambda: reader.checkpoint(),
            lambda: reader.restore("kept"),
            lambda: reader.delete_checkpoint("kept"),
        ):
            with pytest.raises(StoreError, match="read-only"):
                mutate()
        with pytest.raises(ConfigError, match="no table 'other'"):
            store_class.open(tmp_path, [schema("other")], read_only=True)
        with pytest.raises(ConfigError, match="no checkpoint 'gone'; kept are: id:1 \\('kept'\\)"):
            store_class.open(tmp_path, [], read_only=True, checkpoint="gone")
    assert sorted(tmp_path.iterdir()) == names


def test_readers_and_verify_run_beside_a_busy_writer(store_class: Any, tmp_path: Path) -> None:
    """Every checkpoint that a reader opens is whole: all rows of one checkpoint have one value."""
    opened = 0
    with store_class.open(tmp_path, [schema()], segment_bytes=2**14, keep_last=1) as writer:
        writer.append("ads", make_rows(KEYS, 0))
        writer.checkpoint(None, {"value": b"0"})
        stop = threading.Event()
        values = []

        def write() -> None:
            value = 0
            while not stop.is_set():
                value += 1
                writer.append("ads", make_rows(KEYS, value))
                writer.checkpoint(None, {"value": str(value).encode()})
                values.append(value)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(400):
                if opened >= 8:
                    break
                with store_class.open(tmp_path, [], read_only=True) as reader:
                    value = int(reader.extras()["value"])
                    rows = make_rows(KEYS, value)
                    assert dump(reader, "ads") == {
                        int(key): row.tobytes() for key, row in zip(KEYS, rows, strict=True)
                    }
                    opened += value > 0
                assert verify(tmp_path) == []
        finally:
            stop.set()
            thread.join()
    assert opened >= 8
    assert values, "the writer went on"


def test_fetches_go_on_during_appends_and_checkpoints(store_class: Any, tmp_path: Path) -> None:
    with store_class.open(tmp_path, [schema()], segment_bytes=2**14, keep_last=1) as store:
        store.append("ads", make_rows(KEYS, 0))
        errors: list[BaseException] = []
        stop = threading.Event()

        def read() -> None:
            try:
                while not stop.is_set():
                    rows = np.zeros((len(KEYS), 32), np.uint8)
                    found = np.zeros(len(KEYS), np.uint8)
                    store.fetch("ads", KEYS, rows, found)
                    assert found.all()
                    assert (rows[:, :8].view(np.uint64)[:, 0] == KEYS).all()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for value in range(25):
            store.append("ads", make_rows(KEYS, value))
            store.checkpoint()
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []


def test_a_closed_store_says_so(store_class: Any, tmp_path: Path) -> None:
    store = store_class.open(tmp_path, [schema()])
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.num_rows("ads")
