"""`hps erase`: rows that are to be forgotten, and what kept checkpoints still hold of them.

Above it: `hps.cli.main`. Below it: hps.open, for writing, then read-only at each checkpoint.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, TextIO

import numpy as np

from hps.cli import flags
from hps.cli.output import JSON_HELP, check_out_path, stream_for_people, write_json
from hps.common.json_text import Json
from hps.common.row_layout import Keys
from hps.errors import ConfigError, DataError
from hps.parameter_server.erasing import check_erasable, erase_where
from hps.parameter_server.open_server import open as open_store
from hps.parameter_server.server import ParameterServer
from hps.ssd_store import check_no_writer
from hps.table.rows_where import RowsWhere

_MOST_KEYS = 10_000_000  # of a file, which is held in memory
_PIECE_KEYS = 2**20
_WHERE = {
    "show-below": "rows with fewer shows, decayed as the table's expiry has it",
    "click-below": "rows with fewer clicks, decayed likewise",
    "unseen-for": "rows that N periods or more have passed for since their last one",
    "score-below": "rows with a lower score; of tables with expiry",
}


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `erase`."""
    parser = subparsers.add_parser(
        "erase",
        help="erase rows by key or by counts, and tell which checkpoints still hold them",
        description="Erases rows from a store: of the keys of a file, or those for which all holds "
        "that is said of their statistics (docs/life_cycle.md). Takes a checkpoint, and tells how "
        "many rows went, and which kept checkpoints still hold rows of these keys: 'hps "
        "checkpoints DIR --delete TAG' deletes one, and 'hps compact DIR' frees the bytes. Needs "
        "the store alone. 'hps lookup' tells the key of a raw value.",
    )
    flags.add_store(parser)
    parser.add_argument(
        "--keys",
        type=flags.path,
        metavar="FILE",
        help="a key a line, 0 to 2^64 - 1, or in hexadecimal with 0x",
    )
    for name, text in _WHERE.items():
        kind = flags.whole(1, 2**31 - 1) if name == "unseen-for" else flags.number(0)
        parser.add_argument(f"--{name}", type=kind, metavar="N", help=text)
    parser.add_argument("--table", type=flags.word, metavar="NAME", help="only of this table")
    parser.add_argument("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Erases, then looks into every kept checkpoint."""
    check_out_path(options.json)
    given = {name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name in _WHERE}
    where = {name: value for name, value in given.items() if value is not None}
    if (options.keys is None) != bool(where):
        raise ConfigError(
            f"{options.store}: which rows? Give --keys, or "
            f"{', '.join(f'--{name}' for name in _WHERE)}, but not both"
        )
    if where:
        return _erase_where(options, RowsWhere(**where))
    keys = read_keys(options.keys)
    check_no_writer(options.store)
    with open_store(options.store, read_only=False) as server:
        names = _tables(server, options)
        erased = {name: int(np.count_nonzero(server.erase(name, keys))) for name in names}
        if any(erased.values()):
            server.checkpoint()
    held = _held_by(options.store, {name: lambda: iter([keys]) for name in names})
    out = stream_for_people(options.json)
    for name, count in erased.items():
        print(f"table {name}: {count:,} of {len(keys):,} keys had a row, which is erased", file=out)
    _tell_held(held, out)
    write_json(options.json, {"keys": len(keys), "erased": erased, "held_by": held})
    return 0


def _erase_where(options: argparse.Namespace, where: RowsWhere) -> int:
    """Of one table, or of all that count."""
    check_no_writer(options.store)
    with ExitStack() as files:
        with open_store(options.store, read_only=False) as server:
            tables, batches = server.parts.tables, server.parts.batches
            names = _tables(server, options)
            if options.table is None:
                names = [name for name in names if server.tables[name].statistics]
            if not names:
                raise ConfigError(f"{options.store}: no table has statistics; give --keys")
            for name in names:  # all are looked at before a row of any goes
                with tables.updates:
                    check_erasable(tables, batches, name, where)
            gone = {name: _KeyFile(files.enter_context(tempfile.TemporaryFile())) for name in names}
            erased = {
                name: erase_where(tables, batches, name, where, gone[name].add) for name in names
            }
            keys = {name: kept.pieces for name, kept in gone.items()}
            for other, name in _waiting_by(server, names).items():
                keys[other] = gone[name].pieces
                erased[other] = sum(
                    int(np.count_nonzero(server.erase(other, piece))) for piece in keys[other]()
                )
            rows = {name: server.num_rows(name) for name in erased}
            if any(erased.values()):
                server.checkpoint()
        held = _held_by(options.store, keys)
    out = stream_for_people(options.json)
    for name, count in erased.items():
        print(f"table {name}: {count:,} rows are erased, {rows[name]:,} are left", file=out)
    _tell_held(held, out)
    write_json(options.json, {"where": where.described(), "erased": erased, "held_by": held})
    return 0


def _waiting_by(server: ParameterServer, names: list[str]) -> dict[str, str]:
    """Other tables, whose keys came by their rows by those of one of these tables: the vectors of a
    model of two levels. With its weight a key loses its vector."""
    found = {}
    for name, table in server.tables.items():
        by = None if table.admission is None else table.admission.by
        if by in names and name not in names:
            found[name] = by
    return found


def _tables(server: ParameterServer, options: argparse.Namespace) -> list[str]:
    names = sorted(server.tables) if options.table is None else [options.table]
    if unknown := set(names) - set(server.tables):
        raise ConfigError(
            f"--table {unknown.pop()}: the store has the tables {sorted(server.tables)}"
        )
    return names


def _held_by(store: Path, keys: Mapping[str, Callable[[], Iterator[Keys]]]) -> list[Json]:
    """Kept checkpoints that hold rows of these keys, by table, and how many."""
    with open_store(store) as reader:  # leaving the block above may have taken one
        kept = reader.checkpoints()
    held: list[Json] = []
    for checkpoint in kept:
        with open_store(store, checkpoint=checkpoint["id"]) as reader:
            rows = {
                name: sum(int(np.count_nonzero(reader.contains(name, one))) for one in pieces())
                for name, pieces in keys.items()
                if name in reader.tables
            }
        if any(rows.values()):
            held.append({"id": checkpoint["id"], "tag": checkpoint["tag"], "rows": rows})
    return held


def _tell_held(held: list[Json], out: TextIO) -> None:
    for one in held:
        name = f"id:{one['id']}" if one["tag"] is None else one["tag"]
        count = sum(one["rows"].values())
        print(f"checkpoint {name} still holds {count:,} rows of these keys", file=out)
    if not held:
        print("no kept checkpoint holds a row of these keys", file=out)


class _KeyFile:
    """Keys that are too many for memory, in a file without a name."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, keys: Keys) -> None:
        """Behind those that are there."""
        self._file.write(np.ascontiguousarray(keys).tobytes())

    def pieces(self) -> Iterator[Keys]:
        """All of them, from the first on."""
        self._file.seek(0)
        while piece := self._file.read(_PIECE_KEYS * 8):
            yield np.frombuffer(piece, np.uint64)


def read_keys(path: Path) -> Keys:
    """The distinct keys of a file, uint64 [N].

    Raises:
        DataError: a line is no key; names file and line. ConfigError: no keys, or too many.
    """
    keys = set()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text:
                continue
            try:
                key = int(text, 0)
            except ValueError:
                key = -1
            if not 0 <= key < 2**64:
                raise DataError(
                    f"{path}:{number}: {text[:40]!r} is no key; a line has one number from 0 to "
                    "2^64 - 1, or one in hexadecimal with 0x"
                )
            keys.add(key)
            if len(keys) > _MOST_KEYS:
                raise ConfigError(f"{path} has more than {_MOST_KEYS:,} keys; divide it")
    if not keys:
        raise ConfigError(f"{path} holds no key")
    return np.array(sorted(keys), np.uint64)
