"""Checkpoints: takes, lists and goes back to checkpoints of the whole store.

Above it: ParameterServer, whose docstrings say what its verbs promise; of those that are no user's,
a shard, a rank of a cluster, `hps compact`. Below it: tables.py, tiers/top_tier.py (dirty rows go
down), checkpoint/blobs.py (the dense side), checkpoint/dense_mark.py (which one fits the rows),
update_log/history.py (marks of a service), the store.
"""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from time import perf_counter

from hps.checkpoint.blobs import (
    LINEAGE,
    MODEL,
    RATES,
    Dense,
    ModelState,
    OtherTables,
    decode_dense,
    decode_json,
    decode_period,
    decode_rules,
    encode_dense,
    encode_tables,
    id_of,
    table_to_json,
)
from hps.checkpoint.dense_mark import DENSE, DENSE_PARTS, DenseMark, holds_dense
from hps.checkpoint.names import check_name, check_tag, find_listed, own_name, text_of
from hps.common.json_text import Json, JsonView
from hps.common.locks import assert_held
from hps.contracts.tiers import RowTier
from hps.errors import ConfigError
from hps.parameter_server.batches import Batches
from hps.parameter_server.life import first_rules
from hps.parameter_server.tables import Tables
from hps.update_log import History, OpenLog, ServedCheckpoint
from hps.update_log.history import SERVICE
from hps.update_log.served_tables import merged, tables_now


