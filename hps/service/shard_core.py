"""ShardCore: a served store that is open: its server, its history, who has the turn, what failed.

Above it: shard_reads.py, and Shard, which is one. Below it: ParameterServer (rows), update_log
(records, marks), gate.py (who waits for whom), checkpointer.py, location.py.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from hps import checkpoint as cut
from hps.checkpoint_names import AUTOMATIC
from hps.config import MAX_TABLES, Config, TableConfig
from hps.dense_mark import DenseMark
from hps.errors import ConfigError, StoreError
from hps.field_checks import require_whole
from hps.forked import refuse_in_children
from hps.parameter_server import ParameterServer, _Tiers
from hps.service.checkpointer import Checkpointer
from hps.service.gate import Arrivals, ChangeTurn, Gate, Moves
from hps.service.location import StoreLocation, served_config
from hps.sharding import ShardMap
from hps.update_log import MAX_SESSIONS, History, Identity, ServedCut, UpdateLog
from hps.update_log.history import SERVICE

LONG = 3600.0  # seconds: what an administrator's verb may take
_MAX_EARLY = 64  # mutations that wait for their predecessors, of all clients


@dataclass(frozen=True, kw_only=True)
class ShardOptions:
    """What a shard is besides its store.

    Args:
        index: of this shard, from 0; None takes the stored one, or 0.
        count: of shards; None takes the stored one, or 1.
        log_bytes: from this size of the log on a checkpoint is taken.
        max_sessions: clients that are remembered; beyond it the least recently used is fenced.
        max_owned_sessions: the same of the clients that one token has opened sessions for (or one
            connection, where there are no tokens), so that none pushes out the clients of others.
        max_tables: that create_table goes up to.

    Raises:
        ConfigError: a field outside its limits.
    """

    index: int | None = None
    count: int | None = None
    log_bytes: int = 2**30
    max_sessions: int = MAX_SESSIONS
    max_owned_sessions: int = MAX_SESSIONS // 10
    max_tables: int = MAX_TABLES

    def __post_init__(self) -> None:
        require_whole("ShardOptions.count", 1 if self.count is None else self.count, 1, 2**16)
        index = 0 if self.index is None else self.index
        require_whole("ShardOptions.index", index, 0, (self.count or 2**16) - 1)
        require_whole("ShardOptions.log_bytes", self.log_bytes, 1, 2**63 - 1)
        require_whole("ShardOptions.max_sessions", self.max_sessions, 1, 10**6)
        require_whole("ShardOptions.max_owned_sessions", self.max_owned_sessions, 1, 10**6)
        require_whole("ShardOptions.max_tables", self.max_tables, 1, MAX_TABLES)


class ShardCore:
    """Opening, closing, and what all verbs stand on."""

    def __init__(
        self,
        place: Config | StoreLocation,
        options: ShardOptions | None = None,
        *,
        _tiers: _Tiers | None = None,
    ) -> None:
        self.options = options or ShardOptions()
        self._tiers = replace(_tiers or _Tiers(), keeps_log=True)
        self._gate = Gate()
        self._moves = Moves(_MAX_EARLY)
        self._arrived = Arrivals[Identity]()  # mutations that are being worked on, or wait
        self._failure = ""  # why no mutation is taken any more
        self._log_failure = ""  # what the log said to a wait; it takes nothing more by itself
        self._is_torn = False  # the rows hold a mutation in part
        self._is_dead = False  # there is no store any more to read from
        self._is_closed = False
        self._groups: dict[int, tuple[str, str]] = {}
        config, described = served_config(place, self._tiers)
        self._server = ParameterServer(config, _tiers=self._tiers)
        try:
            self._history = self._find_history()
            self._owners = ShardMap(self.count).owners()
            self._history.sessions.trim(self.options.max_sessions)
            log = self._log
            log.wait(log.appended, True, LONG)  # marks that were replayed hold from now on
            if list(config.tables) != described:
                self._save(AUTOMATIC, {}, "")
        except BaseException:
            self._close_files()
            raise
        self._checkpointer = Checkpointer(self._is_checkpoint_due, self._checkpoint_by_itself)
        self._checkpointer.look()
        refuse_in_children(self, str(config.path), ("_gate", "_moves", "_arrived", "_checkpointer"))

    def _find_history(self) -> History:
        index, count = self.options.index, self.options.count
        where = self._server.config.path
        history = self._server.history
        if history is None:
            self._refuse_taken_tag()
            if (count or 1) > 1 and any(map(self._server.num_rows, self._server.tables)):
                raise ConfigError(
                    f"{where} holds rows of all keys; it can be served as shard 0 of 1 only, not "
                    f"as one of {count}"
                )
            history = self._server.begin_history(index, count, self._tiers.open_log)
        epoch = history.epoch
        asked = (epoch.index if index is None else index, epoch.count if count is None else count)
        if asked != (epoch.index, epoch.count):
            raise ConfigError(
                f"{where} is shard {epoch.index} of {epoch.count}, asked is {asked[0]} of "
                f"{asked[1]}; it is fixed once the store is served"
            )
        return history

    def _refuse_taken_tag(self) -> None:
        """A user's own checkpoint, whose place a shard's would take; those tell of a service."""
        where, own = self._server.config.path, (AUTOMATIC, (SERVICE,))
        is_taken = any(one["tag"] == AUTOMATIC for one in self._server.checkpoints())
        if is_taken and ServedCut.of(self._server.checkpoint_blobs(*own)) is None:
            raise ConfigError(
                f"{where} has a checkpoint {AUTOMATIC!r}, whose place the server's own would take; "
                f"delete it: 'hps checkpoints {where} --delete {AUTOMATIC}'"
            )

    # What it is.

    @property
    def index(self) -> int:
        """Of this shard, from 0."""
        return self._history.epoch.index

    @property
    def count(self) -> int:
        """Of shards."""
        return self._history.epoch.count

    @property
    def lineage(self) -> str:
        """Names the history of the rows; another one after each restore."""
        return self._history.epoch.lineage

    @property
    def tables(self) -> list[TableConfig]:
        """In the order of creation."""
        return list(self._server.tables.values())

    @property
    def failure(self) -> str:
        """Why no mutation is taken any more; empty while they are."""
        return self._failure or self._log_failure

    @property
    def is_dead(self) -> bool:
        """True if it cannot even be read any more; `failure` says why."""
        return self._is_dead

    @property
    def seed(self) -> int:
        """Of new rows' weights."""
        return self._server.config.seed

    def _save(
        self,
        tag: str | None,
        blobs: dict[str, bytes],
        group: str,
        turn: ChangeTurn | None = None,
        mark: DenseMark | None = None,
    ) -> dict[str, Any]:
        """Within the turn. If it is given, others have it while the disk is waited for. The mark is
        as `save_cut` takes it."""
        self._check_open()
        if self._is_torn:
            self._check_able()
        log, number = self._history.log, self._history.number
        taken = None if turn is None else turn.let_others
        try:
            info = self._server.save_cut(tag, blobs, group, taken, mark)
        except StoreError as error:
            if error.errno == errno.EIO:
                self._fail(f"a checkpoint could not be made: {error}")
            self._make_space(error)
            raise
        if turn is not None:
            turn.take_again(monotonic() + LONG)
            if self._history.log is not log:  # a restore, or another opening, came in between
                return info
            self._history.note_checkpoint(number)
        if log is not None:
            with suppress(StoreError):  # what stays is passed over, and goes with the next cut
                log.cut(number)
        return info

    def _is_checkpoint_due(self) -> bool:
        log = self._history.log
        return log is not None and not self._failure and log.num_bytes > self.options.log_bytes

    def _checkpoint_by_itself(self) -> None:
        with self._gate.change(monotonic() + LONG) as turn:
            self._save(AUTOMATIC, {}, "", turn)

    def _make_space(self, error: StoreError) -> None:
        """After a full disk: files that the log keeps to be used again go; it may be enough."""
        log = self._history.log
        if error.errno == errno.ENOSPC and log is not None:
            with suppress(StoreError):
                log.free_space()

    def _open_log(self) -> None:
        try:
            self._history.open_log_again(self._tiers.open_log)
        except BaseException as error:
            self._fail(f"the log could not be opened again: {error}")
            raise

    # Lifetime.

    def close(self, checkpoint: bool = True) -> None:
        """Closes store and log; nothing to do the second time.

        Args:
            checkpoint: save one named `last` if anything changed since the newest one. Without it,
                or if it fails, the log has what follows the newest one.

        Raises:
            StoreError: the checkpoint could not be made, or the log not be written; all is closed.
        """
        if self._is_closed:
            return
        self._checkpointer.stop()
        until = monotonic() + LONG
        with self._gate.change(until), self._gate.alone(until):
            if self._is_closed:
                return
            try:
                history = self._history
                if checkpoint and not self._failure and history.number != history.kept_number:
                    self._save(cut.LAST, {}, "")
            finally:
                self._is_closed = True
                self._close_files()

    def _close_files(self) -> None:
        history = self._server.history
        try:
            if history is not None:
                history.close_log()
        finally:
            self._server.close()

    # Checks.

    @property
    def _log(self) -> UpdateLog:
        if self._history.log is None:
            self._check_able()
            raise StoreError("the update log is closed")
        return self._history.log

    def _table(self, name: str) -> TableConfig:
        self._check_alive()
        table = self._server.tables.get(name)
        if table is None:
            raise ConfigError(f"there is no table {name!r}")  # others' names are not for all
        return table

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreError(f"the shard over {self._server.config.path} is closed")

    @contextmanager
    def _reading(self, timeout: float) -> Iterator[ParameterServer]:
        """The server, for a `with` block in which it stays what it is.

        Raises:
            DeadlineError: that it was not within `timeout` seconds. StoreError: there is none.
        """
        with self._gate.read(monotonic() + timeout):
            self._check_alive()
            yield self._server

    def _check_alive(self) -> None:
        if self._is_dead:
            raise StoreError(
                errno.EIO,
                f"the shard has no store any more: {self._failure}; start the server again: store "
                f"and log have all that was acknowledged",
            )

    def _check_able(self) -> None:
        self._check_open()
        if self._failure:
            raise StoreError(
                errno.EIO, f"the shard takes no changes: {self._failure}; start it again"
            )

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
