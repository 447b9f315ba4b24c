"""What passes between the stages: bounded queues, room for batches ahead, news of releases.

Above it: the stages and the training loop. Below it: one lock, and a condition for each of them to
sleep on; nobody polls. A caller that changes something wakes the one that may be waiting for it.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from hps.pipeline.clock import INPUT, OUTPUT, StageClock
from hps.pipeline.prepared import Item, Prepared

_Result = TypeVar("_Result")


class FlowStopped(Exception):
    """Raised to a stage that waits, or asks for more, when the pipeline closes: no error."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The state in which a stage tries to pin a batch.

    Args:
        changes: as Flow counts them.
        is_last: if it is refused, no release of this pipeline's can come: the training loop waits
            for this very batch. Pins of others are not waited for, as they are not at depth 0: who
            holds them may wait for this loop.
        num_held: batches whose gradients wait for the same step.
    """

    changes: int
    is_last: bool
    num_held: int


class Flow:
    """Queues between the stages of one pipeline.

    At most `depth` batches are let in, that is pinned or about to be, and not yet taken by the
    training loop; at most `read_ahead` wait to be let in.

    Args:
        stages: those that have a queue before them, in order: the last is the training loop, the
            last but one pins.
        depth: batches let in at once.
        read_ahead: batches read and not let in.
        clock: told about every wait.
    """

    def __init__(
        self, stages: tuple[str, ...], depth: int, read_ahead: int, clock: StageClock
    ) -> None:
        lock = threading.Lock()
        self._lock = lock
        self._names = ("network", *stages)
        self._wake = {stage: threading.Condition(lock) for stage in self._names}
        self._queues: dict[str, deque[Item]] = {stage: deque() for stage in stages}
        self._depth = depth
        self._read_ahead = read_ahead
        self._clock = clock
        self._num_ahead = 0
        self._num_under_way = 0  # read, and not yet taken by the training loop
        self._num_held = 0
        self._loop_waits = False
        self._changes = 0
        self._is_pinning = False  # an attempt is under way, or its batch not yet passed on
        self._is_held = False  # no attempt may begin
        self._is_stopped = False
        self._is_reading = True

    def after(self, stage: str) -> str:
        """The stage that what a stage has done goes to."""
        return self._names[self._names.index(stage) + 1]

    # Items.

    def put(self, stage: str, item: Item) -> None:
        """Hands an item to a stage; its queue has room by the limits of the class.

        Raises:
            FlowStopped: the pipeline closes; the item is still the caller's.
        """
        with self._lock:
            if self._is_stopped:
                raise FlowStopped
            self._queues[stage].append(item)
            if stage == self._names[1]:
                self._num_under_way += isinstance(item, Prepared)
            self._wake[stage].notify()
            if stage == self._names[-1]:
                self._is_pinning = False

    def take(self, stage: str) -> Item:
        """The next item before a stage, in order (I1).

        Raises:
            FlowStopped: the pipeline closes.
        """
        queue = self._queues[stage]

        def take_first() -> Item:
            item = queue.popleft()
            if stage == self._names[1]:
                self._wake["network"].notify()
            return item

        return self._when(stage, INPUT, lambda: bool(queue), take_first)

    def take_ready(self, num_held: int) -> Item:
        """The next item for the training loop, in whose step `num_held` batches wait."""
        stage = self._names[-1]
        queue = self._queues[stage]

        def take_first() -> Item:
            self._loop_waits = False
            item = queue[0]
            if isinstance(item, Prepared):  # a failure or the end stays: nothing comes after it
                queue.popleft()
                self._num_ahead -= 1
                self._num_under_way -= 1
                self._wake[self._names[1]].notify()
            return item

        with self._lock:
            self._num_held = num_held
            if not queue:
                self._loop_waits = True
                self._is_held = False
                self._note_change()
        try:
            return self._when(stage, INPUT, lambda: bool(queue), take_first)
        finally:
            with self._lock:
                self._loop_waits = False

    # Room.

    def wait_for_room_to_read(self, may_end: bool) -> bool:
        """The network stage, before it reads; False if it is to read no more, and may end here."""
        queue = self._queues[self._names[1]]
        return self._when(
            "network",
            OUTPUT,
            lambda: len(queue) < self._read_ahead or (may_end and not self._is_reading),
            lambda: self._is_reading or not may_end,
        )

    def let_in(self, stage: str) -> None:
        """Waits until fewer than `depth` batches are ahead of the training loop; counts one."""

        def count() -> None:
            self._num_ahead += 1

        self._when(stage, OUTPUT, lambda: self._num_ahead < self._depth, count)

    # Releases (I6).

    def attempt(self) -> Attempt:
        """What the stage that pins notes before it tries to pin a batch, once it may."""

        def begin() -> Attempt:
            self._is_pinning = True
            is_last = self._loop_waits and not self._queues[self._names[-1]]
            return Attempt(self._changes, is_last, self._num_held)

        return self._when(self._names[-2], OUTPUT, lambda: not self._is_held, begin)

    def wait_for_release(self, attempt: Attempt) -> None:
        """Returns when something has changed since a refused attempt: a release, or the training
        loop has begun to wait, after which there will be none."""
        stage = self._names[-2]
        with self._lock:
            self._is_pinning = False
            self._wake[self._names[-1]].notify()
        self._when(stage, OUTPUT, lambda: self._changes != attempt.changes, lambda: None)

    def num_changes(self) -> int:
        """Grows with every release, and whenever the training loop begins to wait."""
        with self._lock:
            return self._changes

    def wait_for_memory(self, changes: int) -> bool:
        """The network stage, which was refused memory when there were so many changes: True after
        another one; False if none can come, since the training loop waits for this very batch."""
        return self._when(
            self._names[0],
            OUTPUT,
            lambda: self._changes != changes or self._is_idle,
            lambda: self._changes != changes,
        )

    @property
    def _is_idle(self) -> bool:
        """True if no batch is on its way to the training loop, which waits. Under the lock."""
        return self._loop_waits and not self._num_under_way

    def note_release(self) -> None:
        """Pins are gone: a caller that was refused tries again."""
        with self._lock:
            self._note_change()

    # The training loop needs room for itself.

    def hold(self) -> list[Prepared]:
        """Waits until no batch is being pinned, and lets no attempt begin until `resume`, or until
        the training loop waits; returns the batches that are ready for it.

        Raises:
            FlowStopped: the pipeline closes.
        """
        stage = self._names[-1]
        with self._lock:
            self._is_held = True
            while self._is_pinning and not self._is_stopped:
                self._wake[stage].wait()
            if self._is_stopped:
                raise FlowStopped
            return [item for item in self._queues[stage] if isinstance(item, Prepared)]

    def resume(self) -> None:
        """Attempts may begin again."""
        with self._lock:
            if self._is_held:
                self._is_held = False
                self._note_change()

    # The end.

    def stop_reading(self) -> None:
        """The network stage ends as soon as it may; the batches that were read go on."""
        with self._lock:
            self._is_reading = False
            self._wake["network"].notify()

    def stop(self) -> None:
        """Ends every wait, now and from now on, with FlowStopped."""
        with self._lock:
            self._is_stopped = True
            for condition in self._wake.values():
                condition.notify_all()

    def _note_change(self) -> None:
        self._changes += 1
        self._wake[self._names[-2]].notify()
        self._wake[self._names[0]].notify()

    def _when(
        self,
        stage: str,
        side: str,
        is_due: Callable[[], bool],
        do: Callable[[], _Result],
    ) -> _Result:
        """Sleeps until `is_due()`, then returns `do()`; both under the lock."""
        with self._lock:
            if not is_due() and not self._is_stopped:
                with self._clock.waiting(stage, side):
                    while not is_due() and not self._is_stopped:
                        self._wake[stage].wait()
            if self._is_stopped:
                raise FlowStopped
            return do()
