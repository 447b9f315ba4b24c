"""Bytes of a log file from a given place on, plain, gzip or zstandard, chosen by the name's end.

Above it: the text reader. Below it: the file system, zlib, the zstandard package (only for .zst).
"""

import os
import zlib
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from hps.errors import ConfigError, DataError, StoreError
from hps.reader.urls import LogFile, UrlStream

_COMPRESSED_BYTES = 64 * 1024
_PIECE_BYTES = 1024 * 1024


class ByteSource:
    """A file's bytes in order, as if it were not compressed, until `close`. Not for
    several threads.

    Args:
        path: ends in .gz, .zst or anything else (plain).
        offset: uncompressed bytes to pass over. Plain files seek; others decompress up to there.

    Raises:
        StoreError: the operating system refuses the file.
        ConfigError: a .zst file without the zstandard package; an offset past the end.
        DataError: the compressed stream is damaged or ends early.
    """

    def __init__(self, path: LogFile, offset: int = 0) -> None:
        self.path = path
        self._pieces: Iterator[bytes] | None = None
        self._left = memoryview(b"")
        self._error: DataError | None = None
        self._place = 0
        self._file: FileIO | UrlStream
        try:
            self._file = FileIO(path) if isinstance(path, Path) else path.open("rb")
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error
        try:
            if path.suffix in (".gz", ".zst"):
                unpack = _gzip_pieces if path.suffix == ".gz" else _zstd_pieces
                self._pieces = unpack(self._file, path)
            self._skip(offset)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    @property
    def damaged(self) -> bool:
        """The next fill will raise: what was handed out is all that could be read."""
        return self._error is not None

    @property
    def num_taken(self) -> float:
        """Bytes of the file for what was handed out; of a compressed one about so many."""
        unpacked = self._place + len(self._left)
        return self._file.tell() * (self._place / unpacked if unpacked else 1.0)

    def fill(self, buffer: memoryview) -> int:
        """Writes the next bytes to `buffer`; fewer than it holds only at the end of the file.

        What comes before damage is handed out first; the call after it raises.

        Returns:
            The number of bytes written; 0 at the end.
        """
        done = 0
        while done < len(buffer) and self._error is None:
            try:
                count = self._read_some(buffer[done:])
            except StoreError:
                raise
            except OSError as error:
                raise StoreError(
                    error.errno, f"cannot read {self.path}: {error.strerror}"
                ) from error
            except DataError as error:
                self._error = error
                break
            if count == 0:
                break
            done += count
        self._place += done
        if done == 0 and self._error is not None:
            raise DataError(f"{self._error} (after {self._place} uncompressed bytes)")
        return done

    def _read_some(self, buffer: memoryview) -> int:
        if self._pieces is None:
            return self._file.readinto(buffer) or 0
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        count = min(len(self._left), len(buffer))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def _skip(self, offset: int) -> None:
        """Passes over `offset` bytes and checks that a line begins there."""
        if offset == 0:
            return
        last = b""
        if self._pieces is None:
            if offset <= self._length():
                self._file.seek(offset - 1)
                last = self._file.read(1) or b""
        else:
            scratch = memoryview(bytearray(_PIECE_BYTES))
            while self._place < offset:
                count = self.fill(scratch[: offset - self._place])
                if count == 0:
                    break
                last = bytes(scratch[count - 1 : count])
            if self._place < offset:
                last = b""
        at_end = bool(last) and last != b"\n" and self._peek_end()
        if last != b"\n" and not at_end:
            raise ConfigError(
                f"{self.path}: no line begins at byte {offset}; "
                "the position is not of this file, or the file has changed"
            )
        self._place = offset

    def _length(self) -> int:
        """Bytes of the file as it is now; of one behind a URL as it was found."""
        if isinstance(self._file, UrlStream):
            return self._file.size
        return os.fstat(self._file.fileno()).st_size

    def _peek_end(self) -> bool:
        if self._pieces is None:
            return self._file.tell() == self._length()
        if not self._left:
            self._left = memoryview(next(self._pieces, b""))
        return not self._left


def _gzip_pieces(file: FileIO | UrlStream, path: LogFile) -> Iterator[bytes]:
    """The uncompressed bytes of a gzip file's members; zero bytes after the last are padding."""
    unpacker: zlib._Decompress | None = None
    data = b""
    any_member = False
    has_more = False  # output was cut at its limit: zlib may hold more without any input
    while has_more or data or (data := file.read(_COMPRESSED_BYTES) or b""):
        if unpacker is None:
            data = data.lstrip(b"\0") if any_member else data
            if not data:
                continue
            unpacker = zlib.decompressobj(wbits=31)
            any_member = True
        try:
            piece = unpacker.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise DataError(f"{path}: the gzip stream is damaged: {error}") from error
        if piece:
            yield piece
        has_more = not unpacker.eof and len(piece) == _PIECE_BYTES
        data = unpacker.unconsumed_tail
        if unpacker.eof:
            data = unpacker.unused_data
            unpacker = None
    if unpacker is not None:
        raise DataError(f"{path}: the gzip stream ends early; the file is cut off")


def _zstd_pieces(file: FileIO | UrlStream, path: LogFile) -> Iterator[bytes]:
    """The uncompressed bytes of all frames of a zstandard file."""
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading .zst needs the package zstandard; pip install zstandard"
        ) from error
    unpacker: zstandard.ZstdDecompressionObj | None = None
    data = b""
    while data or (data := file.read(_COMPRESSED_BYTES) or b""):
        if unpacker is None:
            unpacker = zstandard.ZstdDecompressor().decompressobj()
        try:
            piece = unpacker.decompress(data)
        except zstandard.ZstdError as error:
            raise DataError(f"{path}: the zstandard stream is damaged: {error}") from error
        if piece:
            yield piece
        data = b""
        if unpacker.eof:
            data = unpacker.unused_data
            unpacker = None
    if unpacker is not None:
        raise DataError(f"{path}: the zstandard stream ends early; the file is cut off")
