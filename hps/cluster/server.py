"""ClusterParameterServer: the verbs of ParameterServer over all ranks of a training.

Above it: users, SparseEmbedding, RowOptimizer, Pipeline, `hps.train`. Below it: this rank's own
`hps.ParameterServer`, which holds the rows that the rank owns in its three tiers; key_exchange.py,
cluster_rows.py and gradient_exchange.py, which bring keys, rows and gradients from rank to rank;
table_verbs.py (whole tables). docs/cluster_protocol.md describes what passes between the ranks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from hps.arrays import as_keys, as_output, is_tensor, on_host
from hps.batch_rows import RowUpdate
from hps.checkpoint import LAST
from hps.cluster.agreement import attempt
from hps.cluster.cluster_rows import ClusterRows, RowFetcher
from hps.cluster.config import ClusterConfig
from hps.cluster.cuts import ClusterCuts
from hps.cluster.float_exchange import FloatExchange
from hps.cluster.folders import ClusterParts, check_same, open_parts
from hps.cluster.gradient_exchange import GradientExchange, OwnedUpdate
from hps.cluster.hot_rows import HotRows
from hps.cluster.key_exchange import ExchangedKeys, KeyExchange, OwnKeys, Plans, swap_keys
from hps.cluster.table_verbs import TableVerbs
from hps.cluster.torch_world import torch_world
from hps.cluster.world import World
from hps.config import Config
from hps.errors import ConfigError, HpsError
from hps.forked import is_inherited, refuse_in_children
from hps.parameter_server import ParameterServer
from hps.row_server import PinnedRows
from hps.service.wire import Wire
from hps.sharding import ShardMap

if TYPE_CHECKING:
    from hps.pipeline.pins import Pins


class ClusterParameterServer(ClusterCuts, TableVerbs):
    """Tables whose keys are divided over all ranks, one process each, under torchrun.

    Every key has one owner rank, in whose tiers its row lies. **Its verbs are collective**: every
    rank calls them in the same order, with its own keys, of which it may have none; what one rank
    asks for may lie on any. They belong to the training loop's thread. With one rank everything
    goes straight to the rank's own server.

    Args:
        config: of the store; its path is the cluster's folder, its budgets are this rank's.
        world: all ranks; None takes those of torchrun.
        options: how rows and gradients travel; the same on every rank.

    Raises:
        ConfigError: torchrun has not started this process; configs that differ between ranks, or do
            not fit the store that is there.
        ClusterError: another rank is gone or does not answer.
        Others: as `hps.ParameterServer`, on every rank.

    >>> import hps, numpy, tempfile
    >>> from hps.cluster.local_world import local_worlds
    >>> (world,) = local_worlds(1)
    >>> tables = [hps.TableConfig(name="ads", dim=4)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = Config(path=folder, tables=tables)
    ...     with ClusterParameterServer(config, world) as server:
    ...         server.push("ads", numpy.array([7, 8], numpy.uint64), numpy.ones((2, 4), "f"))
    ...         server.num_rows("ads")
    2
    """

    def __init__(
        self, config: Config, world: World | None = None, options: ClusterConfig | None = None
    ) -> None:
        is_owner = world is None
        world = torch_world() if world is None else world
        try:
            parts = open_parts(config, world)
        except BaseException as error:
            world.abort(f"opening {config.path}: {type(error).__name__}: {error}")
            raise
        self.parts = parts
        self._opened: ClusterParts | None = parts
        self._is_owner = is_owner
        self._set_up(parts.local, world, options or ClusterConfig())

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
        server._opened = None
        server._is_owner = False
        server._set_up(local, world, options or ClusterConfig())
        return server

    def _set_up(self, local: ParameterServer, world: World, options: ClusterConfig) -> None:
        _check_same(world, asdict(options))
        self.local = local
        self.world = world
        self.options = options
        self.shard_map = ShardMap(world.size)
        self._plans = Plans(self.shard_map.owners().tolist())
        # In one order on all ranks: messages hold table after table, without their names, and a
        # loop over the tables calls collective verbs.
        self._tables = tables = dict(sorted(local.tables.items()))
        self._keys = KeyExchange(world.keys, list(tables), self._plans)
        floats = FloatExchange(world.rows, Wire.named(options.row_wire))
        self._fetcher = RowFetcher(floats, local.device)
        self._gradients = GradientExchange(
            world,
            tables,
            local.learning_rates,
            local.device,
            Wire.named(options.gradient_wire),
        )
        self._hot: HotRows | None = None
        if options.hot_rows and world.size > 1:
            self._hot = HotRows(world, local, floats, options.hot_rows)
        self._pipeline: object | None = None  # that is open
        self._num_steps = 0
        self._is_closed = False
        names = ("world", "_keys", "_gradients", "_fetcher", "_hot")
        refuse_in_children(self, f"{local.config.path}, rank {world.rank}", names)

    # What it has of its own server.

    @property
    def tables(self) -> Any:
        """The tables' configs by name, in the order of their names: the same on every rank,
        however its own config has them."""
        return self._tables

    @property
    def learning_rates(self) -> dict[str, float]:
        """By table; the same on every rank."""
        return self.local.learning_rates

    @property
    def device(self) -> str:
        """Where results lie, as torch names it."""
        return self.local.device

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
    def pending_gradients(self) -> Any:
        """Of the training loop: see hps.gradients."""
        return self.local.pending_gradients

    @pending_gradients.setter
    def pending_gradients(self, pending: Any) -> None:
        self.local.pending_gradients = pending

    # Rows.

    def pull(self, table: str, keys: Any, out: Any = None, create: bool = False) -> Any:
        """Embeddings of this rank's keys; every rank calls it, with its own keys.

        Args and Returns: as `hps.ParameterServer.pull`.

        Raises:
            ClusterError: another rank is gone or does not answer.
            Others: as `hps.ParameterServer.pull`.

        Cost: distinct keys travel to their owners, their rows back; one copy of [L, dim].
        """
        if self._is_alone:
            return self.local.pull(table, keys, out, create)
        array, dim = as_keys(keys, self.device), self._table(table).dim
        rows = self._fetcher.new_rows(len(array), dim) if out is None else out
        as_output(rows, len(array), dim, self.device)
        exchanged = self._exchange_now(table, on_host(array))
        if create:
            self._rows_change()
        found = self._agreed(
            f"pull of table {table!r}",
            lambda: self.local.pull(table, exchanged.received, create=create),
        )
        with self._together("pull"):
            self._fetcher.fetch(exchanged, found, rows)
        return rows if out is not None or is_tensor(keys) else rows.cpu().numpy()

    def push(self, table: str, keys: Any, grads: Any) -> None:
        """Sums the gradients of each key over all ranks, divides them by the number of ranks, then
        runs its optimizer once; every rank calls it, with its own keys.

        Args: as `hps.ParameterServer.push`.

        Raises:
            NonFiniteError: a rank's sum is NaN or infinite; names rank and key; no row of any rank
                has changed.
            ClusterError: another rank is gone or does not answer.
            Others: as `hps.ParameterServer.push`.
        """
        if self._is_alone:
            return self.local.push(table, keys, grads)
        self._table(table)
        owned = self._begin([RowUpdate(table, keys, grads)])
        self._rows_change()
        with self._together("push"):
            sums = self._gradients.send(owned)
        if owned:
            (update,), (grads_of,) = owned, sums
            what = f"push to table {table!r}"
            if self._gradients.may_overflow:
                held: list[PinnedRows] = []
                try:
                    rows = self._local_rows(update, held)
                    whole = [RowUpdate(table, update.keys, grads_of, rows)]
                    with self._together(what):
                        self.local.apply(whole, checked=self._check_together)
                finally:
                    for rows in held:
                        rows.release()
                return
            self._agreed(what, lambda: self.local.push(table, update.keys, grads_of))

    # Batches in flight: SparseEmbedding, RowOptimizer and Pipeline.

    @property
    def exchanges_keys(self) -> bool:
        """True if a pipeline's batches pass through `divide` and `exchange`, and every step calls
        `apply`, whatever it has."""
        return not self._is_alone

    def divide(self, keys: Mapping[str, Any]) -> dict[str, OwnKeys]:
        """Deduplicates a batch's keys of each table, and finds their owners. From any thread.

        Raises:
            ConfigError: unknown table, wrong dtype or shape.
        """
        for table in keys:
            self._table(table)
        return self._keys.divide({name: on_host(as_keys(of)) for name, of in keys.items()})

    def exchange(self, own: Mapping[str, OwnKeys] | None) -> dict[str, ExchangedKeys] | None:
        """One round of all ranks' pipelines, in the network stage; None: a rank has ended it.

        Raises:
            ClusterError: another rank is gone or does not answer.
            ConfigError: the ranks' batches are of different tables; on every rank.
        """
        return self._keys.exchange(own)

    def pipeline_opened(self, pipeline: object) -> None:
        """A pipeline begins: its network stage calls `exchange` from now on.

        Raises:
            ConfigError: another one is open.
        """
        if self._pipeline is not None:
            raise ConfigError(
                "Pipeline: one is open already; over several ranks there is one at a time, for its "
                "rounds of keys run beside the loop: leave its `with` block first"
            )
        self._pipeline = pipeline
        self._keys.open()

    def pipeline_closing(self, pipeline: object, error: BaseException | None) -> None:
        """A pipeline's block has been left: by an error that other ranks do not have, no rank is to
        wait for this one any more."""
        if pipeline is not self._pipeline or error is None or _is_shared(error):
            return
        if not isinstance(error, GeneratorExit):  # a generator around the block was left
            self._pipeline = None
            self._abort("the pipeline", error)

    def pipeline_closed(self, pipeline: object) -> None:
        """The closing round, in which the ranks agree on the last batch that all of them had.

        Raises:
            ClusterError: another rank is gone or does not answer.
        """
        if pipeline is not self._pipeline:
            return
        self._pipeline = None
        self._meet("has left its pipeline")

    def pin(self, table: str, keys: Any) -> PinnedRows:
        """Makes the rows that the ranks asked this one for ready, and holds them.

        Args:
            table: its name.
            keys: what `exchange` gave for it: then it waits for no other rank, in any thread. Or
                bare keys: then every rank calls it, with its own, in the training loop's thread.

        Raises:
            CapacityError: the cache cannot hold all of them at once; nothing was taken.
            Others: as `hps.ParameterServer.pin`.
        """
        if self._is_alone:
            return self.local.pin(table, keys)
        exchanged = keys
        if not isinstance(keys, ExchangedKeys):
            exchanged = self._exchange_now(table, on_host(as_keys(keys, self.device)))
        local = self.local.pin(table, exchanged.received)
        hot = None if self._hot is None else self._hot.tables[table]
        dim = self._table(table).dim
        return ClusterRows(table, exchanged, local, self._fetcher, dim, hot)

    def warm(self, table: str, keys: Any) -> "Pins":
        """As `hps.ParameterServer.warm`, for the keys that the ranks asked this one for."""
        return self.local.warm(table, _received(keys))

    def want(self, table: str, keys: Any) -> None:
        """As `hps.ParameterServer.want`, for the keys that the ranks asked this one for."""
        self.local.want(table, _received(keys))

    def holds(self, rows: PinnedRows) -> bool:
        """True if this server made these rows ready."""
        if isinstance(rows, ClusterRows):
            return rows.fetcher is self._fetcher
        return self._is_alone and self.local.holds(rows)

    def agree(self, flag: bool) -> bool:
        """True if it is on any rank; every rank calls it."""
        if self._is_alone:
            return flag
        with self._together("an agreement"):
            return self.world.control.any(flag)

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
        if self._is_alone:
            return self.local.apply(updates, applied)
        for update in updates:
            if update.rows is not None and not self.holds(update.rows):
                raise ConfigError(
                    f"apply: the rows given for table {update.table!r} are those of another "
                    "server; pass rows=None to have them looked up"
                )
        owned = self._begin(updates)
        held: list[PinnedRows] = []
        try:
            local = [self._local_rows(update, held) for update in owned]
            with self._together("apply"):
                sums = self._gradients.send(owned)
                self.local.apply(
                    [
                        RowUpdate(of.share.table, of.keys, grads, rows)
                        for of, grads, rows in zip(owned, sums, local, strict=True)
                    ],
                    applied,
                    self._check_together if self._gradients.may_overflow else None,
                )
                if self._hot is not None:
                    self._hot.step_done({of.share.table: of.keys for of in owned})
            self._num_steps += 1
        finally:
            for rows in held:
                rows.release()

    # Cuts.

    def checkpoint(
        self,
        tag: str | None = None,
        model: Mapping[str, Any] | None = None,
        reader: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """As ClusterCuts has it; what narrow formats have rounded away so far is forgotten, so that
        training goes on in the bits in which it is resumed."""
        info = super().checkpoint(tag, model, reader)
        self._gradients.forget_residuals()
        return info

    def restore(self, tag: str | int | None = None) -> tuple[Any, Any]:
        """As ClusterCuts has it."""
        dense = super().restore(tag)
        self._gradients.forget_residuals()
        self._rows_change()
        return dense

    # Lifetime.

    def close(self) -> None:
        """Closes this rank's store without saving, and leaves the other ranks.

        Every rank calls it. One that still waits for this rank then raises ClusterError.

        Raises:
            ClusterError: the ranks were joined for this server, and another one goes on.
        """
        is_closed, self._is_closed = self._is_closed, True
        try:
            if not (is_closed or self._is_alone or self.world.is_aborted):
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
                if not _is_shared(error):
                    self._abort("the training", error)
            elif not self._is_closed:
                if self._pipeline is None:  # else its network stage still uses the rounds
                    self._meet("has left the training")
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

    # Parts.

    @property
    def _is_alone(self) -> bool:
        return self.world.size == 1

    def _meet(self, what: str) -> None:
        """Waits until all ranks have come here. Who goes on with its loop is told at once: also one
        whose network stage has no room to come to the closing round."""
        if self._is_alone:
            return self._keys.close()
        with self._together("the end of a loop"):
            self.world.halt(f"{what} after {self._num_steps} step(s)")
            self._keys.close()
            self._keys.meet()
            self.world.go_on()

    def _leave(self, what: str) -> None:
        """By a world of its own it leaves together with the others: what ends then is also what
        they are joined by. A world that was given goes on, and only this server is over."""
        if self._is_owner:
            self._meet(what)
        else:
            self.world.halt(f"{what} after {self._num_steps} step(s)", is_last=True)

    def _rows_change(self) -> None:
        """By something else than a step: what other ranks hold of them is no longer what they are.
        Called on every rank."""
        if self._hot is not None:
            self._hot.clear()

    def _begin(self, updates: Sequence[RowUpdate]) -> list[OwnedUpdate]:
        shares = self._gradients.shares(updates, self._plans)
        for share in shares:
            share.may_overflow |= self.local.tries_updates(share.table)
        with self._together("apply"):
            return self._gradients.agree(shares)

    def _check_together(self, check: Callable[[], None]) -> None:
        """Of a step that may overflow a row: no rank changes one before all have looked."""
        self._agreed("apply", check)

    def _local_rows(self, update: OwnedUpdate, held: list[PinnedRows]) -> PinnedRows:
        """The pinned rows of an update's keys; pins them where they are not, on every rank."""
        if update.rows is not None:
            return update.rows.local
        table = update.share.table

        def pin() -> None:
            held.append(self.local.pin_now(table, update.keys))

        self._agreed(f"pin of table {table!r}", pin)
        return held[-1]

    def _exchange_now(self, table: str, keys: Any) -> ExchangedKeys:
        """A round outside a pipeline, of one table; every rank calls it."""
        own = OwnKeys(keys, self._plans)
        with self._together(f"keys of table {table!r}"):
            counts = self.world.control.exchange_counts(own.counts)
            swapped = swap_keys(self.world.control, {table: own}, np.array(counts)[:, None])
        return swapped[table]

    def _agreed(self, what: str, act: Callable[[], Any]) -> Any:
        """What `act` returns here; where it fails on a rank, every rank raises."""
        found: list[Any] = []

        def keep() -> None:
            found.append(act())

        failure = attempt(self.world, what, keep).failure
        if failure is None:
            return found[0]
        if isinstance(failure, HpsError):
            failure.is_shared = True
        raise failure

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        """What all ranks are in: an error of this rank alone ends it for the others, too."""
        try:
            yield
        except BaseException as error:
            if not _is_shared(error):
                self._abort(what, error)
            raise

    def _abort(self, what: str, error: BaseException | None) -> None:
        self.world.abort(f"{what}: {type(error).__name__}: {error}")


def _is_shared(error: BaseException) -> bool:
    """True if every rank has raised it, or a rank that all know of."""
    return isinstance(error, HpsError) and error.is_shared


def _check_same(world: World, options: dict[str, Any]) -> None:
    """Raises ConfigError on every rank unless all have the same options."""
    for rank, others in enumerate(world.control.gather(options)):
        for name, value in others.items():
            if value != options[name]:
                refusal = ConfigError(
                    f"ClusterConfig.{name} is {value!r} on rank {rank} and {options[name]!r} on "
                    f"rank {world.rank}; give every rank the same"
                )
                refusal.is_shared = True
                raise refusal


def _received(keys: Any) -> Any:
    return keys.received if isinstance(keys, ExchangedKeys) else keys
