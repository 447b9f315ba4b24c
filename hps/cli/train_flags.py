"""The flags of `hps train`: what each is, its unit, default and limits.

Above it: `hps.cli.train`. Below it: hps.cli.flags. Torch is imported by nothing here.
"""

import argparse

from hps.cli import flags
from hps.cli.config_file import add_config_flag
from hps.cli.output import JSON_HELP, checkpoint_name
from hps.cli.server_flags import WIRES, add_server_flags
from hps.common.model_names import OWN, own_model
from hps.common.optimizers import OPTIMIZERS
from hps.config import ENGINES, INSTRUCTION_SETS
from hps.reader.config import FORMATS

CLUSTER_TIMEOUT_SECONDS = 600.0
# As hps.models and hps.train.options have them, which import torch; a test compares them.
MODELS = ("deepfm", "dlrm", "wide_deep", "dcn_v2", "lr", "fm", "autoint")
SCHEDULERS = ("constant", "warmup", "cosine")
BEST_BY = ("auc", "logloss")
PRECISIONS = ("float32", "bfloat16", "float16")
_DATA_HELP = "the log's files in order, or patterns; .gz and .zst are unpacked"


def add_train_flags(parser: argparse.ArgumentParser) -> None:
    """Adds all of them, in groups."""
    add_config_flag(parser)
    _add_data_flags(parser)
    _add_valid_flags(parser)
    _add_model_flags(parser)
    _add_optimizer_flags(parser)
    _add_run_flags(parser)
    _add_output_flags(parser)
    _add_speed_flags(parser)
    _add_rank_flags(parser)
    add_server_flags(parser.add_argument_group("servers instead of a store"))


def _eval_every(text: str) -> int | str:
    try:
        return text if text == "epoch" else flags.whole(1, 2**62)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or epoch") from error


def _depth(text: str) -> int | str:
    try:
        return text if text == "auto" else flags.whole(0, 8)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from error


def _model(text: str) -> str:
    """A name of MODELS, or one that may be a user's own; its file is looked at later."""
    if text not in MODELS and own_model(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be one of {', '.join(MODELS)}, or a model of your own as {OWN}"
        )
    return text


def _widths(text: str) -> tuple[int, ...]:
    """Whole numbers; an empty text is a model without deep layers."""
    width = flags.whole(1, 2**20)
    return tuple(width(part) for part in text.split(",")) if text else ()


def _add_data_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data")
    add = group.add_argument
    add("data", nargs="*", type=flags.word, default=[], metavar="DATA", help=_DATA_HELP)
    add(
        "--test",
        nargs="+",
        type=flags.word,
        default=[],
        metavar="DATA",
        help="a log of the same format to measure AUC and logloss on, after training",
    )
    add(
        "--format",
        choices=FORMATS,
        help="format of DATA; if not given, found from the files, with --resume that of the model",
    )
    add(
        "--batch-size",
        type=flags.whole(1, 2**24),
        default=4096,
        metavar="N",
        help="examples in a batch, over all ranks; 1 to 16777216",
    )
    add("--delimiter", type=flags.word, metavar="C", help=flags.DELIMITER_HELP)
    add("--epochs", type=flags.whole(1, 2**31), default=1, metavar="N", help="passes over the log")
    add("--shuffle-files", action="store_true", help="read files in an order drawn from --seed")
    add(
        "--shuffle-buffer",
        type=flags.whole(0, 2**23),
        default=0,
        metavar="N",
        help="shuffle the examples within each N of DATA, in whole batches, by --seed; N examples "
        "lie in memory; 0 to 8388608, 0: the log's order",
    )
    add(
        "--limit",
        type=flags.whole(0, 2**62),
        default=0,
        metavar="N",
        help="stop after the batch with the model's Nth example since its beginning; 0: no limit",
    )
    add(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="at a bad line: stop and name it, or leave it out and count it (skipped lines)",
    )
    add("--allow-empty", action="store_true", help="accept a log without examples")
    add(
        "--negative-rate",
        type=flags.number(above=0, most=1),
        metavar="R",
        help="share of the examples with label 0 to train on, above 0, at most 1; --test, evaluate "
        "and predict read all and correct for it; if not given, 1, or that of the model",
    )
    add(
        "--features",
        type=flags.path,
        metavar="FILE",
        help="features file: what the columns of DATA are and what is made of them; 'hps features' "
        "writes one; with --resume that of the stored model",
    )
    add_reading_flags(group)
    add_column_flags(group)


