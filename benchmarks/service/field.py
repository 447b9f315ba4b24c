"""The contenders of a run: their servers and drivers, and what an order costs each of them.

Above it: service_bench.py. Below it: process.py, one file a contender.
"""

import copy
import importlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.common.timing import Samples, interleave
from benchmarks.service.contender import Setting
from benchmarks.service.driver import Done, Order
from benchmarks.service.process import DriverProcess, ServerProcess

FOLDER = "benchmarks.service"
PEERS = {
    "redis_peer": "Redis",
    "flight_peer": "Arrow Flight",
    "rpc_peer": "torch.distributed.rpc",
}


def find_peers() -> tuple[list[str], dict[str, str]]:
    """Files of the peers that can take part, and why the others cannot."""
    there, absent = [], {}
    for file, name in PEERS.items():
        try:
            reason = importlib.import_module(f"{FOLDER}.{file}").absent()
        except ImportError as error:
            reason = f"{type(error).__name__}: {error}"
        if reason:
            absent[name] = reason
        else:
            there.append(file)
    return there, absent


@dataclass
class Cost:
    """What all requests of one kind have cost, in CPU seconds; and how long each took."""

    keys: int = 0
    server_user: float = 0.0
    server_system: float = 0.0
    client_user: float = 0.0
    client_system: float = 0.0
    latency_ms: list[float] = field(default_factory=list)

    def add(self, done: Done, keys: int) -> None:
        """Counts a driver's order; servers are counted by the one that asked for it."""
        self.keys += keys
        self.client_user += done.user_seconds
        self.client_system += done.system_seconds
        self.latency_ms += done.latency_ms

    def us_a_key(self) -> dict[str, float]:
        """CPU microseconds a key of each part."""
        names = ("server_user", "server_system", "client_user", "client_system")
        return {name: 1e6 * getattr(self, name) / max(self.keys, 1) for name in names}

    @property
    def total_us(self) -> float:
        """CPU microseconds a key."""
        return sum(self.us_a_key().values())

    def percentiles(self) -> dict[str, float]:
        """p50 and p99 in milliseconds."""
        return {f"p{p}_ms": float(np.percentile(self.latency_ms, p)) for p in (50, 99)}


class Team:
    """One contender's servers and drivers.

    Args:
        module: its file.
        setting: what it holds; `setting.shards` servers are started.
        drivers: client processes.
    """

    def __init__(self, module: str, setting: Setting, drivers: int = 1) -> None:
        self._module: ModuleType = importlib.import_module(f"{FOLDER}.{module}")
        self.name: str = self._module.NAME
        self._file = module
        self._setting = setting
        self._num_drivers = drivers
        has_servers = hasattr(self._module, "command")
        folder = Path(setting.folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.servers = [
            ServerProcess(self._module.command(setting, shard), folder / f"server-{shard}.log")
            for shard in range(setting.shards if has_servers else 0)
        ]
        self.drivers: list[DriverProcess] = []

    def connect(self) -> None:
        """Waits until the servers listen, and starts the clients."""
        addresses = [server.wait_until_ready() for server in self.servers]
        workload = self._setting.workload
        self.drivers = [
            DriverProcess(self._file, addresses, workload, first=100 * number)
            for number in range(self._num_drivers)
        ]

    def by(self, num_drivers: int) -> "Team":
        """The same servers, asked by the first so many drivers."""
        team = copy.copy(self)
        team.drivers = self.drivers[:num_drivers]
        return team

    def fill(self) -> None:
        """Stores the rows, and checks that the server gives them back."""
        self.drivers[0].run(Order("load"))
        self.drivers[0].run(Order("check"))

    def run(self, order: Order, cost: Cost) -> float:
        """All drivers at once; requests a second of all together."""
        before = [server.cpu() for server in self.servers]
        for driver in self.drivers:
            driver.begin(order)
        done = [driver.end() for driver in self.drivers]
        for one in done:
            cost.add(one, one.requests * self._setting.workload.batch)
        for server, earlier in zip(self.servers, before, strict=True):
            now = server.cpu()
            cost.server_user += now.user - earlier.user
            cost.server_system += now.system - earlier.system
        return sum(one.rate for one in done)

    def close(self) -> None:
        for driver in self.drivers:
            driver.close()
        for server in self.servers:
            server.stop()


def start(teams: Collection[Team]) -> None:
    """Connects and fills; the processes start side by side."""
    for team in teams:
        team.connect()
    for team in teams:
        team.fill()


@dataclass(frozen=True)
class Outcome:
    """Requests a second of each contender, and what they cost."""

    rates: dict[str, Samples]
    costs: dict[str, Cost]


def measure(runs: dict[str, tuple[Team, Order]], repetitions: int) -> Outcome:
    """Each in turn, `repetitions` times, after one untimed time."""
    costs = {name: Cost() for name in runs}
    for team, order in runs.values():
        team.run(order, Cost())
    calls: dict[str, Any] = {
        name: lambda name=name, team=team, order=order: team.run(order, costs[name])
        for name, (team, order) in runs.items()
    }
    return Outcome(interleave(calls, repetitions), costs)
