"""RemoteParameterServer: the verbs of ParameterServer over gRPC, on one shard or several.

Above it: users, SparseEmbedding, RowOptimizer, Pipeline, the command line. Below it: client_cuts.py
(checkpoints), client_rounds.py (calls to several shards), client_plans.py (which key goes where).
Keys are deduplicated and a key's gradients summed here, by the core's own loops, before they
travel: so training against servers has the bits of training in one process.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields
from types import TracebackType
from typing import Any, Unpack

import numpy as np

from hps import _C
from hps.arrays import OutputPool, as_floats, as_keys, as_output, joined, like
from hps.batch_rows import RowUpdate
from hps.config import TableConfig
from hps.errors import ConfigError, NonFiniteError, RemoteError
from hps.row_layout import Floats, Keys, RowLayout
from hps.row_server import PinnedRows
from hps.service.client_base import SLOW
from hps.service.client_cuts import RemoteCuts
from hps.service.client_errors import Failure
from hps.service.client_options import ClientConfig, ClientFields, ack_number
from hps.service.client_plans import PlanPool, RemoteRows
from hps.service.client_rounds import Commit, Request, ask, commit
from hps.service.client_session import Session
from hps.service.client_transport import GrpcTransport
from hps.service.client_window import LOGGED, METHODS, Change, Draft
from hps.service.table_messages import to_message
from hps.service.wire import Wire, check_range, decode, encode
from hps.v1 import parameter_server_pb2 as pb

_MESSAGE_ROOM = 4096  # bytes of a message besides its arrays
_MOST_WAITERS = 8  # threads of pull_async and push_async
# Figures of a table that are the same on each shard; all other numbers of stats() add up.
_NOT_ADDED = ("dim", "row_bytes", "state_floats")


class NothingWarmed:
    """What `warm` gives where no tier of this process could be warmed."""

    def release(self) -> None:
        """Nothing is held."""


class RemoteParameterServer(RemoteCuts):
    """Embedding rows that lie on servers (`hps serve`): pulled, pushed and checkpointed from here.

    Calls may come from several threads. A change is applied exactly once, whatever is lost on the
    way: it is numbered, kept until the shard has it safe, and sent again until it is answered. One
    that is still open at the deadline raises RemoteError, stays, and goes first with the next call:
    it must not be given again. Changes of one thread are applied in its order.

    A change of keys on several shards is committed to all of them at once. If one shard refuses
    its part (CapacityError, a full disk) the others have theirs; the error's note names them.

    Args:
        addresses: "host:port" of each shard, in the order of their indices.
        client_id: names this client; see `hps.service.client_options.ClientConfig` for it and for
            token, tls, deadline, wire, push_wire and window.

    Raises:
        ConfigError: the addresses are not the shards of one service, in order.
        RemoteError: a shard does not answer within the deadline.

    Source: architecture.md, section on the network; docs/clients.md.

    >>> RemoteParameterServer(["localhost"])
    Traceback (most recent call last):
    hps.errors.ConfigError: address 'localhost' must be 'host:port'
    """

    has_gpu_cache = False
    _connect = GrpcTransport  # tests put a transport with faults here

    def __init__(
        self,
        addresses: Sequence[str],
        client_id: str | None = None,
        **options: Unpack[ClientFields],
    ) -> None:
        config = ClientConfig(addresses=addresses, client_id=client_id, **options)
        super().__init__(config, self._connect)
        self._plans = PlanPool(self.shard_map.owners().tolist())
        self._buffers = OutputPool()
        self._waiters: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, config: ClientConfig) -> "RemoteParameterServer":
        """The client that a configuration describes."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(config)})

    # Rows.

    def pull(self, table: str, keys: Any, out: Any = None, create: bool = False) -> Any:
        """Embeddings of keys; an absent key reads as its initial value.

        Args:
            table: its name.
            keys: int64 or uint64 [L], numpy array or CPU tensor, duplicates allowed.
            out: float32 [L, dim], contiguous, to write into; None takes a buffer.
            create: absent keys are stored as they read: a change, as push.

        Returns:
            float32 [L, dim], `out` itself if given, else a tensor if the keys were one.

        Raises:
            ConfigError: unknown table, wrong dtype or shape.
            RemoteError: a shard did not answer within the deadline.

        Cost: the distinct keys travel, and their rows as `wire` says; one copy of [L, dim].
        """
        dim = self._table(table, "pull").dim
        array = as_keys(keys)
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

    def push(self, table: str, keys: Any, grads: Any, ack: str = "logged") -> None:
        """Sums the gradients of each key in order of occurrence, then runs its optimizer once.

        Args:
            table: its name.
            keys: int64 or uint64 [L], duplicates allowed.
            grads: float32 [L, dim], one row an occurrence.
            ack: what the shards have done when it returns: "memory" applied it, "logged" it
                survives a killed server, "durable" a loss of power.

        Raises:
            NonFiniteError: a sum is NaN or infinite; names the key; no row has changed.
            ConfigError: unknown table, wrong dtype or shape.
            CapacityError, StoreError: of a shard, which has not applied its part.
            RemoteError: a shard did not answer within the deadline; what is open is kept. Or a
                restart has lost changes that were acknowledged in memory.
        """
        sent = self._begin_push(table, keys, grads, ack)
        if sent is not None:
            sent.wait()

    def push_async(self, table: str, keys: Any, grads: Any, ack: str = "logged") -> "Future[None]":
        """A push that is on its way when this returns; the future says what became of it.

        Pushes are applied in the order of these calls. Raises at once what is wrong with the
        arguments.
        """
        sent = self._begin_push(table, keys, grads, ack)
        return self._wait_aside(lambda: None if sent is None else sent.wait())

    def pull_async(self, table: str, keys: Any, out: Any = None) -> "Future[Any]":
        """A pull in another thread. Pushes that are still on their way may be seen or not."""
        return self._wait_aside(lambda: self.pull(table, keys, out))

    def assign(
        self, table: str, keys: Any, rows: Any, state: Any = None, ack: str = "logged"
    ) -> None:
        """Sets rows outright; of a key that stands twice the last row counts.

        Args:
            table: its name.
            keys: int64 or uint64 [L].
            rows: float32 [L, dim].
            state: float32 [L, state floats of a row], as items(state=True) gives it; None starts
                the optimizer's state anew.
            ack: as push.

        Raises:
            ConfigError: unknown table, wrong dtype or shape. Others: as push.
        """
        config = self._table(table, "assign")
        array = as_keys(keys)
        weights = as_floats(rows, len(array), config.dim, "rows")
        width = RowLayout(config.optimizer.kind, config.dim).state_floats
        floats = None if state is None else as_floats(state, len(array), width, "state")
        row_bytes = 8 + 4 * (config.dim + (0 if floats is None else width))
        drafts = []
        for session, places in self._shares(array, row_bytes):
            head = pb.AssignRequest(
                table=table, dim=config.dim, lineage=session.lineage, ack=_number(ack_number(ack))
            )
            parts = [array[places], weights[places], b"" if floats is None else floats[places]]
            what = f"assign of {len(places)} keys of table {table!r}"
            drafts.append((session, Draft("Assign", head, parts, ack_number(ack), what)))
        self._change(drafts, f"assign to table {table!r}")

    def erase(self, table: str, keys: Any, ack: str = "logged") -> Any:
        """Drops keys.

        Returns:
            bool [L]: where a stored row was; a tensor if the keys were one.

        Raises:
            RemoteError: also where the keys are erased, but the answer that tells which were
                stored was lost.
        """
        self._table(table, "erase")
        array = as_keys(keys)
        shares = self._shares(array, 8)
        drafts = []
        for session, places in shares:
            head = pb.EraseRequest(table=table, lineage=session.lineage, ack=_number(ack_number(ack)))
            what = f"erase of {len(places)} keys of table {table!r}"
            drafts.append((session, Draft("Erase", head, [array[places]], ack_number(ack), what)))
        changes = self._change(drafts, f"erase of table {table!r}")
        erased = np.zeros(len(array), bool)
        for (session, places), change in zip(shares, changes, strict=True):
            told = change.reply.array(15, np.uint8, "erased") if change.reply else ()
            if len(told) != len(places):
                raise RemoteError(
                    f"erase of table {table!r}: shard {session} has erased the keys, but its "
                    "answer, which of them were stored, was lost"
                )
            erased[places] = told
        return like(erased, keys)

    def contains(self, table: str, keys: Any) -> Any:
        """Which keys are stored: bool [L], a tensor if the keys were one."""
        self._table(table, "contains")
        array = as_keys(keys)
        shares = self._shares(array, 8)
        requests = []
        for session, places in shares:
            head = pb.ContainsRequest(table=table, lineage=session.lineage)
            message = METHODS["Contains"].request.join(head, [array[places]])
            requests.append(Request(session, "Contains", message))
        stored = np.zeros(len(array), bool)
        replies = ask(requests, self._until(), f"contains of table {table!r}")
        for (_, places), data in zip(shares, replies, strict=True):
            stored[places] = METHODS["Contains"].reply.split(data).array(15, np.uint8, "stored")
        return like(stored, keys)

    def num_rows(self, table: str) -> int:
        """Stored rows of a table over all shards."""
        self._table(table, "num_rows")
        request = pb.NumRowsRequest(table=table)
        return sum(r.num_rows for r in self._ask_all("NumRows", request, pb.NumRowsReply))

    def items(
        self, table: str, batch: int = 65536, state: bool = False
    ) -> Iterator[tuple[Any, ...]]:
        """Every stored row once, in no order: (keys, rows) or, with state, (keys, rows, state).

        Pieces are copies of up to `batch` rows. A change of the table makes the next piece raise.

        Raises:
            ConfigError: unknown table; batch < 1. RemoteError: a shard has gone, or the table was
            changed.
        """
        dim = self._table(table, "items").dim
        if batch < 1:
            raise ConfigError(f"items(batch={batch}): at least 1 row a piece is needed")
        request = pb.ItemsRequest(table=table, batch=batch, state=state).SerializeToString()
        for session in self._sessions:
            seconds = SLOW * self.config.deadline
            try:
                for data in session.transport.stream("Items", request, seconds):
                    piece = METHODS["Items"].reply.split(data)
                    keys = piece.array(13, np.uint64, "keys").copy()
                    rows = piece.array(14, np.float32, "rows").reshape(len(keys), dim).copy()
                    if not state:
                        yield keys, rows
                        continue
                    floats = piece.array(15, np.float32, "state")
                    yield keys, rows, floats.reshape(len(keys), -1).copy()
            except Failure as failure:
                raise failure.typed(session.transport.address) from None

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row: the one that a single store would have."""
        self._table(table, "digest")
        replies = self._ask_all("Digest", pb.DigestRequest(table=table), pb.DigestReply)
        low = sum(reply.low for reply in replies) % 2**64
        high = sum(reply.high for reply in replies) % 2**64
        return f"{high:016x}{low:016x}"

    def stats(self) -> dict[str, Any]:
        """Counters of each tier, then of each table, added up over the shards; under "shards"
        those of each."""
        self._check_usable("stats")
        replies = self._ask_all("Stats", pb.StatsRequest(), pb.StatsReply)
        each = [json.loads(reply.json) for reply in replies]
        total: dict[str, Any] = {}
        for part in each:
            _add_up(total, part)
        return {**total, "shards": each}

    def create_table(self, table: TableConfig) -> bool:
        """Makes a table on all shards; nothing to do where it is there just so.

        Returns:
            True if it was new on any shard.

        Raises:
            RemoteError: a table of that name is there and differs.
        """
        self._check_usable("create_table")
        request = pb.CreateTableRequest(table=to_message(table))
        replies = self._ask_all("CreateTable", request, pb.CreateTableReply)
        rates = dict(self.learning_rates)
        self._describe()
        self.learning_rates.update(rates)
        return any(reply.is_new for reply in replies)

    # Batches in flight: SparseEmbedding, RowOptimizer and Pipeline.

    def pin(self, table: str, keys: Any) -> RemoteRows:
        """Divides the keys of a batch over the shards; the rows are pulled when they are asked
        for, so that they are those after every step before. May be called from any thread."""
        self._table(table, "pin")
        return RemoteRows(self, self._plans, table, keys)

    def warm(self, table: str, keys: Any) -> NothingWarmed:
        """Nothing to do: the tiers are on the servers."""
        return NothingWarmed()

    def want(self, table: str, keys: Any) -> None:
        """Nothing to do: the tiers are on the servers."""

    def holds(self, rows: PinnedRows) -> bool:
        """True if this client made these rows ready."""
        return isinstance(rows, RemoteRows) and rows.server is self

    def apply(
        self, updates: Sequence[RowUpdate], applied: Callable[[], object] | None = None
    ) -> None:
        """One optimizer step of several tables: all of them or, if a gradient is bad, none.

        Args:
            updates: of each table; several of one table are summed as one, in their order.
            applied: called once the step will be applied for certain, if need be later; no
                interrupt in between if it is a builtin.

        Raises:
            NonFiniteError: a sum is NaN or infinite; no row of any table has changed.
            Others: as push.
        """
        groups: dict[str, list[RowUpdate]] = {}
        for update in updates:
            groups.setdefault(update.table, []).append(update)
        what = f"step of tables {sorted(groups)}"
        plans: list[_C.ShardPlan] = []
        try:
            drafts: list[tuple[Session, Draft]] = []
            for table, group in groups.items():
                drafts += self._drafts_of(table, group, plans)
            sent = commit(drafts, self._until(), what, applied) if drafts else None
        finally:  # the drafts were views of the plans
            for plan in plans:
                self._plans.give(plan)
        if sent is not None:
            sent.wait()
        elif applied is not None:
            applied()

    def read_planned(self, table: str, plan: _C.ShardPlan, out: Floats) -> None:
        """Rows of a plan's occurrences as they stand now, into out float32 [L, dim].

        Raises:
            RemoteError: a shard did not answer within the deadline.
        """
        wire, dim = self.config.pull_format, self.tables[table].dim
        pieces = self._pieces(plan, 8 + wire.num_bytes(1, dim))
        requests = []
        for session, keys, _ in pieces:
            head = pb.PullRequest(
                table=table, wire=_number(wire), dim=dim, lineage=session.lineage
            )
            message = METHODS["Pull"].request.join(head, [keys])
            requests.append(Request(session, "Pull", message))
        replies = ask(requests, self._until(), f"pull of table {table!r}")
        incoming = [METHODS["Pull"].reply.split(data) for data in replies]
        self._scatter(plan, pieces, incoming, out)

    def new_rows(self, table: str, num_rows: int) -> Floats:
        """A buffer float32 [num_rows, dim] of the pool."""
        return self._buffers.take(num_rows, self.tables[table].dim)

    # Lifetime.

    def close(self) -> None:
        """Waits for what is on its way, then lets go; nothing to do the second time.

        Raises:
            RemoteError: changes are still open after the deadline; they are lost with this client.
        """
        waiters, self._waiters = self._waiters, None
        if waiters is not None:
            waiters.shutdown()
        super().close()

    def __enter__(self) -> "RemoteParameterServer":
        self._check_usable("with")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._close_transports()

    # Parts.

    def _table(self, table: str, verb: str) -> TableConfig:
        self._check_usable(verb)
        if table not in self.tables:
            raise ConfigError(f"there is no table {table!r}; the shards have {sorted(self.tables)}")
        return self.tables[table]

    def _wait_aside(self, wait: Callable[[], Any]) -> "Future[Any]":
        if self._waiters is None:
            self._waiters = ThreadPoolExecutor(_MOST_WAITERS, "hps remote")
        return self._waiters.submit(wait)

    def _begin_push(self, table: str, keys: Any, grads: Any, ack: str) -> Commit | None:
        self._table(table, "push")
        level = ack_number(ack)
        plans: list[_C.ShardPlan] = []
        try:
            drafts = self._drafts_of(table, [RowUpdate(table, keys, grads)], plans, level)
            return commit(drafts, self._until(), f"push to table {table!r}") if drafts else None
        finally:  # the drafts were views of the plans
            for plan in plans:
                self._plans.give(plan)

    def _drafts_of(
        self, table: str, group: list[RowUpdate], taken: list[_C.ShardPlan], level: int = LOGGED
    ) -> list[tuple[Session, Draft]]:
        """One table's updates, summed a key; adds the plans that it takes to `taken`."""
        dim = self._table(table, "apply").dim
        keys = [as_keys(update.keys) for update in group]
        grads = [
            as_floats(update.grads, len(part), dim, "grads")
            for update, part in zip(group, keys, strict=True)
        ]
        array, floats = joined(keys), joined(grads)
        if not len(array):
            return []
        plan = self._plan_of(group, array)
        if plan is None:
            plan = self._plans.take(array)
            taken.append(plan)
        bad = plan.sum_gradients(floats)
        if bad < 0:
            sums = plan.sums(dim)
            bad = check_range(sums, self.config.push_format)
        if bad >= 0:
            raise _non_finite(table, int(plan.unique_keys[bad]), self.config.push_format)
        return self._push_drafts(table, plan, sums, level)

    def _plan_of(self, group: list[RowUpdate], keys: Keys) -> _C.ShardPlan | None:
        """The plan that was made ahead for exactly these keys."""
        rows = group[0].rows
        if len(group) > 1 or rows is None:
            return None
        if not isinstance(rows, RemoteRows) or not self.holds(rows) or rows.is_released:
            raise ConfigError(
                f"apply: the rows given for table {group[0].table!r} were released, or are those "
                "of another server; pass rows=None to have them looked up"
            )
        if rows.table != group[0].table or not rows.are_of(keys):
            raise ConfigError(f"apply: the rows given for table {rows.table!r} are of other keys")
        return rows.held_plan()

    def _push_drafts(
        self, table: str, plan: _C.ShardPlan, sums: Floats, level: int
    ) -> list[tuple[Session, Draft]]:
        wire, dim = self.config.push_format, sums.shape[1]
        drafts = []
        for session, keys, first in self._pieces(plan, 8 + wire.num_bytes(1, dim)):
            head = pb.PushRequest(
                table=table,
                ack=_number(level),
                lr=self.learning_rates[table],
                wire=_number(wire),
                dim=dim,
                lineage=session.lineage,
            )
            grads = encode(sums[first : first + len(keys)], wire)
            what = f"push of {len(keys)} keys to table {table!r}"
            drafts.append((session, Draft("Push", head, [keys, grads], level, what)))
        return drafts

    def _create(self, table: str, plan: _C.ShardPlan, out: Floats) -> None:
        wire, dim = self.config.pull_format, self.tables[table].dim
        pieces = self._pieces(plan, 8 + wire.num_bytes(1, dim))
        drafts = []
        for session, keys, _ in pieces:
            head = pb.CreateRequest(
                table=table,
                ack=_number(LOGGED),
                wire=_number(wire),
                dim=dim,
                lineage=session.lineage,
            )
            what = f"creating pull of {len(keys)} keys of table {table!r}"
            drafts.append((session, Draft("Create", head, [keys], LOGGED, what)))
        changes = self._change(drafts, f"creating pull of table {table!r}")
        self._scatter(plan, pieces, [change.reply for change in changes], out)

    def _scatter(
        self, plan: _C.ShardPlan, pieces: list[Any], incoming: list[Any], out: Floats
    ) -> None:
        """Rows of the pieces' replies, to every occurrence."""
        dim = out.shape[1]
        parts: list[list[Floats]] = [[] for _ in self._sessions]
        for (session, keys, _), reply in zip(pieces, incoming, strict=True):
            raw = reply.array(15, np.uint8, "rows")
            parts[session.index].append(decode(raw, len(keys), dim, Wire(reply.head.wire)))
        nothing = np.empty((0, dim), np.float32)
        plan.scatter([_whole(part) if part else nothing for part in parts], out)

    def _change(self, drafts: list[tuple[Session, Draft]], what: str) -> list[Change]:
        return commit(drafts, self._until(), what).wait() if drafts else []

    def _most_rows(self, row_bytes: int) -> int:
        """Keys of one message, whose request and reply take so many bytes each."""
        return int(max(1, min(self._max_keys, (self._max_bytes - _MESSAGE_ROOM) // row_bytes)))

    def _pieces(self, plan: _C.ShardPlan, row_bytes: int) -> list[tuple[Session, Keys, int]]:
        """(shard, distinct keys, place of the first) of each message, in the plan's order."""
        most, keys, starts = self._most_rows(row_bytes), plan.unique_keys, plan.starts
        pieces = []
        for session in self._sessions:
            begin, end = starts[session.index], starts[session.index + 1]
            for first in range(begin, end, most):
                pieces.append((session, keys[first : min(first + most, end)], first))
        return pieces

    def _shares(self, keys: Keys, row_bytes: int) -> list[tuple[Session, Any]]:
        """(shard, places of its keys) of each message, duplicates and order kept."""
        most = self._most_rows(row_bytes)
        return [
            (session, places[first : first + most])
            for session, places in zip(self._sessions, self.shard_map.split(keys), strict=True)
            for first in range(0, len(places), most)
        ]


def _whole(parts: list[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _number(value: int) -> Any:
    """An enum's number, as the generated messages take it."""
    return int(value)


def _non_finite(table: str, key: int, wire: Wire) -> NonFiniteError:
    where = f"table {table!r}, key {key}: the summed gradient is NaN or infinite"
    if wire is not Wire.FLOAT32:
        where += f", or too large for {wire.name.lower()}"
    return NonFiniteError(
        f"{where}; no row was changed. Look for a diverged loss, or skip the step as "
        "torch.amp.GradScaler does"
    )


def _add_up(total: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if isinstance(value, dict):
            _add_up(total.setdefault(name, {}), value)
        elif isinstance(value, bool) or not isinstance(value, int | float) or name in _NOT_ADDED:
            total.setdefault(name, value)
        else:
            total[name] = total.get(name, 0) + value
