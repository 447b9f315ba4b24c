"""key_of, keys_of: what key a raw value of a log becomes where keys are hashed.

Above it: users, records.py. Below it: hps/reader/columns.py, which readers use, too; the native
XXH64.
"""

from typing import Any

from hps import _C
from hps.common.row_layout import Keys
from hps.errors import ConfigError
from hps.reader.schema import encode_name


def key_of(feature: str | None, value: str | bytes | int) -> int:
    """The hashed key of a value, from 0 to 2^64 - 1.

    Args:
        feature: its name in the log; None in a table of `shared_vocabulary`, whose features share
            their keys.
        value: as the file has it: text, its bytes, or a whole number, of which the decimal text
            counts.

    Raises:
        ConfigError: a value of another type.

    Source: docs/formats.md.

    >>> key_of("C1", "68fd1e64")
    6601481875315734487
    >>> key_of("C1", 7) == key_of("C1", "7") != key_of(None, "7")
    True
    """
    if isinstance(value, bool) or not isinstance(value, str | bytes | int):
        raise ConfigError(
            f"key_of: value {value!r} of feature {feature!r} is a {type(value).__name__}; text, "
            "bytes and whole numbers have keys"
        )
    text = value if isinstance(value, bytes) else encode_name(str(value))
    return int(_C.xxh64(text, seed_of(feature)))


def keys_of(feature: str | None, values: Any) -> Keys:
    """The hashed keys of many values, uint64 [L], in their order.

    Args:
        feature: as key_of has it.
        values: a list or an array, of numpy or pyarrow, of text, bytes or whole numbers.

    Raises:
        ConfigError: values of another type, or one that is missing: it has no key.

    >>> keys_of("C1", ["68fd1e64", "7"]).tolist() == [key_of("C1", "68fd1e64"), key_of("C1", 7)]
    True
    """
    import pyarrow as pa  # which takes its time to import

    from hps.reader.columns import is_feature, to_keys, value_type

    if isinstance(values, str | bytes):
        raise ConfigError(f"keys_of: {values!r} of feature {feature!r} is one value; use key_of")
    try:
        column = pa.array(values) if not isinstance(values, pa.Array) else values
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"keys_of: values of feature {feature!r}: {error}") from None
    if len(column) == 0:
        column = column.cast(pa.string())
    is_nested = pa.types.is_nested(column.type)
    if is_nested or not is_feature(value_type(column.type)) or pa.types.is_boolean(column.type):
        raise ConfigError(
            f"keys_of: values of feature {feature!r} are of type {column.type}; text, bytes and "
            "whole numbers have keys"
        )
    if column.null_count:
        raise ConfigError(
            f"keys_of: {column.null_count} of the values of feature {feature!r} are missing, and "
            "have no key; leave them out"
        )
    return to_keys(column, seed_of(feature), True)[0]


def seed_of(feature: str | None) -> int:
    """The seed of a feature's key hash; None as key_of has it."""
    return 0 if feature is None else int(_C.xxh64(encode_name(feature)))
