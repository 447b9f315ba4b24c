"""What the system refuses to open is an error that names the file; nothing is lost by it."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ssd_twin import dump, keys_of, make_rows, schema

from hps.errors import StoreError
from hps.ssd_store import SsdStore

KEYS = keys_of(range(60))

# Opens a store as an ordinary user: for root nothing is forbidden.
AS_USER = """
import json, os, sys
from hps.errors import HpsError
from hps.ssd_store import SsdStore
path, read_only = sys.argv[1], bool(int(sys.argv[2]))
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    with SsdStore.open(path, [], read_only=read_only) as store:
        print(json.dumps({name: store.num_rows(name) for name in store.schemas}))
except HpsError as error:
    print(json.dumps([type(error).__name__, getattr(error, "errno", None), str(error)]))
"""


def open_as_user(path: Path, read_only: bool) -> Any:
    words = [sys.executable, "-c", AS_USER, str(path), str(int(read_only))]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def store() -> Iterator[Path]:
    """A store that everyone may read and write, in a folder that everyone can reach."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with SsdStore.open(path, [schema()], snapshot_rows=0) as opened:
            opened.append("ads", make_rows(KEYS, 1))
            opened.checkpoint("kept", {"dense": bytes(5000)})
        for file in (Path(folder), path, *path.rglob("*")):
            file.chmod(0o777 if file.is_dir() else 0o666)
        yield path
        path.chmod(0o777)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "segment-*"])
def test_an_unreadable_file_is_named(store: Path, pattern: str, read_only: bool) -> None:
    assert open_as_user(store, read_only) == {"ads": 60}
    file = next(store.glob(pattern))
    file.chmod(0)
    for snapshot in store.glob("index-*"):
        snapshot.unlink()
    kind, number, message = open_as_user(store, read_only)
    assert (kind, number) == ("StoreError", errno.EACCES)
    assert file.name in message
    file.chmod(0o666)
    assert open_as_user(store, read_only) == {"ads": 60}


def test_an_unreadable_snapshot_is_passed_over(store: Path) -> None:
    next(store.glob("index-*")).chmod(0)
    assert open_as_user(store, True) == {"ads": 60}


def test_a_folder_without_write_permission_takes_no_writer(store: Path) -> None:
    (store / "LOCK").chmod(0o444)
    store.chmod(0o555)
    kind, number, message = open_as_user(store, False)
    assert (kind, number) == ("StoreError", errno.EACCES) and "LOCK" in message
    assert "only read the store (hps.open(path, read_only=True))" in message
    assert open_as_user(store, True) == {"ads": 60}, "a reader needs the folder of pins alone"
    (store / "pins").chmod(0o555)
    kind, number, message = open_as_user(store, True)
    assert (kind, number) == ("StoreError", errno.EACCES) and "pins" in message


def test_a_file_in_the_place_of_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match="file") as refused:
            SsdStore.open(path, [schema()])
        assert refused.value.errno == errno.ENOTDIR
    assert (tmp_path / "file").read_text() == "no folder"


def test_opening_again_and_again_changes_nothing_but_the_log(store: Path) -> None:
    """Recovery is idempotent: the checkpoint's files stay, numbers go up, no leftover gathers."""
    kept = {file.name: file.read_bytes() for file in store.glob("segment-*")}
    kept |= {file.name: file.read_bytes() for file in store.glob("extra-*")}
    (store / "segment-000000999999").write_bytes(b"left by a killed process")
    (store / "CURRENT.new").write_bytes(b"left too")
    reserved = os.path.getsize(next(store.glob("MANIFEST-*")))
    for _ in range(5):
        opened = SsdStore.open(store, [schema()])
        opened.append("ads", make_rows(KEYS, 2))  # and then it is killed: nothing is closed
        native, opened._native = opened._native, None
        del native, opened
        with SsdStore.open(store, [], read_only=True) as reader:
            assert dump(reader, "ads")[7] == make_rows(KEYS[7:8], 1).tobytes()
            assert reader.verify() == []
    SsdStore.open(store, [schema()]).close()
    now = {file.name: file.read_bytes() for file in store.iterdir() if "-" in file.name}
    others = {name for name in now if name not in kept}
    assert {name: now[name] for name in kept} == kept
    assert {name.split("-")[0] for name in others} <= {"MANIFEST", "index"}
    assert os.path.getsize(next(store.glob("MANIFEST-*"))) > reserved
