"""record_batch_of: arrow's record batch of the columns that a user gives to be scored, and what csv
would have of them.

Above it: model.py, few_rows.py. Below it: pyarrow, numpy. Short lists are asked for most often, and
where pandas is not installed `pa.array` looks for it at every value: 40 us each.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hps.common.arrays import as_numpy, is_tensor
from hps.errors import ConfigError, DataError
from hps.reader.columns import value_type

_FEW_ROWS = 64
_MAX_TEXT = 256  # numpy gives each text as much room as the longest


def record_batch_of(
    given: Mapping[str, Any], names: Sequence[str], dense: Collection[str]
) -> pa.RecordBatch:
    """The columns of some names; short lists of values of one plain type are made together.

    Args:
        given: name -> list or array with a value for each example.
        names: that are taken; each is given.
        dense: those that hold numbers, if nothing but None is in them; others then hold text.

    Raises:
        pa.ArrowException, TypeError, ValueError, OverflowError: they make no batch.
    """
    columns: dict[str, pa.Array] = {}
    alike: dict[type, list[str]] = {}
    for name in names:
        values = given[name]
        kind = _plain_kind(values)
        if kind is None:
            columns[name] = _column_of(name, values, name in dense)
        elif kind is type(None):
            columns[name] = pa.nulls(len(values), _empty_type(name in dense))
        else:
            alike.setdefault(kind, []).append(name)
    for kind, members in alike.items():
        values = [value for name in members for value in given[name]]
        whole = pa.array(np.array(values, _NUMPY_KINDS[kind]))
        place = 0
        for name in members:
            columns[name] = whole.slice(place, len(given[name]))
            place += len(given[name])
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names=list(names))


def require_text(given: pa.RecordBatch, names: Collection[str]) -> None:
    """Refuses numbers in columns whose values were text in the training's log, some of them whole
    numbers that begin with 0 or end in .0.

    Raises:
        ConfigError: names the column; which text a number was cannot be told.
    """
    for field in given.schema:
        if field.name not in names:
            continue
        kind = value_type(field.type)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind):
            raise ConfigError(
                f"predict: column {field.name!r} is of type {field.type}, and in the log that the "
                "model was trained on some of its values begin with 0 or end in .0, which numbers "
                "have lost; give it as text, as that log has it (of pandas: dtype=str)"
            )


def with_nan_missing(given: pa.RecordBatch, dense: Collection[str]) -> pa.RecordBatch:
    """The batch with null for each NaN of a dense column, as csv has it: `nan` is missing there."""
    for place, field in enumerate(given.schema):
        if field.name not in dense or not pa.types.is_floating(field.type):
            continue
        is_nan = pc.fill_null(pc.is_nan(given.column(place)), False)
        if pc.any(is_nan).as_py():
            # pyarrow looks for pandas at a bare None.
            column = pc.if_else(is_nan, pa.scalar(None, field.type), given.column(place))
            given = given.set_column(place, field, column)
    return given


def with_whole_numbers(given: pa.RecordBatch, features: Collection[str]) -> pa.RecordBatch:
    """The batch with whole numbers for the floats of features, also in lists; null for NaN: pandas
    has a column of whole numbers as floats where some are missing, numpy an empty array of floats.

    Raises:
        DataError: a number that is not whole, or that other whole numbers have become, too, as
            floats of its width; the log's value cannot be told.
    """
    for place, field in enumerate(given.schema):
        is_of_floats = pa.types.is_floating(value_type(field.type))
        if field.name in features and is_of_floats and not pa.types.is_dictionary(field.type):
            column = _whole_numbers(field.name, given.column(place))
            given = given.set_column(place, field.name, column)
    return given


def _whole_numbers(name: str, column: pa.Array) -> pa.Array:
    """A column of floats, or lists of them, as whole numbers; a missing list as an empty one."""
    if pa.types.is_nested(column.type):
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        ends = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        items = _whole_numbers(name, column.flatten())
        return pa.LargeListArray.from_arrays(pa.array(ends), items)
    most = 2 ** (np.finfo(column.type.to_pandas_dtype()).nmant + 1)
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)  # null is NaN
    is_missing = np.isnan(values)
    bad = [value for value in values[~is_missing].tolist() if not is_whole(value, most)]
    if bad:
        raise DataError(
            f"predict: column {name!r} is of type {column.type} and holds {bad[0]!r}, and keys "
            "come from text and whole numbers; give the value as the log has it, or whole numbers "
            f"below {most:,}"
        )
    numbers = np.where(is_missing, 0.0, values).astype(np.int64)
    return pa.array(numbers, mask=is_missing)


def is_whole(value: float, most: int = 2**53) -> bool:
    """True of a float that is one whole number alone: each below `most` is.

    >>> is_whole(7.0), is_whole(0.5), is_whole(-0.0), is_whole(2.0**53)
    (True, False, False, False)
    """
    if not -most < value < most or not value.is_integer():
        return False
    return value != 0 or math.copysign(1.0, value) > 0


_NUMPY_KINDS: Mapping[type, type[np.generic]] = {
    float: np.float64,
    int: np.int64,
    str: np.str_,
}


def _plain_kind(values: Any) -> type | None:
    """The type of all values of a short list, of which numpy makes the column that `pa.array` does;
    None of other lists, and of what is no list."""
    if not isinstance(values, list | tuple) or not 0 < len(values) <= _FEW_ROWS:
        return None
    kind = type(values[0])
    if len(values) > 1 and any(type(value) is not kind for value in values):
        return None
    if kind is float or kind is type(None):
        return kind
    if kind is int and all(-(2**63) <= value < 2**63 for value in values):
        return int
    # numpy drops NULs at the end of a text.
    if kind is str and all(len(value) < _MAX_TEXT and "\0" not in value for value in values):
        return str
    return None


def _column_of(name: str, values: Any, is_dense: bool) -> pa.Array:
    """Arrow's column of what a user gave."""
    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise TypeError(
            f"column {name!r} is {values!r}; give a list with a value for each example, such as "
            f"[{values!r}]"
        )
    if is_tensor(values):
        values = as_numpy(values, f"column {name!r}")
    if isinstance(values, np.ndarray) and values.dtype.kind == "U" and values.ndim == 1:
        values = values.tolist()  # of an array arrow cuts a text at its first NUL
    try:
        column = pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        column = (_mixed_floats if is_dense else _mixed_numbers)(name, values, error)
    if not pa.types.is_null(column.type):
        return column
    return column.cast(_empty_type(is_dense))  # nothing is in it


