"""TrainingLoop: a run's batches, one step after the other, in spans of one depth each.

Above it: `hps.train.run`. Below it: `hps.Pipeline`, `Trainer`, `DepthChooser`, `StepCheckpoints`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hps.common.json_text import Json
from hps.pipeline import Pipeline, Trace, add_seconds
from hps.stops import StopWaiting

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
        stopped: the number of the signal that has ended it; 0 for none.
    """

    stages: dict[str, dict[str, float]]
    position: Json
    stopped: int


class TrainingLoop:
    """Trains to the end of the log, to the limit, or to a stop. Every rank does the same.

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
        self._server = server
        self._options = options
        self._reader = begun.reader
        self._trainer = begun.trainer
        self._watch = begun.watch
        self._checkpoints = checkpoints
        self._depths = depths
        self._progress = context.progress
        self._ranks = context.ranks
        self._stops = context.stops
        self._stopped = 0  # the signal

    def run(self, trace: Trace | None = None) -> LoopEnd:
        """Trains; to be called once."""
        self._trainer.model.train()
        stages: dict[str, dict[str, float]] = {}
        accumulate = self._options.accumulate
        while True:
            depth = self._depths.depth
            batches = Pipeline(
                self._reader,
                self._server,
                depth,
                accumulate,
                lookahead=self._options.lookahead if depth else 0,
                trace=trace,
            )
            try:
                with batches:
                    self._span(batches)
            except StopWaiting as stop:  # between two steps
                self._stopped = stop.signal_number
            add_seconds(stages, batches.seconds())
            if batches.is_exhausted or self._is_limit_reached or self._stopped:
                position = batches.state_dict()
                break
            self._depths.next_span()
        for line in self._watch.finish():
            self._progress.say(line)
        return LoopEnd(stages, position, self._stopped)

    def _span(self, batches: Pipeline) -> None:
        """Trains on batches until they end, or as many examples have been seen as are asked for, or
        the run is to stop."""
        trainer, accumulate = self._trainer, self._options.accumulate
        num_gathered = 0
        while not self._is_limit_reached:
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
