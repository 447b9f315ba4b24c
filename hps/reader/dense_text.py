"""The numbers of text, as the readers of csv and criteo have them in dense columns.

Above it: `hps.Model`, which takes such text, too, and `hps lookup`. Below it: pyarrow, which reads
csv, too.
"""

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from hps.errors import DataError
from hps.reader.columns import decoded, is_string

FORMATS = ("csv", "criteo")  # whose dense columns are text
# What is a missing number of csv, as pyarrow has it. Nothing may stand around it.
MISSING = frozenset(csv.ConvertOptions().null_values)
_BLANKS = " \t"  # that may stand around a number of csv
_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity|nan)", re.IGNORECASE
)
_WHOLE = re.compile("-?[0-9]+")
_MOST_DIGITS = 4000  # that Python makes a whole number of
_MOST_SHOWN = 60
_KINDS = {"csv": "no number of its kind", "criteo": "not a whole number of 64 bits"}


def number_of(text: str, log_format: str) -> float | None:
    """The number of a text; None of one that is missing.

    Args:
        log_format: one of FORMATS.

    Returns:
        Of csv also infinity and NaN, which no example may hold.

    Raises:
        ValueError: a log with it is bad.

    >>> number_of(" 1.5", "csv"), number_of("NA", "csv"), number_of("-7", "criteo")
    (1.5, None, -7)
    """
    if log_format == "criteo":
        if not text:
            return None
        number = int(text) if len(text) < _MOST_DIGITS and _WHOLE.fullmatch(text) else None
        if number is None or not -(2**63) <= number < 2**63:
            raise ValueError(text)
        return number
    if text in MISSING:
        return None
    trimmed = text.strip(_BLANKS)
    if not _NUMBER.fullmatch(trimmed):
        raise ValueError(text)
    return float(trimmed)


def with_numbers(batch: pa.RecordBatch, dense: list[str], log_format: str) -> pa.RecordBatch:
    """The batch with numbers for the text of dense columns; null for what is missing.

    Args:
        dense: names of the columns.
        log_format: one of FORMATS.

    Raises:
        DataError: a text that is none; names row, column and text.
    """
    for place, field in enumerate(batch.schema):
        if field.name not in dense:
            continue
        column = batch.column(place)
        if pa.types.is_dictionary(column.type) and is_string(column.type.value_type):
            column = decoded(column)
        if is_string(column.type):
            batch = batch.set_column(place, field.name, _numbers(field.name, column, log_format))
    return batch


def _numbers(name: str, column: pa.Array, log_format: str) -> pa.Array:
    try:
        return _quickly(column, log_format)
    except pa.ArrowException:  # the first bad one is found by itself
        return _one_by_one(name, column.to_pylist(), log_format)


def _quickly(column: pa.Array, log_format: str) -> pa.Array:
    """All at once; pa.ArrowException where one is bad, or no UTF-8."""
    text = column.cast(pa.large_binary()).cast(pa.large_string())
    if log_format == "criteo":
        text = pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text)
        if not pc.all(pc.match_substring_regex(text, "^-?[0-9]+$"), min_count=0).as_py():
            raise pa.ArrowInvalid("not a whole number")
        return text.cast(pa.int64())
    is_missing = pc.is_in(text, value_set=pa.array(sorted(MISSING), text.type))
    text = pc.if_else(is_missing, pa.scalar(None, text.type), text)
    return pc.ascii_trim(text, _BLANKS).cast(pa.float64())


def _one_by_one(name: str, values: list[Any], log_format: str) -> pa.Array:
    numbers: list[float | None] = []
    for row, value in enumerate(values, 1):
        text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
        try:
            numbers.append(None if text is None else number_of(text, log_format))
        except ValueError:
            raise DataError(
                f"predict, row {row}: column {name!r} holds {text[:_MOST_SHOWN]!r}, which is "
                f"{_KINDS[log_format]}; correct the row"
            ) from None
    return pa.array(numbers, pa.float64() if log_format == "csv" else pa.int64())
