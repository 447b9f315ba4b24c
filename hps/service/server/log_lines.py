"""The server's log: one JSON object a line on standard error.

Above it: the server and its calls. Below it: nothing. Every line has `time` (seconds since 1970),
`level` ("info", "warning", "error") and `event`; tokens and rows never appear in it.
"""

import json
import threading
import time
from typing import TextIO

_LINES_A_SECOND = 100  # of refused calls: a hostile client must not fill the disk


class LogLines:
    """Writes lines; thread-safe.

    Args:
        out: where to.
        calls: also a line for every call that succeeds.
    """

    def __init__(self, out: TextIO, *, calls: bool = False) -> None:
        self._out = out
        self._lock = threading.Lock()
        self.has_calls = calls
        self._second = 0
        self._in_second = 0
        self._num_dropped = 0

    def info(self, event: str, **fields: object) -> None:
        """Something that is meant to happen."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something to look at one day."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something to look at now."""
        self._write("error", event, fields)

    def call(self, **fields: object) -> None:
        """A call; beyond 100 lines a second they are only counted."""
        second = int(time.time())
        with self._lock:
            if second != self._second:
                self._second, self._in_second = second, 0
            self._in_second += 1
            if self._in_second > _LINES_A_SECOND:
                self._num_dropped += 1
                return
            dropped, self._num_dropped = self._num_dropped, 0
        if dropped:
            fields["lines_dropped_before"] = dropped
        self._write("info", "call", fields)

    def _write(self, level: str, event: str, fields: dict[str, object]) -> None:
        line = {"time": round(time.time(), 3), "level": level, "event": event, **fields}
        text = json.dumps(line, default=str) + "\n"
        with self._lock:
            try:
                self._out.write(text)
                self._out.flush()
            except (OSError, ValueError):
                return  # the reader of our log has gone; serving goes on
