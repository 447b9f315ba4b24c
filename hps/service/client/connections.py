"""Connections: a client's sessions at all shards of one service, and calls to some or all of them.

Above it: shards.py and the parts of parameter_server.py. Below it: rounds.py, session.py, one
transport a shard.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from google.protobuf.message import Message

from hps.common.forked import is_inherited, refuse_in_children
from hps.common.sharding import ShardMap
from hps.errors import RemoteError
from hps.service.client.options import ClientConfig
from hps.service.client.rounds import Request, ask, commit, raise_ended, raise_lost, shards_open
from hps.service.client.session import Session
from hps.service.client.transport import Transport
from hps.service.client.window import DURABLE, LOGGED, METHODS, Change, Draft
from hps.v1 import parameter_server_pb2 as pb

SLOW = 10.0  # calls that go over whole tables may take so many deadlines
_LEVELS = {LOGGED: pb.LOGGED, DURABLE: pb.DURABLE}
# Of the store, not of this client: they go on where its session cannot, so that a restore can help.
_WITHOUT_SESSION = ("Describe", "ListCheckpoints", "CheckpointState", "Restore")
_QUICK = (
    *("Describe", "NumRows", "Stats", "ListCheckpoints", "CreateTable", "MoveName"),
    *("DescribePart", "PublishPart"),
)

R = TypeVar("R", bound=Message)


class Connections:
    """A session at each shard. Thread-safe.

    Args:
        config: where they are, and who this client is.
        connect: makes the transport to an address.
    """

    def __init__(
        self, config: ClientConfig, connect: Callable[[str, ClientConfig], Transport]
    ) -> None:
        self.config = config
        self.where = ", ".join(config.addresses)
        self.shard_map = ShardMap(len(config.addresses))
        self.is_open = True
        self._wait_lock = threading.Lock()
        self._wait_seconds = 0.0  # guarded by _wait_lock
        self.sessions: list[Session] = []
        try:
            for index, address in enumerate(config.addresses):
                shard = pb.ShardMap(
                    index=index,
                    count=self.shard_map.count,
                    num_virtual=self.shard_map.num_virtual,
                    hash=self.shard_map.hash,
                )
                self.sessions.append(
                    Session(
                        shard,
                        connect(address, config),
                        str(config.client_id),
                        int(config.window),
                        config.deadline,
                    )
                )
        except BaseException:
            self.drop()
            raise
        refuse_in_children(self, self.where, ("sessions",), RemoteError)

    @property
    def wait_seconds(self) -> float:
        """For which pulls and steps have waited for the shards."""
        with self._wait_lock:
            return self._wait_seconds

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For a `with` block in which a pull or a step waits for the shards."""
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._wait_lock:
                self._wait_seconds += time.perf_counter() - started

    def until(self, is_slow: bool = False) -> float:
        """The moment at which a call that begins now must have ended."""
        return time.monotonic() + self.config.deadline * (SLOW if is_slow else 1.0)

    def change(self, drafts: list[tuple[Session, Draft]], what: str) -> list[Change]:
        """Commits changes, and waits until it is known what became of each; see `rounds.commit`."""
        is_slow = any(METHODS[draft.method].is_slow for _, draft in drafts)
        return commit(drafts, self.until(is_slow), what).wait() if drafts else []

    def ask_all(
        self,
        method: str,
        request: Message,
        reply: type[R],
        sessions: Iterable[Session] | None = None,
        seen: Callable[[int, bytes], None] | None = None,
    ) -> list[R]:
        """One small call to each shard, or to some; their replies. `seen` is as `ask` has it."""
        chosen = self.sessions if sessions is None else list(sessions)
        return self.ask_each(method, [request] * len(chosen), reply, chosen, seen)

    def ask_each(
        self,
        method: str,
        requests: Sequence[Message],
        reply: type[R],
        sessions: Sequence[Session] | None = None,
        seen: Callable[[int, bytes], None] | None = None,
    ) -> list[R]:
        """As `ask_all`, with a request of its own for each shard."""
        chosen = self.sessions if sessions is None else sessions
        is_slow = method not in _QUICK
        until = self.until(is_slow)
        calls = [
            Request(
                session,
                method,
                request.SerializeToString(),
                is_slow,
                needs_session=method not in _WITHOUT_SESSION,
            )
            for session, request in zip(chosen, requests, strict=True)
        ]
        answers = ask(calls, until, method, seen=seen)
        return [reply.FromString(data) for data in answers]

    def flush(self, durable: bool, then: str) -> None:
        """Waits until this client's changes are in the shards' logs, or on their disks.

        Args:
            durable: on their disks.
            then: what is said of the changes that are open at the deadline.

        Raises:
            RemoteError: a shard did not answer within the deadline, or a restart has lost changes.
        """
        until = self.until()
        level = DURABLE if durable else LOGGED
        opened = [session for session in self.sessions if session.window.incarnation]
        last = {session: session.window.last for session in opened}
        waiting = opened
        request = pb.FlushRequest(ack=_LEVELS[level]).SerializeToString()
        while waiting:
            raise_ended(waiting)
            # First what the shard lacks, then the flush, then what it says it has.
            for session in waiting:
                session.break_off()
            asked = [Request(s, "Flush", request, is_slow=True) for s in waiting]
            ask(asked, until, "flush", then)
            # Not what other threads push meanwhile; a new incarnation may number from below.
            waiting = [
                s for s in waiting if s.safe_up_to(level, until) < min(last[s], s.window.last)
            ]
            if waiting and time.monotonic() > until:
                raise shards_open("flush", (), waiting, then)
        raise_lost(opened)

    def close(self) -> None:
        """Waits for what is on its way, then lets go; nothing to do the second time.

        Raises:
            RemoteError: changes are still open after the deadline; they are lost with this client.
        """
        if not self.is_open:
            return
        try:
            if any(session.window.changes for session in self.sessions):
                self.flush(False, "the client is closed: what the logs lack is lost with it")
        finally:
            self.drop()

    def drop(self) -> None:
        """Lets go without waiting for anything."""
        self.is_open = False
        for session in self.sessions:
            session.transport.close()

    @property
    def are_inherited(self) -> bool:
        """True in a forked child: they are its parent's."""
        return is_inherited(self.sessions)
