"""Rows of a table to and from a parquet file, piece by piece.

Above it: `hps export` and `hps import`. Below it: ParameterServer.items and assign,
table/row_checks.py; pyarrow. An export has the columns key (uint64), weights (float32 [dim]) and,
where the optimizer has state, state (float32 [state floats], header scalars before vectors); of a
table with statistics also show and click (float32) and last_period (int64). The table's description
and the seed travel in the file's metadata under "hps", with statistics also the store's period, so
that an import can make the store. An import also takes int64 keys and lists of any kind; it checks
the whole file before a row moves.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from hps.checkpoint.blobs import table_from_json, table_to_json
from hps.common.arrays import HostArray
from hps.common.expiry import Expiry
from hps.common.json_text import parse_json
from hps.common.row_layout import Floats, Keys, Statistics
from hps.config import TableConfig
from hps.errors import ConfigError, NonFiniteError, no_such_table
from hps.parameter_server.server import ParameterServer
from hps.table.row_checks import refuse_impossible_rows, refuse_impossible_statistics

if TYPE_CHECKING:
    import pyarrow
    from pyarrow import parquet

_METADATA = b"hps"
_VERSION = 1
_STATISTICS_VERSION = 2  # of files with statistics
_NARROW_VERSION = 3  # of files of tables with bfloat16 weights, which lie in them as float32
_STATISTICS = ("show", "click", "last_period")
_MAX_METADATA_BYTES = 2**24  # thousands of names of features
_BATCH_ROWS = 65536


def _pyarrow() -> ModuleType:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "parquet needs pyarrow; install it with: pip install 'hps-ctr[train]'"
        ) from error
    module: ModuleType = pyarrow
    return module


def export_table(server: ParameterServer, table: str, path: Path, with_state: bool = True) -> int:
    """Writes every stored row of a table; returns how many.

    Raises:
        ConfigError: unknown table, a path that no file can have, or pyarrow is missing.
        StoreError, CorruptionError: a row could not be read.
    """
    arrow = _pyarrow()
    config = server.tables.get(table)
    if config is None:
        raise no_such_table(table, "the store has", server.tables)
    target = _target_of(path)
    layout = config.layout
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
    if config.statistics:
        described |= {"version": _STATISTICS_VERSION, "period": server.period}
        fields += [arrow.field(name, arrow.float32(), nullable=False) for name in _STATISTICS[:2]]
        fields.append(arrow.field(_STATISTICS[2], arrow.int64(), nullable=False))
    if config.is_narrow:
        described["version"] = _NARROW_VERSION
    schema = arrow.schema(fields, metadata={_METADATA: json.dumps(described).encode()})
    num_rows = 0
    # Under its name stands a whole file or none.
    partial = target.with_name(target.name + ".partial")
    try:
        with arrow.parquet.ParquetWriter(partial, schema) as writer:
            for keys, *parts in server.items(table, _BATCH_ROWS, with_state, config.statistics):
                columns = [arrow.array(keys)]
                for values in parts:
                    flat = arrow.array(values.reshape(-1))
                    is_wide = values.ndim > 1
                    columns.append(
                        arrow.FixedSizeListArray.from_arrays(flat, values.shape[1])
                        if is_wide
                        else flat
                    )
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
        raise ConfigError(f"{path} is {what}; name an existing file or a new one")
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {target.parent}; name one that exists")
    return target


@dataclass(frozen=True)
class Described:
    """What a file of export_table says of the store that it came from.

    Args:
        table: None of another parquet file.
        seed: of the store.
        period: of the store; 0 where the table has no statistics.
    """

    table: TableConfig | None = None
    seed: int = 0
    period: int = 0


def describe(path: Path) -> Described:
    """What a file of export_table names.

    Raises:
        ConfigError: it cannot be read.
    """
    metadata = _open(path).schema_arrow.metadata or {}
    if _METADATA not in metadata:
        return Described()
    where = f"{path}: the metadata of the export"
    described = parse_json(
        metadata[_METADATA], where, error=ConfigError, max_bytes=_MAX_METADATA_BYTES
    )
    try:
        version = described["version"]
        if version in (_VERSION, _STATISTICS_VERSION, _NARROW_VERSION):
            period = int(described.get("period", 0))
            return Described(table_from_json(described["table"]), int(described["seed"]), period)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ConfigError(f"{where} is damaged: {error!r}") from error
    raise ConfigError(
        f"{path} was written by export version {version!r}; this one reads {_VERSION} to "
        f"{_NARROW_VERSION}"
    )


@dataclass(frozen=True)
class _Where:
    """A column of a piece, for messages."""

    path: Path
    name: str
    keys: Keys
    first_row: int


class RowFile:
    """A parquet file whose columns fit a table; its rows may be checked, then assigned."""

    def __init__(self, path: Path, config: TableConfig, with_state: bool = True) -> None:
        """Looks at the columns alone.

        Raises:
            ConfigError: they do not fit the table, or their state is of another optimizer.
        """
        self.path = path
        self._config = config
        self._file = _open(path)
        layout = config.layout
        self.has_state = "state" in self._file.schema_arrow.names
        self._takes_state = self.has_state and with_state
        # Optimizers without state have none to lose.
        self.starts_anew = layout.state_floats > 0 and not self._takes_state
        if self._takes_state:
            self._check_source()
        self._widths = {"weights": config.dim}
        if self._takes_state:
            self._widths["state"] = layout.state_floats
        _check_columns(path, self._file.schema_arrow, self._widths)
        self.counts_anew = config.statistics and not self._has_statistics()
        self._takes_statistics = config.statistics and not self.counts_anew

    def _has_statistics(self) -> bool:
        """All of their columns; none, and a table with statistics begins to count.

        Raises:
            ConfigError: some of them, or one of another type.
        """
        schema = self._file.schema_arrow
        found = {name: str(schema.field(name).type) for name in _STATISTICS if name in schema.names}
        wanted = dict(zip(_STATISTICS, ("float", "float", "int64"), strict=True))
        if found and found != wanted:
            raise ConfigError(
                f"{self.path}: of statistics it has {found}; {wanted} are needed, or none of them"
            )
        return bool(found)

    def check_rows(self, lr: float, period: int, rules: Expiry | None) -> None:
        """Reads the file once and raises for the first row that its table refuses.

        Args:
            lr: learning rate with which a new state starts.
            period: of the store.
            rules: by which the table's rows die there.

        Raises:
            ConfigError: a null, a list of another length, a page that cannot be read, a state that
                the optimizer cannot have made. NonFiniteError: NaN or infinity.
        """
        for keys, rows, state, counted in self.pieces():
            try:
                refuse_impossible_rows(self._config, keys, rows, state, lr)
                if counted is not None:
                    refuse_impossible_statistics(self._config, keys, counted, period, rules)
            except (ConfigError, NonFiniteError) as error:
                raise type(error)(f"{self.path}: {error}") from error

    def pieces(self) -> Iterator[tuple[Keys, Floats, Floats | None, Statistics | None]]:
        """Keys, weights, state (or None) and statistics (or None) of 65536 rows at a time, in the
        file's order."""
        first_row = 0
        counts = _STATISTICS if self._takes_statistics else ()
        for piece in _pieces(self.path, self._file, ["key", *self._widths, *counts]):
            keys = _keys(self.path, piece)
            columns = [_numbers(self.path, piece, name) for name in counts]
            counted = Statistics(*columns) if counts else None
            floats = [
                _floats(_Where(self.path, name, keys, first_row), piece.column(name), width)
                for name, width in self._widths.items()
            ]
            yield keys, floats[0], floats[1] if self._takes_state else None, counted
            first_row += len(keys)

    def _check_source(self) -> None:
        config = self._config
        source = describe(self.path).table
        if source is None or source.optimizer.kind != config.optimizer.kind:
            kind = "unknown" if source is None else source.optimizer.kind
            raise ConfigError(
                f"{self.path}: its state is that of optimizer {kind!r}, table {config.name!r} has "
                f"{config.optimizer.kind!r}; import with --no-state to start the state anew"
            )


