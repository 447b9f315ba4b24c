"""ClusterParameterServer: the verbs of ParameterServer over all ranks of a training.

Above it: users, SparseEmbedding, RowOptimizer, Pipeline, `hps.train`. Below it: this rank's own
`hps.ParameterServer`, which holds the rows that the rank owns in its three tiers, and a part for
each kind of verb: rows.py, rounds.py (pipelines), table_verbs.py (whole tables),
cluster/folder/checkpoints.py; they share exchanges.py (what passes from rank to rank) and
cluster/world/together.py. docs/cluster_protocol.md describes what passes between the ranks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from hps.checkpoint.blobs import LAST, Dense, ModelState
from hps.checkpoint.over_parts import CheckpointsOverParts
from hps.cluster.config import ClusterConfig
from hps.cluster.exchange.key_exchange import ExchangedKeys
from hps.cluster.exchanges import Exchanges
from hps.cluster.folder.checkpoints import RankParts
from hps.cluster.folder.folders import ClusterParts, check_same, open_parts
from hps.cluster.periods import PeriodVerbs
from hps.cluster.queued import QueuedRanks
from hps.cluster.rounds import Rounds
from hps.cluster.rows import RowVerbs
from hps.cluster.table_verbs import TableVerbs
from hps.cluster.world.together import Together, is_shared
from hps.cluster.world.torch_world import torch_world
from hps.cluster.world.world import World
from hps.common.arrays import HOST, AnyArray, HostArray
from hps.common.forked import is_inherited, refuse_in_children
from hps.common.json_text import Json, JsonView
from hps.common.sharding import ShardMap
from hps.config import Config, TableConfig
from hps.contracts.reads import PooledRead
from hps.contracts.training import Pending, QueuedServer, Ranks
from hps.contracts.updates import RowUpdate
from hps.errors import ConfigError
from hps.parameter_server.server import ParameterServer
from hps.table.rows_where import RowsWhere, WhereFields
from hps.types import PinnedRows, Pins

if TYPE_CHECKING:
    import torch

    from hps.cluster.folder.checkpoints import RankDraft
    from hps.common.bags import BagPooling
    from hps.ssd_store.cluster.catalog import ClusterCheckpoint


class ClusterParameterServer:
    """Tables whose keys are divided over all ranks, one process each, under torchrun.

    Every key has one owner rank, in whose tiers its row lies. **Its verbs are collective**: every
    rank calls them in the same order, with its own keys, of which it may have none; what one rank
    asks for may lie on any. They belong to the training loop's thread. With one rank everything
    goes straight to the rank's own server.

    Args:
        config: of the store; its path is the cluster's folder, its budgets are this rank's.
        world: all ranks; None takes those of torchrun, over gloo where rows lie in host memory.
        options: how rows and gradients travel; the same on every rank.

    Raises:
        ConfigError: torchrun has not started this process; configs that differ between ranks, or do
            not fit the store that is there.
        ClusterError: another rank is gone or does not answer.
        Others: as `hps.ParameterServer`, on every rank.

    >>> import hps, numpy, tempfile
    >>> from hps.cluster.world.local_world import local_worlds
    >>> (world,) = local_worlds(1)
    >>> tables = [hps.TableConfig(name="ads", dim=4)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = Config(path=folder, tables=tables)
    ...     with ClusterParameterServer(config, world) as server:
    ...         server.push("ads", numpy.array([7, 8], numpy.uint64), numpy.ones((2, 4), "f"))
    ...         server.num_rows("ads")
    2
    """

    checkpoint_blobs = None  # model and reader go from rank to rank together

    def __init__(
        self, config: Config, world: World | None = None, options: ClusterConfig | None = None
    ) -> None:
        is_owner = world is None
        if world is None:  # rows of host memory would go up to a GPU and down again
            on_host = config.gpu is None or config.gpu.device == HOST
            world = torch_world("gloo" if on_host else None)
        try:
            parts = open_parts(config, world)
        except BaseException as error:
            world.abort(f"opening {config.path}: {type(error).__name__}: {error}")
            raise
        self._is_owner = is_owner
        self._set_up(parts.local, world, options or ClusterConfig(), parts)

    @classmethod
    def over(
        cls, local: ParameterServer, world: World, options: ClusterConfig | None = None
    ) -> "ClusterParameterServer":
        """Over a server that the caller has opened, and closes; without folders, so that there are
        no checkpoints over all ranks.

        Raises:
            ConfigError: the ranks' tables or seeds differ.
        """
        check_same(world, local.config)
        server = cls.__new__(cls)
        server._is_owner = False
        server._set_up(local, world, options or ClusterConfig(), None)
        return server

    def _set_up(
        self,
        local: ParameterServer,
        world: World,
        options: ClusterConfig,
        opened: ClusterParts | None,
    ) -> None:
        where = f"{local.config.path}, rank {world.rank}"
        self.local = local
        self.world = world
        self.options = options
        self._together = Together(world, where)
        self._exchanges = Exchanges(local, self._together, options, where)
        self._rows = RowVerbs(local, self._together, self._exchanges)
        self._rounds = Rounds(self._together, self._exchanges, self._rows)
        self._table_verbs = TableVerbs(local, self._together, self._exchanges)
        self._periods = PeriodVerbs(local, self._together, self._exchanges)
        self._opened = opened
        self._checkpoints = None if opened is None else CheckpointsOverParts(RankParts(opened))
        self._is_closed = False
        refuse_in_children(self, where, ("world",))

    # What it has of its own server.

    @property
    def tables(self) -> dict[str, TableConfig]:
        """The tables' configs by name, in the order of their names: the same on every rank,
        however its own config has them."""
        return self._exchanges.tables

    @property
    def learning_rates(self) -> dict[str, float]:
        """By table; the same on every rank."""
        return self.local.learning_rates

    @property
    def device(self) -> str:
        """Where results lie, as torch names it."""
        return self.local.device

    @property
    def joint(self) -> None:
        """None: the rows of all ranks are looked up a table at a time."""

    @property
    def queued(self) -> QueuedServer | None:
        """Of rows on a device: batches of several tables at once; else None."""
        own = self.local.queued
        if self._together.is_alone or own is None:
            return own
        return QueuedRanks(own, self._rows)

    @property
    def has_gpu_cache(self) -> bool:
        """True if batches pass through a gpu_cache: then `warm` goes before `pin`."""
        return self.local.has_gpu_cache

    @property
    def pins(self) -> int:
        """Pins on this rank's slots; 0 when no batch is in flight."""
        return self.local.pins

    @property
    def num_open_pipelines(self) -> int:
        """Pipelines whose `with` block is entered, on this rank."""
        return self.local.num_open_pipelines

    @property
    def shard_map(self) -> ShardMap:
        """Which rank owns which keys."""
        return self._exchanges.shard_map

    @property
    def pending_gradients(self) -> Pending | None:
        """Of the training loop: see hps.nn.gradients."""
        return self.local.pending_gradients

    @pending_gradients.setter
    def pending_gradients(self, pending: Pending | None) -> None:
        self.local.pending_gradients = pending

    # Rows.

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, create: bool = False
    ) -> AnyArray:
        """Embeddings of this rank's keys; every rank calls it, with its own keys.

        Args and Returns: as `hps.ParameterServer.pull`.

        Raises:
            ClusterError: another rank is gone or does not answer.
            Others: as `hps.ParameterServer.pull`.

        Cost: distinct keys travel to their owners, their rows back; one copy of [L, dim].
        """
        return self._rows.pull(table, keys, out, create)

    def pull_pooled(
        self, table: str, keys: AnyArray, pooling: "BagPooling", out: "torch.Tensor"
    ) -> None:
        """Sums or means of bags of this rank's keys; every rank calls it, with its own keys.

        Args: as `hps.ParameterServer.pull_pooled`.

        Raises:
            ClusterError: another rank is gone or does not answer.
            Others: as `hps.ParameterServer.pull_pooled`.

        Cost: distinct keys travel to their owners, their rows back, and are pooled here.
        """
        self._rows.pull_pooled(table, keys, pooling, out)

    def pull_tables(self, reads: Sequence[PooledRead]) -> None:
        """As pull_pooled, of several tables; their keys and rows travel in one message a rank.

        Raises:
            ConfigError: a table is given twice, or the ranks give different ones; others as
                pull_pooled.
        """
        self._rows.pull_tables(reads)

    def push(
        self, table: str, keys: AnyArray, grads: AnyArray, labels: AnyArray | None = None
    ) -> None:
        """Sums the gradients of each key over all ranks, divides them by the number of ranks, then
        runs its optimizer once; every rank calls it, with its own keys. Occurrences and their
        labels count as whole numbers of all ranks.

        Args: as `hps.ParameterServer.push`.

        Raises:
            NonFiniteError: a rank's sum is NaN or infinite; names rank and key; no row of any rank
                has changed.
            ClusterError: another rank is gone or does not answer.
            Others: as `hps.ParameterServer.push`.
        """
        self._rows.push(table, keys, grads, labels)

    # Batches in flight: SparseEmbedding, RowOptimizer and Pipeline.

    @property
    def ranks(self) -> Ranks | None:
        """Those that train together: then a pipeline exchanges the keys of its batches by it, and
        every step calls `apply`, whatever it has. None if this is the only one."""
        return self._rounds if self._rounds.exchanges_keys else None

    def agree(self, flag: bool) -> bool:
        """True if it is on any rank; every rank calls it."""
        return self._rounds.agree(flag)

    def pin(self, table: str, keys: AnyArray | ExchangedKeys) -> PinnedRows:
        """Makes the rows that the ranks asked this one for ready, and holds them.

        Args:
            table: its name.
            keys: what `ranks.exchange` gave for it: then it waits for no other rank, in any thread.
                Or bare keys: then every rank calls it, with its own, in the training loop's thread.

        Raises:
            CapacityError: the cache cannot hold all of them at once; nothing was taken.
            Others: as `hps.ParameterServer.pin`.
        """
        return self._rows.pin(table, keys)

    def warm(self, table: str, keys: AnyArray | ExchangedKeys) -> Pins:
        """As `hps.ParameterServer.warm`, for the keys that the ranks asked this one for."""
        return self._rows.warm(table, keys)

    def want(self, table: str, keys: AnyArray | ExchangedKeys) -> None:
        """As `hps.ParameterServer.want`, for the keys that the ranks asked this one for."""
        self._rows.want(table, keys)

    def holds(self, rows: PinnedRows) -> bool:
        """True if this server made these rows ready."""
        return self._rows.holds(rows)

    def apply(
        self, updates: Sequence[RowUpdate], applied: Callable[[], object] | None = None
    ) -> None:
        """One optimizer step of several tables, over all ranks: all rows or, if a gradient of any
        rank is bad, none on any.

        Every rank calls it, also with no update. A key's gradients are summed on each rank, divided
        by the number of ranks, and summed by the owner in the order of the ranks.

        Args: as `hps.ParameterServer.apply`.

        Raises:
            NonFiniteError: a rank's sum is NaN or infinite, or the step would make a row so; names
                rank, table and key; on every rank. No row of any rank has changed.
            ClusterError: another rank is gone or does not answer.
            Others: as `hps.ParameterServer.apply`.
        """
        self._rows.apply(updates, applied)

    # Whole tables.

    def assign(
        self,
        table: str,
        keys: AnyArray,
        rows: AnyArray,
        state: AnyArray | None = None,
        statistics: Mapping[str, AnyArray] | None = None,
    ) -> None:
        """Sets rows outright; every rank calls it, with its own keys.

        Of a key that occurs twice the last row counts, of several ranks' that of the highest rank.
        Either all ranks give a state or none does, and so with statistics.

        Args: as `hps.ParameterServer.assign`.

        Raises:
            ConfigError, StoreError: as there; of a rank, then ClusterError on the others.
            NonFiniteError, ConfigError of a state: as there, on every rank; no rank has changed.
        """
        self._table_verbs.assign(table, keys, rows, state, statistics)

    def contains(self, table: str, keys: AnyArray) -> AnyArray:
        """Which keys are stored on any rank: bool [L]; every rank calls it, with its own keys."""
        return self._table_verbs.contains(table, keys)

    def erase(self, table: str, keys: AnyArray) -> AnyArray:
        """Drops keys from every tier of their owners; every rank calls it, with its own keys.

        Returns:
            bool [L]: where a stored row was; a tensor if the keys were one.

        Raises:
            ConfigError: a batch in flight has one of them pinned at its owner; that rank has erased
                nothing, and the error comes on every rank.
        """
        return self._table_verbs.erase(table, keys)

    def erase_where(self, table: str, **where: Unpack[WhereFields]) -> int:
        """As `hps.ParameterServer.erase_where`, of all ranks; every rank calls it with the same.

        Returns:
            Rows that were erased, of all ranks.

        Raises:
            ConfigError: as there; all ranks look first, and no rank has erased a row.
        """
        return self._table_verbs.erase_where(table, RowsWhere(**where))

    def num_rows(self, table: str) -> int:
        """Stored rows of a table, of all ranks; every rank calls it."""
        return self._table_verbs.num_rows(table)

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row of all ranks; every rank calls it.

        It is that of one store with the same rows.
        """
        return self._table_verbs.digest(table)

    def items(
        self, table: str, batch: int = 65536, state: bool = False, statistics: bool = False
    ) -> Iterator[tuple[HostArray, ...]]:
        """Every stored row *of this rank* once; those of all ranks together are the table.

        Not collective. Pieces and errors: as `hps.ParameterServer.items`.
        """
        return self._table_verbs.items(table, batch, state, statistics)

    def stats(self) -> Json:
        """Counters *of this rank*: of each tier, then of each table, then what it sent and how long
        it waited for the others. Not collective."""
        return self._table_verbs.stats()

    # Checkpoints.

    @property
    def is_changed(self) -> bool:
        """True if this rank's rows may have changed since the newest checkpoint."""
        is_unsaved = self._opened is not None and self._opened.is_unsaved
        return is_unsaved or self.local.is_changed

    def checkpoint(
        self,
        tag: str | None = None,
        model: ModelState | None = None,
        reader: JsonView | None = None,
    ) -> Json:
        """Makes everything durable in one checkpoint over all ranks: rows, model, reader.

        Collective; between two steps, the same on all ranks. Without model and reader it takes over
        those of the checkpoint that the rows descend from, if no rank has trained since. What
        narrow formats have rounded away so far is forgotten, so that training goes on in the bits
        in which it is resumed.

        Args:
            tag: its name; it replaces an older one of that name. None: kept by keep_last.
            model: what torch.load(weights_only=True) reads; that of rank 0 is kept.
            reader: the position of a reader; JSON; that of rank 0 is kept.

        Returns:
            {"tag", "rows_written", "bytes", "seconds"}, of all ranks together; "model_from" as
            hps.ParameterServer.checkpoint says.

        Raises:
            ConfigError: a bad tag, a promoted name, or tags that differ; a model or reader that
                could not be read back.
            StoreError: a rank's disk is full, or refused; the one before it stays the newest.
            NonFiniteError: on a GPU, of the last step.
            ClusterError: a rank is gone; an opening finds this one or the one before it.

        Each is raised on every rank.
        """
        info = self._kept("checkpoint").checkpoint(tag, model, reader)
        self._exchanges.gradients.forget_residuals()
        return info

    def restore(self, tag: str | int | None = None) -> Dense:
        """Goes back to a checkpoint, on all ranks or none; it is the newest from now on.

        Collective. Of one that another number of ranks took, the rows move to their owners.

        Args:
            tag: its tag, promoted name, or id as checkpoints() lists it; None is the newest.

        Returns:
            (model, reader) as they were given to checkpoint(), on every rank; each None if not.

        Raises:
            ConfigError: no such checkpoint; a pipeline is open on some rank.
            CorruptionError: a part is damaged.
            StoreError: CLUSTER could not be written; a part of other ranks is seen by no rank.

        If some ranks went back already, no checkpoint is taken until a restore succeeds.
        """
        dense = self._kept("restore").restore(tag)
        self._exchanges.gradients.forget_residuals()
        self._exchanges.rows_change()
        return dense

    def checkpoint_state(self, tag: str | int | None = None) -> Dense:
        """(model, reader) of a checkpoint, without going back to it; the same on every rank.

        Collective.

        Args:
            tag: its tag, promoted name, or id as checkpoints() lists it; None is the newest.

        Raises:
            ConfigError: no such checkpoint. CorruptionError: it is damaged.
            StoreError: it is of other ranks, and no rank sees the first of its parts.
        """
        if self._checkpoints is None and tag is None:
            return None, None  # there is none
        return self._kept("checkpoint_state").checkpoint_state(tag)

    def checkpoints(self) -> list[Json]:
        """Those that are kept, oldest first: tag (or None), id, rows, bytes, created, ranks, and
        names (that they were promoted to), as of the last collective verb of a checkpoint.

        Not collective: every rank knows them.
        """
        return [] if self._checkpoints is None else self._checkpoints.checkpoints()

    def delete_checkpoint(self, tag: str | int) -> list[str]:
        """Deletes a checkpoint, named by its tag or its id.

        Collective.

        Returns:
            The living readers of it on all ranks, in words; its files stay until they close.

        Raises:
            ConfigError: no such checkpoint, or None; it has a promoted name.
            StoreError: CLUSTER could not be written.
        """
        return self._kept("delete_checkpoint").delete_checkpoint(tag)

    # Periods.

    @property
    def period(self) -> int:
        """That updates count in, the same on every rank. Not collective."""
        return self.local.period

    def advance_period(self, to: int | None = None) -> int:
        """Begins the next period, or a later one, on all ranks or none; every rank calls it.

        Args and Returns: as `hps.ParameterServer.advance_period`.

        Raises:
            ConfigError: as there, or the ranks give different ones; on every rank, and none began.
                Or they are in different periods, as the last step failed on one of them, its disk
                full, say: `to`, the latest of those, brings all into one.
            ClusterError: another rank is gone or does not answer.
        """
        return self._periods.advance(to)

    def statistics(self, table: str, keys: AnyArray) -> dict[str, AnyArray]:
        """What the rows of this rank's keys have counted, whichever rank owns them; every rank
        calls it, with its own keys.

        Args, Returns and Raises: as `hps.ParameterServer.statistics`; ClusterError: another rank
            is gone or does not answer.
        """
        return self._periods.statistics(table, keys)

    # Lifetime.

    def close(self) -> None:
        """Closes this rank's store without saving, and leaves the other ranks.

        Every rank calls it. One that still waits for this rank then raises ClusterError.

        Raises:
            ClusterError: the ranks were joined for this server, and another one goes on.
        """
        is_closed, self._is_closed = self._is_closed, True
        try:
            if not (is_closed or self._together.is_alone or self.world.is_aborted):
                self._leave("has closed its server")
        finally:
            self._close_parts()
        if self._is_owner:
            self.world.close()

    def __enter__(self) -> "ClusterParameterServer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and is_inherited(self.world):
            return  # of a forked child: the ranks are none of its business
        try:
            if error is not None:
                if not is_shared(error):
                    self._together.abort("the training", error)
            elif not self._is_closed:
                if not self._rounds.has_pipeline:  # else its network stage still uses the rounds
                    self._rounds.meet("has left the training")
                if self._opened is not None and self.world.control.any(self.is_changed):
                    self.checkpoint(tag=LAST)
        finally:
            self._is_closed = True
            self._close_parts()
        if error is None and self._is_owner:
            self.world.close()

    def _close_parts(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _leave(self, what: str) -> None:
        """By a world of its own it leaves together with the others: what ends then is also what
        they are joined by. A world that was given goes on, and only this server is over."""
        if self._is_owner:
            self._rounds.meet(what)
        else:
            self._rounds.halt(what)

    def _kept(self, verb: str) -> "CheckpointsOverParts[ClusterCheckpoint, RankDraft]":
        """The checkpoints over all ranks.

        Raises:
            ConfigError: there are none, as there is no folder of all ranks.
        """
        if self._checkpoints is None:
            raise ConfigError(
                f"{verb}: this server was made by ClusterParameterServer.over, without a folder of "
                "all ranks, and has no checkpoints over them; take those of each rank's own server"
            )
        return self._checkpoints
