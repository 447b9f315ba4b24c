"""`hps doctor`: what this machine has, and what hps makes of it.

Above it: `hps.cli.main`. Below it: `hps.doctor`, terminal.py.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hps.cli import flags
from hps.cli.output import check_out_path, stream_for_people, write_json
from hps.common.terminal import show_table

if TYPE_CHECKING:
    from hps.doctor.finding import Finding

JSON_HELP = "write what was found as JSON to a file; '-': to standard output"


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `doctor`."""
    parser = subparsers.add_parser(
        "doctor",
        help="what this machine has, and what hps will use",
        description="Tells what this machine has (cores, instruction sets, memory, huge pages, "
        "io_uring, GPU, versions), what hps will use of it, and why. With DIR also how fast the "
        "disk behind it is: a file of 256 MiB at most is written there, read, and gone at the end. "
        "Exit status: 0; 1 if there is a problem that keeps hps, or a store in DIR, from working; "
        "2 for a mistake in the command. Notes, of what is slower than it could be or is missing "
        "for something optional, change no status.",
    )
    parser.add_argument(
        "folder", nargs="?", type=flags.path, metavar="DIR", help="folder whose disk is measured"
    )
    parser.add_argument(
        "--seconds",
        type=flags.number(0.1, 60),
        default=1.5,
        metavar="SECONDS",
        help="time that the measurement of the disk takes, about; 0.1 to 60",
    )
    parser.add_argument("--json", type=flags.path, metavar="OUT", help=JSON_HELP)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Looks, tells; 1 if there is a problem."""
    from hps.doctor import examine
    from hps.doctor.finding import PROBLEM

    check_out_path(arguments.json)
    folder: Path | None = arguments.folder
    findings = examine(folder, arguments.seconds)
    problems = [one for one in findings if one.state == PROBLEM]
    _tell(findings, problems, stream_for_people(arguments.json))
    listed = [one.as_json() for one in findings]
    write_json(arguments.json, {"findings": listed, "problems": len(problems)})
    return 1 if problems else 0


def _tell(findings: "Sequence[Finding]", problems: "Sequence[Finding]", out: TextIO) -> None:
    from hps.doctor.finding import OK

    rows = [("what", "found", "state", "what hps makes of it")]
    rows += [(one.name, one.found, one.state, one.use) for one in findings]
    show_table(rows, (), out)
    notes = sum(one.state != OK for one in findings) - len(problems)
    print(f"\n{len(problems)} problem(s), {notes} note(s)", file=out)
