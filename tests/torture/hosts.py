"""Two hosts on one machine: network namespaces joined by a pair of virtual cards, which can be cut.

Above it: cluster_hosts.py. Below it: iproute2 (`ip`), and the right to administer networks
(CAP_NET_ADMIN). Whatever runs in a namespace sees its own card and loopback only.
"""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

CARD = "hps0"
ADDRESSES = ("10.213.77.1", "10.213.77.2")
_STOP_SECONDS = 10.0


def missing_rights() -> str:
    """Why there can be no namespaces here; "" if there can."""
    if shutil.which("ip") is None:
        return "iproute2 is not installed (apt-get install iproute2)"
    name = f"hps-trial-{os.getpid()}"
    made = _ip("netns", "add", name, check=False)
    if made.returncode != 0:
        said = made.stderr.strip().splitlines()[-1:] or ["no reason given"]
        return f"network namespaces need CAP_NET_ADMIN (ip netns add: {said[0]})"
    _ip("netns", "del", name)
    return ""


def _ip(*words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def _delete(name: str) -> None:
    """Deletes a namespace, if there is one; waits while the kernel still holds its name."""
    deadline = time.monotonic() + _STOP_SECONDS
    while name in namespaces():
        said = _ip("netns", "del", name, check=False).stderr.strip()
        assert time.monotonic() < deadline, f"namespace {name} is not deleted: {said}"
        time.sleep(0.02)


def namespaces() -> list[str]:
    """Names of this machine's network namespaces."""
    return [line.split()[0] for line in _ip("netns", "list").stdout.splitlines()]


class Hosts:
    """Two hosts, as a context manager; at its end nothing of them runs or is left.

    Args:
        folder: each host has a folder of its own in it, as it has a disk of its own.

    `names` are those of the two namespaces.
    """

    def __init__(self, folder: Path) -> None:
        self.folders = [folder / f"host{host}" for host in range(2)]
        pair = secrets.token_hex(4)  # of this pair alone: a process number comes again
        self.names = [f"hps-{pair}-{host}" for host in range(2)]
        self.cuts = 0
        self.kills = 0

    def __enter__(self) -> "Hosts":
        try:
            for host, name in enumerate(self.names):
                self.folders[host].mkdir(parents=True, exist_ok=True)
                _ip("netns", "add", name)
            ends = [("netns", name) for name in self.names]
            pair = [word for end in ends for word in end]
            _ip("link", "add", CARD, *pair[:2], "type", "veth", "peer", "name", CARD, *pair[2:])
            for name, address in zip(self.names, ADDRESSES, strict=True):
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", CARD)
                _ip("-n", name, "link", "set", CARD, "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host, name in enumerate(self.names):
            self._kill_all(host)
            _delete(name)

    def start(
        self, host: int, command: Sequence[str], variables: dict[str, str], log: Path
    ) -> "subprocess.Popen[Any]":
        """Runs a command on a host, in its folder; what it says is added to a file."""
        words = ["ip", "netns", "exec", self.names[host], "env"]
        words += [f"{name}={value}" for name, value in variables.items()]
        with log.open("ab") as out:
            return subprocess.Popen(
                [*words, *command], cwd=self.folders[host], stdout=out, stderr=subprocess.STDOUT
            )

    def cut(self) -> None:
        """The link between the hosts carries nothing from now on; nobody is told."""
        # The far card's carrier goes with it; sockets on either side stay open and silent.
        _ip("-n", self.names[0], "link", "set", CARD, "down")
        self.cuts += 1

    def mend(self) -> None:
        """It carries again."""
        _ip("-n", self.names[0], "link", "set", CARD, "up")

    def running(self, host: int) -> list[str]:
        """Command lines of what runs on a host."""
        found = []
        for process in self._processes(host):
            with suppress(FileNotFoundError, ProcessLookupError):
                line = Path(f"/proc/{process}/cmdline").read_bytes()
                found.append(line.replace(b"\0", b" ").decode(errors="replace"))
        return found

    def kill(self, host: int) -> None:
        """Everything on a host ends at once, as with its power."""
        assert self._kill_all(host), f"nothing ran on host {host}"
        self.kills += 1

    def _kill_all(self, host: int) -> bool:
        """True if there was anything."""
        deadline = time.monotonic() + _STOP_SECONDS
        has_killed = False
        while processes := self._processes(host):
            assert time.monotonic() < deadline, f"processes {processes} of a namespace do not end"
            for process in processes:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            has_killed = True
            time.sleep(0.02)
        return has_killed

    def _processes(self, host: int) -> list[int]:
        """Living processes in the host's namespace; what is dead and not waited for is in none."""
        said = _ip("netns", "pids", self.names[host], check=False).stdout
        return [int(word) for word in said.split()]
