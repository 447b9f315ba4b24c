"""ParameterServer: tables of embedding rows over a GPU, DRAM and SSD, as one object with pull and
push.

Above it: users, SparseEmbedding, RowOptimizer, Pipeline, the command line. Below it: the parts that
do it, made by opening.py: tables.py (stacks and locks), rows.py (verbs by key), batches.py (batches
in flight), checkpoints.py, logged.py (what a service's log holds), publishing.py (versions for
serving). Each verb here is one call of a part; what it promises is said here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from hps.checkpoint.blobs import LAST, Dense, ModelState, decode_dense
from hps.common.arrays import AnyArray, HostArray
from hps.common.forked import is_inherited
from hps.common.json_text import Json, JsonView
from hps.config import Config, TableConfig
from hps.contracts.reads import PooledRead
from hps.contracts.training import Pending, QueuedServer
from hps.contracts.updates import RowUpdate
from hps.dram_cache.tier import WarmRows
from hps.parameter_server.erasing import erase_where
from hps.parameter_server.opening import Tiers, View, open_parts
from hps.table.rows_where import RowsWhere, WhereFields
from hps.tiers.batch_rows import BatchRows
from hps.types import PinnedRows

if TYPE_CHECKING:
    import torch

    from hps.common.bags import BagPooling
    from hps.contracts.joint import JointServer
    from hps.publish.asked import Publishable

__all__ = ["BatchRows", "ParameterServer", "RowUpdate"]


class ParameterServer:
    """Embedding rows of every table, pulled by key and updated by gradient, larger than memory.

    Any number of threads may read, and get what each would get alone (docs/reliability.md: which
    verbs may run beside which). Those that change rows, and checkpoints, are worked off one
    at a time; reads and `pin` run beside them and beside each other, but for the moments in which
    memory moves, and wait for an SSD read only where they miss a row themselves.

    Args:
        config: the store and its budgets. A store that exists must fit it.

    What is open is the folder that was there at the opening. Where it, or its LOCK, is not at its
    path any more, nothing is committed (StoreError, ESTALE) and the server takes no more changes;
    see docs/reliability.md. In a forked child every verb raises StoreError.

    Raises:
        ConfigError: the config does not fit the store that is there, or a budget is too small.
        StoreError: another process has the store open for writing (names its pid), or the operating
            system refused.
        CorruptionError: the newest checkpoint is damaged.

    >>> import numpy, tempfile
    >>> tables = [TableConfig(name="ads", dim=4)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ParameterServer(Config(path=folder, tables=tables)) as server:
    ...         keys = numpy.array([7, 8, 7], numpy.uint64)
    ...         server.push("ads", keys, numpy.ones((3, 4), numpy.float32))
    ...         server.pull("ads", keys).shape, server.num_rows("ads")
    ((3, 4), 2)
    """

    def __init__(
        self, config: Config, *, _tiers: Tiers | None = None, _view: View | None = None
    ) -> None:
        self.parts = open_parts(config, _tiers or Tiers(), _view)
        tables = self.parts.tables
        self.config = tables.config
        self.tables: dict[str, TableConfig] = tables.configs
        self.learning_rates = tables.learning_rates
        # Where the top tier's rows lie, as torch names it: results for keys that lie there do, too.
        self.device = tables.device

    # Rows.

    def pull(
        self, table: str, keys: AnyArray, out: AnyArray | None = None, create: bool = False
    ) -> AnyArray:
        """Embeddings of keys; an absent key reads as its initial value.

        Args:
            table: its name.
            keys: int64 or uint64 [L], numpy array or CPU tensor, duplicates allowed.
            out: float32 [L, dim], contiguous, to write into; None takes a buffer of the pool.
            create: absent keys are stored as they read.

        Returns:
            float32 [L, dim], `out` itself if given, else a tensor if the keys were one. It is the
            caller's: no later call writes into it while the caller holds it.

        Raises:
            ConfigError: unknown table, wrong dtype or shape; create on a read-only server.
            StoreError, CorruptionError: a row could not be read, or (create) not be stored.

        Cost: one pass over L keys; rows that are not in DRAM are read from SSD, all at once.
        """
        return self.parts.rows.pull(table, keys, out, create)

    def pull_pooled(
        self, table: str, keys: AnyArray, pooling: "BagPooling", out: "torch.Tensor"
    ) -> None:
        """Sums or means of bags of keys, as `hps.SparseEmbedding` reads them.

        Args:
            table: its name.
            keys: int64 or uint64 [L], duplicates allowed.
            pooling: the bags of the keys, and how they are pooled, on `device`.
            out: float32 [B, F * dim], contiguous, on `device`, written.

        Raises:
            ConfigError: unknown table, wrong dtype or shape.
            StoreError, CorruptionError: a row could not be read.

        Cost: one read of each distinct row, one addition an occurrence; no [L, dim] is made.
        """
        self.parts.rows.pull_pooled(table, keys, pooling, out)

    def pull_tables(self, reads: Sequence[PooledRead]) -> None:
        """As pull_pooled, of several tables, one after the other."""
        self.parts.rows.pull_tables(reads)

    def push(
        self, table: str, keys: AnyArray, grads: AnyArray, labels: AnyArray | None = None
    ) -> None:
        """Sums the gradients of each key in order of occurrence, then runs its optimizer once.

        A push with the keys of the last pull reuses its look-up. Absent keys are created. In a
        table with statistics every occurrence counts as a show of its key.

        Args:
            table: its name.
            keys: int64 or uint64 [L], duplicates allowed.
            grads: float32 [L, dim], one row an occurrence.
            labels: float32 [L], 1 where an occurrence is a click, else 0; None: no clicks.

        Raises:
            NonFiniteError: a sum is NaN or infinite, or the step would make its row so; names the
                key; no row has changed.
            ConfigError: unknown table, wrong dtype or shape, another label; read-only server.
            CapacityError: batches in flight have all slots of a key pinned, and those that wait in
                a pipeline gave none back; no row has changed.
            StoreError: no space to write evicted rows. If the keys do not fit the cache at once,
                those worked off before it, or before an interrupt, are updated; the error's note
                says how many.
        """
        self.parts.rows.push(table, keys, grads, labels)

    def assign(
        self,
        table: str,
        keys: AnyArray,
        rows: AnyArray,
        state: AnyArray | None = None,
        statistics: Mapping[str, AnyArray] | None = None,
    ) -> None:
        """Sets rows outright; of a key that occurs twice the last row counts.

        Args:
            table: its name.
            keys: int64 or uint64 [L].
            rows: float32 [L, dim].
            state: float32 [L, state floats of a row], header scalars before vectors, as
                items(state=True) gives it; None starts the optimizer's state anew.
            statistics: show, click and last_period [L] as `statistics` gives them; None: counts
                stay, and the last period is the current one.

        Raises:
            ConfigError: unknown table, wrong dtype or shape, read-only server; a state that the
                optimizer cannot have made, such as an accumulator below 0, or such statistics.
            NonFiniteError: NaN or infinity. No row has changed, as with ConfigError.
            StoreError: no space to write evicted rows.
        """
        self.parts.rows.assign(table, keys, rows, state, statistics)

    def contains(self, table: str, keys: AnyArray) -> AnyArray:
        """Which keys are stored, in any tier: bool [L], a tensor if the keys were one."""
        return self.parts.rows.contains(table, keys)

    def erase(self, table: str, keys: AnyArray) -> AnyArray:
        """Drops keys from every tier.

        Returns:
            bool [L]: where a stored row was; a tensor if the keys were one.

        Raises:
            ConfigError: a batch in flight has one of them pinned (nothing was erased); read-only.
        """
        return self.parts.rows.erase(table, keys)

    def erase_where(self, table: str, **where: Unpack[WhereFields]) -> int:
        """Drops the rows for which all that is given holds, as `erase` does; how many.

        Args:
            table: its name; it has statistics.
            show_below, click_below: shows, or clicks, are fewer.
            unseen_for: so many periods or more have passed since the row's last one.
            score_below: the score of hps.Expiry is below; of tables with expiry.

        Numbers are those of the current period: in tables with expiry they are decayed.

        Raises:
            ConfigError: unknown table, or one without statistics; nothing, or no such number is
                given; a pipeline is open, or a batch in flight has rows pinned; read-only server.
            StoreError, CorruptionError: a row could not be written, or read; a note says how many
                were erased before.

        Cost: writes dirty rows, then reads the table once, in pieces of 8 MiB.
        """
        return erase_where(self.parts.tables, self.parts.batches, table, RowsWhere(**where))

    def num_rows(self, table: str) -> int:
        """Stored rows of a table over all tiers, each counted once; exact."""
        return self.parts.rows.num_rows(table)

    def items(
        self, table: str, batch: int = 65536, state: bool = False, statistics: bool = False
    ) -> Iterator[tuple[HostArray, ...]]:
        """Every stored row once, in no order: (keys, rows) or, with state, (keys, rows, state).

        Pieces are copies: uint64 [n], float32 [n, dim], float32 [n, state floats], n up to `batch`.
        Statistics come last: show and click, float32 [n], and last_period, int64 [n].
        Reading from the server meanwhile is fine; changing the table makes the next piece raise.

        Raises:
            ConfigError: unknown table, or one without statistics; batch < 1; the table was changed
                since the iteration began.
        """
        return self.parts.rows.items(table, batch, state, statistics)

    def digest(self, table: str) -> str:
        """Order-independent hash of every stored row (key, weights, state, statistics): 32 hex
        digits.

        Equal digests mean equal tables, wherever the rows lie. Reads the whole table; writes
        nothing.
        """
        return self.parts.rows.digest(table)

    def digest_parts(self, table: str) -> Iterator[tuple[int, int]]:
        """As digest, in parts between which the table may be read: (low, high) of some rows each,
        to be summed modulo 2^64; the digest is high, then low. A change of the table makes the next
        part raise.

        Raises:
            ChangedError: the table was changed since the first part.
        """
        return self.parts.rows.digest_parts(table)

    def stats(self) -> Json:
        """Counters of each tier since the server was opened, then of each table."""
        self.parts.batches.count()
        return self.parts.rows.stats()

    # Periods.

    @property
    def period(self) -> int:
        """The period that updates count in: a counter that begins at 0. It is part of every
        checkpoint; a read-only server shows that of its own."""
        return self.parts.tables.period

    def advance_period(self, to: int | None = None, *, allow_empty: bool = False) -> int:
        """Begins the next period, or a later one; it is durable with the next checkpoint.

        Rows whose period of death has come are absent from now on, to every verb and in every tier.
        Rules (TableConfig.expiry) that differ from those in force come into force. In tables with
        bounds (max_rows, max_bytes) those that die next go, too, until no more are left.

        Args:
            to: its number; None is the next one.
            allow_empty: takes new rules, or bounds, that leave a table without rows.

        Returns:
            The period.

        Raises:
            ConfigError: `to` is not above the current period; a pipeline is open, or rows that may
                die are pinned by a batch in flight; by new rules every row of a table would die;
                read-only server.
            StoreError: a dirty row, or one whose period of death changes, could not be written.

        Cost: writes the dirty rows of tables with expiry, as a checkpoint does; then memory alone:
            a look at each cached row, and at four bytes a stored one. New rules take a pass over
            the rows of their table.
        """
        return self.parts.periods.advance(to, allow_empty)

    def statistics(self, table: str, keys: AnyArray) -> dict[str, AnyArray]:
        """What the rows of keys have counted, wherever they lie; creates nothing.

        Args:
            table: its name; it has statistics.
            keys: int64 or uint64 [L], duplicates allowed.

        Returns:
            show, click: float32 [L], occurrences in updates, and those with label 1; last_period:
            int64 [L], of the newest update, assignment or creation, -1 where no row is; dies_at:
            int64 [L], -1: never. Tensors if the keys were one.

        Raises:
            ConfigError: unknown table, or one without statistics; wrong dtype or shape.
            StoreError, CorruptionError: a row could not be read.

        Cost: rows that are not in DRAM are read from SSD, and take no slots.
        """
        return self.parts.periods.statistics(table, keys)

    # Batches in flight.
    ranks = None  # the rows of one process have no other ranks

    @property
    def joint(self) -> "JointServer | None":
        """Look-ups and steps of several tables at once; None with a gpu_cache on a device."""
        return self.parts.batches.joint

    @property
    def queued(self) -> "QueuedServer | None":
        """Look-ups of several tables at once, of rows on a device; else None."""
        return self.parts.batches.queued

    @property
    def has_gpu_cache(self) -> bool:
        """True if working rows lie in a gpu_cache: then `warm` goes before `pin`."""
        return self.config.gpu is not None

    @property
    def pins(self) -> int:
        """Pins on all slots of all tables; 0 when no batch is in flight."""
        return self.parts.tables.pins

    @property
    def num_open_pipelines(self) -> int:
        """Pipelines whose `with` block is entered."""
        return self.parts.batches.num_open_pipelines

    @property
    def pending_gradients(self) -> Pending | None:
        """Of the training loop: see hps.nn.gradients."""
        return self.parts.batches.pending_gradients

    @pending_gradients.setter
    def pending_gradients(self, pending: Pending | None) -> None:
        self.parts.batches.pending_gradients = pending

    def agree(self, flag: bool) -> bool:
        """The flag; over several ranks it would be True if it is on any of them."""
        return flag

    def pin(self, table: str, keys: AnyArray) -> BatchRows:
        """Fetches the rows of a batch and holds them in their slots until they are released.

        May be called from another thread than the training loop: that one waits for none of its
        reads. Batches reserve in the order in which they ask.

        Raises:
            CapacityError: the cache cannot hold all of them at once; nothing was taken.
            StoreError: no space to write evicted rows; nothing was taken.
            NonFiniteError: on a GPU, of a step before; see `apply`.
        """
        return self.parts.batches.pin(table, keys)

    def warm(self, table: str, keys: AnyArray) -> WarmRows:
        """Brings rows of a batch that the gpu_cache lacks into the dram_cache, ahead of `pin`.

        They stay there until they are released, which may be once the batch is pinned. Where slots
        cannot be had, fewer rows wait there, and `pin` reads the others itself. Without a gpu_cache
        it does nothing. May be called from any thread.

        Raises:
            StoreError, CorruptionError: a row could not be read, or an evicted one not be stored.
        """
        return self.parts.batches.warm(table, keys)

    def want(self, table: str, keys: AnyArray) -> None:
        """Says that a batch to come uses these keys: a cache that holds rows of theirs lets go of
        others first, until they are used. Changes no result. From any thread.

        Cost: for each cache one deduplication and look-up of the keys.
        """
        self.parts.batches.want(table, keys)

    def holds(self, rows: PinnedRows) -> bool:
        """True if this server pinned these rows; another one may have a table of that name."""
        return self.parts.batches.holds(rows)

    def apply(
        self,
        updates: Sequence[RowUpdate],
        applied: Callable[[], object] | None = None,
        checked: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """One optimizer step of several tables: all of them or, if a gradient is bad, none.

        Several updates of one table are summed as one, in their order. Where the tiers are native
        no interrupt comes between two tables, nor between them and `applied`.

        Args:
            updates: of each table.
            applied: called right after, with no interrupt in between if it is a builtin.
            checked: is given the function that raises what refuses the step, calls it and raises it
                on, or what refuses it elsewhere. Then on a GPU the check waits, too.

        Raises:
            NonFiniteError: a sum is NaN or infinite, or a step by it would make its row so; no row
                of any table has changed. On a GPU it comes later, with the next batch, checkpoint,
                pull or push at the latest: nothing is updated until it has come.
            ConfigError: as push; or rows that were released, are not those of the keys or belong
                to another server.
            CapacityError: rows that were not pinned cannot all be.
        """
        self.parts.batches.apply(updates, applied, checked)

    # Checkpoints.

    @property
    def is_changed(self) -> bool:
        """True if rows may have changed since the newest checkpoint."""
        return self.parts.tables.is_changed

    def checkpoint(
        self,
        tag: str | None = None,
        model: ModelState | None = None,
        reader: JsonView | None = None,
    ) -> Json:
        """Makes everything durable in one checkpoint: rows, model, reader position, learning rates.

        Waits for updates and keeps them waiting; reads and the fetches of other threads go on.

        Without model and reader it takes over those of the checkpoint that its rows descend from,
        if no push or optimizer step has come since: then they fit the rows.

        Args:
            tag: its name; it replaces an older one of that name. None: kept by keep_last.
            model: what torch.load(weights_only=True) reads: state dicts, tensors, numbers.
            reader: the position of a reader, as its state_dict() gives it; JSON.

        Returns:
            {"tag", "rows_written", "bytes", "seconds"}; where it took model and reader over also
            "model_from", the checkpoint that they were given to, by its tag or id.

        Raises:
            ConfigError: a bad tag, or a model or reader that could not be read back; read-only
                server.
            StoreError: disk full or an I/O error; the checkpoint before it stays the newest.
            NonFiniteError: on a GPU, of the last step; see `apply`.
        """
        return self.parts.checkpoints.take(tag, model, reader)

    def restore(self, tag: str | int | None = None) -> Dense:
        """Goes back to a checkpoint, which is the newest from now on.

        A table that is younger than the checkpoint stays, and is empty.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the newest.

        Returns:
            (model, reader) as they were given to checkpoint(), each None if it was not.

        Raises:
            ConfigError: no such checkpoint; a pipeline is open; read-only server.
            CorruptionError: the checkpoint is damaged.
            KeyboardInterrupt: all or nothing of it is done; if a second one comes before that is
                so, the server closes itself.
        """
        return self.parts.checkpoints.restore(tag)

    def checkpoint_state(self, tag: str | int | None = None) -> Dense:
        """(model, reader) of a checkpoint, without going back to it; also of a read-only server.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the newest.

        Raises:
            ConfigError: no such checkpoint.
            CorruptionError: the checkpoint is damaged.
        """
        return decode_dense(self.parts.checkpoints.blobs(tag))

    def checkpoint_blobs(
        self, tag: str | int | None = None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """Blobs of a checkpoint by name, as bytes; all of them, or those of `names` alone.

        Arguments and errors as checkpoint_state.
        """
        return self.parts.checkpoints.blobs(tag, names)

    def checkpoint_blob_bytes(self, tag: str | int | None = None) -> dict[str, int]:
        """Of each blob of a checkpoint its length; none is read."""
        return self.parts.checkpoints.blob_bytes(tag)

    def checkpoints(self) -> list[Json]:
        """The checkpoints that are kept, oldest first: tag (or None), id, rows, bytes, created."""
        return self.parts.checkpoints.listed()

    def delete_checkpoint(self, tag: str | int) -> list[str]:
        """Deletes a checkpoint, named by its tag or its id.

        Returns:
            The living readers of it, in words; its files stay until they close.

        Raises:
            ConfigError: no such checkpoint, or None; read-only server.
        """
        return self.parts.checkpoints.delete(tag)

    def compact(self, table: str | None = None) -> dict[str, int]:
        """Gives the space of overwritten and erased rows back now, rather than little by little.

        Rows that are dirty in DRAM stay there. If nothing was stored since the newest checkpoint,
        that one is renewed (a new id, all else the same) and its old files are gone when this
        returns; else they go with the next checkpoint. Other kept checkpoints keep their files.

        Args:
            table: its name; None is all, also those that this server does not name.

        Returns:
            {"bytes_before", "bytes_after"}: of the store's files, kept checkpoints included.

        Raises:
            ConfigError: unknown table; read-only server. StoreError: the disk is full.
            CorruptionError: a stored row is damaged; everything else has been compacted.

        Cost: reads every segment with something dead in it, writes its live rows once.
        """
        return self.parts.checkpoints.compact(table)

    def space_of_compact(self, table: str | None = None) -> dict[str, int]:
        """What `compact` would do, by the index, with what other kept checkpoints hold.

        Args:
            table: its name; None is all.

        Returns:
            {"written_bytes", "freed_bytes", "held_bytes"}: of the new files, which are beside the
            old ones at first; of old files that go; of old files that other checkpoints than the
            newest keep, so that rewriting them only takes room.

        Raises:
            ConfigError: unknown table.
        """
        return self.parts.checkpoints.space_of_compact(table)

    def publish(
        self, url: str | PathLike[str], model: "Publishable" = None, **options: Any
    ) -> Json:
        """Publishes the rows as they are at a folder or URL, from a checkpoint, as
        `hps.publish.publisher.Publisher.publish`. `model`: a torch module, or as `checkpoint` takes
        it, weights under "model"; options: fields of `hps.publish.options.PublishOptions`; `onnx`:
        the graph of `hps.export_dense`, or True of hps.models."""
        return self.parts.publishing.publish(fspath(url), model, options)

    # Lifetime.

    def close(self) -> None:
        """Closes the store without saving; nothing to do the second time.

        Raises:
            NonFiniteError: on a GPU, of the last step; see `apply`. The store is closed by then.
        """
        self.parts.publishing.close()
        self.parts.tables.close()

    def __enter__(self) -> "ParameterServer":
        self.parts.tables.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tables = self.parts.tables
        if kind is not None and is_inherited(tables.lock):
            return  # of a forked child: all is the parent's, and what was raised says more
        try:
            if kind is None and tables.is_changed and tables.is_open:
                self.checkpoint(tag=LAST)
        except BaseException:
            self._shut()
            raise
        if kind is None:
            self.close()
        else:
            self._shut()

    def _shut(self) -> None:
        self.parts.publishing.close()
        self.parts.tables.shut()