class Checkpoints:
    """Checkpoint, restore and what goes with them.

    Args:
        tables: of the server.
        batches: of the server: no restore while some are in flight.
        history: what the store holds of a service's mutations; None if it was never served.
    """

    def __init__(self, tables: Tables, batches: Batches, history: History | None) -> None:
        self._tables = tables
        self._batches = batches
        self.history = history  # guarded by the updates
        if history is not None:
            tables.num_shards = history.epoch.count
        tables.dense_mark = self._find_dense_mark()
        # Stored tables that the config does not name. Guarded by the updates.
        self._other_tables = self._find_other_tables()
        self._lineage = "" if tables.is_read_only else self._find_lineage()

    def _find_lineage(self) -> str:
        """Of the rows as they are now: that of the current checkpoint, or a new one where that is
        older than another, so that what comes after both is told apart. A compaction gives a
        checkpoint a new id, and leaves it the time when it was taken."""
        store = self._tables.store
        listed = store.checkpoints()
        current = find_listed("the store", listed)
        newest = max((one["created"] for one in listed), default=0.0)
        if current is not None and current["created"] == newest:
            own = store.extras(None, (LINEAGE,)).get(LINEAGE, b"").decode()
            if own:
                return own
        return secrets.token_hex(8)

    def _find_dense_mark(self) -> DenseMark:
        """That of the checkpoint that the store is at."""
        if self._tables.is_read_only:
            return DenseMark()
        store = self._tables.store
        return _mark_of(store.extras(None, (DENSE, SERVICE)), store.extra_bytes(None))

    def _find_other_tables(self) -> OtherTables:
        """Of the current checkpoint; the extras are read only if the store has more tables."""
        known = self._tables.stored
        has_more = not self._tables.is_read_only and set(self._tables.store.schemas) - set(known)
        if not has_more:
            return OtherTables([], {})
        extras = self._tables.store.extras(None)
        epoch = None if self.history is None else self.history.epoch
        now = [value for value in tables_now(extras, epoch) if value["name"] not in known]
        return OtherTables(now, OtherTables.of(extras, known).rates)

    def take(
        self,
        tag: str | None,
        model: ModelState | None,
        reader: JsonView | None,
    ) -> Json:
        """As ParameterServer.checkpoint."""
        started = perf_counter()
        with self._tables.updates:
            self._tables.check_writable("checkpoint")
            if tag is not None:
                check_tag(tag)
            info = self.save(tag, encode_dense(model, reader))
            return {**info, "seconds": perf_counter() - started}

    def save(
        self,
        tag: str | None,
        dense: Mapping[str, bytes],
        group: str = "",
        taken: Callable[[], object] | None = None,
        mark: DenseMark | None = None,
    ) -> Json:
        """As `take`, with the dense side as bytes.

        Args:
            tag: its name, or None.
            dense: blobs kept with it; MODEL and READER are those that `restore` decodes.
            group: names the checkpoint over several shards that this is a part of.
            taken: called, where the store can, when all is in the checkpoint and only the disk is
                waited for: a caller that has kept changes away so far need not any more. The
                history of a service is not told of the checkpoint then; the caller does it, with
                changes kept away.
            mark: of a part: what the checkpoint over all ranks or shards says of its dense side,
                which `dense` has, or is not to have. None: this store decides alone.

        Returns:
            {"tag", "rows_written", "bytes"}, and "model_from" as ParameterServer.checkpoint says.

        Raises:
            ConfigError, StoreError, NonFiniteError: as ParameterServer.checkpoint.
        """
        tables = self._tables
        with tables.updates:
            tables.check_writable("checkpoint")
            history = self.history
            if tag is not None:
                check_tag(tag, is_own=True)
            for stack in tables.stacks.values():
                stack.raise_failed(wait=True)
            described = encode_tables(tables.configs, tables.learning_rates, self._other_tables)
            if mark is None:
                dense, mark = self._fitting(dense)
            extras = {
                **dense,
                **mark.blobs(),
                **described,
                **tables.encode_life(),
                LINEAGE: self._lineage.encode(),
            }
            if taken is not None:  # what trains from then on must be seen
                tables.dense_mark = mark
            if history is not None:
                extras.update(history.extras(group))
            bytes_written = sum(len(blob) for blob in extras.values())
            rows_written = 0
            for stack in tables.stacks.values():
                count = stack.write_back()
                rows_written += count
                bytes_written += count * stack.layout.row_bytes
            if taken is None:
                self._tables.store.checkpoint(tag, extras)
                tables.is_changed = False
                tables.dense_mark = mark
                if history is not None:
                    history.note_checkpoint(history.number)
        if taken is not None:
            self._tables.store.checkpoint(tag, extras, taken)
        info = {"tag": tag, "rows_written": rows_written, "bytes": bytes_written}
        return {**info, **mark.described()}

    def _fitting(self, dense: Mapping[str, bytes]) -> tuple[dict[str, bytes], DenseMark]:
        """The dense side of a new checkpoint: the one given, or the one that the rows fit. Within
        the updates."""
        assert_held(self._tables.updates)
        if holds_dense(dense):
            return dict(dense), DenseMark(has_model=MODEL in dense)
        if not self._tables.dense_mark.fits:
            return dict(dense), self._tables.dense_mark
        blobs = self._tables.store.extras(None, DENSE_PARTS)
        return {**dense, **blobs}, self.named_mark

    @property
    def dense_mark(self) -> DenseMark:
        """Which dense part fits the rows as they are now."""
        return self._tables.dense_mark

    @dense_mark.setter
    def dense_mark(self, mark: DenseMark) -> None:
        with self._tables.updates:
            self._tables.dense_mark = mark

    @property
    def named_mark(self) -> DenseMark:
        """The same, with the name of the checkpoint that it was given to."""
        mark = self._tables.dense_mark
        if mark.source:
            return mark
        current = find_listed("the store", self._tables.store.checkpoints())
        name = (
            "a deleted checkpoint" if current is None else text_of(current["tag"] or current["id"])
        )
        return replace(mark, source=name)

    def restore(self, tag: str | int | None) -> Dense:
        """As ParameterServer.restore."""
        tables = self._tables
        with tables.updates, tables.still(), tables.lock:
            # All that can fail is read before the store goes back; then only memory moves.
            self._check_restorable()
            tag = self._own_name(tag)
            extras = self._tables.store.extras(tag)
            dense = decode_dense(extras)
            self._go_back(tag, extras, None)
            return dense

    def restore_blobs(self, tag: str | int | None, lineage: str | None) -> dict[str, bytes]:
        """As `restore`, with the dense side as bytes.

        Args:
            tag: as `restore` takes it.
            lineage: names the history of the rows from now on; None makes a name up.

        Returns:
            The checkpoint's blobs.
        """
        tables = self._tables
        with tables.updates, tables.still(), tables.lock:
            self._check_restorable()
            tag = self._own_name(tag)
            extras = self._tables.store.extras(tag)
            self._go_back(tag, extras, lineage)
            return extras

    def empty_store(self, tag: str) -> RowTier:
        """Goes back to a checkpoint without rows; returns the store below, to be filled with row
        images. They are seen after `restore` of a checkpoint that the store itself took of them.

        Args:
            tag: of the checkpoint; errors as `restore`.
        """
        self.restore(tag)
        return self._tables.store

    def _own_name(self, tag: str | int | None) -> str | int | None:
        """What stays the same where a promoted name moves beside this server."""
        return tag if tag is None else own_name(self._tables.store.checkpoints(), tag)

    def _check_restorable(self) -> None:
        self._tables.check_writable("restore")
        num_open, pins = self._batches.num_open_pipelines, self._tables.pins
        if num_open or pins:
            raise ConfigError(
                f"restore: {num_open} open pipeline(s) and {pins} pins of "
                f"batches in flight; leave the pipeline's `with` block first"
            )

    def _go_back(
        self, tag: str | int | None, extras: Mapping[str, bytes], lineage: str | None
    ) -> None:
        """The store, and all above it, to a checkpoint with these extras. With both locks."""
        tables = self._tables
        assert_held(tables.updates)
        assert_held(tables.lock)
        rates = decode_json(extras, RATES) or {}
        period, rules = decode_period(extras), decode_rules(extras)
        known = {name: rate for name, rate in rates.items() if name in tables.learning_rates}
        before = self._other_tables
        other_tables = OtherTables.of(extras, tables.configs).with_more(before)
        named = [table_to_json(table) for table in tables.configs.values()]
        history = self.history
        epoch = None if history is None else history.epoch
        target = id_of(self._tables.store.checkpoints(), tag)
        mark = _mark_of(extras, extras)

        def follow() -> None:
            """Brings all above the store to its checkpoint; may be done twice."""
            tables.store.follow_period()
            for stack in tables.stacks.values():
                stack.restart()
            self._other_tables = other_tables
            self._lineage = self._find_lineage()
            tables.learning_rates.update(known)
            tables.is_changed = False
            tables.dense_mark = mark
            named_tables = tables.stored.values()
            tables.set_life(period, first_rules(named_tables, tables.store, rules))
            tables.follow_life(extras)
            if history is not None:
                history.follow_restore(extras)

        num_loads = self._tables.store.num_loads
        try:
            if history is not None:
                history.begin_restore(target, lineage, merged(named, before.described))
            self._tables.store.restore(tag)
            follow()
        except BaseException:
            try:
                if self._tables.store.num_loads != num_loads:  # an interrupt came after it
                    follow()
                elif history is not None and epoch is not None and history.epoch is not epoch:
                    history.withdraw(epoch)
            except BaseException as error:
                # Before anything that an interrupt may strike: what lies above the store may be of
                # two checkpoints, so nobody is to see it.
                tables.is_open = False
                self._tables.store.close()
                error.add_note("the restore was interrupted twice: the server has been closed")
                raise
            raise
        if history is not None:
            history.ensure_written()

    def blobs(
        self, tag: str | int | None = None, names: Collection[str] | None = None
    ) -> dict[str, bytes]:
        """As ParameterServer.checkpoint_blobs."""
        with self._tables.updates:
            self._tables.check_open()
            return self._tables.store.extras(tag, names)

    def blob_bytes(self, tag: str | int | None = None) -> dict[str, int]:
        """As ParameterServer.checkpoint_blob_bytes."""
        with self._tables.updates:
            self._tables.check_open()
            return self._tables.store.extra_bytes(tag)

    def listed(self) -> list[Json]:
        """As ParameterServer.checkpoints."""
        with self._tables.updates:
            self._tables.check_open()
            return self._tables.store.checkpoints()

    def delete(self, tag: str | int) -> list[str]:
        """As ParameterServer.delete_checkpoint."""
        with self._tables.updates:
            self._tables.check_writable("delete_checkpoint")
            if tag is None:
                raise ConfigError("delete_checkpoint(None): name a checkpoint by its tag or id")
            check_name(tag)
            return self._tables.store.delete_checkpoint(tag)

    def compact(self, table: str | None) -> dict[str, int]:
        """As ParameterServer.compact."""
        with self._tables.updates:
            self._tables.check_writable("compact")
            if table is not None:
                self._tables.stack(table)
            if self.history is not None:
                self.history.ensure_written()  # it may name a checkpoint that is renewed now
            store = self._tables.store
        # Without the updates: pushes go on, too.
        before = int(store.stats()["files_bytes"])
        store.compact(table)
        return {"bytes_before": before, "bytes_after": int(store.stats()["files_bytes"])}

    def space_of_compact(self, table: str | None) -> dict[str, int]:
        """As ParameterServer.space_of_compact."""
        with self._tables.updates:
            if table is not None:
                self._tables.stack(table)
            store = self._tables.store
        return store.space_of_compact(table)

    # Of a served store.

    def begin_history(self, index: int | None, count: int | None, open_log: OpenLog) -> History:
        """Starts the history of a store that has none; its log is open.

        Raises:
            StoreError: the system refused. CorruptionError: the checkpoint is damaged.
        """
        with self._tables.updates:
            self._tables.check_writable("begin_history")
            if self.history is not None:
                raise ConfigError(f"{self._tables.config.path} is served already")
            extras = self._tables.store.extras(None)
            history = History.begin(self._tables.store, index, count, ServedCheckpoint.of(extras))
            history.open_log(open_log)
            self.history = history
            self._tables.num_shards = history.epoch.count
            return history

    def descent(self) -> str:
        """The checkpoint that the rows descend from, as History.descent says it."""
        with self._tables.updates:
            self._tables.check_open()
            return "" if self.history is None else self.history.descent()


def _mark_of(blobs: Mapping[str, bytes], names: Collection[str]) -> DenseMark:
    """What a checkpoint says of its dense side.

    Args:
        blobs: of it; those of the model need not be among them.
        names: of all its blobs.

    Raises:
        CorruptionError: it, or what the checkpoint says of a service, cannot be read.
    """
    served = ServedCheckpoint.of(blobs)
    found = {name: b"" for name in names if name in DENSE_PARTS}
    mark = DenseMark.of({**found, **blobs}, "" if served is None else served.whole_name)
    if DENSE in blobs or served is None or not served.index:
        return mark
    return replace(mark, has_model=bool(mark.whole))  # if there is one, shard 0 has it
