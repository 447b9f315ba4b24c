"""FewRows: the batch of a few raw rows, made value by value.

Above it: model.py. Below it: csrc/bindings/few_rows.cc, which reads the values; `RecordColumns`,
whose rules it follows. One example is asked for most often, and arrow costs microseconds a column,
however short. Only plain values are taken here; all else is arrow's, which also says what is wrong
with it.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hps import _C
from hps.reader.dense_text import FORMATS as TEXTS
from hps.reader.dense_text import number_of
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.reader.records import RecordColumns

# Above it arrow's columns cost less than Python's values.
MAX_ROWS = 64
_TEXTS = (str, bytes, type(None))
_PLAIN_ARRAYS = frozenset(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f8")))


class FewRows:
    """Makes the very batch that `RecordColumns` makes of the same columns. Threads may share it.

    Args:
        columns: of a model's log, without label, weight and group.
        left_out: names of those that may be absent: all their values are missing then.
        texts: names of those whose numbers are refused.
    """

    def __init__(
        self,
        columns: "RecordColumns",
        left_out: Collection[str],
        texts: Collection[str] = (),
    ) -> None:
        config = columns.config
        self._columns = columns
        self._names = columns.names()
        self._texts = tuple(texts)
        self._tables = list(columns.schema.tables)
        self._is_plain = not config.is_sample
        has_texts = config.format in TEXTS
        separators = config.separators or {}
        self._native = _C.FewRows(
            is_csv=config.format == "csv",
            hashes_numbers=config.hashes_numbers,
            missing=columns.missing_rule(),
            list_of=_list_of,
            number_of=partial(number_of, log_format=config.format or "") if has_texts else None,
            max_rows=MAX_ROWS,
        )
        for name in columns.dense:
            self._native.add_dense(name, name in config.nan_columns, name in left_out)
        for members in columns.schema.tables.values():
            self._native.add_table()
            for column in members:
                self._native.add_feature(
                    column.name,
                    column.seed,
                    column.name in left_out,
                    separators.get(column.name, ""),
                )

    def batch_of(self, given: Mapping[str, Any]) -> Batch | None:
        """The batch, or None where anything is not plain: other types than lists, tuples and arrays
        of numpy, of text, bytes, int, float and None, of one type a column; too many rows; a value
        that is refused.

        Args:
            given: name -> values.
        """
        if not self._is_plain:
            return None
        if type(given) is not dict:
            given = {name: given[name] for name in self._names if name in given}
        for name in self._texts:
            if any(type(value) not in _TEXTS for value in given.get(name, ())):
                return None
        found = self._native.read(given)
        if found is None:
            return None
        values, missing, tables = found
        dense = self._columns.as_dense(values, missing)
        if not np.isfinite(dense).all() and not self._columns.are_numbers(dense).all():
            return None
        features = {
            table: Ids(torch.from_numpy(keys), torch.from_numpy(offsets))
            for table, (keys, offsets) in zip(self._tables, tables, strict=True)
        }
        labels = torch.from_numpy(np.zeros(len(dense), np.float32))
        return Batch(features, torch.from_numpy(dense), labels)


def _list_of(values: Any) -> list[Any] | None:
    """Those of an array of plain values; None of all else."""
    if type(values) is not np.ndarray or values.ndim != 1:
        return None
    is_plain = values.dtype in _PLAIN_ARRAYS or values.dtype.kind == "U"
    return values.tolist() if is_plain else None
