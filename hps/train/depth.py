"""DepthChooser: the depth of each span of a training run, measured where `--depth auto` asks so.

Above it: loop.py. Below it: the clock. Overlapping stages pays where one of them waits for
a disk or a core is idle; where all cores are busy it can lose. So both forms are timed in turn on
the run's own batches, and again when the run has grown fourfold: a table that has outgrown its
memory is another run than one that has not. Rows and losses are the same whatever is chosen.
"""

import time
from dataclasses import dataclass, field

from hps.options.run import AUTO

AHEAD = 2  # the depth that is tried
_FIRST_TRIAL = 16  # batches before the first trial
_FIRST_TRIAL_IN_TURN = 128  # where stages begin in turn, for a trial there mostly costs
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
        start: the depth before the first trial of "auto".
    """

    def __init__(self, depth: int | str, start: int = AHEAD) -> None:
        self._is_auto = depth == AUTO
        self.depth = depth if isinstance(depth, int) else start
        self.trials: list[Trial] = []  # finished ones
        self._trial: Trial | None = None
        self._to_time: list[int] = []  # depths of the trial's spans to come
        self._timed: list[float] = []  # seconds of the span's batches that count
        self._last = 0.0  # when the batch before was done
        self._num_seen = 0  # batches of the pipeline under way
        self.is_span_over = False
        self._num_batches = 0
        self._next_trial = _FIRST_TRIAL if self.depth else _FIRST_TRIAL_IN_TURN

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
        if self._is_auto and self._trial is None:
            self.is_span_over = self._num_batches >= self._next_trial
        elif self._is_auto:
            self._time_batch(excluded_seconds)
            self.is_span_over = len(self._timed) >= _TIMED
        return self.is_span_over

    def _time_batch(self, excluded_seconds: float) -> None:
        now = time.perf_counter()
        if self._num_seen > self.depth + 1 and len(self._timed) < _TIMED:
            self._timed.append(now - self._last - excluded_seconds)
        self._last = now
        self._num_seen += 1

    def paused(self) -> None:
        """The pipeline has ended within the span: the next one's queues have to fill again."""
        self._num_seen = 0

    def next_span(self) -> None:
        """Takes in the span that has ended, and sets the depth of the next."""
        if self._trial is not None:
            self._trial.seconds[self.depth].append(sum(self._timed) / len(self._timed))
        elif self._is_auto and self._num_batches >= self._next_trial:
            self._trial = Trial(self._num_batches)
            self._to_time = [AHEAD, 0] * _NUM_PAIRS
        self._timed = []
        self._num_seen = 0
        self.is_span_over = False
        if self._to_time:
            self.depth = self._to_time.pop(0)
        elif self._trial is not None:
            self._trial.decide()
            self.depth = self._trial.chosen
            self.trials.append(self._trial)
            self._trial = None
            self._next_trial = 4 * self._num_batches
