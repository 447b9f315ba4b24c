"""ServedStore: a served store that is open: its server, its history, who has the turn, what failed.

Above it: mutations.py, sessions.py, checkpoints.py, tables.py, reads.py, which are the verbs of a
Shard. Below it: ParameterServer (rows), update_log (records, marks), gate.py (who waits for whom),
checkpointer.py, location.py.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic

from hps.checkpoint.blobs import LAST
from hps.checkpoint.dense_mark import DenseMark
from hps.checkpoint.names import AUTOMATIC
from hps.common.field_checks import require_whole
from hps.common.forked import refuse_in_children
from hps.common.json_text import Json
from hps.common.sharding import ShardMap
from hps.config import MAX_TABLES, Config, TableConfig
from hps.errors import ConfigError, StoreError, no_such_table
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import ParameterServer
from hps.service.shard.checkpointer import Checkpointer
from hps.service.shard.gate import ChangeTurn, Gate
from hps.service.shard.location import ServedConfig, StoreLocation, served_config
from hps.update_log import MAX_SESSIONS, History, ServedCheckpoint, UpdateLog
from hps.update_log.history import SERVICE

LONG = 3600.0  # seconds: what an administrator's verb may take


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


class ServedStore:
    """Opening, closing, and what all verbs of a shard are built on.

    Args:
        place: the store: with the tables to make sure of, or as it lies there.
        options: see ShardOptions.
        tiers: what its server is stacked from.
    """

    def __init__(self, place: Config | StoreLocation, options: ShardOptions, tiers: Tiers) -> None:
        self.options = options
        self._tiers = replace(tiers, keeps_log=True)
        self.gate = Gate()
        # Set by any thread, once: why no mutation is taken any more; and what the log said to a
        # wait, after which it takes nothing more by itself. Taken back within the gate's turn.
        self.change_failure = ""
        self.log_failure = ""
        # All below are changed within the gate's turn alone; `server` while nobody reads, either.
        self.is_torn = False  # the rows hold a mutation in part
        self.is_dead = False  # there is no store any more to read from
        self.is_closed = False
        config, described = served_config(place, self._tiers)
        self.server = ParameterServer(config, _tiers=self._tiers)
        try:
            self._refuse_pending_rules()
            self.history = self._find_history()
            self.owners = ShardMap(self.count).owners()
            self.history.sessions.trim(self.options.max_sessions)
            log = self.log
            log.wait(log.appended, True, LONG)  # marks that were replayed hold from now on
            if list(config.tables) != described:
                with self.gate.change(monotonic() + LONG):
                    self.save(AUTOMATIC, {}, "")
        except BaseException:
            self._close_files()
            raise
        self.checkpointer = Checkpointer(self._is_checkpoint_due, self._checkpoint_by_itself)
        self.checkpointer.look()
        refuse_in_children(self, str(config.path), ("gate", "checkpointer"))

    def _refuse_pending_rules(self) -> None:
        """A served store's rules stay: its log does not know others."""
        if changed := self.server.parts.periods.changed():
            raise ConfigError(
                f"{self.server.config.path}: the rules by which rows of {changed} die were changed "
                "and are not in force; open it once with hps.ParameterServer, call "
                "advance_period() and leave its `with` block, then serve it"
            )

    def _find_history(self) -> History:
        index, count = self.options.index, self.options.count
        where = self.server.config.path
        history = self.server.parts.checkpoints.history
        if history is None:
            self._refuse_taken_tag()
            if (count or 1) > 1 and any(map(self.server.num_rows, self.server.tables)):
                raise ConfigError(
                    f"{where} holds rows of all keys; it can be served as shard 0 of 1 only, not "
                    f"as one of {count}"
                )
            checkpoints = self.server.parts.checkpoints
            history = checkpoints.begin_history(index, count, self._tiers.open_log)
        epoch = history.epoch
        asked = (epoch.index if index is None else index, epoch.count if count is None else count)
        if asked != (epoch.index, epoch.count):
            raise ConfigError(
                f"{where} is shard {epoch.index} of {epoch.count}, requested is {asked[0]} of "
                f"{asked[1]}; it is fixed once the store is served: use the stored one"
            )
        return history

    def _refuse_taken_tag(self) -> None:
        """A user's own checkpoint, whose place a shard's would take; those tell of a service."""
        where, own = self.server.config.path, (AUTOMATIC, (SERVICE,))
        is_taken = any(one["tag"] == AUTOMATIC for one in self.server.checkpoints())
        if is_taken and ServedCheckpoint.of(self.server.checkpoint_blobs(*own)) is None:
            raise ConfigError(
                f"{where} has a checkpoint {AUTOMATIC!r}, whose place the server's own would take; "
                f"delete it: 'hps checkpoints {where} --delete {AUTOMATIC}'"
            )

    # What it is.

    @property
    def index(self) -> int:
        """Of this shard, from 0."""
        return self.history.epoch.index

    @property
    def count(self) -> int:
        """Of shards."""
        return self.history.epoch.count

    @property
    def lineage(self) -> str:
        """Names the history of the rows; another one after each restore."""
        return self.history.epoch.lineage

    @property
    def tables(self) -> list[TableConfig]:
        """In the order of creation."""
        return list(self.server.tables.values())

    @property
    def failure(self) -> str:
        """Why no mutation is taken any more; empty while they are."""
        return self.change_failure or self.log_failure

    @property
    def seed(self) -> int:
        """Of new rows' weights."""
        return self.server.config.seed

    def save(
        self,
        tag: str | None,
        blobs: dict[str, bytes],
        group: str,
        turn: ChangeTurn | None = None,
        mark: DenseMark | None = None,
    ) -> Json:
        """Takes a checkpoint. Within the turn: if it is given, others have it while the disk is
        waited for. The mark is as `save` of the server's checkpoints takes it."""
        self.gate.assert_turn()
        self.check_open()
        if self.is_torn:
            self.check_able()
        log, number = self.history.log, self.history.number
        taken = None if turn is None else turn.let_others
        try:
            info = self.server.parts.checkpoints.save(tag, blobs, group, taken, mark)
        except StoreError as error:
            if error.errno == errno.EIO:
                self.fail(f"a checkpoint could not be made: {error}")
            self.make_space(error)
            raise
        if turn is not None:
            turn.take_again(monotonic() + LONG)
            if self.history.log is not log:  # a restore, or another opening, came in between
                return info
            self.history.note_checkpoint(number)
        if log is not None:
            with suppress(StoreError):  # what stays is passed over, and goes with the next cut
                log.cut(number)
        return info

    def _is_checkpoint_due(self) -> bool:
        log = self.history.log
        if log is None or self.change_failure:
            return False
        return log.num_bytes > self.options.log_bytes

    def _checkpoint_by_itself(self) -> None:
        with self.gate.change(monotonic() + LONG) as turn:
            self.save(AUTOMATIC, {}, "", turn)

    def make_space(self, error: StoreError) -> None:
        """After a full disk: files that the log keeps to be used again go; it may be enough."""
        log = self.history.log
        if error.errno == errno.ENOSPC and log is not None:
            with suppress(StoreError):
                log.free_space()

    def open_log(self) -> None:
        """Opens the log of an epoch that has begun. Within the turn."""
        self.gate.assert_turn()
        try:
            self.history.open_log_again(self._tiers.open_log)
        except BaseException as error:
            self.fail(f"the log could not be opened again: {error}")
            raise

    def reopen(self, config: ServedConfig) -> None:
        """The store under another config; all is in its newest checkpoint. Within the turn, while
        nobody reads."""
        self.gate.assert_turn()
        old = self.server.config
        assert isinstance(old, ServedConfig)
        self.history.close_log()
        self.server.close()
        try:
            self.server = ParameterServer(config, _tiers=self._tiers)
        except BaseException as error:
            try:
                self.server = ParameterServer(old, _tiers=self._tiers)
            except BaseException:
                self.is_dead = True
                self.fail(f"the store could not be opened again for a new table: {error}")
                raise
            raise
        finally:
            if (history := self.server.parts.checkpoints.history) is not None:
                self.history = history

    # Lifetime.

    def close(self, checkpoint: bool = True) -> None:
        """Closes store and log; nothing to do the second time.

        Args:
            checkpoint: save one named `last` if anything changed since the newest one. Without it,
                or if it fails, the log has what follows the newest one.

        Raises:
            StoreError: the checkpoint could not be made, or the log not be written; all is closed.
        """
        if self.is_closed:
            return
        self.checkpointer.stop()
        until = monotonic() + LONG
        with self.gate.change(until), self.gate.alone(until):
            if self.is_closed:
                return
            try:
                history = self.history
                if checkpoint and not self.change_failure and history.number != history.kept_number:
                    self.save(LAST, {}, "")
            finally:
                self.is_closed = True
                self._close_files()

    def _close_files(self) -> None:
        history = self.server.parts.checkpoints.history
        try:
            if history is not None:
                history.close_log()
        finally:
            self.server.close()

    # Checks.

    @property
    def log(self) -> UpdateLog:
        """The open log.

        Raises:
            StoreError: it is closed.
        """
        if self.history.log is None:
            self.check_able()
            raise StoreError("the update log is closed")
        return self.history.log

    def table(self, name: str) -> TableConfig:
        """The config of a table.

        Raises:
            ConfigError: there is no such table.
        """
        self.check_alive()
        table = self.server.tables.get(name)
        if table is None:
            raise no_such_table(name)  # others' names are not for all
        return table

    def check_open(self) -> None:
        """StoreError if the shard is closed."""
        if self.is_closed:
            raise StoreError(f"the shard over {self.server.config.path} is closed")

    @contextmanager
    def reading(self, timeout: float) -> Iterator[ParameterServer]:
        """The server, for a `with` block in which it stays what it is.

        Raises:
            DeadlineError: that it was not within `timeout` seconds. StoreError: there is none.
        """
        with self.gate.read(monotonic() + timeout):
            self.check_alive()
            yield self.server

    def check_alive(self) -> None:
        """StoreError if there is no store any more."""
        if self.is_dead:
            raise StoreError(
                errno.EIO,
                f"the shard has lost its store: {self.change_failure}; start the server again: "
                f"store and log hold all acknowledged changes",
            )

    def check_able(self) -> None:
        """StoreError if no mutation is taken any more."""
        self.check_open()
        if self.change_failure:
            raise StoreError(
                errno.EIO, f"the shard takes no changes: {self.change_failure}; start it again"
            )

    def fail(self, reason: str) -> None:
        """From now on no mutation is taken, until a restore."""
        self.change_failure = self.change_failure or reason

    def recover(self) -> None:
        """Rows and marks are those of a checkpoint: what failed before is over. Within the turn."""
        self.gate.assert_turn()
        self.change_failure = self.log_failure = ""
        self.is_torn = False
