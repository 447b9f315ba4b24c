"""`hps erase`: keys that are to be forgotten, and what kept checkpoints still hold of them.

Above it: `hps.cli.main`. Below it: hps.open, for writing, then read-only at each checkpoint.
"""

import argparse
from pathlib import Path

import numpy as np

from hps.cli import flags
from hps.cli.output import JSON_HELP, check_out_path, stream_for_people, write_json
from hps.common.json_text import Json
from hps.common.row_layout import Keys
from hps.errors import ConfigError, DataError
from hps.parameter_server.open_server import open as open_store
from hps.ssd_store import check_no_writer

_MOST_KEYS = 10_000_000  # of a file, which is held in memory


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `erase`."""
    parser = subparsers.add_parser(
        "erase",
        help="erase the rows of given keys, and tell which checkpoints still hold them",
        description="Erases the rows of the keys of a file from a store, takes a checkpoint, and "
        "tells how many rows went, and which kept checkpoints still hold rows of these keys: "
        "'hps checkpoints DIR --delete TAG' deletes one, and 'hps compact DIR' frees the bytes. "
        "Needs the store alone. 'hps lookup' tells the key of a raw value.",
    )
    flags.add_store(parser)
    parser.add_argument(
        "--keys",
        type=flags.path,
        required=True,
        metavar="FILE",
        help="a key a line, 0 to 2^64 - 1, or in hexadecimal with 0x",
    )
    parser.add_argument("--table", type=flags.word, metavar="NAME", help="only of this table")
    parser.add_argument("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Erases, then looks into every kept checkpoint."""
    check_out_path(options.json)
    keys = read_keys(options.keys)
    check_no_writer(options.store)
    with open_store(options.store, read_only=False) as server:
        names = sorted(server.tables) if options.table is None else [options.table]
        if unknown := set(names) - set(server.tables):
            raise ConfigError(
                f"--table {unknown.pop()}: the store has the tables {sorted(server.tables)}"
            )
        erased = {name: int(np.count_nonzero(server.erase(name, keys))) for name in names}
        if any(erased.values()):
            server.checkpoint()
    with open_store(options.store) as reader:  # leaving the block above may have taken one
        kept = reader.checkpoints()
    held: list[Json] = []
    for checkpoint in kept:
        with open_store(options.store, checkpoint=checkpoint["id"]) as reader:
            rows = {
                name: int(np.count_nonzero(reader.contains(name, keys)))
                for name in names
                if name in reader.tables
            }
        if any(rows.values()):
            held.append({"id": checkpoint["id"], "tag": checkpoint["tag"], "rows": rows})
    out = stream_for_people(options.json)
    for name, count in erased.items():
        print(f"table {name}: {count:,} of {len(keys):,} keys had a row, which is erased", file=out)
    for one in held:
        name = f"id:{one['id']}" if one["tag"] is None else one["tag"]
        count = sum(one["rows"].values())
        print(f"checkpoint {name} still holds {count:,} rows of these keys", file=out)
    if not held:
        print("no kept checkpoint holds a row of these keys", file=out)
    write_json(options.json, {"keys": len(keys), "erased": erased, "held_by": held})
    return 0


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