def _add_valid_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("validation")
    add, what = group.add_argument, group.add_mutually_exclusive_group()
    what.add_argument(
        "--valid",
        nargs="+",
        type=flags.word,
        default=[],
        metavar="DATA",
        help="a log of the same format to measure the model on while it is trained; the best one "
        "is kept under the tag 'best'",
    )
    what.add_argument(
        "--valid-share",
        type=flags.number(above=0, below=1),
        metavar="S",
        help="instead of --valid: the share of DATA to validate on and not to train on, chosen by "
        "a hash of each example; above 0, below 1",
    )
    add(
        "--eval-every",
        type=_eval_every,
        default="epoch",
        metavar="N",
        help="batches between two validations, or epoch: at the end of each; one more at the end",
    )
    add(
        "--patience",
        type=flags.whole(0, 2**31),
        default=0,
        metavar="K",
        help="end the run after K validations in a row that were no better than the best; 0: never",
    )
    add(
        "--best-by",
        choices=BEST_BY,
        default="auc",
        help="what makes a model the best one",
    )
    add(
        "--progressive",
        action="store_true",
        help="measure, by file of DATA, how the model scores examples before it is trained on them",
    )


def add_reading_flags(group: flags.Flags) -> None:
    """What becomes part of the model: a flag that is not given is None."""
    add = group.add_argument
    keys = group.add_mutually_exclusive_group()
    keys.add_argument(
        "--hash-keys",
        action="store_true",
        default=None,
        help="hash keys that are whole numbers with their feature; the default for parquet and csv",
    )
    keys.add_argument(
        "--raw-keys",
        dest="hash_keys",
        action="store_false",
        help="use whole numbers as keys unchanged; the default for libsvm, libffm and slots",
    )
    add(
        "--shared-vocabulary",
        action="store_true",
        default=None,
        help="make equal values of different features one key",
    )
    add(
        "--dense",
        type=flags.whole(0, 2**16),
        metavar="N",
        help="numeric columns, 0 to 65536; if not given, 13 for criteo, else as in the log",
    )
    add(
        "--dense-log",
        dest="dense_transform",
        action="store_const",
        const="signed_log1p",
        help="take the logarithm of dense values of parquet, csv and slots, as is done for criteo",
    )
    add(
        "--dense-columns",
        type=flags.word,
        nargs="+",
        metavar="COLUMN",
        help="columns of numbers that are dense values; parquet and csv only; if not given, those "
        "of floats and decimals",
    )


def add_column_flags(group: flags.Flags) -> None:
    """Columns that are no features, by name; part of the model, too."""
    add = group.add_argument
    add(
        "--label",
        type=flags.word,
        metavar="COLUMN",
        help="column of labels, 0 or 1; parquet and csv only; 'label' if not given",
    )
    add(
        "--weight",
        type=flags.word,
        metavar="COLUMN",
        help="column of weights of the examples in the loss, each at least 0; parquet and csv "
        "only; all count alike if not given",
    )
    add(
        "--group",
        type=flags.word,
        metavar="COLUMN",
        help="column of groups, such as users, to measure GAUC within on --test; parquet and csv "
        "only; it stays a feature unless --ignore names it",
    )
    add(
        "--ignore",
        type=flags.word,
        action="append",
        metavar="COLUMN",
        help="column to leave out; parquet and csv only; may be repeated",
    )


def _add_model_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    add(
        "--model",
        type=_model,
        metavar="MODEL",
        help=f"kind of the model: {', '.join(MODELS)}, or one of your own as {OWN}, whose file is "
        "run; if not given, deepfm, with --resume that of the stored model; the same holds for the "
        "three flags below; docs/models.md",
    )
    add(
        "--dim",
        type=flags.whole(1, 4096),
        metavar="N",
        help="floats of an embedding; 1 to 4096, with the first-order column of deepfm, wide_deep "
        "and fm; not of lr, which has none; if not given, 16, or the stored one",
    )
    add(
        "--hidden",
        type=_widths,
        metavar="N,N,...",
        help="widths of the deep layers, each 1 to 1048576; '': none; not of lr and fm, which have "
        "none; if not given, 256,128, or the stored ones",
    )
    add(
        "--dropout",
        type=flags.number(0, below=1),
        metavar="P",
        help="dropout of the deep layers, from 0 to below 1; not of lr and fm; if not given, 0.0, "
        "or the stored one",
    )
    add(
        "--no-base-rate",
        dest="base_rate",
        action="store_false",
        help="start a new model's output bias at 0 or at its drawn value, not at the log's share "
        "of clicks (base rate: %(default)s)",
    )


def _add_optimizer_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("optimizers and randomness").add_argument
    add(
        "--optimizer",
        choices=tuple(OPTIMIZERS),
        help="optimizer of rows; if not given, adagrad, with --resume the stored one",
    )
    rate = flags.number(above=0)
    add(
        "--lr",
        type=rate,
        metavar="RATE",
        help="learning rate of rows, above 0; if not given, 0.02 (adam 0.001, ftrl 0.05), with "
        "--resume the stored one",
    )
    add(
        "--dense-lr",
        type=rate,
        metavar="RATE",
        help="learning rate of the dense part's Adam, above 0; if not given, 0.001, or the stored "
        "one",
    )
    add(
        "--init-std",
        type=flags.number(0),
        default=0.01,
        metavar="STD",
        help="standard deviation of new rows' weights, at least 0",
    )
    add(
        "--scheduler",
        choices=SCHEDULERS,
        default="constant",
        help="schedule of both learning rates",
    )
    add(
        "--scheduler-steps",
        type=flags.whole(0, 2**62),
        default=0,
        metavar="N",
        help="number of steps of warmup or cosine, at least 1",
    )
    add(
        "--accumulate",
        type=flags.whole(1, 2**31),
        default=1,
        metavar="N",
        help="batches in a step, at least 1",
    )
    add(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="number format of the dense part's forward pass",
    )
    add(
        "--compile",
        action="store_true",
        help="compile the model with torch.compile; needs a C++ compiler, in one process alone",
    )
    add(
        "--seed",
        type=flags.whole(0, 2**64 - 1),
        default=0,
        metavar="N",
        help="seed of rows, dense weights and dropout, 0 to 2^64 - 1; equal seeds give equal bits",
    )


