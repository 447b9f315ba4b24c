"""Gate: who may change a shard, one after the other; who may read it meanwhile; and for how long
they wait.

Above it: core.py, mutations.py. Below it: nothing. Every wait ends at the caller's deadline.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Generic, TypeVar

from hps.errors import DeadlineError

T = TypeVar("T")


class Gate:
    """One change at a time, in the order of asking; reads beside them, but for a closing.

    >>> gate = Gate()
    >>> with gate.change(monotonic() + 1), gate.read(monotonic() + 1):
    ...     gate.num_waiting
    0
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        # All guarded by the mutex.
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()
        self._readers = 0
        self._is_closing = False
        # The thread that has the turn: set by it; another one may read an old value, never its own.
        self._owner = 0
        self._may_read = threading.Condition(self._mutex)
        self._is_unread = threading.Condition(self._mutex)

    @property
    def num_waiting(self) -> int:
        """Changes that wait for their turn."""
        return len(self._waiting)

    @contextmanager
    def change(self, deadline: float) -> Iterator["ChangeTurn"]:
        """For a `with` block in which nobody else changes anything, unless it lets others in.

        Args:
            deadline: on the monotonic clock, in seconds.

        Raises:
            DeadlineError: the turn did not come in time.
        """
        self.take(deadline)
        turn = ChangeTurn(self)
        try:
            yield turn
        finally:
            turn.let_others()

    def take(self, deadline: float) -> None:
        """The turn is the caller's until `give`; see `change`."""
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                self._owner = threading.get_ident()
                return
            ticket = threading.Event()
            self._waiting.append(ticket)
        if ticket.wait(max(0.0, deadline - monotonic())):
            self._owner = threading.get_ident()
            return
        with self._mutex:
            if ticket.is_set():
                self._owner = threading.get_ident()
                return
            self._waiting.remove(ticket)
        raise DeadlineError(
            "the deadline passed while the shard made other changes; nothing was changed: send the "
            "call again with a longer deadline, or send fewer at once"
        )

    def give(self) -> None:
        """The turn is the next one's."""
        with self._mutex:
            self._owner = 0
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._is_taken = False

    def assert_turn(self) -> None:
        """This thread has the turn; always on.

        Raises:
            AssertionError: it has not.
        """
        if self._owner != threading.get_ident():
            raise AssertionError("called without the turn of the shard that it changes")

    @contextmanager
    def read(self, deadline: float) -> Iterator[None]:
        """For a `with` block in which the server object stays what it is.

        Raises:
            DeadlineError: the store was being opened anew all the time.
        """
        with self._mutex:
            seconds = max(0.0, deadline - monotonic())
            if not self._may_read.wait_for(lambda: not self._is_closing, seconds):
                raise DeadlineError(
                    "the deadline passed while the store was reopened for a new table; nothing was "
                    "read: send the call again"
                )
            self._readers += 1
        try:
            yield
        finally:
            with self._mutex:
                self._readers -= 1
                if not self._readers:
                    self._is_unread.notify_all()

    @contextmanager
    def alone(self, deadline: float) -> Iterator[None]:
        """For a `with` block, within a change, in which nobody reads.

        Raises:
            DeadlineError: reads that had begun before did not end in time.
        """
        self.assert_turn()
        try:
            with self._mutex:
                self._is_closing = True
                seconds = max(0.0, deadline - monotonic())
                if not self._is_unread.wait_for(lambda: not self._readers, seconds):
                    raise DeadlineError(
                        f"the deadline passed while {self._readers} reads of the shard went on; "
                        "nothing was changed: send the call again with a longer deadline"
                    )
            yield
        finally:
            with self._mutex:
                self._is_closing = False
                self._may_read.notify_all()


class Arrivals(Generic[T]):
    """Thread-safe multiset of what is in flight.

    >>> arrivals = Arrivals[int]()
    >>> arrivals.add(7), arrivals.add(7), arrivals.remove(7), 7 in arrivals
    (None, None, None, True)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[T, int] = {}  # written under the lock; `in` takes none

    def __contains__(self, thing: T) -> bool:
        return thing in self._counts

    def add(self, thing: T) -> None:
        """It has come."""
        with self._lock:
            self._counts[thing] = self._counts.get(thing, 0) + 1

    def remove(self, thing: T) -> None:
        """One of it has gone."""
        with self._lock:
            left = self._counts[thing] - 1
            if left:
                self._counts[thing] = left  # no moment without it: `in` takes no lock
            else:
                del self._counts[thing]


class ChangeTurn:
    """The turn of one `with` block."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._is_held = True

    def let_others(self) -> None:
        """Others may change things from now on; nothing to do the second time."""
        if self._is_held:
            self._is_held = False
            self._gate.give()

    def take_again(self, deadline: float) -> None:
        """Waits for the turn once more if others were let in; errors as Gate.change."""
        if not self._is_held:
            self._gate.take(deadline)
            self._is_held = True


class Moves:
    """Lets who comes too early wait for the marks to move, but few of them, and shortly."""

    def __init__(self, most: int) -> None:
        self._moved = threading.Condition()
        self._most = most
        self._waiting = 0  # written under the condition; `tell` looks without it

    def tell(self) -> None:
        """A mark has moved."""
        if self._waiting:
            with self._moved:
                self._moved.notify_all()

    def wait_until(self, is_done: Callable[[], bool], deadline: float) -> bool:
        """True once `is_done`; False when time is up, or too many wait already."""
        with self._moved:
            if self._waiting >= self._most:
                return is_done()
            self._waiting += 1
            try:
                return self._moved.wait_for(is_done, max(0.0, deadline - monotonic()))
            finally:
                self._waiting -= 1
