"""`hps export`, `hps import`: rows of a table, or a whole model, to and from files.

Above it: hps.cli.main. Below it: hps.parameter_server.parquet, hps.train.portable,
hps.open.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hps.checkpoint.names import text_of
from hps.cli import flags
from hps.config import ROW_DTYPES, Config, DramCacheConfig, TableConfig
from hps.errors import ConfigError, no_such_table
from hps.parameter_server.open_server import open as open_store
from hps.parameter_server.server import ParameterServer
from hps.ssd_store.new_store import check_new_store, holds_store

if TYPE_CHECKING:
    from hps.parameter_server.parquet import RowFile

_FILE = (
    "An export has a row group for each 65536 rows. A file has the columns key (uint64), weights "
    "(float32, fixed_size_list<float> of dim) and, where the optimizer has state, state (float32, "
    "fixed_size_list<float>: the row's scalars, then its vectors); of a table with statistics also "
    "show, click (float32) and last_period (int64). Table and seed stand in the file's metadata, "
    "as JSON under 'hps'."
)
_TYPES = (
    "Taken are key as uint64 or int64 (by its 64 bits), weights and state as fixed_size_list<float>"
    ", list<float> or large_list<float>, each of the right length; float64 is refused: cast it to "
    "float32."
)
_NEW_HERE = (
    "the folder took the place of the empty one, in which the shell still is; 'cd .' leaves that"
)


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds the commands of this module."""
    leave = subparsers.add_parser(
        "export",
        help="write a table's rows to parquet, or a whole model to a folder",
        description="Writes every stored row of a table to a parquet file, in no order of keys. A "
        "file that is there is replaced when the new one is whole. The store is opened read-only, "
        f"also beside a training. {_FILE} With --model OUT is a new folder, with the rows of all "
        "tables, the model, its recipe and options, its figures and checksums: 'hps import OUT "
        "STORE' makes a store of it that predicts and trains on with the same bits.",
    )
    flags.add_store(leave)
    leave.add_argument("file", type=flags.path, metavar="OUT", help="the parquet file, or folder")
    leave.add_argument(
        "--table",
        type=flags.word,
        metavar="NAME",
        help="name of the table; may be left out if the store has one table",
    )
    flags.add_checkpoint(leave)
    leave.add_argument(
        "--model", action="store_true", help="a whole model: the newest, or that of --checkpoint"
    )
    leave.add_argument("--no-state", action="store_true", help="leave out the optimizer state")
    flags.add_quiet(leave)
    leave.set_defaults(run=run_export)

    enter = subparsers.add_parser(
        "import",
        help="read a table's rows from parquet, or a whole model from a folder",
        description="Assigns the rows of a parquet file to a table. A key that is stored already "
        "takes the row of the file, all other stored rows stay as they are, and of a key that is "
        f"twice in the file the last row counts. {_FILE} {_TYPES} "
        "Columns beyond these are passed over. A file without state, "
        "or --no-state, starts each row's optimizer state anew, which is said. A store that "
        "is not there is made, with the table and seed of a file that hps export has written. The "
        "import ends with a checkpoint 'last'; an error before that leaves the rows as they were. "
        "Of a folder of 'hps export --model' a new store is made, under the model's tag; every "
        "checksum is looked at first.",
    )
    enter.add_argument("file", type=flags.path, metavar="FILE", help="the parquet file, or folder")
    flags.add_store(enter, "folder of the store; made if it is not there")
    enter.add_argument(
        "--table",
        type=flags.word,
        metavar="NAME",
        help="name of the table; if not given, the one that the file names",
    )
    enter.add_argument(
        "--dram", type=flags.dram, default="256MiB", metavar="BYTES", help=flags.DRAM_HELP
    )
    enter.add_argument("--no-state", action="store_true", help="start with a new optimizer state")
    enter.add_argument(
        "--row-dtype",
        choices=ROW_DTYPES,
        help="of the weights of a table that is made; if not given, as the file says",
    )
    flags.add_quiet(enter)
    enter.set_defaults(run=run_import)


def run_export(options: argparse.Namespace) -> int:
    """Writes one table of a checkpoint to a parquet file."""
    from hps.parameter_server.parquet import export_table

    if options.model:
        return _export_model(options)
    with open_store(options.store, checkpoint=options.checkpoint) as server:
        table = _choose_table(options.table, list(server.tables))
        count = export_table(server, table, options.file, not options.no_state)
    print(f"{options.file}: {count:,} rows of table {table!r}")
    return 0


