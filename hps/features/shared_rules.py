"""What is wrong with a target, or with a vocabulary that a column shares, beside other columns.

Above it: features.py. Below it: rules.py.
"""

from hps.common.json_text import JsonView
from hps.features.rules import Fault

_WITH_KEYS = ("categorical", "group")  # kinds of columns with a key an example
_NAMED = ("categorical", "sequence", "group")  # kinds of columns whose values are hashed


def target_fault(name: str, said: JsonView, columns: JsonView, crosses: JsonView) -> Fault | None:
    """What is wrong with the target of a column; None if nothing is.

    Args:
        name: of the column, of which `said` is what the file says.
        columns: all of the file, each without fault by itself.
        crosses: of the file.
    """
    target = said.get("target")
    if target is None:
        return None
    place, way_out = ("columns", name, "target"), "name the column of the candidate"
    if target == name:
        return Fault(place, f"a sequence cannot be its own target; {way_out}")
    if target in crosses:
        return Fault(place, f"{target!r} is a cross; {way_out}, of which the log has values")
    kind = columns.get(target, {}).get("kind", "categorical")
    if kind == "sequence":
        return Fault(
            place,
            f"column {target!r} is a sequence itself; {way_out}, which has one value an example",
        )
    if kind not in _WITH_KEYS:
        why = "left out" if kind == "ignored" else f"of kind {kind!r}"
        return Fault(place, f"column {target!r} is {why} and no feature; {way_out}")
    return None


def vocabulary_fault(
    name: str, said: JsonView, columns: JsonView, crosses: JsonView
) -> Fault | None:
    """What is wrong with the vocabulary of a column, said or that of its target; as `target_fault`,
    which is asked first."""
    key = "target" if "vocabulary" not in said else "vocabulary"
    given = said.get(key)
    if given is None or given == name:
        return None
    place = ("columns", name, key)
    if given in crosses:
        return Fault(place, f"{given!r} is a cross, whose keys are no values of a log")
    other = columns.get(given, {"kind": "categorical"})
    if other["kind"] not in (*_NAMED, "ignored"):
        return Fault(
            place,
            f"column {given!r} is of kind {other['kind']!r}, whose values are no keys; give the "
            "name of a category or of a sequence, or one that no column has",
        )
    of_other = other.get("vocabulary", other.get("target", given))
    if key == "vocabulary" and of_other != given:
        return Fault(
            place,
            f"column {given!r} has the vocabulary of {of_other!r} itself; give {of_other!r} here, "
            "too",
        )
    others = {one: of_one for one, of_one in columns.items() if of_one["kind"] in _NAMED}
    if key == "target":
        others.setdefault(given, {})
    shared = _vocabulary(name, columns)
    for one, of_one in others.items():
        own, count = said.get("hash_buckets"), of_one.get("hash_buckets")
        if own != count and _vocabulary(one, columns) == shared:
            return Fault((*place[:2], "hash_buckets"), uneven(own, count, one, name))
    return None


def _vocabulary(name: str, columns: JsonView) -> str:
    """As `Features.vocabulary`."""
    said = columns.get(name, {})
    if "vocabulary" in said:
        return str(said["vocabulary"])
    return _vocabulary(said["target"], columns) if "target" in said else name


def uneven(own: int | None, other: int | None, column: str, name: str) -> str:
    """What to say of two columns of one vocabulary that are folded otherwise."""
    counts = ["there are none" if one is None else f"{one}" for one in (own, other)]
    return (
        f"{counts[0]}, but {counts[1]} of column {column!r}, which has the same vocabulary: equal "
        "values would be two keys; give both the same hash_buckets, or this column a vocabulary "
        f"of its own (vocabulary = {name!r})"
    )
