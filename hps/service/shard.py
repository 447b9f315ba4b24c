"""Shard: one store behind the service; every mutation of every client is applied exactly once.

Above it: the handlers of the gRPC server, which turn messages into these calls. Below it:
shard_cuts.py, shard_reads.py, shard_core.py, whose verbs are its own too. Any thread may call.

A mutation's way: its arrays are checked; it waits for its turn, and shortly for the mutations of
its client that it follows; its rows are held in their slots and its sums looked at, so that nothing
can refuse it any more; its record goes to the log; the rows change; the mark moves. Outside the
turn it waits until the log has its record as safe as the caller asked. So at any moment the rows
hold exactly the records up to `history.number`, and a checkpoint, which takes a turn as well, says
so.
"""

import errno
from dataclasses import replace
from time import monotonic
from typing import Any

from hps.arrays import as_floats, as_keys
from hps.errors import (
    ConfigError,
    DeadlineError,
    GapError,
    HpsError,
    StoreError,
)
from hps.row_checks import refuse_impossible_rows
from hps.row_layout import RowLayout
from hps.service.answers import Ack, Applied, OpenedSession, Terms
from hps.service.shard_core import ShardOptions
from hps.service.shard_cuts import ShardCuts
from hps.update_log import (
    History,
    Identity,
    Kind,
    Marks,
    Mutation,
    Session,
    UpdateLog,
    encode,
    note,
)
from hps.update_log.records import check_client

__all__ = ["Ack", "Applied", "Identity", "OpenedSession", "Shard", "ShardOptions", "Terms"]

_PREDECESSOR_SECONDS = 0.2


