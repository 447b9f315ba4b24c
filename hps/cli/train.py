"""`hps train`: flags to a training run, its live line, its final table and its JSON.

Above it: `hps.cli.main`. Below it: `hps.train`.
"""

import argparse
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hps.cli.output import HelpFormatter, check_json_path, stream_for_people, write_json
from hps.cli.server_flags import add_server_flags, client_config
from hps.cluster.catalog import NAME as CLUSTER
from hps.config import RankEnvironment, keep_torch_silent, let_idle_threads_sleep
from hps.errors import ConfigError, HpsError

if TYPE_CHECKING:
    from hps.train import TrainOptions

CLUSTER_TIMEOUT_SECONDS = 600.0


def add_parsers(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `train`."""
    parser = subparsers.add_parser(
        "train",
        help="train a click model from logs",
        formatter_class=HelpFormatter,
    )
    _add_data_flags(parser)
    _add_model_flags(parser)
    _add_run_flags(parser)
    _add_rank_flags(parser)
    add_server_flags(parser.add_argument_group("servers instead of a store"))
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Trains as the flags say, under torchrun as one of several ranks; returns the exit status."""
    if (arguments.store is None) == (arguments.server is None):
        raise ConfigError("give --store DIR or --server HOST:PORT,...: rows lie in one of the two")
    place = RankEnvironment.of()
    remote = client_config(arguments)
    let_idle_threads_sleep()
    if place is not None:
        keep_torch_silent()
    from hps.train import TrainOptions  # torch takes its time to import

    values = {**vars(arguments), "remote": remote}
    options = TrainOptions(**{field.name: values[field.name] for field in fields(TrainOptions)})
    return _run_alone(arguments, options) if place is None else _run_rank(arguments, options, place)


def _run_alone(arguments: argparse.Namespace, options: "TrainOptions") -> int:
    from hps.ssd_store import engine_of
    from hps.train import train
    from hps.train.progress import Progress

    check_json_path(arguments.json)
    store = None if options.store is None else Path(options.store)
    is_there = store is None or engine_of(store) is not None or (store / CLUSTER).exists()
    if options.resume and not is_there:
        print(
            f"hps: there is no store in {options.store} to resume; training starts from the "
            "beginning",
            file=sys.stderr,
        )
    _report(arguments, train(options, Progress(arguments.progress_seconds)))
    return 0


def _run_rank(
    arguments: argparse.Namespace, options: "TrainOptions", place: RankEnvironment
) -> int:
    """One process of several; rank 0 alone reports, and of an error the rank that it struck."""
    from hps.cluster.torch_world import torch_world
    from hps.train import train
    from hps.train.progress import Progress
    from hps.train.ranks import options_of_rank, restart_warning
    from hps.train.run_mark import RunMark

    is_first = place.rank == 0
    if is_first:
        check_json_path(arguments.json)
        for line in restart_warning(place):
            print(f"hps: {line}", file=sys.stderr)
    on_gpu = options.gpu is not None and options.device != "cpu"
    # Without a GPU, gloo: the store then says what --gpu needs.
    world = torch_world(None if on_gpu else "gloo", arguments.cluster_timeout)
    try:
        is_restart = options.store is not None and RunMark(options.store).is_restart(world, place)
        options = options_of_rank(options, place, is_restart)
        progress = Progress(arguments.progress_seconds if is_first else 0)
        figures = train(options, progress, world)
        world.close()
    except HpsError as error:
        if error.is_shared:
            world.close()
        else:
            world.abort(str(error))
        # What strikes several ranks is told by the first of them.
        if world.left_before is not None or is_told_elsewhere(error, place.rank):
            return 1
        error.add_note(f"rank {place.rank} of {place.size}")
        raise
    if is_first:
        if options.resume and figures["resumed_from"] is None:
            print("hps: no checkpoint to resume; trained from the beginning", file=sys.stderr)
        _report(arguments, figures)
    return 0


def is_told_elsewhere(error: HpsError, rank: int) -> bool:
    """True for what all ranks raise and one of them tells: the one whose number opens the message.

    >>> is_told_elsewhere(HpsError("rank 3: the disk is full"), 0)
    True
    """
    found = re.match(r"rank (\d+)[:,] ", str(error))
    return found is not None and int(found[1]) != rank


def _report(arguments: argparse.Namespace, figures: dict[str, Any]) -> None:
    from hps.train.rank_report import format_ranks
    from hps.train.report import format_stages, format_table

    out = stream_for_people(arguments.json)
    if figures["resumed_from"] is not None and figures["examples"] == 0:
        print(
            f"nothing left to train: checkpoint {figures['resumed_from']} stands at the end of the "
            f"data, after {figures['total_examples']:,} examples",
            file=out,
        )
    elif figures["examples"] == 0:
        bad = figures["skipped_lines"]
        why = f"all of its {bad:,} lines were skipped as bad" if bad else "it holds no line"
        print(
            f"nothing was trained, and no checkpoint written: DATA has no example, {why}", file=out
        )
    elif figures["resumed_from"] is not None:
        print(f"resumed from checkpoint {figures['resumed_from']}", file=out)
    for change in figures["resumed_with"]:
        print(change, file=out)
    print(format_table(figures), file=out)
    print(f"\n{format_stages(figures)}", file=out)
    if "ranks" in figures:
        print(f"\n{format_ranks(figures['ranks'])}", file=out)
    if arguments.trace is not None:
        of_rank = ".rank-0, one for each rank" if "ranks" in figures else ""
        print(f"trace: {arguments.trace}{of_rank} (open it at ui.perfetto.dev)", file=out)
    write_json(arguments.json, figures)


def _depth(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _widths(text: str) -> tuple[int, ...]:
    return tuple(int(width) for width in text.split(",") if width)


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    group.add_argument("data", nargs="+", metavar="DATA", help="the log's files or patterns")
    group.add_argument("--test", nargs="+", default=[], metavar="DATA", help="log to measure on")
    group.add_argument(
        "--format", default="criteo", help="criteo, parquet, libsvm, libffm or slots"
    )
    group.add_argument("--batch-size", type=int, default=4096, help="examples a batch")
    group.add_argument("--epochs", type=int, default=1, help="passes over the log")
    group.add_argument(
        "--shuffle-files", action="store_true", help="read the files in an order drawn from --seed"
    )
    group.add_argument("--limit", type=int, default=0, help="stop after so many examples; 0: none")
    group.add_argument("--on-error", default="raise", help="a bad line: raise, or skip and count")
    group.add_argument("--hash-keys", action="store_true", help="hash keys that are numbers, too")
    group.add_argument(
        "--shared-vocabulary",
        action="store_true",
        help="equal values of different features are one key",
    )
    group.add_argument("--dense", type=int, default=None, help="dense columns, if not the format's")
    group.add_argument("--label", default="label", help="parquet: the column of labels")


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="deepfm", help="deepfm, dlrm, wide_deep or dcn_v2")
    group.add_argument("--dim", type=int, default=16, help="width of an embedding")
    group.add_argument("--hidden", type=_widths, default="256,128", help="widths of deep layers")
    group.add_argument("--dropout", type=float, default=0.0, help="of the deep layers")
    group.add_argument(
        "--optimizer", default="adagrad", help="of rows: sgd, adagrad, rowwise_adagrad, adam, ftrl"
    )
    group.add_argument(
        "--lr", type=float, default=None, help="of rows; 0.02, Adam 0.001, FTRL 0.05"
    )
    group.add_argument(
        "--dense-lr", type=float, default=None, help="of the dense part's Adam; 0.001"
    )
    group.add_argument("--init-std", type=float, default=0.01, help="of new rows' weights")
    group.add_argument("--scheduler", default="constant", help="constant, warmup or cosine")
    group.add_argument("--scheduler-steps", type=int, default=0, help="steps it spans")
    group.add_argument("--accumulate", type=int, default=1, help="batches a step")
    group.add_argument("--precision", default="float32", help="float32, bfloat16 or float16")
    group.add_argument("--seed", type=int, default=0, help="of rows, dense weights and dropout")


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument("--store", type=Path, default=None, metavar="DIR", help="the store")
    group.add_argument("--dram", default="1GiB", help="budget of the host tier")
    group.add_argument("--gpu", default=None, help="budget of the GPU tier")
    group.add_argument("--device", default=None, help="of the GPU tier")
    group.add_argument(
        "--engine", default="segments", help="of the SSD tier: segments, or rocksdb (rocksdict)"
    )
    group.add_argument(
        "--depth", type=_depth, default="auto", help="batches prepared ahead, 0 to 8, or auto"
    )
    group.add_argument(
        "--lookahead", type=int, default=0, help="batches read before fetching, for caches to keep"
    )
    group.add_argument(
        "--trace", type=Path, default=None, metavar="FILE", help="what each stage did when, as JSON"
    )
    group.add_argument(
        "--checkpoint-every", type=int, default=0, metavar="N", help="batches between checkpoints"
    )
    group.add_argument(
        "--resume", action="store_true", help="go on from the newest checkpoint with a model"
    )
    group.add_argument(
        "--new-data", action="store_true", help="with --resume: read DATA from its beginning"
    )
    group.add_argument("--threads", type=int, default=0, help="of the native core; 0: all cores")
    group.add_argument("--torch-threads", type=int, default=0, help="of torch; 0: its choice")
    group.add_argument("--instruction-set", default="auto", help="auto, avx512, avx2 or plain")
    group.add_argument(
        "--progress-seconds", type=float, default=2.0, help="between live lines; 0: none"
    )
    group.add_argument(
        "--no-digest",
        dest="digest",
        action="store_false",
        help="leave out the tables' digests, which read every row (digests: %(default)s)",
    )
    group.add_argument("--json", type=Path, default=None, metavar="OUT", help="figures to a file")


def _add_rank_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("ranks (under torchrun)")
    group.add_argument(
        "--row-wire", default="float32", help="rows travel as float32, float16, bfloat16 or int8"
    )
    group.add_argument("--gradient-wire", default="float32", help="gradients, likewise")
    group.add_argument(
        "--hot-rows", type=int, default=0, metavar="N", help="rows asked for most, on every rank"
    )
    group.add_argument(
        "--cluster-timeout",
        type=float,
        default=CLUSTER_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="a rank that does not answer for so long is given up",
    )
