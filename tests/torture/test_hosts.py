"""Two hosts in network namespaces: a cut link carries nothing, a killed host leaves nothing.

Above it: pytest. Below it: tests/torture/hosts.py. Training over them is a part of `make torture`.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.hosts import ADDRESSES, Hosts, missing_rights, namespaces

SERVE = f"""
import socket
listener = socket.create_server(("{ADDRESSES[0]}", 4000))
while True:
    end, _ = listener.accept()
    end.sendall(b"here")
    end.close()
"""
ASK = f"""
import socket
with socket.create_connection(("{ADDRESSES[0]}", 4000), timeout=1.0) as end:
    print(end.recv(4).decode())
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if reason := missing_rights():
        pytest.skip(reason)
    with Hosts(tmp_path) as pair:
        yield pair


def _ask(hosts: Hosts, folder: Path, attempts: int) -> str:
    for _ in range(attempts):
        log = folder / "answer.txt"
        log.unlink(missing_ok=True)
        if hosts.start(1, [sys.executable, "-c", ASK], {}, log).wait() == 0:
            return log.read_text().strip()
        time.sleep(0.1)
    return ""


def test_hosts_meet_until_the_link_is_cut_and_after_it_is_mended(
    hosts: Hosts, tmp_path: Path
) -> None:
    server = hosts.start(0, [sys.executable, "-c", SERVE], {}, tmp_path / "server.txt")
    assert _ask(hosts, tmp_path, 50) == "here"
    hosts.cut()
    assert _ask(hosts, tmp_path, 1) == ""
    hosts.mend()
    assert _ask(hosts, tmp_path, 50) == "here"
    hosts.kill(0)
    assert server.wait(60) == -9
    assert _ask(hosts, tmp_path, 1) == ""
    assert (hosts.cuts, hosts.kills) == (1, 1)


def test_nothing_is_left_of_hosts(tmp_path: Path) -> None:
    if reason := missing_rights():
        pytest.skip(reason)
    with Hosts(tmp_path) as pair:
        sleeper = pair.start(1, ["sleep", "600"], {}, tmp_path / "said.txt")
        assert set(pair.names) <= set(namespaces())
    assert sleeper.wait(60) == -9
    assert not set(pair.names) & set(namespaces())
