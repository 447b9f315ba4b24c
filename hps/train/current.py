"""Current: what calls read now, and who still reads what was before.

Above it: model.py, whose calls read; follower.py, which puts a new version in place of the one
before. Below it: threading.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

# Between two looks, for an interrupt may end a reading without a word: a traceback that is kept
# keeps it.
_LONGEST_WAIT_SECONDS = 1.0


class _Held(Generic[T]):
    """A value, and who reads it."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.readers: set[object] = set()


class Current(Generic[T]):
    """A value that many may read while it is replaced: each reads one to its end, and waits for
    nobody.

    >>> current = Current("1")
    >>> with current.reading() as read:
    ...     current.replace("2")
    ...     read, current.value
    ('1', '2')
    """

    def __init__(self, value: T) -> None:
        # Taken by itself, for an interrupt may leave a condition half entered.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Guarded by the lock.
        self._held = _Held(value)
        self._before: list[_Held[T]] = []  # those that were replaced while somebody read them

    @property
    def value(self) -> T:
        """The newest."""
        return self._held.value

    @contextmanager
    def reading(self) -> Iterator[T]:
        """The value as it is now, which counts as read until the end."""
        reader, held = object(), self._held
        try:
            with self._lock:
                held = self._held
                held.readers.add(reader)
            yield held.value
        finally:
            with self._lock:
                held.readers.discard(reader)
                if held is not self._held and not held.readers:
                    self._changed.notify_all()

    def replace(self, value: T) -> None:
        """Who begins to read from now on reads this one."""
        with self._lock:
            if self._held.readers:
                self._before.append(self._held)
            self._held = _Held(value)

    def wait_unread(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Returns once nobody reads what was replaced.

        Args:
            is_over: asked now and then; once it is true nobody is waited for.

        Returns:
            False: somebody may still read.
        """
        with self._lock:
            while any(held.readers for held in self._before):
                if is_over():
                    return False
                self._changed.wait(_LONGEST_WAIT_SECONDS)
            self._before.clear()
            return True
