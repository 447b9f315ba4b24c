"""Checkpointer: a thread that takes a checkpoint when the log has grown long.

Above it: core.py. Below it: nothing. Until a checkpoint holds them, the log's records are needed:
without this thread a server's disk would fill, and its next opening would take longer and longer.
"""

import atexit
import threading
from collections.abc import Callable

_FIRST_PAUSE = 1.0  # seconds after a failure, doubled by each that follows
_LONGEST_PAUSE = 60.0


class Checkpointer:
    """Calls `take` while `is_due`, in a thread of its own.

    Args:
        is_due: asked after each `look`.
        take: what it raises is counted; it is called again after a pause.
    """

    def __init__(self, is_due: Callable[[], bool], take: Callable[[], object]) -> None:
        self._is_due = is_due
        self._take = take
        # Events and the figures below need no lock: one thread alone writes each figure.
        self._wake = threading.Event()
        self._stop = threading.Event()
        self.taken = 0
        self.failures = 0
        self.last_error = ""
        self._thread = threading.Thread(target=self._run, name="hps-checkpointer", daemon=True)
        self._thread.start()
        atexit.register(self.stop)  # no thread may be within native code when Python ends

    def look(self) -> None:
        """The log has grown; cheap."""
        if not self._wake.is_set() and self._is_due():
            self._wake.set()

    def stop(self) -> None:
        """Waits for a checkpoint that is being taken; then takes none."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        atexit.unregister(self.stop)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            self._wake.wait()
            self._wake.clear()  # before looking: what wakes it from now on must not be lost
            if self._stop.is_set():
                return
            try:
                if self._is_due():
                    self._take()
                    self.taken += 1
                pause = _FIRST_PAUSE
            except Exception as error:  # without this thread the log would grow for ever
                self.failures += 1
                self.last_error = str(error) or repr(error)
                self._stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._wake.set()