def _add_run_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("run").add_argument
    add(
        "--store",
        type=flags.path,
        metavar="DIR",
        help="folder of the store; created if missing; give this or --server",
    )
    add("--dram", type=flags.dram, default="1GiB", metavar="BYTES", help=flags.DRAM_HELP)
    add(
        "--gpu",
        type=flags.size,
        metavar="BYTES",
        help="GPU memory for working rows; no GPU if not given",
    )
    add("--device", type=flags.device, help="device of --gpu: cuda:N or cpu; cuda:0 if not given")
    add("--engine", choices=ENGINES, default="segments", help="engine of a new store's SSD tier")
    add(
        "--checkpoint-every",
        type=flags.whole(0, 2**62),
        default=0,
        metavar="N",
        help="batches between two checkpoints; 0: none by number of batches",
    )
    add(
        "--checkpoint-seconds",
        type=flags.number(0),
        default=600.0,
        metavar="SECONDS",
        help="time between two checkpoints, in addition to --checkpoint-every; 0: none by time",
    )
    add("--resume", action="store_true", help="continue from the newest checkpoint with a model")
    add(
        "--resume-from",
        type=checkpoint_name,
        metavar="TAG",
        help="as --resume, but go back to this checkpoint (its tag, or its id as id:N) first",
    )
    add(
        "--resume-if-any",
        action="store_true",
        help="as --resume, but train from the beginning if there is no checkpoint; one that "
        "--resume-from names must exist",
    )
    add("--new-data", action="store_true", help="with --resume: read DATA from its beginning")
    add(
        "--change-features",
        action="store_true",
        help="with --new-data: give the model the features and dense columns that DATA and "
        "--features have now; what it has learned of those that stay is kept",
    )


def _add_output_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is told").add_argument
    add(
        "--progress-seconds",
        type=flags.number(0),
        default=2.0,
        metavar="SECONDS",
        help="time between two live lines; 0: no live lines",
    )
    add(
        "--no-digest",
        dest="digest",
        action="store_false",
        help="leave out the tables' digests, which read every row (digests: %(default)s)",
    )
    add("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    add(
        "--report",
        type=flags.path,
        metavar="DIR",
        help="folder for the run's history, its figures and a page of plots (report.html)",
    )
    add(
        "--tensorboard",
        type=flags.path,
        metavar="DIR",
        help="folder for TensorBoard's event files: losses, AUC, rates, hit rates",
    )


def _add_speed_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("speed").add_argument
    add(
        "--depth",
        type=_depth,
        default="auto",
        metavar="N",
        help="batches prepared ahead, 0 to 8; auto measures whether 2 is faster than 0",
    )
    add(
        "--lookahead",
        type=flags.whole(0, 64),
        default=0,
        metavar="N",
        help="batches read ahead of fetching, 0 to 64; caches keep their rows; none at depth 0",
    )
    add(
        "--trace",
        type=flags.path,
        metavar="FILE",
        help="file for a trace of the stages, for Perfetto",
    )
    add(
        "--threads",
        type=flags.whole(0, 64),
        default=0,
        metavar="N",
        help="threads of the reader and of the row tiers, 0 to 64; 0: one per core",
    )
    add(
        "--torch-threads",
        type=flags.whole(0, 1024),
        default=0,
        metavar="N",
        help="threads of torch, 0 to 1024; 0: torch chooses",
    )
    add(
        "--instruction-set",
        choices=INSTRUCTION_SETS,
        default="auto",
        help="of the native core; all give equal bits",
    )


def _add_rank_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("ranks (under torchrun)").add_argument
    add("--row-wire", choices=WIRES, default="float32", help="format of rows between ranks")
    add(
        "--gradient-wire",
        choices=WIRES,
        default="float32",
        help="format of gradients between ranks",
    )
    add(
        "--hot-rows",
        type=flags.whole(0, 2**20),
        default=0,
        metavar="N",
        help="number of the most used rows, kept on every rank; 0 to 1048576",
    )
    add(
        "--cluster-timeout",
        type=flags.number(above=0),
        default=CLUSTER_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="time after which a rank that does not answer counts as lost",
    )
