"""`hps bench NAME`: runs the benchmarks of a checkout; the same as `python -m benchmarks.run NAME`.

Above it: hps/cli/main.py. Below it: benchmarks/run.py, which is not part of the installed package.
"""

import argparse
import importlib
import sys
from pathlib import Path

from hps.cli import flags
from hps.errors import ConfigError


def add_parsers(subparsers: flags.Subparsers) -> None:
    """Adds `bench` to the command line."""
    parser = subparsers.add_parser(
        "bench",
        help="run a benchmark beside its baselines",
        description="Runs a benchmark of a checkout. Options that NAME takes beyond these are "
        "passed on; see benchmarks/README.md.",
    )
    parser.add_argument(
        "name", type=flags.word, metavar="NAME", help="name of a folder under benchmarks/, or all"
    )
    parser.add_argument("--smoke", action="store_true", help="run with tiny sizes, in seconds")
    parser.add_argument("--json", metavar="OUT", type=flags.word, help="write the result to a file")
    parser.add_argument("options", nargs=argparse.REMAINDER, help="options of NAME, after --")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs it; returns the exit status.

    Raises:
        ConfigError: hps was installed without its checkout, which holds the benchmarks.
    """
    root = Path(__file__).parents[2]
    if not (root / "benchmarks" / "run.py").exists():
        raise ConfigError(
            f"hps bench: there is no {root / 'benchmarks'}; run it from a checkout of hps, "
            "installed with `pip install -e .`"
        )
    command = [arguments.name]
    command += ["--smoke"] if arguments.smoke else []
    command += ["--json", arguments.json] if arguments.json else []
    command += [option for option in arguments.options if option != "--"]
    sys.path.insert(0, str(root))
    try:
        return int(importlib.import_module("benchmarks.run").main(command))
    finally:
        sys.path.remove(str(root))
