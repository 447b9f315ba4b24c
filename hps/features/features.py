"""Features: the description of a log's columns and of what is made of them, as a file has it.

Above it: `hps train --features`, transform.py, which applies it; a model's recipe, which keeps it.
Below it: column.py, table.py, rules.py, toml_text.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hps.common.json_text import Json, JsonView
from hps.errors import ConfigError, StoreError
from hps.features.column import (
    CATEGORICAL,
    DENSE,
    GROUP,
    LABEL,
    MEAN,
    SEQUENCE,
    WEIGHT,
    Column,
    Cross,
)
from hps.features.rules import VERSION, Fault, column_fault, cross_fault, table_fault
from hps.features.shared_rules import target_fault, vocabulary_fault
from hps.features.table import Table
from hps.features.toml_text import line_of, write_toml
from hps.reader.index_fields import IndexFields, field_fault

_ONCE = (LABEL, WEIGHT, GROUP)
_KEYS = ("version", "columns", "crosses", "tables", "fields")
MAX_BYTES = 2**24


@dataclass(frozen=True, kw_only=True)
class Features:
    """What the columns of a log are, in words that a person writes once.

    A column that is not named stays what the reader takes it for.

    Args:
        columns: described ones.
        crosses: features made of several columns, in the order in which the model has them.
        tables: described ones; columns and crosses may name others, too.
        fields: libsvm: name of a column -> its indices, as `hps.reader.ReaderConfig` has them.
        source: of the description, for messages: the name of its file.
        text: of that file, for the lines in messages; empty where there is none.

    Raises:
        ConfigError: a name twice, two labels, a cross of what is no category, a table of one
            column's own that others name.

    Source: docs/features.md.

    >>> described = Features.from_toml('''
    ... [columns.I1]
    ... kind = "dense"
    ... clip = [0, 100]
    ... [crosses.place]
    ... columns = ["C1", "C2"]
    ... ''')
    >>> described.columns[0].clip, described.crosses[0].columns
    ((0.0, 100.0), ('C1', 'C2'))
    >>> Features.from_toml(described.to_toml()) == described
    True
    """

    columns: Sequence[Column] = ()
    crosses: Sequence[Cross] = ()
    fields: Mapping[str, object] = field(default_factory=dict)
    source: str = field(default="features", compare=False, repr=False)
    tables: Sequence[Table] = ()
    text: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "crosses", tuple(self.crosses))
        object.__setattr__(self, "tables", tuple(self.tables))
        fault = _twice(self) or _fault(self.to_dict())
        if fault is not None:
            raise ConfigError(f"{self.source}: {fault}")
        object.__setattr__(self, "fields", IndexFields.of(self.fields).to_dict())

    def at(self, *place: str) -> str:
        """The file and the line of a key, from the outermost one on, for messages.

        >>> described = Features.from_toml("[columns.C1]\\nkind = 'label'", "my.toml")
        >>> described.at("columns", "C1", "kind")
        'my.toml, line 2'
        """
        line = line_of(self.text, place)
        return self.source if line is None else f"{self.source}, line {line}"

    def column(self, name: str) -> Column | None:
        """What is said of a column; None if nothing is."""
        return next((column for column in self.columns if column.name == name), None)

    def cross(self, name: str) -> Cross | None:
        """What is said of a cross; None if there is none of the name."""
        return next((cross for cross in self.crosses if cross.name == name), None)

    def table_of(self, feature: str, default: str) -> str:
        """The table in which a feature's rows lie.

        Args:
            feature: a column with keys, or a cross.
            default: the table of those of which nothing is said.

        >>> described = Features.from_toml('columns.C1 = {kind = "categorical", table = "items"}')
        >>> described.table_of("C1", "features"), described.table_of("C2", "features")
        ('items', 'features')
        """
        said = self.cross(feature) or self.column(feature)
        if said is None:
            return default
        return said.table or (feature if said.dim is not None else default)

    def dim_of(self, table: str) -> int | None:
        """The width of a table's embeddings; None if it is that of the run."""
        described = next((one for one in self.tables if one.name == table), None)
        if described is not None:
            return described.dim
        owners: list[Column | Cross] = [*self.columns, *self.crosses]
        return next((one.dim for one in owners if one.name == table), None)

    def is_mean(self, feature: str) -> bool:
        """True if a model gets the mean of a feature's rows, not their sum."""
        said = self.cross(feature) or self.column(feature)
        return said is not None and said.pooling == MEAN

    def of_kind(self, *kinds: str) -> list[str]:
        """Names of the columns of some kinds, in their order."""
        return [column.name for column in self.columns if column.kind in kinds]

    def vocabulary(self, name: str) -> str:
        """The name with which values of a column are hashed: its own, unless something is said.

        >>> text = '[columns.seen]\\nkind = "sequence"\\ntarget = "item"'
        >>> Features.from_toml(text).vocabulary("seen")
        'item'
        """
        column = self.column(name)
        if column is None or (column.vocabulary is None and column.target is None):
            return name
        return column.vocabulary or self.vocabulary(column.target or name)

    @property
    def vocabularies(self) -> dict[str, str]:
        """Name of each column whose values are hashed as those of another name -> that name."""
        names = {column.name: self.vocabulary(column.name) for column in self.columns}
        return {name: other for name, other in names.items() if other != name}

    @property
    def separators(self) -> dict[str, str]:
        """Name of each column whose text holds several values -> what is between them."""
        return {
            column.name: column.separator for column in self.columns if column.separator is not None
        }

    @property
    def targets(self) -> dict[str, str]:
        """Name of each sequence that has a target -> that column."""
        return {column.name: column.target for column in self.columns if column.target is not None}

    def is_same(self, other: "Features") -> bool:
        """True if both make the same of every log: the order of columns and tables says nothing."""
        own, others = self.to_dict(), other.to_dict()
        ordered = ("crosses", "fields")
        return own == others and all(
            list(own.get(key, ())) == list(others.get(key, ())) for key in ordered
        )

    def to_dict(self) -> Json:
        """Plain values, for a checkpoint or JSON; `from_dict` takes them."""
        values: Json = {
            "version": VERSION,
            "columns": {column.name: column.to_dict() for column in self.columns},
            "crosses": {cross.name: cross.to_dict() for cross in self.crosses},
            **({"fields": self.fields} if self.fields else {}),
        }
        if self.tables:  # as it was before there were any
            values["tables"] = {table.name: table.to_dict() for table in self.tables}
        return values

    @classmethod
    def from_dict(cls, values: JsonView, source: str = "features", text: str = "") -> Self:
        """Of plain values, as `to_dict` has them.

        Raises:
            ConfigError: names the source, the line where there is a text, the key, and what is
                allowed there.
        """
        fault = _fault(values)
        if fault is not None:
            line = line_of(text, fault.place)
            where = source if line is None else f"{source}, line {line}"
            raise ConfigError(f"{where}: {fault}")
        columns = values.get("columns", {}).items()
        crosses = values.get("crosses", {}).items()
        return cls(
            columns=[Column.from_dict(name, said) for name, said in columns],
            crosses=[Cross(name=name, **said) for name, said in crosses],
            tables=[Table(name=name, **said) for name, said in values.get("tables", {}).items()],
            fields=values.get("fields", {}),
            source=source,
            text=text,
        )

    def to_toml(self) -> str:
        """The text of a file that `from_toml` reads as an equal description.

        Raises:
            ConfigError: a name that is not UTF-8.
        """
        return write_toml(self.to_dict())

    @classmethod
    def from_toml(cls, text: str, source: str = "features") -> Self:
        """Of the text of a file.

        Raises:
            ConfigError: names the source, the line, the key, and what is allowed there.
        """
        import tomllib  # which takes its time to import

        try:
            values = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{source}: it is not TOML: {error}") from error
        return cls.from_dict(values, source, text)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Of a file.

        Raises:
            ConfigError: as from_toml; or a file that is not UTF-8, or too long.
            StoreError: it cannot be read.
        """
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise StoreError(error.errno or 0, f"cannot read {path}: {error.strerror}") from error
        if len(content) > MAX_BYTES:
            raise ConfigError(f"{path}: {len(content):,} bytes; {MAX_BYTES:,} at most are read")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: it is not UTF-8: {error}") from None
        return cls.from_toml(text.replace("\r\n", "\n"), str(path))


def _twice(features: Features) -> Fault | None:
    """Names that `to_dict` would have once."""
    groups: dict[str, Sequence[Column | Cross | Table]] = {
        "columns": features.columns,
        "crosses": features.crosses,
        "tables": features.tables,
    }
    for key, items in groups.items():
        names = [item.name for item in items]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            return Fault((key,), f"{twice} are described twice; name each once")
    return None


def _fault(values: object) -> Fault | None:
    """What is wrong with a description; None if nothing is."""
    if not isinstance(values, Mapping):
        return Fault((), f"{values!r} is no description of features")
    for key in values:
        if key not in _KEYS:
            return Fault((str(key),), f"no such key; there are {', '.join(_KEYS)}")
    if values.get("version", VERSION) != VERSION or values.get("version") is True:
        return Fault(("version",), f"{values['version']!r} must be {VERSION}")
    columns, crosses, tables = (values.get(key, {}) for key in ("columns", "crosses", "tables"))
    for key, given in (("columns", columns), ("crosses", crosses), ("tables", tables)):
        if not isinstance(given, Mapping):
            return Fault((key,), f"{given!r} is no table; write [{key}.NAME] for each")
    if wrong := field_fault(values.get("fields", {})):
        return Fault(("fields", *([] if wrong.name is None else [wrong.name])), wrong.text)
    for name, said in columns.items():
        if fault := column_fault(name, said):
            return fault
    for name, said in columns.items():
        if fault := target_fault(name, said, columns, crosses):
            return fault
        if fault := vocabulary_fault(name, said, columns, crosses):
            return fault
    for name, said in crosses.items():
        if fault := cross_fault(name, said) or _fault_of_parts(name, said, columns):
            return fault
    for name, said in tables.items():
        if fault := table_fault(name, said):
            return fault
    if fault := _fault_of_own_tables(values):
        return fault
    for kind in _ONCE:
        names = [name for name, said in columns.items() if said["kind"] == kind]
        if len(names) > 1:
            return Fault(("columns", names[1], "kind"), f"{names} are all {kind}; one may be")
    return None


def _fault_of_own_tables(values: JsonView) -> Fault | None:
    """A dim of a column, whose table is its own, beside what else has that table's name."""
    groups = [(group, values.get(group, {})) for group in ("columns", "crosses")]
    named = {
        said.get("table"): f"{group}.{name}" for group, of in groups for name, said in of.items()
    }
    named |= {name: f"[tables.{name}]" for name in values.get("tables", {})}
    for group, described in groups:
        for name, said in described.items():
            if "dim" in said and name in named:
                return Fault(
                    (group, name, "dim"),
                    f"it gives {name!r} a table of its own, of its name, and {named[name]} speaks "
                    f'of that table, too; give it the table instead, table = "{name}", and '
                    f"[tables.{name}] dim = {said['dim']}",
                )
    return None


def _fault_of_parts(name: str, said: JsonView, columns: JsonView) -> Fault | None:
    """What is wrong with a cross beside the columns."""
    if name in columns:
        return Fault(("crosses", name), "a column has this name; give the cross another one")
    for part in said["columns"]:
        kind = columns.get(part, {}).get("kind", CATEGORICAL)
        if kind == DENSE and "buckets" not in columns[part]:
            text = f"column {part!r} is dense; give it buckets, whose numbers can be crossed"
            return Fault(("crosses", name, "columns"), text)
        if kind not in (CATEGORICAL, SEQUENCE, DENSE):
            text = f"column {part!r} is of kind {kind!r}; categories and buckets can be crossed"
            return Fault(("crosses", name, "columns"), text)
    return None
