"""Gate: many may read at a time, or one may change.

Above it: model.py, whose requests read; follower.py, which changes rows and weights between two
requests. Below it: threading.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Lets readers in together, and one writer alone; a writer that waits goes first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_readers = 0
        self._num_waiting = 0
        self._is_writing = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Nothing changes meanwhile."""
        with self._changed:
            while self._is_writing or self._num_waiting:
                self._changed.wait()
            self._num_readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_readers -= 1
                if not self._num_readers:
                    self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nobody reads or changes meanwhile."""
        with self._changed:
            self._num_waiting += 1
            try:
                while self._is_writing or self._num_readers:
                    self._changed.wait()
                self._is_writing = True
            finally:
                self._num_waiting -= 1
                if not self._is_writing:  # an interrupt: those that let it go first go on
                    self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
