"""hps's own service as a contender: `hps serve`, and RemoteParameterServer in front of it.

Above it: service_bench.py. Below it: hps's public interface and command line.
"""

import sys
from typing import Any

import hps
from benchmarks.service.contender import Answer, Batches, Setting
from benchmarks.service.embedded import LEARNING_RATE, dram_bytes
from benchmarks.service.workload import LOAD_KEYS, TABLE, Workload

NAME = "hps"


class ServiceClient:
    """One client of all shards; its pushes run the table's optimizer."""

    def __init__(self, addresses: list[str], workload: Workload, number: int) -> None:
        self._remote: Any = hps.RemoteParameterServer(addresses, client_id=f"bench-{number}")
        self._batches = Batches(workload)
        self._ack = "memory"

    def load(self) -> None:
        """Stores the workload's rows."""
        workload = self._batches.workload
        for start in range(0, workload.rows, LOAD_KEYS):
            keys = workload.all_keys[start : start + LOAD_KEYS]
            self._remote.assign(TABLE, keys, workload.values(keys))

    def prepare(self, ack: str) -> None:
        self._ack = ack

    def pull(self, batch: int) -> Answer:
        answer: Answer = self._remote.pull_async(TABLE, self._batches.keys(batch))
        return answer

    def push(self, batch: int) -> Answer:
        keys, grads = self._batches.keys(batch), self._batches.grads(batch)
        answer: Answer = self._remote.push_async(TABLE, keys, grads, ack=self._ack)
        return answer

    def close(self) -> None:
        self._remote.close()


def connect(addresses: list[str], workload: Workload, number: int) -> ServiceClient:
    """A client."""
    return ServiceClient(addresses, workload, number)


def command(setting: Setting, shard: int) -> list[str]:
    """Starts one shard."""
    workload = setting.workload
    table = f"name={TABLE},dim={workload.dim},optimizer=adagrad,lr={LEARNING_RATE}"
    where = ["--store", f"{setting.folder}/shard-{shard}", "--listen", "127.0.0.1:0"]
    size = ["--shard", f"{shard}/{setting.shards}", "--dram", str(dram_bytes(workload))]
    return [sys.executable, "-m", "hps", "serve", *where, *size, "--table", table]
