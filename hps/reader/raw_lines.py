"""RawLines: raw columns of libsvm, libffm and slots as batches, by way of the text of their lines.

Above it: `hps.Model`. Below it: text_lines.py, the native parser. A value becomes the token that a
log would have of it, so that it is the key and the number that training made of that token.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hps import _C
from hps.errors import ConfigError, DataError
from hps.reader.config import ReaderConfig
from hps.reader.schema import Schema, encode_name
from hps.reader.text_lines import TextLines
from hps.types import Batch

FORMATS = ("libsvm", "libffm", "slots")
_DIVIDERS = " \t\n\r"  # what no token has


class RawLines:
    """Makes batches of columns by the names of the features and dense values.

    An entry of a feature is a key, a list of keys, or None for none; of libsvm and libffm also a
    mapping of indices to values, or a list of such pairs, as tuples. One of a dense value is a
    number; None where the line would not name it.

    Args:
        schema: of the model's log.
        config: how it is read.
    """

    def __init__(self, schema: Schema, config: ReaderConfig) -> None:
        self._schema = schema
        self._lines = TextLines(config)
        self._format = config.format
        self._fields = self._lines.fields
        self._dense_fields = list(config.dense_columns or ())
        self.features = [column.name for columns in schema.tables.values() for column in columns]
        self.dense = self._dense_fields
        if config.format == "slots":
            self.dense = [f"dense_feature {place + 1}" for place in range(schema.num_dense)]
        self._native = self._lines.native(schema, schema.num_dense)
        # key:slot takes any name of a slot, slot:key has dense values.
        self._is_named = config.format == "slots" and schema.num_dense > 0

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        return [*self.dense, *self.features]

    def batch_of(self, columns: Mapping[str, Any]) -> Batch:
        """The batch of columns of equal length; those that are no features are not looked at.

        Args:
            columns: by name; a feature that is not there has no key.

        Raises:
            ConfigError: a column that is no list, or lists of different lengths.
            DataError: an entry that no line could have; names row and column.
        """
        given = {name: _entries(name, columns[name]) for name in self.names if name in columns}
        sizes = {name: len(entries) for name, entries in given.items()}
        if len(set(sizes.values())) > 1:
            raise ConfigError(
                f"predict: these columns make no batch: their lengths differ, {sizes}"
            )
        count = next(iter(sizes.values()), 0)
        lines = []
        for row in range(count):
            tokens = [self._label]
            for name, entries in given.items():
                try:
                    tokens += self._tokens(name, entries[row])
                except (TypeError, ValueError, OverflowError) as error:
                    raise DataError(f"predict, row {row + 1}: column {name!r}: {error}") from None
            lines.append(" ".join(tokens))
        parser = self._parsed(lines)
        if parser.error is not None:
            _, row, reason = parser.error
            column = self._guilty(given, row - 1, reason)
            said = reason.decode("ascii", "backslashreplace")
            raise DataError(f"predict, row {row}: {column}{said}")
        return self._lines.batch_of(parser.take(count, 0, count), self._schema, count)

    @property
    def _label(self) -> str:
        """What a line begins with."""
        return "click:0" if self._is_named else "0:1" if self._format == "slots" else "0"

    def _parsed(self, lines: Sequence[str]) -> _C.TextParser:
        """A parser that has read lines."""
        parser = _C.TextParser(self._native, _C.ThreadPool(1))
        parser.start_file(0, 0, 0)
        text = encode_name("".join(f"{line}\n" for line in lines))
        parser.feed(np.frombuffer(text, np.uint8), True)
        return parser

    def _guilty(self, given: Mapping[str, Sequence[Any]], row: int, reason: bytes) -> str:
        """The column whose entry makes a row bad, in words; nothing where none does by itself, or
        a row without any column is bad for the same reason."""
        tokens = {name: list(self._tokens(name, entries[row])) for name, entries in given.items()}
        for name, own in {"": [], **tokens}.items():
            error = self._parsed([" ".join([self._label, *own])]).error
            if error is not None and error[2] == reason:
                return f"column {name!r}: " if name else ""
        return ""

    def _tokens(self, name: str, entry: Any) -> Iterator[str]:
        """The tokens of a column's entry.

        Raises:
            TypeError, ValueError: it has none; says why.
        """
        if entry is None:
            return
        if self._format == "slots" and name in self.dense:
            yield f"dense_feature:{_number(entry)}"
        elif self._format == "slots":
            for item in _items(entry):
                key = _key(item)
                yield f"{name}:{key}" if self._is_named else f"{key}:{name}"
        elif name in self._dense_fields and not isinstance(entry, Mapping | list | tuple):
            yield f"{self._dense_index(name)}:{_number(entry)}"
        else:
            for item, value in _pairs(entry, needs_values=name in self._dense_fields):
                key = self._checked(name, _key(item))
                yield f"{key}:{value}" if self._format == "libsvm" else f"{name}:{key}:{value}"

    def _dense_index(self, name: str) -> str:
        """What stands before the number of a dense field that has one."""
        if self._fields is None:
            return f"{name}:0"
        if self._fields.num_indices(name) > 1:
            raise TypeError("a dense field of several indices; give a mapping of indices to values")
        return str(self._fields.indices(name)[0])

    def _checked(self, name: str, key: str) -> str:
        """An index that its field has."""
        if key.startswith("#") and self._format == "libsvm":
            raise ValueError(f"{key!r} would begin a comment")
        if self._fields is not None and key.isascii() and key.isdecimal():
            owner = self._fields.field_of(int(key))
            if owner != name:
                has = "no field" if owner is None else f"field {owner!r}"
                raise ValueError(f"index {key} is one of {has}")
        return key


def _entries(name: str, values: Any) -> Sequence[Any]:
    """The entries of a column."""
    if hasattr(values, "to_pylist"):  # of arrow: a map is a list of pairs
        return list(values.to_pylist())
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        raise ConfigError(
            f"predict: these columns make no batch: column {name!r} is {values!r}; give a list "
            f"with an entry for each example, such as [{values!r}]"
        )
    return list(values)


def _items(entry: Any) -> Sequence[Any]:
    """The items of an entry, which may be one; None is no item."""
    if isinstance(entry, np.ndarray):
        return list(entry.tolist() if entry.ndim else [entry.item()])
    if isinstance(entry, Mapping):
        raise TypeError("slots have keys alone, without values; give a key or a list of keys")
    entry = entry if isinstance(entry, list | tuple) else [entry]
    return [item for item in entry if item is not None]


def _pairs(entry: Any, *, needs_values: bool) -> Iterator[tuple[Any, str]]:
    """Keys and values of an entry; 1 is the value of one that has none."""
    items = list(entry.items()) if isinstance(entry, Mapping) else _items(entry)
    for item in items:
        if isinstance(item, tuple):
            if len(item) != 2:
                raise TypeError(f"{item!r} must be an index and its value")
            yield item[0], _number(item[1])
        elif needs_values:
            raise TypeError(f"{item!r} has no value; give a mapping of indices to values")
        else:
            yield item, "1"


def _key(item: Any) -> str:
    """A key as a file would have it."""
    if isinstance(item, str):
        if not item or any(letter in _DIVIDERS for letter in item):
            raise ValueError(f"{item!r} is no key: it is empty, or has a space or a line end in it")
        return item
    if isinstance(item, bool | np.bool_):
        raise TypeError(f"{item!r} is no key; give a whole number, or its text")
    try:
        return str(operator.index(item))
    except TypeError:
        raise TypeError(
            f"{item!r} is a {type(item).__name__}; give a whole number, or its text"
        ) from None


def _number(value: Any) -> str:
    """A number as a file would have it."""
    if isinstance(value, bool | np.bool_ | str | bytes):
        raise TypeError(f"{value!r} is no number")
    number = float(value)
    with np.errstate(over="ignore"):
        is_finite = bool(np.isfinite(np.float32(number)))
    if not is_finite:
        raise ValueError(f"{value!r} is no finite number of 32 bits")
    return repr(number)
