"""Csv files as record batches, block by block, parsed by pyarrow.

Above it: record_reader.py. Below it: csv_blocks.py, pyarrow. A row that cannot be
divided into the header's columns is a bad row; a row without anything in it is passed over.
"""

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from hps.errors import DataError, StoreError
from hps.reader.config import ReaderConfig
from hps.reader.csv_blocks import Blocks, Parse, open_unpacked
from hps.reader.csv_lines import SwallowedLines, ends_in_quote, place_in_words
from hps.reader.csv_words import BLOCK_BYTES, DELIMITERS, Words, header_advice, unclosed
from hps.reader.dense_text import MISSING
from hps.reader.records import Piece, RecordColumns
from hps.reader.urls import LogFile

_NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
_WHOLE = r"^\s*[+-]?\d*\s*$"
_WHOLE_OR_POINT_ZERO = r"^\s*[+-]?\d*(\.0*)?\s*$"
_ZERO_FIRST = r"^\s*[+-]?0\d"
# In the metadata of a field of whole numbers, some of which are not written as whole numbers are:
# they begin with 0, or end in .0.
LEADING_ZEROS, POINT_ZERO = "leading_zeros", "point_zero"
_TYPES = csv.ConvertOptions()
_FLAGS = {**dict.fromkeys(_TYPES.true_values, "1"), **dict.fromkeys(_TYPES.false_values, "0")}
_QUOTED = re.compile(r'"[^"]*"')


