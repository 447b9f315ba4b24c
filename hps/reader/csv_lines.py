"""Where rows of a csv file are, in lines of the file, and which of them swallow lines.

Above it: csv_files.py. Below it: csv_blocks.py, which opens files. A row that holds quoted line
ends takes several lines, so that rows and lines are counted apart.
"""

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hps.reader.csv_blocks import open_unpacked
from hps.reader.urls import LogFile

_READ_BYTES = 1 << 20
_LABELS = (0, 1, -1)
_FLAGS = (b"true", b"false")
_MARK = b"\xef\xbb\xbf"  # of UTF-8, which pyarrow passes over


def ends_in_quote(row: str, delimiter: str, *, within: bool = False) -> bool:
    """True of a row whose last value opens a quote and does not close it, as pyarrow reads it: a
    quote opens at the beginning of a value alone.

    Args:
        within: the row begins within a quote, as a later line of a row does.

    >>> [ends_in_quote(row, ",") for row in ('a,"b', 'a,"b"', 'a,b"', 'a,"b""', '"a","b,"c')]
    [True, False, False, True, False]
    >>> ends_in_quote('a",b', ",", within=True), ends_in_quote('a""', ",", within=True)
    (False, True)
    """
    place = 0
    while True:
        if within or row.startswith('"', place):
            place += 0 if within else 1
            within = False
            while (place := row.find('"', place)) >= 0 and row.startswith('"', place + 1):
                place += 2  # a quote that is written twice
            if place < 0:
                return True
            place += 1  # what follows a closed quote belongs to the value
        place = row.find(delimiter, place) + 1
        if not place:
            return False


def line_of_row(path: LogFile, row: int | None, delimiter: str) -> int:
    """The line of a file, from 1, at which a row below its header begins.

    Args:
        row: from 1, blank lines counted; None for the last one.

    Raises:
        StoreError: the file cannot be read.

    Cost: the file is read from its beginning to the row.
    """
    begins, within, number = 1, False, -1
    for line_number, line in enumerate(_lines(path), 1):
        if not within:
            begins, number = line_number, number + 1
            if number == row:
                break
        if b'"' in line:
            within = ends_in_quote(line.decode("latin-1"), delimiter, within=within)
    return begins


def place_in_words(path: LogFile, row: int, delimiter: str) -> str:
    """Where a row begins: 'line 9 (row 7)'."""
    return f"line {line_of_row(path, row, delimiter)} (row {row})"


def _lines(path: LogFile) -> Iterator[bytes]:
    """The lines of a file with their ends, which are those that pyarrow knows."""
    rest, is_first = b"", True
    with open_unpacked(path) as file:
        while piece := file.read(_READ_BYTES):
            if is_first:
                piece, is_first = piece.removeprefix(_MARK), False
            lines = (rest + piece).splitlines(keepends=True)
            rest = lines.pop()  # which may go on, also with the second half of its end
            yield from lines
    yield from rest.splitlines(keepends=True)


class SwallowedLines:
    """Finds rows that look like several: two stray quotes that close each other make one value of
    the lines between, which is how a valid value of several lines is written, too.

    A row is named if each of its lines, quotes taken as text, has as many values as the header and,
    where labels are read, a label in its place. Text of several lines is hardly ever so.
    """

    def __init__(self, path: LogFile, header: list[str], label: str | None, delimiter: str) -> None:
        self._path = path
        self._num_columns = len(header)
        self._label = None if label is None else header.index(label)
        self._delimiter = delimiter
        self._has_warned = self._num_columns < (3 if label is None else 2)

    def look(
        self, batch: pa.RecordBatch, columns: Sequence[str], row_ends: NDArray[np.int64]
    ) -> None:
        """Warns of the first such row of a file.

        Args:
            batch: a block of the file; text is binary.
            columns: the file's columns by their places, those of the block among them.
            row_ends: the number of each row.
        """
        if self._has_warned:
            return
        for place, name in enumerate(columns):
            idx = batch.schema.get_field_index(name)
            if idx < 0 or not pa.types.is_binary(batch.schema.field(idx).type):
                continue
            data = batch.column(idx).buffers()[2]
            if data is None or b"\n" not in data.to_pybytes():
                continue
            for row, value in zip(row_ends, batch.column(idx).to_pylist(), strict=True):
                if value is not None and b"\n" in value and self._is_several(value, place):
                    self._warn(row, value.count(b"\n") + 1)
                    return

    def _is_several(self, value: bytes, place: int) -> bool:
        """True if a value in the column of that place is what stray quotes make of rows."""
        lines = value.split(b"\n")
        counts = [line.count(self._delimiter.encode()) for line in lines]
        inner = self._num_columns - 1
        if counts != [inner - place, *[inner] * (len(lines) - 2), place]:
            return False
        if self._label is None:
            return True
        # The first line begins within its row, the last one ends within its own.
        labels = [self._is_label(line, self._label) for line in lines[1:-1]]
        if self._label > place:
            return all(labels) and self._is_label(lines[0], self._label - place)
        return all(labels) and self._is_label(lines[-1], self._label)

    def _is_label(self, line: bytes, place: int) -> bool:
        word = line.split(self._delimiter.encode())[place].strip(b' \r"')
        try:
            return word.lower() in _FLAGS or float(word) in _LABELS
        except ValueError:
            return False

    def _warn(self, row: int, num_lines: int) -> None:
        self._has_warned = True
        logging.getLogger(__name__).warning(
            "hps: warning: %s, %s: one value is a quoted text of %d lines, each of which is a row "
            "of its own if the quotes are strays; it is read as one row. A quote that belongs to a "
            "value is written twice, in a quoted value. The rest of this file is not looked at",
            self._path,
            place_in_words(self._path, row, self._delimiter),
            num_lines,
        )
