"""Files of rows whose destination takes only so many bytes: each is given up, whatever was written.

Above it: pytest. Below it: table_files.py, row_files.py.
"""

import errno
import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from hps.publish.destination import Destination, open_destination
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


def test_a_large_piece_that_the_thread_cannot_write_gives_the_file_up() -> None:
    """The caller has gone on by then: it is told where it leaves the file, at the latest."""
    place = Full(3 << 20)
    folder = VersionFolder(cast(Destination, place), "data/00000001-00000000")
    piece = bytes(1 << 20)
    with pytest.raises(OSError, match="no space"), folder.writing("rows-ads-0.arrow") as file:
        for _ in range(4):
            file.write(piece)
    assert len(place.errors) == 1 and isinstance(place.errors[0], OSError)


def test_large_and_small_pieces_are_written_in_their_order(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    pieces = [random.bytes(size) for size in (3, 1 << 20, 5, 1 << 17, 0, 1 << 21, 1, 1 << 16, 9)]
    folder = VersionFolder(open_destination(tmp_path), "data/00000001-00000000")
    with folder.writing("rows-ads-0.arrow") as file:
        for piece in pieces:
            file.write(piece)
    whole = b"".join(pieces)
    stored = file.stored()
    assert (tmp_path / stored.name).read_bytes() == whole
    assert (stored.bytes, stored.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())


class Late(Full):
    """Notes what is written to it, of which the first piece takes the longest."""

    def __init__(self) -> None:
        super().__init__(0)
        self.written = b""

    @contextmanager
    def write(self, name: str) -> Iterator[Any]:
        yield self.Stream(self)

    class Stream:
        def __init__(self, place: "Late") -> None:
            self._place = place
            self._is_first = True

        def write(self, data: memoryview) -> int:
            if self._is_first:
                self._is_first = False
                time.sleep(0.1)
            self._place.written += bytes(data)
            return len(data)


def test_a_piece_that_takes_long_is_overtaken_by_none() -> None:
    place, pieces = (
        Late(),
        [bytes([value]) * size for value, size in enumerate((1 << 20, 3, 1 << 17))],
    )
    folder = VersionFolder(cast(Destination, place), "data/00000001-00000000")
    with folder.writing("rows-ads-0.arrow") as file:
        for piece in pieces:
            file.write(piece)
    assert place.written == b"".join(pieces)
    assert file.stored().sha256 == hashlib.sha256(place.written).hexdigest()
