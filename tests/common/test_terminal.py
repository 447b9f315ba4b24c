"""Tables and live lines: plain where no terminal is, drawn by rich where one is.

Above it: pytest. Below it: hps/common/terminal.py.
"""

import io
import os
import pty
from collections.abc import Callable
from typing import TextIO

import pytest

from hps.common import terminal
from hps.common.terminal import LiveLine, show_table

_END = "\x04"
ROWS = [("tag", "rows"), ("day-1", "10"), ("a\nb", "7"), ("[bold]x", "3")]


def on_terminal(show: Callable[[TextIO], None], columns: int = 80) -> str:
    """What a terminal of so many columns gets."""
    leader, follower = pty.openpty()
    try:
        os.environ["COLUMNS"] = str(columns)
        with os.fdopen(follower, "w") as out:
            show(out)
            out.write(_END)
            out.flush()
            said = b""
            while not said.endswith(_END.encode()):  # it comes in pieces
                said += os.read(leader, 2**16)
            return said.decode().removesuffix(_END)
    finally:
        del os.environ["COLUMNS"]
        os.close(leader)


def test_a_table_is_plain_where_no_terminal_is() -> None:
    out = io.StringIO()
    show_table(ROWS, ["rows"], out)
    # What a user named has its line end escaped, which is one column wider than it counted.
    assert out.getvalue().splitlines()[0] == "tag      rows"
    assert "[bold]x     3" in out.getvalue() and "\x1b" not in out.getvalue()


def test_a_table_is_drawn_on_a_terminal_and_shows_what_users_named_as_it_is() -> None:
    said = on_terminal(lambda out: show_table(ROWS, ["rows"], out))
    assert "\x1b[1m" in said and "───" in said
    assert "[bold]x" in said and "a\\nb" in said


def test_a_table_is_plain_on_a_terminal_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    said = on_terminal(lambda out: show_table(ROWS, ["rows"], out))
    assert "\x1b" not in said and said.splitlines()[1] == "day-1      10"


def tell(out: TextIO) -> None:
    line = LiveLine(out)
    line.show("1,000 examples  loss 0.5", 0.25)
    line.say("hps: validation")
    line.show("2,000 examples  loss [red]0.4", 0.5)
    line.show("3,000 examples")
    line.close()
    line.close()


def test_live_lines_are_plain_lines_where_no_terminal_is() -> None:
    out = io.StringIO()
    tell(out)
    assert out.getvalue() == (
        "1,000 examples  loss 0.5\nhps: validation\n2,000 examples  loss [red]0.4\n3,000 examples\n"
    )


def test_a_live_line_has_a_bar_and_gives_the_cursor_back() -> None:
    said = on_terminal(tell)
    assert "━" in said and "loss [red]0.4" in said and "hps: validation" in said
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h") == 2
    assert said.index("1,000 examples") < said.index("hps: validation") < said.index("2,000")


def test_a_live_line_takes_one_line_of_a_narrow_terminal() -> None:
    long = "x" * 300

    def show(out: TextIO) -> None:
        line = LiveLine(out)
        line.show(long, 0.5)
        line.close()

    said = on_terminal(show, columns=40)
    assert "xxx" in said and long not in said and said.count("\n") == 1


def test_live_lines_are_plain_on_a_terminal_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "find_spec", lambda name: None)
    assert on_terminal(tell).splitlines()[1] == "hps: validation"
