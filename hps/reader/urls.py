"""Files of a log behind a URL: `s3://`, `gs://`, `file://`, `memory://` and what else fsspec knows.

Above it: files.py, and whatever reads a file of a log. Below it: fsspec, which is imported when a
URL is given. Bytes are fetched as they are needed, in ranges; nothing is copied to this machine.
"""

import errno
import io
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from glob import has_magic
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeVar

from hps.common.url_text import hidden_url, hidden_urls, is_url
from hps.errors import ConfigError, StoreError
from hps.reader.batch_source import BatchSource

_LOCAL = ("file", "local")  # schemes of this machine's files
_WEB = ("http", "https")
_LISTS_MARKS = ("s3", "s3a")  # whose listings tell the ETag that a request for the file tells
_TRIES = 4
_FIRST_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 10.0
_MOMENT_SECONDS = 0.1  # in which it is noticed that nobody waits any more
_PATIENCE_SECONDS = 5.0  # what has failed for so long has been tried again by the library
_AHEAD_BYTES = 4 << 20  # of what is read from front to back
_QUERY = re.compile(r"\?[^/?=]+=.*$")  # a `?` alone may be of a name
# What stands for a file's content in the listings of file systems.
_MARKS = ("ETag", "etag", "md5Hash", "content_md5", "LastModified", "updated", "mtime", "created")

T = TypeVar("T")


class AwayError(StoreError):
    """What is behind a URL does not answer, or not rightly, however often it is asked."""


@dataclass(frozen=True)
class Patience:
    """How much longer than usual a read is tried again, by one who would rather wait than end.

    Args:
        seconds: since it has failed first.
        tell: is told, in words, that it waits, and that it goes on.
        is_over: nobody waits any more.
    """

    seconds: float = 0.0
    tell: Callable[[str], None] = lambda text: None
    is_over: Callable[[], bool] = lambda: False


USUAL = Patience()


@dataclass(frozen=True)
class _Stat:
    """What `Path.stat` says of a file, as far as a log needs it."""

    st_size: int


class UrlFile:
    """A file of a log behind a URL, with the verbs of `Path` that readers use.

    Its size and its mark (an ETag, or the time of its last change) are those of when it was found;
    one that has changed since is refused when it is opened, and with every range that is read.

    Args:
        url: of the file.
        system: fsspec's file system.
        path: the file's name there.
        listed: what a listing has just said of it; None: it is asked for.
        patience: with a network that fails.

    Raises:
        StoreError: it is not there, a folder, or the network fails. ConfigError: no size is told.

    >>> import fsspec
    >>> with fsspec.open("memory://logs/a.libsvm", "wb") as file:
    ...     written = file.write(b"1 7:1\\n")
    >>> (file,) = find_urls("memory://logs/*.libsvm")
    >>> str(file), file.name, file.suffix, file.stat().st_size
    ('memory://logs/a.libsvm', 'a.libsvm', '.libsvm', 6)
    """

    def __init__(
        self,
        url: str,
        system: Any,
        path: str,
        listed: Mapping[str, Any] | None = None,
        patience: Patience = USUAL,
    ) -> None:
        self._given = url  # to know its password in what a library says
        self._url = hidden_url(url)  # no password in messages and checkpoints
        self._scheme = url.partition("://")[0].lower()
        self._system = system
        self._path = path
        self._patience = patience
        is_told = self._scheme in _LISTS_MARKS and listed is not None and bool(listed.get("ETag"))
        self._info = self._described(listed) if is_told else self._look()  # type: ignore[arg-type]
        plain = Path(path.rsplit("?", 1)[0] if self._scheme in _WEB else _QUERY.sub("", path))
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

        return self._described(_tried(self._given, ask, patience=self._patience))

    def _described(self, info: Mapping[str, Any]) -> tuple[int, str]:
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
        return size, _mark_of(info)

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
        self._refuse_change()

        def fetch(begin: int, end: int) -> bytes:
            # A request of its own: it is of the file that was found if that is still there after.
            try:
                data = bytes(self._system.cat_file(self._path, start=begin, end=end))
            except Exception:
                self._refuse_change()  # says more
                raise
            self._refuse_change()
            return data

        return UrlStream(self._given, self._info[0], fetch, ahead, self._patience)

    def _refuse_change(self) -> None:
        found = self._look()
        if found != self._info:
            raise StoreError(
                errno.ESTALE,
                f"{self._url} has changed since this run began: it had {self._info[0]:,} bytes "
                f"({self._info[1] or 'no mark'}), it has {found[0]:,} ({found[1] or 'no mark'}); "
                "begin again with the file as it is now",
            )

    def samefile(self, other: str | Path) -> bool:
        """True of a `file://` URL of a local file."""
        if self._scheme not in _LOCAL:
            return False
        return Path(self._path).exists() and Path(self._path).samefile(other)


