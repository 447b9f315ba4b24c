"""Files of rows and of keys, as Arrow's IPC format has them.

Above it: publisher.py, followers. Below it: pyarrow, which is imported when a file is written or
read. A file of rows has the columns `key`, uint64, and `row`, fixed-size binary, which codec.py
describes; a file of keys that went has `key` alone. Any reader of Arrow opens them.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hps.common.row_layout import Images, Keys
from hps.errors import ConfigError, CorruptionError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise ConfigError(
            "published versions need pyarrow; install it with: pip install 'hps-ctr[train]'"
        ) from error
    return pyarrow


class RowWriter:
    """Writes one file, piece by piece. A context manager; the file is whole once it is left
    without an error.

    Args:
        stream: takes the bytes: `write`, `flush`, `closed`.
        row_bytes: of a row; None: a file of keys alone.
    """

    def __init__(self, stream: Any, row_bytes: int | None) -> None:
        self._arrow = _arrow()
        fields = [("key", self._arrow.uint64())]
        if row_bytes is not None:
            fields.append(("row", self._arrow.binary(row_bytes)))
        self._schema = self._arrow.schema(fields)
        self._writer = self._arrow.ipc.new_file(stream, self._schema)
        self.num_rows = 0

    def write(self, keys: Keys, rows: Images | None = None) -> None:
        """Appends keys, uint64 [n], and of a file of rows theirs, uint8 [n, row_bytes]; what are
        parts of larger arrays, which may be changed after this call, is copied."""
        arrow = self._arrow
        columns = [arrow.array(_kept(keys))]
        if rows is not None:
            data = arrow.py_buffer(_kept(rows))
            kind = self._schema.field("row").type
            columns.append(arrow.FixedSizeBinaryArray.from_buffers(kind, len(keys), [None, data]))
        self._writer.write_batch(arrow.record_batch(columns, schema=self._schema))
        self.num_rows += len(keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:  # else it is no whole file, and its end is not written
            self._writer.close()


def _kept(part: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """The same, in one piece and of its own; one element of a larger array is in one piece, too."""
    return part.copy() if len(part) == 1 or not part.flags.c_contiguous else part


def read_rows(path: Path, row_bytes: int) -> Iterator[tuple[Keys, Images]]:
    """Pieces of a file of rows: keys, uint64 [n], and rows, uint8 [n, row_bytes]; read-only.

    Raises:
        CorruptionError: it is no such file.
    """
    for piece in _pieces(path, {"key": "uint64", "row": f"fixed_size_binary[{row_bytes}]"}):
        column = piece.column("row")
        data = np.frombuffer(column.buffers()[1], np.uint8)
        first = column.offset * row_bytes
        rows = data[first : first + len(piece) * row_bytes].reshape(len(piece), row_bytes)
        yield piece.column("key").to_numpy(), rows


def read_keys(path: Path) -> Iterator[Keys]:
    """Pieces of a file of keys, uint64 [n]; read-only.

    Raises:
        CorruptionError: it is no such file.
    """
    for piece in _pieces(path, {"key": "uint64"}):
        yield piece.column("key").to_numpy()


def _pieces(path: Path, wanted: dict[str, str]) -> "Iterator[pa.RecordBatch]":
    arrow = _arrow()
    try:
        with arrow.memory_map(str(path)) as source, arrow.ipc.open_file(source) as file:
            found = {field.name: str(field.type) for field in file.schema}
            if found != wanted:
                raise CorruptionError(f"{path}: its columns are {found}, {wanted} expected")
            for number in range(file.num_record_batches):
                yield file.get_batch(number)
    except FileNotFoundError as error:
        raise StoreError(error.errno, f"{path} is gone while it was read") from error
    except arrow.ArrowException as error:
        raise CorruptionError(f"{path}: cannot be read as a file of rows: {error}") from error
