"""Processes that are to be killed: ranks as threads train, take checkpoints and tell of them.

Above it: test_checkpoint_crashes.py, which starts it as `python -m
tests.cluster.folder.checkpoint_worker
FOLDER`. For each number of ranks on standard input it forks a process, so that torch is imported
once. That one prints "opening PID", then "open N" (the step of its checkpoint) and
"committed N" for each checkpoint; when it has died, "killed SIGNAL" is printed.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tests.cluster.folder.folder_lab import Rank, on_ranks


def say(words: str) -> None:
    """One write, so that a kill leaves a whole line or none."""
    os.write(1, f"{words}\n".encode())


def train(path: Path, size: int) -> None:
    """Trains until it is killed."""

    def act(rank: Rank) -> Any:
        _, reader = rank.checkpoint_state()
        step = 0 if reader is None else reader["step"]
        if rank.world.rank == 0:
            say(f"open {step}")
        while True:
            step += 1
            rank.step(step)
            rank.checkpoint(reader={"step": step})
            if rank.world.rank == 0:
                say(f"committed {step}")

    say(f"opening {os.getpid()}")
    on_ranks(path, size, act)


def main(path: Path) -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                train(path, int(line))
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        say(f"killed {os.WTERMSIG(status)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
