"""hps without a network: the same table in the client's own process, or behind a peer's transport.

Above it: service_bench.py, flight_peer.py, rpc_peer.py. Below it: hps.ParameterServer.
"""

import contextlib
import tempfile
from concurrent.futures import Future
from typing import Any

import hps
from benchmarks.common.server import scratch_server
from benchmarks.service.contender import Batches
from benchmarks.service.workload import LOAD_KEYS, TABLE, Keys, Rows, Workload
from hps.update_log import Identity, Kind, Mutation, encode, open_update_log

NAME = "no network"
LEARNING_RATE = 0.001
LOG_BYTES = 2**30  # as a shard's


def table(workload: Workload) -> hps.TableConfig:
    """The one table: Adagrad, so that a push reads and writes weights and their state."""
    return hps.TableConfig(name=TABLE, dim=workload.dim, optimizer=hps.Adagrad(lr=LEARNING_RATE))


def dram_bytes(workload: Workload) -> int:
    """Enough to hold all rows."""
    return 3 * workload.rows * 3 * workload.row_bytes + (64 << 20)


class Embedded:
    """A filled server in this process; every call blocks.

    Args:
        workload: whose rows it holds.
    """

    def __init__(self, workload: Workload) -> None:
        self._scope = contextlib.ExitStack()
        scratch = scratch_server(table(workload), dram_bytes(workload), threads=0)
        self.server: Any = self._scope.enter_context(scratch)
        for start in range(0, workload.rows, LOAD_KEYS):
            keys = workload.all_keys[start : start + LOAD_KEYS]
            self.server.assign(TABLE, keys, workload.values(keys))

    def pull(self, keys: Keys) -> Rows:
        """float32 [N, dim]."""
        rows: Rows = self.server.pull(TABLE, keys)
        return rows

    def push(self, keys: Keys, grads: Rows) -> None:
        """Runs the optimizer."""
        self.server.push(TABLE, keys, grads)

    def close(self) -> None:
        self._scope.close()


class EmbeddedClient:
    """Embedded as a contender: a request is done before it is said to be under way.

    A push is what a shard makes of it, its record in a log included: the least that a service of
    these rows has to do.
    """

    def __init__(self, workload: Workload) -> None:
        self._table = Embedded(workload)
        self._batches = Batches(workload)
        self._folder = tempfile.TemporaryDirectory()
        self._log = open_update_log(self._folder.name, 1, 1, 0)

    def load(self) -> None:
        """It is."""

    def prepare(self, ack: str) -> None:
        """Knows no acknowledgement but the call's return."""

    def pull(self, batch: int) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_result(self._table.pull(self._batches.keys(batch)))
        return answer

    def push(self, batch: int) -> "Future[Any]":
        answer: Future[Any] = Future()
        keys, grads = self._batches.keys(batch), self._batches.grads(batch)
        identity = Identity("bench", 1, self._log.appended + 1)
        mutation = Mutation(Kind.PUSH, identity, TABLE, LEARNING_RATE, keys, grads)
        logged = self._table.server.parts.logged
        logged.change(mutation, lambda: self._log.append(encode(mutation)))
        if self._log.num_bytes > LOG_BYTES:
            self._log.cut(self._log.appended)
        answer.set_result(None)
        return answer

    def close(self) -> None:
        self._log.close()
        self._folder.cleanup()
        self._table.close()


def connect(addresses: list[str], workload: Workload, number: int) -> EmbeddedClient:
    """A client that has the table itself."""
    return EmbeddedClient(workload)
