"""`hps stats`, `verify`, `checkpoints`, `compact`: what is done with a store.

Above it: hps.cli.main. Below it: hps.open, read-only wherever nothing is changed.
"""

import argparse
import errno
import os
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import Self

import numpy as np

from hps.checkpoint.blobs import MODEL, READER
from hps.checkpoint.names import COMPACTED, find_listed, text_of
from hps.cli import flags
from hps.cli.output import (
    JSON_HELP,
    check_out_path,
    checkpoint_name,
    stream_for_people,
    write_json,
)
from hps.cluster.folder.housekeeping import compact_parts, delete_checkpoint
from hps.common.json_text import Json
from hps.common.row_layout import Statistics
from hps.errors import ConfigError, CorruptionError, HpsError, StoreError
from hps.parameter_server.open_server import open as open_store
from hps.parameter_server.server import ParameterServer
from hps.ssd_store import check_no_writer
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.promoted import Promotions
from hps.table.row_checks import are_possible, are_possible_statistics

_RECORD_BYTES = 4096  # that a checkpoint may take in the manifest, besides its blobs


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds the commands of this module."""
    stats = subparsers.add_parser(
        "stats",
        help="show rows, sizes and checkpoints of a store",
        description="Shows rows, sizes and checkpoints of a store, opened read-only, also beside a "
        "training. docs/training.md explains the figures of ssd_store.",
    )
    flags.add_store(stats)
    flags.add_checkpoint(stats)
    stats.add_argument("--digest", action="store_true", help="also hash every row (reads them all)")
    stats.add_argument("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    stats.set_defaults(run=run_stats)

    verify = subparsers.add_parser(
        "verify",
        help="check every checksum of a store, and of its update log",
        description="Reads every file of a store and of its update log and checks all checksums; "
        "names each damaged file and ends with status 1 if there is one.",
    )
    flags.add_store(verify)
    flags.add_quiet(verify)
    verify.set_defaults(run=run_verify)

    checkpoints = subparsers.add_parser(
        "checkpoints",
        help="list or delete checkpoints",
        description="Lists the checkpoints that a store keeps, the oldest first, or deletes one. "
        "Listing opens the store read-only, also beside a training; deleting needs it alone.",
    )
    flags.add_store(checkpoints)
    checkpoints.add_argument(
        "--delete",
        type=checkpoint_name,
        metavar="TAG",
        help="delete this checkpoint: its tag, or its id as id:N",
    )
    checkpoints.add_argument(
        "--json",
        type=flags.path,
        metavar="OUT",
        help="write the list, or what --delete did, as JSON to a file; '-': to standard output",
    )
    checkpoints.set_defaults(run=run_checkpoints)

    compact = subparsers.add_parser(
        "compact",
        help="free the space of overwritten rows",
        description="Rewrites every file with overwritten or erased rows. Says first how much room "
        "that needs and how much it frees; does nothing if that is nothing. Needs the store alone. "
        "What older checkpoints hold stays: 'hps checkpoints DIR --delete TAG' deletes one. If "
        f"the checkpoint of the current rows was deleted, one with the tag {COMPACTED!r} takes "
        "its place where that frees space.",
    )
    flags.add_store(compact)
    compact.add_argument("--dry-run", action="store_true", help="only say what it would do")
    compact.add_argument(
        "--table", type=flags.word, metavar="NAME", help="table to compact; all if not given"
    )
    flags.add_quiet(compact)
    compact.set_defaults(run=run_compact)


def run_stats(options: argparse.Namespace) -> int:
    """Prints rows and sizes of each table, then what is on SSD."""
    check_out_path(options.json)
    with open_store(options.store, checkpoint=options.checkpoint) as server:
        figures = server.stats()
        figures["checkpoints"] = server.checkpoints()
        if server.period:
            figures["period"] = server.period
        if (catalog := Catalog.load(options.store)) is not None:
            opened = find_listed(str(options.store), figures["checkpoints"], options.checkpoint)
            name = None if opened is None else int(opened["id"])  # its names may move
            parts = catalog.find(options.store, name, Promotions()).parts
            figures["ranks"] = {"size": len(parts), "rows": [part.rows for part in parts]}
        if options.digest:
            for name, table in figures["tables"].items():
                table["digest"] = server.digest(name)
    out = stream_for_people(options.json)
    print(f"{'table':<20} {'rows':>14} {'dim':>5} {'row bytes':>10}  optimizer", file=out)
    for name, table in figures["tables"].items():
        line = f"{name:<20} {table['rows']:>14,} {table['dim']:>5} {table['row_bytes']:>10}"
        print(f"{line}  {table['optimizer']}  {table.get('digest', '')}".rstrip(), file=out)
        if "expiry" in table:
            print(f"  rows die by {table['expiry']}", file=out)
        if "negative_rate" in table:
            rate = table["negative_rate"]
            print(f"  what is no click counts as 1 / {rate:g} shows", file=out)
        if "admission" in table:
            waiting = table.get("waiting", {}).get("rows")
            records = "" if waiting is None else f", with {waiting:,} records of those that wait"
            print(f"  keys come by rows by {table['admission']}{records}", file=out)
        if "max_rows" in table:
            print(
                f"  at most {table['max_rows']:,} rows as a period begins; in this one "
                f"{table['rows_bounded']:,} died early, by a lead of {table['lead']:,}",
                file=out,
            )
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
    if "period" in figures:
        print(f"period: {figures['period']:,}", file=out)
    print(f"checkpoints: {len(figures['checkpoints'])}", file=out)
    write_json(options.json, figures)
    return 0


def run_verify(options: argparse.Namespace) -> int:
    """Checks every checksum; damage ends with status 1 and the name of the file."""
    from hps.ssd_store import verify
    from hps.ssd_store.cluster.cluster_store import verify_cluster
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
    with open_store(options.store) as server:
        impossible = _find_impossible_rows(server)
        has_rows = any(map(server.num_rows, server.tables))
        keeps_nothing = not has_rows and not server.checkpoints()
    if impossible:
        raise CorruptionError(
            f"{options.store}: every checksum holds, but " + "; ".join(impossible) + ". Steps that "
            "reach such a row are refused: erase it, or assign it anew"
        )
    but = "; it keeps no checkpoint yet, so there was no row to check" if keeps_nothing else ""
    print(f"{options.store}: every checksum holds{but}")
    return 0


def _find_impossible_rows(server: ParameterServer) -> list[str]:
    """What tables hold of rows that no optimizer can have made: older versions took them in."""
    found = []
    for name, table in server.tables.items():
        layout = table.layout
        count, first = 0, 0
        pieces = server.items(name, state=True, statistics=table.statistics)
        for keys, rows, state, *counted in pieces:
            is_fine = are_possible(layout, rows, state)
            if counted:
                is_fine &= are_possible_statistics(Statistics(*counted), server.period)
            bad = np.flatnonzero(~is_fine)
            first = int(keys[bad[0]]) if len(bad) and not count else first
            count += len(bad)
        if count:
            found.append(
                f"table {name!r} holds {count} row(s) with NaN, infinity or a state"
                f"{' or counts' * table.statistics} that no optimizer makes (key {first} is one)"
            )
    return found


def run_checkpoints(options: argparse.Namespace) -> int:
    """Lists the kept checkpoints, or deletes one."""
    check_out_path(options.json)
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
    before, rest = _bytes_alone(options.store), 0
    try:
        readers = _delete(options.store, options.delete)
    except ConfigError as error:
        meant = _meant_id(options.store, options.delete)
        if meant is None:
            raise
        raise meant from error
    stays, catalog = "", Catalog.load(options.store)
    if catalog is None:
        plan = _Compaction.of(options.store)
        rest, stays = plan.gain, plan.stays
    elif not catalog.listed:
        stays = "the current rows stay, with a model that was stored with them"
    freed = max(0, before - _bytes_alone(options.store))
    out = stream_for_people(options.json)
    none_freed = not freed and not readers
    why = ": the current rows or other checkpoints need its files" if none_freed else ""
    print(f"deleted {text_of(options.delete)}; freed {freed:,} bytes{why}", file=out)
    for reader in readers:
        print(f"its files stay until {reader} closes", file=out)
    if stays:
        print(f"it was the last one: {stays}", file=out)
    if rest:
        print(f"'hps compact {options.store}' frees about {rest:,} bytes more", file=out)
    figures = {"bytes_freed": freed, "bytes_dead": rest, "readers": readers}
    write_json(options.json, {"deleted": options.delete, **figures})
    return 0


def _delete(path: Path, name: str | int) -> list[str]:
    """The readers that still hold it."""
    if Catalog.load(path) is not None:
        return delete_checkpoint(path, name)
    with open_store(path, read_only=False) as server:
        return server.delete_checkpoint(name)


def _meant_id(path: Path, name: str | int) -> ConfigError | None:
    """What is said of a number that is no checkpoint's tag, and one's id."""
    if not isinstance(name, str) or not name.isdecimal():
        return None
    listed: list[Json] = []
    with suppress(HpsError), open_store(path) as server:
        listed = server.checkpoints()
    if all(str(one["id"]) != name for one in listed) or any(one["tag"] == name for one in listed):
        return None
    return ConfigError(
        f"{path}: no checkpoint has the tag {name!r}; to delete the one whose id is {name}, write "
        f"--delete id:{name}"
    )


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


@dataclass(frozen=True, kw_only=True)
class _Compaction:
    """What compacting a store would do, by the figures of a reader of it.

    Args:
        space: as `space_of_compact` returns it.
        others: names of the checkpoints besides the newest.
        bytes_now, kept: of all files, and of those that older checkpoints alone hold.
        is_deleted: the checkpoint of the current rows was deleted.
        blob_bytes: of that checkpoint's files that go once another one takes its place.
        stays: what is still there, in words, where no checkpoint is listed; else empty.
    """

    space: dict[str, int]
    others: set[str]
    bytes_now: int
    kept: int
    is_deleted: bool
    blob_bytes: int
    stays: str

    @classmethod
    def of(cls, path: Path, table: str | None = None) -> Self:
        # To read is enough to tell: a store that may be written compacts for itself.
        with open_store(path) as server:
            listed = server.checkpoints()
            numbers = server.stats()["ssd_store"]
            is_deleted = bool(numbers["files_bytes"]) and not any(one["current"] for one in listed)
            blobs = server.checkpoint_blob_bytes() if is_deleted else {}
            has_model = MODEL in blobs  # then the new checkpoint takes both over
            dense = sum(blobs.pop(name, 0) for name in (MODEL, READER)) * (not has_model)
            stays = f"the current rows{' and their model' if has_model else ''} stay"
            return cls(
                space=server.space_of_compact(table),
                others={text_of(one["tag"] or one["id"]) for one in listed if not one["current"]},
                bytes_now=numbers["files_bytes"],
                kept=numbers["checkpoint_only_bytes"],
                is_deleted=is_deleted,
                # The new checkpoint has the other blobs again, and a model with its position.
                blob_bytes=0 if has_model else max(0, dense - sum(blobs.values()) - _RECORD_BYTES),
                stays="" if listed else stays,
            )

    @property
    def rewrites(self) -> bool:
        """True if rewriting files frees more than it takes."""
        return self.space["freed_bytes"] > self.space["written_bytes"]

    @property
    def gain(self) -> int:
        """Bytes that are free in the end, about."""
        freed = self.space["freed_bytes"] - self.space["written_bytes"]
        return max(0, freed) + self.blob_bytes


def run_compact(options: argparse.Namespace) -> int:
    """Rewrites what has anything dead in it; the newest checkpoint then names the new segments."""
    if Catalog.load(options.store) is not None:
        figures = compact_parts(
            options.store,
            options.table,
            lambda space, others: _allows(options, space, others),
            is_dry_run=options.dry_run,
        )
    else:
        figures = _compact_store(options)
    print(f"{options.store}: {figures['bytes_before']:,} bytes before")
    print(f"{options.store}: {figures['bytes_after']:,} bytes after")
    if kept := figures["checkpoint_only_bytes"]:
        print(f"{kept:,} of them are held by older checkpoints alone: see 'hps checkpoints'")
    return 0


def _compact_store(options: argparse.Namespace) -> dict[str, int]:
    """Compacts the store of one process; returns what `compact_parts` does of a cluster's."""
    if not options.dry_run:
        check_no_writer(options.store)
    plan = _Compaction.of(options.store, options.table)
    after, kept = plan.bytes_now, plan.kept
    space = plan.space if plan.rewrites else {**plan.space, "written_bytes": 0, "freed_bytes": 0}
    if _allows(options, space, plan.others, plan.blob_bytes):
        with open_store(options.store, read_only=False) as server:
            if plan.rewrites:
                server.compact(options.table)
            if plan.is_deleted:
                # Its files go only now. An untagged one would push out another.
                server.parts.checkpoints.save(COMPACTED, {})
                print(f"checkpoint {COMPACTED!r} holds the current rows: theirs was deleted")
            numbers = server.stats()["ssd_store"]
        after, kept = numbers["files_bytes"], numbers["checkpoint_only_bytes"]
    return {"bytes_before": plan.bytes_now, "bytes_after": after, "checkpoint_only_bytes": kept}


