"""Record batches of arrow, piece by piece.

Above it: record_reader.py. Below it: batch_source.py, pyarrow.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from hps.errors import ConfigError
from hps.reader.batch_source import BatchSource
from hps.reader.columns import decoded
from hps.reader.records import Piece, RecordColumns
from hps.reader.urls import LogFile

_PIECE_ROWS = 16384


class BatchFiles:
    """Reads what RecordReader asks for."""

    def fields(self, path: LogFile) -> list[pa.Field]:
        """The columns of a source."""
        return list(_source(path).schema())

    def pieces(
        self, path: LogFile, columns: RecordColumns, first_row: int, like: LogFile
    ) -> Iterator[Piece]:
        """As RecordFiles has it; rows count over all batches."""
        names = columns.names()
        row = 0  # of the source, before the batch
        checked: pa.Schema | None = None
        for number, table in enumerate(_source(path).tables(names), 1):
            if checked is None or not table.schema.equals(checked):
                columns.check(f"{path}, batch {number}", table.schema, f"{like}, batch 1")
                checked = table.schema
            before, row = row, row + table.num_rows
            first = max(first_row, before)
            if first >= row:
                continue
            wanted = table.select(names).slice(first - before)
            for batch in wanted.to_batches(max_chunksize=_PIECE_ROWS):
                if len(batch):
                    ends = np.arange(first + 1, first + 1 + len(batch))
                    none_bad = np.zeros(len(batch), np.int64)
                    yield Piece(_plain(batch), ends, none_bad, 0, within=(number, before))
                    first += len(batch)
            del table, wanted  # before the next one is asked for: a batch may be large
        if first_row > row:
            raise ConfigError(
                f"{path} gave {row} rows; the position {first_row} is not of these batches"
            )


def _source(path: LogFile) -> BatchSource:
    assert isinstance(path, BatchSource)
    return path


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without dictionaries, whose values may be null."""
    for idx, kind in enumerate(batch.schema.types):
        if pa.types.is_dictionary(kind):
            batch = batch.set_column(idx, batch.schema.names[idx], decoded(batch.column(idx)))
    return batch
