"""PartParser: of each batch of a text log, parses the lines of one part alone.

Above it: the text reader of a rank, where several read one log. Below it: csrc/reader/batch_lines.h
and text_parser.h. Passing over a line of criteo takes a quarter of what parsing it does.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hps import _C

Floats = NDArray[np.float32]
Offsets = NDArray[np.int64]
Table = tuple[NDArray[np.int64], Offsets, Floats | None]  # keys, offsets, weights
# Labels, dense values, tables; then file, byte and line of what follows, and bad lines passed over.
Parsed = tuple[Floats, Floats, list[Table], tuple[int, int, int, int]]


class Parser(Protocol):
    """What the text reader asks of `_C.TextParser`, and of what is in its place."""

    num_bad: int

    @property
    def num_ready(self) -> int:
        """Examples that can be taken."""

    @property
    def error(self) -> tuple[int, int, bytes] | None:
        """File, line and reason of the bad line that ends the log."""

    def start_file(self, file: int, byte: int, line: int) -> None:
        """What is fed next is of this file, from there on."""

    def feed(self, data: NDArray[np.uint8], at_end: bool) -> int:
        """Takes whole lines; returns their bytes."""

    def take(self, count: int, first: int, last: int) -> Parsed:
        """Examples [first, last) of the next `count`, and the place after all of them."""


class PartParser:
    """Lines wait unparsed until their batch is whole; then those of the part are parsed.

    Args:
        schema: of the log; it skips no bad line, for to count those all lines must be parsed, and
            keeps every line that it gets.
        format: of the log.
        threads: that parse.
        sample: which lines count.
    """

    num_bad = 0

    def __init__(
        self, schema: _C.TextSchema, format: str, threads: _C.ThreadPool, sample: _C.SampleRule
    ) -> None:
        self._lines = _C.BatchLines(format, sample)
        self._parser = _C.TextParser(schema, threads)
        self.start_file = self._lines.start_file
        self.feed = self._lines.feed

    @property
    def num_ready(self) -> int:
        """Lines that are kept and not blank, parsed or not."""
        return self._lines.num_ready

    @property
    def error(self) -> tuple[int, int, bytes] | None:
        """File, line and reason of a bad line of the part that was taken last."""
        return self._parser.error

    def take(self, count: int, first: int, last: int) -> Parsed:
        """Parses and returns lines [first, last) of the next `count`; what is before a bad one,
        if `error` says that there is one."""
        place = self._lines.take(self._parser, count, first, last)
        num_ready = self._parser.num_ready
        labels, dense, tables, _ = self._parser.take(num_ready, 0, num_ready)
        return labels, dense, tables, (*place, 0)
