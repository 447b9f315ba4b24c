"""What a contender is: a module that can start a server, and a client that sends it requests.

Above it: service_bench.py, driver.py. Below it: one file a contender.
"""

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.service.workload import NUM_BATCHES, Keys, Rows, Workload


@dataclass(frozen=True)
class Setting:
    """What is the same in all contenders.

    workload: what they hold.
    folder: where a server may keep files.
    shards: servers, where a contender has several.
    """

    workload: Workload
    folder: str
    shards: int = 1


def peer_command(module: str, setting: Setting) -> list[str]:
    """Starts a process that calls `serve(workload, folder)` of a module of this folder."""
    name = f"benchmarks.service.{module}"
    words = [name, setting.workload.to_text(), setting.folder]
    return [sys.executable, "-m", "benchmarks.service.serve", *words]


class Answer(Protocol):
    """A request under way."""

    def result(self) -> Any:
        """Waits; rows of a pull, anything of a push."""


class Client(Protocol):
    """One client of a contender; `prepare` is called before requests of another kind."""

    def load(self) -> None:
        """Stores the workload's rows, if the server has not stored them itself."""

    def prepare(self, ack: str) -> None:
        """The pushes to come are acknowledged as "memory", "logged" or "durable"."""

    def pull(self, batch: int) -> Answer:
        """Asks for a batch's rows."""

    def push(self, batch: int) -> Answer:
        """Sends a batch's gradients."""

    def close(self) -> None:
        """Ends the connection."""


class Blocking:
    """A client whose calls block, so that each request under way has a thread and a connection.

    Args:
        connections: each has pull(keys) -> rows and push(keys, grads); one a request in flight.
        workload: of the batches.
    """

    def __init__(self, connections: list[Any], workload: Workload) -> None:
        self.connections = connections
        self.batches = Batches(workload)
        self._idle = list(connections)
        self._threads = ThreadPoolExecutor(len(connections))

    def load(self) -> None:
        """The server has."""

    def prepare(self, ack: str) -> None:
        """Knows one kind of acknowledgement."""

    def pull(self, batch: int) -> Future[Any]:
        return self._threads.submit(self._with_connection, "pull", self.batches.keys(batch))

    def push(self, batch: int) -> Future[Any]:
        pair = (self.batches.keys(batch), self.batches.grads(batch))
        return self._threads.submit(self._with_connection, "push", *pair)

    def _with_connection(self, verb: str, *arguments: Any) -> Any:
        connection = self._idle.pop()  # there are as many as threads
        try:
            return getattr(connection, verb)(*arguments)
        finally:
            self._idle.append(connection)

    def close(self) -> None:
        self._threads.shutdown()
        for connection in self.connections:
            connection.close()


class Batches:
    """The batches of a workload, made once."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._keys: dict[int, Keys] = {}
        self._grads: dict[int, Rows] = {}

    def keys(self, batch: int) -> Keys:
        """As Workload.keys."""
        batch %= NUM_BATCHES
        if batch not in self._keys:
            self._keys[batch] = self.workload.keys(batch)
        return self._keys[batch]

    def grads(self, batch: int) -> Rows:
        """As Workload.grads."""
        batch %= NUM_BATCHES
        if batch not in self._grads:
            self._grads[batch] = self.workload.grads(batch)
        return self._grads[batch]
