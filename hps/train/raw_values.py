"""Which key a model's training made of a raw value of a log, and in which table.

Above it: `hps lookup`. Below it: recipe.py, which says how the log was read, `hps.key_of`, and what
a features file makes of columns, `hps.features`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hps.config import TableConfig
from hps.errors import ConfigError
from hps.reader.index_fields import IndexFields
from hps.reader.keys import key_of
from hps.train.recipe import ModelRecipe

_MOST_NAMED = 40  # features that an error lists


@dataclass(frozen=True)
class RawKey:
    """A key, and how a raw value becomes it.

    Args:
        number: from 0 to 2^64 - 1.
        rule: in words.
    """

    number: int
    rule: str


@dataclass(frozen=True)
class RawValue:
    """A value of a log.

    Args:
        feature: that has it.
        text: as the file has it.
        table: that the feature's rows lie in.
        keys: that it may become: where there is a row of the first, that one, else the last. Where
            whole numbers are keys as they are, those of a column of text are hashed all the same,
            and a model does not keep which columns of parquet were text; but no row has such a
            hash by chance.
    """

    feature: str
    text: str
    table: str
    keys: list[RawKey]


class RawValues:
    """Makes of raw values what training made of them.

    Args:
        recipe: of the model.
        tables: of its store.
    """

    def __init__(self, recipe: ModelRecipe, tables: Mapping[str, TableConfig]) -> None:
        self._reading = recipe.reading()
        self._tables = tables
        self._table_of = {
            name: table for table, features in recipe.features.items() for name in features
        }
        self._transform = recipe.make_transform()
        fields = recipe.reader.get("fields")
        self._fields = None if fields is None else IndexFields.of(fields)

    def parse(self, text: str) -> RawValue:
        """Of FEATURE=VALUE, split at the first '=' that ends the name of a feature.

        Raises:
            ConfigError: the model has no such feature, or its logs no such value.
        """
        if "=" not in text:
            raise ConfigError(f"{text!r} must be FEATURE=VALUE, such as C1=05db9164")
        places = [place for place, letter in enumerate(text) if letter == "="]
        ends = next((one for one in places if text[:one] in self._table_of), places[0])
        return self.value(text[:ends], text[ends + 1 :])

    def value(self, feature: str, text: str) -> RawValue:
        """Of a feature and a value; errors as `parse`."""
        if feature not in self._table_of:
            raise self._unknown(feature)
        self._check_divided(feature, text)
        table = self._table_of[feature]
        return RawValue(feature, text, table, self._keys_of_model(feature, text, table))

    def _keys_of_model(self, feature: str, text: str, table: str) -> list[RawKey]:
        """What a features file, if there is one, makes of the keys of the log."""
        transform = self._transform
        if transform is None:
            return self._keys(feature, text, table)
        if feature in transform.bucket_names:
            return [self._bucket(feature, text)]
        for cross in transform.measured.crosses:
            if cross.name == feature:
                raise ConfigError(
                    f"{feature!r} is the cross of {' and '.join(cross.columns)}: a log has no "
                    "value of it; make its key of theirs (docs/features.md, Crosses) and give it "
                    "as --key"
                )
        column = transform.measured.column(feature)
        is_none = not text and self._reading["format"] not in ("criteo", "parquet")
        if column is not None and column.missing is not None and is_none:
            found = [
                RawKey(key, "that of a missing value") for key in transform.keys_of(feature, None)
            ]
        else:
            folded = (
                ""
                if column is None or column.hash_buckets is None
                else (f", folded into {column.hash_buckets:,} keys")
            )
            found = [
                RawKey(key, f"{raw.rule}{folded}")
                for raw in self._keys(feature, text, table)
                for key in transform.keys_of(feature, raw.number)
            ]
        if not found:
            raise ConfigError(f"{feature}= : the model's features file drops what is missing")
        return found

    def _bucket(self, feature: str, text: str) -> RawKey:
        """The key of the bucket of a number."""
        assert self._transform is not None
        try:
            number = self._number(text)
        except ValueError:
            number = math.nan
        if number is not None and not math.isfinite(number):
            raise ConfigError(
                f"{feature}={text}: the model has buckets of {feature!r}, which are of finite "
                f"numbers; give one, or {feature}= for a missing one"
            )
        bucket = self._transform.bucket_of(feature, number)
        name = "missing" if bucket is None else bucket
        why = f"{text!r} is a missing number: " if text and number is None else ""
        return RawKey(key_of(feature, name), f"{why}bucket {name}, hashed with its feature")

    def _number(self, text: str) -> float | None:
        """The number that the log's reader makes of a text; None of one that is missing.

        Raises:
            ValueError: none.
        """
        from hps.reader.dense_text import FORMATS, number_of  # pyarrow takes its time to import

        if self._reading["format"] in FORMATS:
            return number_of(text, self._reading["format"])
        return float(text) if text else None

    def _keys(self, feature: str, text: str, table: str) -> list[RawKey]:
        kind = self._reading["format"]
        if not text and kind not in ("criteo", "parquet"):
            raise ConfigError(
                f"{feature}= : an empty value of a {kind} log has no key; give one that is not"
            )
        self._check_field(feature, text)
        is_shared = self._tables[table].shared_vocabulary
        transform = self._transform
        name = feature if transform is None else transform.measured.vocabulary(feature)
        how = "with its feature" if name == feature else f"as a value of {name!r}"
        how = "without its feature: a shared vocabulary" if is_shared else how
        hashed = RawKey(key_of(None if is_shared else name, text), f"hashed {how}")
        if self._reading["hash_keys"]:
            return [hashed]
        number = _number_of(text, least=-(2**63) if kind == "parquet" else 0)
        if kind != "parquet" and number is None:
            raise ConfigError(
                f"{feature}={text}: keys of this model's {kind} logs are taken as they are, and "
                f"{text!r} is no whole number from 0 to 2^64 - 1"
            )
        if number is None:
            return [hashed]
        as_it_is = RawKey(number % 2**64, "the number as it is")
        return [as_it_is] if kind != "parquet" else [hashed, as_it_is]

    def _check_divided(self, feature: str, text: str) -> None:
        """Of a column whose texts are several values: the text is one of them."""
        separators = {} if self._transform is None else self._transform.measured.separators
        separator = separators.get(feature)
        if separator is None or separator not in text:
            return
        parts = [f"'{feature}={part}'" for part in text.split(separator) if part]
        give = f"give each by itself: {' '.join(parts)}" if parts else "give a value"
        raise ConfigError(
            f"{feature}={text}: training divides texts of {feature!r} by {separator!r}, and each "
            f"value has a row of its own; {give}"
        )

    def _check_field(self, feature: str, text: str) -> None:
        """Of libsvm with fields: the index is one of the feature's."""
        index = _number_of(text, least=0)
        if self._fields is None or (index is not None and self._fields.field_of(index) == feature):
            return
        if index is None:
            raise ConfigError(
                f"{feature}={text}: {text!r} is no index, a whole number from 0 to 2^64 - 1"
            )
        owner = self._fields.field_of(index)
        has = "no field has" if owner is None else f"field {owner!r} has"
        raise ConfigError(f"{feature}={text}: {has} the index {index}, not {feature!r}")

    def _unknown(self, feature: str) -> ConfigError:
        from difflib import get_close_matches

        dense = self._reading["dense_columns"] or []
        if self._reading["format"] == "criteo":
            dense = [f"I{number}" for number in range(1, self._reading["dense"] + 1)]
        if feature in dense:
            return ConfigError(f"{feature!r} is a dense column of the model: it has no rows")
        names = list(self._table_of)
        more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
        near = get_close_matches(feature, names, 1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        return ConfigError(
            f"the model has no feature {feature!r}{hint}; its features are "
            f"{', '.join(names[:_MOST_NAMED])}{more}"
        )


def _number_of(text: str, least: int) -> int | None:
    """A whole number up to 2^64 - 1 in decimal digits; None of any other text."""
    digits = text.removeprefix("-") if least < 0 else text
    if not (digits.isascii() and digits.isdecimal() and len(digits.lstrip("0")) <= 20):
        return None
    number = int(text)
    return number if least <= number < 2**64 else None
