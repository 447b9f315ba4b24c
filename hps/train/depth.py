"""DepthChooser: the depth of each span of a training run, measured where `--depth auto` asks so.

Above it: loop.py. Below it: the clock. Overlapping stages pays where one of them waits for
a disk or a core is idle; where all cores are busy it can lose. So both forms are timed in turn on
the run's own batches, and again when the run has grown fourfold: a table that has outgrown its
memory is another run than one that has not. Rows and losses are the same whatever is chosen.
"""

import time
from dataclasses import dataclass, field

AUTO = "auto"
AHEAD = 2  # the depth that is tried
_FIRST_TRIAL = 16  # batches before the first trial
_NUM_PAIRS = 2
_TIMED = 6  # batches timed a span, after those that fill the queues
_GAIN = 0.98  # of the time at depth 0, that depth must stay below


@dataclass
class Trial:
    """Seconds a batch at both depths, and what was chosen.

    Args:
        at_batch: batches of the run before it.
        seconds: depth -> of each span, its mean seconds a batch.
        chosen: depth from then on.
    """

    at_batch: int
    seconds: dict[int, list[float]] = field(default_factory=lambda: {0: [], AHEAD: []})
    chosen: int = AHEAD

    def decide(self) -> None:
        """By the better span of each depth: what else ran on the machine slows the others."""
        pays = min(self.seconds[AHEAD]) < _GAIN * min(self.seconds[0])
        self.chosen = AHEAD if pays else 0


class DepthChooser:
    """Divides a run into spans of one depth each.

    Args:
        depth: of the whole run, or "auto".
    """

    def __init__(self, depth: int | str) -> None:
        self._is_auto = depth == AUTO
        self.depth = depth if isinstance(depth, int) else AHEAD
        self.trials: list[Trial] = []  # finished ones
        self._trial: Trial | None = None
        self._to_time: list[int] = []  # depths of the trial's spans to come
        self._moments: list[float] = []  # when the batches of a timed span were done
        self._num_batches = 0
        self._next_trial = _FIRST_TRIAL

    @property
    def why(self) -> str:
        """Why the run ends at depth 0, in words, if the user has not chosen it; maybe nothing."""
        if not self._is_auto or self.depth:
            return ""
        if self._trial is not None:
            return "in the middle of the trial that --depth auto makes"
        return "which measured faster than overlapping them"

    def batch_done(self, excluded_seconds: float = 0.0) -> bool:
        """Counts a batch of the span; True if the span is to end.

        Args:
            excluded_seconds: what depth has no part in: a checkpoint after the batch.
        """
        self._num_batches += 1
        if not self._is_auto:
            return False
        if self._trial is None:
            return self._num_batches >= self._next_trial
        self._moments = [moment + excluded_seconds for moment in self._moments]
        self._moments.append(time.perf_counter())
        return len(self._moments) > self._num_filling + _TIMED

    def next_span(self) -> None:
        """Takes in the span that has ended, and sets the depth of the next."""
        if self._trial is not None:
            first = self._num_filling
            timed = self._moments[first + _TIMED] - self._moments[first]
            self._trial.seconds[self.depth].append(timed / _TIMED)
        elif self._is_auto and self._num_batches >= self._next_trial:
            self._trial = Trial(self._num_batches)
            self._to_time = [AHEAD, 0] * _NUM_PAIRS
        self._moments = []
        if self._to_time:
            self.depth = self._to_time.pop(0)
        elif self._trial is not None:
            self._trial.decide()
            self.depth = self._trial.chosen
            self.trials.append(self._trial)
            self._trial = None
            self._next_trial = 4 * self._num_batches

    @property
    def _num_filling(self) -> int:
        """Batches at the begin of a span that come before the stages keep step."""
        return self.depth + 1
