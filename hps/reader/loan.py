"""Loan: what pyarrow's own threads call of Python: the bytes behind a URL, the rule of bad rows.

Above it: csv_blocks.py. Below it: urls.py. pyarrow reads ahead, and goes on when its reader is
closed. A thread of it that enters Python while the interpreter ends aborts the process.
"""

import atexit
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from hps.errors import StoreError
from hps.reader.urls import UrlStream

_PAUSE_SECONDS = 0.001

T = TypeVar("T")


class Loan:
    """Lends a stream, and knows when it is no longer held.

    Args:
        stream: which is closed at the end; None of a local file.
        let_go: drops what holds the lent stream; it is called once, at the end.
    """

    def __init__(self, stream: UrlStream | None, let_go: Callable[[], None]) -> None:
        self._stream = stream
        self._let_go = let_go
        self._process = os.getpid()
        self._out = 0  # the holder of the GIL alone changes these
        self._all_back = threading.Condition(threading.RLock())
        self._readers: set[int] = set()
        self._last_holders: set[int] = set()
        self.is_over = False  # what is read from now on may be cut off
        atexit.register(self.end)  # of readers that nobody has closed

    def lend(self) -> "LentStream":
        """The stream, for pyarrow to read; nobody else may keep it."""
        if self._stream is None:
            raise AssertionError("no stream to lend")
        return self._lent(LentStream(self._stream, self._readers))

    def lend_call(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A function for pyarrow to call; nobody else may keep it."""
        return self._lent(LentCall(function))

    def _lent(self, lent: T) -> T:
        with self._all_back:
            self._out += 1
        weakref.finalize(lent, self._take_back).atexit = False
        return lent

    def _take_back(self) -> None:
        with self._all_back:
            self._out -= 1
            self._last_holders.add(threading.get_ident())
            self._all_back.notify_all()

    def end(self) -> None:
        """Waits for a read that is under way; then no thread of pyarrow has the stream."""
        atexit.unregister(self.end)
        self.is_over = True
        if self._stream is not None:
            self._stream.close()  # later reads are refused, and none is tried again
        self._let_go()
        # A forked child has no such threads. One of them may get here when it collects garbage.
        if os.getpid() != self._process or threading.get_ident() in self._readers:
            return
        with self._all_back:
            self._all_back.wait_for(lambda: not self._out)
        # A thread of pyarrow has let go, but may still be within `_take_back`.
        foreign = self._last_holders - {thread.ident for thread in threading.enumerate()}
        while foreign & sys._current_frames().keys():
            time.sleep(_PAUSE_SECONDS)


class LentCall:
    """A function that pyarrow calls."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, given: Any) -> Any:
        return self._function(given)


class LentStream:
    """The verbs of a file that pyarrow calls.

    Args:
        stream: that has the bytes.
        readers: threads that are within `read`.
    """

    closed = False

    def __init__(self, stream: UrlStream, readers: set[int]) -> None:
        self._stream = stream
        self._readers = readers

    def read(self, size: int = -1) -> bytes:
        """As UrlStream has it; nothing once that is closed: pyarrow would keep an error."""
        thread = threading.get_ident()
        self._readers.add(thread)
        try:
            return self._stream.read(size)
        except StoreError:
            if not self._stream.closed:
                raise
            return b""
        finally:
            self._readers.discard(thread)

    def seek(self, offset: int, whence: int = 0) -> int:
        """As a file has it."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """As a file has it."""
        return self._stream.tell()

    def close(self) -> None:
        """pyarrow is done with it; the Loan closes the stream."""
        self.closed = True
