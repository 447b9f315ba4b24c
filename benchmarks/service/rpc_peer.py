"""torch.distributed.rpc as a peer: a remote object with hps's own table, the same look-up.

Above it: service_bench.py. Below it: torch's TensorPipe over TCP, embedded.py. Its other transport,
shared memory, is left out: it would end at the machine's edge.
"""

import socket
import time
from typing import Any

import torch
from torch.distributed import rpc

from benchmarks.service.contender import Answer, Setting, peer_command
from benchmarks.service.embedded import Embedded
from benchmarks.service.workload import NUM_BATCHES, TABLE, Workload

NAME = "torch.distributed.rpc"
_SERVER, _CLIENT = "server", "client"


def absent() -> str:
    """Why it cannot take part; "" if it can."""
    return "" if rpc.is_available() else "this build of torch has no RPC"


def _join(name: str, port: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}", _transports=["uv"], _channels=["basic"]
    )
    rank = (_SERVER, _CLIENT).index(name)
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


class Remote:
    """The object on the server's side; keys come as int64 tensors, which hps takes as they are."""

    def __init__(self, workload: Workload) -> None:
        self._table = Embedded(workload)

    def pull(self, keys: torch.Tensor) -> torch.Tensor:
        """float32 [N, dim]."""
        rows: torch.Tensor = self._table.server.pull(TABLE, keys)
        return rows

    def push(self, keys: torch.Tensor, grads: torch.Tensor) -> None:
        """Runs the optimizer."""
        self._table.server.push(TABLE, keys, grads)


class Pulled:
    """A pull under way, whose rows are numpy's."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def result(self) -> Any:
        return self._answer.wait().numpy()


class Pushed:
    """A push under way."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def result(self) -> Any:
        return self._answer.wait()


class RpcClient:
    """One agent, which has connections of its own."""

    def __init__(self, port: int, workload: Workload) -> None:
        _join(_CLIENT, port)
        self._table: Any = rpc.remote(_SERVER, Remote, args=(workload,))
        numbers = range(NUM_BATCHES)
        self._keys = [torch.from_numpy(workload.keys(i).view("int64")) for i in numbers]
        self._grads = [torch.from_numpy(workload.grads(i)) for i in numbers]

    def load(self) -> None:
        """The first pull waits for it."""
        self.pull(0).result()

    def prepare(self, ack: str) -> None:
        """Knows one kind of acknowledgement."""

    def pull(self, batch: int) -> Answer:
        return Pulled(self._table.rpc_async(timeout=0).pull(self._keys[batch % NUM_BATCHES]))

    def push(self, batch: int) -> Answer:
        pair = (self._keys[batch % NUM_BATCHES], self._grads[batch % NUM_BATCHES])
        return Pushed(self._table.rpc_async(timeout=0).push(*pair))

    def close(self) -> None:
        rpc.shutdown(graceful=False)


def connect(addresses: list[str], workload: Workload, number: int) -> RpcClient:
    """The only client: the number of members is fixed when RPC begins."""
    return RpcClient(int(addresses[0].rpartition(":")[2]), workload)


def command(setting: Setting, shard: int) -> list[str]:
    """Starts a server."""
    return peer_command("rpc_peer", setting)


def serve(workload: Workload, folder: str) -> None:
    """A server until the process ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    print(f"listening on 127.0.0.1:{port}", flush=True)
    _join(_SERVER, port)
    while True:
        time.sleep(3600)