def run_import(options: argparse.Namespace) -> int:
    """Assigns the rows of a parquet file, into a store that is made if it is not there."""
    from hps.parameter_server.parquet import RowFile, describe, import_rows

    if options.file.is_dir():
        return _import_model(options)
    described = describe(options.file)
    table = options.table or (described.table.name if described.table else None)
    if holds_store(options.store):
        with open_store(options.store, read_only=False, dram=options.dram) as server:
            table = _choose_table(table, list(server.tables))
            _check_dtype(options, server.tables[table])
            rows = RowFile(options.file, server.tables[table], not options.no_state)
            rules = server.parts.tables.rules.get(table)
            rows.check_rows(server.learning_rates[table], server.period, rules)
            count = import_rows(server, table, rows)
    else:
        check_new_store(options.store)
        config = _config_to_make(options, described.table, described.seed)
        made = config.tables[0]
        table = made.name
        rows = RowFile(options.file, made, not options.no_state)
        rows.check_rows(made.optimizer.lr, described.period, made.expiry)  # before there is a store
        with ParameterServer(config) as server:
            if described.period:
                server.advance_period(described.period)
            count = import_rows(server, table, rows)
    print(f"{options.store}: {count:,} rows into table {table!r}")
    _tell_of_state(rows, count)
    return 0


def _export_model(options: argparse.Namespace) -> int:
    from hps.train.portable import export_model  # torch takes its time to import

    if options.table is not None:
        raise ConfigError("--table: a model leaves with all of its tables; leave out one of both")
    is_here = _is_here(options.file)
    made = export_model(
        options.store, options.file, options.checkpoint, with_state=not options.no_state
    )
    rows = sum(one["rows"] for one in made["tables"])
    name = text_of(made["checkpoint"]["tag"] or made["checkpoint"]["id"])
    print(f"{options.file}: model {name!r}, {rows:,} rows in {len(made['tables'])} table(s)")
    if is_here:
        print(_NEW_HERE)
    return 0


def _import_model(options: argparse.Namespace) -> int:
    from hps.train.portable import import_model  # torch takes its time to import

    if options.table is not None:
        raise ConfigError("--table: a model comes with all of its tables; leave out --table")
    if options.row_dtype is not None:
        raise ConfigError(
            "--row-dtype: a model trains on with the rows that it has; leave it out, or 'hps "
            "export' and 'hps import' the rows of its tables"
        )
    is_here = _is_here(options.store)
    made = import_model(
        options.file, options.store, with_state=not options.no_state, dram=options.dram
    )
    tag = "without a tag" if made["tag"] is None else f"as {made['tag']!r}"
    print(f"{options.store}: a model {tag}, {made['rows']:,} rows")
    if is_here:
        print(_NEW_HERE)
    if not made["state"]:
        why = "--no-state" if options.no_state else f"{options.file} holds none"
        print(f"optimizer state of {made['rows']:,} rows starts anew: {why}")
    return 0


def _is_here(folder: Path) -> bool:
    """True of the working directory."""
    return folder.exists() and folder.samefile(os.curdir)


def _tell_of_state(rows: "RowFile", count: int) -> None:
    if rows.counts_anew:
        print(f"statistics of new rows start at 0: {rows.path} has no columns of them")
    if not rows.starts_anew:
        return
    why = "--no-state" if rows.has_state else f"{rows.path} has no column 'state'"
    print(f"optimizer state of {count:,} rows starts anew: {why}")


def _config_to_make(
    options: argparse.Namespace, described: TableConfig | None, seed: int
) -> Config:
    if described is None:
        raise ConfigError(
            f"{options.store} holds no store and {options.file} does not describe a table; make "
            f"the store first, or import a file that hps export has written"
        )
    if options.table not in (None, described.name):
        raise ConfigError(
            f"--table {options.table}: {options.store} holds no store yet, and {options.file} "
            f"describes table {described.name!r}"
        )
    return Config(
        path=options.store,
        tables=[replace(described, dtype=options.row_dtype or described.dtype)],
        dram=DramCacheConfig(bytes=options.dram),
        seed=seed,
    )


def _check_dtype(options: argparse.Namespace, table: TableConfig) -> None:
    if options.row_dtype not in (None, table.dtype):
        raise ConfigError(
            f"--row-dtype {options.row_dtype}: table {table.name!r} of {options.store} has "
            f"{table.dtype} rows; give another folder, in which a store is made"
        )


def _choose_table(asked: str | None, tables: list[str]) -> str:
    if asked is None and len(tables) == 1:
        return tables[0]
    if asked not in tables:
        given = "the store has several tables" if asked is None else str(no_such_table(asked))
        raise ConfigError(f"--table: {given}; name one of {sorted(tables)}")
    return asked
