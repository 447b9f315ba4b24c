"""Batcher: requests of several clients that wait at the same time are scored as one batch.

Above it: scorer.py, one thread a request. Below it: merge.py; `Model.predict_with_version`.

There is no thread that scores: of the requests that wait, one is the leader. It takes a batch of
them, its own among them, scores it, wakes the others and names the oldest that still waits the next
leader. A request that finds nobody leading begins at once. While one batch is scored, the next one
gathers; `max_delay` lets a leader wait for more of them, counted from the oldest's arrival.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hps.common.field_checks import require_number, require_whole
from hps.common.row_layout import Floats
from hps.service.messages.status import late
from hps.serving.figures import ScoreFigures
from hps.serving.merge import merged
from hps.types import Batch

Predict = Callable[[Batch], tuple[Floats, str]]


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How requests are put together.

    Args:
        max_batch: examples of a batch; a request with more is a batch by itself.
        max_delay: seconds that a request may wait for others to come; 0: those that are there.
        at_once: batches that are scored beside one another.

    Raises:
        ConfigError: a field outside its limits.
    """

    max_batch: int = 2048
    max_delay: float = 0.0
    at_once: int = 1

    def __post_init__(self) -> None:
        require_whole("BatchOptions.max_batch", self.max_batch, 1, 2**24)
        require_number("BatchOptions.max_delay", self.max_delay)
        require_whole("BatchOptions.at_once", self.at_once, 1, 64)


@dataclass(eq=False)
class _Request:
    """One that waits, is scored, or was."""

    batch: Batch
    deadline: float
    arrived: float
    is_told: threading.Event = field(default_factory=threading.Event)
    is_leader: bool = False
    scores: Floats | None = None
    version: str = ""
    error: BaseException | None = None


class Batcher:
    """Scores batches; thread-safe.

    Args:
        predict: scores one batch: float32 [B] and the version.
        options: see there.
        figures: counts what is scored.
    """

    def __init__(self, predict: Predict, options: BatchOptions, figures: ScoreFigures) -> None:
        self._predict = predict
        self._options = options
        self._figures = figures
        self._lock = threading.Lock()
        self._has_come = threading.Condition(self._lock)  # a leader that waits for more
        self._waiting: deque[_Request] = deque()
        self._num_leading = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their batch to begin."""
        return len(self._waiting)

    def score(self, batch: Batch, deadline: float) -> tuple[Floats, str]:
        """Scores of a batch, float32 [B], and the version that all of them are of.

        Args:
            batch: of the model.
            deadline: monotonic; it waits no longer for its turn, and no longer for its scores.

        Raises:
            Refusal: the deadline has passed. What `predict` raises for this very batch.
        """
        request = _Request(batch, deadline, time.monotonic())
        with self._lock:
            self._waiting.append(request)
            if self._num_leading < self._options.at_once:
                self._num_leading += 1
                request.is_leader = True
            else:
                self._has_come.notify()
        if not request.is_leader:
            self._wait(request)
        if request.is_leader:
            self._lead(request)
        if request.error is not None:
            raise request.error
        if request.scores is None:
            raise late("the deadline passed before the request was scored")
        return request.scores, request.version

    def _wait(self, request: _Request) -> None:
        """Returns when the request has its scores, leads, or is late."""
        if request.is_told.wait(max(0.0, request.deadline - time.monotonic())):
            return
        with self._lock:
            if request in self._waiting and not request.is_leader:
                self._waiting.remove(request)

    def _lead(self, own: _Request) -> None:
        """Scores one batch of those that wait, its own among them, then hands over."""
        try:
            taken = self._gathered(own)
            if taken:
                self._score_all(taken)
        finally:
            with self._lock:
                follower = next((one for one in self._waiting if not one.is_leader), None)
                if follower is None:
                    self._num_leading -= 1
                else:
                    follower.is_leader = True
                    follower.is_told.set()

    def _gathered(self, own: _Request) -> list[_Request]:
        """The requests of the next batch, the leader's first, then the oldest; those that are late
        are left out."""
        options = self._options
        with self._lock:
            self._waiting.remove(own)
            patience = (own.deadline - own.arrived) / 2  # to be scored in time, too
            until = own.arrived + min(options.max_delay, patience)
            while (left := until - time.monotonic()) > 0:
                num_rows = len(own.batch) + sum(len(one.batch) for one in self._free())
                if num_rows >= options.max_batch:
                    break
                self._has_come.wait(left)
            now = time.monotonic()
            taken = [own] if own.deadline > now else []
            num_rows = sum(len(one.batch) for one in taken)
            for request in self._free():
                if request.deadline <= now:
                    self._waiting.remove(request)
                    request.is_told.set()
                    continue
                num_rows += len(request.batch)
                if taken and num_rows > options.max_batch:
                    break
                self._waiting.remove(request)
                taken.append(request)
            return taken

    def _free(self) -> list[_Request]:
        """Those that wait and do not lead, the oldest first."""
        return [one for one in self._waiting if not one.is_leader]

    def _score_all(self, taken: list[_Request]) -> None:
        """Gives each its scores, or its own error: one that cannot be scored spoils no other."""
        try:
            self._score(taken)
        except BaseException as error:
            if len(taken) == 1 or not isinstance(error, Exception):
                for request in taken:
                    request.error = error
            else:
                for request in taken:
                    self._score_all([request])
        finally:
            for request in taken:
                request.is_told.set()

    def _score(self, taken: list[_Request]) -> None:
        begun = time.monotonic()
        scores, version = self._predict(merged([request.batch for request in taken]))
        self._figures.add_batch([begun - one.arrived for one in taken], scores, version)
        begin = 0
        for request in taken:
            end = begin + len(request.batch)
            request.version = version
            request.scores = scores[begin:end]
            begin = end
