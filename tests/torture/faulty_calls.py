"""Faults of the disk under a real server process: made by a library that is loaded before it.

Above it: service_faults.py, service_slow.py, life_faults.py. Below it: faulty_calls.cc, the
compiler.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.torture.service_shards import Nursery, nursery

_SOURCE = Path(__file__).with_name("faulty_calls.cc")
_WORDS = (
    "syncs_to_fail",
    "failed_syncs",
    "disk_bytes",
    "refusals",
    "drops",
    "delay_us",
    "delays",
    "calls",
    "dies_at",
)


class Faults:
    """The block of memory that the calls of one server look into, by the names in faulty_calls.cc.

    Args:
        path: its file.
        is_new: make it.
    """

    def __init__(self, path: Path, is_new: bool = True) -> None:
        if is_new:
            path.write_bytes(bytes(8 * len(_WORDS)))
        self._path = path
        self._words = np.memmap(path, np.int64, "r+", shape=(len(_WORDS),))

    def __getitem__(self, name: str) -> int:
        return int(self._words[_WORDS.index(name)])

    def __setitem__(self, name: str, value: int) -> None:
        self._words[_WORDS.index(name)] = value

    def environment(self, store: Path) -> dict[str, str]:
        """Of a server over `store` that is to look into the block."""
        return {"HPS_FAULTS": str(self._path), "HPS_FAULTS_FOLDER": str(store)}


def missing_tools() -> str:
    """Why faults cannot be made here; "" if they can."""
    return "" if shutil.which("g++") else "no g++ to build tests/torture/faulty_calls.cc"


@contextmanager
def faulty_calls() -> Iterator[dict[str, str]]:
    """Variables of a process that has the faulty calls before libc's; with the block they end."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "faulty_calls.so"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
        subprocess.run([*command, "-ldl"], check=True)
        yield {"LD_PRELOAD": str(library)}


@contextmanager
def faulty_nursery() -> Iterator[Nursery]:
    """A nursery whose servers have the faulty calls before libc's."""
    with faulty_calls() as environment, nursery(environment) as process:
        yield process
