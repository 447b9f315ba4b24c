"""Processes of the service benchmark: servers that say where they listen, drivers that take orders.

Above it: service_bench.py. Below it: subprocess, /proc.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from benchmarks.service.driver import Done, Order
from benchmarks.service.workload import Workload

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
STOP_SECONDS = 60.0
_LISTENING = re.compile(rb"listening on (\S+:\d+)\n")
_TICKS = os.sysconf("SC_CLK_TCK")


class CpuSeconds(NamedTuple):
    """Of a process since it began."""

    user: float
    system: float


class ServerProcess:
    """A server that runs until `stop`.

    Args:
        command: prints a line with `listening on HOST:PORT` when it is ready.
        log: file for what it says besides, errors included.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT
            )

    def wait_until_ready(self) -> str:
        """Its address.

        Raises:
            RuntimeError: it ended, or was not ready in time; has what it said.
        """
        assert self._process.stdout is not None
        said = b""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if not select.select([self._process.stdout], [], [], 0.1)[0]:
                continue
            block = os.read(self._process.stdout.fileno(), 4096)
            said += block
            if found := _LISTENING.search(said):
                return found[1].decode()
            if not block:
                break
        words = " ".join(self._command)
        raise RuntimeError(f"{words} did not say that it listens: {self._log.read_text()}")

    def cpu(self) -> CpuSeconds:
        """CPU seconds of all its threads so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return CpuSeconds(int(fields[11]) / _TICKS, int(fields[12]) / _TICKS)

    def stop(self) -> None:
        """Asks it to end; kills it if it does not."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


class DriverProcess:
    """A client process of one contender.

    Args:
        module: of the contender.
        addresses: of its servers.
        workload: that they hold.
        first: number of its first client; two drivers of a server need different ones.
    """

    def __init__(
        self, module: str, addresses: Sequence[str], workload: Workload, first: int = 0
    ) -> None:
        name = f"benchmarks.service.{module}"
        arguments = [name, json.dumps(list(addresses)), workload.to_text(), str(first)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.service.driver", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def begin(self, order: Order) -> None:
        """Sends an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()

    def end(self) -> Done:
        """Waits for what came of it.

        Raises:
            RuntimeError: the process died of it; its error is on stderr.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a driver failed; its error stands above")
        return Done(**json.loads(line))

    def run(self, order: Order) -> Done:
        """Both."""
        self.begin(order)
        return self.end()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
