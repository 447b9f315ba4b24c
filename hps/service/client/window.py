"""Window: the changes of one session, bounded, that its shard may still lose or has not answered.

Above it: session.py, which chooses the sequence numbers, sends the changes and holds the lock.
Below it: the frames of messages. Here a number is written into its message: 1, 2, 3 ... without a
gap, and anew in a new incarnation. A change leaves at the front once the shard has it as safe as it
was asked to be, but not before its log has it: until then a killed server may want it again.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message

from hps.common.locks import OwnedLock, assert_held
from hps.errors import HpsError
from hps.service.messages.framing import AnyIncoming, Array, Frame
from hps.service.messages.in_place import OpenMessage
from hps.v1 import parameter_server_pb2 as pb

MEMORY, LOGGED, DURABLE = 0, 1, 2


class Method:
    """How the messages of a method with arrays are put together and taken apart.

    Args:
        request: its message.
        arrays: the fields of its arrays.
        reply: its frame.
        is_slow: it goes over a whole table, or writes its dirty rows, and is not tried again before
            the deadline.
    """

    def __init__(
        self,
        request: type[Message],
        arrays: tuple[int, ...],
        reply: Frame[Any],
        is_slow: bool = False,
    ) -> None:
        self.request = Frame(request, arrays)
        self.arrays = arrays
        self.reply = reply
        self.is_slow = is_slow


METHODS = {
    "Push": Method(pb.PushRequest, (10, 11, 14, 15), Frame(pb.PushReply, ())),
    "Assign": Method(pb.AssignRequest, (11, 13, 14, 15), Frame(pb.AssignReply, ())),
    "Erase": Method(pb.EraseRequest, (15,), Frame(pb.EraseReply, (15,))),
    "EraseWhere": Method(pb.EraseWhereRequest, (), Frame(pb.EraseWhereReply, ()), is_slow=True),
    "Create": Method(pb.CreateRequest, (15,), Frame(pb.CreateReply, (15,))),
    "AdvancePeriod": Method(
        pb.AdvancePeriodRequest, (), Frame(pb.AdvancePeriodReply, ()), is_slow=True
    ),
    "Skip": Method(pb.SkipRequest, (), Frame(pb.SkipReply, ())),
    "Pull": Method(pb.PullRequest, (15,), Frame(pb.PullReply, (15,))),
    "Contains": Method(pb.ContainsRequest, (15,), Frame(pb.ContainsReply, (15,))),
    "Statistics": Method(pb.StatisticsRequest, (15,), Frame(pb.StatisticsReply, (14, 15))),
    "Items": Method(pb.ItemsRequest, (), Frame(pb.ItemsReply, (11, 13, 14, 15))),
}
# What these return is in their replies: marks of later changes do not stand for one.
_NEED_REPLY = ("Erase", "EraseWhere", "Create")


@dataclass(frozen=True)
class Draft:
    """A change that has no number yet.

    Args:
        method: of the service.
        head: its small fields, without the identity.
        arrays: its arrays, in the order of their fields; or a message that they are written in.
        ack: MEMORY, LOGGED or DURABLE.
        what: the change in words.
    """

    method: str
    head: Message
    arrays: Sequence[Array] | OpenMessage
    ack: int
    what: str

    def num_bytes(self) -> int:
        """About as many as its message will have."""
        if isinstance(self.arrays, OpenMessage):
            return self.arrays.num_bytes
        return 256 + sum(
            array.nbytes if isinstance(array, np.ndarray) else len(array) for array in self.arrays
        )


@dataclass(slots=True, eq=False)
class Change:
    """A numbered change.

    Args:
        method, ack, what: as in its draft.
        sequence: its number.
        message: as it travels.
        attempts: how often it was sent.
        reply: of the shard, once there is one.
        is_acknowledged: at the level that was asked for.
        error: why it was refused; it will not be applied.
    """

    method: str
    ack: int
    what: str
    sequence: int
    message: bytes
    attempts: int = 0
    reply: AnyIncoming | None = None
    is_acknowledged: bool = False
    error: HpsError | None = None

    @property
    def is_settled(self) -> bool:
        """True once it is known what became of it."""
        return self.is_acknowledged or self.error is not None


class Window:
    """The changes on their way of one incarnation of a client at one shard.

    Args:
        client_id: of the client.
        most_bytes: that its changes may take together.
        lock: of the session; guards all fields, which are read without it where an older value
            does no harm.
    """

    def __init__(self, client_id: str, most_bytes: int, lock: OwnedLock) -> None:
        self._lock = lock
        self._client_id = client_id
        self._most_bytes = most_bytes
        self.incarnation = 0
        self.base = 0  # the highest sequence that has left
        self.marks = pb.Marks()
        self.freed = 0  # the last number that was used again because its change was refused
        # Appended to by its own method alone, so that no interrupt tears a commit over several.
        self.changes: deque[Change] = deque()

    @property
    def last(self) -> int:
        """The highest sequence that was given to a change."""
        return self.changes[-1].sequence if self.changes else self.base

    def number(self, draft: Draft, sequence: int) -> Change:
        """The draft as the change of that sequence; it is not in the window yet."""
        message = self._message(draft.method, draft.head, draft.arrays, sequence)
        return Change(draft.method, draft.ack, draft.what, sequence, message)

    def fits(self, num_bytes: int) -> bool:
        """Makes room if it can: changes that only the shard's log lacks go, the oldest first."""
        assert_held(self._lock)
        total = num_bytes + sum(len(change.message) for change in self.changes)
        while total > self._most_bytes and self.changes and self.changes[0].is_acknowledged:
            total -= len(self._drop().message)
        return not self.changes or total <= self._most_bytes

    def take_in(self, marks: pb.Marks) -> None:
        """Notes how far the shard is; what it has safe leaves."""
        assert_held(self._lock)
        current = self.marks
        self.marks = pb.Marks(
            applied=max(current.applied, marks.applied),
            logged=max(current.logged, marks.logged),
            durable=max(current.durable, marks.durable),
        )
        self._trim()

    def start_from(self, marks: pb.Marks) -> None:
        """As take_in, of a shard that may have been started again: marks may have fallen."""
        assert_held(self._lock)
        self.marks = marks
        self._trim()

    def next_to_send(self, after: int) -> Change | None:
        """The first change beyond `after` that the shard lacks or has not answered for."""
        assert_held(self._lock)
        for change in self.changes:
            is_lacking = change.sequence > self.marks.applied or not change.is_acknowledged
            if change.sequence > after and is_lacking:
                return change
        return None

    def give_up(self, change: Change) -> None:
        """Takes a refused change back: it never was, or its number becomes nothing."""
        assert_held(self._lock)
        if change.attempts == 1 and self.changes and self.changes[-1] is change:
            self.changes.pop()  # it was answered, so no copy of it is still on its way
            self.freed = change.sequence
            return
        message = self._message("Skip", pb.SkipRequest(), (), change.sequence)
        skip = Change("Skip", MEMORY, f"giving up {change.what}", change.sequence, message)
        self.changes[change.sequence - self.base - 1] = skip

    def withdraw_unsent(self, error: HpsError) -> None:
        """Refuses the changes at the end that were never sent."""
        assert_held(self._lock)
        while self.changes and not self.changes[-1].attempts:
            self.changes.pop().error = error

    def renumber(self, incarnation: int, marks: pb.Marks) -> None:
        """What is left goes on in another incarnation, from its mark."""
        assert_held(self._lock)
        self.incarnation = incarnation
        self.base = marks.applied
        self.marks = marks
        self.freed = 0
        for sequence, change in enumerate(self.changes, self.base + 1):
            method = METHODS[change.method]
            incoming = method.request.split(change.message)
            places = [incoming.places.get(number, (0, 0)) for number in method.arrays]
            arrays = [memoryview(change.message)[at : at + size] for at, size in places]
            if arrays:
                incoming.head.ClearField("padding")
            change.message = self._message(change.method, incoming.head, arrays, sequence)
            change.sequence = sequence
            change.attempts = 0

    def clear(self, error: HpsError) -> None:
        """Ends all: the shard takes nothing of this incarnation any more."""
        assert_held(self._lock)
        for change in self.changes:
            if not change.is_settled:
                change.error = error
        self.base = self.last
        self.changes.clear()

    def _message(
        self, method: str, head: Message, arrays: Sequence[Array] | OpenMessage, sequence: int
    ) -> bytes:
        identity: pb.Identity = head.id  # type: ignore[attr-defined]
        identity.client_id = self._client_id
        identity.incarnation = self.incarnation
        identity.sequence = sequence
        if isinstance(arrays, OpenMessage):
            return arrays.finish(head)
        return METHODS[method].request.join(head, arrays)

    def _trim(self) -> None:
        marks = (self.marks.applied, self.marks.logged, self.marks.durable)
        for change in self.changes:
            if change.sequence <= marks[change.ack] and change.method not in _NEED_REPLY:
                change.is_acknowledged = True
        while self.changes and self.changes[0].is_acknowledged:
            if self.changes[0].sequence > marks[max(LOGGED, self.changes[0].ack)]:
                break
            self._drop()

    def _drop(self) -> Change:
        change = self.changes.popleft()
        self.base = change.sequence
        return change
