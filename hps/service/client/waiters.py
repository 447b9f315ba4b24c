"""Waiters: threads that wait for calls which were begun with push_async and pull_async.

Above it: parameter_server.py. Below it: concurrent.futures.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from hps.common.forked import refuse_in_children
from hps.errors import RemoteError

_MOST_WAITERS = 64  # a slow shard may hold many of them

T = TypeVar("T")


class Waiters:
    """A pool of threads, which has none before it has work.

    Args:
        where: the shards, in words.
    """

    def __init__(self, where: str) -> None:
        # Made here, not where it is first needed: two threads may be the first.
        self._pool = ThreadPoolExecutor(_MOST_WAITERS, "hps remote")
        refuse_in_children(self, where, ("_pool",), RemoteError)

    def wait(self, wait: Callable[[], T]) -> "Future[T]":
        """Has a thread call `wait`.

        Raises:
            RemoteError: the client is closed.
        """
        try:
            return self._pool.submit(wait)
        except RuntimeError as error:  # it takes no more
            raise RemoteError("this client is closed; make a new RemoteParameterServer") from error

    def close(self) -> None:
        """Takes no more, and waits for those that wait."""
        self._pool.shutdown()

    def drop(self) -> None:
        """Takes no more."""
        self._pool.shutdown(wait=False)
