"""Shards as processes that can be killed and started again on the same address.

Above it: the service_*.py recipes. Below it: service_nursery.py, `hps serve`.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import hps
from tests.ports import HeldPort
from tests.torture.oracle import tables
from tests.torture.service_nursery import Order
from tests.torture.service_oracle import DIM

START_SECONDS = 30.0
DRAM = "64KiB"
LOG_BYTES = "256KiB"  # so that servers checkpoint by themselves while they are tortured
_ROOT = Path(__file__).resolve().parent.parent.parent


class ShardFailure(AssertionError):
    """A server process that did not start, or ended by itself; has what it printed."""


class Nursery:
    """The process that forks servers; several threads may order."""

    def __init__(
        self,
        environment: dict[str, str] | None = None,
        module: str = "tests.torture.service_nursery",
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env=os.environ | (environment or {}),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input: IO[str] = self._process.stdin
        self._output: IO[str] = self._process.stdout
        self._turn = threading.Lock()

    def ask(self, order: Order) -> int:
        """The pid of the server that was started, or the wait status of the one that was reaped."""
        with self._turn:
            self._input.write(order.to_line())
            self._input.flush()
            return int(self._output.readline())

    def close(self) -> None:
        self._input.close()
        self._process.wait()
        self._output.close()


@contextmanager
def nursery(environment: dict[str, str] | None = None) -> Iterator[Nursery]:
    """Ends with the block."""
    process = Nursery(environment)
    try:
        yield process
    finally:
        process.close()


class Shard:
    """One shard: a store in a folder, an address, and at most one process.

    Args:
        nursery: where its processes come from.
        folder: of the store and of what the server prints.
        index, count: of the shards.
        plant: a bug of service_planted.py for every process of it, or "".
    """

    def __init__(self, nursery: Nursery, folder: Path, index: int, count: int, plant: str) -> None:
        self._nursery = nursery
        self.folder = folder / f"shard-{index}"
        self.folder.mkdir(parents=True)
        self.store = self.folder / "store"
        self.output = self.folder / "output"
        self.index, self.count, self.plant = index, count, plant
        self._held_port = HeldPort()
        self.port = self._held_port.number
        self.pid = 0
        self.options: list[str] = []
        self.environment: dict[str, str] = {}

    @property
    def address(self) -> str:
        """host:port, the same for each of its processes."""
        return self._held_port.address

    def start(self) -> None:
        """Starts a process; `wait_until_ready` tells when it listens."""
        assert not self.pid
        self.output.write_text("")
        arguments = ["serve", "--store", str(self.store), "--listen", self.address]
        arguments += ["--shard", f"{self.index}/{self.count}", "--dram", DRAM]
        arguments += ["--log-bytes", LOG_BYTES, *self.options]
        order = Order(arguments, str(self.output), self.plant, self.environment)
        self.pid = self._nursery.ask(order)

    def wait_until_ready(self) -> None:
        """Returns when the process listens.

        Raises:
            ShardFailure: it does not within START_SECONDS; has what it printed.
        """
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if time.monotonic() > deadline or self.has_ended():
                raise ShardFailure(f"shard {self.index} did not start: {self.output.read_text()}")
            time.sleep(0.002)

    def is_ready(self) -> bool:
        """Whether it has said that it listens."""
        return "listening on" in self.output.read_text()

    def has_ended(self) -> bool:
        """Whether the process is gone, though nobody has reaped it."""
        status = Path(f"/proc/{self.pid}/stat")
        return not status.exists() or status.read_text().rpartition(") ")[2][0] == "Z"

    def num_resumed(self) -> int:
        """Sessions that clients have gone on with at this process, by its log lines."""
        return self.output.read_text().count('"event": "session"')

    def kill(self) -> None:
        """SIGKILL; the process is gone when this returns.

        Raises:
            ShardFailure: it had ended by itself; has what it printed.
        """
        os.kill(self.pid, signal.SIGKILL)  # not reaped before, so the pid is still its own
        status = self._nursery.ask(Order(reap=self.pid))
        self.pid = 0
        if not os.WIFSIGNALED(status):
            raise ShardFailure(f"shard {self.index} ended by itself: {self.output.read_text()}")

    def end(self) -> None:
        """Kills the process if there is one, in whatever state, and lets the address go."""
        if self.pid:
            with suppress(ShardFailure):
                self.kill()
        self._held_port.close()

    def copy(self) -> Path:
        """The store as it lies there, for a look that disturbs nobody."""
        target = self.folder / "copy"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.store, target)
        return target


def config(path: Path) -> hps.Config:
    """Of a shard's store, to open it in this process."""
    return hps.Config(
        path=path,
        tables=tables(DIM),
        dram=hps.DramCacheConfig(bytes=DRAM),
        threads=1,
    )


def create_tables(found: Sequence[Shard]) -> None:
    """Gives running shards the oracle's tables."""
    addresses = [shard.address for shard in found]
    with hps.RemoteParameterServer(addresses, client_id="founder") as remote:
        for table in tables(DIM):
            remote.create_table(table)


@contextmanager
def shards(nursery: Nursery, folder: Path, count: int, plant: str = "") -> Iterator[list[Shard]]:
    """Running shards with the oracle's tables; killed at the end of the block."""
    found = [Shard(nursery, folder, index, count, plant) for index in range(count)]
    try:
        for shard in found:
            shard.start()
        for shard in found:
            shard.wait_until_ready()
        create_tables(found)
        yield found
    finally:
        for shard in found:
            shard.end()
