"""Columns of a log that are written beside its scores.

Above it: predict.py. Below it: the readers of parquet and csv, which read them once more.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hps.errors import ConfigError, DataError
from hps.reader.config import WITH_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from hps.reader.reader import Reader

COLUMN = "probability"


def check_kept(reader: "Reader", names: Sequence[str], kind: str) -> None:
    """Refuses columns that cannot stand beside scores, before anything is scored.

    Args:
        reader: of the log that is scored.
        names: of the columns.
        kind: of the file that they go to, as `kind_of` has it.

    Raises:
        ConfigError: the log or the file has no columns with names, the log none of that name, or
            one whose values csv cannot hold.
    """
    what = f"--keep {' '.join(names)}"
    if kind == ".npy":
        raise ConfigError(f"{what}: .npy holds the scores alone; give --out a .parquet or .csv")
    if reader.format not in WITH_COLUMNS:
        raise ConfigError(
            f"{what}: a log of {reader.format} has no columns with names; parquet and csv have"
        )
    from hps.reader.record_reader import RecordReader  # pyarrow takes its time to import

    assert isinstance(reader, RecordReader)
    missing = [name for name in names if name not in reader.types]
    if missing:
        raise ConfigError(
            f"{what}: {reader.paths[0]} has no columns {missing}; it has {list(reader.types)}"
        )
    if COLUMN in names:
        raise ConfigError(f"{what}: the scores are written as {COLUMN!r}, too; leave it out")
    import pyarrow as pa

    nested = [name for name in names if pa.types.is_nested(reader.types[name])]
    if nested and kind == ".csv":
        raise ConfigError(f"{what}: columns {nested} hold lists; give --out a .parquet")


def kept_columns(
    reader: "Reader", names: Sequence[str], num_examples: int
) -> "dict[str, pa.ChunkedArray]":
    """The columns of a log whose examples have been read, by name, in the order of the examples.

    Args:
        reader: `check_kept` has agreed to them.
        num_examples: that it gave.

    Raises:
        DataError: the log gives other examples now, its files differ in a column's type, or text is
            not UTF-8.
    """
    import pyarrow as pa

    from hps.reader.record_reader import RecordReader

    assert isinstance(reader, RecordReader)
    columns: dict[str, pa.ChunkedArray] = {}
    batches = list(reader.raw_rows(names))
    for name in names:
        try:
            columns[name] = _joined([batch.column(name) for batch in batches])
        except pa.ArrowException as error:
            raise DataError(f"--keep {name}: {error}; leave it out") from error
        if len(columns[name]) != num_examples:
            raise DataError(
                f"--keep {name}: {num_examples:,} examples were scored, and the column has "
                f"{len(columns[name]):,} values: rows with nothing in the columns of the model, or "
                "files that have changed meanwhile"
            )
    return columns


def _joined(parts: "Sequence[pa.Array]") -> "pa.ChunkedArray":
    """One column of all parts, without dictionaries, bytes as text."""
    import pyarrow as pa

    from hps.reader.columns import is_view

    plain = []
    for part in parts:
        kind = part.type.value_type if pa.types.is_dictionary(part.type) else part.type
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or is_view(kind)
        plain.append(part.cast(kind).cast(pa.large_string() if is_bytes else kind))
    return pa.chunked_array(plain)
