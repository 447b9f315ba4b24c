"""From arrow columns to keys, dense values and labels.

Above it: records.py, keys.py. Below it: pyarrow, the native string hash.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hps import _C
from hps.types import NO_GROUP

# Which values of text have no key: null; null and what is empty; none, null being the empty text.
NULL, NULL_OR_EMPTY, NONE = range(3)
_LARGE = frozenset({pa.lib.Type_LARGE_STRING, pa.lib.Type_LARGE_BINARY})
_VIEWS = frozenset({pa.lib.Type_STRING_VIEW, pa.lib.Type_BINARY_VIEW})
_INTEGERS = frozenset(
    {
        pa.lib.Type_INT8,
        pa.lib.Type_INT16,
        pa.lib.Type_INT32,
        pa.lib.Type_INT64,
        pa.lib.Type_UINT8,
        pa.lib.Type_UINT16,
        pa.lib.Type_UINT32,
        pa.lib.Type_UINT64,
    }
)
_FLOATS = frozenset({pa.lib.Type_HALF_FLOAT, pa.lib.Type_FLOAT, pa.lib.Type_DOUBLE})
_STRINGS = frozenset(
    {
        pa.lib.Type_STRING,
        pa.lib.Type_BINARY,
        pa.lib.Type_FIXED_SIZE_BINARY,
        *_LARGE,
        *_VIEWS,
    }
)
ColumnKeys = tuple[NDArray[np.uint64], NDArray[np.int64]]
_FoundKeys = tuple[NDArray[np.uint64], NDArray[np.int64] | None]


@dataclass(frozen=True)
class LogRows:
    """Some rows of a log, read but not yet cut into batches.

    Args:
        labels: float32 [n].
        dense: float32 [n, number of dense].
        keys: a column's keys, one array a column: uint64 [L].
        offsets: int64 [n + 1]; row r of the column has keys [offsets[r], offsets[r + 1]). Columns
            may share an array; nothing writes to it.
        row_ends: int64 [n]; rows of the file up to and including each.
        num_skipped: int64 [n]; bad rows of this piece before each, of those that are kept.
        weights: float32 [n]; None where no column of weights is read.
        groups: int64 [n]; None where no column of groups is read.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    keys: list[NDArray[np.uint64]]
    offsets: list[NDArray[np.int64]]
    row_ends: NDArray[np.int64]
    num_skipped: NDArray[np.int64]
    weights: NDArray[np.float32] | None = None
    groups: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, begin: int, end: int) -> "LogRows":
        """Rows [begin, end); views; the keys are all, into which offsets point."""
        return LogRows(
            self.labels[begin:end],
            self.dense[begin:end],
            self.keys,
            [places[begin : end + 1] for places in self.offsets],
            self.row_ends[begin:end],
            self.num_skipped[begin:end],
            None if self.weights is None else self.weights[begin:end],
            None if self.groups is None else self.groups[begin:end],
        )

    def only(self, mask: NDArray[np.bool_]) -> "LogRows":
        """The rows that bool [n] has True; copies."""
        counts = [np.diff(places) for places in self.offsets]
        keys = [
            column[places[0] : places[-1]][np.repeat(mask, count)]
            for column, places, count in zip(self.keys, self.offsets, counts, strict=True)
        ]
        offsets = [np.concatenate([[0], np.cumsum(count[mask])]) for count in counts]
        of_rows = {
            name: one[mask] for name, one in vars(self).items() if isinstance(one, np.ndarray)
        }
        return replace(self, **of_rows, keys=keys, offsets=offsets)


def part_of(pieces: Sequence[LogRows], first: int, last: int) -> list[LogRows]:
    """Rows [first, last) of all the pieces in their order; at least one piece, maybe empty."""
    parts = []
    for piece in pieces:
        begin, end = (min(max(place, 0), len(piece)) for place in (first, last))
        if begin < end:
            parts.append(piece.slice(begin, end))
        first, last = first - len(piece), last - len(piece)
    return parts or [pieces[0].slice(0, 0)]


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column's keys: of a list's items, of a dictionary's values."""
    if kind.id in _STRINGS or kind.id in _INTEGERS:
        return kind
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return value_type(kind.value_type)
    return value_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def is_string(kind: pa.DataType) -> bool:
    return kind.id in _STRINGS


