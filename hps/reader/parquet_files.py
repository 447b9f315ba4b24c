"""Parquet files as record batches, row group by row group.

Above it: record_reader.py. Below it: pyarrow.
"""

from collections.abc import Iterator
from os import SEEK_END

import pyarrow as pa
import pyarrow.parquet as pq

from hps.errors import ConfigError, DataError, StoreError
from hps.reader.records import Piece, RecordColumns
from hps.reader.urls import LogFile, UrlFile

_PIECE_ROWS = 16384
_ARROW_ERRORS = (pa.ArrowException, OSError)
_MAGIC = b"PAR1"  # the first and the last bytes of each file


class ParquetFiles:
    """Reads what RecordReader asks for."""

    def fields(self, path: LogFile) -> list[pa.Field]:
        """The columns of a file."""
        with _open(path) as file:
            return list(file.schema_arrow)

    def num_rows(self, path: LogFile) -> int:
        """The rows of a file, as its footer has them."""
        with _open(path) as file:
            return int(file.metadata.num_rows)

    def pieces(
        self, path: LogFile, columns: RecordColumns, first_row: int, like: LogFile
    ) -> Iterator[Piece]:
        """As RecordFiles has it."""
        with _open(path) as file:
            columns.check(str(path), file.schema_arrow, str(like))
            num_rows = file.metadata.num_rows
            if first_row > num_rows:
                raise ConfigError(
                    f"{path} has {num_rows} rows; the position {first_row} is not of this file"
                )
            row = 0
            groups: list[int] = []
            for group in range(file.metadata.num_row_groups):
                group_rows = file.metadata.row_group(group).num_rows
                if not groups and row + group_rows <= first_row:
                    row += group_rows
                else:
                    groups.append(group)
            if not groups:
                return
            try:
                for batch in file.iter_batches(_PIECE_ROWS, groups, columns.names()):
                    begin = min(max(first_row - row, 0), len(batch))
                    first = row + begin
                    row += len(batch)
                    if begin < len(batch):
                        yield Piece.whole(batch.slice(begin), first)
            except StoreError:
                raise
            except _ARROW_ERRORS as error:
                raise DataError(f"{path}: damaged near row {row + 1}: {error}") from error


def _open(path: LogFile) -> pq.ParquetFile:
    try:
        if isinstance(path, UrlFile):  # what a column chunk takes is read in one range
            return pq.ParquetFile(path.open(ahead=0), pre_buffer=True)
        with path.open("rb"):
            pass  # pyarrow's own error does not tell a missing file from a damaged one
        return pq.ParquetFile(path)
    except StoreError:
        raise
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a parquet file: {_why(path, error)}") from error
    except OSError as error:
        if error.errno is None:
            raise DataError(f"{path} is not a parquet file: {_why(path, error)}") from error
        raise StoreError(error.errno, f"cannot read {path}: {error.strerror}") from error


def _why(path: LogFile, error: Exception) -> str:
    """Why a file is none, by its ends; what arrow says of it only where these are right."""
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
        file.seek(0, SEEK_END)
        file.seek(max(0, file.tell() - len(_MAGIC)))
        tail = file.read()
    if not head:
        return "it is empty"
    if head != _MAGIC:
        return (
            f"it begins with {head!r} and not with {_MAGIC!r}; this log, or the one that the model "
            "was trained on, is of parquet, and a model reads one format alone: write the file as "
            "parquet"
        )
    if tail != _MAGIC:
        return (
            "it begins as one and has no footer at its end, so that it was cut off; copy it again"
        )
    return f"its footer is damaged: {error}"
