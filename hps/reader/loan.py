"""Loan: the bytes behind a URL for pyarrow, whose own threads call Python to read them.

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

from hps.errors import StoreError
from hps.reader.urls import UrlStream

_PAUSE_SECONDS = 0.001


class Loan:
    """Lends a stream, and knows when it is no longer held.

    Args:
        stream: which is closed at the end.
        let_go: drops what holds the lent stream; it is called once, at the end.
    """

    def __init__(self, stream: UrlStream, let_go: Callable[[], None]) -> None:
        self._stream = stream
        self._let_go = let_go
        self._process = os.getpid()
        self._is_back = threading.Event()
        self._is_back.set()
        self._readers: set[int] = set()
        self._last_holder = 0
        atexit.register(self.end)  # of readers that nobody has closed

    def lend(self) -> "LentStream":
        """What pyarrow is to read, once; nobody else may keep it."""
        lent = LentStream(self._stream, self._readers)
        self._is_back.clear()
        weakref.finalize(lent, self._take_back).atexit = False
        return lent

    @property
    def is_over(self) -> bool:
        """True once `end` has been called: what is read now may be cut off."""
        return self._stream.closed

    def _take_back(self) -> None:
        self._last_holder = threading.get_ident()
        self._is_back.set()

    def end(self) -> None:
        """Waits for a read that is under way; then no thread of pyarrow has the stream."""
        atexit.unregister(self.end)
        self._stream.close()  # later reads are refused, and none is tried again
        self._let_go()
        # A forked child has no such threads. One of them may get here when it collects garbage.
        if os.getpid() == self._process and threading.get_ident() not in self._readers:
            self._is_back.wait()
            known = {thread.ident for thread in threading.enumerate()}
            # A thread of pyarrow has let go of it, but may still be within `_take_back`.
            while self._last_holder not in known and self._last_holder in sys._current_frames():
                time.sleep(_PAUSE_SECONDS)


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
