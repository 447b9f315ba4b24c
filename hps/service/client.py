"""RemoteParameterServer: the verbs of ParameterServer over gRPC, on one shard or several.

Above it: users, SparseEmbedding, RowOptimizer, Pipeline, the command line. Below it:
client_tables.py (whole tables), client_cuts.py (checkpoints), client_rounds.py (calls to several
shards), client_plans.py (which key goes where). Keys are deduplicated and a key's gradients summed
here, by the core's own loops, before they travel, or by the shard where they travel as they are: so
training against servers has the bits of training in one process.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import fields
from types import TracebackType
from typing import Any, Unpack

import numpy as np

from hps import _C
from hps.arrays import OutputPool, as_floats, as_keys, as_output, joined, like
from hps.batch_rows import RowUpdate
from hps.errors import ConfigError, HpsError, NonFiniteError, RemoteError
from hps.forked import is_inherited, refuse_in_children
from hps.row_layout import Floats, Keys
from hps.row_server import PinnedRows, SoleServer
from hps.service.client_options import ClientConfig, ClientFields, ack_number
from hps.service.client_plans import PlanPool, RemoteRows
from hps.service.client_rounds import Commit, Request, ask, commit
from hps.service.client_session import Session
from hps.service.client_tables import RemoteTables, number_of
from hps.service.client_transport import GrpcTransport
from hps.service.client_window import LOGGED, METHODS, Draft
from hps.service.framing import Incoming
from hps.service.in_place import MessagePool, OpenMessage, writable
from hps.service.memory import expect_messages
from hps.service.wire import Bytes, Wire, check_range, decode, encode
from hps.v1 import parameter_server_pb2 as pb

_MOST_WAITERS = 64  # threads of pull_async and push_async; a slow shard may hold many of them


class NothingWarmed:
    """What `warm` gives where no tier of this process could be warmed."""

    def release(self) -> None:
        """Nothing is held."""


class RemoteParameterServer(RemoteTables, SoleServer):
    """Embedding rows that lie on servers (`hps serve`): pulled, pushed and checkpointed from here.

    Any number of threads may read, and get what each would get alone (docs/reliability.md: which
    verbs may run beside which). A change is applied exactly once, whatever is lost on the
    way: it is numbered, kept until the shard has it safe, and sent again until it is answered. One
    that is still open at the deadline raises RemoteError, stays, and goes first with the next call:
    it must not be given again. Changes of one thread are applied in its order.

    A change of keys on several shards is committed to all of them at once. If one shard refuses
    its part (CapacityError, a full disk, a step that overflows a row) the others have theirs; the
    error's note names them.

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
        expect_messages()
        config = ClientConfig(addresses=addresses, client_id=client_id, **options)
        super().__init__(config, self._connect)
        self._plans = PlanPool(self.shard_map.owners().tolist())
        self._buffers = OutputPool()
        self._messages = MessagePool()
        # Made here, not where it is first needed: two threads may be the first. It has no thread
        # before it has work.
        self._waiters = ThreadPoolExecutor(_MOST_WAITERS, "hps remote")
        names = ("_plans", "_buffers", "_messages", "_waiters")
        refuse_in_children(self, ", ".join(config.addresses), names, RemoteError)

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

        Cost: the distinct keys travel, and their rows as `wire` says; one copy of [L, dim]. Keys
        that seem distinct travel as they are, to one shard, and float32 rows are then those of the
        reply, without a copy.
        """
        dim = self._table(table, "pull").dim
        array = as_keys(keys)
        target = None if out is None else as_output(out, len(array), dim)
        if not create and self._go_whole(array, self._pull_bytes(dim)):
            found = self._pull_whole(table, array)
            if target is None:
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
        arguments; of gradients that are finite and overflow as a sum, the future may tell.
        """
        sent = self._begin_push(table, keys, grads, ack)
        return self._wait_aside(lambda: None if sent is None else sent.wait())

    def pull_async(self, table: str, keys: Any, out: Any = None) -> "Future[Any]":
        """A pull in another thread. Pushes that are still on their way may be seen or not."""
        return self._wait_aside(lambda: self.pull(table, keys, out))

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
            with self._waiting():
                sent = commit(drafts, self._until(), what, applied) if drafts else None
        finally:  # the drafts were views of the plans
            for plan in plans:
                self._plans.give(plan)
        if sent is not None:
            with self._waiting():
                sent.wait()
        elif applied is not None:
            applied()

    def read_planned(self, table: str, plan: _C.ShardPlan, out: Floats) -> None:
        """Rows of a plan's occurrences as they stand now, into out float32 [L, dim].

        Raises:
            RemoteError: a shard did not answer within the deadline.
        """
        dim = self.tables[table].dim
        pieces = self._pieces(plan, self._pull_bytes(dim))
        replies = self._ask_rows(table, [(session, keys) for session, keys, _ in pieces])
        self._scatter(plan, pieces, replies, out)

    def new_rows(self, table: str, num_rows: int) -> Floats:
        """A buffer float32 [num_rows, dim] of the pool."""
        return self._buffers.take(num_rows, self.tables[table].dim)

    # Lifetime.

    def close(self) -> None:
        """Waits for what is on its way, then lets go; nothing to do the second time.

        Raises:
            RemoteError: changes are still open after the deadline; they are lost with this client.
        """
        self._waiters.shutdown()
        super().close()

    def __enter__(self) -> "RemoteParameterServer":
        if not self._is_open:
            raise RemoteError("this client is closed; make a new RemoteParameterServer")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not is_inherited(self._plans):  # of a forked child: the connections are its parent's
            self._waiters.shutdown(wait=False)
            self._close_transports()

    # Parts.

    def _wait_aside(self, wait: Callable[[], Any]) -> "Future[Any]":
        try:
            return self._waiters.submit(wait)
        except RuntimeError as error:  # it takes no more
            raise RemoteError("this client is closed; make a new RemoteParameterServer") from error

    def _ask_rows(self, table: str, shares: list[tuple[Session, Keys]]) -> list[Incoming[Any]]:
        """The replies to a pull of so many keys of each shard."""
        wire, requests = self.config.pull_format, []
        for session, keys in shares:
            head = pb.PullRequest(
                table=table,
                wire=number_of(wire),
                dim=self.tables[table].dim,
                lineage=session.lineage,
            )
            message = METHODS["Pull"].request.join(head, [keys])
            requests.append(Request(session, "Pull", message))
        with self._waiting():
            replies = ask(requests, self._until(), f"pull of table {table!r}")
        return [METHODS["Pull"].reply.split(data) for data in replies]

    def _go_whole(self, keys: Keys, row_bytes: int) -> bool:
        """True if keys are to travel as they are: to the only shard, in one message, where it costs
        less to find the few that repeat than to look for them here, too."""
        if len(self._sessions) > 1 or len(keys) > self._most_rows(row_bytes):
            return False
        with self._plans.lent() as plan:
            return plan.seem_distinct(keys)

    def _pull_whole(self, table: str, keys: Keys) -> Floats:
        """Rows of keys that go whole: the reply's own memory, where they are float32."""
        (reply,) = self._ask_rows(table, [(self._sessions[0], keys)])
        raw = writable(reply.data)[reply.place(15)]
        return decode(raw, len(keys), self.tables[table].dim, Wire(reply.head.wire))

    def _pull_bytes(self, dim: int) -> int:
        """Of a key in the request and in the reply of a pull."""
        return 8 + self.config.pull_format.num_bytes(1, dim)

    def _begin_push(self, table: str, keys: Any, grads: Any, ack: str) -> Commit | None:
        dim = self._table(table, "push").dim
        level = ack_number(ack)
        plans: list[_C.ShardPlan] = []
        array = as_keys(keys)
        floats = as_floats(grads, len(array), dim, "grads")
        is_exact = self.config.push_format is Wire.FLOAT32  # else what travels must be the sum
        try:
            if is_exact and self._go_whole(array, 8 + 4 * dim):
                drafts = [self._push_whole(table, array, floats, level)]
            else:
                drafts = self._drafts_of(table, [RowUpdate(table, array, floats)], plans, level)
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
        rows = group[0].rows
        with rows.lock if isinstance(rows, RemoteRows) else nullcontext():
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
            draft, grads = self._open_push(session, table, keys, level)
            encode(sums[first : first + len(keys)], wire, grads)
            drafts.append((session, draft))
        return drafts

    def _push_whole(
        self, table: str, keys: Keys, grads: Floats, level: int
    ) -> tuple[Session, Draft]:
        """A push of keys that go whole; the shard sums where one repeats."""
        session = self._sessions[0]
        draft, out = self._open_push(session, table, keys, level)
        with self._plans.lent() as plan:
            bad = plan.copy_gradients(grads, out)
        if bad >= 0:
            raise _non_finite(table, int(keys[bad]), Wire.FLOAT32)
        return session, draft

    def _open_push(
        self, session: Session, table: str, keys: Keys, level: int
    ) -> tuple[Draft, Bytes]:
        """A push whose gradients are still to be written: to where it says, as they travel."""
        wire, dim = self.config.push_format, self.tables[table].dim
        head = pb.PushRequest(
            table=table,
            ack=number_of(level),
            lr=self.learning_rates[table],
            wire=number_of(wire),
            dim=dim,
            lineage=session.lineage,
        )
        sizes = [(14, keys.nbytes), (15, wire.num_bytes(len(keys), dim))]
        message = OpenMessage(head, sizes, self._messages)
        message.arrays[0][:] = keys.view(np.uint8)
        what = f"push of {len(keys)} keys to table {table!r}"
        return Draft("Push", head, message, level, what), message.arrays[1]

    def _create(self, table: str, plan: _C.ShardPlan, out: Floats) -> None:
        wire, dim = self.config.pull_format, self.tables[table].dim
        pieces = self._pieces(plan, 8 + wire.num_bytes(1, dim))
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
        changes = self._change(drafts, f"creating pull of table {table!r}")
        if all(change.reply is not None and change.reply.num_bytes(15) for change in changes):
            self._scatter(plan, pieces, [change.reply for change in changes], out)
            return
        try:  # a shard could not send them: a pull has them, or says why not
            self.read_planned(table, plan, out)
        except HpsError as error:
            error.add_note(f"creating pull of table {table!r}: the keys are stored")
            raise

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

    def _pieces(self, plan: _C.ShardPlan, row_bytes: int) -> list[tuple[Session, Keys, int]]:
        """(shard, distinct keys, place of the first) of each message, in the plan's order."""
        most, keys, starts = self._most_rows(row_bytes), plan.unique_keys, plan.starts
        pieces = []
        for session in self._sessions:
            begin, end = starts[session.index], starts[session.index + 1]
            for first in range(begin, end, most):
                pieces.append((session, keys[first : min(first + most, end)], first))
        return pieces


def _whole(parts: list[Floats]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _non_finite(table: str, key: int, wire: Wire) -> NonFiniteError:
    where = f"table {table!r}, key {key}: the summed gradient is NaN or infinite"
    if wire is not Wire.FLOAT32:
        where += f", or too large for {wire.name.lower()}"
    return NonFiniteError(
        f"{where}; no row was changed. Look for a diverged loss, or skip the step as "
        "torch.amp.GradScaler does"
    )
