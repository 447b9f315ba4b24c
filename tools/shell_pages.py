"""Writes what a wheel lays where man and the shells look: man/*.1, completions/hps and _hps.

Above it: `make pages`, tools/wheels.sh. Below it: the parsers of hps.cli, and the packages
argparse-manpage and shtab, which write the two languages. A page is of its parser alone, so none
is committed: python -m tools.shell_pages [FOLDER].
"""

import argparse
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

from hps.cli.completion import completion_text
from hps.cli.main import COMMANDS, new_parser
from hps.cli.whole_command import parsers_of, whole_parser
from hps.common.version import __version__

ROOT = Path(__file__).resolve().parent.parent
DATE = "hps"  # man's footer: pages of one version are the same whenever they are made


def man_page(parser: argparse.ArgumentParser, short: str, commands: str = "") -> str:
    """The text of one page.

    Args:
        parser: of a command, with its verbs.
        short: what it does, in one line.
        commands: the list of commands, in roff.
    """
    page = Manpage(parser, {"description": short, "date": DATE, "project_name": "hps"})
    page.source = f"hps {__version__}"
    page.manual = "hps"
    page.prog = parser.prog.replace(" ", "-")
    text = str(page)
    return text + commands


def _list_of_commands() -> str:
    lines = [".SH COMMANDS"]
    for name, (_, short) in COMMANDS.items():
        escaped = [word.replace("-", r"\-") for word in (name, short)]
        lines += [".TP", rf"\fBhps\-{escaped[0]}\fR(1)", escaped[1]]
    return "\n".join(lines) + "\n"


def write_pages(folder: Path) -> list[Path]:
    """Writes all of them under man/ and completions/ of a folder; returns their paths."""
    texts = {}
    top = new_parser()
    top.epilog = None
    texts["man/hps.1"] = man_page(top, "a parameter server for CTR models", _list_of_commands())
    by_name = {one.prog: one for one in parsers_of(whole_parser())}
    for name, (_, short) in COMMANDS.items():
        texts[f"man/hps-{name}.1"] = man_page(by_name[f"hps {name}"], short)
    texts["completions/hps"] = completion_text("bash")
    texts["completions/_hps"] = completion_text("zsh")
    written = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
