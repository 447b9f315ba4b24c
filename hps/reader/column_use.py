"""What a reader makes of each column of a log: a feature, a dense value, the label, the weight of
an example, its group, or nothing.

Above it: the readers, which fill it in; the training run, which prints it and stores it in --json.
Below it: nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from hps.common.json_text import Json
from hps.reader.config import LOG1P, RAW, SIGNED_LOG1P

FEATURE, DENSE, LABEL, IGNORED = "feature", "dense", "label", "ignored"
WEIGHT, GROUP = "weight", "group"
HASHED_WITH_FEATURE = "hashed with the feature"
HASHED_ALONE = "hashed without the feature: equal values of the table's features are one key"
AS_THEY_STAND = "numbers are keys as they stand"
_TRANSFORMS = {
    LOG1P: "log1p(max(x, 0)); missing is 0",
    SIGNED_LOG1P: "log1p(x), below 0 -log1p(-x); missing is -0.5",
}
BEGINS_WITH_ZERO = "some numbers begin with 0"
ENDS_IN_ZERO = "some whole numbers end in .0"
NOT_READ = "of a type that is not read"
_MAX_NAMES = 12


@dataclass(frozen=True)
class ColumnUse:
    """One column of a log and its use.

    Args:
        name: of the column, or of the feature in formats without columns.
        kind: "feature" (which may be the group, too), "dense", "label", "weight", "group" or
            "ignored".
        type: of the values in the log.
        why: how it is read, or why it is not.
        table: of a feature; else None.
    """

    name: str
    kind: str
    type: str
    why: str
    table: str | None = None


def feature_rule(rule: str, is_shared: bool, *, is_text: bool) -> str:
    """How the values of a feature become keys, in words.

    Args:
        rule: the reader's, "hashed" or "raw".
        is_shared: the table has a shared vocabulary.
        is_text: the values are no whole numbers, so that they are hashed by any rule.
    """
    if rule == RAW and not is_text:
        return AS_THEY_STAND
    return HASHED_ALONE if is_shared else HASHED_WITH_FEATURE


def dense_rule(transform: str) -> str:
    """How numbers become dense values, in words."""
    return _TRANSFORMS.get(transform, "as it stands")


def format_columns(columns: Sequence[ColumnUse]) -> list[str]:
    """What is read, for people: one line for all columns of one use.

    >>> format_columns([ColumnUse(name, DENSE, "float", "as it stands") for name in ("a", "b")])
    ['columns: 2 dense (as it stands): a, b']
    """
    groups: dict[tuple[str, str], list[ColumnUse]] = {}
    for column in columns:
        groups.setdefault((column.kind, column.why), []).append(column)
    lines = []
    for kind in (LABEL, WEIGHT, GROUP, FEATURE, DENSE, IGNORED):
        for (of_kind, why), members in groups.items():
            if of_kind != kind:
                continue
            shows_type = kind not in (FEATURE, DENSE)
            names = [f"{one.name} ({one.type})" if shows_type else one.name for one in members]
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            word = "features" if kind == FEATURE and len(names) > 1 else kind
            said = ", ".join(names[:_MAX_NAMES])
            lines.append(f"columns: {len(names)} {word} ({why}): {said}{more}")
    return lines


def describe_columns(
    columns: Sequence[ColumnUse], found: Mapping[str, Mapping[str, float]]
) -> list[Json]:
    """The columns as --json has them.

    Args:
        found: what was seen of dense columns, by name.
    """
    return [
        {**asdict(column), **(found.get(column.name, {}) if column.kind == DENSE else {})}
        for column in columns
    ]
