"""Burial: a thread that erases dead rows in pieces, beside all else that a store does.

Above it: store.py. Below it: the store's worker, on which each piece runs as a change of its own.
"""

import threading
from collections.abc import Callable

from hps.errors import HpsError


class Burial:
    """Begins to work when it is told to, and rests when no dead row is left.

    Args:
        bury: erases some; tells their bytes, 0 when none is left.
        bytes_per_second: its pace.
    """

    def __init__(self, bury: Callable[[], int], bytes_per_second: float) -> None:
        self._bury = bury
        self._pace = bytes_per_second
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_wanted = False  # the lock guards both
        self._ends = threading.Event()

    def begin(self) -> None:
        """There may be dead rows."""
        with self._lock:
            self._is_wanted = not self._ends.is_set()
            if self._is_wanted and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="rocksdb-burial", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._is_wanted:
                    self._thread = None
                    return
                self._is_wanted = False
            try:
                while num_bytes := self._bury():
                    if self._ends.wait(num_bytes / self._pace):
                        break
            except HpsError:
                pass  # of a store that is closed, stopped or full: the next period tries again

    def stop(self) -> None:
        """Waits for the piece that is being erased; `begin` does nothing from now on."""
        self._ends.set()
        with self._lock:
            self._is_wanted = False
            thread = self._thread
        if thread is not None:
            thread.join()
