"""`hps evaluate`: AUC, GAUC, logloss and calibration of a stored model.

Above it: `hps.cli.main`. Below it: `hps.train.evaluate`.
"""

import argparse

from hps.checkpoint.names import text_of
from hps.cli import flags
from hps.cli.model_flags import add_model_flags, check_which, gpu_of, reading_of
from hps.cli.output import JSON_HELP, check_out_path, stream_for_people, write_json
from hps.cli.server_flags import add_server_flags, client_config
from hps.config import RankEnvironment
from hps.errors import ConfigError


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `evaluate`."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure a stored model; the store is opened read-only",
        description="Measures AUC, logloss and calibration of a stored model on a log, with "
        "groups GAUC, too. The store is opened read-only, also beside a training.",
    )
    add = parser.add_argument
    add(
        "data",
        nargs="+",
        type=flags.word,
        metavar="DATA",
        help="the log's files in order, URLs, or patterns; .gz and .zst are unpacked",
    )
    where = "give this, --model or --server"
    add("--store", type=flags.path, metavar="DIR", help=f"folder of the store; {where}")
    add(
        "--model",
        type=flags.word,
        metavar="URL",
        help="a published model: the folder or URL that 'hps publish' writes to",
    )
    add(
        "--version",
        type=flags.whole(1),
        metavar="N",
        help="of a published model: its version; the newest if not given",
    )
    add_model_flags(parser)
    add(
        "--on-error",
        choices=("raise", "skip"),
        help="at a bad line: stop and name it, or leave it out and count it (skipped lines); if "
        "not given, as in the training",
    )
    groups = parser.add_mutually_exclusive_group()
    groups.add_argument(
        "--group",
        type=flags.word,
        metavar="COLUMN",
        help="column of groups, such as users, to measure GAUC within; parquet and csv only; if "
        "not given, as in the training",
    )
    groups.add_argument(
        "--no-group", action="store_true", help="leave GAUC out, for a log without the column"
    )
    add("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    add_server_flags(parser.add_argument_group("servers instead of a store"))
    flags.add_quiet(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures as the flags say; returns the exit status."""
    place = RankEnvironment.of()
    if place is not None and place.size > 1:
        if place.rank > 0:
            return 1  # rank 0 says it
        raise ConfigError(
            "hps evaluate measures in one process, also a model of several ranks; start it without "
            "torchrun"
        )
    check_out_path(arguments.json)
    changes = reading_of(arguments, "on_error", "group")
    if arguments.no_group:
        changes["group"] = None
    remote = client_config(arguments)
    if sum(place is not None for place in (remote, arguments.store, arguments.model)) != 1:
        raise ConfigError(
            "the model lies in a store, on servers, or where it is published; give --store, "
            "--server or --model"
        )
    check_which(arguments)
    if remote is not None and (arguments.gpu or arguments.gpu_batches or arguments.device):
        raise ConfigError(
            "--gpu, --gpu-batches and --device are the servers' own; leave them out with --server"
        )
    gpu = gpu_of(arguments)
    from hps.train import (  # torch takes its time to import
        evaluate_published,
        evaluate_remote,
        evaluate_store,
    )
    from hps.train.absent_keys import format_absent
    from hps.train.report import format_table, format_weight

    if remote is not None:
        figures = evaluate_remote(arguments.data, remote, arguments.checkpoint, **changes)
    elif arguments.model is not None:
        place, dram = arguments.model, arguments.dram
        figures = evaluate_published(arguments.data, place, arguments.version, dram, gpu, **changes)
    else:
        figures = evaluate_store(
            arguments.data, arguments.store, arguments.checkpoint, arguments.dram, gpu, **changes
        )
    out = stream_for_people(arguments.json)
    name = figures["checkpoint"]
    which = "the newest checkpoint" if name is None else f"checkpoint {text_of(name)!r}"
    which = which if arguments.model is None else f"version {name} of {arguments.model}"
    print(f"{figures['model']} of {which}", file=out)
    print(format_table(figures), file=out)
    for line in (format_weight(figures), format_absent(figures)):
        if line is not None:
            print(line, file=out)
    write_json(arguments.json, figures)
    return 0
