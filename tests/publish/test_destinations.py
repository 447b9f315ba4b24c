"""What every destination promises: files come into being whole, once, and by one step.

Above it: pytest. Below it: hps/publish/destination.py; moto's S3 server, or one that
the environment names (conftest.py).
"""

import os
import uuid
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.publish.destination import Destination, TakenError, open_destination
from tests.publish.publish_lab import a_server, keys_of, push, rows_of, served


@pytest.fixture(params=["folder", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = uuid.uuid4().hex
    if request.param == "folder":
        return str(tmp_path / "pub" / "ctr")
    if request.param == "memory":
        return f"memory://{name}"
    return f"{request.getfixturevalue('s3')}/{name}/ctr"


@pytest.fixture
def destination(place: str) -> Destination:
    return open_destination(place)


def test_an_empty_place_has_nothing(destination: Destination) -> None:
    assert destination.names() == [] and destination.folders("data") == []
    with pytest.raises(FileNotFoundError):
        destination.read("version-00000001.json")
    destination.remove("version-00000001.json")


def test_a_file_is_made_once(destination: Destination) -> None:
    destination.create("a.json", b"one")
    with pytest.raises(TakenError, match=r"a.json is there already"):
        destination.create("a.json", b"two")
    assert destination.read("a.json") == b"one" and destination.names() == ["a.json"]


def test_a_file_is_made_once_where_no_notice_is_taken_of_the_condition(
    destination: Destination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by some servers of S3."""
    system = getattr(destination, "_system", None)
    if system is None:
        pytest.skip("a folder has no conditions")
    put = system.pipe_file
    monkeypatch.setattr(system, "pipe_file", lambda path, data, mode: put(path, data))
    destination.create("a.json", b"one")
    with pytest.raises(TakenError, match=r"a.json is there already"):
        destination.create("a.json", b"two")
    assert destination.read("a.json") == b"one"


def test_a_stream_makes_a_file_in_a_folder(destination: Destination) -> None:
    piece = os.urandom(1 << 20)
    with destination.write("data/7-x/rows.arrow") as stream:
        for _ in range(3):
            stream.write(memoryview(piece))
    with destination.open("data/7-x/rows.arrow") as stream:
        assert stream.read() == 3 * piece
    assert destination.folders("data") == ["7-x"] and destination.names() == []
    destination.remove("data/7-x")
    assert destination.folders("data") == []


def test_versions_are_published_and_read_there(place: str, tmp_path: Path) -> None:
    with a_server(tmp_path / "store") as server:
        push(server, np.arange(300, dtype=np.uint64), 1.0)
        server.publish(place)
        push(server, keys_of(3, 700), 1.0)
        server.erase("ads", keys_of(4))
        made = server.publish(place)
        assert (made["kind"], made["changed"], made["removed"]) == ("delta", 2, 1)
        assert served(place, tmp_path / "cache") == rows_of(server)


def test_a_password_is_in_no_message() -> None:
    shown = open_destination("memory://me:secret@bucket/x").shown
    assert "secret" not in shown and shown == "memory://bucket/x"


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "pub").write_text("x")
    with pytest.raises(hps.StoreError, match=r"pub is not a folder"):
        open_destination(tmp_path / "pub").names()


def test_a_kind_that_is_not_installed_is_named() -> None:
    with pytest.raises(hps.ConfigError, match=r"nosuch://x: .*fsspec reads it once"):
        open_destination("nosuch://x")
