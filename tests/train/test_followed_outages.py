"""hps train --follow of an object store that is away for a while: nothing is lost or read twice.

Above it: pytest. Below it: hps/train/following.py, hps/reader/urls.py; a file system in memory
whose calls fail while it is away.
"""

import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hps.common.json_text import Json
from hps.errors import StoreError
from hps.reader import urls
from hps.reader.urls import AwayError, Patience, find_urls
from hps.stops import Stops
from hps.train import TrainOptions, train
from hps.train import following as following_module
from hps.train.progress import Progress
from tests.logs import write_criteo
from tests.parity.test_resume import same_bits
from tests.train.test_followed_training import (
    PLAIN,
    SIZES,
    assert_same_model,
    coming,
    follow,
    options,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@dataclass
class Network:
    """Between this process and the store in memory.

    Args:
        left: calls that fail from now on; -1: all.
        by: their names.
        failed: how many have.
    """

    left: int = 0
    by: tuple[str, ...] = ("ls", "cat_file", "info")
    failed: dict[str, int] = field(default_factory=dict)

    def pass_or_fail(self, name: str) -> None:
        if self.left and name in self.by:
            self.left -= 1
            self.failed[name] = self.failed.get(name, 0) + 1
            raise ConnectionError("Connection refused")


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    found = Network()

    def through(name: str) -> Callable[..., Any]:
        verb = getattr(MemoryFileSystem, name)

        def call(self: Any, *given: Any, **more: Any) -> Any:
            found.pass_or_fail(name)
            return verb(self, *given, **more)

        return call

    for name in found.by:
        monkeypatch.setattr(MemoryFileSystem, name, through(name))
    for name in ("_FIRST_WAIT_SECONDS", "_LONGEST_WAIT_SECONDS"):
        monkeypatch.setattr(urls, name, 0.001)
    return found


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("logs")
    return [
        write_criteo(folder / f"{place:02}.tsv", size, num_keys=300, seed=place)
        for place, size in enumerate(SIZES)
    ]


@pytest.fixture
def folder() -> Iterator[str]:
    name = f"/{uuid.uuid4().hex}"
    yield f"memory:/{name}"
    if MemoryFileSystem().exists(name):
        MemoryFileSystem().rm(name, recursive=True)


def put(folder: str, *files: Path) -> None:
    for file in files:
        with fsspec.open(f"{folder}/{file.name}", "wb") as out:
            out.write(file.read_bytes())


def of_run(folder: str, store: Path, **more: Any) -> TrainOptions:
    return follow(folder, store, **{"poll": 0.01, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("by", [("ls",), ("cat_file", "info"), ("ls", "cat_file", "info")])
def test_a_store_that_is_away_is_waited_for_and_the_bits_stay(
    by: tuple[str, ...],
    depth: int,
    network: Network,
    logs: list[Path],
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more: Json = {"depth": depth, "checkpoint_every": 2}
    whole = train(options("", tmp_path / "whole", **{**PLAIN, **more, "data": logs}))
    put(folder, *logs[:2])
    told = StringIO()

    def come(*files: Path) -> Callable[[], None]:
        def act() -> None:
            put(folder, *files)
            network.by, network.left = by, 21

        return act

    nothing = [lambda: None] * 8  # waits of a folder that does not answer
    acts = [come(*logs[2:4]), *nothing, come(*logs[4:]), *nothing]
    with coming(monkeypatch, *acts):
        figures = train(of_run(folder, tmp_path / "store", **more), Progress(0, told))
    assert network.left == 0 and sum(network.failed.values()) == 42
    assert figures["follow"]["files"] == len(logs)
    assert same_bits(figures) == same_bits(whole)
    assert_same_model(tmp_path / "store", tmp_path / "whole")
    lines = told.getvalue()
    assert lines.count("Connection refused; it is ") >= 2 and "again for 600 s" in lines
    assert lines.count(" again, after ") == lines.count("Connection refused; it is ")


def test_a_store_that_stays_away_ends_the_run_which_goes_on_later(
    network: Network, logs: list[Path], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(options("", tmp_path / "whole", **{**PLAIN, "data": logs}))
    for name, by in (("listing", ("ls",)), ("reading", ("cat_file", "info"))):
        place, store = f"{folder}/{name}", tmp_path / name
        put(place, *logs[:3])

        def leave(by: tuple[str, ...] = by, place: str = place) -> None:
            put(place, logs[3])
            network.by, network.left = by, -1

        quiet = [leave, *[lambda: time.sleep(0.3)] * (name == "listing")]
        with coming(monkeypatch, *quiet), pytest.raises(StoreError, match="Connection refused"):
            train(of_run(place, store, follow_retry=0.2))
        network.left = 0
        put(place, *logs[4:])
        with coming(monkeypatch):
            figures = train(of_run(place, store, resume=True))
        assert figures["examples"] < sum(SIZES)  # what was trained was saved
        assert same_bits(figures) == same_bits(whole)
        assert_same_model(store, tmp_path / "whole")


def test_a_run_does_not_begin_with_a_store_that_is_away(
    network: Network, folder: str, tmp_path: Path
) -> None:
    """Its name may be wrong."""
    network.left = -1
    with pytest.raises(AwayError, match="tried 4 times: ConnectionError"):
        train(of_run(folder, tmp_path / "store"))
    network.left = 0


def test_a_folder_that_does_not_answer_is_not_idle(
    network: Network, logs: list[Path], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job of a timer, which ends as soon as all files are read, reads those that came behind an
    outage, too."""
    put(folder, *logs[:2])
    look = following_module.FollowedFolder.look
    looks = []

    def later(self: Any) -> Any:
        looks.append(1)
        if len(looks) == 2:  # the first after all has been read
            put(folder, *logs[2:])
            network.by, network.left = ("ls",), 9
        return look(self)

    monkeypatch.setattr(following_module.FollowedFolder, "look", later)
    figures = train(of_run(folder, tmp_path / "store", follow_until_idle=0.0))
    assert figures["examples"] == sum(SIZES) and network.failed == {"ls": 9}


def test_an_outage_is_no_part_of_the_time_that_a_run_waits_for_a_file(
    network: Network, logs: list[Path], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder answers after longer than that, and has the file a moment later."""
    idle = 1.0
    put(folder, *logs[:2])
    look = following_module.FollowedFolder.look
    looks = []

    def later(self: Any) -> Any:
        looks.append(time.monotonic())
        if len(looks) == 2:
            network.by, network.left = ("ls",), -1
        if network.left and time.monotonic() - looks[1] > 1.5 * idle:
            network.left = 0
            found = look(self)
            put(folder, *logs[2:])
            return found
        return look(self)

    monkeypatch.setattr(following_module.FollowedFolder, "look", later)
    figures = train(of_run(folder, tmp_path / "store", follow_until_idle=idle))
    assert figures["examples"] == sum(SIZES) and network.failed["ls"] > 4


@pytest.mark.parametrize("by", [("ls",), ("cat_file", "info")])
@pytest.mark.parametrize("depth", [0, 2])
def test_a_stop_ends_the_wait_for_a_store_that_is_away(
    by: tuple[str, ...],
    depth: int,
    network: Network,
    logs: list[Path],
    folder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = train(options("", tmp_path / "whole", **{**PLAIN, "depth": depth, "data": logs}))
    put(folder, *logs[:3])
    with Stops() as stops:
        started = []

        def told(line: str) -> None:
            if "again for" in line and not started:
                started.append(time.monotonic())
                signal.raise_signal(signal.SIGTERM)

        progress = Progress(0, StringIO())
        monkeypatch.setattr(progress, "say", told)

        def leave() -> None:
            put(folder, logs[3])
            network.by, network.left = by, -1
            stops.defer()

        own = following_module.Following._sleep
        with coming(monkeypatch, leave), monkeypatch.context() as patch:
            # From the outage on a wait is one, and sees a stop.
            faked = following_module.Following._sleep

            def sleep(self: Any, waited: float) -> None:
                (own if network.left else faked)(self, waited)

            patch.setattr(following_module.Following, "_sleep", sleep)
            figures = train(of_run(folder, tmp_path / "store", depth=depth), progress, stops=stops)
        assert time.monotonic() - started[0] < 10
    assert figures["stopped"] == "SIGTERM"
    network.left = 0
    put(folder, *logs[4:])
    with coming(monkeypatch):
        figures = train(of_run(folder, tmp_path / "store", depth=depth, resume=True))
    assert same_bits(figures) == same_bits(whole)
    assert_same_model(tmp_path / "store", tmp_path / "whole")


def test_a_read_is_tried_for_as_long_as_one_has_patience(
    network: Network, logs: list[Path], folder: str
) -> None:
    put(folder, logs[0])
    (file,) = find_urls(f"{folder}/{logs[0].name}")
    told: list[str] = []
    url = f"{folder}/{logs[0].name}"
    patience = Patience(60.0, told.append)
    patient = urls.UrlFile(url, MemoryFileSystem(), url.removeprefix("memory:/"), None, patience)
    network.by, network.left = ("cat_file",), 10
    with pytest.raises(AwayError, match="tried 4 times"):
        file.open().read()  # type: ignore[union-attr]
    assert patient.open().read() == logs[0].read_bytes()
    assert network.left == 0 and len(told) == 2
    assert "it is tried again for 60 s" in told[0] and "is read again, after 0 s" in told[1]
