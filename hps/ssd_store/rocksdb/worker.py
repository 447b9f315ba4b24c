"""Worker: the one thread of a store on which all that changes it runs, whole.

Above it: store.py. Below it: a thread. An interrupt of the caller (Ctrl-C) is raised when
the work has ended, so that none is cut in half between two calls of RocksDB.
"""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from hps.errors import StoreError
from hps.ssd_store.rocksdb.database import translated

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


def closed_error(path: Path) -> StoreError:
    """What every verb of a closed store raises."""
    return StoreError(errno.EBADF, f"{path}: the store has been closed; open it again")


class Worker:
    """Calls functions one after the other on its thread.

    Args:
        path: of the store.
        showing: a context for each call, in which errors get the paths that callers know.

    >>> worker = Worker(Path("store"))
    >>> worker.run(lambda: 7)
    7
    >>> worker.stop()
    """

    def __init__(
        self, path: Path, showing: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._path = path
        self._showing = showing
        self._executor = ThreadPoolExecutor(1, "rocksdb-store")

    def run(self, work: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> _Result:
        """Calls work(*arguments) and waits for its end.

        Raises:
            StoreError: the worker was stopped. What work raises, translated to hps's errors.
            KeyboardInterrupt: it came meanwhile; the work has ended all the same.
        """

        def call() -> _Result:
            with self._showing(), translated(self._path):
                return work(*arguments)

        try:
            future = self._executor.submit(call)
        except RuntimeError as error:
            raise closed_error(self._path) from error
        interrupt: KeyboardInterrupt | None = None
        while not future.done():
            try:
                wait([future])
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return future.result()

    def stop(self) -> None:
        """Waits for what is being done; `run` raises from now on."""
        self._executor.shutdown()
