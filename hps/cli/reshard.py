"""`hps reshard`: makes a folder for another number of ranks of one checkpoint.

Above it: hps.cli.main. Below it: hps.cluster.folder.offline.
"""

import argparse

from hps.cli import flags
from hps.cli.output import check_out_path, checkpoint_name, stream_for_people, write_json
from hps.common.sharding import NUM_VIRTUAL


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds the command of this module."""
    parser = subparsers.add_parser(
        "reshard",
        help="copy one checkpoint for another number of ranks",
        description="Copies one checkpoint, of a cluster's folder or of a store, into a new folder "
        "for N ranks, or into a store of one process: rows with their optimizer state, model and "
        "position. It may run beside a training. (A training that starts with another number of "
        "ranks does the same by itself, in place.)",
    )
    flags.add_store(parser, "a cluster's folder, or a store")
    target_help = "a folder that is new or empty"
    parser.add_argument("target", type=flags.path, metavar="OUT", help=target_help)
    form = parser.add_mutually_exclusive_group(required=True)
    ranks = flags.whole(1, NUM_VIRTUAL)
    form.add_argument("--ranks", type=ranks, metavar="N", help="number of ranks to copy for")
    form.add_argument("--plain", action="store_true", help="copy into a store of one process")
    parser.add_argument(
        "--checkpoint",
        type=checkpoint_name,
        metavar="TAG",
        help="its tag, or its id as id:N; the newest if not given",
    )
    parser.add_argument(
        "--json", type=flags.path, metavar="FILE", help="write the figures to a file"
    )
    flags.add_quiet(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Moves the rows and prints where they are now."""
    from hps.cluster.folder.offline import reshard

    check_out_path(options.json)
    made = reshard(options.store, options.target, options.ranks, options.checkpoint)
    name = made["tag"] or "the checkpoint"
    parts = ", ".join(f"{rows:,}" for rows in made["parts"])
    form = f"{made['ranks']} rank(s) ({parts})" if made["ranks"] else "a store of one process"
    print(
        f"{options.target}: {name} with {made['rows']:,} rows for {form}",
        file=stream_for_people(options.json),
    )
    write_json(options.json, made)
    return 0
