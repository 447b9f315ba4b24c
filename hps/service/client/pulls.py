"""Pulls: rows that are read from the shards, outright and for batches in flight.

Above it: parameter_server.py, whose docstrings say what each verb takes and raises; RemoteRows,
which are pinned here. Below it: division.py, plans.py (which key goes where), connections.py. Keys
are deduplicated here before they travel, or by the shard where they travel as they are.
"""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

import numpy as np

from hps import _C
from hps.common.arrays import HOST, AnyArray, OutputPool, as_keys, as_output, like
from hps.common.forked import refuse_in_children
from hps.common.locks import hold
from hps.common.plan_pool import PlanPool
from hps.common.row_layout import Floats, Keys
from hps.common.wire import Wire, decode
from hps.contracts.reads import PooledRead, in_order, in_words
from hps.errors import ConfigError, HpsError, RemoteError
from hps.service.client.connections import Connections
from hps.service.client.division import KeyDivision, Piece
from hps.service.client.options import number_of
from hps.service.client.plans import RemoteRows
from hps.service.client.rounds import Request, ask
from hps.service.client.session import Session
from hps.service.client.shards import Shards
from hps.service.client.window import LOGGED, METHODS, Draft
from hps.service.messages.framing import AnyIncoming
from hps.service.messages.in_place import writable
from hps.types import PinnedRows
from hps.v1 import parameter_server_pb2 as pb

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling

_AT_ONCE = 4  # pulls of one call that a shard has in hand at the same time

Share = tuple[str, Session, Keys]  # keys of a table that a shard is asked for


