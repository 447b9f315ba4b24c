"""`hps evaluate`: AUC, logloss and calibration of a stored model.

Above it: `hps.cli.main`. Below it: `hps.train.evaluate`.
"""

import argparse
from pathlib import Path

from hps.cli.output import (
    HelpFormatter,
    check_json_path,
    checkpoint_name,
    stream_for_people,
    write_json,
)
from hps.cli.server_flags import add_server_flags, client_config
from hps.config import GpuCacheConfig, RankEnvironment
from hps.errors import ConfigError


def add_parsers(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `evaluate`."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure a stored model; the store is opened read-only",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("data", nargs="+", metavar="DATA", help="the log's files, in order")
    parser.add_argument("--store", type=Path, default=None, metavar="DIR", help="the store")
    parser.add_argument(
        "--checkpoint",
        type=checkpoint_name,
        default=None,
        metavar="TAG",
        help="tag, or id in digits; newest if not given",
    )
    parser.add_argument("--dram", default="256MiB", help="budget of the host tier")
    parser.add_argument("--gpu", default=None, help="budget of the GPU tier; none if not given")
    parser.add_argument("--device", default=None, help="of the GPU tier, and of the model")
    parser.add_argument("--format", default=None, help="the training run's if not given")
    parser.add_argument("--batch-size", type=int, default=4096, help="examples a batch")
    parser.add_argument("--on-error", default=None, help="the training run's if not given")
    parser.add_argument("--json", type=Path, default=None, metavar="OUT", help="figures to a file")
    add_server_flags(parser.add_argument_group("servers instead of a store"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures as the flags say; returns the exit status."""
    from hps.train import evaluate_remote, evaluate_store  # torch takes its time to import
    from hps.train.report import format_table

    place = RankEnvironment.of()
    if place is not None and place.size > 1:
        if place.rank > 0:
            return 1  # rank 0 says it
        raise ConfigError(
            "hps evaluate measures in one process, also a model of several ranks; start it without "
            "torchrun"
        )
    check_json_path(arguments.json)
    given = {
        "format": arguments.format,
        "batch_size": arguments.batch_size,
        "on_error": arguments.on_error,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    remote = client_config(arguments)
    if (remote is None) == (arguments.store is None):
        raise ConfigError("the model lies in a store or on servers; give --store or --server")
    if remote is not None and (arguments.gpu or arguments.device):
        raise ConfigError("--gpu and --device are the servers' own; leave them out with --server")
    gpu = None
    if arguments.gpu is not None:
        gpu = GpuCacheConfig(bytes=arguments.gpu, device=arguments.device or "cuda:0")
    elif arguments.device is not None:
        raise ConfigError(
            f"--device {arguments.device} names the GPU tier's; give its budget (--gpu) too"
        )
    if remote is not None:
        figures = evaluate_remote(arguments.data, remote, arguments.checkpoint, **changes)
    else:
        figures = evaluate_store(
            arguments.data, arguments.store, arguments.checkpoint, arguments.dram, gpu, **changes
        )
    print(format_table(figures), file=stream_for_people(arguments.json))
    write_json(arguments.json, figures)
    return 0
