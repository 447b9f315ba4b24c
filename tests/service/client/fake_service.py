"""One shard of the simplest kind behind a transport without a network; a network with faults.

Above it: the tests of the client. Below it: nothing; `hps.service.shard.shard` is the real one.
Rows start at 0 and a push adds its gradients, so that what was applied how often can be read off.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from hps.common.sharding import HASH, NUM_VIRTUAL
from hps.service.client.errors import Failure
from hps.service.client.window import METHODS
from hps.v1 import parameter_server_pb2 as pb

DIM = 4
Code = grpc.StatusCode


@dataclass
class Applied:
    """One change that the shard has."""

    client: str
    incarnation: int
    sequence: int
    keys: Any = ()
    grads: Any = ()


@dataclass
class FakeService:
    """A shard whose log is a list, and whose memory a restart takes back to it.

    Args:
        index, count: of the shard.
        log_after: changes that wait in memory before the log takes them by itself.
        refuse: called with the method and its request's head; what it raises, the call raises.
    """

    index: int = 0
    count: int = 1
    log_after: int = 10**9
    refuse: Any = None
    lineage: str = "0"
    memory: list[Applied] = field(default_factory=list)  # what is applied
    num_logged: int = 0
    sessions: dict[str, int] = field(default_factory=dict)
    rows: dict[int, Any] = field(default_factory=dict)
    num_repeats: int = 0
    num_gaps: int = 0
    num_restarts: int = 0
    is_up: bool = True

    def restart(self) -> None:
        """As after a kill: what the log lacks is gone."""
        del self.memory[self.num_logged :]
        self.rows.clear()
        for change in self.memory:
            self._add(change)
        self.num_restarts += 1

    def handle(self, method: str, request: bytes) -> bytes:
        if not self.is_up:
            raise Failure(Code.UNAVAILABLE, None, "connection refused")
        reply: bytes = getattr(self, f"_{method.lower()}")(request)
        return reply

    def mark(self, client: str) -> int:
        return max((c.sequence for c in self.memory if c.client == client), default=0)

    def _add(self, change: Applied) -> None:
        for key, grad in zip(change.keys, change.grads, strict=True):
            self.rows[int(key)] = self.rows.get(int(key), np.zeros(DIM, np.float32)) + grad

    def _describe(self, request: bytes) -> bytes:
        table = pb.Table(
            name="ads",
            dim=DIM,
            optimizer=pb.Optimizer(kind="sgd", lr=1.0),
            initializer=pb.Initializer(kind="constant"),
        )
        shard_map = pb.ShardMap(
            index=self.index, count=self.count, num_virtual=NUM_VIRTUAL, hash=HASH
        )
        limits = pb.Limits(max_message_bytes=2**20, max_keys=1000)
        return pb.DescribeReply(
            lineage=self.lineage, shard_map=shard_map, limits=limits, tables=[table]
        ).SerializeToString()

    def _opensession(self, data: bytes) -> bytes:
        request = pb.OpenSessionRequest.FromString(data)
        current = self.sessions.get(request.client_id, 0)
        incarnation = request.incarnation if request.HasField("incarnation") else current + 1
        if incarnation < current:
            raise refusal(Code.ABORTED, pb.ErrorDetail.FENCED, "a newer incarnation is open")
        if incarnation > current:
            self.num_logged = len(self.memory)  # a session is durable before it is told
        self.sessions[request.client_id] = incarnation
        return pb.OpenSessionReply(
            incarnation=incarnation, marks=self._marks(request.client_id), lineage=self.lineage
        ).SerializeToString()

    def _push(self, data: bytes) -> bytes:
        incoming = METHODS["Push"].request.split(data)
        keys = incoming.array(14, np.uint64, "keys").copy()
        grads = incoming.array(15, np.float32, "grads").reshape(len(keys), DIM).copy()
        head = incoming.head
        is_repeat = self._take("Push", head, keys, grads)
        if head.ack != pb.MEMORY or len(self.memory) - self.num_logged > self.log_after:
            self.num_logged = len(self.memory)
        marks = self._marks(head.id.client_id)
        return pb.PushReply(
            marks=marks, is_repeat=is_repeat, sequence=head.id.sequence
        ).SerializeToString()

    def _skip(self, data: bytes) -> bytes:
        head = pb.SkipRequest.FromString(data)
        is_repeat = self._take("Skip", head, (), ())
        marks = self._marks(head.id.client_id)
        return pb.SkipReply(marks=marks, is_repeat=is_repeat).SerializeToString()

    def _take(self, method: str, head: Any, keys: Any, grads: Any) -> bool:
        identity = head.id
        if identity.incarnation != self.sessions.get(identity.client_id, 0):
            raise refusal(Code.ABORTED, pb.ErrorDetail.FENCED, "a newer incarnation is open")
        mark = self.mark(identity.client_id)
        if identity.sequence <= mark:
            self.num_repeats += 1
            return True
        if identity.sequence > mark + 1:
            self.num_gaps += 1
            raise refusal(Code.OUT_OF_RANGE, pb.ErrorDetail.GAP, "gap", mark=mark)
        if self.refuse is not None:
            self.refuse(method, head)
        change = Applied(identity.client_id, identity.incarnation, identity.sequence, keys, grads)
        self.memory.append(change)
        self._add(change)
        return False

    def _flush(self, data: bytes) -> bytes:
        self.num_logged = len(self.memory)
        return pb.FlushReply().SerializeToString()

    def _pull(self, data: bytes) -> bytes:
        incoming = METHODS["Pull"].request.split(data)
        keys = incoming.array(15, np.uint64, "keys")
        nothing = np.zeros(DIM, np.float32)
        rows = np.array([self.rows.get(int(key), nothing) for key in keys], np.float32)
        return METHODS["Pull"].reply.join(pb.PullReply(dim=DIM), [rows])

    def _marks(self, client: str) -> pb.Marks:
        logged = [c.sequence for c in self.memory[: self.num_logged] if c.client == client]
        last = max(logged, default=0)
        return pb.Marks(applied=self.mark(client), logged=last, durable=last)


def refusal(code: Any, kind: Any, message: str, mark: int = 0, retry_ms: int = 0) -> Failure:
    """What a shard says no with."""
    detail = pb.ErrorDetail(kind=kind, message=message, mark=mark, retry_after_ms=retry_ms)
    return Failure(code, detail)


class Answered:
    """A call whose reply, or failure, is known."""

    def __init__(self, reply: bytes | Failure) -> None:
        self._reply = reply

    def reply(self) -> bytes:
        if isinstance(self._reply, Failure):
            raise self._reply
        return self._reply

    def then(self, call: Callable[[bool], object]) -> None:
        call(not isinstance(self._reply, Failure))


class FaultyNetwork:
    """A transport that loses requests and replies, sends twice, late and out of order, by a seed.

    Args:
        address: of the shard.
        service: the shard.
        chance: None for a network without faults.
        rate: part of the calls that a fault befalls.
    """

    def __init__(
        self,
        address: str,
        service: FakeService,
        chance: random.Random | None = None,
        rate: float = 0.2,
    ) -> None:
        self.address = address
        self.service = service
        self.chance = chance
        self.rate = rate
        self.late: list[tuple[str, bytes]] = []  # copies that are still on their way
        self.faults: dict[str, int] = dict.fromkeys(("request", "reply", "twice", "late"), 0)
        self.calls: list[str] = []
        self.is_closed = False

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        assert timeout > 0 and not self.is_closed
        self.calls.append(method)
        self._deliver_late()
        fault = self._draw()
        if fault == "request":
            raise Failure(Code.UNAVAILABLE, None, "the request was lost")
        if fault == "late":  # the caller believes it lost; it comes after others
            self.late.append((method, request))
            raise Failure(Code.DEADLINE_EXCEEDED, None, "no answer in time")
        reply = self.service.handle(method, request)
        if fault == "twice":
            reply = self.service.handle(method, request)
        if fault == "reply":
            raise Failure(Code.UNAVAILABLE, None, "the reply was lost")
        return reply

    def start(self, method: str, request: bytes, timeout: float) -> Answered:
        try:
            return Answered(self.call(method, request, timeout))
        except Failure as failure:
            return Answered(failure)

    def stream(self, method: str, request: bytes, timeout: float) -> Iterator[bytes]:
        raise AssertionError(method)

    def close(self) -> None:
        self.is_closed = True

    def _draw(self) -> str:
        if self.chance is None or self.chance.random() >= self.rate:
            return ""
        fault = self.chance.choice(list(self.faults))
        self.faults[fault] += 1
        return fault

    def _deliver_late(self) -> None:
        while self.late and self.chance is not None and self.chance.random() < 0.5:
            method, request = self.late.pop(self.chance.randrange(len(self.late)))
            if method == "OpenSession":
                continue  # a new incarnation that nobody waits for is another test's matter
            try:
                self.service.handle(method, request)
            except Failure:
                continue  # nobody waits for its answer
