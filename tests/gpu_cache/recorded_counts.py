"""Counts in a record, beside those that are counted now.

Above it: step_counts.py, sectors.py. Below it: nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any


def differences(record: Mapping[str, Any], counted: Mapping[str, Any], renew: str) -> list[str]:
    """What speaks against a build, one line a number.

    Args:
        record, counted: numbers, in dicts of dicts.
        renew: how the record is renewed, in words.
    """
    lines = []
    before, now = dict(_leaves(record, "")), dict(_leaves(counted, ""))
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, 0), now.get(name, 0)
        if new > old:
            lines.append(f"{name} grew from {old} to {new}; if that is meant, {renew}")
        elif new < old:
            lines.append(f"{name} fell from {old} to {new}; so that it stays so, {renew}")
    return lines


def _leaves(value: Mapping[str, Any], name: str) -> Iterable[tuple[str, float]]:
    for key, below in value.items():
        path = f"{name} / {key}" if name else key
        if isinstance(below, dict):
            yield from _leaves(below, path)
        else:
            yield path, below
