"""key_of, keys_of: what key a raw value of a log becomes where keys are hashed.

Above it: users, records.py. Below it: hps/reader/columns.py, which readers use, too; the native
XXH64.
"""

import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np

from hps import _C
from hps.common.arrays import as_numpy, is_tensor
from hps.common.row_layout import Keys
from hps.errors import ConfigError
from hps.reader.schema import encode_name


def key_of(feature: str | None, value: str | bytes | int | np.generic) -> int:
    """The hashed key of a value, from 0 to 2^64 - 1.

    Args:
        feature: its name in the log; None in a table of `shared_vocabulary`, whose features share
            their keys.
        value: as the file has it: text, its bytes, or a whole number, of which the decimal text
            counts; also one of numpy. True is 1 and False 0, as in parquet; csv has the text.

    Raises:
        ConfigError: a value of another type.

    Source: docs/formats.md.

    >>> key_of("C1", "68fd1e64")
    6601481875315734487
    >>> key_of("C1", 7) == key_of("C1", "7") != key_of(None, "7")
    True
    """
    text = _text_of(value)
    if text is None:
        raise ConfigError(
            f"key_of: value {value!r} of feature {feature!r} is a {type(value).__name__}; text, "
            "bytes, whole numbers and booleans have keys"
        )
    return int(_C.xxh64(text, seed_of(feature)))


def keys_of(feature: str | None, values: Any) -> Keys:
    """The hashed keys of many values, uint64 [L], in their order.

    Args:
        feature: as key_of has it.
        values: a list, an array of numpy or pyarrow, or a torch tensor, of text, bytes, whole
            numbers or booleans; in a list of several of these each is as key_of has it.

    Raises:
        ConfigError: values of another type, or one that is missing: it has no key; of a list names
            the first.

    >>> keys_of("C1", ["68fd1e64", "7"]).tolist() == [key_of("C1", "68fd1e64"), key_of("C1", 7)]
    True
    """
    import pyarrow as pa  # which takes its time to import

    from hps.reader.columns import is_feature, to_keys, value_type

    if isinstance(values, str | bytes) or not hasattr(values, "__iter__"):
        raise ConfigError(f"keys_of: {values!r} of feature {feature!r} is one value; use key_of")
    if is_tensor(values):
        values = as_numpy(values, f"keys_of: values of feature {feature!r}")
    elif not hasattr(values, "__len__"):
        values = list(values)
    if isinstance(values, np.ndarray) and values.dtype.kind == "U" and values.ndim == 1:
        values = values.tolist()  # of an array arrow cuts a text at its first NUL
    try:
        column = pa.array(values) if not isinstance(values, pa.Array) else values
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        if not isinstance(values, list | tuple) and getattr(values, "ndim", 0) != 1:
            raise ConfigError(f"keys_of: values of feature {feature!r}: {error}") from None
        return _one_by_one(feature, values)  # of several types, or beyond 63 bits
    if len(column) == 0:
        column = pa.nulls(0, pa.string())
    if pa.types.is_nested(column.type) or not is_feature(value_type(column.type)):
        if isinstance(values, list | tuple):
            return _one_by_one(feature, values)  # which names the first
        raise ConfigError(
            f"keys_of: values of feature {feature!r} are of type {column.type}; text, bytes, whole "
            "numbers and booleans have keys"
        )
    if column.null_count:
        raise ConfigError(
            f"keys_of: {column.null_count} of the values of feature {feature!r} are missing, and "
            "have no key; leave them out"
        )
    return to_keys(column, seed_of(feature), True)[0]


def _text_of(value: object) -> bytes | None:
    """The bytes that are hashed; None of a value that has no key."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return encode_name(value)
    if isinstance(value, np.bool_):
        value = bool(value)
    if not isinstance(value, SupportsIndex):
        return None
    try:
        return b"%d" % operator.index(value)  # as whole numbers of any library say it
    except TypeError:  # a tensor of floats, or of several numbers
        return None


def _one_by_one(feature: str | None, values: Iterable[Any]) -> Keys:
    """As key_of has each.

    Raises:
        ConfigError: one without a key; names it and its place.
    """
    seed, keys = seed_of(feature), []
    for place, value in enumerate(values):
        text = _text_of(value)
        if text is None:
            raise ConfigError(
                f"keys_of: values[{place}] of feature {feature!r} is {value!r}, a "
                f"{type(value).__name__}; text, bytes, whole numbers and booleans have keys"
            )
        keys.append(_C.xxh64(text, seed))
    return np.array(keys, np.uint64)


def seed_of(feature: str | None) -> int:
    """The seed of a feature's key hash; None as key_of has it."""
    return 0 if feature is None else int(_C.xxh64(encode_name(feature)))
