"""RunFigures: what a training run did between two moments, as `hps train --json` tells it.

Above it: `hps.train.run`. Below it: the clocks, `Pipeline`'s seconds, the server's counters,
rank_report.py.
"""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from hps.common.json_text import Json, JsonView
from hps.options.run import AUTO
from hps.pipeline import Bound, bound_of
from hps.reader.column_use import describe_columns
from hps.report.stragglers import find_stragglers
from hps.stops import name_of
from hps.train.rank_report import sum_tiers
from hps.train.ranks import cores_of_rank
from hps.train.report import peak_rss_bytes, row_moves, tiers_of

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer
    from hps.train.beginning import Begun
    from hps.train.depth import DepthChooser
    from hps.train.loop import LoopEnd
    from hps.train.options import TrainOptions
    from hps.train.ranks import TrainingRanks
    from hps.train.step_checkpoints import StepCheckpoints

_FEW_BATCHES = 8  # in which queues are only filled: nobody can tell what bounds such a run


class RunFigures:
    """Counts from where it is made; its time is that between `start` and `stop`.

    Args:
        server: whose counters are told.
        options: of the run.
        ranks: that train together; all call the same verbs.
        begun: what is trained.
        checkpoints: that are counted.
        depths: of the spans.
    """

    def __init__(
        self,
        server: "TrainingServer",
        options: "TrainOptions",
        ranks: "TrainingRanks",
        begun: "Begun",
        checkpoints: "StepCheckpoints",
        depths: "DepthChooser",
    ) -> None:
        self._server = server
        self._options = options
        self._ranks = ranks
        self._begun = begun
        self._checkpoints = checkpoints
        self._depths = depths
        self._before = begun.trainer.totals.to_dict()
        self._exchanged = self._start = self._cpu_start = 0.0
        self._seconds = self._cpu_seconds = 0.0
        self._waited = self._cpu_waited = 0.0

    @property
    def num_examples(self) -> int:
        """Trained on so far."""
        return self._begun.trainer.totals.examples - int(self._before["examples"])

    @property
    def is_changed(self) -> bool:
        """True if a checkpoint of now would differ from one at the beginning."""
        validation = self._begun.validation
        return self.num_examples > 0 or (validation is not None and validation.num_done > 0)

    def start(self) -> None:
        """Training begins."""
        self._exchanged = self._ranks.exchange_seconds()
        if self._begun.following is not None:  # it has waited before
            self._waited = self._begun.following.seconds
            self._cpu_waited = self._begun.following.cpu_seconds
        self._start, self._cpu_start = time.perf_counter(), time.process_time()

    def stop(self, stages: dict[str, dict[str, float]]) -> None:
        """Training has ended; adds to the stages what ranks spent in exchanges. Validation and
        waits for files count neither here nor there."""
        if self._ranks.world is not None:
            seconds = self._ranks.exchange_seconds() - self._exchanged
            stages["compute"]["exchange_seconds"] = seconds
        self._seconds = time.perf_counter() - self._start
        self._cpu_seconds = time.process_time() - self._cpu_start
        if self._begun.following is not None:
            self._seconds -= self._begun.following.seconds - self._waited
            self._cpu_seconds -= self._begun.following.cpu_seconds - self._cpu_waited
        if self._begun.validation is not None:
            self._seconds -= self._begun.validation.seconds
            self._cpu_seconds -= self._begun.validation.cpu_seconds

    def to_dict(self, ended: "LoopEnd") -> Json:
        """All figures but those that are measured after training. Every rank calls it.

        Args:
            ended: where the loop has; what rows moved is added to its stages.
        """
        stages, reader, totals = ended.stages, self._begun.reader, self._begun.trainer.totals
        stats = self._server.stats()
        if "client" in stats:
            stages["compute"]["server_seconds"] = stats["client"]["wait_seconds"]
        for stage, moves in row_moves(stats).items():
            stages[stage].update(moves)
        num_examples, seconds = self.num_examples, self._seconds
        return {
            "model": self._options.shape().model,
            "examples": num_examples,
            "seconds": seconds,
            "examples_per_second": num_examples / seconds if seconds else 0.0,
            **_logloss(self._before, totals.to_dict()),
            "base_rate": self._begun.base_rate,
            "negative_rate": reader.config.negative_rate,
            "weight": reader.config.weight,
            "stopped": name_of(ended.stopped),
            **self._of_validation(),
            "test_error": None,
            "test_auc": None,
            "test_logloss": None,
            "test_normalized_entropy": None,
            "test_gauc": None,
            "test_groups": None,
            "test_calibration": None,
            "total_examples": totals.examples,
            "total_batches": totals.batches,
            "loss_digest": totals.loss_digest,
            "resumed_from": self._begun.resumed_from,
            "resumed_with": self._begun.changes,
            "follow": None if self._begun.following is None else self._begun.following.figures(),
            "checkpoints": self._checkpoints.count,
            "checkpoint_seconds": self._checkpoints.seconds,
            # Else the reader may be elsewhere: left in a wait, or a batch ahead.
            "skipped_lines": (
                reader.counts.skipped if ended.is_finished else ended.position["skipped"]
            ),
            "test_skipped_lines": None,
            "format": reader.config.format,
            "columns": describe_columns(self._begun.columns, self._begun.watch.found()),
            "peak_rss_bytes": peak_rss_bytes(),
            "stages": stages,
            "bound": asdict(self._bound(stages)),
            "depth": self._depths.depth,
            "depth_trials": [asdict(trial) for trial in self._depths.trials],
            **self._sums(stages),
        }

    def _of_validation(self) -> Json:
        validation, done = self._begun.validation, self._begun.trainer.evaluations
        progressive = self._begun.trainer.progressive
        return {
            "evaluations": done.to_dict()["evaluations"],
            "best": done.best(self._options.best_by),
            "stopped_early": validation is not None and validation.is_over,
            "progressive": None if progressive is None else progressive.entries(),
            "scores": None if validation is None else validation.scores,
            "validation_seconds": 0.0 if validation is None else validation.seconds,
        }

    def _bound(self, stages: Mapping[str, Mapping[str, float]]) -> Bound:
        depth, why = self._depths.depth, self._why_depth()
        cores = cores_of_rank()
        bound = bound_of(stages, self._seconds, self._cpu_seconds, cores, depth, why)
        num_batches = self._begun.trainer.totals.batches - int(self._before["batches"])
        if num_batches < _FEW_BATCHES:
            return dataclasses.replace(bound, text=_too_few(num_batches))
        return bound

    def _why_depth(self) -> str:
        """Why the run ends at depth 0, if the user has not asked for it."""
        if self._ranks.world is not None and self._options.depth == AUTO and not self._depths.depth:
            return "which --depth auto chooses for ranks without two cores each"
        return self._depths.why

    def _sums(self, stages: dict[str, dict[str, float]]) -> Json:
        """The figures that are sums over all ranks, and under "ranks" what each of them did."""
        world = self._ranks.world
        own: Json = {
            "cpu_seconds": self._cpu_seconds,
            "tiers": tiers_of(self._server.stats()),
            "stages": stages,
            "bytes_sent": self._ranks.bytes_sent(),
        }
        of_ranks = self._ranks.gather(own)
        sums = {
            "cpu_seconds": sum(of_rank["cpu_seconds"] for of_rank in of_ranks),
            "tiers": sum_tiers([of_rank["tiers"] for of_rank in of_ranks]),
        }
        if world is not None:
            stages_of_ranks = [of_rank["stages"] for of_rank in of_ranks]
            sums["ranks"] = {
                "size": world.size,
                "stages": stages_of_ranks,
                "stragglers": find_stragglers(stages_of_ranks),
                "bytes_sent": [of_rank["bytes_sent"] for of_rank in of_ranks],
            }
        return sums


def _too_few(num_batches: int) -> str:
    """Instead of what bounds the run."""
    if not num_batches:
        return "no batch was trained on, so nothing bounds this run"
    return f"{num_batches} batch(es) are too few to tell what bounds this run"


def _logloss(before: JsonView, after: JsonView) -> Json:
    """Means over this run and over the model's life, by the examples' weights, each beside its
    number of examples."""
    count = after["weight_sum"] - before["weight_sum"]
    model = after["loss_sum"] / after["weight_sum"] if after["weight_sum"] else None
    return {
        "train_logloss": model,
        "model_logloss": model,
        "model_examples": after["examples"],
        "run_logloss": (after["loss_sum"] - before["loss_sum"]) / count if count else None,
    }
