"""What is wrong with a csv file, in the words of the file: its lines, its columns.

Above it: csv_files.py. Below it: csv_lines.py, which finds the lines; the messages of pyarrow.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hps.errors import DataError, StoreError
from hps.reader.csv_lines import line_of_row, place_in_words
from hps.reader.urls import LogFile

BLOCK_BYTES = 1 << 20
DELIMITERS = (",", "\t", ";", "|")
_BAD_VALUE = re.compile(r"column #(\d+): (?:Row #(\d+): )?.* invalid value '(.*)'", re.DOTALL)
_BAD_ROW = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
_TOO_LONG = "straddl"
_VALUE = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|True|False", re.IGNORECASE)
_CORRECT = "correct the row"
LABELS = "is no label: 0, 1 or -1, or True and False throughout"


@dataclass(frozen=True)
class Words:
    """What pyarrow says of a file, in the words of the file.

    Args:
        delimiter: None before it is known.
        header: the names of the columns that are read, by their places.
        advice: what to do about a bad row.
        label: the column of labels; None where none are read.
    """

    path: LogFile
    delimiter: str | None
    header: Sequence[str] = ()
    advice: str = _CORRECT
    label: str | None = None

    def failure(self, error: Exception, row: int) -> Exception:
        """`row` rows of the file had been read before."""
        if isinstance(error, StoreError):
            return error
        path, advice = self.path, self.advice
        if isinstance(error, OSError) and error.errno is not None:
            return StoreError(error.errno, f"cannot read {path}: {error.strerror}")
        found = _BAD_VALUE.search(str(error))
        if found is not None and self.header:
            where = self._at(int(found[2]) - 1) if found[2] else self._after(row)
            name = self.header[int(found[1])]
            kind = LABELS if name == self.label else "is no number of its kind"
            return DataError(
                f"{path}, {where}: column {name!r} holds {found[3]!r}, which {kind}; {advice}"
            )
        found = _BAD_ROW.search(str(error))
        if found is not None:
            return DataError(
                f"{path}, {self._at(int(found[1]) - 1)}: {found[3]} columns, and the header has "
                f"{found[2]}: {found[4][:60]!r}; {advice}"
            )
        if _TOO_LONG in str(error):
            return DataError(
                f"{path}, {self._after(row)}: a row of more than {BLOCK_BYTES} bytes; a quote "
                "that is opened there and never closed takes in all lines after it"
            )
        return DataError(f"{path}, {self._after(row)}: {error}")

    def _at(self, row: int) -> str:
        return place_in_words(self.path, row, self.delimiter or DELIMITERS[0])

    def _after(self, row: int) -> str:
        if self.delimiter is None:
            return f"after row {row}"
        return f"from line {line_of_row(self.path, row + 1, self.delimiter)} on (after row {row})"


def header_advice(names: Sequence[str]) -> str:
    """What may be wrong with a first line that does not name the columns that it should.

    >>> header_advice(["7", "shoes"])
    "; the first line of csv names the columns, and this one has values, such as '7'"
    """
    numbers = [name for name in names if _VALUE.fullmatch(name.strip())]
    if numbers:
        return (
            "; the first line of csv names the columns, and this one has values, such as "
            f"{numbers[0]!r}"
        )
    if len(names) == 1 and any(delimiter in names[0] for delimiter in DELIMITERS):
        return "; what stands between columns is another character (--delimiter)"
    return ""


def unclosed(path: LogFile, row: int | None, delimiter: str) -> DataError:
    """Of a row that ends within a quote; None for the file's last one."""
    line = line_of_row(path, row, delimiter)
    where = f"line {line}" if row is None else f"line {line} (row {row})"
    return DataError(
        f"{path}, {where}: a quote is opened and never closed, and has taken in all lines after "
        "it; correct the file (a quote within a value is written twice, in a quoted value)"
    )
