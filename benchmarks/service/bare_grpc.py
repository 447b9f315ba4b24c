"""Bare gRPC: messages of the same sizes, as raw bytes, and a server that does nothing with them.

Above it: service_bench.py, of which it is the baseline. Below it: grpc. What hps reaches of it is
what its own work leaves of the transport.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from benchmarks.service.contender import Answer, Setting, peer_command
from benchmarks.service.workload import NUM_BATCHES, Workload

NAME = "bare gRPC"
PULL = "/bare/Pull"
PUSH = "/bare/Push"
PUSH_REPLY_BYTES = 32
HANDLERS = 4
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class SameSizes(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with bytes that were there before the question."""

    def __init__(self, workload: Workload) -> None:
        pull_reply = bytes(workload.batch * workload.row_bytes)
        replies = {PULL: pull_reply, PUSH: bytes(PUSH_REPLY_BYTES)}
        self._handlers = {
            method: grpc.unary_unary_rpc_method_handler(lambda _, __, reply=reply: reply)
            for method, reply in replies.items()
        }

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


class BareClient:
    """One channel; the requests' bytes are there before the first call."""

    def __init__(self, address: str, workload: Workload) -> None:
        self._channel = grpc.insecure_channel(address, options=_UNLIMITED)
        self._pull = self._channel.unary_unary(PULL)
        self._push = self._channel.unary_unary(PUSH)
        self._keys = [workload.keys(batch).tobytes() for batch in range(NUM_BATCHES)]
        grads = [workload.grads(batch).tobytes() for batch in range(NUM_BATCHES)]
        self._pushes = [both[0] + both[1] for both in zip(self._keys, grads, strict=True)]

    def load(self) -> None:
        """There is nothing to store."""

    def prepare(self, ack: str) -> None:
        """There is nothing to acknowledge."""

    def pull(self, batch: int) -> Answer:
        answer: Answer = self._pull.future(self._keys[batch % NUM_BATCHES])
        return answer

    def push(self, batch: int) -> Answer:
        answer: Answer = self._push.future(self._pushes[batch % NUM_BATCHES])
        return answer

    def close(self) -> None:
        self._channel.close()


def connect(addresses: list[str], workload: Workload, number: int) -> BareClient:
    """A client."""
    return BareClient(addresses[0], workload)


def command(setting: Setting, shard: int) -> list[str]:
    """Starts a server."""
    return peer_command("bare_grpc", setting)


def serve(workload: Workload, folder: str) -> None:
    """A server until the process ends."""
    server = grpc.server(ThreadPoolExecutor(HANDLERS), options=_UNLIMITED)
    server.add_generic_rpc_handlers([SameSizes(workload)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    server.wait_for_termination()
