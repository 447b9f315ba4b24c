"""RemoteParameterServer: the verbs of ParameterServer over gRPC, on one shard or several.

Above it: users, SparseEmbedding, RowOptimizer, Pipeline, the command line. Below it, a part for
each kind of verb: pulls.py and pushes.py (rows), tables.py (whole tables), checkpoints.py; and what
the parts share: connections.py (a session at each shard), shards.py (what they say of themselves),
division.py and plans.py (which key goes where). Keys are deduplicated and a key's gradients summed
here, by the core's own loops, before they travel, or by the shard where they travel as they are: so
training against servers has the bits of training in one process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from hps.checkpoint.blobs import Dense, ModelState
from hps.checkpoint.over_parts import CheckpointsOverParts
from hps.common.arrays import HOST, AnyArray, HostArray
from hps.common.json_text import Json, JsonView
from hps.common.plan_pool import PlanPool
from hps.common.sharding import ShardMap
from hps.config import TableConfig
from hps.contracts.reads import PooledRead
from hps.contracts.training import Pending
from hps.contracts.updates import RowUpdate
from hps.errors import RemoteError
from hps.service.client.checkpoints import RemoteParts
from hps.service.client.connections import Connections
from hps.service.client.division import KeyDivision
from hps.service.client.names import RemoteNames
from hps.service.client.options import ClientConfig, ClientFields
from hps.service.client.periods import PeriodVerbs
from hps.service.client.plans import MAX_IDLE_PLANS, NothingWarmed, RemoteRows
from hps.service.client.publishing import RemotePublishing
from hps.service.client.pulls import Pulls
from hps.service.client.pushes import Pushes
from hps.service.client.shards import Shards
from hps.service.client.tables import TableVerbs
from hps.service.client.training import LoopGradients
from hps.service.client.transport import GrpcTransport
from hps.service.client.waiters import Waiters
from hps.service.messages.memory import expect_messages
from hps.table.rows_where import RowsWhere, WhereFields
from hps.types import PinnedRows

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling
    from hps.publish.asked import Publishable


class RemoteParameterServer:
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
        client_id: names this client; see `hps.service.client.options.ClientConfig` for it and for
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
    device = HOST
    ranks = None  # a client has no other ranks
    joint = queued = None  # nor rows of its own
    checkpoint_blobs = None  # a shard sends model and reader together
    _connect = GrpcTransport  # tests put a transport with faults here

    def __init__(
        self,
        addresses: Sequence[str],
        client_id: str | None = None,
        **options: Unpack[ClientFields],
    ) -> None:
        expect_messages()
        self.config = config = ClientConfig(addresses=addresses, client_id=client_id, **options)
        self._loop = LoopGradients()
        self._connections = Connections(config, self._connect)
        try:
            self._shards = Shards(self._connections)
        except BaseException:
            self._connections.drop()
            raise
        plans = PlanPool(self.shard_map.owners().tolist(), MAX_IDLE_PLANS)
        division = KeyDivision(self._connections, self._shards, plans)
        self._pulls = Pulls(self._connections, self._shards, division, plans)
        self._pushes = Pushes(self._connections, self._shards, division, plans, self._pulls)
        self._table_verbs = TableVerbs(self._connections, self._shards, division)
        self._periods = PeriodVerbs(self._connections, self._shards, division, self._loop)
        parts = RemoteParts(self._connections, self._shards, self._loop)
        self._checkpoints = CheckpointsOverParts(parts)
        self._names = names = RemoteNames(self._connections, self._shards, parts)
        self.publishing = RemotePublishing(self._connections, self._shards, parts, names)
        self._waiters = Waiters(self._connections.where)

    @classmethod
    def of(cls, config: ClientConfig) -> "RemoteParameterServer":
        """The client that a configuration describes."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(config)})

    def __repr__(self) -> str:
        state = "" if self._connections.is_open else ", closed"
        return (
            f"{type(self).__name__}({self._connections.where}; client {self.config.client_id}, "
            f"tables {sorted(self.tables)}{state})"
        )

    # What the shards say of themselves.

    @property
    def shard_map(self) -> ShardMap:
        """Which shard owns which keys."""
        return self._shards.shard_map

    @property
    def tables(self) -> dict[str, TableConfig]:
        """The configs, by name, of the tables that all shards have."""
        return self._shards.tables

    @property
    def learning_rates(self) -> dict[str, float]:
        """By table; to be changed in place."""
        return self._shards.learning_rates

    @learning_rates.setter
    def learning_rates(self, rates: dict[str, float]) -> None:
        self._shards.learning_rates = rates

    @property
    def seed(self) -> int | None:
        """Of new rows' weights; None where the shards differ."""
        return self._shards.seed

    @property
    def lineage(self) -> str:
        """Names the history that the rows belong to; changes with each restore."""
        return self._shards.lineage

    @property
    def num_open_pipelines(self) -> int:
        """Pipelines whose `with` block is entered."""
        return self._loop.num_open_pipelines

    @property
    def pending_gradients(self) -> Pending | None:
        """Of the training loop: see hps.nn.gradients."""
        return self._loop.pending_gradients

    @pending_gradients.setter
    def pending_gradients(self, pending: Pending | None) -> None:
        self._loop.pending_gradients = pending

    # Rows.

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, create: bool = False
    ) -> AnyArray:
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
        return self._pulls.pull(table, keys, out, create)

    def pull_pooled(
        self, table: str, keys: AnyArray, pooling: "BagPooling", out: "torch.Tensor"
    ) -> None:
        """Sums or means of bags of keys, as `hps.ParameterServer.pull_pooled`.

        Raises:
            ConfigError: unknown table, wrong dtype or shape.
            RemoteError: a shard did not answer within the deadline.

        Cost: the distinct keys travel, and their rows; they are pooled here, on one thread.
        """
        self._pulls.pull_pooled(table, keys, pooling, out)

    def pull_tables(self, reads: Sequence[PooledRead]) -> None:
        """As pull_pooled, of several tables; the shards are asked for several of them at once.

        Raises:
            ConfigError: a table is given twice; others as pull_pooled.
        """
        self._pulls.pull_tables(reads)

    def push(
        self,
        table: str,
        keys: AnyArray,
        grads: AnyArray,
        ack: str = "logged",
        labels: AnyArray | None = None,
    ) -> None:
        """Sums the gradients of each key in order of occurrence, then runs its optimizer once.

        Args:
            table: its name.
            keys: int64 or uint64 [L], duplicates allowed.
            grads: float32 [L, dim], one row an occurrence.
            ack: what the shards have done when it returns: "memory" applied it, "logged" it
                survives a killed server, "durable" a loss of power.
            labels: float32 [L], 1 where an occurrence is a click, else 0; None: no clicks. Counted
                in a table with statistics, in which every occurrence is a show.

        Raises:
            NonFiniteError: a sum is NaN or infinite; names the key; no row has changed.
            ConfigError: unknown table, wrong dtype or shape, another label.
            CapacityError, StoreError: of a shard, which has not applied its part.
            RemoteError: a shard did not answer within the deadline; what is open is kept. Or a
                restart has lost changes that were acknowledged in memory.
        """
        self._pushes.push(table, keys, grads, ack, labels)

    def push_async(
        self,
        table: str,
        keys: AnyArray,
        grads: AnyArray,
        ack: str = "logged",
        labels: AnyArray | None = None,
    ) -> "Future[None]":
        """A push that is on its way when this returns; the future says what became of it.

        Pushes are applied in the order of these calls. Raises at once what is wrong with the
        arguments; of gradients that are finite and overflow as a sum, the future may tell.
        """
        sent = self._pushes.begin(table, keys, grads, ack, labels)
        return self._waiters.wait(lambda: self._pushes.finish(sent))

    def pull_async(
        self, table: str, keys: AnyArray, out: AnyArray | None = None
    ) -> "Future[AnyArray]":
        """A pull in another thread. Pushes that are still on their way may be seen or not."""
        return self._waiters.wait(lambda: self.pull(table, keys, out))

    # Batches in flight: SparseEmbedding, RowOptimizer and Pipeline.

    def agree(self, flag: bool) -> bool:
        """The flag; over several ranks it would be True if it is on any of them."""
        return flag

    def pin(self, table: str, keys: AnyArray) -> RemoteRows:
        """Divides the keys of a batch over the shards; the rows are pulled when they are asked
        for, so that they are those after every step before. May be called from any thread."""
        return self._pulls.pin(table, keys)

    def warm(self, table: str, keys: AnyArray) -> NothingWarmed:
        """Nothing to do: the tiers are on the servers."""
        return NothingWarmed()

    def want(self, table: str, keys: AnyArray) -> None:
        """Nothing to do: the tiers are on the servers."""

    def holds(self, rows: PinnedRows) -> bool:
        """True if this client made these rows ready."""
        return self._pulls.holds(rows)

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
        self._pushes.apply(updates, applied)

    # Whole tables.

    def assign(
        self,
        table: str,
        keys: AnyArray,
        rows: AnyArray,
        state: AnyArray | None = None,
        ack: str = "logged",
        statistics: Mapping[str, AnyArray] | None = None,
    ) -> None:
        """Sets rows outright; of a key that occurs twice the last row counts.

        Args:
            table: its name.
            keys: int64 or uint64 [L].
            rows: float32 [L, dim].
            state: float32 [L, state floats of a row], as items(state=True) gives it; None starts
                the optimizer's state anew.
            ack: as push.
            statistics: as hps.ParameterServer.assign.

        Raises:
            ConfigError: unknown table, wrong dtype or shape; a state that the optimizer cannot have
                made, or such statistics (of a period to come a shard says so).
            NonFiniteError: NaN or infinity. No shard has changed a row.
            Others: as push.
        """
        self._table_verbs.assign(table, keys, rows, state, ack, statistics)

    def erase(self, table: str, keys: AnyArray, ack: str = "logged") -> AnyArray:
        """Drops keys.

        Returns:
            bool [L]: where a stored row was; a tensor if the keys were one.

        Raises:
            RemoteError: also where the keys are erased, but the answer that tells which were
                stored was lost.
        """
        return self._table_verbs.erase(table, keys, ack)

    def erase_where(self, table: str, **where: Unpack[WhereFields]) -> int:
        """Erases the rows for which all that is given holds, on all shards; tells how many.

        The arguments are those of `hps.ParameterServer.erase_where`. Each shard decides which of
        its rows they mean, by the changes that reached it before, and is asked exactly once.

        Raises:
            ConfigError: as there; or a server of an older hps. RemoteError: as push, which also
                says which shards have erased theirs; or the rows are erased, and the answer that
                tells how many was lost.

        Cost: each shard reads the table once, and takes no other change meanwhile; the call may
            take ten deadlines.
        """
        return self._periods.erase_where(table, RowsWhere(**where))

    def contains(self, table: str, keys: AnyArray) -> AnyArray:
        """Which keys are stored: bool [L], a tensor if the keys were one."""
        return self._table_verbs.contains(table, keys)

    # Periods.

    @property
    def period(self) -> int:
        """In which changes count on all shards, as they say now: the lowest, while an
        advance_period has not reached all of them.

        Raises:
            ConfigError: a server of an older hps. RemoteError: a shard does not answer.
        """
        return self._periods.period

    def advance_period(self, to: int | None = None) -> int:
        """Begins the next period, or a later one, on all shards; logged, as a change.

        A shard that is there already, or further, stays: one that is asked again by a retry, by
        another client, or for the sake of a shard that was left behind.

        Args:
            to: its number; None is the next one. Where shards are at different periods, None is the
                highest of them.

        Returns:
            The period.

        Raises:
            ConfigError: `to` is not above `period`; a pipeline is open; a server of an older hps.
            RemoteError: a shard did not tell within the deadline which period it is in, or within
                ten that it has begun this one, for which it writes its dirty rows. What is open
                stays, and goes first with the next call: do not give it again. Until then that
                shard counts in the period before. If this client ends first, advance_period() of
                another one brings it to the others' period.
        """
        return self._periods.advance(to)

    def statistics(self, table: str, keys: AnyArray) -> dict[str, AnyArray]:
        """What the rows of keys have counted, as hps.ParameterServer.statistics.

        Raises:
            ConfigError: unknown table, or one without statistics; wrong dtype or shape.
            RemoteError: a shard did not answer within the deadline.
        """
        return self._periods.statistics(table, keys)

    def num_rows(self, table: str) -> int:
        """Stored rows of a table over all shards."""
        return self._table_verbs.num_rows(table)

    def items(
        self, table: str, batch: int = 65536, state: bool = False, statistics: bool = False
    ) -> Iterator[tuple[HostArray, ...]]:
        """Every stored row once, in no order: (keys, rows) or, with state, (keys, rows, state).

        Statistics come last, as of hps.ParameterServer.items. Pieces are copies of up to `batch`
        rows. A change of the table makes the next piece raise.

        Raises:
            ConfigError: unknown table; batch < 1.
            RemoteError: a shard has gone, or the table was changed.
        """
        return self._table_verbs.items(table, batch, state, statistics)

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row: the one that a single store would have."""
        return self._table_verbs.digest(table)

    def stats(self) -> Json:
        """Counters of each tier, then of each table, added up over the shards; under "shards"
        those of each; under "client" the seconds for which pulls and steps waited for them."""
        return self._table_verbs.stats()

    def create_table(self, table: TableConfig) -> bool:
        """Makes a table on all shards, durably; nothing to do where it is there just so.

        Shard 0 comes first, and the others get what it has then: so they agree, whatever others
        ask for at the same time. No restore takes the table away; see `restore`.

        Returns:
            True if it was new on any shard.

        Raises:
            RemoteError: a table of that name is there and differs; or a shard did not answer, and
                the same call again makes the table where it is missing.
        """
        return self._table_verbs.create_table(table)

    # Checkpoints.

    def checkpoint(
        self,
        tag: str | None = None,
        model: ModelState | None = None,
        reader: JsonView | None = None,
    ) -> Json:
        """Makes everything durable in one checkpoint over all shards: rows, model, reader.

        Changes of this client that come before are in it, those after are not; other clients must
        hold still meanwhile, or each shard has its own idea of theirs. Without model and reader it
        takes over those of the checkpoint that the rows descend from, if no client has pushed
        since.

        Args:
            tag: its name; it replaces an older one of that name. None: the newest two are kept.
            model: what torch.load(weights_only=True) reads: state dicts, tensors, numbers.
            reader: the position of a reader, as its state_dict() gives it; JSON.

        Returns:
            {"tag", "rows_written", "bytes", "seconds", "marks"}: of each shard this client's
            incarnation and the last change that it holds; None on a shard it never changed.
            "model_from" as hps.ParameterServer.checkpoint says.

        Raises:
            ConfigError: a bad tag, or a model or reader that could not be read back.
            RemoteError: a shard did not answer; the one before it stays the newest.
        """
        return self._checkpoints.checkpoint(tag, model, reader)

    def restore(self, tag: str | int | None = None) -> Dense:
        """Goes back to a checkpoint, on all shards or none.

        All clients' sessions end: those of others are refused from then on, this one goes on. A
        table that is younger than the checkpoint stays, and is empty.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the current one, or the
                newest where none is.

        Returns:
            (model, reader) as they were given to checkpoint(), each None if it was not.

        Raises:
            ConfigError: no such checkpoint, or a shard lacks its part (no shard went back); a
                pipeline is open.
            CorruptionError: the checkpoint is damaged; no shard went back.
            RemoteError: a shard did not answer. If others went back already, no client can use the
                shards until restore() has been called again.
        """
        return self._checkpoints.restore(tag)

    def checkpoint_state(self, tag: str | int | None = None) -> Dense:
        """(model, reader) of a checkpoint, without going back to it.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the current one.

        Raises:
            ConfigError: no such checkpoint, or None and none that is kept is current.
            CorruptionError: the checkpoint is damaged.
        """
        return self._checkpoints.checkpoint_state(tag)

    def checkpoints(self) -> list[Json]:
        """The checkpoints that are kept, oldest first: tag (or None), id, rows, bytes, created,
        names (promoted ones). Of those that shards take by themselves only a single shard's at its
        end is listed, as `automatic`. The one that the rows descend from is `current`; none is if
        that one is not kept any more, or the servers cannot tell.
        """
        return self._checkpoints.checkpoints()

    def delete_checkpoint(self, tag: str | int) -> list[str]:
        """Deletes a checkpoint, named by its tag or its id.

        Returns:
            The living readers of it, in words; its files stay until they close.

        Raises:
            ConfigError: no such checkpoint, or None.
        """
        return self._checkpoints.delete_checkpoint(tag)

    @property
    def names(self) -> RemoteNames:
        """Promoted names: `names.promote("day-3")`, `names.roll_back()`, `names.drop("live")`."""
        return self._names

    def publish(
        self, url: str | PathLike[str], model: "Publishable" = None, **options: Any
    ) -> Json:
        """Publishes the rows of all shards as they are as one version, as
        `hps.ParameterServer.publish`, where all may write to (`hps serve --publish-to`)."""
        return self.publishing.publish(fspath(url), model, options)

    # Lifetime.

    def flush(self, durable: bool = False) -> None:
        """Waits until this client's changes are in the shards' logs, or on their disks.

        Raises:
            RemoteError: a shard did not answer within the deadline, or a restart has lost changes.
        """
        self._shards.flush(durable)

    def flush_all(self, durable: bool = False) -> None:
        """Waits until all changes, whoever made them, are in the shards' logs, or on their disks.

        Raises:
            RemoteError: a shard did not answer within the deadline.
        """
        self._shards.flush_all(durable)

    def close(self) -> None:
        """Waits for what is on its way, then lets go; nothing to do the second time.

        Raises:
            RemoteError: changes are still open after the deadline; they are lost with this client.
        """
        self._waiters.close()
        self._connections.close()

    def __enter__(self) -> "RemoteParameterServer":
        if not self._connections.is_open:
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
        elif not self._connections.are_inherited:  # of a forked child: they are its parent's
            self._waiters.drop()
            self._connections.drop()
