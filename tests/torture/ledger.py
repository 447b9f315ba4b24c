"""What a worker notes for the process that will kill it: a few numbers in a shared file.

Above it: worker.py, which writes, and kills.py, which reads. Below it: a file mapped into memory.
What was written before a SIGKILL is there after it, however near the two were.
"""

from enum import IntEnum
from pathlib import Path

import numpy as np

from tests.torture.oracle import NUM_CLIENTS, Counts


class Phase(IntEnum):
    """What a worker is doing."""

    STARTING = 0
    OPENING = 1
    PUSH = 2
    EVICTION = 3  # rows on their way from the cache to the store, within a push
    CHECKPOINT = 4
    RESTORE = 5
    COMPACTION = 6
    PERIOD = 7  # rows die, of the workload with life cycle on


class Tally(IntEnum):
    """What is counted over all lives of a store."""

    OPENINGS = 0
    PUSHES = 1
    EVICTED_ROWS = 2
    APPENDS = 3
    CHECKPOINTS = 4
    RESTORES = 5
    COMPACTIONS = 6
    PERIODS = 7
    REFUSALS = 8  # of verbs, by a full disk


_TALLIES = 1
_ACKNOWLEDGED = _TALLIES + len(Tally)
_ATTEMPTED = _ACKNOWLEDGED + NUM_CLIENTS
_LENGTH = _ATTEMPTED + NUM_CLIENTS


class Ledger:
    """The shared numbers; made where `path` is missing.

    `acknowledged` is the checkpoint whose call has returned, `attempted` the one whose call has
    begun:
    after a kill the store must be at one of the two. They are written so that the true one is whole
    at any moment.
    """

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        self._words = np.memmap(path, np.int64, "w+" if is_new else "r+", shape=(_LENGTH,))

    @property
    def phase(self) -> Phase:
        """What the worker is doing, or was doing when it died."""
        return Phase(int(self._words[0]))

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._words[0] = phase

    def count(self, tally: Tally, number: int = 1) -> None:
        """Adds to a tally."""
        self._words[_TALLIES + tally] += number

    def tallies(self) -> dict[str, int]:
        """Every tally by its name."""
        return {tally.name.lower(): int(self._words[_TALLIES + tally]) for tally in Tally}

    @property
    def acknowledged(self) -> Counts:
        """int64 [clients], a copy."""
        return np.array(self._words[_ACKNOWLEDGED:_ATTEMPTED])

    @property
    def attempted(self) -> Counts:
        """int64 [clients], a copy."""
        return np.array(self._words[_ATTEMPTED:_LENGTH])

    def allows(self, counts: Counts) -> bool:
        """Whether the store may be at `counts`."""
        return any(np.array_equal(counts, one) for one in (self.acknowledged, self.attempted))

    def __str__(self) -> str:
        return f"acknowledged was {self.acknowledged}, attempted {self.attempted}"

    def attempt(self, counts: Counts) -> None:
        """A call that makes `counts` the current checkpoint is about to begin."""
        self._words[_ATTEMPTED:_LENGTH] = counts

    def acknowledge(self, counts: Counts) -> None:
        """That call has returned, or a store has been opened at `counts`."""
        self._words[_ACKNOWLEDGED:_ATTEMPTED] = counts
        self._words[_ATTEMPTED:_LENGTH] = counts
