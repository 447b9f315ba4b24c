"""Shards: a client's connections to all shards of one service, and what the shards say of
themselves.

Above it: client_cuts.py, client.py. Below it: client_rounds.py, client_session.py, one transport a
shard.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf.message import Message

from hps.arrays import HOST
from hps.config import TableConfig, differences
from hps.errors import ConfigError, RemoteError
from hps.forked import refuse_in_children
from hps.service.client_options import ClientConfig
from hps.service.client_rounds import Request, ask, raise_ended, raise_lost, shards_open
from hps.service.client_session import Session
from hps.service.client_transport import GrpcTransport, Transport
from hps.service.client_window import DURABLE, LOGGED
from hps.service.table_messages import from_message
from hps.sharding import ShardMap
from hps.v1 import parameter_server_pb2 as pb

_LEVELS = {LOGGED: pb.LOGGED, DURABLE: pb.DURABLE}
_LOOKS = 3  # at shards that seem to be of different services, while cuts are taken
SLOW = 10.0  # calls that go over whole tables may take so many deadlines
# Of the store, not of this client: they go on where its session cannot, so that a restore can help.
_WITHOUT_SESSION = ("Describe", "ListCheckpoints", "CheckpointState", "Restore")
_QUICK = ("Describe", "NumRows", "Stats", "ListCheckpoints", "CreateTable")


class Shards:
    """The shards of a service.

    Args:
        config: where they are, and who this client is.
        connect: makes the transport to an address.

    Raises:
        ConfigError: the shards are not those of one service in the order of their indices.
        RemoteError: one does not answer within the deadline.
    """

    device = HOST

    def __init__(
        self,
        config: ClientConfig,
        connect: Callable[[str, ClientConfig], Transport] = GrpcTransport,
    ) -> None:
        self.config = config
        self.shard_map = ShardMap(len(config.addresses))
        self.tables: dict[str, TableConfig] = {}
        self._lacking: dict[str, str] = {}  # tables of some shards alone: which ones lack it
        self.learning_rates: dict[str, float] = {}
        self.seed: int | None = None  # of new rows' weights; None where the shards differ
        self._wait_seconds = 0.0
        self._wait_lock = threading.Lock()
        # Of the training loop: kept here, read and written by hps.gradients.
        self.pending_gradients: Any = None
        self._mixed_histories = ""  # why the shards cannot be used until they are restored
        self._is_open = True
        self._sessions: list[Session] = []
        try:
            for index, address in enumerate(config.addresses):
                shard = pb.ShardMap(
                    index=index,
                    count=self.shard_map.count,
                    num_virtual=self.shard_map.num_virtual,
                    hash=self.shard_map.hash,
                )
                self._sessions.append(
                    Session(
                        shard,
                        connect(address, config),
                        str(config.client_id),
                        int(config.window),
                        config.deadline,
                    )
                )
            self._describe()
        except BaseException:
            self._close_transports()
            raise
        where = ", ".join(config.addresses)
        refuse_in_children(self, where, ("_sessions",), RemoteError)

    def __repr__(self) -> str:
        where = ", ".join(self.config.addresses)
        state = "" if self._is_open else ", closed"
        return (
            f"{type(self).__name__}({where}; client {self.config.client_id}, tables "
            f"{sorted(self.tables)}{state})"
        )

    @property
    def lineage(self) -> str:
        """Names the history that the rows belong to; changes with each restore."""
        return self._sessions[0].lineage

    @property
    def num_open_pipelines(self) -> int:
        """Pipelines whose `with` block is entered."""
        return 0 if self.pending_gradients is None else len(self.pending_gradients.listeners)

    def flush_all(self, durable: bool = False) -> None:
        """Waits until all changes, whoever made them, are in the shards' logs, or on their disks.

        Raises:
            RemoteError: a shard did not answer within the deadline.
        """
        self.flush(durable)
        level = pb.DURABLE if durable else pb.LOGGED
        self._ask_all("Flush", pb.FlushRequest(ack=level), pb.FlushReply)

    def flush(self, durable: bool = False) -> None:
        """Waits until this client's changes are in the shards' logs, or on their disks.

        Raises:
            RemoteError: a shard did not answer within the deadline, or a restart has lost changes.
        """
        self._check_usable("flush")
        self._flush(durable, "what is open is kept and goes first with the next call")

    def _flush(self, durable: bool, then: str) -> None:
        until = self._until()
        level = DURABLE if durable else LOGGED
        opened = [session for session in self._sessions if session.window.incarnation]
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
        if not self._is_open:
            return
        try:
            if any(session.window.changes for session in self._sessions):
                self._flush(False, "the client is closed: what the logs lack is lost with it")
        finally:
            self._close_transports()

    def _close_transports(self) -> None:
        self._is_open = False
        for session in self._sessions:
            session.transport.close()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """For a `with` block in which a pull or a step waits for the shards."""
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._wait_lock:
                self._wait_seconds += time.perf_counter() - started

    def _until(self) -> float:
        """The moment at which a call that begins now must have ended."""
        return time.monotonic() + self.config.deadline

    def _check_usable(self, verb: str) -> None:
        if not self._is_open:
            raise RemoteError(f"{verb}: this client is closed; make a new RemoteParameterServer")
        if self._mixed_histories:
            raise RemoteError(f"{verb}: {self._mixed_histories}")

    def _describe(self) -> None:
        """Takes in what the shards are, and checks that they are one service."""
        replies = self._ask_all(
            "Describe", pb.DescribeRequest(), pb.DescribeReply, seen=self._check_map
        )
        for session, reply in zip(self._sessions, replies, strict=True):
            session.lineage = reply.lineage
        seeds = {reply.seed for reply in replies}
        self.seed = seeds.pop() if len(seeds) == 1 else None
        lineages = {str(session): session.lineage for session in self._sessions}
        self._mixed_histories = ""
        if len(set(lineages.values())) > 1:
            self._mixed_histories = (
                f"the shards are at different cuts, with histories {lineages}: a restore has not "
                "reached all of them, or they are not of one service; restore() a checkpoint again"
            )
        else:
            self._mixed_histories = self._lacking_part(replies)
        tables = [{t.name: from_message(t) for t in reply.tables} for reply in replies]
        self.tables = {
            name: table
            for name, table in tables[0].items()
            if all(name in of_shard for of_shard in tables)
        }
        self._lacking = {
            name: ", ".join(
                str(session)
                for session, of_shard in zip(self._sessions, tables, strict=True)
                if name not in of_shard
            )
            for name in {name for of_shard in tables for name in of_shard} - set(self.tables)
        }
        for session, of_shard in zip(self._sessions, tables, strict=True):
            for name in self.tables:
                differing = differences(of_shard[name], self.tables[name])
                if differing:
                    raise ConfigError(
                        f"table {name!r} differs between shard {session} and shard "
                        f"{self._sessions[0]}: {'; '.join(differing)}"
                    )
        self.learning_rates = {name: table.optimizer.lr for name, table in self.tables.items()}
        limits = [reply.limits for reply in replies]
        self._max_keys = min(limit.max_keys or 2**31 for limit in limits)
        self._max_bytes = min(limit.max_message_bytes or 2**31 for limit in limits)

    def _lacking_part(self, replies: Sequence[pb.DescribeReply]) -> str:
        """Why the shards cannot be of one service, in words: one lacks its part of the newest cut
        that shard 0 holds. Its store is another service's, or an older copy. Empty if all is well.
        """
        for _ in range(_LOOKS):
            name = next(iter(replies[0].cuts.names), "")
            lacking = [
                session
                for session, reply in zip(self._sessions, replies, strict=True)
                if name and reply.HasField("cuts") and name not in reply.cuts.names
            ]
            if not lacking:
                return ""
            # It may have been taken between the answers, or let go of: shard 0 is asked on both
            # sides of the others, for it is the last to have a cut and the first to be without.
            others = self._ask_all(
                "Describe", pb.DescribeRequest(), pb.DescribeReply, self._sessions[1:]
            )
            first = self._ask_all(
                "Describe", pb.DescribeRequest(), pb.DescribeReply, self._sessions[:1]
            )
            replies = [*first, *others]
            still = [
                session
                for session, reply in zip(self._sessions[1:], others, strict=True)
                if session in lacking and name not in reply.cuts.names
            ]
            if still and name in replies[0].cuts.names:
                return (
                    f"shard {still[0]} lacks its part of the newest checkpoint that shard "
                    f"{self._sessions[0]} holds (cut {name}): its store is of another service, or "
                    "an older copy; start that server over its own store, or restore() a "
                    "checkpoint that all shards hold. If that part was deleted on purpose, delete "
                    "the checkpoint on shard 0, too ('hps checkpoints DIR --delete')"
                )
        return ""

    def _check_map(self, number: int, described: bytes) -> None:
        """As soon as a shard answers, though another one may not."""
        session, expected = self._sessions[number], self.shard_map
        told = pb.DescribeReply.FromString(described).shard_map
        if (told.index, told.count) != (session.index, expected.count):
            raise ConfigError(
                f"{session.transport.address} is shard {told.index} of {told.count}, not "
                f"{session.index} of {expected.count}; give the addresses of all shards in the "
                "order of their indices"
            )
        if (told.num_virtual, told.hash) != (expected.num_virtual, expected.hash):
            raise ConfigError(
                f"shard {session} divides keys by {told.hash!r} over {told.num_virtual} virtual "
                f"shards, this client by {expected.hash!r} over {expected.num_virtual}; use one "
                "version of hps"
            )

    def _ask_all(
        self,
        method: str,
        request: Message,
        reply: type[Any],
        sessions: Iterable[Session] | None = None,
        seen: Callable[[int, bytes], None] | None = None,
    ) -> list[Any]:
        """One small call to each shard, or to some; their replies. `seen` is as `ask` has it."""
        chosen = self._sessions if sessions is None else list(sessions)
        return self._ask_each(method, [request] * len(chosen), reply, chosen, seen)

    def _ask_each(
        self,
        method: str,
        requests: Sequence[Message],
        reply: type[Any],
        sessions: Sequence[Session] | None = None,
        seen: Callable[[int, bytes], None] | None = None,
    ) -> list[Any]:
        chosen = self._sessions if sessions is None else sessions
        is_slow = method not in _QUICK
        until = time.monotonic() + self.config.deadline * (SLOW if is_slow else 1.0)
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
        replies: list[Any] = [reply.FromString(data) for data in answers]
        return replies