class UrlStream(io.RawIOBase):
    """The bytes of a UrlFile; a read that fails is tried again, then it is an error.

    Args:
        url: for errors, which hide what lets others in.
        size: of the file.
        fetch: the bytes of a range, by its begin and end.
        ahead: bytes to fetch at least, for those who read on.
        patience: with a network that fails.
    """

    def __init__(
        self,
        url: str,
        size: int,
        fetch: Callable[[int, int], bytes],
        ahead: int,
        patience: Patience = USUAL,
    ) -> None:
        self._url = url
        self.size = size
        self._fetch = fetch
        self._ahead = ahead
        self._patience = patience
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
            shown = hidden_url(self._url)
            raise StoreError(errno.EBADF, f"cannot read {shown}: its reader has been closed")
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

        return _tried(self._url, fetch, lambda: self.closed, self._patience)


LogFile = Path | UrlFile | BatchSource


@dataclass(frozen=True)
class Listed:
    """A file as the listing of its folder has it.

    Args:
        size: bytes; -1 where that is not known.
        mark: of its content, or of the time of its last change; empty where that is not known.
        open: the file, as readers take it.
    """

    size: int
    mark: str
    open: Callable[[], LogFile]


class UrlFolder:
    """A folder behind a URL, whose files are listed again and again.

    Args:
        url: of it.
        patience: of those who read its files, with a network that fails.

    Raises:
        ConfigError: what the URL needs is not installed, or it is of a web server.
    """

    def __init__(self, url: str, patience: Patience = USUAL) -> None:
        self._url = url
        self._patience = patience
        self._scheme = url.partition("://")[0]
        if self._scheme.lower() in _WEB:
            raise ConfigError(
                f"{hidden_url(url)}: a web server does not list the files of a folder; give one of "
                "this machine, or of an object store, such as s3://bucket/logs"
            )
        self._system, path = _system_of(url)
        self._path = path.rstrip("/")

    def files(self) -> tuple[dict[str, Listed], list[str]]:
        """Name of each file -> what it is; names of what else there is. A folder that is not there
        is an empty one: object stores know no other.

        Raises:
            StoreError: it cannot be listed; AwayError where it may be a moment later.
        """
        self._system.invalidate_cache()
        found: dict[str, Listed] = {}
        others: list[str] = []
        for info in _listed(self._url, self._system, self._path):
            path = str(info["name"]).rstrip("/")
            name = path.rsplit("/", 1)[-1]
            if path == self._path:  # what some stores keep of an empty folder
                continue
            if info.get("type") == "directory":
                others.append(name)
                continue
            url = f"{self._scheme}://{_without_root(path, self._scheme)}"
            size = info.get("size")
            found[name] = Listed(
                size if isinstance(size, int) else -1,
                _mark_of(info),
                partial(UrlFile, url, self._system, path, info, self._patience),
            )
        return found, sorted(others)


def _mark_of(info: Mapping[str, Any]) -> str:
    return str(next((info[name] for name in _MARKS if info.get(name)), ""))


def find_urls(url: str) -> list[UrlFile]:
    """The file of a URL, or those that match a pattern, sorted by name.

    Raises:
        ConfigError: no file matches, fsspec or what it needs for the URL is not installed.
        StoreError: a file cannot be looked at, or a folder of a pattern cannot be listed.
    """
    shown = hidden_url(url)
    system, path = _system_of(url)
    system.invalidate_cache()  # of an earlier listing of this process
    if not has_magic(path) or _tried(url, lambda: system.exists(path)):
        return [UrlFile(url, system, path)]
    scheme = url.partition("://")[0]
    # Of many files one request for each would take longer than the listing that has shown them.
    if "**" in path or scheme.lower() in _WEB:  # listed at once; a `?` is of a query
        matches = _tried(url, lambda: system.glob(path, detail=True))
        found = {name: one for name, one in matches.items() if one.get("type") != "directory"}
    else:
        found = _matching(url, system, path)
    if not found:
        raise ConfigError(
            f"no file matches {shown!r}{_nearest_folder(url, system, path)}; correct the pattern"
        )
    return [
        UrlFile(f"{scheme}://{_without_root(name, scheme)}", system, name, found[name])
        for name in sorted(found)
    ]