class CsvFiles:
    """Reads what RecordReader asks for.

    Args:
        config: the delimiter; what becomes of bad rows.
        named: features that tables name, whatever their values look like.
    """

    def __init__(self, config: ReaderConfig, named: Collection[str] = ()) -> None:
        self._config = config
        self._named = frozenset([*named, *(config.separators or ())])

    def fields(self, path: LogFile) -> list[pa.Field]:
        """The columns of a file, in types that its first block fits: int64, float64 or string;
        those that were named dense, or as weights, are float64, and groups are never that.

        Raises:
            DataError: a file without a header, or with a name twice.
        """
        with self._inferred(path) as reader:
            fields = list(reader.schema)
        names = [field.name for field in fields]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(
                f"{path}: columns {twice} appear twice in the header; give each column a name of "
                f"its own{header_advice(names)}"
            )
        empty = [place for place, name in enumerate(names, 1) if not name]
        if empty and "" not in self._config.ignore:
            raise DataError(
                f"{path}: column {empty[0]} has no name in the header; name it, or leave it out"
                f"{header_advice(names)}"
            )
        numbers = [
            field.name
            for field in fields
            if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        ]
        whole, zeros, points = self._whole(
            path, [name for name in numbers if not self._is_number(name)]
        )
        marks = {**dict.fromkeys(points, POINT_ZERO), **dict.fromkeys(zeros, LEADING_ZEROS)}
        return [self._field_of(field, whole, marks) for field in fields]

    def _is_number(self, name: str) -> bool:
        """It is read as numbers whatever its values look like."""
        of_numbers = (self._config.label, self._config.weight, *(self._config.dense_columns or ()))
        return name in of_numbers

    def _field_of(
        self, field: pa.Field, whole: Collection[str], marks: Mapping[str, str]
    ) -> pa.Field:
        name, kind = field.name, _plain(field.type)
        if name == self._config.label and pa.types.is_boolean(field.type):
            return pa.field(name, field.type)
        is_float = pa.types.is_floating(field.type)
        if name in (self._config.dense_columns or ()) or name == self._config.weight:
            kind = pa.float64()
        elif (
            name in self._named
            or marks.get(name) == LEADING_ZEROS
            or (name == self._config.group and is_float)
        ):
            kind = pa.string()
        elif name in whole and is_float:
            kind = pa.uint64()  # some are beyond 63 bits
        return pa.field(name, kind, metadata={marks[name]: ""} if name in marks else None)

    def _whole(self, path: LogFile, names: list[str]) -> tuple[set[str], set[str], set[str]]:
        """Those columns whose numbers are all whole; those of them of which some begin with 0,
        which numbers would lose: zip codes, ids; and those whose numbers are all whole but for the
        point of some: 785.0, as pandas writes ids beside missing ones."""
        if not names:
            return set(), set(), set()
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), include_columns=names
        )
        words = Words(path, self._delimiter(path), names)
        with _reader(words, self._parse_options(path, deque(), [], skips=True), convert) as reader:
            batch = _next(reader.read_next, words, 0)
        if batch is None:
            return set(), set(), set()

        def matches(name: str, pattern: str) -> pa.Array:
            return pc.match_substring_regex(batch.column(name), pattern)

        whole = {name for name in names if pc.all(matches(name, _WHOLE), min_count=0).as_py()}
        zeros = {name for name in whole if pc.any(matches(name, _ZERO_FIRST)).as_py()}
        points = {
            name
            for name in set(names).difference(whole)
            if pc.all(matches(name, _WHOLE_OR_POINT_ZERO), min_count=0).as_py()
        }
        return whole, zeros, points

    def pieces(
        self, path: LogFile, columns: RecordColumns, first_row: int, like: LogFile
    ) -> Iterator[Piece]:
        """As RecordFiles has it."""
        opened: list[int] = []  # the row that ends within a quote, which is the last one
        try:
            yield from self._pieces(path, columns, first_row, like, opened)
        except DataError as error:
            if opened:  # which says more than what is wrong with that row
                raise unclosed(path, opened[0], self._delimiter(path)) from error
            raise
        if opened:
            raise unclosed(path, opened[0], self._delimiter(path))

    def _pieces(
        self,
        path: LogFile,
        columns: RecordColumns,
        first_row: int,
        like: LogFile,
        opened: list[int],
    ) -> Iterator[Piece]:
        """As `pieces`; `opened` gets the row that ends within a quote."""
        numbers = [name for name in columns.numbers() if name not in columns.kept]
        is_lenient = self._config.on_error == "skip"
        # Of features the raw bytes, which are hashed; what is empty is missing: records.py.
        types = dict.fromkeys(columns.names(), pa.binary())
        types |= dict.fromkeys(numbers, pa.string() if is_lenient else pa.float64())
        bad: deque[int] = deque()  # rows that could not be divided, from 1
        row = first_row
        options = self._parse_options(path, bad, opened)
        header, has_flags = self._header(path, columns.label)
        if has_flags and not is_lenient:
            types[columns.label] = pa.bool_()
        _check_header(path, header, columns.names(), like)
        # Those that are left out, too: what a quote has swallowed may end up there.
        once = [name for name in header if header.count(name) == 1 or name == header[-1]]
        names = list(dict.fromkeys([*columns.names(), *once]))
        convert = csv.ConvertOptions(
            column_types={**dict.fromkeys(names, pa.binary()), **types}, include_columns=names
        )
        read_columns = list(dict.fromkeys([*columns.names(), header[-1]]))
        delimiter = self._delimiter(path)
        words = Words(path, delimiter, header, self._config.advice("row"), columns.label)
        swallowed = SwallowedLines(path, header, columns.label, delimiter)
        last: object = None
        with (
            _reader(words, options, convert, first_row) as reader,
            _ahead(reader, self._config.num_threads()) as read,
        ):
            while True:
                batch = _next(read, words, row)
                if batch is None:
                    break
                if len(batch):
                    last = batch.column(header[-1])[-1].as_py()
                lenient = {
                    name: _FLAGS if name == columns.label else {} for name in numbers * is_lenient
                }
                piece, row = self._piece(batch, row, bad, lenient)
                swallowed.look(piece.batch, header, piece.row_ends)
                piece = replace(
                    piece,
                    batch=piece.batch.select(read_columns),
                    place_of=lambda row: place_in_words(path, row, delimiter),
                )
                yield self._without_blanks(piece, path, columns)
        text = last.encode() if isinstance(last, str) else last
        if isinstance(text, bytes) and b"\n" in text:
            _check_quotes(path, text, delimiter)
        if bad:
            yield Piece.bad({**types, **dict.fromkeys(numbers, pa.float64())}, len(bad))

    def _header(self, path: LogFile, label: str | None) -> tuple[list[str], bool]:
        """The names of the columns, and whether labels are True and False: some of the first block
        are, whatever else it has."""
        with self._inferred(path) as reader:
            names = list(reader.schema.names)
            if label is None or names.count(label) != 1:
                return names, False
            kind = reader.schema.field(label).type
            if not pa.types.is_string(kind):
                return names, bool(pa.types.is_boolean(kind))
            batch = _next(reader.read_next, Words(path, self._delimiter(path), names), 0)
        if batch is None:
            return names, False
        said = pc.is_in(batch.column(label), pa.array(list(_FLAGS.keys() - {"0", "1"})))
        return names, bool(pc.any(said, min_count=0).as_py())

    def _inferred(self, path: LogFile) -> AbstractContextManager[Blocks]:
        """A reader of types that pyarrow finds; bad rows are left to one that reads the rows."""
        words = Words(path, self._delimiter(path))
        return _reader(
            words, self._parse_options(path, deque(), [], skips=True), csv.ConvertOptions()
        )

    def _piece(
        self,
        batch: pa.RecordBatch,
        row: int,
        bad: deque[int],
        lenient: Mapping[str, Mapping[str, str]],
    ) -> tuple[Piece, int]:
        """A block's rows with their numbers, and the number of the last.

        Args:
            row: rows of the file before the block.
            bad: rows that were left out of this block, and maybe of some that follow.
            lenient: columns of text that are numbers, or bad; with the words that stand for some.
        """
        row_ends = np.empty(len(batch), np.int64)
        num_bad = np.zeros(len(batch), np.int64)
        place, count = 0, 0
        while place < len(batch):
            while bad and bad[0] == row + 1:
                bad.popleft()
                row, count = row + 1, count + 1
            end = len(batch) if not bad else min(len(batch), place + bad[0] - row - 1)
            row_ends[place:end] = np.arange(row + 1, row + 1 + end - place)
            num_bad[place:end] = count
            row, place = row + end - place, end
        for name, said in lenient.items():
            text = pc.utf8_trim_whitespace(batch.column(name))
            for word, number in said.items():
                text = pc.if_else(pc.equal(text, word), number, text)
            is_missing = pc.is_in(text, pa.array(sorted(MISSING)))
            numbers = pc.if_else(pc.match_substring_regex(text, _NUMBER), text, "inf")  # bad
            values = pc.cast(pc.if_else(is_missing, None, numbers), pa.float64())
            batch = batch.set_column(batch.schema.get_field_index(name), name, values)
        return Piece(batch, row_ends, num_bad, count), row

    def _without_blanks(self, piece: Piece, path: LogFile, columns: RecordColumns) -> Piece:
        """Without rows that have nothing in them.

        Raises:
            DataError: there is one, and no labels tell whether it is an example.
        """
        batch = piece.batch
        is_blank = pa.array(np.ones(len(batch), bool))
        for column in batch.columns:
            is_empty = pc.is_null(column)
            if pa.types.is_binary(column.type):
                is_empty = pc.or_(is_empty, pc.equal(pc.binary_length(column), 0))
            is_blank = pc.and_(is_blank, is_empty)
            if not pc.any(is_blank, min_count=0).as_py():
                return piece
        mask = ~is_blank.to_numpy(zero_copy_only=False)
        if columns.label is None:
            where = piece.row_in_words(int(np.argmin(mask)))
            raise DataError(
                f"{path}, {where}: nothing is in it, and without a column of labels it may be a "
                "blank line or an example; leave it out"
            )
        kept = batch.filter(pa.array(mask))
        return replace(
            piece, batch=kept, row_ends=piece.row_ends[mask], num_bad=piece.num_bad[mask]
        )

    def _delimiter(self, path: LogFile) -> str:
        return self._config.delimiter or told_delimiter(path)

    def _parse_options(
        self, path: LogFile, bad: deque[int], opened: list[int], *, skips: bool = False
    ) -> Parse:
        """How text is divided; `bad` gets the numbers of rows that it cannot be, if they are
        skipped, `opened` that of one that ends within a quote: the file's last."""
        skips |= self._config.on_error == "skip"
        delimiter = self._delimiter(path)

        def bad_row(row: csv.InvalidRow) -> str:
            if ends_in_quote(row.text or "", delimiter):
                opened.append(row.number - 1)  # without the header
            if not skips:
                return "error"
            bad.append(row.number - 1)
            return "skip"

        return lambda lend: csv.ParseOptions(
            delimiter=delimiter,
            newlines_in_values=True,
            ignore_empty_lines=False,
            invalid_row_handler=lend(bad_row),
        )


