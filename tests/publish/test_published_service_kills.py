"""Servers and clients that die while a version over several servers is made: nothing is half
visible, and the next one goes on.

Above it: pytest. Below it: hps.RemoteParameterServer.publish, `hps serve` as processes.
"""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.publish import publisher as publisher_module
from hps.publish.destination import open_destination
from hps.publish.options import PublishOptions
from hps.publish.version import listed_versions
from hps.service.client.connections import Connections
from hps.service.client.parameter_server import RemoteParameterServer
from tests.ports import HeldPort
from tests.publish.publish_lab import Rows, keys_of, push, rows_of, served
from tests.publish.test_published_kills import Killed, Mortal
from tests.publish.test_published_services import a_service
from tests.service.serving import ROOT, Process, process

MANY = np.arange(300, dtype=np.uint64)
LARGE = np.arange(200_000, dtype=np.uint64)
TABLE = "name=ads,dim=4,optimizer=rowwise_adagrad,lr=0.1"


class MortalCalls:
    """Lets a client die before its n-th call to the shards that publishing makes."""

    METHODS = ("DescribePart", "PublishPart", "DropPart", "MoveName")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies_at: int | None) -> None:
        self.num_calls = 0
        ask = Connections.ask_each

        def counted(own: Connections, method: str, *given: Any, **how: Any) -> Any:
            if method in self.METHODS:
                self.num_calls += 1
                if dies_at is not None and self.num_calls >= dies_at:
                    raise Killed
            return ask(own, method, *given, **how)

        monkeypatch.setattr(Connections, "ask_each", counted)


def attempt(
    client: RemoteParameterServer, place: Path, operation: int | None, call: int | None
) -> tuple[int, int]:
    """One version, whose client dies at an operation at the destination or at a call; how many of
    both it made."""
    mortal = Mortal(open_destination(place), operation)
    with pytest.MonkeyPatch.context() as patched:
        calls = MortalCalls(patched, call)
        patched.setattr(publisher_module, "open_destination", lambda _: mortal)
        publisher = client.publishing.publisher(str(place), PublishOptions())
        try:
            publisher.publish()
        except Killed:
            assert operation is not None or call is not None
    return mortal.num_operations, calls.num_calls


@pytest.mark.parametrize("dies", ["at the destination", "at a call"])
def test_a_client_that_dies_at_any_moment_leaves_nothing_half_visible(
    dies: str, tmp_path: Path
) -> None:
    place = tmp_path / "pub"
    with a_service(tmp_path) as made, made.client() as client:
        push(client, MANY, 1.0)
        client.publish(place)
        before: Rows = rows_of(client)
        push(client, keys_of(1, 2, 900), 1.0)
        client.erase("ads", keys_of(5))
        client.checkpoint()
        after: Rows = rows_of(client)
        whole = tmp_path / "kept"
        shutil.copytree(place, whole)
        operations, calls = attempt(client, place, None, None)
        assert operations > 6 and calls > 3
        most = operations if dies == "at the destination" else calls
        for moment in range(1, most + 1):
            shutil.rmtree(place)
            shutil.copytree(whole, place)
            given = (moment, None) if dies == "at the destination" else (None, moment)
            attempt(client, place, *given)
            numbers = listed_versions(open_destination(place))
            assert numbers in ([1], [1, 2])
            assert served(place, tmp_path / "c") == (before if numbers == [1] else after)
        # Each of them had given the pin away; what is published last is kept all the same.
        for round_ in range(3):
            push(client, keys_of(7), 1.0)
            client.checkpoint()
            told = client.publish(place)
            assert told["kind"] == "delta", (round_, told)
        assert served(place, tmp_path / "c") == rows_of(client)
    folders = open_destination(place).folders("data")
    assert len(folders) == len(listed_versions(open_destination(place)))


