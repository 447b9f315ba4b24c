"""Destination: a folder, or a place behind a URL, that holds published versions.

Above it: publisher.py, followers. Below it: the file system of this machine, or fsspec, which is
imported when a URL is given. What others may see comes into being whole, by one step, and never
replaces what is there.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from hps import _C
from hps.common.durable_file import SyncError, sync, sync_all
from hps.common.url_text import hidden_url, hidden_urls, is_url
from hps.errors import ConfigError, HpsError, StoreError

_PIECE_BYTES = 8 << 20  # of an upload, and of what is read at a time
_EARLY_BYTES = 1 << 20  # written, from which the disk is to begin with them
_LOCAL = ("file", "local")

T = TypeVar("T")


class TakenError(StoreError):
    """There is a file of that name already: another publisher was first."""


class Destination(Protocol):
    """Where versions go. Names are relative, with `/` between folders.

    Raises, every verb of them: StoreError, which names the place and the file.
    """

    @property
    def shown(self) -> str:
        """Its place, as messages may tell it."""

    def names(self) -> list[str]:
        """Of the files that lie in it directly, not in its folders; none if it is not there."""

    def folders(self, name: str) -> list[str]:
        """Of the folders in one of its folders."""

    def read(self, name: str) -> bytes:
        """A whole small file. FileNotFoundError: it is not there."""

    def create(self, name: str, data: bytes, after: Sequence[str] = ()) -> None:
        """Makes a file, whole and at once, durable when this returns. TakenError: it is there.
        `after`: files that `write` made, durable before it can be seen."""

    def write(self, name: str) -> Any:
        """A context that gives a stream for a file of its own name; it is whole once the context is
        left without an error, and durable once `settle` has it."""

    def settle(self, names: Sequence[str]) -> None:
        """Makes files durable that `write` made, all of them together."""

    def open(self, name: str) -> IO[bytes]:
        """A file, to be read from front to back. FileNotFoundError: it is not there."""

    def local(self, name: str) -> Path | None:
        """Its path, if it is a file of this machine."""

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with all in it; nothing to do if it is not there."""


def open_destination(place: str | os.PathLike[str]) -> Destination:
    """The destination at a path or a URL; nothing is made or asked yet.

    Raises:
        ConfigError: fsspec, or the package for this kind of URL, is not installed.

    >>> open_destination("memory://models/ctr").shown
    'memory://models/ctr'
    """
    text = os.fspath(place)
    if not is_url(text):
        return _Folder(Path(text).absolute())
    scheme, _, rest = text.partition("://")
    if scheme.lower() in _LOCAL:
        return _Folder(Path("/" + rest.lstrip("/")))
    return _Remote(text)


class _Folder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown = str(path)
        self._named: set[Path] = set()  # folders whose names are durable

    def names(self) -> list[str]:
        with self._told("list"):
            if not self.path.is_dir():
                if self.path.exists():
                    raise StoreError(errno.ENOTDIR, f"{self.shown} is not a folder")
                return []
            return sorted(one.name for one in self.path.iterdir() if one.is_file())

    def folders(self, name: str) -> list[str]:
        folder = self.path / name
        with self._told("list", name):
            return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []

    def read(self, name: str) -> bytes:
        with self._told("read", name):
            return (self.path / name).read_bytes()

    def create(self, name: str, data: bytes, after: Sequence[str] = ()) -> None:
        target = self.path / name
        new = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
        with self._told("write", name):
            self._make_folder(target.parent)
            try:
                new.write_bytes(data)
                sync_all([new, *self._unsettled(after)])
                os.link(new, target)  # never over a file that is there
            except FileExistsError:
                raise TakenError(errno.EEXIST, f"{target} is there already") from None
            finally:
                new.unlink(missing_ok=True)
            sync(target.parent)

    @contextmanager
    def write(self, name: str) -> Iterator["_EarlyFile"]:
        target = self.path / name
        with self._told("write", name):
            self._make_folder(target.parent.parent)
            target.parent.mkdir(exist_ok=True)  # its name becomes durable with its files
            with target.open("xb") as file:
                yield _EarlyFile(file)

    def settle(self, names: Sequence[str]) -> None:
        with self._told("write", names[0] if names else ""):
            sync_all(self._unsettled(names))

    def _unsettled(self, names: Sequence[str]) -> list[Path]:
        """Files that `write` made, the folders that hold their names, and those that hold these."""
        files = [self.path / name for name in names]
        folders = {file.parent for file in files}
        return [*files, *sorted(folders | {folder.parent for folder in folders})]

    def open(self, name: str) -> IO[bytes]:
        with self._told("read", name):
            return (self.path / name).open("rb")

    def local(self, name: str) -> Path | None:
        return self.path / name

    def remove(self, name: str) -> None:
        target = self.path / name
        with self._told("remove", name):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """A folder whose name, and those of the folders above it, are durable when this returns:
        one after the other, so that of a process that was killed at it one name at most is not."""
        if folder in self._named and folder.is_dir():
            return
        missing: list[Path] = []
        there = folder
        while not there.exists():
            missing.append(there)
            there = there.parent
        with suppress(PermissionError):  # made long ago, and by somebody else
            sync(there.parent)
        for made in reversed(missing):
            made.mkdir(exist_ok=True)
            sync(made.parent)
        self._named.add(folder)

    @contextmanager
    def _told(self, verb: str, name: str = "") -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            if verb == "read" and isinstance(error, FileNotFoundError):
                raise
            place = error.filename if isinstance(error, SyncError) else self.path / name
            raise StoreError(
                error.errno, f"cannot {verb} {place}: {error.strerror or error}"
            ) from error