def _allows(
    options: argparse.Namespace, space: dict[str, int], others: set[str], blob_bytes: int = 0
) -> bool:
    """Says what a compaction needs and frees, and whether it is to be done.

    Args:
        space: as `space_of_compact` returns it, of what would be rewritten.
        others: names of the checkpoints besides the newest.
        blob_bytes: of a deleted checkpoint's files, which go as well.
    """
    written, gain = space["written_bytes"], space["freed_bytes"] - space["written_bytes"]
    if space["held_bytes"]:
        names = ", ".join(sorted(others))
        print(
            f"{space['held_bytes']:,} bytes of files with overwritten rows are held by checkpoints "
            f"({names}): 'hps checkpoints {options.store} --delete TAG' deletes one"
        )
    if gain + blob_bytes <= 0:
        print("nothing to free; nothing was done")
        return False
    print(f"needs {written:,} bytes of room and frees {gain + blob_bytes:,} bytes")
    free = shutil.disk_usage(options.store).free
    if options.dry_run:
        return False
    if free < written:
        raise StoreError(
            errno.ENOSPC,
            f"{options.store}: a compaction needs {written:,} bytes of room and its disk has "
            f"{free:,}; make space, delete a checkpoint ('hps checkpoints {options.store}') or "
            "compact one table after the other (--table)",
        )
    return True


def _plain(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
