"""The work of each stage before compute, one after the other or each in a thread of its own.

Above it: `hps.Pipeline`, whose caller is the fourth stage. Below it: the reader, which only the
network stage touches, and `ParameterServer.pin` and `warm`. A source of prepared batches offers
next, released, stop_reading and close; there are two: StagesInTurn (depth 0) and StageThreads.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from hps.errors import CapacityError
from hps.pipeline.clock import StageClock
from hps.pipeline.flow import Attempt, Flow, FlowStopped
from hps.pipeline.invariants import require
from hps.pipeline.pins import explained, pin_or_wait, pin_tables
from hps.pipeline.prepared import Ended, Failed, Item, Prepared
from hps.types import Batch

if TYPE_CHECKING:
    from hps.batch_rows import BatchRows
    from hps.parameter_server import ParameterServer


class PreparedBatches(Protocol):
    """Where the training loop gets its batches from."""

    def next(self, num_held: int) -> Item:
        """The next batch, the failure of a stage, or the end; waits for it.

        Args:
            num_held: batches whose gradients wait for the same step.
        """

    def released(self, prepared: Prepared) -> None:
        """A batch that was handed out has been released."""

    def stop_reading(self) -> None:
        """The batches read so far, and what their step lacks, are the last."""

    def close(self) -> None:
        """Ends everything under way and releases what was not handed out."""


class StageWork:
    """What each stage does with one batch, in whatever thread.

    Args:
        batches: yields `hps.Batch`; touched by `read` alone.
        server: whose rows are pinned.
        clock: told about every stage's work.
        accumulate: batches a step.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        server: "ParameterServer",
        clock: StageClock,
        accumulate: int,
    ) -> None:
        self.clock = clock
        self._accumulate = accumulate
        self.num_read = 0
        self._batches = batches
        self._iterator: Iterator[Batch] | None = None
        self._server = server
        self._num_placed = 0

    @property
    def is_between_steps(self) -> bool:
        """True if the batches read so far are those of whole steps."""
        return self.num_read % self._accumulate == 0

    def read(self) -> Prepared | None:
        """Network: the next batch, or None at the end."""
        with self.clock.busy("network", self.num_read + 1):
            if self._iterator is None:
                self._iterator = iter(self._batches)
            batch = next(self._iterator, None)
        if batch is None:
            return None
        self.num_read += 1
        return Prepared(self.num_read, batch)

    def pin(self, stage: str, prepared: Prepared) -> "dict[str, BatchRows]":
        """Fetch (or copy): every row of the batch into its slot, and held there."""
        with self.clock.busy(stage, prepared.number):
            return pin_tables(prepared.batch, self._server.pin)

    def place(self, prepared: Prepared, rows: "dict[str, BatchRows]") -> None:
        """Notes the pinned rows with their batch, which may be passed on from now on (I4)."""
        is_next = prepared.number == self._num_placed + 1
        if not is_next:
            for pinned in rows.values():
                pinned.release()
        require("I1", is_next, f"batch {prepared.number} after batch {self._num_placed}")
        self._num_placed = prepared.number
        prepared.rows = rows
        prepared.is_placed = True


class StagesInTurn:
    """Depth 0: the stages one after the other, in the thread that asks for the next batch."""

    def __init__(self, work: StageWork) -> None:
        self._work = work
        self._is_reading = True

    def next(self, num_held: int) -> Item:
        """The next batch, the failure of a stage, or the end."""
        work = self._work
        if not self._is_reading and work.is_between_steps:
            return Ended(is_exhausted=False)
        stage, number = "network", work.num_read + 1
        try:
            prepared = work.read()
            if prepared is None:
                return Ended(is_exhausted=True)
            stage = "fetch"
            work.place(prepared, work.pin(stage, prepared))
        except CapacityError as error:
            attempt = Attempt(changes=0, is_last=True, num_held=num_held)
            return Failed(stage, number, explained(error, attempt))
        except Exception as error:
            return Failed(stage, number, error)
        return prepared

    def released(self, prepared: Prepared) -> None:
        """Nobody waits for it."""

    def stop_reading(self) -> None:
        """Once the step is whole, what is asked for next is the end."""
        self._is_reading = False

    def close(self) -> None:
        """Nothing is prepared ahead."""


class StageThreads:
    """Depth 1 and more: a thread a stage, bounded queues between them.

    Without a gpu_cache nothing is copied between host and device: then the fetch stage pins, and
    the copy stage has no thread.

    Args:
        work: what the stages do.
        flow: the queues between them.
        stages: those that have a thread beside network: ("fetch",) or ("fetch", "copy").
    """

    def __init__(self, work: StageWork, flow: Flow, stages: tuple[str, ...]) -> None:
        self._work = work
        self._flow = flow
        self._pinned: dict[int, Prepared] = {}
        bodies = {"network": self._read_all, **{stage: self._pin_all for stage in stages}}
        self._threads = [
            threading.Thread(target=self._run, args=(stage, body), name=f"hps {stage}", daemon=True)
            for stage, body in bodies.items()
        ]

    def start(self) -> None:
        """Starts the threads; close() ends them, also if one could not be started."""
        for thread in self._threads:
            thread.start()

    def next(self, num_held: int) -> Item:
        """The next batch, the failure of a stage, or the end; waits for it."""
        return self._flow.take_ready(num_held)

    def released(self, prepared: Prepared) -> None:
        """Its slots are free: a stage that was refused tries again."""
        self._pinned.pop(prepared.number, None)
        self._flow.note_release()

    def stop_reading(self) -> None:
        """The batches read so far, and what their step lacks, are the last."""
        self._flow.stop_reading()

    def close(self) -> None:
        """Ends the threads and releases what was pinned and not handed out.

        Waits until a read or a fetch that is under way has returned.
        """
        self._flow.stop()
        try:
            # The network stage last: a reader may block for as long as its source likes.
            for thread in reversed(self._threads):
                if thread.ident is not None:
                    thread.join()
        finally:
            for prepared in list(self._pinned.values()):
                prepared.release()

    def _run(self, stage: str, body: Callable[[str], None]) -> None:
        """A thread: its body until the pipeline closes; a failure goes down the queues."""
        try:
            body(stage)
        except FlowStopped:
            return

    def _read_all(self, stage: str) -> None:
        while self._flow.wait_for_room_to_read(self._work.is_between_steps):
            try:
                item: Item = self._work.read() or Ended(is_exhausted=True)
            except BaseException as error:
                item = Failed(stage, self._work.num_read + 1, error)
            self._flow.put("fetch", item)
            if not isinstance(item, Prepared):
                return
        self._flow.put("fetch", Ended(is_exhausted=False))

    def _pin_all(self, stage: str) -> None:
        while True:
            item = self._flow.take(stage)
            if isinstance(item, Prepared):
                item = self._pin(stage, item)
            try:
                self._flow.put("compute", item)
            except FlowStopped:
                if isinstance(item, Prepared):
                    item.release()  # close() may have gone without waiting: a second Ctrl-C
                raise
            if not isinstance(item, Prepared):
                return

    def _pin(self, stage: str, prepared: Prepared) -> Item:
        work, flow = self._work, self._flow
        flow.let_in(stage)
        try:
            work.place(prepared, pin_or_wait(flow, stage, lambda: work.pin(stage, prepared)))
        except FlowStopped:
            raise
        except BaseException as error:
            return Failed(stage, prepared.number, error)
        self._pinned[prepared.number] = prepared
        return prepared
