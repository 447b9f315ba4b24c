"""The parser of `hps` with all its commands, for what describes the whole command.

Above it: completion.py, tools/shell_pages.py. Below it: main.py, every module of a command. A run
of one command parses by `main.make_parser`, which imports that command alone.
"""

import argparse
from collections.abc import Iterator
from importlib import import_module


def whole_parser() -> argparse.ArgumentParser:
    """The parser with a parser of each command, and of each command's verbs."""
    from hps.cli.main import COMMANDS, new_parser

    parser = new_parser()
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in dict.fromkeys(module for module, _ in COMMANDS.values()):
        import_module(f"hps.cli.{module}").add_parsers(subparsers)
    return parser


def parsers_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser, then those of its commands and verbs.

    >>> [one.prog for one in parsers_of(whole_parser())][:2]
    ['hps', 'hps generate']
    """
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers_of(child)
