"""Acknowledger: waits until the log has a record as safe as a caller asked.

Above it: mutations.py, sessions.py, Shard. Below it: core.py. No wait is within the turn.
"""

import errno
from time import monotonic

from hps.errors import DeadlineError, StoreError
from hps.service.shard.answers import Ack, Terms
from hps.service.shard.core import ServedStore
from hps.update_log import History, Marks, Session, UpdateLog


class Acknowledger:
    """Of one served store."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store

    def wait(self, history: History, log: UpdateLog, number: int, terms: Terms) -> None:
        """Waits until a record is as safe as asked.

        Args:
            history: of when the record was made.
            log: of that history.
            number: of the record.
            terms: what to wait for, and how long.

        Raises:
            StoreError: the log has failed. DeadlineError: time is up; the change is applied.
        """
        if terms.ack == Ack.MEMORY or number <= history.kept_number:
            return
        is_durable = terms.ack == Ack.DURABLE
        try:
            is_safe = log.wait(number, is_durable, max(0.0, terms.timeout))
        except StoreError as error:
            if number <= history.kept_number:  # the log was closed behind a checkpoint
                return
            if log is self._store.history.log:
                self._store.log_failure = str(error)
            # Not its errno: a full disk would tell that nothing has happened.
            raise StoreError(errno.EIO, f"waiting for the log: {error}") from error
        if not is_safe:
            raise DeadlineError(
                f"the deadline passed before the log was "
                f"{'on the disk' if is_durable else 'written'}; the change is applied: send it "
                f"again under the same sequence to wait for it"
            )

    def marks(self, history: History, log: UpdateLog, session: Session) -> Marks:
        """How far a session is: applied, logged and durable."""
        applied, trail = session.mark, session.trail
        durable = max(log.durable, history.kept_number)
        logged = max(log.logged, durable)
        sequences = [min(applied, trail.sequence_at(number)) for number in (logged, durable)]
        return Marks(applied, *sequences)

    def flush(self, ack: Ack, timeout: float) -> None:
        """As Shard.flush."""
        deadline = monotonic() + timeout
        with self._store.gate.change(deadline):
            history, log = self._store.history, self._store.log
            number = log.appended
        self.wait(history, log, number, Terms(ack, deadline - monotonic()))
