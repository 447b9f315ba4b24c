"""`hps predict`: probabilities of a stored model for each example of a log.

Above it: `hps.cli.main`. Below it: `hps.train.predict`.
"""

import argparse
from typing import TYPE_CHECKING

from hps.cli import flags
from hps.cli.model_flags import add_model_flags, check_which, gpu_of, reading_of
from hps.cli.output import JSON_HELP, check_out_path, stream_for_people, write_json

if TYPE_CHECKING:
    from hps.config import GpuCacheConfig
    from hps.train.model import Model


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `predict`."""
    parser = subparsers.add_parser(
        "predict",
        help="write a stored model's probabilities; the store is opened read-only",
        description="Writes the probability of a click for each example of a log, in its order. "
        "The store is opened read-only, also beside a training.",
    )
    add = parser.add_argument
    add(
        "data",
        nargs="+",
        type=flags.word,
        metavar="DATA",
        help="the log's files in order, URLs, or patterns; .gz and .zst are unpacked; of parquet "
        "and csv the column of labels may be absent, of libsvm, libffm and slots the label of any "
        "line",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--store", type=flags.path, metavar="DIR", help="folder of the store")
    where.add_argument(
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
    add(
        "--out",
        type=flags.path,
        required=True,
        metavar="FILE",
        help="written whole at the end: .parquet or .csv with the column 'probability' (and "
        "those of --keep), or .npy",
    )
    add(
        "--keep",
        action="append",
        default=[],
        type=flags.word,
        metavar="COLUMN",
        help="a column of a log of parquet or csv that is written beside the scores; may be "
        "repeated; of csv what the model reads as a number is written as one",
    )
    add_model_flags(parser)
    add("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    flags.add_quiet(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Scores as the flags say; returns the exit status."""
    check_out_path(arguments.json)
    check_out_path(arguments.out, "--out")
    gpu = gpu_of(arguments)
    from hps.train.absent_keys import format_absent
    from hps.train.model import Model  # torch takes its time to import
    from hps.train.predict import kind_of, predict_log

    kind_of(arguments.out)
    changes = reading_of(arguments)
    with _opened(Model, arguments, gpu) as model:
        figures = predict_log(model, arguments.data, arguments.out, keep=arguments.keep, **changes)
    print(
        f"{figures['examples']:,} probabilities in {arguments.out}, mean {figures['mean']:.4f}, "
        f"{figures['examples_per_second']:,.0f} a second; {figures['model']} of "
        f"{'version' if arguments.model else 'checkpoint'} {model.version}",
        file=stream_for_people(arguments.json),
    )
    absent = format_absent(figures)
    if absent is not None:
        print(absent, file=stream_for_people(arguments.json))
    write_json(arguments.json, figures)
    return 0


def _opened(
    model: "type[Model]", arguments: argparse.Namespace, gpu: "GpuCacheConfig | None"
) -> "Model":
    """The model of the store, or of the version, that the flags name."""
    check_which(arguments)
    if arguments.model is None:
        return model.load(arguments.store, arguments.checkpoint, dram=arguments.dram, gpu=gpu)
    return model.load(arguments.model, version=arguments.version, dram=arguments.dram, gpu=gpu)