def _mixed_floats(name: str, values: Any, error: Exception) -> pa.Array:
    """Numbers of a dense column of which arrow makes none: of several types, or beyond 64 bits."""
    found = []
    for value in values:
        if not isinstance(value, _NUMBERS):
            raise ConfigError(f"column {name!r}: {error}") from None
        try:
            found.append(None if value is None else float(value))
        except OverflowError:
            found.append(math.inf if value and value > 0 else -math.inf)  # no example may hold it
    return pa.array(found, pa.float64())


def _mixed_numbers(name: str, values: Any, error: Exception) -> pa.Array:
    """Values of a feature of which arrow makes none: NaN among others, or beyond 63 bits."""
    if not isinstance(error, OverflowError):
        try:
            return pa.array(values, from_pandas=True)  # NaN is missing
        except OverflowError:
            pass  # NaN among numbers beyond 63 bits
        except (pa.ArrowException, TypeError, ValueError):
            raise ConfigError(f"column {name!r}: {error}") from None
    return _large_numbers(name, values)


def _large_numbers(name: str, values: Any) -> pa.Array:
    """Whole numbers, also in lists, some of which are beyond 63 bits: uint64, as parquet has them.

    Raises:
        ConfigError: one that is none, or that uint64 does not hold.
    """
    is_of_lists = any(isinstance(value, list | tuple | np.ndarray) for value in values)
    bags = values if is_of_lists else [values]
    for item in (item for bag in bags if not _is_missing(bag) for item in bag):
        if _is_missing(item):
            continue
        if not isinstance(item, int | np.integer):
            raise ConfigError(f"column {name!r} holds {item!r} beside whole numbers")
        if not 0 <= item < 2**64:
            raise ConfigError(
                f"column {name!r} holds {item} beside numbers from 2^63 on; the whole numbers of a "
                "column are all from -2^63 to 2^63 - 1, or all from 0 to 2^64 - 1; where keys come "
                "from text, give the text"
            )
    kind = pa.list_(pa.uint64()) if is_of_lists else pa.uint64()
    return pa.array(values, kind, from_pandas=True)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


_NUMBERS = (int, float, np.number, type(None))


def _empty_type(is_dense: bool) -> pa.DataType:
    return pa.float64() if is_dense else pa.string()
