"""What a log or its description seems to be, and is not read as: said once, before training.

Above it: opening.py. Below it: the log's first lines, the features file. Such faults cost accuracy
in silence.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from hps.features.column import CATEGORICAL, DENSE, GROUP, IGNORED, SEQUENCE
from hps.features.features import Features
from hps.features.transform import FeatureTransform
from hps.models import class_of
from hps.reader.column_use import ENDS_IN_ZERO
from hps.reader.discover import sample_lines
from hps.reader.schema import decode_name, sort_names

if TYPE_CHECKING:
    from hps.reader.reader import Reader

_MOST_NAMED = 20
_WITH_VOCABULARY = (CATEGORICAL, SEQUENCE, GROUP)


def advice_on(reader: "Reader", kind: str) -> list[str]:
    """Lines for people; none where nothing is to be said.

    Args:
        reader: of the log that a new model is trained on.
        kind: of the model.
    """
    advice = _on_vocabularies(reader)
    if reader.format == "libsvm":
        return [*advice, *_on_one_bag(reader, kind)]
    if reader.format in ("csv", "criteo"):
        return [*advice, *_on_sequences(reader), *_on_texts(reader), *_on_points(reader)]
    if reader.format == "parquet":
        return [*advice, *_on_texts(reader)]
    return [*advice, *_on_numbers(reader)] if reader.format == "libffm" else advice


def _on_vocabularies(reader: "Reader") -> list[str]:
    """Of names that one column alone has: a slip of the pen, most likely, where another name is
    near. A sequence with a target may want rows of its own, under whatever name."""
    transform = reader.transform
    if not isinstance(transform, FeatureTransform):
        return []
    described = transform.measured
    names = dict.fromkeys(transform.raw.features)
    columns = [column for column in described.columns if column.kind in _WITH_VOCABULARY]
    vocabularies = {one.name: described.vocabulary(one.name) for one in columns}
    used = Counter(vocabularies.get(name, name) for name in {**names, **vocabularies})
    known = {use.name for use in reader.raw_columns}  # also those of which no feature is made
    lines = []
    for column in columns:
        said = column.vocabulary
        if said is None or said in known or used[said] > 1:
            continue
        others = [one for one in {*names, *used} if one not in (said, column.name)]
        near = get_close_matches(said, sorted(others), n=1)
        if column.target is not None and not near:
            continue
        meant = f"; did you mean {near[0]!r}?" if near else ""
        lines.append(
            f"warning: columns.{column.name}.vocabulary: {said!r} is that of this column alone, "
            f"and no column of the log has that name{meant}"
        )
    return lines


def _on_sequences(reader: "Reader") -> list[str]:
    """Of columns whose text is one key."""
    transform = reader.transform
    if not isinstance(transform, FeatureTransform):
        return []
    several = "write the log as parquet, with a column of lists"
    if reader.format == "csv":
        several = "say what divides the text (separator), or " + several
    return [
        f"warning: column {name!r} is described as a sequence, and holds one key an example, its "
        f"whole text, as all columns of {reader.format} do; for several keys {several}"
        for name in transform.measured.of_kind(SEQUENCE)
        if name not in transform.measured.separators
    ]


def _on_points(reader: "Reader") -> list[str]:
    """Of whole numbers that are written as 785.0, as pandas does beside missing ones."""
    transform = reader.transform
    described: list[str] = []
    if isinstance(transform, FeatureTransform):
        described = transform.measured.of_kind(DENSE, IGNORED)
    keys = [
        f"warning: feature {name!r} has whole numbers that end in .0, and 785.0 is another key "
        "than 785: a log that is scored must have them as this one does; whole numbers without the "
        "point are safer (of pandas: astype('Int64'))"
        for name, why in reader.digit_texts.items()
        if why == ENDS_IN_ZERO
    ]
    numbers = [
        f"warning: column {name!r} is read as a number, and all its first values are whole, some "
        "written as 785.0 is; if it is an id, write it without the point (of pandas: "
        "astype('Int64')); if it is a number, name it (--dense-columns, or kind = \"dense\" in a "
        "features file)"
        for name in reader.pointed_wholes
        if name not in described
    ]
    return [*keys, *numbers]


def _on_texts(reader: "Reader") -> list[str]:
    """Of columns whose text is one key and looks like several, or like a date."""
    from hps.reader.record_reader import RecordReader  # pyarrow takes its time to import

    if not isinstance(reader, RecordReader):
        return []
    from hps.reader.first_texts import FirstTexts

    texts, transform = FirstTexts(reader), reader.transform
    sequences: list[str] = []
    if isinstance(transform, FeatureTransform) and reader.format == "csv":
        sequences = transform.measured.of_kind(SEQUENCE)
    divided = [
        f"warning: many texts of column {name!r} hold {separator!r}, and each text is one key; if "
        f'they are several values, say so: kind = "sequence" and separator = "{separator}" in a '
        "features file (--features)"
        for name, separator in texts.divided().items()
        if name not in sequences  # of which `_on_sequences` has told
    ]
    dates = [
        f"warning: the texts of column {name!r} are dates, and each is one key: later ones are "
        'keys that the model has not seen; leave the column out (kind = "ignored" in a features '
        "file, --ignore), or write what comes again, such as the day of the week"
        for name in texts.dates()
    ]
    return [*divided, *dates]


def advice_on_dim(dim: int | None, described: object, tables: Iterable[str]) -> list[str]:
    """A line for people where a dim is given, and no table of a new model has it.

    Args:
        dim: that was given (--dim); None: none was.
        described: the features file, if there is one.
        tables: of the model.

    >>> one = Features.from_toml('columns.a = {kind = "categorical", dim = 4}', "my.toml")
    >>> advice_on_dim(8, one, ["a"])
    ['warning: --dim 8 says nothing: my.toml gives each table a dim of its own (a 4)']
    >>> advice_on_dim(8, one, ["a", "features"]), advice_on_dim(4, one, ["a"])
    ([], [])
    """
    if dim is None or not isinstance(described, Features):
        return []
    dims = {table: described.dim_of(table) for table in tables}
    if None in dims.values() or dim in dims.values():
        return []
    said = ", ".join(f"{table} {own}" for table, own in list(dims.items())[:_MOST_NAMED])
    return [
        f"warning: --dim {dim} says nothing: {described.source} gives each table a dim of "
        f"its own ({said}{', ...' if len(dims) > _MOST_NAMED else ''})"
    ]


def _on_one_bag(reader: "Reader", kind: str) -> list[str]:
    if reader.config.fields is not None or not class_of(kind).has_vectors:
        return []
    lengths = [len(_tokens(line)) for line in sample_lines(reader.paths)]
    if max(lengths, default=0) < 2:
        return []
    mean = sum(lengths) / len(lengths)
    return [
        f"warning: all indices of this libsvm log, {mean:.3g} a line, are one feature, whose rows "
        f"are summed: model {kind} then sees no pairs of them. Say which indices belong to which "
        "feature: [fields] in a features file (--features; docs/formats.md, Fields of libsvm)"
    ]


def _on_numbers(reader: "Reader") -> list[str]:
    """Of libffm: fields that always have one index, with values that differ."""
    indices: dict[bytes, set[bytes]] = {}
    values: dict[bytes, set[bytes]] = {}
    for line in sample_lines(reader.paths):
        for token in _tokens(line):
            field, _, rest = token.partition(b":")
            index, _, value = rest.rpartition(b":")
            indices.setdefault(field, set()).add(index)
            values.setdefault(field, set()).add(value)
    dense = reader.config.dense_columns or ()
    taken = {name for names in reader.schema.features().values() for name in names}
    fields = [decode_name(field) for field in indices if _is_number(indices[field], values[field])]
    found = sort_names([name for name in fields if name not in dense and name in taken])
    described = {use.name for use in reader.columns if use.kind != "feature"}
    found = [name for name in found if name not in described]
    if not found:
        return []
    return [
        f"warning: field(s) {_named(found)} of this libffm log have one index each and values that "
        "differ: numbers, which are read as the weights of a key. If they are numbers, say so: "
        f"--dense-columns {' '.join([*dense, *found][:_MOST_NAMED])}"
        f"{' ...' if len(found) + len(dense) > _MOST_NAMED else ''}, or kind = 'dense' in a "
        "features file"
    ]


def _is_number(indices: set[bytes], values: set[bytes]) -> bool:
    return len(indices) == 1 and len(values) > 1


def _tokens(line: bytes) -> list[bytes]:
    """The tokens of a line, without its label and a comment."""
    tokens = line.split(b"#")[0].split()
    return [token for token in tokens[1:] if b":" in token]


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
