"""`hps stats`, `verify`, `checkpoints`, `compact`, `export`, `import`: what is done with a store.

Above it: hps.cli.main. Below it: hps.open, read-only wherever nothing is changed; hps.parquet.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hps.cli.output import check_json_path, checkpoint_name, stream_for_people, write_json
from hps.cluster.catalog import Catalog
from hps.cluster.housekeeping import compact_parts, delete_cut
from hps.config import Config, DramCacheConfig
from hps.errors import ConfigError, CorruptionError
from hps.parameter_server import ParameterServer
from hps.parameter_server import open as open_store


def add_parsers(subparsers: Any) -> None:
    """Adds the commands of this module."""
    _add_looking(subparsers)
    _add_moving(subparsers)


def _add_looking(subparsers: Any) -> None:
    stats = subparsers.add_parser(
        "stats",
        help="rows, sizes and checkpoints of a store",
        description="Rows, sizes and checkpoints of a store. docs/training.md says what the "
        "figures of ssd_store are.",
    )
    stats.add_argument("store", type=Path, metavar="DIR")
    _add_checkpoint(stats, "the cut to look at: tag, or id in digits; default: newest")
    stats.add_argument("--digest", action="store_true", help="also hash every row (reads them all)")
    stats.add_argument("--json", type=Path, metavar="OUT", help="write the figures to a file")
    stats.set_defaults(run=run_stats)

    verify = subparsers.add_parser(
        "verify", help="check every checksum of a store, and of its update log"
    )
    verify.add_argument("store", type=Path, metavar="DIR")
    verify.set_defaults(run=run_verify)

    checkpoints = subparsers.add_parser("checkpoints", help="list or delete checkpoints")
    checkpoints.add_argument("store", type=Path, metavar="DIR")
    checkpoints.add_argument(
        "--delete", type=checkpoint_name, metavar="TAG", help="let go of one: tag, or id in digits"
    )
    checkpoints.add_argument("--json", type=Path, metavar="OUT", help="write the list to a file")
    checkpoints.set_defaults(run=run_checkpoints)

    compact = subparsers.add_parser("compact", help="give back the space of overwritten rows")
    compact.add_argument("store", type=Path, metavar="DIR")
    compact.add_argument("--table", help="only this one; default: all")
    compact.set_defaults(run=run_compact)


def _add_checkpoint(parser: Any, text: str) -> None:
    parser.add_argument("--checkpoint", type=checkpoint_name, metavar="TAG", help=text)


def _add_moving(subparsers: Any) -> None:
    leave = subparsers.add_parser("export", help="write a table's rows to parquet")
    leave.add_argument("store", type=Path, metavar="DIR")
    leave.add_argument("file", type=Path, metavar="OUT")
    leave.add_argument("--table", help="which table; may be left out if there is one")
    _add_checkpoint(leave, "the cut to read: tag, or id in digits; default: newest")
    leave.add_argument("--no-state", action="store_true", help="leave the optimizer state out")
    leave.set_defaults(run=run_export)

    enter = subparsers.add_parser("import", help="read a table's rows from parquet")
    enter.add_argument("file", type=Path, metavar="FILE")
    enter.add_argument("store", type=Path, metavar="DIR", help="made if it is not there")
    enter.add_argument("--table", help="which table; default: the one the file names")
    enter.add_argument("--dram", default="256MiB", help="budget of the dram_cache (%(default)s)")
    enter.add_argument("--no-state", action="store_true", help="start the optimizer state anew")
    enter.set_defaults(run=run_import)


def run_stats(options: argparse.Namespace) -> int:
    """Prints rows and sizes of each table, then what is on SSD."""
    check_json_path(options.json)
    with open_store(options.store, checkpoint=options.checkpoint) as server:
        figures = server.stats()
        figures["checkpoints"] = server.checkpoints()
        if (catalog := Catalog.load(options.store)) is not None:
            parts = catalog.find(options.store, options.checkpoint).parts
            figures["ranks"] = {"size": len(parts), "rows": [part.rows for part in parts]}
        if options.digest:
            for name, table in figures["tables"].items():
                table["digest"] = server.digest(name)
    out = stream_for_people(options.json)
    print(f"{'table':<20} {'rows':>14} {'dim':>5} {'row bytes':>10}  optimizer", file=out)
    for name, table in figures["tables"].items():
        line = f"{name:<20} {table['rows']:>14,} {table['dim']:>5} {table['row_bytes']:>10}"
        print(f"{line}  {table['optimizer']}  {table.get('digest', '')}".rstrip(), file=out)
    if "ranks" in figures:
        rows = ", ".join(f"{of_rank:,}" for of_rank in figures["ranks"]["rows"])
        print(
            f"ranks: {figures['ranks']['size']}, with {rows} rows; what follows is of all", file=out
        )
    amplification = figures["ssd_store"].get("write_amplification")  # RocksDB's is its own affair
    for name, value in figures["ssd_store"].items():
        if isinstance(value, int) and value:
            print(f"ssd_store {name}: {value:,}", file=out)
    if amplification is not None:
        print(f"ssd_store write_amplification: {amplification:.2f}", file=out)
    print(f"checkpoints: {len(figures['checkpoints'])}", file=out)
    write_json(options.json, figures)
    return 0


def run_verify(options: argparse.Namespace) -> int:
    """Checks every checksum; damage ends with status 1 and the name of the file."""
    from hps.cluster.reader import verify_cluster
    from hps.ssd_store import verify
    from hps.update_log.verify import verify_log

    is_cluster = Catalog.load(options.store) is not None
    damaged = verify_cluster(options.store) if is_cluster else verify(options.store)
    damaged += [] if is_cluster else verify_log(options.store)
    for file, what in damaged:
        print(f"{file}: {what}")
    if damaged:
        raise CorruptionError(
            f"{options.store}: {len(damaged)} damaged file(s), the first is {damaged[0][0]}; "
            f"restore an older checkpoint or copy the store back"
        )
    print(f"{options.store}: every checksum holds")
    return 0


def run_checkpoints(options: argparse.Namespace) -> int:
    """Lists the kept checkpoints, or deletes one."""
    if options.delete is not None:
        readers = _delete_checkpoint(options.store, options.delete)
        print(f"deleted {options.delete}")
        for reader in readers:
            print(f"its files stay until {reader} closes")
        return 0
    out = stream_for_people(options.json)
    check_json_path(options.json)
    with open_store(options.store) as server:
        listed = server.checkpoints()
    for info in listed:
        others = {name: value for name, value in info.items() if name != "tag"}
        others["created"] = datetime.fromtimestamp(info["created"], UTC).isoformat("T", "seconds")
        words = ", ".join(f"{name} {_plain(value)}" for name, value in others.items())
        print(f"{info['tag'] or '(untagged)':<20} {words}", file=out)
    if not listed:
        print(f"{options.store} has no checkpoint yet", file=out)
    write_json(options.json, listed)
    return 0


def _delete_checkpoint(path: Path, checkpoint: str | int) -> list[str]:
    if Catalog.load(path) is not None:
        return delete_cut(path, checkpoint)
    with open_store(path, read_only=False) as server:
        return server.delete_checkpoint(checkpoint)


def run_compact(options: argparse.Namespace) -> int:
    """Rewrites what has anything dead in it; the newest checkpoint then names the new segments."""
    if Catalog.load(options.store) is not None:
        figures = compact_parts(options.store, options.table)
        kept = figures["checkpoint_only_bytes"]
    else:
        with open_store(options.store, read_only=False) as server:
            figures = server.compact(options.table)
            kept = server.stats()["ssd_store"]["checkpoint_only_bytes"]
    print(f"{options.store}: {figures['bytes_before']:,} bytes before")
    print(f"{options.store}: {figures['bytes_after']:,} bytes after")
    if kept:
        print(f"{kept:,} of them are held by older checkpoints alone: see 'hps checkpoints'")
    return 0


def run_export(options: argparse.Namespace) -> int:
    """Writes one table of a checkpoint to a parquet file."""
    from hps.parquet import export_table

    with open_store(options.store, checkpoint=options.checkpoint) as server:
        table = _choose_table(options.table, list(server.tables))
        count = export_table(server, table, options.file, not options.no_state)
    print(f"{options.file}: {count:,} rows of table {table!r}")
    return 0


def run_import(options: argparse.Namespace) -> int:
    """Assigns the rows of a parquet file, into a store that is made if it is not there."""
    from hps.parquet import describe, import_table

    described, seed = describe(options.file)
    table = options.table or (described.name if described else None)
    with _open_or_make(options, described, seed) as server:
        table = _choose_table(table, list(server.tables))
        count = import_table(server, table, options.file, not options.no_state)
    print(f"{options.store}: {count:,} rows into table {table!r}")
    return 0


def _open_or_make(options: argparse.Namespace, described: Any, seed: int) -> ParameterServer:
    is_there = options.store.is_dir() and any(options.store.iterdir())
    if is_there:
        return open_store(options.store, read_only=False, dram=options.dram)
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
    config = Config(
        path=options.store,
        tables=[described],
        dram=DramCacheConfig(bytes=options.dram),
        seed=seed,
    )
    return ParameterServer(config)


def _choose_table(asked: str | None, tables: list[str]) -> str:
    if asked is None and len(tables) == 1:
        return tables[0]
    if asked not in tables:
        raise ConfigError(f"--table {asked}: the store has {sorted(tables)}; name one of them")
    return asked


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