def _system_of(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and what the URL names there.

    Raises:
        ConfigError: fsspec or what it needs for the URL is not installed.
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
    return system, path


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


def _matching(url: str, system: Any, path: str) -> dict[str, dict[str, Any]]:
    """The files that match a pattern, level by level, and what the listings say of them.

    The `glob` of most file systems takes a folder that cannot be listed for an empty one: a day of
    a log would be left out, and nobody told.
    """
    from fsspec.utils import glob_translate

    parts = path.split("/")
    first = next(idx for idx, part in enumerate(parts) if has_magic(part))
    found: dict[str, dict[str, Any]] = {"/".join(parts[:first]): {}}
    for end in range(first + 1, len(parts) + 1):
        pattern = re.compile(glob_translate("/".join(parts[:end])))
        listed = [info for folder in found for info in _listed(url, system, folder)]
        is_last = end == len(parts)
        found = {
            name: info
            for info in listed
            if pattern.match(name := str(info["name"]).rstrip("/"))
            and (info.get("type") != "directory") == is_last
        }
    return found


def _listed(url: str, system: Any, folder: str) -> list[dict[str, Any]]:
    """What a folder holds; nothing of one that is not there."""

    def ask() -> list[dict[str, Any]]:
        try:
            return list(system.ls(folder, detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return []

    return _tried(url, ask)


def _without_root(name: str, scheme: str) -> str:
    return name if scheme in _LOCAL else name.lstrip("/")


def _told(url: str, error: object) -> str:
    """What a library says, without what a URL hides."""
    text = str(error).replace(url, hidden_url(url))
    login = _login(url)
    return hidden_urls(text.replace(login, "") if login else text)


def _login(url: str) -> str:
    """What a URL has before its host, with the `@`: a library may tell it without the rest."""
    rest = url.partition("://")[2]
    host = re.split("[/?#]", hidden_url(url).partition("://")[2], maxsplit=1)[0]
    return rest[: rest.find(f"@{host}") + 1]


def _tried(
    url: str,
    act: Callable[[], T],
    is_over: Callable[[], bool] = lambda: False,
    patience: Patience = USUAL,
) -> T:
    """What `act` returns, tried again where a network may be at fault, until it is over.

    Raises:
        StoreError: names the URL; AwayError where the network may be at fault.
    """
    wait, started, has_told = _FIRST_WAIT_SECONDS, time.monotonic(), False
    for number in count(1):
        try:
            found = act()
            if has_told:
                took = time.monotonic() - started
                patience.tell(f"{hidden_url(url)} is read again, after {took:.0f} s")
            return found
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            is_refused = isinstance(error, PermissionError)
            code = error.errno or (errno.EACCES if is_refused else errno.ENOENT)
            text = error.strerror or f"{type(error).__name__}: {error}"
            if error.strerror is None and isinstance(error, FileNotFoundError):
                text = f"there is no such file ({type(error).__name__}: {error})"
            if is_refused and url.partition("://")[0].lower() not in _LOCAL:
                text += "; check the credentials (docs/formats.md, Logs behind URLs)"
            raise StoreError(code, f"cannot read {hidden_url(url)}: {_told(url, text)}") from error
        except StoreError:  # of another that was tried within
            raise
        except Exception as error:  # of whatever library reads it
            took = time.monotonic() - started
            times = f"{number} time{'s' if number > 1 else ''}"
            text = f"cannot read {hidden_url(url)}, tried {times}: "
            text += f"{type(error).__name__}: {_told(url, error)}"
            has_failed = number >= _TRIES or took >= _PATIENCE_SECONDS
            if is_over() or patience.is_over() or (has_failed and took >= patience.seconds):
                raise AwayError(getattr(error, "errno", None) or errno.EIO, text) from error
            if has_failed and not has_told:
                has_told = True
                patience.tell(f"{text}; it is tried again for {patience.seconds:g} s")
            _sleep(wait, lambda: is_over() or patience.is_over())
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
    raise AssertionError("unreachable")


def _sleep(seconds: float, is_over: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not is_over():
        time.sleep(min(left, _MOMENT_SECONDS))
