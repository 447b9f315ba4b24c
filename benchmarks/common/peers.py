"""Which peers are installed. They are the optional extra `bench`, never a dependency.

Above it: the benchmarks. Below it: benchmarks/requirements-peers.txt, by which they are installed.
"""

import importlib

_HOW = "see benchmarks/README.md for how to install the peers"


def absent_peers(*modules: str) -> dict[str, str]:
    """Name of each module that cannot be imported -> why."""
    absent = {}
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            absent[module] = f"{type(error).__name__}: {error}; {_HOW}"
    return absent
