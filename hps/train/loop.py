"""TrainingLoop: a run's batches, one step after the other, in spans of one depth each.

Above it: `hps.train.run`. Below it: `hps.Pipeline`, `PausingLog`, `Trainer`, `DepthChooser`,
`Validation`, `Periods`, `StepCheckpoints`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hps.common.json_text import Json
from hps.errors import HpsError
from hps.pipeline import Pipeline, Trace, add_seconds
from hps.pipeline.slices import SliceSink, one_sink
from hps.reader.store_rules import check_store
from hps.stops import StopWaiting
from hps.train.pausing_log import PausingLog

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer
    from hps.train.beginning import Begun
    from hps.train.context import RunContext
    from hps.train.depth import DepthChooser
    from hps.train.options import TrainOptions
    from hps.train.step_checkpoints import StepCheckpoints


@dataclass(frozen=True)
class LoopEnd:
    """Where a loop has ended.

    Args:
        stages: seconds by stage, as `Pipeline.seconds` has them, of all spans.
        position: of the reader, after the last applied batch.
        is_finished: the log has come to its end.
        stopped: the number of the signal that has ended it; 0 for none.
    """

    stages: dict[str, dict[str, float]]
    position: Json
    is_finished: bool
    stopped: int


class TrainingLoop:
    """Trains to the end of the log, to the limit, until validations get no better, or to a stop.
    Every rank does the same.

    Args:
        server: of the rows.
        options: of the run.
        begun: what is trained, and on what.
        checkpoints: taken where they are due.
        depths: of the spans.
        context: who trains, who is told, what may stop the run.
    """

    def __init__(
        self,
        server: "TrainingServer",
        options: "TrainOptions",
        begun: "Begun",
        checkpoints: "StepCheckpoints",
        depths: "DepthChooser",
        context: "RunContext",
    ) -> None:
        check_store(begun.reader, server)
        self._server = server
        self._options = options
        self._reader = begun.reader
        self._log = PausingLog(begun.reader, options.accumulate)
        self._trainer = begun.trainer
        self._watch = begun.watch
        self._periods = begun.periods
        self._checkpoints = checkpoints
        self._depths = depths
        self._progress = context.progress
        self._ranks = context.ranks
        self._stops = context.stops
        self._following = context.following
        self._validation = begun.validation
        self._metrics = context.metrics
        self._stopped = 0  # the signal

    def run(self, trace: Trace | None = None) -> LoopEnd:
        """Trains; to be called once."""
        self._trainer.model.train()
        stages: dict[str, dict[str, float]] = {}
        self._set_pause()
        self._periods.pause_at_turns(self._log)
        while True:
            batches = self._pipeline(trace)
            try:
                with batches:
                    self._span(batches)
            except StopWaiting as stop:  # between two steps
                self._stopped = stop.signal_number
            add_seconds(stages, batches.seconds())
            if self._metrics is not None:
                self._metrics.span_ended(self._trainer.totals, batches.seconds())
            position = batches.state_dict()
            is_over = self._log.is_finished or self._is_limit_reached
            if not self._stopped and self._log.is_at_turn:
                self._periods.turn(self._log)
            elif not self._stopped and (is_over or self._log.is_paused):
                self._validate()
            elif not self._stopped and self._log.is_dry:
                self._wait_for_files(position)
            if self._stopped or is_over or self._has_enough:
                break
            if self._depths.is_span_over:
                self._depths.next_span()
            else:
                self._depths.paused()
        for line in self._watch.finish():
            self._progress.say(line)
        is_finished = self._log.is_finished and not self._stopped
        return LoopEnd(stages, position, is_finished, self._stopped)

    def _pipeline(self, trace: Trace | None) -> Pipeline:
        depth = self._depths.depth
        lookahead = self._options.lookahead if depth else 0
        accumulate = self._options.accumulate
        sinks: list[SliceSink] = [] if trace is None else [trace]
        if self._metrics is not None:
            sinks.append(self._metrics.slices)
        return Pipeline(
            self._log, self._server, depth, accumulate, lookahead=lookahead, trace=one_sink(sinks)
        )

    @property
    def _has_enough(self) -> bool:
        return self._validation is not None and self._validation.is_over

    def _set_pause(self) -> None:
        """Where the next validation is due; where none is ever wanted again, here."""
        if self._has_enough:  # a run that goes on after its last validation
            self._log.go_on(num_batches=0)
        elif self._validation is not None:
            self._validation.set_pause(self._log)

    def _validate(self) -> None:
        if self._validation is None:
            return
        try:
            self._validation.measure(self._log)
        except StopWaiting as stop:
            self._stopped = stop.signal_number
        self._set_pause()

    def _wait_for_files(self, position: Json) -> None:
        """Of a folder that is followed, all of which is read: until it has more, or is at its end.
        No batch is pinned meanwhile."""

        def save_if_due(waited: float) -> None:
            if self._checkpoints.boundary.is_due_in_wait(waited):
                self._checkpoints.take(None, self._trainer, position)

        assert self._following is not None, "a log ran dry, and nobody follows it"
        try:
            self._following.feed(self._reader, save_if_due)
        except StopWaiting as stop:
            self._stopped = stop.signal_number
        except HpsError as error:
            self._checkpoints.save_before(error, self._trainer, position)
            raise
        self._log.fed()

    def _span(self, batches: Pipeline) -> None:
        """Trains on batches until they end, or the step is done with which as many examples have
        been seen as are asked for, or the run is to stop."""
        trainer, accumulate = self._trainer, self._options.accumulate
        num_gathered = 0
        while num_gathered or not self._is_limit_reached:  # a step is finished
            # A rank alone cannot leave: the others may have the batch, and wait for its rows.
            may_leave = num_gathered == 0 and self._ranks.world is None
            batch = self._stops.next_of(batches) if may_leave else next(batches, None)
            if batch is None:
                break
            for line in self._watch.add(batch.dense):
                self._progress.say(line)
            logits = trainer.backward(batch)
            num_gathered += 1
            self._checkpoints.boundary.batch_done()
            if num_gathered == accumulate:
                trainer.step()
                num_gathered = 0
            self._progress.update(trainer.totals, logits, batch, self._server.stats)
            if self._metrics is not None:
                self._metrics.batch_done(trainer.totals, batches)
            seconds_before = self._checkpoints.seconds
            if num_gathered == 0:
                due = self._checkpoints.boundary.due()
                self._stopped = due.stop
                if due.stop:
                    return
                if due.is_checkpoint:
                    self._checkpoints.take(None, trainer, batches.state_dict())
            if self._depths.batch_done(self._checkpoints.seconds - seconds_before):
                batches.stop_reading()
        if num_gathered:
            trainer.step()

    @property
    def _is_limit_reached(self) -> bool:
        limit = self._options.limit
        return bool(limit) and self._trainer.totals.examples >= limit
