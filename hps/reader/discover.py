"""What a text log does not declare: its number of columns or dense values, and its features.

Above it: the text reader. Below it: ByteSource, the native tokenizer. Every rule here depends on
the log alone, never on threads or batch size, and is in docs/formats.md.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from hps import _C
from hps.errors import DataError
from hps.reader.config import KEY_SLOT, SLOT_KEY
from hps.reader.schema import decode_name, sort_names
from hps.reader.source import ByteSource
from hps.reader.urls import LogFile

SAMPLE_LINES = 100
_SAMPLE_BYTES = 4 * 1024 * 1024
_SCAN_BYTES = 4 * 1024 * 1024
_MAX_LINE_BYTES = 64 * 1024 * 1024


def sample_lines(paths: Iterable[LogFile]) -> list[bytes]:
    """The first lines that are not blank, at most 100, of the first file that has any."""
    for path in paths:
        buffer = bytearray(_SAMPLE_BYTES)
        with closing(ByteSource(path)) as source:
            size = source.fill(memoryview(buffer))
        lines = bytes(buffer[:size]).split(b"\n")
        if size == len(buffer) and len(lines) > 1:
            lines.pop()  # cut off by the sample's end
        lines = [stripped for line in lines if (stripped := line.rstrip(b"\r"))]
        if lines:
            return lines[:SAMPLE_LINES]
    return []


def most_common(lines: Sequence[bytes], count: Callable[[bytes], int]) -> int | None:
    """The commonest count of the lines, the larger of two; None without lines."""
    tally = Counter(count(line) for line in lines)
    return max(tally, key=lambda number: (tally[number], number)) if tally else None


def count_dense(line: bytes) -> int:
    """Dense values of a slots line."""
    return sum(token.startswith(b"dense_feature:") for token in line.split())


def slot_layout(lines: Sequence[bytes]) -> str | None:
    """The layout that most labelled lines of slots have; None where none is.

    >>> slot_layout([b"1:1 3:101", b"3:101"]), slot_layout([b"click:0 101:3"])
    ('key:slot', 'slot:key')
    """
    firsts = [line.split(maxsplit=1)[0] for line in lines if line.strip()]
    named = sum(first.startswith((b"click:", b"label:")) for first in firsts)
    plain = sum(first.endswith(b":1") for first in firsts)
    if not named and not plain:
        return None
    return SLOT_KEY if named > plain else KEY_SLOT


def read_lines(
    path: LogFile, offset: int, piece_bytes: int, take: Callable[[NDArray[np.uint8], bool], int]
) -> Iterable[None]:
    """Reads a file in pieces that end where `take` says, and yields after each.

    Args:
        take: gets uint8 [n] and whether the file ends with it; returns the bytes it has used, at
            least up to the last newline, at the end all. It gets the rest again with what follows.

    Raises:
        DataError: a line of more than 64 MiB, or a damaged stream.
        StoreError: the operating system refuses the file.
    """
    buffer = np.empty(piece_bytes, np.uint8)
    size = 0
    with closing(ByteSource(path, offset)) as source:
        while True:
            count = source.fill(buffer.data[size:])
            at_end = count < len(buffer) - size and not source.damaged
            size += count
            used = take(buffer[:size], at_end)
            yield
            if at_end:
                return
            rest = size - used
            if used == 0 and size == len(buffer):
                if size >= _MAX_LINE_BYTES:
                    raise DataError(f"{path}: a line is longer than {_MAX_LINE_BYTES} bytes")
                buffer = np.concatenate([buffer, np.empty_like(buffer)])
            elif rest:
                buffer[:rest] = buffer[used:size].copy()
            size = rest


def collect_features(paths: Sequence[LogFile], schema: _C.TextSchema, advice: str) -> list[str]:
    """Every feature of a libffm or slots log, found by reading all of it.

    Args:
        advice: what to do about a bad line, in words.

    Raises:
        DataError: a bad line, unless the schema skips those.
    """
    names: set[bytes] = set()
    for path in paths:
        num_lines = 0

        def take(data: NDArray[np.uint8], at_end: bool, path: LogFile = path) -> int:
            nonlocal num_lines
            size = len(data) if at_end else bytes(data).rfind(b"\n") + 1
            found, count, error = schema.collect_features(data[:size])
            if error is not None:
                raise bad_line(path, num_lines + error[0], error[1], advice)
            names.update(found)
            num_lines += count
            return size

        for _ in read_lines(path, 0, _SCAN_BYTES, take):
            pass
    return sort_names([decode_name(name) for name in names])


def bad_line(path: LogFile, line: int, reason: bytes, advice: str) -> DataError:
    said = reason.decode("ascii", "backslashreplace")
    return DataError(f"{path}, line {line}: {said}; {advice}")