def is_view(kind: pa.DataType) -> bool:
    """True for strings of a layout that arrow's filters do not take."""
    return kind.id in _VIEWS


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A RecordBatch whose columns can be filtered."""
    for idx, kind in enumerate(batch.schema.types):
        if is_view(kind):
            column = batch.column(idx).cast(pa.large_binary())
            batch = batch.set_column(idx, batch.schema.names[idx], column)
    return batch


def decoded(column: pa.Array) -> pa.Array:
    """A column of a dictionary's values as the values themselves; views as binary."""
    values = column.dictionary
    if is_view(values.type):  # which arrow does not cast
        values = values.cast(pa.large_binary())
    return values.take(column.indices)


def is_feature(kind: pa.DataType) -> bool:
    """True for a type whose values can be keys."""
    inner = value_type(kind)
    return is_string(inner) or inner.id in _INTEGERS or inner.id == pa.lib.Type_BOOL


def is_nothing(kind: pa.DataType) -> bool:
    """True for a type that arrow gives where no value is: of a column, or of the lists in one."""
    return bool(pa.types.is_null(value_type(kind)))


def is_group(kind: pa.DataType) -> bool:
    """True for a type whose values can be groups: keys, one an example."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_feature(inner) and value_type(inner) == inner


def is_text_feature(kind: pa.DataType) -> bool:
    """True for a type whose values are hashed by any rule."""
    return is_string(value_type(kind))


def is_dense(kind: pa.DataType) -> bool:
    """True for a type whose values are dense values, unless they are asked to be something else."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return inner.id in _FLOATS or bool(pa.types.is_decimal(inner))


def is_number(kind: pa.DataType) -> bool:
    """True for a type whose values can be dense values, if the column is named for it."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return inner.id in _INTEGERS or inner.id == pa.lib.Type_BOOL or is_dense(inner)


def to_floats(column: pa.Array, missing: float) -> NDArray[np.float64]:
    """A column of numbers as float64; null as `missing`."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    if column.type.id not in _FLOATS and column.type.id not in _INTEGERS:
        column = column.cast(pa.float64(), safe=False)
    numbers = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)  # rounded beyond 2^53
    if column.null_count and not np.isnan(missing):  # a null has become NaN, in a copy
        numbers[column.is_null().to_numpy(zero_copy_only=False)] = missing
    return numbers


def to_keys(column: pa.Array, seed: int, hash_numbers: bool) -> ColumnKeys:
    """A column's keys and the offsets of its rows. A null has no key, nor has one in a list.

    Args:
        column: arrow array of integers, booleans (0 and 1), strings, or lists of them;
            dictionaries too; of the type null, which has no values.
        seed: of the key hash.
        hash_numbers: integers are hashed as decimal text instead of taken as they are.
    """
    return keys_of_columns([(column, seed, NULL)], hash_numbers)[0]


def keys_of_columns(
    columns: Sequence[tuple[pa.Array, int, int]], hash_numbers: bool
) -> list[ColumnKeys]:
    """Of each column its keys, uint64 [L], and the offsets of its rows, int64 [n + 1].

    Args:
        columns: of the same length: arrays as `to_keys` has them, with the seed of the hash, and
            which values have none if they are hashed: NULL, NULL_OR_EMPTY or NONE. In lists, and
            of numbers as they are, a null has none.
        hash_numbers: as `to_keys` has it.

    Returns:
        Offsets may be one array for several columns.

    Cost: one native pass over all columns that are hashed.
    """
    if not columns:
        return []
    found = _found_keys(columns, hash_numbers)
    ones = np.arange(len(columns[0][0]) + 1, dtype=np.int64)
    return [(keys, ones if offsets is None else offsets) for keys, offsets in found]


def _found_keys(
    columns: Sequence[tuple[pa.Array, int, int]], hash_numbers: bool
) -> list[_FoundKeys]:
    """As keys_of_columns; no offsets where each row has one key."""
    found: dict[int, _FoundKeys] = {}
    hashed = []
    for place, (column, seed, rule) in enumerate(columns):
        if pa.types.is_dictionary(column.type):
            column = decoded(column)
        if pa.types.is_fixed_size_list(column.type):
            column = column.cast(pa.list_(column.type.value_type))
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.uint8())
        if pa.types.is_null(column.type):
            column = pa.nulls(len(column), pa.string())
        if is_string(column.type):
            hashed.append((place, _text(column, seed, rule)))
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            found[place] = _keys_of_lists(column, seed, hash_numbers)
        elif hash_numbers:
            hashed.append((place, _numbers(column, seed, rule)))
        else:
            found[place] = _numbers_as_keys(column)
    keys = _C.hash_columns([one for _, one in hashed])
    found.update(zip((place for place, _ in hashed), keys, strict=True))
    return [found[place] for place in range(len(columns))]