class Servers:
    """Two `hps serve` processes, which are killed and started again at the same addresses."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports = [HeldPort(), HeldPort()]
        for port in self._ports:
            stack.callback(port.close)
        self.addresses = [port.address for port in self._ports]
        self.processes = [self.start(0), self.start(1)]

    def start(self, index: int) -> Process:
        flags = ["--shard", f"{index}/2", "--publish-to", str(self._folder / "pub")]
        flags += ["--table", TABLE]
        return self._stack.enter_context(
            process(self._folder / f"shard{index}", *flags, listen=self.addresses[index])
        )

    def kill(self, index: int) -> None:
        self.processes[index].stop(signal.SIGKILL)

    def start_again(self, index: int) -> None:
        self.processes[index] = self.start(index)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path, stack)


@contextmanager
def publishing(client: RemoteParameterServer, place: Path) -> Iterator[list[Any]]:
    """While a version is made in a thread; what it told, or raised, once the block is left."""
    told: list[Any] = []

    def publish() -> None:
        try:
            told.append(client.publish(place, kind="base"))
        except hps.HpsError as error:
            told.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    yield told
    thread.join(120)
    assert not thread.is_alive()


def wait_for_files(place: Path, pattern: str) -> str:
    """The first file of that pattern in the folder of a version that is not visible yet."""
    for _ in range(60_000):
        visible = {one.name for one in place.glob("version-*")}
        found = [one for one in place.glob(f"data/{len(visible) + 1:08d}-*/{pattern}")]
        if found:
            return found[0].name
        time.sleep(0.001)
    raise AssertionError("nothing was written")


@pytest.mark.slow
def test_a_server_that_is_killed_and_started_again_writes_its_part_anew(
    servers: Servers, tmp_path: Path
) -> None:
    place = tmp_path / "pub"
    with RemoteParameterServer(servers.addresses, deadline=60.0) as client:
        push(client, LARGE, 1.0)
        client.checkpoint()
        with publishing(client, place) as told:
            first = wait_for_files(place, "*-s1-*")
            servers.kill(1)
            assert not told and not listed_versions(open_destination(place))
            servers.start_again(1)
        assert told[0]["kind"] == "base" and told[0]["rows"] == len(LARGE)
        names = [one.name for one in place.glob("data/*/*-s1-*")]
        assert names and first not in names
        assert served(place, tmp_path / "a") == rows_of(client)
        push(client, keys_of(1, 2, 3), 1.0)
        assert client.publish(place)["kind"] == "delta"
        assert served(place, tmp_path / "b") == rows_of(client)


@pytest.mark.slow
def test_a_server_that_stays_away_fails_the_version_and_the_next_one_goes_on(
    servers: Servers, tmp_path: Path
) -> None:
    place = tmp_path / "pub"
    with RemoteParameterServer(servers.addresses, deadline=4.0) as client:
        push(client, LARGE, 1.0)
        client.publish(place)
        push(client, LARGE[:50_000], 1.0)
        client.checkpoint()
        with publishing(client, place) as told:
            wait_for_files(place, "*-s1-*")
            servers.kill(1)
        assert isinstance(told[0], hps.RemoteError) and "shards done: 0" in str(told[0])
        assert listed_versions(open_destination(place)) == [1]
        servers.start_again(1)
        told_next = client.publish(place)
        assert (told_next["version"], told_next["kind"]) == (2, "delta")
        assert served(place, tmp_path / "a") == rows_of(client)


@pytest.mark.slow
def test_a_client_process_that_is_killed_leaves_nothing_visible_and_another_goes_on(
    servers: Servers, tmp_path: Path
) -> None:
    place, where = tmp_path / "pub", ",".join(servers.addresses)
    command = [sys.executable, "-m", "hps", "publish", str(place), "--server", where]
    with RemoteParameterServer(servers.addresses, deadline=60.0) as client:
        push(client, LARGE, 1.0)
        client.checkpoint()
        popen = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        wait_for_files(place, "*-s*")
        popen.kill()
        popen.wait()
        assert not listed_versions(open_destination(place))
        again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert "version 1" in again.stdout and "base of checkpoint id:" in again.stdout
        assert served(place, tmp_path / "a") == rows_of(client)
