"""fetched(): the files of a version on this machine, each checked against its length and sha256.

Above it: followers. Below it: destination.py. Of a folder of this machine they are read where they
lie; else they are copied, and the copies go, or are kept (KeptFiles).
"""

import errno
import fcntl
import hashlib
import shutil
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from hps.common.url_text import hidden_urls
from hps.errors import CorruptionError, HpsError, StoreError
from hps.publish.destination import Destination
from hps.publish.version import StoredFile

_PIECE_BYTES = 4 << 20
_PREFIX = "fetched-"
_HELD = "held"  # the file in a folder of copies that its process has locked
_YOUNG_SECONDS = 60.0  # in which a folder of a living process may have no such file yet


@contextmanager
def fetched(
    destination: Destination,
    files: Iterable[StoredFile],
    beside: Path,
    stopped: Event | None = None,
    kept: "KeptFiles | None" = None,
) -> Iterator[dict[str, Path]]:
    """Files of a version, whole and checked, for as long as the context is open.

    Args:
        destination: where they are.
        files: of a version.
        beside: a folder of this machine, in which copies lie meanwhile.
        stopped: ends it with a StoreError once it is set.
        kept: copies that stay, and are not fetched again; None: none does.

    Returns:
        By name the file's path.

    Raises:
        CorruptionError: one is missing, or not what the version says; names it.
        StoreError: one cannot be read, or there is no space for it.

    Cost: reads each file once, for its sha256.
    """
    with own_folder(beside) as folder:
        found = {}
        for number, file in enumerate(files):
            own = destination.local(file.name)
            if own is not None:
                _read_checked(destination, file, None, stopped)
                found[file.name] = own
                continue
            path = None if kept is None else kept.find(file)
            if path is None:
                path = folder / str(number)
                _read_checked(destination, file, path, stopped)
                path = path if kept is None else kept.take(path, file)
            found[file.name] = path
        yield found


@contextmanager
def own_folder(beside: Path) -> Iterator[Path]:
    """A folder in another one, for as long as the context is open; `remove_abandoned` removes that
    of a process that died."""
    with (
        TemporaryDirectory(prefix=_PREFIX, dir=beside) as folder,
        Path(folder, _HELD).open("wb") as held,
    ):
        fcntl.flock(held, fcntl.LOCK_EX)
        yield Path(folder)


class KeptFiles:
    """Copies of files of versions that stay on this machine, for a process that starts again.

    Each is named by its sha256, and checked again whenever it is asked for: what was damaged, or
    did not reach the disk, is fetched anew.

    Args:
        folder: for them; made with the first one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, file: StoredFile) -> Path | None:
        """The copy of a file; None if there is none that is right."""
        path = self._folder / file.sha256
        try:
            with path.open("rb") as stream:
                is_right = hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
        except OSError:
            return None
        return path if is_right else None

    def take(self, copy: Path, file: StoredFile) -> Path:
        """Keeps a copy, which is moved here; where to.

        Raises:
            StoreError: the folder cannot be made, or written to.
        """
        path = self._folder / file.sha256
        try:
            self._folder.mkdir(exist_ok=True)
            copy.replace(path)
        except OSError as error:
            raise StoreError(error.errno, f"cannot write {path}: {error.strerror}") from error
        return path

    def take_all(self, other: Path) -> None:
        """Keeps what lies in another folder of such files, if there is one."""
        if other.is_dir():
            self._folder.mkdir(exist_ok=True)
            for copy in other.iterdir():
                copy.replace(self._folder / copy.name)

    def keep_only(self, names: Collection[str]) -> None:
        """Removes all but the files of these sha256; what cannot be removed is in nobody's way."""
        for path in self._folder.glob("*"):
            if path.name not in names:
                with suppress(OSError):
                    path.unlink()


def remove_abandoned(beside: Path) -> None:
    """Removes the copies of processes that have died while they fetched, from the folder that
    `fetched` was given."""
    for folder in beside.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    try:
        with (folder / _HELD).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _YOUNG_SECONDS


def read_checked(destination: Destination, file: StoredFile) -> bytes:
    """A small file, whole and checked; errors as `fetched`."""
    return b"".join(_pieces(destination, file))


def check_not_stopped(stopped: Event | None, where: str) -> None:
    """Raises StoreError once the event is set: whoever reads is told to end."""
    if stopped is not None and stopped.is_set():
        raise StoreError(errno.ECANCELED, f"{where}: reading it was ended")


def _read_checked(
    destination: Destination, file: StoredFile, copy: Path | None, stopped: Event | None
) -> None:
    if copy is None:
        for _ in _pieces(destination, file, stopped):
            pass
        return
    try:
        with copy.open("wb") as out:
            for piece in _pieces(destination, file, stopped):
                out.write(piece)
    except HpsError:
        raise
    except OSError as error:
        raise StoreError(error.errno, f"cannot write {copy}: {error.strerror}") from error


def _pieces(
    destination: Destination, file: StoredFile, stopped: Event | None = None
) -> Iterator[bytes]:
    """All bytes; raises at the end if they are not those of the version."""
    where = f"{destination.shown}/{file.name}"
    digest, count = hashlib.sha256(), 0
    try:
        with destination.open(file.name) as stream:
            while piece := stream.read(_PIECE_BYTES):
                check_not_stopped(stopped, where)
                digest.update(piece)
                count += len(piece)
                yield piece
    except HpsError:
        raise
    except FileNotFoundError:
        raise CorruptionError(f"{where} is missing, and a version names it") from None
    except Exception as error:  # of whatever library reads it
        raise StoreError(
            getattr(error, "errno", None) or errno.EIO,
            f"cannot read {where}: {type(error).__name__}: {hidden_urls(str(error))}",
        ) from error
    if count != file.bytes or digest.hexdigest() != file.sha256:
        raise CorruptionError(
            f"{where}: it has {count:,} bytes of sha256 {digest.hexdigest()[:16]}..., its version "
            f"names {file.bytes:,} of {file.sha256[:16]}..."
        )
