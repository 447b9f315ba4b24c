"""Doors to shards that a client is given instead of their own: networks that misbehave.

Above it: service_kills.py, whose recipes N1 to N4 use them. Below it: grpc, sockets. A Door stands
before one shard. ProxyDoor is a gRPC server that passes calls on and may send a change twice (N1),
let it be overtaken (N2) or lose its reply (N3); it stays when the shard is killed, and also sends
again what it had sent to a process before. CuttingDoor passes bytes on and cuts connections in the
middle of a message (N4).
"""

import random
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from hps.v1 import parameter_server_pb2 as messages
from tests.torture.service_shards import Shard

_PUSH = "/hps.v1.ParameterServer/Push"
_HANDLERS = 32  # calls of four clients, some of which are held up
_OLD_PUSHES = 200
_LONGEST_DELAY = 0.02  # seconds, of most
_LONG_DELAY = 0.3  # of some, which is longer than a shard waits for what it misses
_PART_OF_LONG_DELAYS = 0.2
_CUT_BYTES = 30_000  # of a connection's requests, until it is cut, on average
_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@dataclass(frozen=True)
class Chaos:
    """How often a push meets which fault: parts of one.

    duplicates: sent a second time, at once or (half of them) an old one from long ago.
    delays: held up until later ones have passed.
    lost_replies: the change arrives, its reply does not.
    """

    duplicates: float = 0.0
    delays: float = 0.0
    lost_replies: float = 0.0


@dataclass
class Doors:
    """Addresses to use, and what happened behind them."""

    addresses: list[str]
    tallies: Counter[str] = field(default_factory=Counter)


class ProxyDoor(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A gRPC server before one shard; knows no messages but Push's."""

    def __init__(self, shard: Shard, chaos: Chaos, seed: int, tallies: Counter[str]) -> None:
        self._chaos = chaos
        self._chance = random.Random(seed)
        self._tallies = tallies
        self._old: deque[bytes] = deque(maxlen=_OLD_PUSHES)
        self._newest: dict[str, int] = {}
        self._turn = threading.Lock()
        self._shard = shard
        reconnect = [(f"grpc.{bound}_reconnect_backoff_ms", 50) for bound in ("min", "max")]
        options = [*_UNLIMITED, *reconnect, ("grpc.initial_reconnect_backoff_ms", 50)]
        self._channel = grpc.insecure_channel(shard.address, options)
        self._push = self._channel.unary_unary(_PUSH)
        self._server = grpc.server(ThreadPoolExecutor(_HANDLERS), options=_UNLIMITED)
        self._server.add_generic_rpc_handlers([self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details: Any) -> Any:
        if details.method == _PUSH:
            return grpc.unary_unary_rpc_method_handler(self._pass_push)
        passed = self._channel.stream_stream(details.method)
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._pass_on(passed, requests, context)
        )

    def _pass_on(self, passed: Any, requests: Any, context: Any) -> Iterator[bytes]:
        try:
            yield from passed(requests, timeout=context.time_remaining())
        except grpc.RpcError as error:
            _refuse_as(error, context)

    def _pass_push(self, request: bytes, context: Any) -> Any:
        if self._chance.random() < self._chaos.duplicates:
            self._send_again(request)
        self._old.append(request)
        if self._chance.random() < self._chaos.delays:
            self._tallies["delayed"] += 1
            is_long = self._chance.random() < _PART_OF_LONG_DELAYS
            time.sleep(_LONG_DELAY if is_long else self._chance.random() * _LONGEST_DELAY)
        self._note_order(messages.PushRequest.FromString(request).id)
        try:
            reply = self._push(request, timeout=context.time_remaining())
        except grpc.RpcError as error:
            self._tallies["gaps"] += error.code() == grpc.StatusCode.OUT_OF_RANGE
            _refuse_as(error, context)
        self._tallies["repeats"] += messages.PushReply.FromString(reply).is_repeat
        if self._chance.random() < self._chaos.lost_replies:
            self._tallies["lost replies"] += 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
        return reply

    def _note_order(self, identity: Any) -> None:
        with self._turn:
            newest = self._newest.get(identity.client_id, 0)
            self._tallies["overtaken"] += identity.sequence < newest
            self._newest[identity.client_id] = max(newest, identity.sequence)

    def _send_again(self, request: bytes) -> None:
        is_old = bool(self._old) and self._chance.random() < 0.5
        chosen = self._chance.choice(list(self._old)) if is_old else request
        self._tallies["old pushes sent again" if is_old else "duplicates"] += 1
        self._push.future(chosen, timeout=5.0).add_done_callback(self._note_duplicate)

    def _note_duplicate(self, answer: Any) -> None:
        if answer.code() == grpc.StatusCode.OK:
            reply = messages.PushReply.FromString(answer.result())
            self._tallies["repeats"] += reply.is_repeat

    def close(self) -> None:
        self._server.stop(0).wait()
        self._channel.close()


def _refuse_as(error: Any, context: Any) -> None:
    """Ends a call as the shard ended it, details and all."""
    context.set_trailing_metadata(
        [pair for pair in error.trailing_metadata() or () if pair[0].endswith("-bin")]
    )
    context.abort(error.code(), error.details())


class CuttingDoor:
    """Passes bytes between a client and a shard until, at a random byte, it cuts them apart."""

    def __init__(self, shard: Shard, seed: int, tallies: Counter[str]) -> None:
        self._shard = shard
        self._chance = random.Random(seed)
        self._tallies = tallies
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._ends:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                shard = socket.create_connection(("127.0.0.1", self._shard.port))
            except OSError:
                client.close()
                continue
            self._pairs.append((client, shard))
            budget = self._chance.expovariate(1 / _CUT_BYTES)
            ways = ((client, shard, budget), (shard, client, float("inf")))
            for way in ways:
                threading.Thread(target=self._pass_on, args=way, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, budget: float) -> None:
        try:
            while block := source.recv(1 << 16):
                if len(block) > budget:
                    target.sendall(block[: int(budget)])
                    self._tallies["cut connections"] += 1
                    break
                budget -= len(block)
                target.sendall(block)
        except OSError:
            pass  # the other way has cut it, or the shard was killed
        for end in (source, target):
            _cut(end)

    def close(self) -> None:
        self._ends = True
        _cut(self._listener)
        self._listener.close()
        self._thread.join()
        for pair in self._pairs:
            for end in pair:
                _cut(end)
                end.close()


def _cut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was


@contextmanager
def direct(found: Sequence[Shard], seed: int) -> Iterator[Doors]:
    """The shards' own addresses."""
    yield Doors([shard.address for shard in found])


@dataclass(frozen=True)
class Proxied:
    """A ProxyDoor before each shard."""

    chaos: Chaos

    @contextmanager
    def __call__(self, found: Sequence[Shard], seed: int) -> Iterator[Doors]:
        doors = Doors([])
        with ExitStack() as scope:
            for shard in found:
                door = ProxyDoor(shard, self.chaos, seed + shard.index, doors.tallies)
                scope.callback(door.close)
                doors.addresses.append(door.address)
            yield doors


@contextmanager
def cutting(found: Sequence[Shard], seed: int) -> Iterator[Doors]:
    """A CuttingDoor before each shard."""
    doors = Doors([])
    with ExitStack() as scope:
        for shard in found:
            door = CuttingDoor(shard, seed + shard.index, doors.tallies)
            scope.callback(door.close)
            doors.addresses.append(door.address)
        yield doors
