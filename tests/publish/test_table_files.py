"""Files of rows whose destination takes only so many bytes: each is given up, whatever was written.

Above it: pytest. Below it: table_files.py, row_files.py.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from hps.publish.destination import Destination
from hps.publish.table_files import VersionFolder, _Files

ROW_BYTES, NUM_ROWS = 8, 40


class Stream:
    """Takes so many bytes, then no more."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, data: memoryview) -> int:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, "no space")
        self.room -= len(data)
        return len(data)


class Full:
    """A destination with room for so many bytes, which notes how its files have ended."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.num_begun = 0
        self.errors: list[BaseException | None] = []  # of each that has ended

    @contextmanager
    def write(self, name: str) -> Iterator[Any]:
        self.num_begun += 1
        try:
            yield Stream(self.room)
        except BaseException as error:
            self.errors.append(error)
            raise
        self.errors.append(None)


def write_rows(place: Full) -> list[str]:
    """Writes two pieces of rows; the names of the files that are whole."""
    folder = VersionFolder(cast(Destination, place), "data/00000001-00000000")
    with _Files(folder, "rows-ads", ROW_BYTES) as files:
        keys = np.arange(NUM_ROWS, dtype=np.uint64)
        for value in (0, 1):
            files.write(keys, np.full((NUM_ROWS, ROW_BYTES), value, np.uint8))
    return [file.name for file in files.stored]


def test_a_file_that_finds_no_space_is_given_up_at_once() -> None:
    """While the error is held, and with it all that it has passed."""
    room, num_failed = 0, 0
    while True:
        place, held = Full(room), None
        try:
            names = write_rows(place)
        except OSError as error:
            held = error
        assert place.num_begun == len(place.errors) == 1, room
        if held is None:
            break
        assert place.errors == [held] and held.errno == errno.ENOSPC
        num_failed += 1
        room += 100
    assert names == ["data/00000001-00000000/rows-ads-0.arrow"] and place.errors == [None]
    assert num_failed > 5  # at its head, in its pieces, at its end
