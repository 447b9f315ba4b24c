"""HeldFolder: a folder behind a descriptor, for what Python writes into it.

Above it: the RocksDB store, cluster folders. Below it: `hps._C.HeldFolder`
(csrc/files/held_folder.h). A store is the folder that was opened, not whatever its path leads
to later. Libraries open by path: they are given the descriptor's name in /proc, which leads to the
folder wherever it is moved.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hps import _C
from hps.errors import HpsError, StoreError

_DESCRIPTORS = "/proc/self/fd"


def inside(path: Path, descriptor: int) -> Path:
    """A name of the folder behind a descriptor, as long as that is open; without /proc its path."""
    own = Path(_DESCRIPTORS, str(descriptor))
    return own if descriptor >= 0 and own.is_dir() else path


class HeldFolder:
    """Holds a folder until `close`.

    Args:
        path: of the folder, which is there; made absolute.

    Raises:
        StoreError: the system refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = HeldFolder(Path(path) / ".")
    ...     folder.check()
    ...     folder.close()
    """

    def __init__(self, path: Path) -> None:
        self._native: _C.HeldFolder | None = _C.HeldFolder.open(os.fspath(path.absolute()))
        self.path = Path(self._native.path)
        self.inside = inside(self.path, self._native.descriptor)

    def try_lock(self) -> bool:
        """Keeps other writers out, whatever becomes of the lock file; False if one is there.

        A file system that locks no folders grants it.
        """
        return self._open_native().try_lock()

    def guard(self, descriptor: int, name: str) -> None:
        """From now on `check` looks at a file of the folder too, which stays open until `close`."""
        self._open_native().guard(descriptor, os.fspath(self.path / name))

    def check(self) -> None:
        """Before a commit, and before it is told of.

        Raises:
            StoreError: ESTALE: the folder, or the guarded file, is not at its path any more; says
                what happened. Another errno: the system does not tell.

        Cost: four stats.
        """
        self._open_native().check()

    def shown(self, text: str) -> str:
        """A message with the folder's path in the place of the descriptor's name."""
        return text.replace(str(self.inside), str(self.path))

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Errors that pass through name the folder by its path."""
        try:
            yield
        except HpsError as error:
            error.args = tuple(self.shown(x) if isinstance(x, str) else x for x in error.args)
            if isinstance(error, OSError) and isinstance(error.strerror, str):
                error.strerror = self.shown(error.strerror)
            raise

    def close(self) -> None:
        """Lets go, also of the lock; nothing to do the second time."""
        self._native = None

    def _open_native(self) -> _C.HeldFolder:
        if self._native is None:
            raise StoreError(errno.EBADF, f"{self.path}: the folder has been closed")
        return self._native
