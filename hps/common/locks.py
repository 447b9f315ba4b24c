"""Locks that know their thread, and assertions, always on, that a caller holds what it needs.

Above it: parameter_server, tiers, dram_cache, service/client. Below it: hps._C. A field that a lock
guards says so where it is made; a method that is called under a lock begins with an assertion.
Cost: well below a microsecond.
"""

import threading
from contextlib import ExitStack
from typing import Protocol, cast

from hps import _C


class OwnedLock(Protocol):
    """A re-entrant lock that knows which thread holds it."""

    def __enter__(self) -> object: ...

    def __exit__(self, *error: object) -> None: ...

    def _is_owned(self) -> bool: ...


def new_lock() -> OwnedLock:
    """A lock that nobody holds: a native object, so that no interrupt tears its `with` block."""
    return cast("OwnedLock", threading.RLock())


def hold(lock: OwnedLock, held: ExitStack) -> None:
    """Takes a lock, which this thread has not, until the stack is left; no interrupt tears it."""
    held.callback(_let_go, lock)
    lock.__enter__()


def _let_go(lock: OwnedLock) -> None:
    if lock._is_owned():  # an interrupt may have come before
        lock.__exit__(None, None, None)


def assert_held(lock: OwnedLock) -> None:
    """This thread holds the lock.

    Raises:
        AssertionError: it does not.

    >>> lock = new_lock()
    >>> with lock:
    ...     assert_held(lock)
    >>> assert_held(lock)
    Traceback (most recent call last):
    AssertionError: called without the lock that guards what it works on
    """
    if not lock._is_owned():
        raise AssertionError("called without the lock that guards what it works on")


def assert_turn(turn: _C.Turn) -> None:
    """This thread has the turn.

    Raises:
        AssertionError: it does not.

    >>> turn = _C.Turn()
    >>> with turn:
    ...     assert_turn(turn)
    >>> assert_turn(turn)
    Traceback (most recent call last):
    AssertionError: called without the turn of the table that it works on
    """
    if not turn.is_mine:
        raise AssertionError("called without the turn of the table that it works on")
