"""Boundary: what is due between two steps of a training run, the same on every rank.

Above it: step_checkpoints.py, loop.py. Below it: the clock, `hps.stops.Stops`, one small
collective.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hps.stops import Stops
from hps.train.ranks import TrainingRanks

_CHECKPOINT = 1
IDLE_SECONDS = 10.0  # of a wait, after which what was trained is saved
_STOP = 2  # and the number of the signal


@dataclass(frozen=True)
class Due:
    """What all ranks do before the next step.

    Args:
        is_checkpoint: a checkpoint.
        stop: the number of the signal that ends the run; 0 for none.
    """

    is_checkpoint: bool
    stop: int


class Boundary:
    """Counts steps and time since the last checkpoint.

    Args:
        every: batches between checkpoints, each of them 0 for none by number: of the run, and those
            to be published.
        seconds: between checkpoints; 0 for none by time.
        stops: what may ask this rank to stop.
        ranks: that agree.
        clock: gives seconds.
    """

    def __init__(
        self,
        every: Sequence[int],
        seconds: float,
        stops: Stops,
        ranks: TrainingRanks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every = min((one for one in every if one), default=0)
        self._seconds = seconds
        self._stops = stops
        self._ranks = ranks
        self._clock = clock
        self._num_batches = 0
        self._since = clock()
        self.is_saved = False  # nothing has been trained since a checkpoint

    def batch_done(self) -> None:
        """Counts a batch."""
        self._num_batches += 1
        self.is_saved = False

    def is_due_in_wait(self, waited: float) -> bool:
        """True once a checkpoint is to be taken although no step has ended: what was trained is not
        to wait for the next one, which may be hours away.

        Args:
            waited: seconds since the last step.
        """
        if not self._num_batches or not self._seconds:
            return False
        return waited >= IDLE_SECONDS or self._seconds <= self._clock() - self._since

    def checkpoint_done(self) -> None:
        """What was trained is saved."""
        self._num_batches = 0
        self._since = self._clock()
        self.is_saved = True

    def due(self) -> Due:
        """To be asked after each step; every rank asks, and all have the same answer."""
        by_number = 0 < self._every <= self._num_batches
        by_time = 0 < self._seconds <= self._clock() - self._since
        wish = _CHECKPOINT if by_number or by_time else 0
        if self._stops.asked:
            wish = _STOP + self._stops.asked
        wish = self._ranks.most(wish)
        return Due(is_checkpoint=wish == _CHECKPOINT, stop=max(0, wish - _STOP))
