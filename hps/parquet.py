"""Rows of a table to and from a parquet file, piece by piece.

Above it: `hps export` and `hps import`. Below it: ParameterServer.items and assign; pyarrow. A file
has the columns key (uint64), weights (float32 [dim]) and, where the optimizer has state, state
(float32 [state floats], header scalars before vectors). The table's description and the seed travel
in the file's metadata under "hps", so that an import can make the store.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hps.checkpoint import table_from_json, table_to_json
from hps.config import TableConfig
from hps.errors import ConfigError, NonFiniteError
from hps.json_text import parse_json
from hps.parameter_server import ParameterServer
from hps.row_layout import RowLayout

_METADATA = b"hps"
_VERSION = 1
_MAX_METADATA_BYTES = 2**24  # thousands of names of features
_BATCH_ROWS = 65536


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "parquet needs pyarrow; install it with: pip install 'hps-ctr[train]'"
        ) from error
    return pyarrow


def export_table(server: ParameterServer, table: str, path: Path, with_state: bool = True) -> int:
    """Writes every stored row of a table; returns how many.

    Raises:
        ConfigError: unknown table, a path that no file can have, or pyarrow is missing.
        StoreError, CorruptionError: a row could not be read.
    """
    arrow = _pyarrow()
    config = server.tables.get(table)
    if config is None:
        raise ConfigError(f"there is no table {table!r}; the store has {sorted(server.tables)}")
    target = _target_of(path)
    layout = RowLayout(config.optimizer.kind, config.dim)
    with_state = with_state and layout.state_floats > 0
    fields = [
        arrow.field("key", arrow.uint64(), nullable=False),
        arrow.field("weights", arrow.list_(arrow.float32(), config.dim), nullable=False),
    ]
    if with_state:
        fields.append(
            arrow.field("state", arrow.list_(arrow.float32(), layout.state_floats), nullable=False)
        )
    described = {
        "version": _VERSION,
        "table": table_to_json(config),
        "seed": server.config.seed,
    }
    schema = arrow.schema(fields, metadata={_METADATA: json.dumps(described).encode()})
    num_rows = 0
    # Under its name stands a whole file or none.
    partial = target.with_name(target.name + ".partial")
    try:
        with arrow.parquet.ParquetWriter(partial, schema) as writer:
            for keys, *floats in server.items(table, _BATCH_ROWS, with_state):
                columns = [arrow.array(keys)]
                for values in floats:
                    flat = arrow.array(values.reshape(-1))
                    columns.append(arrow.FixedSizeListArray.from_arrays(flat, values.shape[1]))
                writer.write_table(arrow.Table.from_arrays(columns, schema=schema))
                num_rows += len(keys)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return num_rows


def _target_of(path: Path) -> Path:
    """The file to replace. Not a device or a pipe, nor a link to a file, such as /dev/stdout can
    be: their owners want to keep them."""
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "a device or a pipe"
        raise ConfigError(f"{path} is {what}; name a file that is there or is to be made")
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {target.parent}; name one that exists")
    return target


def describe(path: Path) -> tuple[TableConfig | None, int]:
    """The table and seed that a file of export_table names; (None, 0) for another parquet file."""
    metadata = _open(path).schema_arrow.metadata or {}
    if _METADATA not in metadata:
        return None, 0
    where = f"{path}: the metadata of the export"
    described = parse_json(
        metadata[_METADATA], where, error=ConfigError, max_bytes=_MAX_METADATA_BYTES
    )
    try:
        version = described["version"]
        if version == _VERSION:
            return table_from_json(described["table"]), int(described["seed"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ConfigError(f"{where} is damaged: {error!r}") from error
    raise ConfigError(
        f"{path} was written by export version {version!r}; this one reads {_VERSION}"
    )


def import_table(server: ParameterServer, table: str, path: Path, with_state: bool = True) -> int:
    """Assigns every row of a file to a table; returns how many.

    Without state, in the file or by choice, each row's optimizer state starts anew.

    Raises:
        ConfigError: the columns do not fit the table; a state that its optimizer cannot have made.
        NonFiniteError: NaN or infinity in a row. Pieces of the file before it were assigned: leave
            without a checkpoint, and nothing has changed.
    """
    config = server.tables.get(table)
    if config is None:
        raise ConfigError(f"there is no table {table!r}; the store has {sorted(server.tables)}")
    layout = RowLayout(config.optimizer.kind, config.dim)
    file = _open(path)
    has_state = "state" in file.schema_arrow.names
    if has_state and with_state:
        source, _ = describe(path)
        if source is None or source.optimizer.kind != config.optimizer.kind:
            kind = "unknown" if source is None else source.optimizer.kind
            raise ConfigError(
                f"{path}: its state is that of optimizer {kind!r}, table {table!r} has "
                f"{config.optimizer.kind!r}; import with --no-state to start the state anew"
            )
    with_state = with_state and has_state
    widths = {"weights": config.dim, **({"state": layout.state_floats} if with_state else {})}
    _check_columns(path, file.schema_arrow, widths)
    num_rows = 0
    for piece in _pieces(path, file, ["key", *widths]):
        floats = list(_floats(path, piece, widths))
        keys = piece.column("key").to_numpy()
        try:
            server.assign(table, keys, floats[0], floats[1] if with_state else None)
        except (ConfigError, NonFiniteError) as error:
            raise type(error)(f"{path}: {error}") from error
        num_rows += len(keys)
    return num_rows


def _open(path: Path) -> Any:
    arrow = _pyarrow()
    try:
        return arrow.parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read as parquet: {error}") from error


def _pieces(path: Path, file: Any, columns: list[str]) -> Iterator[Any]:
    arrow = _pyarrow()
    try:
        yield from file.iter_batches(_BATCH_ROWS, columns=columns)
    except (OSError, arrow.ArrowException) as error:
        raise ConfigError(f"{path}: its rows cannot be read: {error}") from error


def _check_columns(path: Path, schema: Any, widths: dict[str, int]) -> None:
    arrow = _pyarrow()
    wanted = {"key": arrow.uint64()}
    wanted.update({name: arrow.list_(arrow.float32(), width) for name, width in widths.items()})
    for name, kind in wanted.items():
        found = schema.field(name).type if name in schema.names else None
        if found != kind:
            raise ConfigError(
                f"{path}: column {name!r} is {'missing' if found is None else found}; "
                f"{kind} is needed"
            )


def _floats(path: Path, piece: Any, widths: dict[str, int]) -> Iterator[Any]:
    if piece.column("key").null_count:
        raise ConfigError(f"{path}: column 'key' holds nulls")
    for name, width in widths.items():
        column = piece.column(name)
        values = column.flatten()
        if column.null_count or values.null_count or len(values) != len(column) * width:
            raise ConfigError(f"{path}: column {name!r} holds nulls")
        yield np.ascontiguousarray(values.to_numpy().reshape(len(column), width))
