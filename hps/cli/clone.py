"""`hps clone`: copies one checkpoint of a store into a store of its own.

Above it: hps.cli.main. Below it: hps.ssd_store.clone.
"""

import argparse

from hps.cli import flags
from hps.cli.output import (
    JSON_HELP,
    check_out_path,
    checkpoint_name,
    stream_for_people,
    write_json,
)
from hps.errors import ConfigError
from hps.ssd_store.cluster.catalog import Catalog


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds the command of this module."""
    parser = subparsers.add_parser(
        "clone",
        help="copy one checkpoint into a store of its own",
        description="Copies one checkpoint, with its tag and extras, into a new store; it may run "
        "beside a trainer. Files are linked if the file system can, else copied; all are checked.",
    )
    flags.add_store(parser)
    text = "a folder that is new or empty"
    parser.add_argument("target", type=flags.path, metavar="OUT", help=text)
    parser.add_argument(
        "--checkpoint",
        type=checkpoint_name,
        metavar="TAG",
        help="its tag, or its id as id:N; the newest if not given",
    )
    parser.add_argument("--json", type=flags.path, metavar="FILE", help=JSON_HELP)
    flags.add_quiet(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Clones and prints what was made of what."""
    from hps.ssd_store import clone

    check_out_path(options.json)
    found = Catalog.load(options.store)
    if found is not None:
        raise ConfigError(
            f"{options.store} is the folder of {found.ranks} rank(s), not a store; copy a "
            f"checkpoint of it with 'hps reshard {options.store} OUT --ranks {found.ranks}'"
        )
    made = clone(options.store, options.target, options.checkpoint)
    name = made["tag"] or f"checkpoint {made['id']}"
    print(
        f"{options.target}: {name} with {made['rows']:,} rows; files linked: "
        f"{made['files_linked']}, copied: {made['files_copied']} ({made['bytes_copied']:,} bytes)",
        file=stream_for_people(options.json),
    )
    write_json(options.json, made)
    return 0