class Shard(ShardCuts):
    """Opens a store and serves it.

    Args:
        place: the store: with the tables to make sure of, or as it lies there.
        options: see ShardOptions.

    Raises:
        ConfigError: tables or shard map do not fit what is stored. StoreError: another process has
            the store open. CorruptionError: the checkpoint or the log is damaged.

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

    # Sessions.

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
        check_client(client_id)
        deadline = monotonic() + timeout
        with self._gate.change(deadline):
            sessions = self._history.sessions
            old = sessions.get(client_id)
            if incarnation is not None:
                session = sessions.find(client_id, incarnation)
                session.owner = owner
                marks = self._marks(self._history, self._log, session)
                return OpenedSession(incarnation, marks, self.lineage, True)
            self._check_able()
            mark = 0 if old is None else old.mark
            identity = Identity(client_id, sessions.incarnations + 1, mark + 1)
            mutation = Mutation(Kind.SESSION, identity)
            number = self._log.append(encode(mutation))
            note(self._history, mutation, number)
            session = sessions.find(client_id, identity.incarnation)
            session.owner = owner
            if owner:
                sessions.trim_owned(owner, self.options.max_owned_sessions)
            sessions.trim(self.options.max_sessions)
            lineage, history, log = self.lineage, self._history, self._log
        self._await(history, log, number, Terms(Ack.DURABLE, deadline - monotonic()))
        marks = self._marks(history, log, session)
        return OpenedSession(identity.incarnation, marks, lineage, old is not None)

    # Mutations.

    def push(
        self,
        identity: Identity,
        table: str,
        keys: Any,
        grads: Any,
        *,
        lr: float | None = None,
        terms: Terms | None = None,
    ) -> Applied:
        """Sums the gradients of each key in order of occurrence, then runs its optimizer once.

        Args:
            identity: the client's number for it.
            table: its name.
            keys: uint64 or int64 [L], duplicates allowed.
            grads: float32 [L, dim].
            lr: learning rate of this push; None is the table's.
            terms: what to wait for, and how long.

        Raises:
            GapError: an earlier one is missing. FencedError: the session has ended.
            NonFiniteError, CapacityError, ConfigError: refused for what it is; `skip` its sequence.
            StoreError: the disk is full, or log or store have failed; nothing has changed unless
                it was the wait that raised.
            DeadlineError: time is up; the message says whether it is applied.
        """
        config = self._table(table)
        array = as_keys(keys)
        floats = as_floats(grads, len(array), config.dim, "grads")
        rate = self._server.check_rate(table, lr)
        mutation = Mutation(Kind.PUSH, identity, table, rate, array, floats)
        return self._mutate(mutation, terms)

    def assign(
        self,
        identity: Identity,
        table: str,
        keys: Any,
        rows: Any,
        state: Any = None,
        terms: Terms | None = None,
    ) -> Applied:
        """Sets rows outright, as ParameterServer.assign; errors as push."""
        config = self._table(table)
        array = as_keys(keys)
        floats = as_floats(rows, len(array), config.dim, "rows")
        layout = RowLayout(config.optimizer.kind, config.dim)
        numbers = (
            None if state is None else as_floats(state, len(array), layout.state_floats, "state")
        )
        rate = self._server.check_rate(table, None)
        refuse_impossible_rows(config, array, floats, numbers, rate)
        mutation = Mutation(Kind.ASSIGN, identity, table, rate, array, floats, numbers)
        return self._mutate(mutation, terms)

    def erase(
        self, identity: Identity, table: str, keys: Any, terms: Terms | None = None
    ) -> Applied:
        """Drops keys; the answer is bool [L], where a stored row was. Errors as push."""
        self._table(table)
        rate = self._server.check_rate(table, None)
        return self._mutate(Mutation(Kind.ERASE, identity, table, rate, as_keys(keys)), terms)

    def create(
        self, identity: Identity, table: str, keys: Any, terms: Terms | None = None
    ) -> Applied:
        """A pull that stores absent keys; the answer is float32 [L, dim], None where a repeat
        cannot read them. Errors as push."""
        self._table(table)
        rate = self._server.check_rate(table, None)
        mutation = Mutation(Kind.CREATE, identity, table, rate, as_keys(keys))
        applied = self._mutate(mutation, terms)
        if not applied.is_repeat:
            return applied
        try:
            return replace(applied, answer=self.pull(table, keys))
        except (HpsError, MemoryError):  # it is applied: an error would call it refused
            return applied

    def skip(self, identity: Identity, terms: Terms | None = None) -> Applied:
        """Makes a sequence nothing: what it was has been refused, and is given up."""
        return self._mutate(Mutation(Kind.NOTHING, identity), terms)

    def _mutate(self, mutation: Mutation, terms: Terms | None) -> Applied:
        terms = terms or Terms()
        deadline = terms.deadline()
        self._arrived.add(mutation.identity)
        self._moves.tell()
        try:
            return self._mutate_in_order(mutation, terms, deadline)
        finally:
            self._arrived.remove(mutation.identity)
            self._moves.tell()

    def _mutate_in_order(self, mutation: Mutation, terms: Terms, deadline: float) -> Applied:
        identity = mutation.identity
        self._await_predecessor(identity, deadline)
        with self._gate.change(deadline):
            history, log = self._history, self._log
            session = history.sessions.find(identity.client_id, identity.incarnation)
            is_repeat = identity.sequence <= session.mark
            if is_repeat:
                answer = history.sessions.answer(identity)
                number = session.trail.record_of(identity.sequence)
            elif identity.sequence > session.mark + 1:
                raise _gap(identity, session.mark)
            else:
                self._check_able()
                answer = self._apply(mutation)
                number = history.number
        self._moves.tell()
        self._checkpointer.look()
        self._await(history, log, number, Terms(terms.ack, deadline - monotonic()))
        return Applied(self._marks(history, log, session), is_repeat, answer)

    def _apply(self, mutation: Mutation) -> Any:
        """Within the turn: logs a mutation, changes the rows and moves the mark."""
        number = 0
        rows_before = 0 if mutation.kind != Kind.ERASE else self._server.num_rows(mutation.table)

        def log() -> None:
            nonlocal number
            number = self._log.append(encode(mutation))

        answer = None
        try:
            if mutation.kind == Kind.NOTHING:
                log()
            else:
                answer = self._server.change(mutation, log)
        except BaseException as error:
            if number:
                self._undo(mutation, number, rows_before, error)
            if isinstance(error, StoreError):
                self._make_space(error)
            raise
        note(self._history, mutation, number, answer)
        return answer

    def _undo(
        self, mutation: Mutation, number: int, rows_before: int, error: BaseException
    ) -> None:
        """The log has a mutation that the rows did not take.

        Raises:
            StoreError: it stays in the log. No error must say then that it was refused: its client
                would use its sequence for another one.
        """
        is_untouched = (
            mutation.kind == Kind.ERASE
            and isinstance(error, StoreError | ConfigError)
            and self._server.num_rows(mutation.table) == rows_before
        )
        if is_untouched:
            try:
                self._log.take_back(number)  # on the disk, before anybody is told of the refusal
            except StoreError as failure:
                self._fail(f"the log could not take a refused erase back: {failure}")
                raise
        else:
            # Rows may have changed in part. The log has it whole, and the next opening applies it.
            self._is_torn = True
            self._fail(f"a mutation that is in the log could not be applied: {error}")
            if isinstance(error, Exception):  # an interrupt tells nobody that it was refused
                raise StoreError(errno.EIO, self._failure) from error

    def _await_predecessor(self, identity: Identity, deadline: float) -> None:
        """Waits for the mutation that this one follows: shortly if it has not come yet, as long as
        there is time if it is here and waits itself.

        Raises:
            GapError: it did not come, or was refused. FencedError: the session has ended.
        """
        session = self._history.sessions.find(identity.client_id, identity.incarnation)
        if identity.sequence <= session.mark + 1:
            return
        predecessor = replace(identity, sequence=identity.sequence - 1)

        def is_applied() -> bool:
            return predecessor.sequence <= session.mark

        def has_come() -> bool:
            return is_applied() or predecessor in self._arrived

        def has_ended() -> bool:
            return is_applied() or predecessor not in self._arrived

        shortly = min(deadline, monotonic() + _PREDECESSOR_SECONDS)
        if self._moves.wait_until(has_come, shortly):
            self._moves.wait_until(has_ended, deadline)
        if not is_applied():
            raise _gap(identity, session.mark)

    def _await(self, history: History, log: UpdateLog, number: int, terms: Terms) -> None:
        """Waits until a record is as safe as asked."""
        if terms.ack == Ack.MEMORY or number <= history.kept_number:
            return
        is_durable = terms.ack == Ack.DURABLE
        try:
            is_safe = log.wait(number, is_durable, max(0.0, terms.timeout))
        except StoreError as error:
            if number <= history.kept_number:  # the log was closed behind a checkpoint
                return
            if log is self._history.log:
                self._log_failure = str(error)
            # Not its errno: a full disk would tell that nothing has happened.
            raise StoreError(errno.EIO, f"waiting for the log: {error}") from error
        if not is_safe:
            raise DeadlineError(
                f"the deadline passed before the log was "
                f"{'on the disk' if is_durable else 'written'}; the change is applied: send it "
                f"again under the same sequence to wait for it"
            )

    def _marks(self, history: History, log: UpdateLog, session: Session) -> Marks:
        applied, trail = session.mark, session.trail
        durable = max(log.durable, history.kept_number)
        logged = max(log.logged, durable)
        sequences = [min(applied, trail.sequence_at(number)) for number in (logged, durable)]
        return Marks(applied, *sequences)

    def flush(self, ack: Ack, timeout: float = 60.0) -> None:
        """Returns once all that was applied before is logged, or durable.

        Raises:
            StoreError: the log has failed. DeadlineError: time is up.
        """
        deadline = monotonic() + timeout
        with self._gate.change(deadline):
            history, log = self._history, self._log
            number = log.appended
        self._await(history, log, number, Terms(ack, deadline - monotonic()))


def _gap(identity: Identity, mark: int) -> GapError:
    return GapError(
        f"client {identity.client_id!r}: sequence {identity.sequence} came, and {mark + 1} is "
        f"missing; send again from there on",
        mark,
    )
