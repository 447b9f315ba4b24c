"""Columns of text that seem to hold several values an example, which are read as one.

Above it: the advice before a training, `hps features`. Below it: the first rows of a log.
"""

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from hps.reader.batch_source import BatchSource
from hps.reader.columns import is_string, split_values, without_views

if TYPE_CHECKING:
    from hps.reader.record_reader import RecordReader

_SEPARATORS = ("|", ";", ",")
_MOST_ROWS = 10_000
_LEAST_SHARE = 0.2  # of the texts that are there, which hold a separator


def seem_divided(reader: "RecordReader") -> dict[str, str]:
    """Name of each feature whose texts seem to be divided -> by what, of a log's first rows.

    A fifth of its texts holds the separator, and what it divides comes again in other texts.

    Args:
        reader: it is not moved. Record batches, which may come once, are not looked at.

    Raises:
        DataError, StoreError: as reading raises it.
    """
    if any(isinstance(path, BatchSource) for path in reader.paths):
        return {}
    known = reader.config.separators or {}
    features = [name for names in reader.schema.features().values() for name in names]
    names = [name for name in dict.fromkeys(features) if name not in known]
    batches = reader.raw_rows(names)
    batch = next(batches, None) if names else None
    batches.close()
    if batch is None:
        return {}
    batch = without_views(batch.slice(0, _MOST_ROWS))
    found = {name: _separator_of(batch.column(name)) for name in names}
    return {name: separator for name, separator in found.items() if separator is not None}


def _separator_of(column: pa.Array) -> str | None:
    if not is_string(column.type):
        return None
    texts = column.filter(pc.greater(pc.binary_length(column), 0))
    for separator in _SEPARATORS:
        holds = pc.sum(pc.match_substring(texts, separator)).as_py() or 0
        if holds < max(_LEAST_SHARE * len(texts), 2):
            continue
        values = split_values(texts, separator).flatten()
        if pc.count_distinct(values).as_py() < pc.count_distinct(texts).as_py():
            return separator
    return None