class Pulls:
    """Pull, pin, and the rows of what was pinned.

    Args:
        connections: to the shards.
        shards: what they say of themselves.
        division: of keys into messages.
        plans: of keys by shard.
    """

    def __init__(
        self, connections: Connections, shards: Shards, division: KeyDivision, plans: PlanPool
    ) -> None:
        self._connections = connections
        self._config = connections.config
        self._shards = shards
        self._division = division
        self._plans = plans
        self._buffers = OutputPool()
        refuse_in_children(self, connections.where, ("_plans", "_buffers"), RemoteError)

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, create: bool = False
    ) -> AnyArray:
        """As `RemoteParameterServer.pull`."""
        dim = self._shards.table(table, "pull").dim
        array = as_keys(keys)
        target = None if out is None else as_output(out, len(array), dim)
        if not create and self._division.go_whole(array, self._pull_bytes(dim)):
            found = self._pull_whole(table, array)
            if target is None or out is None:
                return like(found, keys)
            target[:] = found
            return out
        rows = self._buffers.take(len(array), dim) if out is None else out
        target = as_output(rows, len(array), dim)
        if len(array):
            plan = self._plans.take(array)
            try:
                if create:
                    self._create(table, plan, target)
                else:
                    self.read_planned(table, plan, target)
            finally:
                self._plans.give(plan)
        return like(rows, keys) if out is None else out

    def pull_pooled(
        self, table: str, keys: AnyArray, pooling: "BagPooling", out: "torch.Tensor"
    ) -> None:
        """As `RemoteParameterServer.pull_pooled`."""
        dim = self._shards.table(table, "pull").dim
        array = as_keys(keys)
        pooling.check(len(array), f"pull_pooled: table {table!r}")
        target = as_output(out, len(out), out.shape[1] // dim * dim)
        plan = self._plans.take(array)
        try:
            self.pool_planned(table, plan, pooling, target)
        finally:
            self._plans.give(plan)

    def pin(self, table: str, keys: AnyArray) -> RemoteRows:
        """As `RemoteParameterServer.pin`."""
        self._shards.table(table, "pin")
        return RemoteRows(self, self._plans, table, keys)

    def holds(self, rows: PinnedRows) -> bool:
        """True if these rows were pinned here."""
        return isinstance(rows, RemoteRows) and rows.reader is self

    def read_planned(self, table: str, plan: _C.ShardPlan, out: Floats) -> None:
        """Rows of a plan's occurrences as they are now, into out float32 [L, dim].

        Raises:
            RemoteError: a shard did not answer within the deadline.
        """
        if plan.num_occurrences:
            plan.scatter(self._parts(table, plan), out)

    def pool_planned(
        self, table: str, plan: _C.ShardPlan, pooling: "BagPooling", out: Floats
    ) -> None:
        """Sums or means of the bags of a plan's occurrences, into out float32 [B, F * dim].

        Raises:
            RemoteError: a shard did not answer within the deadline.
        """
        plan.pool(self._parts(table, plan), *pooling.arguments(HOST), out)

    def pull_tables(self, reads: Sequence[PooledRead]) -> None:
        """As `RemoteParameterServer.pull_tables`."""
        with ExitStack() as held:
            planned = [(read, self._plan_of(read, held)) for read in in_order(reads)]
            parts = self._parts_of([(read.table, plan) for read, plan in planned])
            for (read, plan), rows in zip(planned, parts, strict=True):
                plan.pool(rows, *read.pooling.arguments(HOST), read.out.numpy())

    def _plan_of(self, read: PooledRead, held: ExitStack) -> _C.ShardPlan:
        """The keys of a read by shard, for as long as they are held."""
        dim, where = self._shards.table(read.table, "pull_tables").dim, f"table {read.table!r}"
        as_output(read.out, len(read.out), read.out.shape[1] // dim * dim)
        rows = read.rows
        if rows is None:
            keys = as_keys(read.keys)
            plan = self._plans.take(keys)
            held.callback(self._plans.give, plan)
            read.pooling.check(len(keys), f"pull_tables: {where}")
            return plan
        is_own = isinstance(rows, RemoteRows) and self.holds(rows) and rows.table == read.table
        if not is_own:
            raise ConfigError(
                f"pull_tables: the rows given for {where} are of another table or server"
            )
        rows = cast("RemoteRows", rows)
        hold(rows.lock, held)
        read.pooling.check(rows.num_occurrences, f"pull_tables: {where}")
        return rows.held_plan()

    def _parts(self, table: str, plan: _C.ShardPlan) -> list[Floats]:
        """The rows of a plan's distinct keys as they are now, shard after shard."""
        (parts,) = self._parts_of([(table, plan)])
        return parts

    def _parts_of(self, plans: Sequence[tuple[str, _C.ShardPlan]]) -> Iterator[list[Floats]]:
        """The same of each of several tables' plans; some are asked for at once."""
        pieces = [
            self._division.pieces(plan, self._pull_bytes(self._shards.tables[table].dim))
            for table, plan in plans
        ]
        shares = [
            (table, session, keys)
            for (table, _), own in zip(plans, pieces, strict=True)
            for session, keys, _ in own
        ]
        replies: deque[AnyIncoming] = deque()
        waves = self._waves(shares)
        for (table, _), own in zip(plans, pieces, strict=True):
            while len(replies) < len(own):
                replies += self._ask_rows(next(waves))
            dim = self._shards.tables[table].dim
            yield self._rows_of(own, [replies.popleft() for _ in own], dim)

    def _waves(self, shares: Sequence[Share]) -> Iterator[list[Share]]:
        """Requests of which no shard gets too many at once."""
        most = max(1, min(_AT_ONCE, self._shards.max_requests // 2))
        wave: list[Share] = []
        counts: Counter[int] = Counter()
        for share in shares:
            if counts[share[1].index] == most:
                yield wave
                wave, counts = [], Counter()
            wave.append(share)
            counts[share[1].index] += 1
        if wave:
            yield wave

    def new_rows(self, table: str, num_rows: int) -> Floats:
        """A buffer float32 [num_rows, dim] of the pool."""
        return self._buffers.take(num_rows, self._shards.tables[table].dim)

    def _ask_rows(self, shares: Sequence[Share]) -> list[AnyIncoming]:
        """The replies to pulls of keys of a table from a shard."""
        wire, requests = self._config.pull_format, []
        for table, session, keys in shares:
            head = pb.PullRequest(
                table=table,
                wire=number_of(wire),
                dim=self._shards.tables[table].dim,
                lineage=session.lineage,
            )
            message = METHODS["Pull"].request.join(head, [keys])
            requests.append(Request(session, "Pull", message))
        tables = list(dict.fromkeys(table for table, _, _ in shares))
        with self._connections.waiting():
            replies = ask(requests, self._connections.until(), f"pull of {in_words(tables)}")
        return [METHODS["Pull"].reply.split(data) for data in replies]

    def _pull_whole(self, table: str, keys: Keys) -> Floats:
        """Rows of keys that go whole: the reply's own memory, where they are float32."""
        (reply,) = self._ask_rows([(table, self._connections.sessions[0], keys)])
        raw = writable(reply.data)[reply.place(15)]
        return decode(raw, len(keys), self._shards.tables[table].dim, Wire(reply.head.wire))

    def _pull_bytes(self, dim: int) -> int:
        """Of a key in the request and in the reply of a pull."""
        return 8 + self._config.pull_format.num_bytes(1, dim)

    def _create(self, table: str, plan: _C.ShardPlan, out: Floats) -> None:
        wire, dim = self._config.pull_format, self._shards.tables[table].dim
        pieces = self._division.pieces(plan, 8 + wire.num_bytes(1, dim))
        drafts = []
        for session, keys, _ in pieces:
            head = pb.CreateRequest(
                table=table,
                ack=number_of(LOGGED),
                wire=number_of(wire),
                dim=dim,
                lineage=session.lineage,
            )
            what = f"creating pull of {len(keys)} keys of table {table!r}"
            drafts.append((session, Draft("Create", head, [keys], LOGGED, what)))
        changes = self._connections.change(drafts, f"creating pull of table {table!r}")
        replies = [change.reply for change in changes if change.reply is not None]
        if len(replies) == len(changes) and all(reply.num_bytes(15) for reply in replies):
            plan.scatter(self._rows_of(pieces, replies, dim), out)
            return
        try:  # a shard could not send them: a pull has them, or says why not
            self.read_planned(table, plan, out)
        except HpsError as error:
            error.add_note(f"creating pull of table {table!r}: the keys are stored")
            raise

    def _rows_of(self, pieces: list[Piece], incoming: list[AnyIncoming], dim: int) -> list[Floats]:
        """Rows of the pieces' replies, shard after shard."""
        parts: list[list[Floats]] = [[] for _ in self._connections.sessions]
        for (session, keys, _), reply in zip(pieces, incoming, strict=True):
            raw = reply.array(15, np.uint8, "rows")
            parts[session.index].append(decode(raw, len(keys), dim, Wire(reply.head.wire)))
        nothing = np.empty((0, dim), np.float32)
        return [_whole(part) if part else nothing for part in parts]


def _whole(parts: list[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
