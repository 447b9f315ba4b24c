"""The command line of a figure of record: RESULT.json in, a picture out.

Above it: plot.py beside a benchmark. Below it: json.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any


def command(benchmark: str, plot: Callable[[dict[str, Any], Path], None]) -> int:
    """Has `plot` draw the result that the command line names; returns the exit status.

    Args:
        benchmark: whose result it is.
        plot: writes the picture of a result to a file.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{benchmark}.plot")
    parser.add_argument("result", type=Path, help=f"JSON of benchmarks.run {benchmark}")
    parser.add_argument("out", type=Path, help="the picture's file")
    arguments = parser.parse_args()
    plot(json.loads(arguments.result.read_text()), arguments.out)
    return 0
