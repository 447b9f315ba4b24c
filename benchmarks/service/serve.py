"""The server process of a peer: calls `serve(workload, folder)` of the module that is named.

Above it: contender.py, which writes the command line. Below it: the peers of this folder.
"""

import importlib
import sys

from benchmarks.service.workload import Workload


def main() -> None:
    """`python -m benchmarks.service.serve MODULE WORKLOAD FOLDER`; prints where it listens."""
    module, workload, folder = sys.argv[1:]
    importlib.import_module(module).serve(Workload.from_text(workload), folder)


if __name__ == "__main__":
    main()
