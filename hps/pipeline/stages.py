"""The stages before compute, one after the other or each in a thread of its own.

Above it: `hps.Pipeline`, whose caller is the fourth stage. Below it: work.py (what a stage does),
flow.py (what passes between them). There are two sources of prepared batches: StagesInTurn (depth
0) and StageThreads.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from hps.errors import CapacityError
from hps.pipeline.flow import Flow, FlowStopped
from hps.pipeline.pins import explained, pin_or_wait
from hps.pipeline.prepared import Ended, Failed, Item, Prepared
from hps.pipeline.work import StageWork

_MOMENT_SECONDS = 0.5


class PreparedBatches(Protocol):
    """Where the training loop gets its batches from."""

    def start(self) -> None:
        """To be called once; `close` is due from then on, also if it was interrupted."""

    def next(self, num_held: int) -> Item:
        """The next batch, the failure of a stage, or the end; waits for it.

        Args:
            num_held: batches whose gradients wait for the same step.
        """

    def released(self, prepared: Prepared) -> None:
        """A batch that was handed out has been released."""

    def give_back_ahead(self) -> bool:
        """Drops the pins of batches that were not handed out until they are; True if there were
        any. In the training loop's thread."""

    def stop_reading(self) -> None:
        """The batches read so far, and what their step lacks, are the last."""

    def close(self, no_wait: bool = False, leaves_reader: bool = False) -> None:
        """Ends everything under way and releases what was not handed out; may be repeated.

        Args:
            no_wait: wait no longer than a moment for any stage.
            leaves_reader: wait no longer than a moment for who is in the reader.
        """

    @property
    def is_reader_free(self) -> bool:
        """True if nothing of this is in the reader any more, nor will be, once closed."""


class StagesInTurn:
    """Depth 0: the stages one after the other, in the thread that asks for the next batch."""

    def __init__(self, work: StageWork) -> None:
        self._work = work
        self._is_reading = True
        self._current: Prepared | None = None  # what close() must give back if it got stuck

    def start(self) -> None:
        """Nothing runs by itself."""

    def next(self, num_held: int) -> Item:
        """The next batch, the failure of a stage, or the end."""
        work = self._work
        if not self._is_reading and work.is_between_steps:
            return work.left()
        stage, number = "network", work.num_asked + 1
        try:
            prepared = work.read()
            if isinstance(prepared, Ended):
                return prepared
            stage, self._current = "fetch", prepared
            if work.has_gpu_cache:
                work.warm(prepared)
                stage = "copy"
            work.pin(prepared)
            work.place(prepared)
        except CapacityError as error:
            return self._failed(stage, number, explained(error, num_held))
        except Exception as error:
            return self._failed(stage, number, error)
        return prepared

    def _failed(self, stage: str, number: int, error: Exception) -> Failed:
        self.close()
        return Failed(stage, number, error)

    def released(self, prepared: Prepared) -> None:
        """Nobody waits for it."""
        if prepared is self._current:
            self._current = None

    def give_back_ahead(self) -> bool:
        """Nothing is pinned ahead."""
        return False

    def stop_reading(self) -> None:
        """Once the step is whole, what is asked for next is the end."""
        self._is_reading = False

    def close(self, no_wait: bool = False, leaves_reader: bool = False) -> None:
        """Releases what a batch holds that failed or was interrupted on its way."""
        if self._current is not None:
            self._current.release()

    @property
    def is_reader_free(self) -> bool:
        """The caller is in here, and in no reader."""
        return True


