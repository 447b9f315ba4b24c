"""Ends calls that hold a place for too long: bodies that do not arrive, replies that nobody reads.

Above it: calls.py. Below it: a thread that looks once a second. gRPC itself ends a call at the
deadline that its client gave; this is for calls without one and for streams that stall.
"""

import threading
import time
from collections.abc import Callable

_PERIOD_SECONDS = 1.0


class Watch:
    """One watched call. `due` is the monotonic time at which it is cancelled."""

    def __init__(self, cancel: Callable[[], object], due: float) -> None:
        self.cancel = cancel
        self.due = due
        self.is_idle = False  # a stream that waits for its client


class Watchdog:
    """Watches calls; thread-safe. `close` ends its thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: set[Watch] = set()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hps-watchdog", daemon=True)
        self._thread.start()

    def watch(self, cancel: Callable[[], object], due: float) -> Watch:
        """Cancels a call at `due`, until it is released; `due` may be moved meanwhile."""
        watch = Watch(cancel, due)
        with self._lock:
            self._watches.add(watch)
        return watch

    def release(self, watch: Watch) -> None:
        """The call has ended."""
        with self._lock:
            self._watches.discard(watch)

    def end_idle_streams(self) -> None:
        """Cancels the streams that wait for their clients."""
        with self._lock:
            idle = [watch for watch in self._watches if watch.is_idle]
        for watch in idle:
            watch.cancel()

    def close(self) -> None:
        """Ends the thread; nothing is cancelled any more."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_closed.wait(_PERIOD_SECONDS):
            now = time.monotonic()
            with self._lock:
                overdue = [watch for watch in self._watches if watch.due <= now]
                self._watches.difference_update(overdue)
            for watch in overdue:
                watch.cancel()
