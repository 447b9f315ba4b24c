"""Burial: a thread that erases dead rows in pieces, beside all else that a store does.

Above it: store.py. Below it: the store's worker, on which each piece runs as a change of its own.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from hps.errors import HpsError, StoreError

RETRY_SECONDS = 10.0


class Burial:
    """Begins to work when it is told to, and rests when no dead row is left.

    What the system refuses is tried again after a wait; damage waits for the next `begin`.

    Args:
        path: of the store, for warnings.
        bury: erases some; tells their bytes, 0 when none is left.
        bytes_per_second: its pace.
    """

    def __init__(self, path: Path, bury: Callable[[], int], bytes_per_second: float) -> None:
        self._path = path
        self._bury = bury
        self._pace = bytes_per_second
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_wanted = False  # the lock guards both
        self._ends = threading.Event()
        self.failure = ""  # what stopped the last piece; empty once one went well

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
                self._bury_all()
            except HpsError as error:
                self._tell(error)
                if isinstance(error, StoreError) and not self._ends.wait(RETRY_SECONDS):
                    self.begin()

    def _bury_all(self) -> None:
        while not self._ends.is_set():
            num_bytes = self._bury()
            self.failure = ""
            if not num_bytes:
                return
            self._ends.wait(num_bytes / self._pace)

    def _tell(self, error: HpsError) -> None:
        """Once for all failures that follow each other."""
        if not self.failure:
            again = f"in {RETRY_SECONDS:g} s" if isinstance(error, StoreError) else "next period"
            logging.getLogger(__name__).warning(
                "hps: warning: %s: dead rows keep their space, as erasing them failed: %s: %s; it "
                "is tried again %s (stats: dead_rows, erasing_failure)",
                self._path,
                type(error).__name__,
                error,
                again,
            )
        self.failure = f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        """Waits for the piece that is being erased; `begin` does nothing from now on."""
        self._ends.set()
        with self._lock:
            self._is_wanted = False
            thread = self._thread
        if thread is not None:
            thread.join()
