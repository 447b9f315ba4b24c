"""Tables, and lines that follow one another, as a terminal shows them: by the package rich.

Above it: the commands of hps.cli. Below it: output.py, rich. Where output is no terminal, or rich
is not installed, the same words are plain lines: a script reads them so.
"""

from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import TextIO

from hps.cli.output import printable, table_lines


def is_rich(out: TextIO) -> bool:
    """True of a terminal, if rich is installed."""
    return out.isatty() and find_spec("rich") is not None


def show_table(rows: Sequence[Sequence[str]], right: Collection[str], out: TextIO) -> None:
    """Shows a table, whose first row is the head.

    Args:
        rows: of equally many cells.
        right: names, in the head, of columns that are set to the right.
        out: where to.
    """
    if not is_rich(out):
        for line in table_lines(rows, right):
            print(printable(line), file=out)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows[1:]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(file=out).print(table)