def told_delimiter(path: LogFile) -> str:
    """The one of DELIMITERS that a file's first line has most of.

    Raises:
        DataError: the file is empty.
    """
    with open_unpacked(path) as file:
        try:
            head = file.read(BLOCK_BYTES)
        except OSError as error:
            raise Words(path, None).failure(error, 0) from error
    if head.startswith(b"PAR1"):
        raise DataError(f"{path} is a parquet file, and is read as csv; give a log of csv")
    line = head.split(b"\n")[0]
    if not line.strip():
        raise DataError(f"{path} has no header line; csv begins with the names of the columns")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: its header is not UTF-8 ({error}); write the file as UTF-8"
        ) from None
    unquoted = _QUOTED.sub("", text)
    return max(DELIMITERS, key=unquoted.count)


@contextmanager
def _reader(
    words: Words, parse: Parse, convert: csv.ConvertOptions, first_row: int = 0
) -> Iterator[Blocks]:
    read = csv.ReadOptions(
        use_threads=False, block_size=BLOCK_BYTES, skip_rows_after_names=first_row
    )
    try:
        blocks = Blocks(words.path, read, parse, convert)
    except StoreError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise words.failure(error, first_row) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{words.path}: its header is not UTF-8 ({error})") from None
    with closing(blocks):
        yield blocks


