"""Validation: measures the model between two steps, keeps the best, and says when to stop.

Above it: loop.py. Below it: `evaluate_model`, `Evaluations`, `StepCheckpoints`. It runs between
two pipelines, so that no batch of DATA is pinned meanwhile; it reads rows and creates none.
"""

import time
from typing import TYPE_CHECKING

from hps.checkpoint.names import BEST_TAG
from hps.common.json_text import Json
from hps.errors import HpsError
from hps.options.data import EPOCH
from hps.reader.files import find_files
from hps.train.evaluate import evaluate_model
from hps.train.loss_advice import remark_on_figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hps.reader.files import PathLike
    from hps.reader.reader import Reader
    from hps.train.context import RunContext
    from hps.train.evaluations import Evaluations
    from hps.train.options import TrainOptions
    from hps.train.pausing_log import PausingLog
    from hps.train.step_checkpoints import StepCheckpoints
    from hps.train.trainer import Trainer


class Validation:
    """Validates a run's model. Every rank does the same, and sees the same figures.

    Args:
        trainer: of the model; its `evaluations` are added to.
        options: of the run, with `valid` or `valid_share`.
        checkpoints: that take the best model.
        context: who measures, who is told, what may stop it.

    Raises:
        ConfigError: no file of it is there.
    """

    def __init__(
        self,
        trainer: "Trainer",
        options: "TrainOptions",
        checkpoints: "StepCheckpoints",
        context: "RunContext",
    ) -> None:
        self._trainer = trainer
        self._options = options
        self._checkpoints = checkpoints
        self._context = context
        self.num_done = 0  # by this run
        self.scores: Json | None = None  # of the last one
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        done, log = trainer.evaluations, log_of(options)
        if done.entries and done.log != log:
            context.progress.say(
                f"{flag_of(options)} is another log than that of the {len(done.entries)} "
                "evaluation(s) so far: they and the best model are counted anew"
            )
            done.entries.clear()
            done.begin_anew()
        why = self._why_anew()
        if why is not None:
            context.progress.say(f"{why}: the best model is looked for anew")
            done.begin_anew()
        done.log = log

    def _why_anew(self) -> str | None:
        """Why a best model of before does not count; None if it does, or if there is none."""
        best = self.evaluations.best(self._options.best_by)
        if best is None:
            return None
        if self._checkpoints.batches_of(BEST_TAG) != best["batches"]:
            return (
                f"the checkpoint {BEST_TAG!r} is not the model that was best so far, after "
                f"{best['examples']:,} examples"
            )
        return None

    @property
    def evaluations(self) -> "Evaluations":
        """Of the model's life."""
        return self._trainer.evaluations

    @property
    def is_over(self) -> bool:
        """True once as many validations in a row as --patience says were no better."""
        patience = self._options.patience
        return 0 < patience <= self.evaluations.num_since_best(self._options.best_by)

    def set_pause(self, log: "PausingLog") -> None:
        """Has a log pause where the next validation is due; at once where one is overdue."""
        every = self._options.eval_every
        if every == EPOCH:
            return log.go_on(num_epochs=self.evaluations.num_epochs)
        number = self._trainer.totals.batches
        due = (self.evaluations.num_batches // int(every) + 1) * int(every)
        return log.go_on(num_batches=max(0, due - number))

    def measure(self, log: "PausingLog") -> None:
        """Validates, unless the model as it is has been.

        Args:
            log: DATA, paused or at its end.

        Raises:
            StopWaiting: asked to stop; nothing was noted.
            HpsError: the log cannot be read; what has been trained is in a checkpoint.
        """
        done, totals = self.evaluations, self._trainer.totals
        ended = log.num_epochs
        if done.entries and done.num_batches == totals.batches:
            done.num_epochs = max(done.num_epochs, ended)
            return
        start, cpu_start = time.perf_counter(), time.process_time()
        try:
            figures = self._figures(log)
        finally:
            seconds = time.perf_counter() - start
            self.seconds += seconds
            self.cpu_seconds += time.process_time() - cpu_start
            self._context.progress.pause(seconds)
        self.scores = {"log": flag_of(self._options), **figures.pop("scores")}
        entry = {
            "examples": totals.examples,
            "batches": totals.batches,
            "valid_examples": figures.pop("examples"),
            **figures,
        }
        done.entries.append(entry)
        done.num_epochs = ended
        self.num_done += 1
        is_best = done.num_since_best(self._options.best_by) == 0
        self._say(entry, is_best=is_best)
        if is_best:
            say = self._context.progress.say
            self._checkpoints.take_named(BEST_TAG, self._trainer, log.state_dict(), say)

    def _figures(self, log: "PausingLog") -> Json:
        context, trainer = self._context, self._trainer
        try:
            reader = open_valid(trainer, self._options, context)
            figures = evaluate_model(trainer.model, reader, context.ranks, context.stops)
            return {**figures, "valid_skipped_lines": reader.counts.skipped}
        except HpsError as error:
            if context.ranks.world is None or error.is_shared:
                self._checkpoints.save_before(error, trainer, log.state_dict())
            error.add_note(f"this is {flag_of(self._options)}, which is measured between two steps")
            raise

    def _say(self, entry: Json, *, is_best: bool) -> None:
        since = self.evaluations.num_since_best(self._options.best_by)
        best = "the best so far" if is_best else f"{since} after the best"
        line = f"validation {format_entry(entry)}  {best}{remark_on_figures(entry)}"
        self._context.progress.validated(entry, line)


def flag_of(options: "TrainOptions") -> str:
    """The flag that says what a run is validated on."""
    if options.held_out is not None:
        return "--valid-by files"
    return "--valid" if options.valid else "--valid-share"


def log_of(options: "TrainOptions") -> Json:
    """What names the log that a run is validated on: its files and their sizes, and which share of
    their examples."""
    paths = find_files(_files_of(options))
    named: Json = {"files": [[path.name, path.stat().st_size] for path in paths]}
    share = options.hashed_share
    return named if share is None else {**named, "share": share}


def _files_of(options: "TrainOptions") -> "Sequence[PathLike]":
    """The files that hold what a run is validated on."""
    if options.held_out is not None:
        return options.held_out.files
    return options.valid or options.data


def open_valid(trainer: "Trainer", options: "TrainOptions", context: "RunContext") -> "Reader":
    """The log to validate on, as the model reads logs; of several ranks each one's part.

    Raises:
        HpsError: it cannot be read.
    """
    changes: Json = {"part": context.ranks.part, "threads": options.threads}
    changes["batch_size"] = trainer.batch_to_measure
    if options.hashed_share is not None:
        changes["hash_range"] = (0.0, options.hashed_share)
    return trainer.recipe.open_reader(_files_of(options), [options.table()], **changes)


def format_entry(entry: Json) -> str:
    """One validation as text.

    >>> format_entry({"examples": 4096, "auc": 0.71, "logloss": 0.45, "calibration": 1.02})
    'after 4,096 examples: auc 0.71000  logloss 0.45000  calibration 1.0200'
    """
    return (
        f"after {entry['examples']:,} examples: auc {entry['auc']:.5f}  "
        f"logloss {entry['logloss']:.5f}  calibration {entry['calibration']:.4f}"
    )
