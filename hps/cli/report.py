"""`hps report`: one HTML page with the plots of training runs.

Above it: `hps.cli.main`. Below it: `hps.report`.
"""

import argparse

from hps.cli import flags
from hps.cli.output import check_out_path


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `report`."""
    parser = subparsers.add_parser(
        "report",
        help="a page of plots of training runs",
        description="Writes one HTML page with the curves of losses and AUC, the calibration, the "
        "hit rates and the stages of training runs, side by side. It needs no network.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=flags.path,
        metavar="RUN",
        help="folder of a run's --report, also while it trains; or the file of its --json, which "
        "has no curves but those of --valid",
    )
    parser.add_argument(
        "--out",
        type=flags.path,
        required=True,
        metavar="FILE",
        help="the page; a file that is there is replaced",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the page; returns the exit status."""
    check_out_path(arguments.out, "--out")
    from hps.report.page import write_page
    from hps.report.runs import read_run

    write_page([read_run(path) for path in arguments.runs], arguments.out)
    print(f"{len(arguments.runs)} run(s) in {arguments.out}")
    return 0
