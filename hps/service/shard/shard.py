"""Shard: one store behind the service; every mutation of every client is applied exactly once.

Above it: the handlers of the gRPC server, which turn messages into these calls. Below it: the parts
that do it: core.py (the open store), sessions.py, mutations.py, acknowledge.py, reads.py,
checkpoints.py, tables.py. Each verb here is one call of a part. Any thread may call.

A mutation's way: its arrays are checked; it waits for its turn, and shortly for the mutations of
its client that it follows; its rows are held in their slots and its sums looked at, so that nothing
can refuse it any more; its record goes to the log; the rows change; the mark moves. Outside the
turn it waits until the log has its record as safe as the caller asked. So at any moment the rows
hold exactly the records up to `history.number`, and a checkpoint, which takes a turn as well, says
so.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hps.common.arrays import AnyArray, HostArray
from hps.common.json_text import Json
from hps.config import Config, TableConfig
from hps.parameter_server.opening import Tiers
from hps.service.shard.acknowledge import Acknowledger
from hps.service.shard.answers import Ack, Applied, OpenedSession, PushStep, RowState, Terms
from hps.service.shard.checkpoints import NameMove, ShardCheckpoints
from hps.service.shard.core import LONG, ServedStore, ShardOptions
from hps.service.shard.location import StoreLocation
from hps.service.shard.mutations import Mutations
from hps.service.shard.publishing import (
    PartDescription,
    PartOrder,
    PartWriting,
    ShardPublishing,
)
from hps.service.shard.reads import Reads, Standing
from hps.service.shard.sessions import SessionOpener
from hps.service.shard.tables import ShardTables
from hps.table.rows_where import RowsWhere
from hps.update_log import Identity

__all__ = ["Ack", "Applied", "Identity", "OpenedSession", "Shard", "ShardOptions", "Terms"]


@dataclass(frozen=True)
class ShardParts:
    """What a Shard consists of."""

    store: ServedStore
    acknowledger: Acknowledger
    sessions: SessionOpener
    mutations: Mutations
    reads: Reads
    checkpoints: ShardCheckpoints
    tables: ShardTables
    publishing: ShardPublishing


class Shard:
    """Opens a store and serves it.

    Args:
        place: the store: with the tables to make sure of, or as it lies there.
        options: see ShardOptions.

    Raises:
        MismatchError: a table is stored with other numbers or rules. ConfigError: tables or shard
            map do not fit what is stored. StoreError: another process has the store open.
            CorruptionError: the checkpoint or the log is damaged.

    >>> import hps, tempfile
    >>> import numpy as np
    >>> table = hps.TableConfig(name="ads", dim=4)
    >>> config = hps.Config(path=tempfile.mkdtemp(), tables=[table])
    >>> shard = Shard(config)
    >>> session = shard.open_session("trainer-0")
    >>> first = Identity("trainer-0", session.incarnation, 1)
    >>> keys, grads = np.array([7], np.uint64), np.ones((1, 4), np.float32)
    >>> shard.push(first, "ads", keys, grads).is_repeat
    False
    >>> shard.push(first, "ads", keys, grads).is_repeat
    True
    >>> shard.close()
    """

    def __init__(
        self,
        place: Config | StoreLocation,
        options: ShardOptions | None = None,
        *,
        _tiers: Tiers | None = None,
    ) -> None:
        self.options = options or ShardOptions()
        store = ServedStore(place, self.options, _tiers or Tiers())
        try:
            acknowledger, reads = Acknowledger(store), Reads(store)
            mutations = Mutations(store, reads, acknowledger)
            self.parts = ShardParts(
                store=store,
                acknowledger=acknowledger,
                sessions=SessionOpener(store, acknowledger),
                mutations=mutations,
                reads=reads,
                checkpoints=ShardCheckpoints(store, reads, mutations),
                tables=ShardTables(store),
                publishing=ShardPublishing(store),
            )
        except BaseException:  # an interrupt
            store.close(checkpoint=False)
            raise

    @property
    def index(self) -> int:
        """Of this shard, from 0."""
        return self.parts.store.index

    @property
    def count(self) -> int:
        """Of shards."""
        return self.parts.store.count

    @property
    def lineage(self) -> str:
        """Names the history of the rows; another one after each restore."""
        return self.parts.store.lineage

    @property
    def tables(self) -> list[TableConfig]:
        """In the order of creation."""
        return self.parts.store.tables

    @property
    def failure(self) -> str:
        """Why no mutation is taken any more; empty while they are."""
        return self.parts.store.failure

    @property
    def is_dead(self) -> bool:
        """True if it cannot even be read any more; `failure` says why."""
        return self.parts.store.is_dead

    @property
    def seed(self) -> int:
        """Of new rows' weights."""
        return self.parts.store.seed

    # Sessions and mutations.

    def open_session(
        self,
        client_id: str,
        incarnation: int | None = None,
        timeout: float = 60.0,
        owner: str = "",
    ) -> OpenedSession:
        """Starts a new incarnation of a client, durably, which ends all older ones; or goes on.

        Args:
            client_id: 1 to 64 printable bytes.
            incarnation: the one to go on with; None begins a new one.
            timeout: seconds.
            owner: who asks; of one owner's sessions only so many are remembered.

        Raises:
            FencedError: the incarnation has ended. ConfigError: not a name.
            StoreError: the log could not take it. DeadlineError: time is up.
        """
        return self.parts.sessions.open(client_id, incarnation, timeout, owner)

    def push(
        self,
        identity: Identity,
        table: str,
        keys: AnyArray,
        grads: AnyArray,
        step: PushStep | None = None,
        terms: Terms | None = None,
    ) -> Applied:
        """Sums the gradients of each key in order of occurrence, then runs its optimizer once.

        Args:
            identity: the client's number for it.
            table: its name.
            keys: uint64 or int64 [L], duplicates allowed.
            grads: float32 [L, dim].
            step: learning rate, and what the keys stand for in a table with statistics; see there.
            terms: what to wait for, and how long.

        Raises:
            GapError: an earlier one is missing. FencedError: the session has ended.
            NonFiniteError, CapacityError, ConfigError: refused for what it is; `skip` its sequence.
            StoreError: the disk is full, or log or store have failed; nothing has changed unless
                it was the wait that raised.
            DeadlineError: time is up; the message says whether it is applied.
        """
        return self.parts.mutations.push(identity, table, keys, grads, step, terms)

    def assign(
        self,
        identity: Identity,
        table: str,
        keys: AnyArray,
        rows: AnyArray,
        beside: RowState | None = None,
        terms: Terms | None = None,
    ) -> Applied:
        """Sets rows outright, as ParameterServer.assign; errors as push."""
        return self.parts.mutations.assign(identity, table, keys, rows, beside, terms)

    def erase(
        self, identity: Identity, table: str, keys: AnyArray, terms: Terms | None = None
    ) -> Applied:
        """Drops keys; the answer is bool [L], where a stored row was. Errors as push."""
        return self.parts.mutations.erase(identity, table, keys, terms)

    def erase_where(
        self, identity: Identity, table: str, where: RowsWhere, terms: Terms | None = None
    ) -> Applied:
        """Drops the rows for which a predicate holds; the answer is int64 [1], how many. Errors as
        push; ConfigError: the table has no statistics, or no scores.

        Cost: reads the table once, within the turn.
        """
        return self.parts.mutations.erase_where(identity, table, where, terms)

    def create(
        self, identity: Identity, table: str, keys: AnyArray, terms: Terms | None = None
    ) -> Applied:
        """A pull that stores absent keys; the answer is float32 [L, dim], None where a repeat
        cannot read them. Errors as push."""
        return self.parts.mutations.create(identity, table, keys, terms)

    @property
    def period(self) -> int:
        """That changes count in now, as ParameterServer.period."""
        return self.parts.store.server.period

    def advance_period(self, identity: Identity, to: int, terms: Terms | None = None) -> Applied:
        """Begins a period; one that has begun already stays. Errors as push."""
        return self.parts.mutations.advance_period(identity, to, terms)

    def skip(self, identity: Identity, terms: Terms | None = None) -> Applied:
        """Makes a sequence nothing: what it was has been refused, and is given up."""
        return self.parts.mutations.skip(identity, terms)

    def flush(self, ack: Ack, timeout: float = 60.0) -> None:
        """Returns once all that was applied before is logged, or durable.

        Raises:
            StoreError: the log has failed. DeadlineError: time is up.
        """
        self.parts.acknowledger.flush(ack, timeout)

    # Reads.

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, timeout: float = LONG
    ) -> AnyArray:
        """As ParameterServer.pull.

        Raises:
            MismatchError: the keys are those of another shard.
        """
        return self.parts.reads.pull(table, keys, out, timeout)

    def contains(self, table: str, keys: AnyArray, timeout: float = LONG) -> AnyArray:
        """As ParameterServer.contains; errors as pull."""
        return self.parts.reads.contains(table, keys, timeout)

    def statistics(self, table: str, keys: AnyArray, timeout: float = LONG) -> dict[str, AnyArray]:
        """As ParameterServer.statistics; errors as pull."""
        return self.parts.reads.statistics(table, keys, timeout)

    def num_rows(self, table: str, timeout: float = LONG) -> int:
        """As ParameterServer.num_rows."""
        return self.parts.reads.num_rows(table, timeout)

    def items(
        self,
        table: str,
        batch: int = 65536,
        state: bool = False,
        timeout: float = LONG,
        statistics: bool = False,
    ) -> Iterator[tuple[HostArray, ...]]:
        """As ParameterServer.items."""
        return self.parts.reads.items(table, batch, state, timeout, statistics)

    def digest(self, table: str, timeout: float = LONG) -> tuple[int, int]:
        """(low, high): two sums over the table's rows as they are at one moment.

        Mutations go on meanwhile. One that changes the table makes it begin again; after three
        beginnings they wait for it, for a second at most.

        Raises:
            ChangedError: the table is changed all the time, and too large for that second.
            DeadlineError: time is up.
        """
        return self.parts.reads.digest(table, timeout)

    def stats(self, timeout: float = LONG) -> Json:
        """As ParameterServer.stats, with a part `service`."""
        return self.parts.reads.stats(timeout)

    def standing(self, timeout: float = LONG) -> Standing:
        """Where the store lies and how old it is; waits for no update, nor for a checkpoint."""
        return self.parts.reads.standing(timeout)

    def checkpoints(self, timeout: float = LONG) -> list[Json]:
        """As ParameterServer.checkpoints, each with its `group`; no dense side is read for it."""
        return self.parts.reads.checkpoints(timeout)

    def checkpoints_and_descent(self, timeout: float = LONG) -> tuple[list[Json], str]:
        """`checkpoints`, and the one that the rows descend from, as History.descent says it."""
        return self.parts.reads.checkpoints_and_descent(timeout)

    def checkpoint_names(self, timeout: float = LONG) -> list[str]:
        """Of those over several shards that were taken in this history, the newest first."""
        return self.parts.reads.checkpoint_names(timeout)

    def checkpoint_named(
        self, tag: str | int | None, timeout: float = LONG
    ) -> tuple[int | None, str | None]:
        """(id, tag) of a checkpoint that is named by either; None is the current one."""
        return self.parts.reads.checkpoint_named(tag, timeout)

    def checkpoint_state_bytes(self, tag: str | int | None = None, timeout: float = LONG) -> int:
        """How many bytes `checkpoint_state` would give; no dense side is read for it."""
        return self.parts.reads.checkpoint_state_bytes(tag, timeout)

    def checkpoint_state(
        self, tag: str | int | None = None, timeout: float = LONG
    ) -> tuple[bytes | None, bytes | None, str]:
        """(model, reader, group) as they were given to `checkpoint`."""
        return self.parts.reads.checkpoint_state(tag, timeout)

    # Checkpoints and tables.

    def checkpoint(
        self,
        tag: str | None = None,
        model: bytes | None = None,
        reader: bytes | None = None,
        group: str = "",
        timeout: float = LONG,
        model_whole: str | None = None,
    ) -> Json:
        """Makes rows, marks, model and reader durable in one checkpoint; mutations wait meanwhile.

        Args:
            tag: its name; None is kept by keep_last.
            model: torch.save of a mapping; kept as it is.
            reader: JSON of a reader's position; kept as it is.
            group: names the checkpoint over several shards that this is a part of.
            timeout: seconds to wait for the turn.
            model_whole: of several shards: names the checkpoint whose dense side this one has.
                Where one is given, this checkpoint, on all shards. Else None, and on shard 0 what
                `model_whole` of all the others is: then it takes that one's dense side over, if
                its rows fit it, too.

        Returns:
            {"tag", "rows_written", "bytes", "seconds", "lineage", "model_whole", "sessions"}, the
            last a dict from client to (incarnation, sequence); "model_whole" names the checkpoint
            whose dense side fits this shard's rows, or is empty. "model_from" as
            ParameterServer.checkpoint says.

        Raises:
            ConfigError: a bad tag, or the shard's own. StoreError: disk full or an I/O error; the
                one before stays the newest. DeadlineError: the turn did not come.
        """
        return self.parts.checkpoints.take(tag, model, reader, group, timeout, model_whole)

    def move_name(self, move: NameMove, timeout: float = LONG) -> int | None:
        """Moves a promoted name; the id of the checkpoint that has it now, or None.

        Raises:
            ConfigError: as hps.ssd_store.promote; this is not the first of several shards.
        """
        return self.parts.checkpoints.move_name(move, timeout)

    def delete_checkpoint(self, tag: str | int, timeout: float = LONG) -> list[str]:
        """As ParameterServer.delete_checkpoint."""
        return self.parts.checkpoints.delete(tag, timeout)

    def prepare_restore(
        self, tag: str | int | None = None, group: str = "", timeout: float = LONG
    ) -> Json:
        """Makes sure that `restore` would find what it needs.

        Args:
            tag: name or id; None is the newest.
            group: that the checkpoint must belong to; empty is not checked.
            timeout: seconds.

        Returns:
            {"id", "tag", "group", "sessions"} of the checkpoint, the last two as `checkpoint` gives
            them.

        Raises:
            ConfigError: no such checkpoint. MismatchError: of another group, or another shard's.
            CorruptionError: a part of it is damaged.
        """
        return self.parts.checkpoints.prepare_restore(tag, group, timeout)

    def restore(
        self, tag: str | int | None = None, lineage: str | None = None, timeout: float = LONG
    ) -> tuple[bytes | None, bytes | None]:
        """Goes back to a checkpoint: its rows, its marks; every session ends.

        Whenever the process dies, the next opening finds the old state, or this one.

        Args:
            tag: name or id; None is the newest.
            lineage: names the history from now on, for all shards alike; None makes a name up. If
                the history has that name already, this is a repeat whose answer was lost: what
                came after the first stays.
            timeout: seconds to wait for the turn.

        Returns:
            (model, reader) as they were given to `checkpoint`.

        Raises:
            ConfigError, MismatchError, CorruptionError: as prepare_restore; nothing has changed.
            StoreError: the system refused. DeadlineError: the turn did not come.
        """
        return self.parts.checkpoints.restore(tag, lineage, timeout)

    # Versions for serving.

    def describe_part(self, created: float, timeout: float = LONG) -> PartDescription:
        """What a checkpoint is, by when it was created; no row is read.

        Raises:
            ConfigError: it is not kept any more. MismatchError: another store lies at the path.
        """
        return self.parts.publishing.describe(created, timeout)

    def write_part(self, order: PartOrder, wait: float) -> PartWriting:
        """Writes the files of the rows of a checkpoint, in a thread, which this begins.

        Asked for again, by its folder, it is the same writing. One that nobody asks for within a
        minute ends, and its files go.

        Args:
            order: what to write.
            wait: seconds to wait for its end.

        Returns:
            The writing, which may go on; its `error` is told there.

        Raises:
            ConfigError: the folder is being written with another order.
            CapacityError: as many are being written as there may be. StoreError: it is closed.
        """
        return self.parts.publishing.write(order, wait)

    def drop_part(self, place: str, folder: str, wait: float) -> None:
        """Ends a writing and removes its files; nothing to do where there is none.

        Args:
            place, folder: of the order.
            wait: seconds to wait for its end.
        """
        self.parts.publishing.drop(place, folder, wait)

    def create_table(self, table: TableConfig, timeout: float = LONG) -> bool:
        """Adds a table, durably; False if it is there already, just so but for its learning rate.

        Raises:
            MismatchError: it is there with other numbers. CapacityError: too many tables.
            ConfigError: it collides with another one, or the caches are too small for one more.
            StoreError: the disk is full. DeadlineError: the turn did not come.

        Cost: a checkpoint, and the store opened again; reads wait for that, too.
        """
        return self.parts.tables.create(table, timeout)

    def close(self, checkpoint: bool = True) -> None:
        """Closes store and log; nothing to do the second time.

        Args:
            checkpoint: save one named `last` if anything changed since the newest one. Without it,
                or if it fails, the log has what follows the newest one.

        Raises:
            StoreError: the checkpoint could not be made, or the log not be written; all is closed.
        """
        self.parts.publishing.give_up()
        try:
            self.parts.store.close(checkpoint)
        finally:
            self.parts.publishing.close()
