"""Column and Cross: what a features file says of one column, and of columns taken together.

Above it: features.py. Below it: rules.py, which says what each key may hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError
from hps.features.rules import KINDS as KINDS
from hps.features.rules import column_fault, cross_fault

CATEGORICAL, SEQUENCE, DENSE, LABEL, IGNORED, WEIGHT, GROUP = KINDS
DROP, KEY = "drop", "key"  # what becomes of a missing category
FIRST, LAST = "first", "last"  # which keys of a sequence stay
SUM, MEAN = "sum", "mean"  # what a model gets of the rows of several keys
# Keys of columns and crosses that say where rows lie and how they are pooled: of the model, not of
# what becomes of a log's values.
OF_TABLES = ("table", "dim", "pooling")
MAX_CROSS_LENGTH = 256  # keys of a cross in an example, unless it says otherwise


@dataclass(frozen=True)
class Scale:
    """What a dense column is brought to scale by: (x - mean) / std.

    >>> Scale(mean=2.0, std=4.0).std
    4.0
    """

    mean: float
    std: float


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a log: what it is, and what is made of it.

    Args:
        name: of the column, as `hps train` prints it: C1, I3, a column of parquet, a slot.
        kind: one of KINDS.
        log: dense: the signed logarithm, log1p(x) and below 0 -log1p(-x). None: as the log is read.
        clip: dense: the least and the greatest number; others become them.
        normalise: dense: True measures mean and standard deviation; a Scale is what was measured.
        missing: dense: the number that stands for one that is missing. Categorical, sequence:
            "drop", no key; "key", a key of its own. None: as the log is read.
        buckets: dense: the numbers at which a bucket begins, in ascending order, or how many
            buckets of equally many examples to measure. The number of the bucket is a category.
        keep: dense with buckets: True keeps the dense column, too. Sequence: "first" or "last",
            which keys of a longer one stay.
        hash_buckets: categorical, sequence: keys are folded into so many.
        max_length: sequence: the most keys of an example.
        table: categorical, sequence, dense with buckets: where its rows lie. None: a table of its
            own, which has its name, if `dim` is given; else with all others.
        dim: likewise: width of the embeddings in that table of its own.
        pooling: sequence: what the model gets of an example's rows, "sum" or "mean". None: "sum".
        vocabulary: categorical, sequence: the name, of another column most often, with which values
            are hashed instead of the column's own: equal values of both are one key.
        separator: sequence: of a column of text in parquet or csv, what is between two values.
            Nothing between two separators is no value. None: the text is one value.
        target: sequence: the column of the candidate, by which a model that takes sequences weighs
            the keys; its vocabulary is this one's, too, unless `vocabulary` says another.

    Raises:
        ConfigError: a field that the kind does not have, or outside its limits.

    >>> Column(name="I1", kind="dense", clip=[0, 100], normalise=True).clip
    (0.0, 100.0)
    """

    name: str
    kind: str
    log: bool | None = None
    clip: Sequence[float] | None = None
    normalise: bool | Scale | None = None
    missing: float | str | None = None
    buckets: int | Sequence[float] | None = None
    keep: bool | str | None = None
    hash_buckets: int | None = None
    max_length: int | None = None
    table: str | None = None
    dim: int | None = None
    pooling: str | None = None
    vocabulary: str | None = None
    separator: str | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        fault = column_fault(self.name, self.to_dict())
        if fault is not None:
            raise ConfigError(str(fault))
        for name in ("clip", "buckets"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                object.__setattr__(self, name, tuple(map(float, value)))
        if self.kind == DENSE and self.missing is not None:
            object.__setattr__(self, "missing", float(self.missing))
        for name in ("normalise", "keep"):
            if getattr(self, name) is False:
                object.__setattr__(self, name, None)

    @property
    def is_kept(self) -> bool:
        """True of a dense column that the model sees as one."""
        return self.kind == DENSE and (self.buckets is None or bool(self.keep))

    def to_dict(self) -> Json:
        """What is said, by key, without the name; plain values."""
        said = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {key: _plain(value) for key, value in said.items() if value is not None}

    @classmethod
    def from_dict(cls, name: str, values: JsonView) -> Self:
        """A column of what `to_dict` returned."""
        given: dict[str, Any] = dict(values)
        scale = given.get("normalise")
        if isinstance(scale, dict):
            given["normalise"] = Scale(float(scale["mean"]), float(scale["std"]))
        return cls(name=name, **given)


@dataclass(frozen=True, kw_only=True)
class Cross:
    """A category made of several: each combination of their keys is a key.

    Args:
        name: of the new feature.
        columns: of categories, sequences, or dense columns in buckets; in this order.
        hash_buckets: keys are folded into so many; None: not.
        max_length: the most keys of an example, where columns hold bags; the first ones stay.
        table, dim, pooling: as a sequence has them.

    Raises:
        ConfigError: a field outside its limits.

    >>> Cross(name="place", columns=["C1", "C2"]).columns
    ('C1', 'C2')
    """

    name: str
    columns: Sequence[str]
    hash_buckets: int | None = None
    max_length: int | None = None
    table: str | None = None
    dim: int | None = None
    pooling: str | None = None

    def __post_init__(self) -> None:
        fault = cross_fault(self.name, self.to_dict())
        if fault is not None:
            raise ConfigError(str(fault))
        object.__setattr__(self, "columns", tuple(self.columns))

    def to_dict(self) -> Json:
        """What is said, by key, without the name; plain values."""
        said = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {key: _plain(value) for key, value in said.items() if value is not None}


def _plain(value: object) -> object:
    if isinstance(value, Scale):
        return {"mean": value.mean, "std": value.std}
    return list(value) if isinstance(value, tuple) else value
