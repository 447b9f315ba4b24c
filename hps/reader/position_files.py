"""PositionFiles: the files that a position in a log tells of, by name and bytes.

Above it: `Reader`, and whoever reads what its `state_dict` has under `files`. Below it: nothing. Of
a folder that is followed files go, ever more of them. A position must name the file that it is in,
and those after it; of those before it, it names the ones that are still there, which may change. Of
one that is gone nothing is kept but that there was one: a name that sorts before the position's
file and that it does not know has come too late, or was put back, and is refused either way.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from hps.common.json_text import Json
from hps.errors import ConfigError

Files = Sequence[Sequence[str | int]]


@dataclass(frozen=True)
class PositionFiles:
    """The files of a position.

    Args:
        files: from a place on, in order.
        first: that place.
        read: of those before it the ones that were there when the folder was last looked at.

    >>> files = PositionFiles([["a", 5], ["b", 6], ["c", 7]])
    >>> files.without({"c"}, 1).to_json()
    [['a', 5], ['b', 6], ['c', 7]]
    >>> files.without({"a"}, 2).to_json()
    {'first': 2, 'read': [['b', 6]], 'files': [['c', 7]]}
    """

    files: Files
    first: int = 0
    read: Files = ()

    @classmethod
    def of(cls, stored: object) -> Self:
        """What `to_json` gave.

        Raises:
            ConfigError: they are no names and sizes.
        """
        if not isinstance(stored, Mapping):
            return cls(_checked(stored))
        first, read = stored.get("first"), _checked(stored.get("read"))
        if not isinstance(first, int) or first < len(read):
            raise ConfigError(f"the position's files begin at {first!r}, behind {len(read)} others")
        return cls(_checked(stored.get("files")), first, read)

    def to_json(self) -> Json | list[list[str | int]]:
        """As plain values: a list, as long as none is left out."""
        files = [list(file) for file in self.files]
        if not self.first:
            return files
        return {"first": self.first, "read": [list(file) for file in self.read], "files": files}

    @property
    def known(self) -> list[Sequence[str | int]]:
        """Those that are named."""
        return [*self.read, *self.files]

    @property
    def num_left_out(self) -> int:
        """Those that were read and are gone."""
        return self.first - len(self.read)

    @property
    def end(self) -> int:
        """The place behind the last one."""
        return self.first + len(self.files)

    def at(self, place: int) -> Sequence[str | int]:
        """That of a place, `first` or later."""
        return self.files[place - self.first]

    def until(self, end: int) -> list[Sequence[str | int]]:
        """Those that are named of the ones before a place."""
        return [*self.read, *self.files[: max(0, end - self.first)]]

    def without(self, gone: Collection[str], place: int) -> Self:
        """The same, but for those before a place that are gone; the last file stays, which says
        what has come too late."""
        cut = min(place - self.first, len(self.files) - 1)
        before = self.files[: max(0, cut)]
        named = [*self.read, *before]
        read = [file for file in named if str(file[0]) not in gone]
        if len(read) == len(named):
            return self
        return type(self)(self.files[len(before) :], self.first + len(before), read)


def _checked(stored: object) -> Files:
    if not isinstance(stored, Sequence) or not all(
        isinstance(file, Sequence) and len(file) == 2 for file in stored
    ):
        raise ConfigError(f"the position's files are {stored!r}, not names and sizes")
    return stored
