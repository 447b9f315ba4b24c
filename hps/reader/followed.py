"""FollowedFolder: a folder to which logs are added; which files are new, and that none is out of
order, changed or gone unseen.

Above it: `hps train --follow`, `Reader`, which takes up a position in such a log. Below it: the
file system, urls.py.

A file is complete from the moment that it has its name: who writes one gives it a name that is
passed over, and renames it when it is whole (an object store shows none before). Files are read in
the order of their names, each once, so that a name has to come after those before it.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hps.common.url_text import hidden_url, is_url
from hps.errors import ConfigError, StoreError
from hps.reader.position import Position
from hps.reader.position_files import PositionFiles
from hps.reader.urls import USUAL, Listed, LogFile, Patience, UrlFolder

_BEFORE = (".", "_")  # hidden, and what Hadoop and Spark write beside their files
_AFTER = (".tmp", ".part")
_PASSED_OVER = "as files whose names begin with . or _ or end with .tmp or .part are"
_NAMES = "names have to come in their order, such as those that begin with a time: 2025-01-31T07"


class FollowedFolder:
    """The files of a folder, none of which is in a folder within it.

    Args:
        folder: of this machine, or a URL of a file system that lists its files.
        patience: of those who read files behind a URL, with a network that fails.

    Attributes:
        shown: what it is called in messages.

    Raises:
        ConfigError: what the URL needs is not installed, or it lists no files.
        StoreError: it is not there, or is no folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = FollowedFolder(name)
    ...     for file in ("b.tsv", ".c.tsv", "d.tsv.tmp"):
    ...         _ = Path(name, file).write_text("1")
    ...     [path.name for path in folder.look()], folder.look()
    (['b.tsv'], [])
    """

    def __init__(self, folder: str | os.PathLike[str], patience: Patience = USUAL) -> None:
        text = os.fspath(folder)
        self.shown = hidden_url(text)
        self._folder: UrlFolder | _LocalFolder = (
            UrlFolder(text, patience) if is_url(text) else _LocalFolder(Path(text))
        )
        self._known: dict[str, Listed] = {}  # in the order of their names
        self._gone: set[str] = set()
        self._num_left_out = 0  # read by a run before, and gone
        self._said: set[str] = set()
        self._has_told = False  # that names are passed over
        self._notes: list[str] = []

    @property
    def num_files(self) -> int:
        """That were given out, or read by a run before."""
        return len(self._known) + self._num_left_out

    def take_notes(self) -> list[str]:
        """What there is to tell since the last call, in words: what was passed over, is gone."""
        notes, self._notes = self._notes, []
        return notes

    @property
    def gone(self) -> frozenset[str]:
        """Names of those that were given out, or read by a run before, and are not there."""
        return frozenset(self._gone)

    def add_read(self, files: PositionFiles) -> None:
        """Notes what a run before has read and is gone."""
        self._num_left_out = files.num_left_out
        read = {str(name): int(size) for name, size in files.known}
        gone = sorted(read.keys() - self._known.keys())
        self._known |= {name: Listed(read[name], "", partial(Path, name)) for name in gone}
        self._known = dict(sorted(self._known.items()))
        self._note_gone(gone)

    def look(self) -> list[LogFile]:
        """The files that are there and were not before, in the order of their names.

        Raises:
            ConfigError: one of them sorts before one that was given out.
            StoreError: one that was given out has another size now; or the folder cannot be listed,
                AwayError where it may be a moment later. Then nothing was given out.
        """
        listed = self._list()
        for name, now in listed.items():
            if name in self._known:
                self._compare(name, self._known[name], now)
        self._note_gone(sorted(self._known.keys() - listed.keys() - self._gone))
        new = sorted(listed.keys() - self._known.keys())
        if not new:
            return []
        # A listing that goes on while files come may have one and not the one that came before it.
        listed = self._list()
        new = [name for name in sorted(listed.keys() - self._known.keys()) if name <= new[-1]]
        if new and self._known:
            last = next(reversed(self._known))
            check_order(self.shown, last, new[0], self._num_left_out)
        files = [listed[name].open() for name in new]
        self._known |= {name: listed[name] for name in new}
        return files

    def _list(self) -> dict[str, Listed]:
        """The files that are no others, by name."""
        found, others = self._folder.files()
        listed = {name: one for name, one in found.items() if not is_passed_over(name)}
        self._note_others(others, sorted(found.keys() - listed.keys()))
        return listed

    def _compare(self, name: str, before: Listed, now: Listed) -> None:
        where = f"{self.shown}: {name}"
        self._gone.discard(name)
        if now.size != before.size:
            raise changed(where, before.size, now.size)
        if before.mark and now.mark != before.mark:
            self._notes.append(
                f"warning: {where} was written again after it was read; its size is the same, and "
                "it is not read again"
            )
        self._known[name] = now

    def _note_gone(self, names: Sequence[str]) -> None:
        self._gone.update(names)
        if names:
            more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
            self._notes.append(
                f"warning: {self.shown}: {names[-1]}{more} can be read no more; the run has them, "
                "and one that is resumed may need the last ones"
            )

    def _note_others(self, others: Sequence[str], passed_over: Sequence[str]) -> None:
        if passed_over and not self._has_told:
            self._has_told = True
            more = f" and {len(passed_over) - 1:,} more" if len(passed_over) > 1 else ""
            self._notes.append(f"{self.shown}: {passed_over[0]}{more} passed over, {_PASSED_OVER}")
        for name in others:
            if name not in self._said and not is_passed_over(name):
                self._said.add(name)
                self._notes.append(
                    f"warning: {self.shown}: passes over {name!r}, which is a folder, or no file"
                )


def is_passed_over(name: str) -> bool:
    """True of the name of a file that is not whole yet, or no log.

    >>> [is_passed_over(name) for name in ("a.tsv", ".a.tsv", "_SUCCESS", "a.tmp", "a.part")]
    [False, True, True, True, True]
    """
    return name.startswith(_BEFORE) or name.endswith(_AFTER)


def check_order(folder: str, last: str, name: str, num_gone: int = 0) -> None:
    """Refuses a file that came too late.

    Args:
        folder: in words.
        last: the name that sorts last of those before.
        name: of the file.
        num_gone: files that were read and taken away, whose names are not known any more.

    Raises:
        ConfigError: it sorts before that.
    """
    if name < last:
        put_back = f"; or it is one of the {num_gone:,} that were read and taken away, put back"
        raise ConfigError(
            f"{folder}: {name} has come after {last}, and its name sorts before that: files are "
            f"read in the order of their names, and it would be left out; {_NAMES}"
            f"{put_back if num_gone else ''}. Rename it so that it sorts last, or take it away, "
            "and go on with --resume"
        )


def changed(where: str, before: int, now: int) -> StoreError:
    """What to raise of a file whose size has changed."""
    return StoreError(
        errno.ESTALE,
        f"{where} had {before:,} bytes when it was read, and has {now:,} now: what was added or "
        "taken away would be left out. Write a file under a name that ends with .tmp and rename it "
        "when it is whole; to go on, put it back as it was, or go back to a checkpoint from before "
        "it (--resume-from)",
    )


@dataclass(frozen=True)
class Joined:
    """The files of a log that is followed, taken up at a position.

    Args:
        files: name and bytes of each from the first that the position has a place of: those that
            were begun, then those that come after.
        position: in those files, of the one epoch that such a log has.
    """

    files: list[list[str | int]]
    position: Position


def joined(
    before: PositionFiles,
    there: Sequence[Sequence[str | int]],
    position: Position,
) -> Joined:
    """The files that were begun at a position, then those that are there and sort after them: one
    that was only listed may have been repaired or taken away since.

    Args:
        before: the position's files, in order.
        there: name and bytes of those that are there now, in the order of their names.
        position: in the former; the end of an epoch is the end of its files.

    Raises:
        ConfigError: a file that is there would be left out, one that is needed is gone, or the
            position is within a later epoch.
        StoreError: a file has another size.

    >>> files = PositionFiles([["a", 5], ["b", 6]])
    >>> joined(files, [["b", 6], ["c", 7]], Position(file=1, offset=3)).files
    [['a', 5], ['b', 6], ['c', 7]]
    >>> joined(files, files.files, Position(epoch=1)).position.file
    2
    """
    stored, first = before.files, before.first
    names = [str(name) for name, _ in stored]
    if sorted(set(names)) != names:
        raise ConfigError(
            f"the position is of a log whose files are {names}, which are not in the order of "
            "their names; a folder that is followed is read in that order: train on it from its "
            "beginning (--new-data)"
        )
    if position.epoch and position != Position(
        epoch=position.epoch, examples=position.examples, skipped=position.skipped
    ):
        raise ConfigError(
            f"the position is within epoch {position.epoch + 1} of a log, and a folder that is "
            "followed is read once; train on it from its beginning (--new-data)"
        )
    if position.epoch:
        position = replace(position, epoch=0, file=first + len(names))
    last = (position.file if position.block is None else position.block.file) - first
    stored, names = stored[: last + 1], names[: last + 1]
    sizes: Mapping[str, int] = {str(name): int(size) for name, size in there}
    gone = {name for name in names if name not in sizes}
    for number, (name, size) in enumerate(stored):
        if name in gone and number >= position.file - first:
            raise ConfigError(
                f"{name} is gone, and the position is in it: not all of its examples may have been "
                "trained on; put it back, or train on what is there from its beginning (--new-data)"
            )
        if name not in gone and sizes[str(name)] != size:
            raise changed(str(name), int(size), sizes[str(name)])
    for name, size in before.read:
        if sizes.get(str(name), size) != size:
            raise changed(str(name), int(size), sizes[str(name)])
    known = {*names, *(str(name) for name, _ in before.read)}
    new = [[name, size] for name, size in there if name not in known]
    if new and names:
        check_order("the folder", names[-1], str(new[0][0]), before.num_left_out)
    return Joined([*(list(file) for file in stored), *new], position)


class _LocalFolder:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files()

    def files(self) -> tuple[dict[str, Listed], list[str]]:
        """Name of each file -> what it is; names of what else there is."""
        found: dict[str, Listed] = {}
        others: list[str] = []
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if not entry.is_file():
                        others.append(entry.name)
                        continue
                    try:
                        stat = entry.stat()
                    except FileNotFoundError:  # renamed or taken away meanwhile
                        continue
                    own = partial(Path, self._folder, entry.name)
                    found[entry.name] = Listed(stat.st_size, str(stat.st_mtime_ns), own)
        except OSError as error:
            raise StoreError(
                error.errno, f"cannot list the folder {self._folder}: {error.strerror}"
            ) from error
        return found, sorted(others)
