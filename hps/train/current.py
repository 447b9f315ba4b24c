"""Current: what calls read now, and who still reads what was before.

Above it: model.py, whose calls read; follower.py, which puts a new version in place of the one
before. Below it: threading.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class _Held(Generic[T]):
    """A value, and how many read it."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.num_readers = 0


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
        self._changed = threading.Condition(threading.Lock())
        # Guarded by the lock of the condition.
        self._held = _Held(value)
        self._before: list[
            _Held[T]
        ] = []  # those that were replaced, as long as somebody reads them

    @property
    def value(self) -> T:
        """The newest."""
        return self._held.value

    @contextmanager
    def reading(self) -> Iterator[T]:
        """The value as it is now, which counts as read until the end."""
        with self._changed:
            held = self._held
            held.num_readers += 1
        try:
            yield held.value
        finally:
            with self._changed:
                held.num_readers -= 1
                if held is not self._held and not held.num_readers:
                    self._before.remove(held)
                    self._changed.notify_all()

    def replace(self, value: T) -> None:
        """Who begins to read from now on reads this one."""
        with self._changed:
            if self._held.num_readers:
                self._before.append(self._held)
            self._held = _Held(value)

    def wait_unread(self) -> None:
        """Returns once nobody reads what was replaced."""
        with self._changed:
            while self._before:
                self._changed.wait()