@contextmanager
def _ahead(blocks: Blocks, num_threads: int) -> Iterator[Callable[[], pa.RecordBatch]]:
    """What returns the next block; with two threads the one after it is parsed meanwhile."""
    if num_threads == 1:
        yield blocks.read_next
        return
    with ThreadPoolExecutor(1) as pool:
        coming: deque[Future[pa.RecordBatch]] = deque()

        def begin() -> None:
            with suppress(RuntimeError):  # while the interpreter ends no thread takes work
                coming.append(pool.submit(blocks.read_next))

        def read() -> pa.RecordBatch:
            if not coming:
                return blocks.read_next()
            batch = coming.popleft().result()
            begin()
            return batch

        begin()
        yield read


def _next(read: Callable[[], pa.RecordBatch], words: Words, row: int) -> pa.RecordBatch | None:
    try:
        return read()
    except StopIteration:
        return None
    except (pa.ArrowException, OSError) as error:
        raise words.failure(error, row) from error


def _check_quotes(path: LogFile, last: bytes, delimiter: str) -> None:
    """DataError if the last value of a file, which holds a line end, has a quote that is not
    closed: then it goes on to the end of the file."""
    opened = b'"' + last.replace(b'"', b'""')
    closed = opened + b'"'
    tail = b""
    with open_unpacked(path) as file:
        while piece := file.read(BLOCK_BYTES):
            tail = (tail + piece)[-len(closed) - len(b"\r\n") :]
    without_end = tail.removesuffix(b"\n").removesuffix(b"\r")
    # Of a value that is a line end alone, the quote that closes it and the file's last line end
    # look like one that opens it.
    is_closed = tail.endswith(closed) or without_end.endswith(closed)
    if not is_closed and (tail.endswith(opened) or without_end.endswith(opened)):
        raise unclosed(path, None, delimiter)


def _check_header(path: LogFile, header: list[str], wanted: list[str], like: LogFile) -> None:
    missing = [name for name in wanted if header.count(name) != 1]
    if missing:
        raise DataError(
            f"{path} has no columns {missing} (or more than one of a name), which {like} has; it "
            f"has {header}"
        )


def _plain(kind: pa.DataType) -> pa.DataType:
    """int64, float64 or string: what a column of csv can be."""
    if pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else pa.string()
