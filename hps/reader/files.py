"""The files of a log: names and patterns to paths, and the order in which an epoch reads them.

Above it: `open_reader`, the readers. Below it: the file system.
"""

import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hps.common.url_text import is_url
from hps.errors import ConfigError, StoreError
from hps.reader.batch_source import BatchSource, batches_in, is_arrow, source_of
from hps.reader.urls import LogFile, UrlFile, find_urls

# What gives record batches: batch_source.py.
Batches = Callable[[], Iterable[Any]] | Iterable[Any]
PathLike = str | os.PathLike[str] | UrlFile | BatchSource | Callable[[], Iterable[Any]]


def find_files(paths: PathLike | Sequence[PathLike] | Batches) -> tuple[LogFile, ...]:
    """The log's files, in order; a pattern stands for the files that match it, sorted by name.

    Args:
        paths: a file or a pattern (`*`, `?`, `[...]`, `**` for folders), or several. A name that is
            a file is that file, whatever characters it has. A URL, such as
            s3://bucket/day=*/*.parquet, may be a pattern, too. Record batches are one file, and
            so is each callable of several.

    Raises:
        ConfigError: there is none, a pattern matches none, or something that is no file.
        StoreError: a file does not exist or is a directory.
    """
    if isinstance(paths, str | os.PathLike | UrlFile):
        paths = [paths]
    found: list[LogFile] = []
    for path in batches_in(paths):
        if isinstance(path, UrlFile | BatchSource):
            found.append(path)
            continue
        if not isinstance(path, str | os.PathLike):
            found.append(source_of(path))
            continue
        text = os.fspath(path)
        if is_url(text) and not os.path.lexists(text):
            found += find_urls(text)
            continue
        if not glob.has_magic(text) or os.path.lexists(text):
            found.append(Path(text))
            continue
        matches = [Path(match) for match in sorted(glob.glob(text, recursive=True))]
        files = [match for match in matches if not match.is_dir()]
        if not files:
            raise ConfigError(f"no file matches {text!r}")
        found += files
    if not found:
        raise ConfigError("paths is empty; name at least one file of the log")
    for path in found:
        if isinstance(path, Path):
            _check_file(path)
    return tuple(found)


def logs_of(name: str, given: Sequence[PathLike] | Batches) -> Sequence[PathLike] | Batches:
    """A log that is read again and again, of which record batches are one source.

    Args:
        name: what it is, in words.
        given: as `find_files` takes it; names of files are let be.

    Raises:
        ConfigError: an iterator of record batches, which can be read once.
    """
    is_source = _gives_batches(given)
    if isinstance(given, str | os.PathLike) or not (is_source or isinstance(given, Iterable)):
        return given  # which is no list: told where its type is checked
    found = [source_of(one) if _gives_batches(one) else one for one in batches_in(given)]
    for one in found:
        if isinstance(one, BatchSource):
            one.check_rereadable(name)
    return found if any(isinstance(one, BatchSource) for one in found) else given


def _gives_batches(one: object) -> bool:
    """True of what source_of takes; what else is no file is told where types are checked."""
    return not isinstance(one, BatchSource) and (callable(one) or is_arrow(one))


def _check_file(path: Path) -> None:
    try:
        if not path.is_dir():
            path.stat()
            return
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
    raise StoreError(f"cannot read {path}: it is a directory; name its files")


def size_of(path: LogFile) -> int:
    """Bytes of a file of a log.

    Raises:
        StoreError: it is not there any more, or the system refuses it.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error


def epoch_order(num_files: int, seed: int | None, epoch: int) -> list[int]:
    """The files' numbers in the order in which an epoch reads them; without a seed, as given.

    The same on every machine, for ever: a resumed run must meet the same order.

    >>> epoch_order(4, None, 0), sorted(epoch_order(4, 1, 0))
    ([0, 1, 2, 3], [0, 1, 2, 3])
    """
    numbers = list(range(num_files))
    if seed is None:
        return numbers
    draws = [hashlib.sha256(f"{seed} {epoch} {number}".encode()).digest() for number in numbers]
    return sorted(numbers, key=lambda number: draws[number])
