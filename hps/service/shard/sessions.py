"""SessionOpener: clients begin and go on with their sessions.

Above it: Shard. Below it: core.py, acknowledge.py, update_log/sessions.py, which remembers them.
"""

from time import monotonic

from hps.service.shard.acknowledge import Acknowledger
from hps.service.shard.answers import Ack, OpenedSession, Terms
from hps.service.shard.core import ServedStore
from hps.update_log import Identity, Kind, Mutation, encode, note
from hps.update_log.records import check_client


class SessionOpener:
    """Of one served store."""

    def __init__(self, store: ServedStore, acknowledger: Acknowledger) -> None:
        self._store = store
        self._acknowledger = acknowledger

    def open(
        self, client_id: str, incarnation: int | None, timeout: float, owner: str
    ) -> OpenedSession:
        """As Shard.open_session."""
        check_client(client_id)
        deadline = monotonic() + timeout
        store, marks_of = self._store, self._acknowledger.marks
        with store.gate.change(deadline):
            sessions = store.history.sessions
            old = sessions.get(client_id)
            if incarnation is not None:
                session = sessions.find(client_id, incarnation)
                session.owner = owner
                marks = marks_of(store.history, store.log, session)
                return OpenedSession(incarnation, marks, store.lineage, True)
            store.check_able()
            mark = 0 if old is None else old.mark
            identity = Identity(client_id, sessions.incarnations + 1, mark + 1)
            mutation = Mutation(Kind.SESSION, identity)
            number = store.log.append(encode(mutation))
            note(store.history, mutation, number)
            session = sessions.find(client_id, identity.incarnation)
            session.owner = owner
            if owner:
                sessions.trim_owned(owner, store.options.max_owned_sessions)
            sessions.trim(store.options.max_sessions)
            lineage, history, log = store.lineage, store.history, store.log
        self._acknowledger.wait(history, log, number, Terms(Ack.DURABLE, deadline - monotonic()))
        marks = marks_of(history, log, session)
        return OpenedSession(identity.incarnation, marks, lineage, old is not None)