class StageThreads:
    """Depth 1 and more: a thread a stage, bounded queues between them.

    With a gpu_cache the fetch stage warms the dram_cache and the copy stage pins; without one
    nothing is copied, the fetch stage pins, and the copy stage has no thread.

    Args:
        work: what the stages do.
        flow: the queues between them.
    """

    def __init__(self, work: StageWork, flow: Flow) -> None:
        self._work = work
        self._flow = flow
        work.num_changes, work.waits_for_memory = flow.num_changes, flow.wait_for_memory
        # Let in and not yet released: what close() must give back, wherever it is.
        self._in_flight: dict[int, Prepared] = {}
        self._is_reading = False  # True from before the network stage asks whether it may
        bodies = {"network": self._read_all, work.pinning_stage: self._pin_all}
        if work.has_gpu_cache:
            bodies["fetch"] = self._warm_all
        self._threads = [
            threading.Thread(target=self._run, args=(stage, body), name=f"hps {stage}", daemon=True)
            for stage, body in bodies.items()
        ]

    def start(self) -> None:
        """Starts the threads; close() ends them, also if not all could be started."""
        for thread in self._threads:
            thread.start()

    def next(self, num_held: int) -> Item:
        """The next batch, the failure of a stage, or the end; waits for it."""
        item = self._flow.take_ready(num_held)
        if isinstance(item, Prepared) and item.is_given_back:
            try:
                self._pin_again(item, num_held)
            except Exception as error:
                item = Failed(self._work.pinning_stage, item.number, error)
        self._flow.resume()
        return item

    def give_back_ahead(self) -> bool:
        """Drops the pins of the batches that are ready; no other is pinned until the loop asks for
        the next one, so that what it looks up meanwhile finds room."""
        try:
            ready = self._flow.hold()
        except FlowStopped:
            return False
        ahead = [prepared for prepared in ready if not prepared.is_given_back]
        for prepared in ahead:
            prepared.give_back()
        return bool(ahead)

    def _pin_again(self, prepared: Prepared, num_held: int) -> None:
        """While no other batch is being pinned: as long as some are pinned ahead, it is not
        refused for good."""
        self._flow.hold()
        while True:
            try:
                return self._work.pin_again(prepared)
            except CapacityError as error:
                if not self.give_back_ahead():
                    raise explained(error, num_held) from error

    def released(self, prepared: Prepared) -> None:
        """Its slots are free: a stage that was refused tries again."""
        self._in_flight.pop(prepared.number, None)
        self._flow.note_release()

    def stop_reading(self) -> None:
        """The batches read so far, and what their step lacks, are the last."""
        self._flow.stop_reading()

    def close(self, no_wait: bool = False, leaves_reader: bool = False) -> None:
        """Ends the threads and releases what was pinned and not handed out.

        Waits until a read or a fetch that is under way has returned.
        """
        self._flow.stop()
        try:
            # The network stage last: a reader may block for as long as its source likes.
            for thread in reversed(self._threads):
                is_short = no_wait or (leaves_reader and thread is self._threads[0])
                if thread.ident is not None:
                    thread.join(_MOMENT_SECONDS if is_short else None)
        finally:
            for prepared in list(self._in_flight.values()):
                prepared.release()

    @property
    def is_reader_free(self) -> bool:
        """False while the network stage may be in the reader. A thread that begins to run after
        `close` never comes to it."""
        return not self._is_reading

    def _run(self, stage: str, body: Callable[[], None]) -> None:
        """A thread: its body until the pipeline closes; a failure goes down the queues."""
        with suppress(FlowStopped):
            try:
                body()
            except FlowStopped:
                raise
            except BaseException as error:
                self._flow.put(self._flow.after(stage), Failed(stage, 0, error))

    def _read_all(self) -> None:
        self._is_reading = True
        try:
            self._read_on()
        finally:
            self._is_reading = False

    def _read_on(self) -> None:
        while self._flow.wait_for_room_to_read(self._work.is_between_steps):
            try:
                item: Item = self._work.read()
            except BaseException as error:
                item = Failed("network", self._work.num_asked, error)
            self._flow.put("fetch", item)
            if not isinstance(item, Prepared):
                return
        self._flow.put("fetch", self._work.left())

    def _warm_all(self) -> None:
        with self._work.queueing():
            self._pass_on("fetch", self._warm)

    def _pin_all(self) -> None:
        with self._work.queueing():
            self._pass_on(self._work.pinning_stage, self._pin)

    def _pass_on(self, stage: str, prepare: Callable[[Prepared], None]) -> None:
        """What a stage's thread does: prepares each batch and hands it to the next."""
        to = self._flow.after(stage)
        while True:
            item = self._flow.take(stage)
            if isinstance(item, Prepared):
                if stage == "fetch":
                    self._flow.let_in(stage)
                    self._in_flight[item.number] = item
                item = self._prepared(stage, item, prepare)
            self._put(to, item)
            if not isinstance(item, Prepared):
                return

    def _prepared(
        self, stage: str, prepared: Prepared, prepare: Callable[[Prepared], None]
    ) -> Item:
        try:
            prepare(prepared)
        except FlowStopped:
            raise
        except BaseException as error:
            prepared.release()
            return Failed(stage, prepared.number, error)
        return prepared

    def _put(self, to: str, item: Item) -> None:
        try:
            self._flow.put(to, item)
        except FlowStopped:
            if isinstance(item, Prepared):
                item.release()  # close() may have gone without waiting: a second Ctrl-C
            raise

    def _warm(self, prepared: Prepared) -> None:
        self._work.warm(prepared)

    def _pin(self, prepared: Prepared) -> None:
        """Pins, waiting for releases (I6); then the batch may be passed on (I4)."""
        work = self._work
        pin_or_wait(self._flow, lambda: work.pin(prepared))
        work.bring_ahead(prepared)
        work.place(prepared)
