"""Types of flags: each takes a word of the command line, or says what the word must be. And the
flags that several commands have.

Above it: the commands of hps.cli, which give the types to argparse; argparse puts the flag's name
before what they say, and the command ends with status 2 before it has done anything. Below it:
output.py, hps/options/values.py, hps.config, which knows sizes.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from hps.cli.output import checkpoint_name
from hps.common.byte_sizes import parse_bytes
from hps.errors import ConfigError
from hps.options import values
from hps.options.data import DELIMITER_HELP as DELIMITER_HELP
from hps.options.run import DRAM_HELP as DRAM_HELP
from hps.options.run import GPU_BATCHES_HELP as GPU_BATCHES_HELP

# argparse gives these no public names.
Flags: TypeAlias = "argparse._ActionsContainer"  # a parser, or a group of its flags
Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def of(kind: values.ValueType) -> Callable[[str], Any]:
    """What argparse calls for a word of a type."""

    def parse(text: str) -> object:
        try:
            return kind.parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    parse.kind = kind  # type: ignore[attr-defined]
    return parse


def takes_path(type: object) -> bool:
    """True of the type of a flag whose words are paths.

    >>> takes_path(path), takes_path(word), takes_path(None)
    (True, False, False)
    """
    return getattr(type, "kind", None) in (values.PATH, values.FOLDER, values.DATA)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A whole number, at least `least`, at most `most` if that is given.

    >>> whole(1, 4096)("16")
    16
    """
    return of(values.whole(least, most))


def number(
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> Callable[[str], float]:
    """A finite number from `least` to `most`; greater than `above`, less than `below` where given.

    >>> number(0, below=1)("0.5")
    0.5
    """
    return of(values.number(least, most, above=above, below=below))


word: Callable[[str], str] = of(values.WORD)
path: Callable[[str], Path] = of(values.PATH)
size: Callable[[str], str] = of(values.SIZE)
device: Callable[[str], str] = of(values.DEVICE)


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


def add_store(parser: Flags, text: str = "folder of the store") -> None:
    """Adds DIR."""
    parser.add_argument("store", type=path, metavar="DIR", help=text)
    add_no_store_flag(parser)


class _Elsewhere(argparse.Action):
    """A flag that another command has: it says which, in the words of its `const`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        words = str(self.const).replace("{}", str(values))
        parser.error(f"argument {option_string}: {words}")


def add_no_store_flag(parser: Flags) -> None:
    """Refuses `--store` for a command whose store is a word, as those of training have the flag."""
    parser.add_argument(
        "--store",
        action=_Elsewhere,
        type=path,
        const="this command takes the folder without a flag, as its DIR: {}",
        dest="store_flag",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def add_no_server(parser: Flags, instead: str) -> None:
    """Adds `--server` to a command that reads a folder: it is refused.

    Args:
        parser: of the command.
        instead: what to do, where {} is HOST:PORT.
    """
    parser.add_argument(
        "--server",
        action=_Elsewhere,
        type=word,
        const=instead,
        metavar="HOST:PORT,...",
        default=argparse.SUPPRESS,
        help="refused, with what to do: rows on servers are not read from here",
    )


def add_quiet(parser: Flags) -> None:
    """Adds `--quiet`, which main.py reads."""
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="print nothing but errors and warnings; what --json and files are to hold is written",
    )


def add_checkpoint(parser: Flags) -> None:
    """Adds `--checkpoint`."""
    parser.add_argument(
        "--checkpoint",
        type=checkpoint_name,
        metavar="TAG",
        help="the checkpoint to read: its tag, or its id as id:N; the newest if not given",
    )
