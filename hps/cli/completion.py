"""`hps completion`: what a shell needs to complete the command's words, made of its parsers.

Above it: `hps.cli.main`, tools/shell_pages.py, which puts the same text into the wheel. Below it:
the package shtab, which writes it; whole_command.py. A shell runs it without starting Python.
"""

import argparse
import sys

from hps.cli import flags
from hps.cli.main import COMMANDS
from hps.cli.whole_command import parsers_of, whole_parser
from hps.errors import ConfigError

SHELLS = ("bash", "zsh")


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `completion`."""
    parser = subparsers.add_parser(
        "completion",
        help="a shell's completion of this command",
        description="Prints what completes hps in a shell: commands, flags, the names that a flag "
        'may be, files and folders. For bash: eval "$(hps completion bash)" in ~/.bashrc; for zsh: '
        "hps completion zsh > FOLDER/_hps, with a FOLDER of $fpath. docs/install.md says more.",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash or zsh")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints it."""
    sys.stdout.write(completion_text(arguments.shell))
    return 0


def completion_text(shell: str) -> str:
    """The text for one of SHELLS.

    Raises:
        ConfigError: the package shtab is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise ConfigError(
            "hps completion needs the package shtab; install it with: "
            "pip install 'hps-ctr[terminal]'"
        ) from error
    parser = whole_parser()
    for one in parsers_of(parser):
        command = COMMANDS.get(one.prog.removeprefix("hps "))
        if command is not None:
            one.description = command[1]  # zsh shows it beside the command
    _name_files(parser, shtab.FILE, shtab.DIRECTORY)
    text: str = shtab.complete(parser, shell=shell)
    return text


def _name_files(parser: argparse.ArgumentParser, file: object, folder: object) -> None:
    """Notes at each flag and word that takes a path what shtab completes it with."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                _name_files(one, file, folder)
        elif flags.takes_path(action.type):
            is_folder = str(action.metavar) == "DIR"
            action.complete = folder if is_folder else file  # type: ignore[attr-defined]
