"""Blocks: the rows of a csv file, block by block, until pyarrow is to let go of it.

Above it: csv_files.py. Below it: pyarrow, which unpacks files, too; loan.py.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyarrow import csv

from hps.errors import StoreError
from hps.reader.loan import LentStream, Loan
from hps.reader.urls import LogFile, UrlFile

Lend = Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
Parse = Callable[[Lend], csv.ParseOptions]
_BUFFER_BYTES = 1 << 20
_PACKED = {".gz": "gzip", ".zst": "zstd"}


def open_unpacked(path: LogFile) -> pa.NativeFile:
    """The file's bytes, unpacked by its name, for who reads them in the calling thread.

    Raises:
        StoreError: it cannot be read.
    """
    if isinstance(path, UrlFile):
        return _unpacked(pa.PythonFile(path.open("rb"), mode="r"), path)
    try:
        return pa.input_stream(str(path), compression=_PACKED.get(path.suffix))
    except OSError as error:
        raise StoreError(error.errno or 0, f"cannot read {path}: {error}") from error


def _unpacked(stream: pa.NativeFile, path: LogFile) -> pa.NativeFile:
    kind = _PACKED.get(path.suffix)
    return stream if kind is None else pa.CompressedInputStream(stream, kind)


def _buffered(stream: LentStream) -> pa.NativeFile:
    """Copies what it reads: no thread of pyarrow is left with bytes that Python must free."""
    return pa.BufferedInputStream(pa.PythonFile(stream, mode="r"), _BUFFER_BYTES)


class Blocks:
    """Reads blocks; pyarrow reads ahead in a thread of its own. Python does not run in it
    after `close`.

    Args:
        path: of the file.
        read: as pyarrow takes it.
        parse: makes what pyarrow takes; it lends the function that is told of bad rows.
        convert: as pyarrow takes it.

    Raises:
        StoreError: it cannot be read. pa.ArrowException, OSError, UnicodeDecodeError: as pyarrow
            has it.
    """

    def __init__(
        self,
        path: LogFile,
        read: csv.ReadOptions,
        parse: Parse,
        convert: csv.ConvertOptions,
    ) -> None:
        # No local variable holds these: it would outlive `close` in an error's traceback.
        self._reader: csv.CSVStreamingReader | None = None
        self._file: pa.NativeFile | None = None
        self._loan = Loan(path.open("rb") if isinstance(path, UrlFile) else None, self._let_go)
        self._is_lent = isinstance(path, UrlFile)
        try:
            if isinstance(path, UrlFile):
                self._file = _unpacked(_buffered(self._loan.lend()), path)
            else:
                self._file = open_unpacked(path)
            self._reader = csv.open_csv(self._file, read, parse(self._loan.lend_call), convert)
            self.schema: pa.Schema = self._reader.schema
        except BaseException:
            self.close()
            raise

    def read_next(self) -> pa.RecordBatch:
        """The next block.

        Raises:
            StopIteration: there is none. pa.ArrowException, OSError: as pyarrow has it.
        """
        if self._reader is None:
            raise StopIteration
        block = self._reader.read_next_batch()
        if self._loan.is_over:
            raise StopIteration  # closed meanwhile: the block may be cut off
        return block

    def close(self) -> None:
        """Waits for a range that is being fetched."""
        self._loan.end()

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._file is not None and not self._is_lent:  # pyarrow's thread may be at a lent one
            self._file.close()
        self._reader = self._file = None
