"""What a terminal shows: tables, and a line that is written over and over, by the package rich.

Above it: hps.cli, hps/train/progress.py. Below it: rich. Where output is no terminal, or rich is
not installed, the same words are plain lines: a script reads them so.
"""

from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def is_rich(out: TextIO) -> bool:
    """True of a terminal, if rich is installed."""
    return out.isatty() and find_spec("rich") is not None


def printable(text: str) -> str:
    """A text as one line that any output takes; what users named may hold line ends, or no UTF-8.

    >>> printable("day\\n1.tsv")
    'day\\\\n1.tsv'
    """
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def table_lines(rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> Iterator[str]:
    """Lines with columns as wide as their widest cell; the first row is the head.

    Args:
        rows: of equally many cells.
        right: names, in the head, of columns that are set to the right, as numbers are.

    >>> list(table_lines([("name", "rows"), ("a", "10"), ("bcdef", "7")], ["rows"]))
    ['name   rows', 'a        10', 'bcdef     7']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(rows[0], row, widths, strict=True)
        ]
        yield "  ".join(cells).rstrip()


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


class LiveLine:
    """A line that tells how far something is: with a bar on a terminal, over the last one.

    Args:
        out: where to. Not for several threads at once.

    >>> import sys
    >>> line = LiveLine(sys.stdout)
    >>> line.show("10 of 20 examples", 0.5)
    10 of 20 examples
    >>> line.close()
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_rich = is_rich(out)
        self._bar: tuple[Progress, TaskID] | None = None

    def show(self, text: str, share: float | None = None) -> None:
        """Shows the line.

        Args:
            text: it.
            share: that is done, 0 to 1; None: nobody knows.
        """
        if not self._is_rich:
            self._out.write(f"{text}\n")
            self._out.flush()
            return
        done, total = (0, None) if share is None else (round(1000 * share), 1000.0)
        words = printable(text)
        if self._bar is None:
            bar = _new_bar(self._out)
            self._bar = (bar, bar.add_task(words, completed=done, total=total))
            bar.start()
        else:
            bar, task = self._bar
            bar.update(task, description=words, completed=done, total=total)
            bar.refresh()

    def say(self, line: str) -> None:
        """A line of its own, which stays; the live line stays as it is, above it."""
        self.close()
        self._out.write(f"{line}\n")
        self._out.flush()

    def close(self) -> None:
        """Leaves the line as it is; a later one is another. The cursor is shown again."""
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None


def _new_bar(out: TextIO) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    # Drawn when there is something new: a thread that draws would take its time from training.
    return Progress(
        BarColumn(bar_width=12),
        TextColumn("{task.description}", markup=False),
        console=Console(file=out),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
