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


@dataclass(frozen=True)
class LogRows:
    """Some rows of a log, read but not yet cut into batches.

    Args:
        labels: float32 [n].
        dense: float32 [n, number of dense].
        keys: a column's keys, one array a column: uint64 [L].
        offsets: int64 [n + 1]; row r of the column has keys [offsets[r], offsets[r + 1]).
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
        """Rows [begin, end); views, offsets starting at 0."""
        keys = [
            column[places[begin] : places[end]]
            for column, places in zip(self.keys, self.offsets, strict=True)
        ]
        return LogRows(
            self.labels[begin:end],
            self.dense[begin:end],
            keys,
            [places[begin : end + 1] - places[begin] for places in self.offsets],
            self.row_ends[begin:end],
            self.num_skipped[begin:end],
            None if self.weights is None else self.weights[begin:end],
            None if self.groups is None else self.groups[begin:end],
        )

    def only(self, mask: NDArray[np.bool_]) -> "LogRows":
        """The rows that bool [n] has True; copies."""
        counts = [np.diff(places) for places in self.offsets]
        keys = [
            column[np.repeat(mask, count)] for column, count in zip(self.keys, counts, strict=True)
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
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return value_type(kind.value_type)
    return value_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def is_string(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def is_view(kind: pa.DataType) -> bool:
    """True for strings of a layout that arrow's filters do not take."""
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A RecordBatch whose columns can be filtered."""
    for idx, field in enumerate(batch.schema):
        if is_view(field.type):
            column = batch.column(idx).cast(pa.large_binary())
            batch = batch.set_column(idx, field.name, column)
    return batch


def is_feature(kind: pa.DataType) -> bool:
    """True for a type whose values can be keys."""
    inner = value_type(kind)
    is_number = pa.types.is_integer(inner) or pa.types.is_boolean(inner)
    return is_string(inner) or bool(is_number)


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
    return bool(pa.types.is_floating(inner) or pa.types.is_decimal(inner))


def is_number(kind: pa.DataType) -> bool:
    """True for a type whose values can be dense values, if the column is named for it."""
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    return is_dense(kind) or bool(pa.types.is_integer(inner) or pa.types.is_boolean(inner))


def to_floats(column: pa.Array, missing: float) -> NDArray[np.float64]:
    """A column of numbers as float64; null as `missing`."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    values = column
    if not pa.types.is_float64(column.type):
        values = column.cast(pa.float64(), safe=False)  # rounded beyond 2^53
    if column.null_count:
        values = pc.fill_null(values, missing)
    return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)


def to_keys(
    column: pa.Array, seed: int, hash_numbers: bool
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """A column's keys and the offsets of its rows. A null has no key, nor has one in a list.

    Args:
        column: arrow array of integers, booleans (0 and 1), strings, or lists of them;
            dictionaries too.
        seed: of the key hash.
        hash_numbers: integers are hashed as decimal text instead of taken as they are.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
        kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        items, item_offsets = to_keys(column.flatten(), seed, hash_numbers)
        ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        return items, item_offsets[ends]
    if is_view(kind):
        column = column.cast(pa.large_binary())
        kind = column.type
    offsets = np.arange(len(column) + 1, dtype=np.int64)
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        np.cumsum(valid, dtype=np.int64, out=offsets[1:])
        column = column.drop_null()
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
        kind = column.type
    if is_string(kind) or hash_numbers:
        return _hash_strings(column if is_string(kind) else column.cast(pa.string()), seed), offsets
    wide = pa.int64() if pa.types.is_signed_integer(kind) else pa.uint64()
    numbers = column.cast(wide).to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers).view(np.uint64), offsets


def to_groups(column: pa.Array, seed: int) -> NDArray[np.int64]:
    """The keys of groups, int64 [n]; NO_GROUP of a null and of an empty text.

    Args:
        column: arrow array of integers, booleans or strings; dictionaries too.
        seed: of the key hash; whole numbers are hashed as decimal text, whatever the rule of keys.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if is_string(column.type):
        column = column.cast(pa.large_binary())
        column = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
    keys, offsets = to_keys(column, seed, True)
    groups = np.full(len(column), NO_GROUP, np.int64)
    groups[np.diff(offsets) == 1] = keys.view(np.int64)
    return groups


def _hash_strings(column: pa.Array, seed: int) -> NDArray[np.uint64]:
    if column.type != pa.large_binary():
        column = column.cast(pa.large_binary())
    keys = np.empty(len(column), np.uint64)
    if len(column) == 0:
        return keys
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int64, len(column) + 1, column.offset * 8)
    text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    _C.hash_strings(text, places, seed, keys)
    return keys
