"""CutVerbs: the verbs of a ParameterServer that take, list and go back to cuts of the whole store.

Above it: batch_verbs.py, and ParameterServer, which is one. Below it: table_stack.py (dirty rows go
down), checkpoint.py (the dense side), dense_mark.py (which one fits the rows),
update_log/history.py (marks of a service), the store.
"""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hps import _C
from hps import checkpoint as cut
from hps.checkpoint_names import check_name, check_tag, text_of
from hps.dense_mark import DENSE, DENSE_PARTS, TRAINING, DenseMark, holds_dense
from hps.errors import ConfigError, StoreError
from hps.update_log import History, ServedCut
from hps.update_log.history import SERVICE
from hps.update_log.served_tables import merged

if TYPE_CHECKING:
    from hps.config import Config, TableConfig
    from hps.table_stack import TableStack


class CutVerbs:
    """Checkpoint, restore and what goes with them; its fields are set by ParameterServer."""

    config: "Config"
    tables: "dict[str, TableConfig]"
    learning_rates: dict[str, float]
    pending_gradients: Any
    _lock: threading.RLock
    _updates: threading.RLock
    _store: Any
    _stacks: "dict[str, TableStack]"
    _other_tables: cut.OtherTables
    _history: History | None
    _is_open: bool
    _is_read_only: bool
    _is_changed: bool
    _dense_mark: DenseMark

    @property
    def pins(self) -> int:
        """Pins on all slots of all tables; 0 when no batch is in flight."""
        with self._lock:
            return sum(stack.num_pins for stack in self._stacks.values())

    @property
    def num_open_pipelines(self) -> int:
        """Pipelines whose `with` block is entered."""
        return 0 if self.pending_gradients is None else len(self.pending_gradients.listeners)

    @property
    def is_changed(self) -> bool:
        """True if rows may have changed since the newest checkpoint."""
        return self._is_changed

    def checkpoint(
        self,
        tag: str | None = None,
        model: Mapping[str, Any] | None = None,
        reader: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Makes everything durable in one cut: rows, model, reader position, learning rates.

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
        started = perf_counter()
        with self._updates:
            self._check_writable("checkpoint")
            if tag is not None:
                check_tag(tag)
            info = self.save_cut(tag, cut.encode_dense(model, reader))
            return {**info, "seconds": perf_counter() - started}

    def save_cut(
        self,
        tag: str | None,
        dense: Mapping[str, bytes],
        group: str = "",
        taken: Callable[[], object] | None = None,
        mark: DenseMark | None = None,
    ) -> dict[str, Any]:
        """As `checkpoint`, with the dense side as bytes.

        Args:
            tag: its name, or None.
            dense: blobs kept with it; cut.MODEL and cut.READER are those that `restore` decodes.
            group: names the cut over several shards that this is a part of.
            taken: called, where the store can, when all is in the cut and only the disk is waited
                for: who has kept changes away so far need not any more. The history of a service
                is not told of the checkpoint then; the caller does it, with changes kept away.
            mark: of a part: what the cut over all ranks or shards says of its dense side, which
                `dense` has, or is not to have. None: this store decides alone.

        Returns:
            {"tag", "rows_written", "bytes"}, and "model_from" as `checkpoint` says.

        Raises:
            ConfigError, StoreError, NonFiniteError: as `checkpoint`.
        """
        with self._updates:
            self._check_writable("checkpoint")
            if tag is not None:
                check_tag(tag, is_own=True)
            for stack in self._stacks.values():
                stack.raise_failed(wait=True)
            tables = cut.encode_tables(self.tables, self.learning_rates, self._other_tables)
            if mark is None:
                dense, mark = self._fitting(dense)
            extras = {**dense, **mark.blobs(), **tables}
            if taken is not None:  # what trains from then on must be seen
                self._dense_mark = mark
            if self._history is not None:
                extras.update(self._history.extras(group))
            bytes_written = sum(len(blob) for blob in extras.values())
            rows_written = 0
            for stack in self._stacks.values():
                count = stack.write_back()
                rows_written += count
                bytes_written += count * stack.layout.row_bytes
            if taken is None:
                self._store.checkpoint(tag, extras)
                self._is_changed = False
                self._dense_mark = mark
                if self._history is not None:
                    self._history.note_checkpoint(self._history.number)
        if taken is not None:
            self._store.checkpoint(tag, extras, taken)
        info = {"tag": tag, "rows_written": rows_written, "bytes": bytes_written}
        return {**info, **mark.described()}

    def _fitting(self, dense: Mapping[str, bytes]) -> tuple[dict[str, bytes], DenseMark]:
        """The dense side of a new checkpoint: the one given, or the one that the rows fit."""
        if holds_dense(dense):
            return dict(dense), DenseMark(has_model=cut.MODEL in dense)
        if not self._dense_mark.fits:
            return dict(dense), self._dense_mark
        blobs = self._store.extras(None, DENSE_PARTS)
        return {**dense, **blobs}, self.named_mark

    @property
    def dense_mark(self) -> DenseMark:
        """Which dense part fits the rows as they are now."""
        return self._dense_mark

    @dense_mark.setter
    def dense_mark(self, mark: DenseMark) -> None:
        self._dense_mark = mark

    @property
    def named_mark(self) -> DenseMark:
        """The same, with the name of the checkpoint that it was given to."""
        if self._dense_mark.source:
            return self._dense_mark
        current = next((one for one in self._store.checkpoints() if one["current"]), None)
        name = (
            "a deleted checkpoint" if current is None else text_of(current["tag"] or current["id"])
        )
        return replace(self._dense_mark, source=name)

    def _find_dense_mark(self) -> DenseMark:
        """That of the cut that the store is at."""
        if self._is_read_only:
            return DenseMark()
        return _mark_of(self._store.extras(None, (DENSE, SERVICE)), self._store.extra_bytes(None))

    def restore(self, tag: str | int | None = None) -> tuple[Any, Any]:
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
        with self._updates, self._still(), self._lock:
            # All that can fail is read before the store goes back; then only memory moves.
            self._check_restorable()
            extras = self._store.extras(tag)
            dense = cut.decode_dense(extras)
            self._go_back(tag, extras, None)
            return dense

    def restore_cut(self, tag: str | int | None, lineage: str | None) -> dict[str, bytes]:
        """As `restore`, with the dense side as bytes.

        Args:
            tag: as `restore` takes it.
            lineage: names the history of the rows from now on; None makes a name up.

        Returns:
            The checkpoint's blobs.
        """
        with self._updates, self._still(), self._lock:
            self._check_restorable()
            extras: dict[str, bytes] = self._store.extras(tag)
            self._go_back(tag, extras, lineage)
            return extras

    def emptied(self, tag: str) -> Any:
        """Goes back to a checkpoint without rows; returns the store below, to be filled with row
        images. They are seen after `restore` of a checkpoint that the store itself took of them.

        Args:
            tag: of the checkpoint; errors as `restore`.
        """
        self.restore(tag)
        return self._store

    def _check_restorable(self) -> None:
        self._check_writable("restore")
        if self.num_open_pipelines or self.pins:
            raise ConfigError(
                f"restore: {self.num_open_pipelines} open pipeline(s) and {self.pins} pins of "
                f"batches in flight; leave the pipeline's `with` block first"
            )

    def _go_back(
        self, tag: str | int | None, extras: Mapping[str, bytes], lineage: str | None
    ) -> None:
        """The store, and all above it, to a checkpoint with these extras."""
        rates = cut.decode_json(extras, cut.RATES) or {}
        known = {name: rate for name, rate in rates.items() if name in self.learning_rates}
        before = self._other_tables
        other_tables = cut.OtherTables.of(extras, self.tables).with_more(before)
        named = [cut.table_to_json(table) for table in self.tables.values()]
        history = self._history
        epoch = None if history is None else history.epoch
        target = cut.id_of(self._store.checkpoints(), tag)
        mark = _mark_of(extras, extras)

        def follow() -> None:
            """Brings all above the store to its cut; may be done twice."""
            for stack in self._stacks.values():
                stack.restart()
            self._other_tables = other_tables
            self.learning_rates.update(known)
            self._is_changed = False
            self._dense_mark = mark
            if history is not None:
                history.follow_restore(extras)

        num_loads = self._store.num_loads
        try:
            if history is not None:
                history.begin_restore(target, lineage, merged(named, before.described))
            self._store.restore(tag)
            follow()
        except BaseException:
            try:
                if self._store.num_loads != num_loads:  # an interrupt came after it
                    follow()
                elif history is not None and epoch is not None and history.epoch is not epoch:
                    history.withdraw(epoch)
            except BaseException as error:
                # Before anything that an interrupt may strike: what lies above the store may be of
                # two cuts, so nobody is to see it.
                self._is_open = False
                self._store.close()
                error.add_note("the restore was interrupted twice: the server has been closed")
                raise
            raise
        if history is not None:
            history.ensure_written()

    def checkpoint_state(self, tag: str | int | None = None) -> tuple[Any, Any]:
        """(model, reader) of a checkpoint, without going back to it; also of a read-only server.

        Args:
            tag: its tag, or its id as checkpoints() lists it; None is the newest.

        Raises:
            ConfigError: no such checkpoint.
            CorruptionError: the checkpoint is damaged.
        """
        return cut.decode_dense(self.checkpoint_blobs(tag))

    def checkpoint_blobs(
        self, tag: str | int | None = None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """Blobs of a checkpoint by name, as bytes; all of them, or those of `names` alone.

        Arguments and errors as checkpoint_state.
        """
        with self._updates:
            self._check_open()
            blobs: dict[str, bytes] = self._store.extras(tag, names)
            return blobs

    def checkpoint_blob_bytes(self, tag: str | int | None = None) -> dict[str, int]:
        """Of each blob of a checkpoint its length; none is read."""
        with self._updates:
            self._check_open()
            lengths: dict[str, int] = self._store.extra_bytes(tag)
            return lengths

    def checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoints that are kept, oldest first: tag (or None), id, rows, bytes, created."""
        with self._updates:
            self._check_open()
            listed: list[dict[str, Any]] = self._store.checkpoints()
            return listed

    def descent(self) -> str:
        """Of a served store: the cut that the rows descend from, as History.descent says it."""
        with self._updates:
            self._check_open()
            return "" if self._history is None else self._history.descent()

    def delete_checkpoint(self, tag: str | int) -> list[str]:
        """Deletes a checkpoint, named by its tag or its id.

        Returns:
            The living readers of it, in words; its files stay until they close.

        Raises:
            ConfigError: no such checkpoint, or None; read-only server.
        """
        with self._updates:
            self._check_writable("delete_checkpoint")
            if tag is None:
                raise ConfigError("delete_checkpoint(None): name a checkpoint by its tag or id")
            check_name(tag)
            readers: list[str] = self._store.delete_checkpoint(tag)
            return readers

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
        with self._updates:
            self._check_writable("compact")
            if table is not None:
                self._stack(table)
            if self._history is not None:
                self._history.ensure_written()  # it may name a checkpoint that is renewed now
            store = self._store
        # Without the updates: pushes go on, too.
        before = int(store.stats()["files_bytes"])
        store.compact(table)
        return {"bytes_before": before, "bytes_after": int(store.stats()["files_bytes"])}

    def space_of_compact(self, table: str | None = None) -> dict[str, int]:
        """What `compact` would do, by the index, with what other kept checkpoints hold.

        Args:
            table: its name; None is all.

        Returns:
            {"written_bytes", "freed_bytes", "held_bytes"}: of the new files, which stand beside the
            old ones at first; of old files that go; of old files that other checkpoints than the
            newest keep, so that rewriting them only takes room.

        Raises:
            ConfigError: unknown table.
        """
        with self._updates:
            if table is not None:
                self._stack(table)
            store = self._store
        space: dict[str, int] = store.space_of_compact(table)
        return space

    def _still(self) -> _C.Turns:
        """For a `with` block in which no row of any table moves between the tiers."""
        return _C.Turns([turn for stack in self._stacks.values() for turn in stack.turns()])

    def _stack(self, table: str) -> "TableStack":
        stack = self._stacks.get(table)
        if stack is None or not self._is_open:
            self._check_open()
            raise ConfigError(f"there is no table {table!r}; the store has {sorted(self._stacks)}")
        return stack

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError(f"the server over {self.config.path} is closed; open it again")

    def _check_writable(self, verb: str) -> None:
        self._check_open()
        if self._is_read_only:
            raise ConfigError(
                f"{verb}: {self.config.path} is open read-only; use hps.ParameterServer to change "
                "it"
            )

    def _begin_change(self, verb: str) -> None:
        self._check_writable(verb)
        self._is_changed = True
        if verb in TRAINING and not self._dense_mark.is_trained:
            self._dense_mark = replace(self._dense_mark, is_trained=True)


def _mark_of(blobs: Mapping[str, bytes], names: Collection[str]) -> DenseMark:
    """What a checkpoint says of its dense side.

    Args:
        blobs: of it; those of the model need not be among them.
        names: of all its blobs.

    Raises:
        CorruptionError: it, or what the checkpoint says of a service, cannot be read.
    """
    served = ServedCut.of(blobs)
    found = {name: b"" for name in names if name in DENSE_PARTS}
    mark = DenseMark.of({**found, **blobs}, "" if served is None else served.cut_name)
    if DENSE in blobs or served is None or not served.index:
        return mark
    return replace(mark, has_model=bool(mark.cut))  # if there is one, shard 0 has it
