"""`hps stats`, `verify`, `checkpoints`, `compact`, `export`, `import`: what is done with a store.

Above it: hps.cli.main. Below it: hps.open, read-only wherever nothing is changed; hps.parquet.
"""

import argparse
import os
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import Any

from hps.cli.output import check_json_path, checkpoint_name, stream_for_people, write_json
from hps.cluster.catalog import Catalog
from hps.cluster.housekeeping import compact_parts, delete_cut
from hps.config import Config, DramCacheConfig
from hps.errors import ConfigError, CorruptionError
from hps.parameter_server import ParameterServer
from hps.parameter_server import open as open_store

_OVERHEAD = 0.01  # of rows, that headers and footers of their files may take


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
    checkpoints.add_argument(
        "--json",
        type=Path,
        metavar="OUT",
        help="write the list, or what --delete did, to a file; '-' for standard output",
    )
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
        if options.digest:
            for name, table in figures["tables"].items():
                table["digest"] = server.digest(name)
    out = stream_for_people(options.json)
    print(f"{'table':<20} {'rows':>14} {'dim':>5} {'row bytes':>10}  optimizer", file=out)
    for name, table in figures["tables"].items():
        line = f"{name:<20} {table['rows']:>14,} {table['dim']:>5} {table['row_bytes']:>10}"
        print(f"{line}  {table['optimizer']}  {table.get('digest', '')}".rstrip(), file=out)
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
    check_json_path(options.json)
    if options.delete is not None:
        return _run_delete(options)
    out = stream_for_people(options.json)
    with open_store(options.store) as server:
        listed = server.checkpoints()
    for info in listed:
        others = {name: value for name, value in info.items() if name != "tag"}
        others["created"] = datetime.fromtimestamp(info["created"], UTC).isoformat("T", "seconds")
        words = ", ".join(f"{name} {_plain(value)}" for name, value in others.items())
        print(f"{info['tag'] or '(untagged)':<20} {words}", file=out)
    if not listed:
        print(f"{options.store} keeps no checkpoint", file=out)
    write_json(options.json, listed)
    return 0


def _run_delete(options: argparse.Namespace) -> int:
    """Deletes one and says what came of it."""
    before, dead = _bytes_alone(options.store), 0
    if Catalog.load(options.store) is not None:
        readers = delete_cut(options.store, options.delete)
    else:
        with open_store(options.store, read_only=False) as server:
            readers = server.delete_checkpoint(options.delete)
            numbers = server.stats()["ssd_store"]
        # RocksDB, which has no segments, sees to its dead rows itself.
        dead = numbers.get("segment_bytes", 0) - numbers["live_bytes"]
        dead = dead if dead > numbers["live_bytes"] * _OVERHEAD else 0
    freed = max(0, before - _bytes_alone(options.store))
    out = stream_for_people(options.json)
    print(f"deleted {options.delete}", file=out)
    if freed:
        print(f"{freed:,} bytes came free", file=out)
    elif not readers:
        print("no bytes came free: the current rows or other checkpoints need its files", file=out)
    for reader in readers:
        print(f"its files stay until {reader} closes", file=out)
    if dead:
        print(
            f"up to {dead:,} bytes of overwritten rows are left in files that are still needed; "
            f"'hps compact {options.store}' gives them back",
            file=out,
        )
    figures = {"bytes_freed": freed, "bytes_dead": dead, "readers": readers}
    write_json(options.json, {"deleted": options.delete, **figures})
    return 0


def _bytes_alone(path: Path) -> int:
    """Bytes of the files below a folder, without those that have names outside of it, as a clone's
    have, and without the snapshot of the index, which comes and goes with each opening."""
    names: Counter[int] = Counter()
    found: dict[int, os.stat_result] = {}
    for file in path.rglob("*"):
        with suppress(FileNotFoundError):  # a reader's pin that has just gone
            status = file.lstat()
            if S_ISREG(status.st_mode) and not file.name.startswith("index-"):
                names[status.st_ino] += 1
                found[status.st_ino] = status
    return sum(one.st_size for inode, one in found.items() if names[inode] >= one.st_nlink)


def run_compact(options: argparse.Namespace) -> int:
    """Rewrites what has anything dead in it; the newest checkpoint then names the new segments."""
    if Catalog.load(options.store) is not None:
        figures = compact_parts(options.store, options.table)
        kept = figures["checkpoint_only_bytes"]
    else:
        with open_store(options.store, read_only=False) as server:
            figures = server.compact(options.table)
            if not any(info["current"] for info in server.checkpoints()):
                server.checkpoint()  # the current one was deleted: its files go only now
                figures["bytes_after"] = server.stats()["ssd_store"]["files_bytes"]
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
        given = "the store has several tables" if asked is None else f"there is no table {asked!r}"
        raise ConfigError(f"--table: {given}; name one of {sorted(tables)}")
    return asked


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