def import_rows(server: ParameterServer, table: str, rows: RowFile) -> int:
    """Assigns every row of a file, whose rows have been checked, to a table; returns how many.

    Without state, in the file or by choice, each row's optimizer state starts anew.

    Raises:
        ConfigError, NonFiniteError: the file has changed since it was checked. StoreError: no space
            to write rows. Leave without a checkpoint, and nothing has changed.
    """
    num_rows = 0
    for keys, weights, state, counted in rows.pieces():
        server.assign(table, keys, weights, state, counted and counted._asdict())
        num_rows += len(keys)
    return num_rows


def _open(path: Path) -> "parquet.ParquetFile":
    arrow = _pyarrow()
    try:
        return arrow.parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise ConfigError(f"{path} cannot be read as parquet: {error}") from error


def _pieces(
    path: Path, file: "parquet.ParquetFile", columns: list[str]
) -> Iterator["pyarrow.RecordBatch"]:
    arrow = _pyarrow()
    try:
        yield from file.iter_batches(_BATCH_ROWS, columns=columns)
    except (OSError, arrow.ArrowException) as error:
        raise ConfigError(f"{path}: its rows cannot be read: {error}") from error


def _check_columns(path: Path, schema: "pyarrow.Schema", widths: dict[str, int]) -> None:
    arrow = _pyarrow()
    found = {name: schema.field(name).type for name in ("key", *widths) if name in schema.names}
    key = found.get("key")
    if key not in (arrow.uint64(), arrow.int64()):
        cast = "; cast it to pyarrow.int64()" if key and arrow.types.is_integer(key) else ""
        raise ConfigError(
            f"{path}: column 'key' is {key or 'missing'}; uint64 or int64 (taken by its 64 bits) "
            f"is needed{cast}"
        )
    for name, width in widths.items():
        kind: pyarrow.DataType = found.get(name)
        is_fixed = kind is not None and arrow.types.is_fixed_size_list(kind)
        can_fit = kind is not None and (kind.list_size == width if is_fixed else _is_list(kind))
        if can_fit and kind.value_type == arrow.float32():
            continue
        can_cast = can_fit and arrow.types.is_floating(kind.value_type)
        cast = f"; cast it to pyarrow.list_(pyarrow.float32(), {width})" if can_cast else ""
        raise ConfigError(
            f"{path}: column {name!r} is {kind or 'missing'}; fixed_size_list<float>[{width}] or "
            f"list<float> of {width} (float32) is needed{cast}"
        )


