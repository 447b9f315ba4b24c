"""The page of the command line: a section a command, made of the parsers.

Above it: pages.py. Below it: hps.cli, whose parsers are walked as for the man pages.
"""

import argparse
import re
from collections.abc import Iterator

from hps.cli.main import COMMANDS
from hps.cli.whole_command import parsers_of, whole_parser

_TOP = """# Command line

Every command, made of its parser; `hps COMMAND --help` prints the same on a terminal, and
`man hps-COMMAND` has it where hps is installed from a wheel. A number in a flag may be written
2000000, 2_000_000 or 2e6, bytes as 64MiB or 2GiB. Exit statuses: 0, done; 1, it could not be done,
with the reason in one line; 2, a mistake in the command.

"""


def page() -> str:
    """The page, in Markdown."""
    by_name = {one.prog: one for one in parsers_of(whole_parser())}
    text = _TOP + "| command | what it does |\n| --- | --- |\n"
    for name, (_, short) in COMMANDS.items():
        text += f"| [`hps {name}`](#hps-{name}) | {short} |\n"
    for name in COMMANDS:
        for parser in parsers_of(by_name[f"hps {name}"]):
            text += "".join(_section(parser))
    return text


def _section(parser: argparse.ArgumentParser) -> Iterator[str]:
    level = "##" if parser.prog.count(" ") == 1 else "###"
    yield f"\n{level} {parser.prog} {{#{parser.prog.replace(' ', '-')}}}\n\n"
    if parser.description:
        yield f"{_cell(parser.description)}\n\n"
    yield f"```text\n{_synopsis(parser)}\n```\n"
    for group in parser._action_groups:
        actions = [one for one in group._group_actions if _is_shown(one)]
        if actions:
            title = "arguments" if group.title == "positional arguments" else group.title
            yield f"\n| {title} | what it is |\n| --- | --- |\n"
            yield from (f"| {_flags(one)} | {_help(parser, one)} |\n" for one in actions)


def _is_shown(action: argparse.Action) -> bool:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return not isinstance(action, hidden) and action.help is not argparse.SUPPRESS


def _synopsis(parser: argparse.ArgumentParser) -> str:
    words = [parser.prog]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words.append("VERB ...")
        elif not action.option_strings and _is_shown(action):
            words.append(_value(action))
        elif action.required:
            words.append(f"{action.option_strings[0]} {_value(action)}".strip())
    return " ".join([*words, "[options]"])


def _value(action: argparse.Action) -> str:
    """The name of its value, with the marks of how many there may be."""
    if action.nargs == 0:
        return ""
    name = action.metavar or action.dest.upper()
    if action.choices and not action.metavar:
        name = "{" + ", ".join(map(str, action.choices)) + "}"
    if isinstance(name, tuple):
        return " ".join(name)
    marks = {"?": f"[{name}]", "*": f"[{name} ...]", "+": f"{name} [{name} ...]"}
    return marks.get(str(action.nargs), name)


def _flags(action: argparse.Action) -> str:
    value = _value(action).replace("|", "\\|")
    if not action.option_strings:
        return f"`{value}`"
    flags = [f"`{flag}`" for flag in action.option_strings]
    if value:
        flags[-1] = f"{flags[-1][:-1]} {value}`"
    return ", ".join(flags)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return _cell(parser._get_formatter()._expand_help(action)) if action.help else ""


def _cell(text: str) -> str:
    """Plain text as Markdown: nothing in it is a mark; pages of docs/ become links."""
    words = " ".join(text.split())
    words = re.sub(r"([\\*_<>|\[\]])", r"\\\1", words)
    return re.sub(r"docs/[\w\\/]+\.md", lambda page: f"`{page[0]}`".replace("\\", ""), words)
