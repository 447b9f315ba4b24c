"""Pipeline: yields a reader's batches with their rows pinned in place, and lets go of them in time.

Above it: the user's training loop, the last of the four stages. Below it: stages.py, which prepares
batches, in threads or (depth 0) in turn; `hps.nn.gradients`, which tells when a step is done.
"""

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hps import _C
from hps.common.field_checks import require_whole
from hps.common.forked import is_inherited, refuse_in_children
from hps.common.json_text import Json
from hps.config import MAX_DEPTH, MAX_LOOKAHEAD
from hps.errors import ConfigError, PendingGradientError
from hps.nn.gradients import pending_of
from hps.pipeline.clock import StageClock, ranges_of
from hps.pipeline.flow import Flow, FlowStopped
from hps.pipeline.invariants import require
from hps.pipeline.prepared import Ended, Failed, Prepared
from hps.pipeline.stages import PreparedBatches, StagesInTurn, StageThreads
from hps.pipeline.work import StageWork
from hps.reader.reader import Reader
from hps.reader.store_rules import check_store
from hps.stops import StopWaiting
from hps.types import Batch

if TYPE_CHECKING:
    from hps.contracts.training import RowServer
    from hps.pipeline.slices import SliceSink


class Pipeline:
    """An iterable context manager over batches whose rows stay in place until their step is done.

    Reading, fetching and computing overlap: while the training loop works on a batch, up to `depth`
    more are read, fetched and pinned by threads of the pipeline. Any depth gives the same rows and
    losses.

    The batches are the reader's own; over a gpu_cache on a GPU, copies of them there.

    A batch's rows are pinned when it is yielded and released when `RowOptimizer.step()` has applied
    its gradient, when the next batch is asked for and it has none, or when the `with` block is
    left. Asking for the next batch while a gradient is pending raises, unless `accumulate` batches
    may be pending. A batch that finds no room waits for a release; batches ahead give way to what
    the loop itself looks up.

    What a stage raises is raised in the loop, after the batches that came before it, with a note of
    the stage and the batch's number; it is raised again if the loop goes on. An interrupt may cost
    the pipeline a batch: it then yields no other, and a new one goes on there. Leaving the block
    drops batches that were read and not yielded: a reader that has `load_state_dict` is put back to
    where the loop stands.

    Args:
        batches: yields `hps.Batch`, each with memory of its own; taken up once. At a depth above 0
            it is touched by one thread of the pipeline only, while the block lasts.
        server: an open `hps.ParameterServer`, or `hps.RemoteParameterServer` or
            `hps.ClusterParameterServer`; of these two, rows that are not in this process come when
            the model asks for them, after the step before. Every rank of a cluster has a pipeline,
            over batches of its own; all end after the same number of batches.
        depth: batches prepared ahead, 0 to 8; 0 has no threads.
        accumulate: how many batches' gradients one step may gather.
        lookahead: batches, 0 to 64, that are read and deduplicated before they are fetched; rows in
            a cache that they will use give way only where no others can. Needs a depth above 0.
        trace: where to write what each stage does when.

    Raises:
        ConfigError: a depth, accumulate or lookahead that cannot work; or a reader whose rules of
            keys were not said, and are others than those by which the server's rows came.

    >>> import hps, tempfile, torch
    >>> tables = [hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD(lr=0.1))]
    >>> ids = hps.Ids(keys_L=torch.tensor([7, 8]), offsets=torch.tensor([0, 1, 2]))
    >>> log = [hps.Batch(features={"ads": ids}, dense=torch.zeros(2, 0), labels=torch.ones(2))]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with hps.ParameterServer(hps.Config(path=folder, tables=tables)) as server:
    ...         embedding, optimizer = hps.SparseEmbedding(server, "ads"), hps.RowOptimizer(server)
    ...         with hps.Pipeline(log, server, depth=2) as batches:
    ...             for batch in batches:
    ...                 embedding(batch).sum().backward()
    ...                 optimizer.step()
    ...         server.num_rows("ads")
    2
    """

    # What a pipeline is made of; tests put parts with a planted fault here.
    _work_type = StageWork
    _flow_type = Flow
    _threads_type = StageThreads

    def __init__(
        self,
        batches: Iterable[Batch],
        server: "RowServer",
        depth: int = 2,
        accumulate: int = 1,
        *,
        lookahead: int = 0,
        trace: "SliceSink | None" = None,
    ) -> None:
        require_whole("Pipeline: depth", depth, 0, MAX_DEPTH)
        require_whole("Pipeline: accumulate", accumulate, 1, 2**31)
        require_whole("Pipeline: lookahead", lookahead, 0, MAX_LOOKAHEAD)
        if lookahead and not depth:
            raise ConfigError(f"Pipeline(lookahead={lookahead}) needs a depth above 0")
        if isinstance(batches, Reader):
            check_store(batches, server)
        self.depth = depth
        self.lookahead = lookahead
        self.accumulate = accumulate
        self._batches = batches
        self._ranks = server.ranks
        self._pending = pending_of(server)
        self._trace = trace
        self._clock = StageClock(trace, ranges_of(server.device))
        self._work = self._work_type(batches, server, self._clock, accumulate, wants=lookahead > 0)
        self._stages: PreparedBatches | None = None
        self._last: Failed | Ended | None = None  # what came instead of another batch
        self._is_closed = False
        self._held: list[Prepared] = []  # yielded, pinned, oldest first; the last is the current
        self._num_collected = 0  # of the pending gradients, when the current batch was yielded
        self._position = _position_of(batches)  # of the last applied batch; first, at the start
        # Number and position of the last batch that was yielded; one value, whole at any interrupt.
        self._yielded = (0, self._position)
        self._loop_thread = 0  # the one that asked for a batch last
        refuse_in_children(self, "Pipeline", ("_pending", "_stages", "_work", "_clock"))

    def __enter__(self) -> "Pipeline":
        if self._stages is not None or self._is_closed:
            raise ConfigError("Pipeline: entered twice; make a new one for another pass")
        try:
            if self._ranks is not None:
                self._ranks.pipeline_opened(self)
            self._pending.listeners.append(self)
            self._loop_thread = threading.get_ident()
            self._position = _position_of(self._batches)
            self._yielded = (0, self._position)
            self._stages = self._make_stages()  # before a thread of theirs runs
            self._stages.start()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    # Native: one written in Python could be struck by an interrupt before its first step.
    __exit__ = _C.close_and_exit

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._clock.stop_compute()
        if self._is_closed:
            raise StopIteration
        if self._stages is None:
            raise ConfigError("Pipeline: iterate inside its `with` block, which releases the rows")
        self._loop_thread = threading.get_ident()
        self._settle()
        if self._trace is not None:
            self._trace.flush()
        if self._last is None:
            if self.depth == 0:
                self._require_next(self._work.num_asked + 1)
            try:
                item = self._stages.next(len(self._held))
            except FlowStopped:  # another thread has left the block
                raise StopIteration from None
            if isinstance(item, Prepared):
                return self._hand_out(item)
            if isinstance(item, Ended):
                self._require_next(item.number)
            self._last = item
        if isinstance(self._last, Failed):
            raise self._last.noted()
        raise StopIteration

    @property
    def is_exhausted(self) -> bool:
        """True once the iteration has ended because the reader has no further batch."""
        return isinstance(self._last, Ended) and self._last.is_exhausted

    def state_dict(self) -> Json:
        """The reader's position after the last applied batch, for `checkpoint(reader=...)`.

        A batch counts as applied once its step is done, or once the next batch is asked for and it
        left no gradient. What was read or fetched ahead does not count.
        """
        return dict(self._position)

    def seconds(self) -> dict[str, dict[str, float]]:
        """Busy and wait seconds of each stage so far.

        Returns:
            Stage -> {"busy_seconds", "wait_seconds", "wait_input_seconds", "wait_output_seconds"}.
        """
        return self._clock.seconds()

    def stop_reading(self) -> None:
        """Ends the iteration after the batches that were read so far; the reader goes no further.

        With accumulate=k it reads on to a multiple of k, so that the last step is whole. Another
        pipeline over the same reader then continues with the batch that follows.
        """
        if self._stages is not None:
            self._stages.stop_reading()

    def step_finished(self) -> None:
        """Releases the rows of the step; `RowOptimizer.step()` calls it."""
        require("I5", self._pending.is_empty, "gradients are pending after a step")
        self._position = self._yielded[1]
        self._release_held()

    def give_back_ahead(self) -> bool:
        """Drops the pins of batches that are not handed out yet; they are pinned again before.

        The server calls it where a look-up of the training loop is refused: at depth 0 no batch
        ahead would have held pins. Not under the server's lock or a turn, for it waits until a
        batch that is being pinned has been. Rows are pinned and not changed, so no bit changes.

        Returns:
            True if it dropped any; False also from another thread than the training loop's.
        """
        if self._stages is None or threading.get_ident() != self._loop_thread:
            return False
        return self._stages.give_back_ahead()

    def _make_stages(self) -> PreparedBatches:
        if self.depth == 0:
            return StagesInTurn(self._work)
        stages = ("fetch", "copy", "compute") if self._work.has_gpu_cache else ("fetch", "compute")
        flow = self._flow_type(stages, self.depth, max(self.depth, self.lookahead), self._clock)
        return self._threads_type(self._work, flow)

    def _hand_out(self, prepared: Prepared) -> Batch:
        number = prepared.number
        self._require_next(number)
        self._held.append(prepared)
        require("I4", prepared.is_placed, f"batch {number} has no rows yet")
        require("I2", prepared.is_pinned, f"rows of batch {number} were released before its step")
        require("I7", len(self._held) <= self.accumulate, f"{len(self._held)} batches are held")
        prepared.receive()
        batch = prepared.batch
        batch.rows = prepared.rows
        self._num_collected = self._pending.num_collected
        self._clock.start_compute(number)
        self._yielded = (number, batch.position)
        return batch

    def _require_next(self, number: int) -> None:
        """Refuses to go on where an interrupt has struck between the reader and the loop."""
        if number != self._yielded[0] + 1:
            raise ConfigError(
                f"Pipeline: after an interrupt batch {number} would follow batch "
                f"{self._yielded[0]}; leave the `with` block, which puts the reader back to where "
                "the loop stands, and make a new pipeline"
            )

    def _settle(self) -> None:
        """Decides what becomes of the batches that are out, before another one is taken (I7)."""
        is_new = self._pending.num_collected != self._num_collected
        if self._held and (self._pending.is_empty or not is_new):
            # The current batch has left no gradient: drop its rows.
            self._release(self._held[-1])
            self._held.pop()
        if self._pending.is_empty:
            self._position = self._yielded[1]
            self._release_held()
        elif len(self._held) >= self.accumulate or not self._held:
            raise PendingGradientError(
                f"Pipeline: the next batch was requested while gradients of {len(self._held)} "
                f"batch(es) are pending (accumulate={self.accumulate}); call RowOptimizer.step() "
                "to apply them, zero_grad() to drop them, or pass a larger accumulate"
            )

    def _release_held(self) -> None:
        for prepared in self._held:
            self._release(prepared)
        self._held = []

    def _release(self, prepared: Prepared) -> None:
        """Drops a batch's pins (I2); what is pending for it finds its rows by key."""
        for rows in prepared.rows.values():
            self._pending.forget_rows(rows)
        prepared.release()
        if prepared.batch.rows is prepared.rows:
            prepared.batch.rows = None
        if self._stages is not None and not self._is_closed:
            self._stages.released(prepared)

    def _close(self, no_wait: bool, error: BaseException | None) -> None:
        """Ends the stages, releases every pin, puts the reader back to where the loop stands.

        Where an interrupt has ended it, the next call does what is left.

        Args:
            no_wait: this is the second interrupt: wait for no reader. One that a thread is still in
                is not put back.
            error: what the block was left by, or None.
        """
        if error is not None and is_inherited(self._clock):
            return  # of a forked child: the stages and the pins are its parent's
        self._clock.stop_compute()
        self._is_closed = True
        if self in self._pending.listeners:
            self._pending.listeners.remove(self)
        # Before the stages are waited for: one may be waiting for other ranks.
        if self._ranks is not None:
            self._ranks.pipeline_closing(self, error)
        try:
            self._release_held()
        finally:
            if self._stages is not None:
                # Told to stop in a wait for a batch: then no wait for that batch here, either.
                self._stages.close(no_wait, no_wait or isinstance(error, StopWaiting))
        is_reader_free = self._stages is None or self._stages.is_reader_free
        self._stages = None
        if is_reader_free and self._work.num_asked > self._yielded[0] and not self.is_exhausted:
            _put_back(self._batches, self._yielded[1])
        trace, self._trace = self._trace, None
        if trace is not None:
            trace.first_number += self._yielded[0]
            trace.flush(0)
        if self._ranks is not None:
            self._ranks.pipeline_closed(self)


def _position_of(batches: Iterable[Batch]) -> Json:
    """Where a reader is before its first batch; empty for an iterable that does not say."""
    state_dict = getattr(batches, "state_dict", None)  # also of a wrapper that delegates
    return dict(state_dict()) if callable(state_dict) else {}


def _put_back(batches: Iterable[Batch], position: Json) -> None:
    """Makes a reader go on after the last batch that was yielded, as at depth 0."""
    load_state_dict = getattr(batches, "load_state_dict", None)
    if position and callable(load_state_dict):
        load_state_dict(position)
