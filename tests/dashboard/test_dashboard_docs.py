"""The page of the dashboard: its commands are commands, its plots those that there are.

Above it: pytest. Below it: docs/dashboard.md.
"""

import re
import shlex
from pathlib import Path

from hps.cli.main import make_parser
from hps.dashboard.history import HOURS, LEVELS, MOST_BYTES, MOST_FIGURES, POINTS
from hps.dashboard.panels import PANELS
from hps.dashboard.sources import MOST_ROWS
from hps.dashboard.watched import MOST_TARGETS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "dashboard.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_commands_are_commands() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [shlex.split(line.removesuffix(" &")) for line in block.splitlines()]
    for words in commands:
        given = make_parser(words[1]).parse_args(words[1:])
        assert given.command == words[1]
    served = [words[words.index("--metrics") + 1] for words in commands[:-1]]
    assert commands[-1][-1].split(",") == served


def test_the_flags_that_are_named_are_flags() -> None:
    flags = set(re.findall(r"`(--[a-z-]+)", section("Who may look") + section("Start it")))
    shown = make_parser("dashboard").format_help() + make_parser("train").format_help()
    parsers = make_parser("dashboard")._subparsers
    assert parsers is not None
    known = set()
    for command in ("dashboard", "train", "serve"):
        (action,) = make_parser(command)._subparsers._group_actions  # type: ignore[union-attr]
        known |= set(action.choices[command]._option_string_actions)  # type: ignore[index]
    assert shown and flags <= known and "--watch-token" in flags


def test_each_plot_has_its_line() -> None:
    lines = re.findall(r"^\| (.*?) \| (.*?) \|$", section("What the page shows"), re.MULTILINE)
    assert lines[2:] == [(panel.title, panel.help) for panel in PANELS]


def test_the_bounds_that_are_told_are_those_that_hold() -> None:
    costs = section("What it costs")
    (raw, half), (wide, coarse) = (LEVELS[0][1], LEVELS[1][1]), (LEVELS[1][0], LEVELS[2][1])
    assert f"has {POINTS} points: {raw} as they came" in costs
    assert f"{half} means of half a minute, {coarse} of four minutes" in costs
    assert wide == 30.0 and LEVELS[2][0] == 240.0 and LEVELS[2][0] * coarse == HOURS * 3600
    assert f"It has {MOST_FIGURES} figures" in costs and f"{MOST_BYTES / 1e6:.1f} MB" in costs
    assert f"{MOST_TARGETS} targets at most" in costs and f"{MOST_ROWS:,} rows" in costs
