"""Columns of text that seem to be something else than one value: several values, or dates.

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
_DATE = rb"^\d{4}[-/.]\d{2}[-/.]\d{2}([T ]\d{2}:\d{2}|$)"
_MOST_ROWS = 10_000
_LEAST_SHARE = 0.2  # of the texts that are there, which hold a separator
_DATES_SHARE = 0.9


class FirstTexts:
    """Texts of a log's first rows that are there, of each feature.

    Args:
        reader: it is not moved. Record batches, which may come once, are not looked at.

    Raises:
        DataError, StoreError: as reading raises it.
    """

    def __init__(self, reader: "RecordReader") -> None:
        self._texts: dict[str, pa.Array] = {}
        known = reader.config.separators or {}
        features = [name for names in reader.schema.features().values() for name in names]
        names = [name for name in dict.fromkeys(features) if name not in known]
        if not names or any(isinstance(path, BatchSource) for path in reader.paths):
            return
        batches = reader.raw_rows(names)
        batch = next(batches, None)
        batches.close()
        if batch is None:
            return
        batch = without_views(batch.slice(0, _MOST_ROWS))
        for name in names:
            column = batch.column(name)
            if is_string(column.type):
                texts = column.cast(pa.large_binary())
                self._texts[name] = texts.filter(pc.greater(pc.binary_length(texts), 0))

    def divided(self) -> dict[str, str]:
        """Name of each column whose texts seem to be divided -> by what: a fifth of them holds it,
        and what it divides comes again in other texts."""
        found = {name: _separator_of(texts) for name, texts in self._texts.items()}
        return {name: separator for name, separator in found.items() if separator is not None}

    def dates(self) -> list[str]:
        """Names of the columns whose texts are dates, as 2026-11-28, or begin with one."""
        return [name for name, texts in self._texts.items() if _are_dates(texts)]


def _separator_of(texts: pa.Array) -> str | None:
    for separator in _SEPARATORS:
        holds = pc.sum(pc.match_substring(texts, separator)).as_py() or 0
        if holds < max(_LEAST_SHARE * len(texts), 2):
            continue
        values = split_values(texts, separator).flatten()
        if pc.count_distinct(values).as_py() < pc.count_distinct(texts).as_py():
            return separator
    return None


def _are_dates(texts: pa.Array) -> bool:
    if not len(texts):
        return False
    count = pc.sum(pc.match_substring_regex(texts, _DATE.decode())).as_py()
    return bool(count >= _DATES_SHARE * len(texts))
