"""FewRows: the batch of a few raw rows, made value by value.

Above it: model.py. Below it: the native XXH64, `RecordColumns`, whose rules it follows. One example
is asked for most often, and arrow costs microseconds a column, however short. Only plain values are
taken here; all else is arrow's, which also says what is wrong with it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hps import _C
from hps.reader.columns import NONE, NULL_OR_EMPTY
from hps.reader.dense_text import FORMATS as TEXTS
from hps.reader.dense_text import number_of
from hps.train.given_columns import is_whole
from hps.types import Batch, Ids

if TYPE_CHECKING:
    from hps.reader.records import RecordColumns

# Above it arrow's columns cost less than Python's values.
MAX_ROWS = 64
_BITS = 2**64 - 1
_LOW, _HIGH = -(2**63), 2**63  # of the whole numbers that arrow makes int64
_NOTHING = type(None)


class _Refused(Exception):
    """Values that are arrow's to judge."""


class FewRows:
    """Makes the very batch that `RecordColumns` makes of the same columns. Threads may share it.

    Args:
        columns: of a model's log, without label, weight and group.
        left_out: names of those that may be absent: all their values are missing then.
    """

    def __init__(self, columns: "RecordColumns", left_out: Collection[str]) -> None:
        config = columns.config
        self._columns = columns
        self._names = columns.names()
        self._left_out = frozenset(left_out)
        self._format = config.format or ""
        self._is_csv = config.format == "csv"
        self._hashes_numbers = config.hashes_numbers
        self._rule = columns.missing_rule()
        self._dense = [(name, name in config.nan_columns) for name in columns.dense]
        self._tables = [
            (table, [(column.name, column.seed) for column in members])
            for table, members in columns.schema.tables.items()
        ]
        self._is_plain = not config.is_sample

    def batch_of(self, given: Mapping[str, Any]) -> Batch | None:
        """The batch, or None where anything is not plain: other types than lists, tuples and arrays
        of numpy, of text, bytes, int, float and None, of one type a column; too many rows; a value
        that is refused.

        Args:
            given: name -> values.
        """
        if not self._is_plain:
            return None
        try:
            return self._made(given)
        except (_Refused, UnicodeEncodeError):
            return None

    def _made(self, given: Mapping[str, Any]) -> Batch:
        num_rows = self._num_rows(given)
        dense = self._dense_values(given, num_rows)
        features = {}
        for table, members in self._tables:
            keys: list[int] = []
            offsets = [0]
            for name, seed in members:
                values = self._values(given, name, num_rows)
                self._add_keys(values, seed, keys, offsets)
            bits = np.array(keys, np.uint64).view(np.int64)
            features[table] = Ids(
                torch.from_numpy(bits), torch.from_numpy(np.array(offsets, np.int64))
            )
        labels = torch.from_numpy(np.zeros(num_rows, np.float32))
        return Batch(features, torch.from_numpy(dense), labels)

    def _num_rows(self, given: Mapping[str, Any]) -> int:
        """That of the first column that is given; the others are held against it."""
        first = next((name for name in self._names if name in given), None)
        if first is None:
            raise _Refused
        values = given[first]
        kind = type(values)
        is_list = kind is list or kind is tuple or (kind is np.ndarray and values.ndim == 1)
        if not is_list or not 0 < len(values) <= MAX_ROWS:
            raise _Refused
        return len(values)

    def _values(self, given: Mapping[str, Any], name: str, num_rows: int) -> Sequence[Any]:
        """Those of a column, as Python has them."""
        if name not in given:
            if name in self._left_out:
                return (None,) * num_rows
            raise _Refused
        values: Any = given[name]
        kind = type(values)
        if kind is np.ndarray:
            is_plain = values.dtype in _PLAIN_ARRAYS or values.dtype.kind == "U"
            if values.ndim != 1 or not is_plain:
                raise _Refused
            values = values.tolist()
        elif kind is not list and kind is not tuple:
            raise _Refused
        if len(values) != num_rows:
            raise _Refused
        return values  # type: ignore[no-any-return]

    def _dense_values(self, given: Mapping[str, Any], num_rows: int) -> NDArray[np.float32]:
        """As `RecordColumns` has them, float32 [rows, number of dense]."""
        numbers: list[float] = []
        absent: list[int] = []  # places of missing ones among the numbers
        for name, keeps_nan in self._dense:
            values = self._values(given, name, num_rows)
            kind = _kind_of(values)
            for value in values:
                is_number = value is not None
                if is_number and kind is float:
                    is_number = not self._is_csv or value == value
                elif is_number and kind is str and self._format in TEXTS:
                    value = _number(value, self._format)
                    is_number = value is not None
                elif is_number and not (kind is int and _LOW <= value < _HIGH):
                    raise _Refused
                if is_number:
                    numbers.append(value)
                    continue
                if not keeps_nan:
                    absent.append(len(numbers))
                numbers.append(np.nan if keeps_nan else 0.0)
        wide = np.array(numbers, np.float64).reshape(len(self._dense), num_rows).T
        missing = None
        if absent:
            flags = np.zeros(len(numbers), np.bool_)
            flags[absent] = True
            missing = flags.reshape(len(self._dense), num_rows).T
        dense = self._columns.as_dense(np.ascontiguousarray(wide), missing)
        if not self._columns.are_numbers(dense).all():
            raise _Refused
        return dense

    def _add_keys(
        self, values: Sequence[Any], seed: int, keys: list[int], offsets: list[int]
    ) -> None:
        """The keys of a column's rows, and where each row's end."""
        kind = _kind_of(values)
        if kind is float:
            kind, values = int, [_whole(value) for value in values]
        rule = self._rule
        low, high = _LOW, _HIGH
        if kind is int and any(value is not None and value >= _HIGH for value in values):
            low, high = 0, _BITS + 1
        for value in values:
            text: bytes | None
            if value is None:
                # A column of whole numbers that are keys as they stand has no text.
                is_number = kind is int and not self._hashes_numbers
                text = b"" if rule == NONE and not is_number else None
            elif kind is str:
                text = value.encode()
            elif kind is bytes:
                text = value
            elif kind is int and low <= value < high:
                if not self._hashes_numbers:
                    keys.append(value & _BITS)
                    offsets.append(len(keys))
                    continue
                text = b"%d" % value
            else:
                raise _Refused
            if text or (text is not None and rule != NULL_OR_EMPTY):
                keys.append(_C.xxh64(text, seed))
            offsets.append(len(keys))


_PLAIN_ARRAYS = frozenset(map(np.dtype, ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f8")))


def _kind_of(values: Sequence[Any]) -> type:
    """The type of all values but None; None's own where there are no others.

    Raises:
        _Refused: of more than one type.
    """
    found = _NOTHING
    for value in values:
        kind = type(value)
        if kind is found or value is None:
            continue
        if found is not _NOTHING:
            raise _Refused
        found = kind
    return found


def _whole(value: float | None) -> int | None:
    """Of a number among whole ones, as given_columns.py has them; None of NaN, which is missing."""
    if value is None or value != value:
        return None
    if not is_whole(value):
        raise _Refused
    return int(value)


def _number(text: str, log_format: str) -> float | None:
    """Of a dense column's text; None where it is missing."""
    try:
        return number_of(text, log_format)
    except ValueError:
        raise _Refused from None
