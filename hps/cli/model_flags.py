"""Flags of the commands that open a stored model and read a log with it.

Above it: evaluate.py, predict.py. Below it: flags.py.
"""

import argparse
from typing import Any

from hps.cli import flags
from hps.cli.output import checkpoint_name
from hps.config import GpuCacheConfig
from hps.errors import ConfigError
from hps.reader.config import FORMATS


def add_model_flags(parser: flags.Flags) -> None:
    """Which checkpoint, with how much memory, and how the log is read."""
    add = parser.add_argument
    add(
        "--checkpoint",
        "--tag",
        type=checkpoint_name,
        metavar="TAG",
        help="tag of the checkpoint, or its id as id:N; if not given, the newest with a model",
    )
    add("--dram", type=flags.dram, default="256MiB", metavar="BYTES", help=flags.DRAM_HELP)
    add("--gpu", type=flags.size, metavar="BYTES", help="GPU memory for rows; no GPU if not given")
    add("--gpu-batches", type=flags.size, metavar="BYTES", help=flags.GPU_BATCHES_HELP)
    add("--device", type=flags.device, help="device of --gpu and of the model: cuda:N or cpu")
    add("--format", choices=FORMATS, help="format of DATA; must be that of the training")
    add("--delimiter", type=flags.word, metavar="C", help=flags.DELIMITER_HELP)
    add(
        "--batch-size",
        type=flags.whole(1, 2**24),
        default=4096,
        metavar="N",
        help="examples in a batch, 1 to 16777216",
    )


def gpu_of(arguments: argparse.Namespace) -> GpuCacheConfig | None:
    """The GPU tier that was asked for.

    Raises:
        ConfigError: a device, or a part of a budget, without a budget.
    """
    if arguments.gpu is not None:
        device, batches = arguments.device or "cuda:0", arguments.gpu_batches
        return GpuCacheConfig(bytes=arguments.gpu, device=device, batch_bytes=batches)
    if arguments.gpu_batches is not None:
        raise ConfigError("--gpu-batches is a part of the GPU tier's budget; give that (--gpu) too")
    if arguments.device is not None:
        raise ConfigError(
            f"--device {arguments.device} is that of the GPU tier; give its budget (--gpu) too"
        )
    return None


def check_which(arguments: argparse.Namespace) -> None:
    """Refuses a tag of a published model, and a version of any other."""
    if arguments.model is None and arguments.version is not None:
        raise ConfigError("--version is of a published model; give --model URL, or --tag TAG")
    if arguments.model is not None and arguments.checkpoint is not None:
        raise ConfigError("--tag is of a store; a published model has numbers: --version N")


def reading_of(arguments: argparse.Namespace, *more: str) -> dict[str, Any]:
    """Fields of `ReaderConfig` that were given: those above and `more`."""
    names = ("format", "delimiter", "batch_size", *more)
    given = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}
