"""Turn: the right to do something, had by one thread at a time, in the order in which they asked.

Above it: cached_tier.py, where a turn is the right to reserve slots and to read and write the tier
below. Below it: nothing.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# A wake-up that an interrupt swallowed costs this long, not a deadlock.
_LOOK_AGAIN_SECONDS = 1.0


class Turn:
    """A mutex that is fair: a lock of `threading` goes to whoever runs when it is let go.

    Not re-entrant: a thread that has the turn and asks for it waits for ever.

    >>> turn = Turn()
    >>> with turn.held():
    ...     print("mine")
    mine
    """

    def __init__(self) -> None:
        self._tickets: deque[threading.Event] = deque()  # the first one has the turn

    @contextmanager
    def held(self) -> Iterator[None]:
        """Waits for the turn and keeps it for the `with` block."""
        ticket = threading.Event()
        try:
            self._tickets.append(ticket)
            while self._tickets[0] is not ticket:
                ticket.wait(_LOOK_AGAIN_SECONDS)
            yield
        finally:
            with suppress(ValueError):  # an interrupt came before it was appended
                self._tickets.remove(ticket)
            with suppress(IndexError):  # nobody waits
                self._tickets[0].set()
