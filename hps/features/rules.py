"""What each key of a features file may hold, and in which kind of column.

Above it: column.py, table.py, features.py. Below it: the limits of hps.config.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hps.common.json_text import JsonView
from hps.config import MAX_DIM, is_table_name

KINDS = ("categorical", "sequence", "dense", "label", "ignored", "weight", "group")
VERSION = 1
MAX_KEYS = 2**62
MAX_LENGTH = 2**20
MAX_SEPARATOR = 16
MAX_CROSS_LENGTH = 2**16
MAX_BUCKETS = 1000
MAX_CROSSED = 8
_MISSING_RULES = ("drop", "key")
_KEPT = ("first", "last")
_POOLINGS = ("sum", "mean")


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where.

    Args:
        place: keys from the outermost one on.
        text: what was seen, what is allowed, what to do.
    """

    place: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{'.'.join(self.place)}: {self.text}" if self.place else self.text


def is_number(value: object) -> bool:
    """A finite number; True and False are none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) <= 2**1023 if isinstance(value, int) else math.isfinite(value)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _are_ascending(value: object, least: int, most: int) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    if not all(map(is_number, value)):
        return False
    numbers = [float(one) for one in value]
    return least <= len(numbers) <= most and all(low < high for low, high in pairwise(numbers))


def _is_scale(value: object) -> bool:
    if isinstance(value, bool):
        return True
    if not isinstance(value, Mapping) or set(value) != {"mean", "std"}:
        return False
    return is_number(value["mean"]) and is_number(value["std"]) and value["std"] > 0


def _is_buckets(value: object) -> bool:
    if _is_whole(value, 2, MAX_BUCKETS):
        return True
    return _are_ascending(value, 0, MAX_BUCKETS)


Rule = tuple[Callable[[object], bool], str]
_HASH_BUCKETS: Rule = (
    lambda value: _is_whole(value, 1, MAX_KEYS),
    "a whole number from 1 to 2^62",
)
_MISSING_KEY: Rule = (
    lambda value: value in _MISSING_RULES,
    '"drop" (no key) or "key" (a key of its own)',
)
_DIM: Rule = (
    lambda value: _is_whole(value, 1, MAX_DIM),
    f"a whole number from 1 to {MAX_DIM}",
)
NAME_OF_TABLE = "1 to 64 letters of ASCII, digits, '_', '.' and '-', the first no '.' or '-'"
# Where a feature's rows lie: of any kind that has keys.
_PLACE: dict[str, Rule] = {
    "table": (is_table_name, f"the name of a table: {NAME_OF_TABLE}"),
    "dim": _DIM,
}
_POOLING: Rule = (
    lambda value: value in _POOLINGS,
    '"sum" (of the rows of its keys) or "mean"',
)
_DENSE: dict[str, Rule] = {
    "log": (lambda value: isinstance(value, bool), "true or false"),
    "clip": (
        lambda value: _are_ascending(value, 2, 2),
        "[low, high], two finite numbers, low below high",
    ),
    "normalise": (
        _is_scale,
        "true (to be measured), false, or {mean = M, std = S} with finite numbers, S above 0",
    ),
    "missing": (is_number, "a finite number"),
    "buckets": (
        _is_buckets,
        f"a whole number from 2 to {MAX_BUCKETS}, or at most {MAX_BUCKETS} finite numbers in "
        "ascending order, none twice",
    ),
    "keep": (lambda value: isinstance(value, bool), "true or false"),
    **_PLACE,
}
_NAME: Rule = (
    lambda value: isinstance(value, str) and bool(value),
    "a name, text of at least one letter",
)
_SEPARATOR: Rule = (
    lambda value: isinstance(value, str) and 0 < len(value) <= MAX_SEPARATOR,
    f'what is between two values of a text, such as "|": 1 to {MAX_SEPARATOR} characters',
)
_RULES: dict[str, dict[str, Rule]] = {
    "categorical": {
        "hash_buckets": _HASH_BUCKETS,
        "missing": _MISSING_KEY,
        "vocabulary": _NAME,
        **_PLACE,
    },
    "sequence": {
        "hash_buckets": _HASH_BUCKETS,
        "missing": _MISSING_KEY,
        "vocabulary": _NAME,
        "target": _NAME,
        "separator": _SEPARATOR,
        "max_length": (
            lambda value: _is_whole(value, 1, MAX_LENGTH),
            f"a whole number from 1 to {MAX_LENGTH}",
        ),
        "keep": (lambda value: value in _KEPT, '"first" or "last"'),
        "pooling": _POOLING,
        **_PLACE,
    },
    "dense": _DENSE,
    "label": {},
    "ignored": {},
    "weight": {},
    "group": {},
}
_CROSS: dict[str, Rule] = {
    "columns": (
        lambda value: _are_names(value, 2, MAX_CROSSED),
        f"a list of 2 to {MAX_CROSSED} names of columns, none twice",
    ),
    "hash_buckets": _HASH_BUCKETS,
    "max_length": (
        lambda value: _is_whole(value, 1, MAX_CROSS_LENGTH),
        f"a whole number from 1 to {MAX_CROSS_LENGTH}",
    ),
    "pooling": _POOLING,
    **_PLACE,
}


def _are_names(value: object, least: int, most: int) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    names = [name for name in value if isinstance(name, str) and name]
    return least <= len(value) <= most and len(set(names)) == len(value)


def column_fault(name: object, values: object) -> Fault | None:
    """What is wrong with the description of one column; None if nothing is."""
    place = ("columns", str(name))
    if not isinstance(name, str) or not name:
        return Fault(place, f"the name {name!r} is not a text of at least one letter")
    if not isinstance(values, Mapping):
        return Fault(place, f"{values!r} is no table of keys; write [columns.{name}]")
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        found = "there is no kind" if kind is None else f"kind = {kind!r}"
        return Fault((*place, "kind"), f"{found}; it must be one of {', '.join(KINDS)}")
    fault = _fault_of_keys(place, values, {"kind": _ANY, **_RULES[kind]}, f"kind {kind!r}")
    return fault or _fault_of_dense(place, values) or _fault_of_place(place, values)


_ANY: Rule = (lambda value: True, "")


def _fault_of_keys(
    place: tuple[str, ...], values: JsonView, rules: Mapping[str, Rule], what: str
) -> Fault | None:
    for key, value in values.items():
        if key not in rules:
            kinds = [kind for kind, known in _RULES.items() if key in known]
            known = ", ".join(name for name in rules if name != "kind") or "no other key"
            where = f"; it belongs to kind {' and '.join(kinds)}" if kinds else ""
            if values.get("kind") == "group" and key in _RULES["categorical"]:
                where = (
                    '; the groups are a feature, too: write kind = "categorical" here, which takes '
                    f"it, and give --group {place[-1]} on the command line"
                )
            return Fault((*place, str(key)), f"{what} has no such key: it takes {known}{where}")
        fits, allowed = rules[key]
        if not fits(value):
            return Fault((*place, key), f"{value!r} must be {allowed}")
    return None


def _fault_of_dense(place: tuple[str, ...], values: JsonView) -> Fault | None:
    """Keys that have nothing to do without another, or beside another."""
    if values["kind"] == "sequence" and "keep" in values and "max_length" not in values:
        return Fault((*place, "keep"), "it says what max_length leaves; give max_length, too")
    if values["kind"] != "dense":
        return None
    for key in _PLACE:
        if key in values and "buckets" not in values:
            return Fault(
                (*place, key), "it is for the rows of buckets; give buckets, too, or leave it out"
            )
    if "keep" in values and "buckets" not in values:
        return Fault((*place, "keep"), "it keeps a column that has buckets; give buckets, too")
    if "buckets" in values and not values.get("keep"):
        for key in ("log", "clip", "normalise"):
            if values.get(key) not in (None, False):
                return Fault(
                    (*place, key),
                    "buckets take the place of the dense column, for which this is; leave it out, "
                    "or give keep = true, which keeps the column beside its buckets",
                )
    return None


def _fault_of_place(place: tuple[str, ...], values: JsonView) -> Fault | None:
    """A dim is that of one table: the column's own, which has the column's name."""
    if "dim" not in values:
        return None
    name = place[-1]
    if "table" in values:
        table = values["table"]
        return Fault(
            (*place, "dim"),
            f"the dim is that of table {table!r}; write it there, [tables.{table}] "
            f"dim = {values['dim']}, or leave table out, so that it has a table of its own",
        )
    if not is_table_name(name):
        return Fault(
            (*place, "dim"),
            f"its own table would have its name, and that of a table is {NAME_OF_TABLE}; give it "
            f'a table instead, table = "NAME", and [tables.NAME] dim = {values["dim"]}',
        )
    return None


def table_fault(name: object, values: object) -> Fault | None:
    """What is wrong with the description of one table; None if nothing is."""
    place = ("tables", str(name))
    if not is_table_name(name):
        return Fault(place, f"the name {name!r} must be {NAME_OF_TABLE}")
    if not isinstance(values, Mapping):
        return Fault(place, f"{values!r} is no table of keys; write [tables.{name}]")
    return _fault_of_keys(place, values, {"dim": _DIM}, "a table")


def cross_fault(name: object, values: object) -> Fault | None:
    """What is wrong with the description of a cross; None if nothing is."""
    place = ("crosses", str(name))
    if not isinstance(name, str) or not name:
        return Fault(place, f"the name {name!r} is not a text of at least one letter")
    if not isinstance(values, Mapping):
        return Fault(place, f"{values!r} is no table of keys; write [crosses.{name}]")
    if "columns" not in values:
        return Fault(place, f"there are no columns; it must have {_CROSS['columns'][1]}")
    fault = _fault_of_keys(place, values, _CROSS, "a cross")
    return fault or _fault_of_place(place, values)