def _keys_of_lists(column: pa.Array, seed: int, hash_numbers: bool) -> ColumnKeys:
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    ((items, item_offsets),) = _found_keys([(column.flatten(), seed, NULL)], hash_numbers)
    ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    return items, ends if item_offsets is None else item_offsets[ends]


def one_each(column: pa.Array) -> tuple[pa.Array, int | None]:
    """A column of lists as one of their only items, null where there is none: csv has one value an
    example. Others as they are.

    Returns:
        The column, and the first row that has several items; nulls count as none.
    """
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return column, None
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    items = column.flatten()
    is_there = items.is_valid().to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(column)), counts)[is_there]
    if len(rows) > len(np.unique(rows)):
        return column, int(rows[1:][np.diff(rows) == 0][0])
    places = np.zeros(len(column), np.int64)
    places[rows] = np.flatnonzero(is_there)
    has_one = np.isin(np.arange(len(column)), rows)
    return items.take(pa.array(places, mask=~has_one)), None


def split_values(column: pa.Array, separator: str) -> pa.Array:
    """A column of text as lists of the values that a separator divides, without empty ones; a null
    has none. Columns that hold lists already are as they are.

    >>> split_values(pa.array(["a||b", "", None, "c"]), "|").to_pylist()
    [['a', 'b'], [], [], ['c']]
    """
    if pa.types.is_dictionary(column.type):
        column = decoded(column)
    if is_view(column.type) or pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.large_binary())
    if not is_string(column.type):
        return column
    parts = pc.split_pattern(column, separator)
    values = parts.flatten()
    counts = pc.fill_null(pc.list_value_length(parts), 0).to_numpy(zero_copy_only=False)
    is_there = pc.greater(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(is_there, dtype=np.int64)])
    ends = before[np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])]
    return pa.LargeListArray.from_arrays(pa.array(ends), values.filter(pa.array(is_there)))


def _wide(kind: pa.DataType) -> pa.DataType:
    """The type of 64 bits that holds each number of a type of integers."""
    return pa.int64() if pa.types.is_signed_integer(kind) else pa.uint64()


def _numbers_as_keys(column: pa.Array) -> _FoundKeys:
    offsets = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(valid, dtype=np.int64)])
        column = column.drop_null()
    numbers = column.cast(_wide(column.type)).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers).view(np.uint64), offsets


def to_groups(column: pa.Array, seed: int) -> NDArray[np.int64]:
    """The keys of groups, int64 [n]; NO_GROUP of a null and of an empty text.

    Args:
        column: arrow array of integers, booleans or strings; dictionaries too.
        seed: of the key hash; whole numbers are hashed as decimal text, whatever the rule of keys.
    """
    ((keys, offsets),) = keys_of_columns([(column, seed, NULL_OR_EMPTY)], True)
    groups = np.full(len(column), NO_GROUP, np.int64)
    groups[np.diff(offsets) == 1] = keys.view(np.int64)
    return groups


def _numbers(column: pa.Array, seed: int, rule: int) -> "_C._HashedColumn":
    """A column of integers as the native hash takes it, which is that of their decimal text."""
    column = column.cast(_wide(column.type))
    if len(column) == 0:
        return np.empty(0, np.int64), None, None, 0, seed, rule
    bits, numbers = column.buffers()
    values = np.frombuffer(numbers, np.int64, len(column), column.offset * 8)
    valid = np.frombuffer(bits, np.uint8) if column.null_count else None
    is_signed = pa.types.is_signed_integer(column.type)
    asked = (None, valid, column.offset, seed, rule)
    return (values, *asked) if is_signed else (values.view(np.uint64), *asked)


def _text(column: pa.Array, seed: int, rule: int) -> "_C._HashedColumn":
    """A column of text as the native hash takes it; views, where arrow lays it out so."""
    if column.type.id in _VIEWS or column.type.id == pa.lib.Type_FIXED_SIZE_BINARY:
        column = column.cast(pa.large_binary())
    if len(column) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64), None, 0, seed, rule
    bits, ends, data = column.buffers()
    kind = np.dtype(np.int64 if column.type.id in _LARGE else np.int32)
    offsets = np.frombuffer(ends, kind, len(column) + 1, column.offset * kind.itemsize)
    text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    valid = np.frombuffer(bits, np.uint8) if column.null_count else None
    return text, offsets, valid, column.offset, seed, rule
