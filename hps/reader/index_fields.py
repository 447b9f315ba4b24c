"""IndexFields: which indices of a libsvm log belong to which feature.

Above it: `ReaderConfig.fields`, a features file's [fields], the text reader. Below it: nothing. A
libsvm line is one bag of indices; models that look at pairs of features need to know which is what.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

from hps.common.json_text import Json
from hps.errors import ConfigError

REST = "*"  # of a field: every index that no other field has
MAX_INDEX = 2**64 - 1
MAX_FIELDS = 2**16
MAX_RANGES = 2**20
_ALLOWED = (
    f'an index, a range such as "0-942" (both ends are in it, 0 to 2^64 - 1), a list of these, or '
    f'"{REST}" for every index that no other field has'
)

Range = tuple[int, int]


@dataclass(frozen=True)
class FieldFault:
    """What is wrong with one field, or, without a name, with all of them."""

    name: str | None
    text: str


@dataclass(frozen=True)
class IndexFields:
    """Fields by name, in their order, and the ranges of indices that each has.

    Args:
        ranges: of each field, ascending and apart; none of the field that has the rest.
        rest: the field of every index that no other has; None: there is none.

    >>> fields = IndexFields.of({"user": "0-942", "item": [943, "1000-2624"]})
    >>> [fields.field_of(index) for index in (942, 943, 944)]
    ['user', 'item', None]
    """

    ranges: Mapping[str, tuple[Range, ...]]
    rest: str | None = None

    @classmethod
    def of(cls, given: object, what: str = "fields") -> Self:
        """Of fields as a user writes them: name -> index, range, list of these, or "*".

        Args:
            what: they are, for messages.

        Raises:
            ConfigError: one that is none of these, an empty range, or an index in two fields.
        """
        fault = field_fault(given)
        if fault is not None:
            where = what if fault.name is None else f"{what}.{fault.name}"
            raise ConfigError(f"{where}: {fault.text}")
        assert isinstance(given, Mapping)
        rest = next((name for name, said in given.items() if said == REST), None)
        ranges = {
            name: () if name == rest else tuple(sorted(_ranges(said) or ()))
            for name, said in given.items()
        }
        return cls(ranges, rest)

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they were given."""
        return tuple(self.ranges)

    def num_indices(self, name: str) -> int:
        """Indices of a field that has ranges."""
        return sum(last - first + 1 for first, last in self.ranges[name])

    def indices(self, name: str) -> list[int]:
        """They, ascending."""
        return [index for first, last in self.ranges[name] for index in range(first, last + 1)]

    def sorted_ranges(self) -> list[tuple[int, int, str]]:
        """(first, last, field), ascending; what no field has is the rest's, if there is one."""
        found = sorted(
            (first, last, name) for name, own in self.ranges.items() for first, last in own
        )
        if self.rest is None:
            return found
        whole, begin = [], 0
        for first, last, name in found:
            if begin < first:
                whole.append((begin, first - 1, self.rest))
            whole.append((first, last, name))
            begin = last + 1
        if begin <= MAX_INDEX:
            whole.append((begin, MAX_INDEX, self.rest))
        return whole

    def field_of(self, index: int) -> str | None:
        """The field of an index; None of one that is in none."""
        ranges, firsts = self._sorted
        place = bisect_right(firsts, index) - 1
        return ranges[place][2] if place >= 0 and index <= ranges[place][1] else None

    @cached_property
    def _sorted(self) -> tuple[list[tuple[int, int, str]], list[int]]:
        ranges = self.sorted_ranges()
        return ranges, [first for first, _, _ in ranges]

    def to_dict(self) -> Json:
        """Plain values that `of` takes, the same of all that mean the same.

        >>> IndexFields.of({"a": [7, "1-3", 4], "b": "*"}).to_dict()
        {'a': ['1-3', '4', '7'], 'b': '*'}
        """
        return {
            name: REST if name == self.rest else _said(own) for name, own in self.ranges.items()
        }


def field_fault(given: object) -> FieldFault | None:
    """What is wrong with fields as a user writes them; None if nothing is."""
    if not isinstance(given, Mapping):
        return FieldFault(None, f'{given!r} is no table; write NAME = "FIRST-LAST" for each field')
    if len(given) > MAX_FIELDS:
        return FieldFault(None, f"{len(given):,} fields; {MAX_FIELDS:,} may be")
    of_index: list[tuple[int, int, str]] = []
    rest: str | None = None
    for name, said in given.items():
        if not isinstance(name, str) or not name:
            return FieldFault(str(name), f"the name {name!r} is not a text of at least one letter")
        if said == REST:
            if rest is not None:
                return FieldFault(name, f'"{REST}" is what {rest!r} has; one field has the rest')
            rest = name
            continue
        ranges = _ranges(said)
        if ranges is None:
            return FieldFault(name, f"{_shown(said)} must be {_ALLOWED}")
        of_index += [(first, last, name) for first, last in ranges]
        if len(of_index) > MAX_RANGES:
            return FieldFault(None, f"more than {MAX_RANGES:,} ranges; write longer ones")
    return _overlap(of_index)


def _overlap(ranges: list[tuple[int, int, str]]) -> FieldFault | None:
    ranges.sort()
    for (_, end, before), (first, last, name) in pairwise(ranges):
        if first <= end:
            shared = _text(first, min(last, end))
            other = "this field twice" if name == before else f"field {before!r}, too"
            return FieldFault(name, f"{shared} is in {other}; an index belongs to one field")
    return None


def _ranges(said: object) -> list[Range] | None:
    """The ranges that a value names; None if it is none."""
    if isinstance(said, Sequence) and not isinstance(said, str | bytes):
        found = [None if isinstance(one, list | tuple) else _ranges(one) for one in said]
        if not found or None in found:
            return None
        return [one for of_item in found for one in of_item or ()]
    if isinstance(said, bool) or not isinstance(said, int | str):
        return None
    if isinstance(said, int):
        return [(said, said)] if 0 <= said <= MAX_INDEX else None
    ends = [_index(text) for text in said.split("-")]
    if len(ends) > 2 or None in ends:
        return None
    first, last = ends[0], ends[-1]
    assert first is not None and last is not None
    return [(first, last)] if first <= last else None


def _index(text: str) -> int | None:
    """An index in decimal digits; None of any other text."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits.lstrip("0")) <= 20):
        return None
    return index if (index := int(digits)) <= MAX_INDEX else None


def _text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _said(ranges: tuple[Range, ...]) -> str | list[str]:
    texts = [_text(first, last) for first, last in ranges]
    return texts[0] if len(texts) == 1 else texts


def _shown(said: object) -> str:
    text = repr(said)
    return text if len(text) <= 60 else f"{text[:57]}..."