def _is_list(kind: "pyarrow.DataType") -> bool:
    types = _pyarrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _keys(path: Path, piece: "pyarrow.RecordBatch") -> Keys:
    column = piece.column("key")
    if column.null_count:
        raise ConfigError(f"{path}: column 'key' holds nulls")
    keys: Keys = column.to_numpy().view(np.uint64)
    return keys


def _numbers(path: Path, piece: "pyarrow.RecordBatch", name: str) -> HostArray:
    column = piece.column(name)
    if column.null_count:
        raise ConfigError(f"{path}: column {name!r} holds nulls")
    values: HostArray = column.to_numpy()
    return values


def _floats(where: _Where, column: "pyarrow.Array", width: int) -> Floats:
    if column.null_count:
        raise ConfigError(f"{where.path}: column {where.name!r} holds nulls")
    if _is_list(column.type):
        lengths = column.value_lengths().to_numpy()
        others = np.flatnonzero(lengths != width)
        if len(others):
            row = int(others[0])
            raise ConfigError(
                f"{where.path}: row {where.first_row + row} (the first is 0), key "
                f"{int(where.keys[row])}: {where.name!r} has {lengths[row]} numbers, {width} are "
                f"needed. Nothing was changed: correct this row or leave it out"
            )
    values = column.flatten()
    if values.null_count or len(values) != len(column) * width:
        raise ConfigError(f"{where.path}: column {where.name!r} holds nulls")
    return np.ascontiguousarray(values.to_numpy().reshape(len(column), width))
