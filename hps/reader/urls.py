"""Files of a log behind a URL: `s3://`, `gs://`, `file://`, `memory://` and what else fsspec knows.

Above it: files.py, and whatever reads a file of a log. Below it: fsspec, which is imported when a
URL is given. Bytes are fetched as they are needed, in ranges; nothing is copied to this machine.
"""

import errno
import io
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, Literal, TypeVar

from hps.common.url_text import hidden_url, hidden_urls
from hps.errors import ConfigError, StoreError
from hps.reader.batch_source import BatchSource

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL = ("file", "local")  # schemes of this machine's files
_TRIES = 4
_FIRST_WAIT_SECONDS = 0.1
_AHEAD_BYTES = 4 << 20  # of what is read from front to back
# What stands for a file's content in the listings of file systems.
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "updated", "mtime", "created")

T = TypeVar("T")


def is_url(text: str) -> bool:
    """True of what names a file by a URL.

    >>> is_url("s3://bucket/day=1/part-0.parquet"), is_url("day-1.tsv"), is_url("C:/day")
    (True, False, False)
    """
    return _URL.match(text) is not None


@dataclass(frozen=True)
class _Stat:
    """What `Path.stat` says of a file, as far as a log needs it."""

    st_size: int


class UrlFile:
    """A file of a log behind a URL, with the verbs of `Path` that readers use.

    Its size and its mark (an ETag, or the time of its last change) are those of when it was found;
    one that has changed since is refused when it is opened.

    Args:
        url: of the file.
        system: fsspec's file system.
        path: the file's name there.

    Raises:
        StoreError: it is not there, a folder, or the network fails. ConfigError: no size is told.

    >>> import fsspec
    >>> with fsspec.open("memory://logs/a.libsvm", "wb") as file:
    ...     written = file.write(b"1 7:1\\n")
    >>> (file,) = find_urls("memory://logs/*.libsvm")
    >>> str(file), file.name, file.suffix, file.stat().st_size
    ('memory://logs/a.libsvm', 'a.libsvm', '.libsvm', 6)
    """

    def __init__(self, url: str, system: Any, path: str) -> None:
        self._url = hidden_url(url)  # no password in messages and checkpoints
        self._scheme = url.partition("://")[0].lower()
        self._system = system
        self._path = path
        self._info = self._look()
        plain = Path(path.rsplit("?", 1)[0] if "?" in path else path)
        self.name, self.suffix, self.stem = plain.name, plain.suffix, plain.stem

    def __str__(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    def _look(self) -> tuple[int, str]:
        """Its size and mark, as they are now."""

        def ask() -> Any:
            self._system.invalidate_cache()
            return self._system.info(self._path)

        info = _tried(self._url, ask)
        if info.get("type") == "directory":
            raise StoreError(
                errno.EISDIR, f"cannot read {self._url}: it is a directory; name its files"
            )
        size = info.get("size")
        if not isinstance(size, int):
            raise ConfigError(
                f"{self._url}: its server does not tell its size, which a position in it needs; "
                "copy the file to a disk or to another server"
            )
        return size, str(next((info[name] for name in _MARKS if info.get(name)), ""))

    def stat(self) -> _Stat:
        """Its size."""
        return _Stat(self._info[0])

    def open(self, mode: Literal["rb"] = "rb", *, ahead: int = _AHEAD_BYTES) -> "UrlStream":
        """Its bytes, from the beginning.

        Args:
            mode: as `Path.open` takes it; there is no other.
            ahead: bytes that are fetched at once where fewer are asked for.

        Raises:
            StoreError: it has changed since it was found, or cannot be read.
        """
        found = self._look()
        if found != self._info:
            raise StoreError(
                errno.ESTALE,
                f"{self._url} has changed since this run began: it had {self._info[0]:,} bytes "
                f"({self._info[1] or 'no mark'}), it has {found[0]:,} ({found[1] or 'no mark'}); "
                "begin again with the file as it is now",
            )

        def fetch(begin: int, end: int) -> bytes:
            return bytes(self._system.cat_file(self._path, start=begin, end=end))

        return UrlStream(self._url, self._info[0], fetch, ahead)

    def samefile(self, other: str | Path) -> bool:
        """True of a `file://` URL of a local file."""
        if self._scheme not in _LOCAL:
            return False
        return Path(self._path).exists() and Path(self._path).samefile(other)


class UrlStream(io.RawIOBase):
    """The bytes of a UrlFile; a read that fails is tried again, then it is an error.

    Args:
        url: for errors.
        size: of the file.
        fetch: the bytes of a range, by its begin and end.
        ahead: bytes to fetch at least, for those who read on.
    """

    def __init__(self, url: str, size: int, fetch: Callable[[int, int], bytes], ahead: int) -> None:
        self._url = url
        self.size = size
        self._fetch = fetch
        self._ahead = ahead
        self._place = 0
        self._held = b""
        self._held_from = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = offset + (0, self._place, self.size)[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; fewer only at the end, and of those that read ahead.

        Raises:
            StoreError: the network fails, the file ends early, or the stream is closed, also by
            another thread.
        """
        if self.closed:
            raise StoreError(errno.EBADF, f"cannot read {self._url}: its reader has been closed")
        left = max(0, self.size - self._place)
        wanted = left if size is None or size < 0 else min(size, left)
        begin = self._place - self._held_from
        if not 0 <= begin < len(self._held):
            self._held = self._range(self._place, max(wanted, min(self._ahead, left)))
            self._held_from, begin = self._place, 0
        data = self._held[begin : begin + wanted]
        if len(data) < wanted:  # what is held ends within
            data += self._range(self._place + len(data), wanted - len(data))
        self._place += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """As a file does: the bytes read."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _range(self, begin: int, count: int) -> bytes:
        if not count:
            return b""

        def fetch() -> bytes:
            data = self._fetch(begin, begin + count)
            if len(data) != count:
                raise EOFError(f"{len(data):,} bytes came of {count:,} from byte {begin:,} on")
            return data

        return _tried(self._url, fetch, is_over=lambda: self.closed)


LogFile = Path | UrlFile | BatchSource


def find_urls(url: str) -> list[UrlFile]:
    """The file of a URL, or those that match a pattern, sorted by name.

    Raises:
        ConfigError: no file matches, fsspec or what it needs for the URL is not installed.
        StoreError: a file cannot be looked at.
    """
    shown = hidden_url(url)
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(
            f"{shown}: reading URLs needs fsspec; install it with: pip install 'hps-ctr[url]'"
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{shown}: {_told(url, error)}; fsspec reads it once the package for its kind is "
            "installed, such as s3fs for s3:// and gcsfs for gs://"
        ) from error
    if not has_magic(path) or _tried(url, lambda: system.exists(path)):
        return [UrlFile(url, system, path)]
    matches = _tried(url, lambda: system.glob(path, detail=True))
    names = sorted(name for name, info in matches.items() if info.get("type") != "directory")
    if not names:
        raise ConfigError(
            f"no file matches {shown!r}{_nearest_folder(url, system, path)}; correct the pattern"
        )
    scheme = url.partition("://")[0]
    return [UrlFile(f"{scheme}://{_without_root(name, scheme)}", system, name) for name in names]


def _nearest_folder(url: str, system: Any, path: str) -> str:
    """Of a pattern that nothing matches, how far the part before its first wildcard leads, in
    words."""
    folder = re.split(r"[*?\[]", path, maxsplit=1)[0].rpartition("/")[0]
    if not folder.strip("/"):
        return ""
    scheme = url.partition("://")[0]
    shown = folder if is_url(folder) else f"{scheme}://{_without_root(folder, scheme)}"
    try:
        is_there = _tried(url, lambda: system.exists(folder))
    except StoreError:  # that nothing matches is what is to be told
        return ""
    return f", and there is {'a folder' if is_there else 'no folder'} {hidden_url(shown)!r}"


def _without_root(name: str, scheme: str) -> str:
    return name if scheme in _LOCAL else name.lstrip("/")


def _told(url: str, error: object) -> str:
    """What a library says, without what a URL hides."""
    return hidden_urls(str(error).replace(url, hidden_url(url)))


def _tried(url: str, act: Callable[[], T], is_over: Callable[[], bool] = lambda: False) -> T:
    """What `act` returns, tried again where a network may be at fault, until it is over.

    Raises:
        StoreError: names the URL.
    """
    wait = _FIRST_WAIT_SECONDS
    for number in range(1, _TRIES + 1):
        try:
            return act()
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            code = error.errno or errno.ENOENT
            text = error.strerror or f"{type(error).__name__}: {error}"
            if error.strerror is None and isinstance(error, FileNotFoundError):
                text = f"there is no such file ({error})"
            raise StoreError(code, f"cannot read {hidden_url(url)}: {_told(url, text)}") from error
        except Exception as error:  # of whatever library reads it
            if number == _TRIES or is_over():
                raise StoreError(
                    getattr(error, "errno", None) or errno.EIO,
                    f"cannot read {hidden_url(url)}, tried {number} times: "
                    f"{type(error).__name__}: {_told(url, error)}",
                ) from error
            time.sleep(wait)
            wait *= 2
    raise AssertionError("unreachable")
