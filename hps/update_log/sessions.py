"""Sessions: which mutations of each client are applied, and which client may go on.

Above it: history.py, replay.py, hps/service/shard/sessions.py. Below it: nothing. A client numbers
its mutations 1, 2, 3 ...; its mark is the highest that is applied. Marks and rows change by the
same record, and are in the same checkpoint. The caller keeps others away, but from get and
find: they may run beside anything, and a session that is known is found at every moment.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from hps.common.arrays import HostArray
from hps.common.json_text import Json
from hps.errors import FencedError
from hps.update_log.records import Identity

MAX_SESSIONS = 10_000
_MAX_STEPS = 64
_MAX_ANSWERS = 64
_MAX_ANSWER_KEYS = 2**16


@dataclass(frozen=True, slots=True)
class Marks:
    """How far a session is: highest sequences, 0 for none; durable <= logged <= applied."""

    applied: int
    logged: int
    durable: int


class Trail:
    """Which record of the log holds which sequence of one session, as far back as it matters.

    A few dozen steps are kept, fewer from longer ago; answers err towards less.

    >>> trail = Trail(7)
    >>> trail.add(100, 8)
    >>> trail.add(103, 9)
    >>> trail.sequence_at(102), trail.record_of(9)
    (8, 103)
    """

    def __init__(self, mark: int) -> None:
        # (record, sequence), both rising. Replaced or appended to, so that readers need no lock.
        self._steps = [(0, mark)]

    def add(self, number: int, sequence: int) -> None:
        """Record `number` holds `sequence`; both above all before."""
        self._steps.append((number, sequence))
        if len(self._steps) > _MAX_STEPS:
            half = _MAX_STEPS // 2
            self._steps = [self._steps[0], *self._steps[1:half:2], *self._steps[half:]]

    def sequence_at(self, number: int) -> int:
        """A sequence up to which all is in records up to `number`."""
        steps = self._steps
        return steps[bisect_right(steps, number, key=lambda step: step[0]) - 1][1]

    def record_of(self, sequence: int) -> int:
        """A record up to which `sequence` is held; 0 if it has been durable for long."""
        steps = self._steps
        idx = bisect_right(steps, sequence - 1, key=lambda step: step[1])
        return steps[min(idx, len(steps) - 1)][0]

    def forget(self, number: int) -> None:
        """Records up to `number` are durable; nobody asks for earlier ones again."""
        steps = self._steps
        idx = bisect_right(steps, number, key=lambda step: step[0]) - 1
        if idx > 0:
            self._steps = [(0, steps[idx][1]), *steps[idx + 1 :]]


@dataclass(slots=True)
class Session:
    """One client's.

    Args:
        incarnation, mark: as the module says.
        owner: who has opened it, as far as this process knows.
    """

    incarnation: int
    mark: int
    owner: str = ""
    trail: Trail = field(init=False)

    def __post_init__(self) -> None:
        self.trail = Trail(self.mark)


class Sessions:
    """Those of all clients, least recently used first.

    Incarnations are drawn from one counter, so that none is ever given twice, also when a session
    has been dropped for newer ones.
    """

    def __init__(self) -> None:
        self.incarnations = 0  # the highest that was given out
        self.fence = 0  # those up to it have ended: a restore came after them
        self._by_client: OrderedDict[str, Session] = OrderedDict()
        self._answers: dict[tuple[str, int], HostArray] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[tuple[str, Session]]:
        return iter(self._by_client.items())

    def get(self, client_id: str) -> Session | None:
        """A client's, if it is known."""
        return self._by_client.get(client_id)

    def find(self, client_id: str, incarnation: int) -> Session:
        """The session that a client says it is in.

        Raises:
            FencedError: it has ended, or is unknown.
        """
        session = self._by_client.get(client_id)
        what = f"client {client_id!r}, incarnation {incarnation}"
        advice = "open a session for a new incarnation; it says how far the old one came"
        if session is None:
            raise FencedError(f"{what}: no such session is known here (any more); {advice}")
        if incarnation <= self.fence:
            raise FencedError(f"{what}: a restore ended the session; {advice}")
        if incarnation != session.incarnation:
            raise FencedError(
                f"{what}: incarnation {session.incarnation} is the newest; stop this client, or "
                f"{advice}"
            )
        return session

    # What records do.

    def renew(self, client_id: str, incarnation: int, mark: int) -> Session:
        """A record says that a client is in a new incarnation, which starts at a mark: that of the
        old one, or 0 if that had been dropped when the record was made."""
        session = Session(incarnation, mark)
        self._by_client[client_id] = session
        self._by_client.move_to_end(client_id)
        self.incarnations = max(self.incarnations, incarnation)
        return session

    def advance(self, identity: Identity, number: int, answer: HostArray | None = None) -> None:
        """Record `number` holds this mutation, and the rows hold it.

        Args:
            answer: kept for a repeat whose client has not seen it, as long as there are few newer.
        """
        session = self._by_client[identity.client_id]
        self._by_client.move_to_end(identity.client_id)  # now the most recently used
        session.mark = identity.sequence
        session.trail.add(number, identity.sequence)
        if answer is not None and len(answer) <= _MAX_ANSWER_KEYS:
            self._answers[identity.client_id, identity.sequence] = answer
            if len(self._answers) > _MAX_ANSWERS:
                del self._answers[next(iter(self._answers))]

    def answer(self, identity: Identity) -> HostArray | None:
        """What a mutation that is applied had been answered; None if that is not known any more."""
        return self._answers.get((identity.client_id, identity.sequence))

    def trim(self, most: int) -> None:
        """Drops the least recently used sessions above a number; their clients are fenced."""
        while len(self._by_client) > most:
            del self._by_client[next(iter(self._by_client))]

    def trim_owned(self, owner: str, most: int) -> None:
        """As trim, of the sessions that one owner has opened."""
        owned = [name for name, session in self._by_client.items() if session.owner == owner]
        for name in owned[: max(0, len(owned) - most)]:
            del self._by_client[name]

    def settle(self, number: int) -> None:
        """Records up to `number` are durable."""
        for session in self._by_client.values():
            session.trail.forget(number)

    # In checkpoints.

    def to_json(self) -> Json:
        """Plain values; from_json makes the same of them."""
        listed = [[name, session.incarnation, session.mark] for name, session in self]
        return {"incarnations": self.incarnations, "fence": self.fence, "sessions": listed}

    @classmethod
    def from_json(cls, value: Json) -> "Sessions":
        """What to_json gave; KeyError, TypeError, ValueError if it is something else."""
        sessions = cls()
        sessions.incarnations = int(value["incarnations"])
        sessions.fence = int(value["fence"])
        for client_id, incarnation, mark in value["sessions"]:
            sessions._by_client[str(client_id)] = Session(int(incarnation), int(mark))
        return sessions
