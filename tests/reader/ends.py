"""Processes that end as Python ends, with readers left open; one that has imported forks them.

Above it: test_loan.py, test_csv.py. Below it: hps.reader. To import takes longer than they live. A
child runs its script as a main module does, and then ends by itself. The process that forks has one
thread of Python and has read nothing: the threads that its libraries have made when they were
imported (numpy's, an allocator's) wait, and those libraries know of forks.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

_LIMIT_SECONDS = 60
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """What became of a process.

    Args:
        status: its exit status, negative for a signal.
        out, err: what it wrote.
    """

    status: int
    out: str
    err: str


class Processes:
    """Starts them, one after the other.

    Args:
        process: that forks them.
        folder: for what they write.
    """

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._folder = folder

    def run(self, script: str, *words: object) -> Ended:
        """Runs a script to its end; its sys.argv[1:] are the words."""
        out, err = (self._folder / name for name in ("out", "err"))
        message = {"script": script, "words": [*map(str, words)], "files": [str(out), str(err)]}
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)
        status = json.loads(self._process.stdout.readline())
        return Ended(status, out.read_text(), err.read_text())


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """As long as the block lasts."""
    command = [sys.executable, "-m", "tests.reader.ends"]
    with subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Processes(process, folder)
        assert process.stdin is not None
        process.stdin.close()


def _next_script() -> CodeType | None:
    """In a child that has been forked for a line of the input: its script. In the parent: None, at
    the end of the input."""
    for line in sys.stdin:
        message = json.loads(line)
        assert threading.active_count() == 1
        child = os.fork()
        if child == 0:
            signal.alarm(_LIMIT_SECONDS)  # which ends one that hangs
            for number, name in enumerate(message["files"], 1):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            sys.argv[1:] = message["words"]
            return compile(message["script"], "script", "exec")
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


if __name__ == "__main__":
    for name in ("fsspec.implementations.memory", "zstandard", "hps", "hps.reader.csv_files"):
        importlib.import_module(name)
    if (code := _next_script()) is not None:
        exec(code)
