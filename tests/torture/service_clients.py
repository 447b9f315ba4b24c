"""The clients that push while servers die: what each has begun, and what was acknowledged to it.

Above it: the service_*.py recipes. Below it: hps.RemoteParameterServer, service_oracle.py.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

import hps
from tests.torture.oracle import Counts
from tests.torture.service_oracle import NUM_CLIENTS, ServiceOracle

DEADLINE = 60.0  # of every call: servers come back much sooner
IN_FLIGHT = 4


class _LetGo(Exception):
    """Leaves a client's `with` block, which then waits for nothing."""


def let_go(remote: Any) -> None:
    """Closes a client whose shards may be gone."""
    with suppress(_LetGo, hps.RemoteError), remote:
        raise _LetGo


class Ledger:
    """Numbers of pushes, by client. A number is written before what it says may be relied on."""

    def __init__(self) -> None:
        self._begun = [0] * NUM_CLIENTS
        self._acknowledged = [0] * NUM_CLIENTS
        self._kept = [0] * NUM_CLIENTS

    def begin(self, client: int) -> int:
        """The client's next push, which it is about to send."""
        self._begun[client] += 1
        return self._begun[client]

    def acknowledge(self, client: int, number: int, ack: str) -> None:
        """A push has returned."""
        self._acknowledged[client] = number
        if ack != "memory":
            self._kept[client] = number

    @property
    def begun(self) -> Counts:
        """int64 [clients]: pushes that a shard may show."""
        return np.array(self._begun)

    @property
    def acknowledged(self) -> Counts:
        """int64 [clients]: pushes that have returned."""
        return np.array(self._acknowledged)

    @property
    def kept(self) -> Counts:
        """int64 [clients]: pushes that a killed shard must show: logged, durable, or before one."""
        return np.array(self._kept)


def ack_of(client: int, number: int) -> str:
    """How a push is to be acknowledged: clients 0 to 2 have a way of their own, 3 takes turns."""
    return ("memory", "logged", "durable")[client if client < 3 else number // 2 % 3]


class Pusher(threading.Thread):
    """One client, whose last two numbers hold several pushes in flight.

    Args:
        client: its number.
        remote: its connection.
        oracle: of the batches.
        ledger: told of every push.
    """

    def __init__(self, client: int, remote: Any, oracle: ServiceOracle, ledger: Ledger) -> None:
        super().__init__(name=f"pusher {client}", daemon=True)
        self._client = client
        self._remote = remote
        self._oracle = oracle
        self._ledger = ledger
        self._ends = threading.Event()
        self._most = IN_FLIGHT if client % 2 else 1
        self.error: BaseException | None = None

    def run(self) -> None:
        window: deque[tuple[int, str, Any]] = deque()
        try:
            while not self._ends.is_set():
                self._begin(window)
                if len(window) == self._most:
                    self._finish(window)
            while window:
                self._finish(window)
            self._remote.flush()
        except BaseException as error:  # the recipe tells it, with everything it knows
            self.error = error

    def _begin(self, window: "deque[tuple[int, str, Any]]") -> None:
        number = self._ledger.begin(self._client)
        table, keys, grads = self._oracle.push_of(self._client, number)
        ack = ack_of(self._client, number)
        window.append((number, ack, self._remote.push_async(table, keys, grads, ack=ack)))

    def _finish(self, window: "deque[tuple[int, str, Any]]") -> None:
        number, ack, answer = window.popleft()
        answer.result()
        self._ledger.acknowledge(self._client, number, ack)

    def end(self) -> None:
        """No further push is begun; those in flight are waited for."""
        self._ends.set()


class Pushers:
    """All clients of a run."""

    def __init__(self, addresses: Sequence[str], oracle: ServiceOracle) -> None:
        self.ledger = Ledger()
        self.remotes = [
            hps.RemoteParameterServer(addresses, client_id=f"client-{i}", deadline=DEADLINE)
            for i in range(NUM_CLIENTS)
        ]
        self._threads = [
            Pusher(client, remote, oracle, self.ledger)
            for client, remote in enumerate(self.remotes)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def problems(self) -> list[str]:
        """What a client has failed with."""
        return [
            f"{thread.name}: {type(thread.error).__name__}: {thread.error}"
            for thread in self._threads
            if thread.error is not None
        ]

    def end(self) -> None:
        """All pushes that were begun have been answered, or failed, when this returns."""
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        """Lets go of the shards, which may be gone; calls that are under way fail."""
        for thread in self._threads:
            thread.end()
        for remote in self.remotes:
            let_go(remote)
        for thread in self._threads:
            thread.join()


@contextmanager
def pushers(addresses: Sequence[str], oracle: ServiceOracle) -> Iterator[Pushers]:
    """Four clients that push for as long as the block takes."""
    found = Pushers(addresses, oracle)
    try:
        yield found
    finally:
        found.close()
