"""The client process: sends requests of one contender, so many in flight, and tells how fast.

Above it: process.py, which starts it and writes orders. Below it: the contenders. A process of its
own has an interpreter lock of its own and CPU seconds that can be told apart.
"""

import importlib
import json
import resource
import sys
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.service.contender import Client
from benchmarks.service.workload import Workload


@dataclass(frozen=True)
class Order:
    """What a driver is to do.

    verb: "load", "check", "pull" or "push".
    ack: of pushes.
    seconds: requests are begun for so long; those in flight are waited for.
    in_flight: requests of one client under way at once.
    clients: of them, each in a thread of its own.
    """

    verb: str
    ack: str = "memory"
    seconds: float = 1.0
    in_flight: int = 4
    clients: int = 1


@dataclass(frozen=True)
class Done:
    """What came of an order: requests, seconds of the clock, CPU seconds, milliseconds of each."""

    requests: int = 0
    seconds: float = 0.0
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    latency_ms: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds


def drive(client: Client, order: Order) -> list[float]:
    """Sends one client's requests; the milliseconds that each took."""
    begin = client.pull if order.verb == "pull" else client.push
    window: deque[tuple[float, Any]] = deque()
    latency_ms = []
    number = 0
    deadline = time.perf_counter() + order.seconds
    while True:
        now = time.perf_counter()
        if len(window) < order.in_flight and (now < deadline or number < order.in_flight):
            window.append((now, begin(number)))
            number += 1
        elif window:
            began, answer = window.popleft()
            answer.result()
            latency_ms.append(1000 * (time.perf_counter() - began))
        else:
            return latency_ms


class Driver:
    """The clients of a process, which are made when an order needs them."""

    def __init__(self, module: str, addresses: list[str], workload: Workload, first: int) -> None:
        self._module = importlib.import_module(module)
        self._addresses = addresses
        self._workload = workload
        self._first = first
        self._clients: list[Client] = []

    def _take(self, number: int) -> list[Client]:
        while len(self._clients) < number:
            name = self._first + len(self._clients)
            self._clients.append(self._module.connect(self._addresses, self._workload, name))
        return self._clients[:number]

    def run(self, order: Order) -> Done:
        """Does what is ordered.

        Raises:
            AssertionError: "check" found other rows than were stored.
        """
        clients = self._take(order.clients)
        if order.verb == "load":
            clients[0].load()
            return Done()
        if order.verb == "check":
            self._check(clients[0])
            return Done()
        for client in clients:
            client.prepare(order.ack)
        before = resource.getrusage(resource.RUSAGE_SELF)
        started = time.perf_counter()
        latency_ms = _in_threads(clients, order)
        seconds = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        return Done(
            requests=len(latency_ms),
            seconds=seconds,
            user_seconds=after.ru_utime - before.ru_utime,
            system_seconds=after.ru_stime - before.ru_stime,
            latency_ms=latency_ms,
        )

    def _check(self, client: Client) -> None:
        rows = client.pull(0).result()
        expected = self._workload.values(self._workload.keys(0))
        if isinstance(rows, bytes):
            assert len(rows) == expected.nbytes, "bare bytes stand for as many rows"
        else:
            assert np.array_equal(rows, expected), "the server holds other rows than were stored"

    def close(self) -> None:
        for client in self._clients:
            client.close()


def _in_threads(clients: list[Client], order: Order) -> list[float]:
    found: list[list[float]] = [[] for _ in clients]

    def work(place: int) -> None:
        found[place] = drive(clients[place], order)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(1, len(clients))]
    for thread in threads:
        thread.start()
    work(0)
    for thread in threads:
        thread.join()
    assert all(found), "a client failed; its error stands above"
    return [latency for one in found for latency in one]


def main() -> None:
    """`python -m benchmarks.service.driver MODULE ADDRESSES WORKLOAD NUMBER`; orders on stdin."""
    module, addresses, workload, first = sys.argv[1:]
    driver = Driver(module, json.loads(addresses), Workload.from_text(workload), int(first))
    for line in sys.stdin:
        print(json.dumps(asdict(driver.run(Order(**json.loads(line))))), flush=True)
    driver.close()


if __name__ == "__main__":
    main()
