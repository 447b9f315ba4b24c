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

from hps.errors import DataError

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
    """The batch with whole numbers for the floats of features of csv, null for NaN: pandas has a
    column of whole numbers as floats where some are missing.

    Raises:
        DataError: a number that is not whole, or that other whole numbers have become, too, as
            floats of its width; its text in the log cannot be told.
    """
    for place, field in enumerate(given.schema):
        if field.name not in features or not pa.types.is_floating(field.type):
            continue
        most = 2 ** (np.finfo(field.type.to_pandas_dtype()).nmant + 1)
        column = given.column(place).cast(pa.float64())
        values = column.to_numpy(zero_copy_only=False)  # null is NaN
        is_missing = np.isnan(values)
        bad = [value for value in values[~is_missing].tolist() if not is_whole(value, most)]
        if bad:
            raise DataError(
                f"predict: column {field.name!r} is of type {field.type} and holds {bad[0]!r}, and "
                "keys of csv come from its text; give the text as the log has it, or whole numbers "
                f"below {most:,}"
            )
        numbers = np.where(is_missing, 0.0, values).astype(np.int64)
        given = given.set_column(place, field.name, pa.array(numbers, mask=is_missing))
    return given


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
    if isinstance(values, np.ndarray) and values.dtype.kind == "U" and values.ndim == 1:
        values = values.tolist()  # of an array arrow cuts a text at its first NUL
    column = pa.array(values)
    if not pa.types.is_null(column.type):
        return column
    return column.cast(_empty_type(is_dense))  # nothing is in it


def _empty_type(is_dense: bool) -> pa.DataType:
    return pa.float64() if is_dense else pa.string()
