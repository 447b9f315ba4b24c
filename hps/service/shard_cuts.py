"""ShardCuts: the verbs of a shard that concern all of it: checkpoints, restores, tables.

Above it: shard.py. Below it: shard_reads.py, shard_core.py. Each takes the turn.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

from hps import checkpoint as cut
from hps.checkpoint_names import AUTOMATIC, check_tag, part_name
from hps.config import TableConfig
from hps.dense_mark import DENSE_PARTS, DenseMark, holds_dense
from hps.errors import CapacityError, MismatchError, StoreError
from hps.parameter_server import ParameterServer
from hps.service.location import ServedConfig, with_table
from hps.service.shard_core import LONG
from hps.service.shard_reads import ShardReads
from hps.update_log import ServedCut
from hps.update_log.history import FIRST_LINEAGE


class ShardCuts(ShardReads):
    """Checkpoint, restore, create_table."""

    def checkpoint(
        self,
        tag: str | None = None,
        model: bytes | None = None,
        reader: bytes | None = None,
        group: str = "",
        timeout: float = LONG,
        model_cut: str | None = None,
    ) -> dict[str, Any]:
        """Makes rows, marks, model and reader durable in one cut; mutations wait meanwhile.

        Args:
            tag: its name; None is kept by keep_last.
            model: torch.save of a mapping; kept as it is.
            reader: JSON of a reader's position; kept as it is.
            group: names the cut over several shards that this is a part of.
            timeout: seconds to wait for the turn.
            model_cut: of several shards: names the cut whose dense side this one has. Where one is
                given, this cut, on all shards. Else None, and on shard 0 what `model_cut` of all
                the others is: then it takes that cut's dense side over, if its rows fit it, too.

        Returns:
            {"tag", "rows_written", "bytes", "seconds", "lineage", "model_cut", "sessions"}, the
            last a dict from client to (incarnation, sequence); "model_cut" names the cut whose
            dense side fits this shard's rows, or is empty. "model_from" as
            ParameterServer.checkpoint says.

        Raises:
            ConfigError: a bad tag, or the shard's own. StoreError: disk full or an I/O error; the
                one before stays the newest. DeadlineError: the turn did not come.
        """
        if tag is not None and part_name(tag) is None:
            check_tag(tag)
        started = monotonic()
        dense = {cut.MODEL: model, cut.READER: reader}
        with self._gate.change(started + timeout):
            blobs = {name: blob for name, blob in dense.items() if blob is not None}
            mark = self._mark(blobs, model_cut)
            if mark is not None and mark.is_taken_over:
                blobs |= self._server.checkpoint_blobs(None, DENSE_PARTS)
            info = self._save(tag, blobs, group, mark=mark)
            fitting = self._server.dense_mark
            sessions = {name: (s.incarnation, s.mark) for name, s in self._history.sessions}
            seconds = monotonic() - started
            return {
                **info,
                "seconds": seconds,
                "lineage": self.lineage,
                "model_cut": fitting.cut if fitting.fits else "",
                "sessions": sessions,
            }

    def _mark(self, blobs: Mapping[str, bytes], model_cut: str | None) -> DenseMark | None:
        """What a new checkpoint says of its dense side; None: the store decides alone."""
        if self.count == 1:
            return None
        if holds_dense(blobs) or (self.index and model_cut):
            return DenseMark(has_model=self.index > 0 or cut.MODEL in blobs, cut=model_cut or "")
        mark = self._server.dense_mark
        if self.index or not mark.fits:
            return mark
        if model_cut and model_cut == mark.cut:
            return self._server.named_mark
        return replace(mark, is_trained=True)  # the rows of another shard were

    def delete_checkpoint(self, tag: str | int, timeout: float = LONG) -> list[str]:
        """As ParameterServer.delete_checkpoint."""
        with self._reading(timeout) as server:
            return server.delete_checkpoint(tag)

    def prepare_restore(
        self, tag: str | int | None = None, group: str = "", timeout: float = LONG
    ) -> dict[str, Any]:
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
        with self._reading(timeout) as server:
            self._check_open()
            served = ServedCut.of(server.checkpoint_blobs(tag))
        found = "" if served is None else served.group
        if group and group != found:
            raise MismatchError(
                f"checkpoint {tag!r} of shard {self.index} belongs to group {found!r}, asked is "
                f"{group!r}; restore one that all shards have"
            )
        if served is not None and (served.index, served.count) != (self.index, self.count):
            raise MismatchError(
                f"checkpoint {tag!r} is of shard {served.index} of {served.count}, this is "
                f"{self.index} of {self.count}"
            )
        sessions = {} if served is None else dict(served.sessions)
        marks = {name: (session.incarnation, session.mark) for name, session in sessions.items()}
        number, name = self.checkpoint_named(tag, timeout)
        return {"id": number, "tag": name, "group": found, "sessions": marks}

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
        with self._gate.change(monotonic() + timeout):
            self.prepare_restore(tag)
            if self._is_restored(lineage):
                blobs = self._server.checkpoint_blobs(tag)
                return blobs.get(cut.MODEL), blobs.get(cut.READER)
            with suppress(StoreError):  # a log that has failed is given up with its epoch
                self._history.close_log()
            try:
                blobs = self._server.restore_cut(tag, lineage)
                # Not the checkpoint's: another shard, or this one started anew, has its tables'.
                rates = {table.name: table.optimizer.lr for table in self.tables}
                self._server.learning_rates.update(rates)
                self._failure = self._log_failure = ""
                self._is_torn = False
            finally:
                self._open_log()
        self._moves.tell()
        return blobs.get(cut.MODEL), blobs.get(cut.READER)

    def _is_restored(self, lineage: str | None) -> bool:
        is_open = self._history.log is not None and not self._failure
        return is_open and lineage == self.lineage and lineage != FIRST_LINEAGE

    def create_table(self, table: TableConfig, timeout: float = LONG) -> bool:
        """Adds a table, durably; False if it is there already, just so but for its learning rate.

        Raises:
            MismatchError: it is there with other numbers. CapacityError: too many tables.
            ConfigError: it collides with another one, or the caches are too small for one more.
            StoreError: the disk is full. DeadlineError: the turn did not come.

        Cost: a checkpoint, and the store opened again; reads wait for that, too.
        """
        deadline = monotonic() + timeout
        with self._gate.change(deadline):
            self._check_able()
            old = self._server.tables.get(table.name)
            if old is not None:
                _check_same(old, table)
                return False
            if len(self._server.tables) >= self.options.max_tables:
                raise CapacityError(
                    f"create_table({table.name!r}): there are {len(self._server.tables)} tables, "
                    f"and at most {self.options.max_tables} may be"
                )
            config = self._server.config
            assert isinstance(config, ServedConfig)
            self._server.check_new_table(table)
            larger = with_table(config, table)
            self._save(AUTOMATIC, {}, "")
            with self._gate.alone(deadline):
                self._reopen(larger)
            try:
                self._save(AUTOMATIC, {}, "")
            except BaseException:
                # No opening would know the table that the log's records name.
                with self._gate.alone(monotonic() + LONG):
                    self._reopen(config)
                raise
            return True

    def _reopen(self, config: ServedConfig) -> None:
        """The store under another config; all is in its newest checkpoint."""
        old = self._server.config
        assert isinstance(old, ServedConfig)
        self._history.close_log()
        self._server.close()
        try:
            self._server = ParameterServer(config, _tiers=self._tiers)
        except BaseException as error:
            try:
                self._server = ParameterServer(old, _tiers=self._tiers)
            except BaseException:
                self._is_dead = True
                self._fail(f"the store could not be opened again for a new table: {error}")
                raise
            raise
        finally:
            if (history := self._server.history) is not None:
                self._history = history


def _check_same(stored: TableConfig, asked: TableConfig) -> None:
    for part in ("dim", "optimizer", "initializer"):
        old, new = getattr(stored, part), getattr(asked, part)
        if part == "optimizer" and type(old) is type(new):
            new = replace(new, lr=old.lr)
        if old != new:
            raise MismatchError(
                f"create_table({stored.name!r}): its {part} is {old!r}, asked is {new!r}; use "
                f"another name, or the stored one"
            )
