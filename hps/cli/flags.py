"""Types of flags: each takes a word of the command line, or says what the word must be. And the
flags that several commands have.

Above it: the commands of hps.cli, which give the types to argparse; argparse puts the flag's name
before what they say, and the command ends with status 2 before it has done anything. Below it:
output.py, and hps.config, which knows sizes.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from hps.cli.output import checkpoint_name
from hps.config import GpuCacheConfig, parse_bytes
from hps.errors import ConfigError

DELIMITER_HELP = (
    "csv only: the character between columns; if not given, that of comma, tab, semicolon and bar "
    "of which the header has most"
)
DRAM_HELP = "most memory for cached rows, such as 800MB or 1.5GiB; taken as rows come"

# argparse gives these no public names.
Flags: TypeAlias = "argparse._ActionsContainer"  # a parser, or a group of its flags
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number, at least `least`, at most `most` if that is given.

    >>> whole(1, 4096)("16")
    16
    """
    limit = f"of at least {least}" if most is None else f"from {least} to {most}"

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number {limit}")
        return value

    return parse


def number(
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float | None = None,
    below: float | None = None,
) -> Callable[[str], float]:
    """A finite number from `least` to `most`; greater than `above`, less than `below` where given.

    >>> number(0, below=1)("0.5")
    0.5
    """
    limits = [f"at least {least:g}"] if math.isfinite(least) else []
    limits += [f"at most {most:g}"] if math.isfinite(most) else []
    limits += [] if above is None else [f"greater than {above:g}"]
    limits += [] if below is None else [f"less than {below:g}"]

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        is_inside = (above is None or value > above) and (below is None or value < below)
        if not math.isfinite(value) or not least <= value <= most or not is_inside:
            wanted = ", " + " and ".join(limits) if limits else " that is finite"
            raise argparse.ArgumentTypeError(f"{text!r} must be a number{wanted}")
        return value

    return parse


def size(text: str) -> str:
    """A number of bytes, as it is; hps.config turns it into one.

    >>> size("1.5GiB")
    '1.5GiB'
    """
    try:
        parse_bytes(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a size above 0 in bytes, such as 1073741824, 1GiB, 800MB"
        ) from error
    return text


def dram(text: str) -> str:
    """A size of host memory. More than there is gets a warning: it is a limit, not taken at once.

    >>> dram("1MiB")
    '1MiB'
    """
    size(text)
    memory = _memory_bytes()
    if parse_bytes(text) > memory:
        print(
            f"hps: warning: --dram {text} is more than the {memory / 2**30:.1f} GiB of memory "
            "here; with so many rows the system would end the process: give less",
            file=sys.stderr,
        )
    return text


def _memory_bytes() -> int:
    """Of the machine, or of the control group that this process is in if it has a limit."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text()
    except OSError:
        return memory
    return min(memory, int(limit)) if limit.strip().isdecimal() else memory


def word(text: str) -> str:
    """Any text but an empty one.

    >>> word("label")
    'label'
    """
    if not text:
        raise argparse.ArgumentTypeError("the value is empty")
    return text


def path(text: str) -> Path:
    """The path of a file or folder, there or not.

    >>> path("model").name
    'model'
    """
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is the path of no file or folder")
    return Path(text)


def device(text: str) -> str:
    """Where a GPU tier lies.

    >>> device("cuda:1")
    'cuda:1'
    """
    try:
        GpuCacheConfig(bytes=1, device=text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(f"{text!r} must be cuda, cuda:N or cpu") from error
    return text


def add_store(parser: Flags, text: str = "folder of the store") -> None:
    """Adds DIR."""
    parser.add_argument("store", type=path, metavar="DIR", help=text)


def add_checkpoint(parser: Flags) -> None:
    """Adds `--checkpoint`."""
    parser.add_argument(
        "--checkpoint",
        type=checkpoint_name,
        metavar="TAG",
        help="the checkpoint to read: its tag, or its id as id:N; the newest if not given",
    )