class _EarlyFile:
    """A file of this machine, of which the disk takes over large parts while it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size = self._begun = 0

    def write(self, data: Any) -> int:
        """As a file does."""
        self._file.write(data)
        self._size += len(data)
        if self._size - self._begun >= _EARLY_BYTES:
            self._file.flush()
            _C.start_writeback(self._file.fileno(), self._begun, self._size - self._begun)
            self._begun = self._size
        return len(data)


class _Remote:
    """A place that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.shown = hidden_url(url).rstrip("/")
        self._url = url
        try:
            import fsspec
        except ImportError as error:
            raise ConfigError(
                f"{self.shown}: URLs need fsspec; install it with: pip install 'hps-ctr[url]'"
            ) from error
        try:
            # Files change beside this process: no listing is remembered.
            options = {"use_listings_cache": False}
            self._system, path = fsspec.core.url_to_fs(url, **options)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"{self.shown}: {self._text(error)}; fsspec reads it once the package for its kind "
                "is installed, such as s3fs for s3:// and gcsfs for gs://"
            ) from error
        self._root = path.rstrip("/")

    def names(self) -> list[str]:
        return [base for base, kind in self._listed(self._root) if kind == "file"]

    def folders(self, name: str) -> list[str]:
        return [base for base, _ in self._listed(self._path(name))]

    def _listed(self, folder: str) -> list[tuple[str, str]]:
        def ask() -> list[dict[str, Any]]:
            self._system.invalidate_cache()
            try:
                return list(self._system.ls(folder, detail=True))
            except FileNotFoundError:
                return []

        found = self._tried("list", "", ask)
        named = [(str(one["name"]).rstrip("/").rsplit("/", 1)[-1], one["type"]) for one in found]
        return sorted(one for one in named if one[0])

    def read(self, name: str) -> bytes:
        return bytes(self._tried("read", name, lambda: self._system.cat_file(self._path(name))))

    def create(self, name: str, data: bytes, after: Sequence[str] = ()) -> None:
        def make() -> None:
            self._system.invalidate_cache()
            # Some servers of S3 take no notice of the condition of a put.
            if self._system.exists(self._path(name)):
                raise FileExistsError
            self._system.pipe_file(self._path(name), data, mode="create")

        try:
            self._tried("write", name, make)
        except FileExistsError:
            raise TakenError(errno.EEXIST, f"{self.shown}/{name} is there already") from None

    @contextmanager
    def write(self, name: str) -> Iterator[IO[bytes]]:
        path = self._path(name)
        stream = self._tried(
            "write", name, lambda: self._system.open(path, "wb", block_size=_PIECE_BYTES)
        )
        try:
            yield stream
        except BaseException as error:
            with suppress(Exception):
                stream.discard()
            if isinstance(error, HpsError) or not isinstance(error, Exception):
                raise
            raise self._error("write", name, error) from error
        self._tried("write", name, stream.close)

    def settle(self, names: Sequence[str]) -> None:
        """Nothing to do: what was taken is kept."""

    def open(self, name: str) -> IO[bytes]:
        def begin() -> Any:
            options = {"block_size": _PIECE_BYTES, "cache_type": "readahead"}
            return self._system.open(self._path(name), "rb", **options)

        stream: IO[bytes] = self._tried("read", name, begin)
        return stream

    def local(self, name: str) -> Path | None:
        return None

    def remove(self, name: str) -> None:
        def drop() -> None:
            with suppress(FileNotFoundError):
                self._system.rm(self._path(name), recursive=True)

        self._tried("remove", name, drop)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _text(self, error: object) -> str:
        return hidden_urls(str(error).replace(self._url, self.shown))

    def _tried(self, verb: str, name: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except (StoreError, FileExistsError):
            raise
        except Exception as error:  # of whatever library it is
            if verb == "read" and isinstance(error, FileNotFoundError):
                raise
            raise self._error(verb, name, error) from error

    def _error(self, verb: str, name: str, error: Exception) -> StoreError:
        place = f"{self.shown}/{name}" if name else self.shown
        return StoreError(
            getattr(error, "errno", None) or errno.EIO,
            f"cannot {verb} {place}: {type(error).__name__}: {self._text(error)}",
        )
