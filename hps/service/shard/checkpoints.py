"""ShardCheckpoints: takes checkpoints of a shard, and goes back to them.

Above it: Shard, whose docstrings say what its verbs promise. Below it: core.py, reads.py,
mutations.py, which is told of a restore. Each takes the turn.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

from hps.checkpoint.blobs import MODEL, READER
from hps.checkpoint.dense_mark import DENSE_PARTS, DenseMark, holds_dense
from hps.checkpoint.names import check_tag, part_name
from hps.common.json_text import Json
from hps.errors import ConfigError, MismatchError, StoreError
from hps.service.shard.core import LONG, ServedStore
from hps.service.shard.mutations import Mutations
from hps.service.shard.reads import Reads
from hps.ssd_store.promote import NamedCheckpoints
from hps.update_log import ServedCheckpoint
from hps.update_log.history import FIRST_LINEAGE


@dataclass(frozen=True)
class NameMove:
    """Where a promoted name goes.

    Args:
        name: the name.
        checkpoint: what gets it; None: it leaves the one that it has.
        leaves: when that one was created. Where the name is another's by now, it stays.
        drop: it is taken away, and not given back to the one before.
    """

    name: str
    checkpoint: str | int | None
    leaves: float
    drop: bool


class ShardCheckpoints:
    """Of one served store."""

    def __init__(self, store: ServedStore, reads: Reads, mutations: Mutations) -> None:
        self._store = store
        self._reads = reads
        self._mutations = mutations

    def take(
        self,
        tag: str | None,
        model: bytes | None,
        reader: bytes | None,
        group: str,
        timeout: float,
        model_whole: str | None,
    ) -> Json:
        """As Shard.checkpoint."""
        if tag is not None and part_name(tag) is None:
            check_tag(tag)
        started = monotonic()
        dense = {MODEL: model, READER: reader}
        with self._store.gate.change(started + timeout):
            blobs = {name: blob for name, blob in dense.items() if blob is not None}
            mark = self._mark(blobs, model_whole)
            if mark is not None and mark.is_taken_over:
                blobs |= self._store.server.checkpoint_blobs(None, DENSE_PARTS)
            info = self._store.save(tag, blobs, group, mark=mark)
            fitting = self._store.server.parts.checkpoints.dense_mark
            sessions = {name: (s.incarnation, s.mark) for name, s in self._store.history.sessions}
            seconds = monotonic() - started
            return {
                **info,
                "seconds": seconds,
                "lineage": self._store.lineage,
                "model_whole": fitting.whole if fitting.fits else "",
                "sessions": sessions,
            }

    def _mark(self, blobs: Mapping[str, bytes], model_whole: str | None) -> DenseMark | None:
        """What a new checkpoint says of its dense side; None: the store decides alone. Within the
        turn."""
        self._store.gate.assert_turn()
        if self._store.count == 1:
            return None
        index, saved = self._store.index, self._store.server.parts.checkpoints
        if holds_dense(blobs) or (index and model_whole):
            return DenseMark(has_model=index > 0 or MODEL in blobs, whole=model_whole or "")
        mark = saved.dense_mark
        if index or not mark.fits:
            return mark
        if model_whole and model_whole == mark.whole:
            return saved.named_mark
        return replace(mark, is_trained=True)  # the rows of another shard were

    def move_name(self, move: NameMove, timeout: float) -> int | None:
        """As Shard.move_name."""
        if self._store.index:
            raise ConfigError(
                f"MoveName: names of checkpoints over several shards are those of shard 0, and "
                f"this is shard {self._store.index} of {self._store.count}"
            )
        with self._store.reading(timeout) as server:
            self._store.check_open()
            # Asked past the server's lock, which is held by who takes a checkpoint and waits there
            # for names that move.
            store = server.parts.tables.store
            path = str(server.config.path)
            names = NamedCheckpoints(path, store.held_folder(), store.checkpoints)
            if move.checkpoint is not None:
                moved = names.promote(move.checkpoint, move.name)
            elif move.drop:
                moved = names.drop(move.name, move.leaves)
            else:
                moved = names.roll_back(move.name, move.leaves)
            return None if moved["id"] is None else int(moved["id"])

    def delete(self, tag: str | int, timeout: float) -> list[str]:
        """As ParameterServer.delete_checkpoint."""
        with self._store.reading(timeout) as server:
            return server.delete_checkpoint(tag)

    def prepare_restore(self, tag: str | int | None, group: str, timeout: float) -> Json:
        """As Shard.prepare_restore."""
        with self._store.reading(timeout) as server:
            self._store.check_open()
            served = ServedCheckpoint.of(server.checkpoint_blobs(tag))
        found = "" if served is None else served.group
        index, count = self._store.index, self._store.count
        if group and group != found:
            raise MismatchError(
                f"checkpoint {tag!r} of shard {index} belongs to group {found!r}, requested is "
                f"{group!r}; restore one that all shards have"
            )
        if served is not None and (served.index, served.count) != (index, count):
            raise MismatchError(
                f"checkpoint {tag!r} is of shard {served.index} of {served.count}, this is "
                f"shard {index} of {count}; restore one of this shard"
            )
        sessions = {} if served is None else dict(served.sessions)
        marks = {name: (session.incarnation, session.mark) for name, session in sessions.items()}
        number, name = self._reads.checkpoint_named(tag, timeout)
        return {"id": number, "tag": name, "group": found, "sessions": marks}

    def restore(
        self, tag: str | int | None, lineage: str | None, timeout: float
    ) -> tuple[bytes | None, bytes | None]:
        """As Shard.restore."""
        with self._store.gate.change(monotonic() + timeout):
            self.prepare_restore(tag, "", LONG)
            if self._is_restored(lineage):
                blobs = self._store.server.checkpoint_blobs(tag)
                return blobs.get(MODEL), blobs.get(READER)
            with suppress(StoreError):  # a log that has failed is given up with its epoch
                self._store.history.close_log()
            try:
                blobs = self._store.server.parts.checkpoints.restore_blobs(tag, lineage)
                # Not the checkpoint's: another shard, or this one started anew, has its tables'.
                rates = {table.name: table.optimizer.lr for table in self._store.tables}
                self._store.server.learning_rates.update(rates)
                self._store.recover()
            finally:
                self._store.open_log()
        self._mutations.tell()
        return blobs.get(MODEL), blobs.get(READER)

    def _is_restored(self, lineage: str | None) -> bool:
        is_open = self._store.history.log is not None and not self._store.change_failure
        return is_open and lineage == self._store.lineage and lineage != FIRST_LINEAGE
