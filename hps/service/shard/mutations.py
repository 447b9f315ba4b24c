"""Mutations: every mutation of every client is applied exactly once, in its client's order.

Above it: Shard, whose docstrings say what each verb promises and what a mutation's way is. Below
it: core.py, acknowledge.py, reads.py, ParameterServer's part for logged mutations.
"""

import errno
from dataclasses import replace
from time import monotonic

from hps import _C
from hps.common.arrays import AnyArray, HostArray, as_floats, as_keys
from hps.common.field_checks import require_whole
from hps.common.forked import refuse_in_children
from hps.errors import ConfigError, GapError, HpsError, StoreError
from hps.parameter_server.periods import refuse_uncounted
from hps.service.shard.acknowledge import Acknowledger
from hps.service.shard.answers import Applied, PushStep, RowState, Terms
from hps.service.shard.core import ServedStore
from hps.service.shard.gate import Arrivals, Moves
from hps.service.shard.reads import Reads
from hps.table.row_checks import refuse_impossible_rows, refuse_impossible_statistics
from hps.table.rows_where import RowsWhere
from hps.update_log import Identity, Kind, LogEntry, Mutation, note

_PREDECESSOR_SECONDS = 0.2
_ERASURES = (Kind.ERASE, Kind.ERASE_WHERE)
_MAX_EARLY = 64  # mutations that wait for their predecessors, of all clients


class Mutations:
    """Push, assign, erase, erase_where, create, advance_period, skip.

    Args:
        store: served.
        reads: of it.
        acknowledger: of it.
    """

    def __init__(self, store: ServedStore, reads: Reads, acknowledger: Acknowledger) -> None:
        self._store = store
        self._reads = reads
        self._acknowledger = acknowledger
        self._moves = Moves(_MAX_EARLY)
        self._arrived = Arrivals[Identity]()  # mutations that are being worked on, or wait
        refuse_in_children(self, str(store.server.config.path), ("_moves", "_arrived"))

    def push(
        self,
        identity: Identity,
        table: str,
        keys: AnyArray,
        grads: AnyArray,
        step: PushStep | None = None,
        terms: Terms | None = None,
    ) -> Applied:
        """As Shard.push."""
        config, step = self._store.table(table), step or PushStep()
        array = as_keys(keys)
        floats = as_floats(grads, len(array), config.dim, "grads")
        rate = self._store.server.parts.logged.check_rate(table, step.lr)
        occurrences = step.occurrences if config.statistics else None
        if occurrences is not None:
            occurrences.check(len(array), f"push to table {table!r}")
        mutation = Mutation(
            Kind.PUSH, identity, table, rate, array, floats, occurrences=occurrences
        )
        return self._mutate(mutation, terms)

    def assign(
        self,
        identity: Identity,
        table: str,
        keys: AnyArray,
        rows: AnyArray,
        beside: RowState | None = None,
        terms: Terms | None = None,
    ) -> Applied:
        """As Shard.assign."""
        config, beside = self._store.table(table), beside or RowState()
        array = as_keys(keys)
        floats = as_floats(rows, len(array), config.dim, "rows")
        state, width = beside.state, config.layout.state_floats
        numbers = None if state is None else as_floats(state, len(array), width, "state")
        rate = self._store.server.parts.logged.check_rate(table, None)
        refuse_impossible_rows(config, array, floats, numbers, rate)
        statistics = beside.statistics
        if statistics is not None:
            refuse_uncounted(config, "assign(statistics=)")
            server = self._store.server
            rules = server.parts.tables.rules.get(table)
            refuse_impossible_statistics(config, array, statistics, server.period, rules)
        mutation = Mutation(
            Kind.ASSIGN, identity, table, rate, array, floats, numbers, statistics=statistics
        )
        return self._mutate(mutation, terms)

    def erase(
        self, identity: Identity, table: str, keys: AnyArray, terms: Terms | None = None
    ) -> Applied:
        """As Shard.erase."""
        self._store.table(table)
        rate = self._store.server.parts.logged.check_rate(table, None)
        return self._mutate(Mutation(Kind.ERASE, identity, table, rate, as_keys(keys)), terms)

    def erase_where(
        self, identity: Identity, table: str, where: RowsWhere, terms: Terms | None = None
    ) -> Applied:
        """As Shard.erase_where."""
        self._store.table(table)
        return self._mutate(Mutation(Kind.ERASE_WHERE, identity, table, where=where), terms)

    def create(
        self, identity: Identity, table: str, keys: AnyArray, terms: Terms | None = None
    ) -> Applied:
        """As Shard.create."""
        self._store.table(table)
        rate = self._store.server.parts.logged.check_rate(table, None)
        mutation = Mutation(Kind.CREATE, identity, table, rate, as_keys(keys))
        applied = self._mutate(mutation, terms)
        if not applied.is_repeat:
            return applied
        try:
            return replace(applied, answer=self._reads.pull(table, keys))
        except (HpsError, MemoryError):  # it is applied: an error would call it refused
            return applied

    def advance_period(self, identity: Identity, to: int, terms: Terms | None = None) -> Applied:
        """As Shard.advance_period."""
        require_whole("advance_period: to", to, 0, _C.MAX_PERIOD)
        return self._mutate(Mutation(Kind.PERIOD, identity, period=int(to)), terms)

    def skip(self, identity: Identity, terms: Terms | None = None) -> Applied:
        """As Shard.skip."""
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
        with self._store.gate.change(deadline):
            history, log = self._store.history, self._store.log
            session = history.sessions.find(identity.client_id, identity.incarnation)
            is_repeat = identity.sequence <= session.mark
            if is_repeat:
                answer = history.sessions.answer(identity)
                number = session.trail.record_of(identity.sequence)
            elif identity.sequence > session.mark + 1:
                raise _gap(identity, session.mark)
            else:
                self._store.check_able()
                answer = self._apply(mutation)
                number = history.number
        self._moves.tell()
        self._store.checkpointer.look()
        self._acknowledger.wait(history, log, number, Terms(terms.ack, deadline - monotonic()))
        return Applied(self._acknowledger.marks(history, log, session), is_repeat, answer)

    def _apply(self, mutation: Mutation) -> HostArray | None:
        """Within the turn: logs a mutation, changes the rows and moves the mark."""
        self._store.gate.assert_turn()
        server = self._store.server
        rows_before = server.num_rows(mutation.table) if mutation.kind in _ERASURES else 0
        entry = LogEntry(self._store.log, mutation)
        answer = None
        try:
            if mutation.kind == Kind.NOTHING:
                entry.write()
            else:
                answer = server.parts.logged.change(mutation, entry.write)
        except BaseException as error:
            if entry.number:
                self._undo(mutation, entry.number, rows_before, error)
            if isinstance(error, StoreError):
                self._store.make_space(error)
            raise
        note(self._store.history, mutation, entry.number, answer)
        return answer

    def _undo(
        self, mutation: Mutation, number: int, rows_before: int, error: BaseException
    ) -> None:
        """The log has a mutation that the rows did not take. Within the turn.

        Raises:
            StoreError: it stays in the log. No error must say then that it was refused: its client
                would use its sequence for another one.
        """
        self._store.gate.assert_turn()
        is_untouched = (
            mutation.kind in _ERASURES
            and isinstance(error, StoreError | ConfigError)
            and self._store.server.num_rows(mutation.table) == rows_before
        )
        if is_untouched:
            try:
                # On the disk, before anybody is told of the refusal.
                self._store.log.take_back(number)
            except StoreError as failure:
                self._store.fail(f"the log could not take a refused erase back: {failure}")
                raise
        else:
            # Rows may have changed in part. The log has it whole, and the next opening applies it.
            self._store.is_torn = True
            self._store.fail(f"a mutation that is in the log could not be applied: {error}")
            if isinstance(error, Exception):  # an interrupt tells nobody that it was refused
                raise StoreError(errno.EIO, self._store.change_failure) from error

    def _await_predecessor(self, identity: Identity, deadline: float) -> None:
        """Waits for the mutation that this one follows: shortly if it has not come yet, as long as
        there is time if it is here and waits itself.

        Raises:
            GapError: it did not come, or was refused. FencedError: the session has ended.
        """
        session = self._store.history.sessions.find(identity.client_id, identity.incarnation)
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

    def tell(self) -> None:
        """Marks have moved other than by a mutation."""
        self._moves.tell()


def _gap(identity: Identity, mark: int) -> GapError:
    return GapError(
        f"client {identity.client_id!r}: sequence {identity.sequence} arrived, but {mark + 1} is "
        f"missing; send the changes from that one on again",
        mark,
    )
