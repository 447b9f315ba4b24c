"""What a training run begins with: a model and a reader, new or as a checkpoint has them.

Above it: `hps.train.run`. Below it: an open server, checks.py, checkpoints.py, `Trainer`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hps.checkpoint.names import find_listed
from hps.common.json_text import Json
from hps.errors import ConfigError, HpsError
from hps.reader.column_use import ColumnUse, format_columns
from hps.train.base_rate import first_labels
from hps.train.checks import (
    check_measured_logs,
    checkpoint_to_resume,
    on_first_rank,
    require_examples,
)
from hps.train.context import RunContext
from hps.train.dense_watch import DenseWatch
from hps.train.first_score import score_new_data
from hps.train.following import Following
from hps.train.lineage import ancestor_of
from hps.train.periods import Periods
from hps.train.progressive import Progressive
from hps.train.recipe import recipe_of
from hps.train.store_checks import check_tag_free, refuse_model
from hps.train.trainer import Trainer, stored_recipe
from hps.train.validation import Validation

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer
    from hps.reader.reader import Reader
    from hps.train.checkpoints import ModelCheckpoint
    from hps.train.options import TrainOptions
    from hps.train.step_checkpoints import StepCheckpoints


@dataclass(frozen=True)
class Begun:
    """A run that is ready for its first batch.

    Args:
        trainer: of the model, new or loaded.
        reader: where the run begins in the log.
        columns: of the log.
        watch: over its dense columns.
        periods: the turns of the store's period.
        validation: of the model between steps; None for none.
        resumed_from: the checkpoint that the run goes on from, in words; None for a new model.
        changes: what goes on otherwise than it was stored, a line each.
        following: of the folder that is followed; None where DATA was given.
        base_rate: the share of clicks that a new model begins at; None where it does not.
        new_data: what the model of before makes of DATA; None where that is not asked for.
    """

    trainer: Trainer
    reader: "Reader"
    columns: list[ColumnUse]
    watch: DenseWatch
    periods: Periods
    validation: Validation | None
    resumed_from: str | None
    changes: list[str]
    following: Following | None
    base_rate: float | None
    new_data: Json | None


def begin(
    server: "TrainingServer",
    options: "TrainOptions",
    reader: "Reader",
    context: RunContext,
    checkpoints: "StepCheckpoints",
) -> Begun:
    """Makes the model of a run, or takes it up. Every rank calls it.

    Args:
        server: open.
        options: of the run.
        reader: at the beginning of the log.
        context: around the run.
        checkpoints: of the run.

    Raises:
        ConfigError: a new model on top of a stored one, nothing to go on from, or a checkpoint that
            does not fit the flags; the server has not gone back to it.
    """
    stored = _stored(options, server)
    _place(reader, None if stored is None or options.new_data else stored.reader, context)
    check_tag_free(options, server, stored)
    recipe = recipe_of(options, reader)
    if stored is not None:
        recipe = recipe.as_before(stored_recipe(stored.model))
    recipe.repeat_ids(reader)
    trainer = Trainer(server, recipe, options, context.ranks)
    periods = Periods(server, trainer, options, checkpoints, context.progress.say)
    if options.progressive:
        trainer.progressive = Progressive(context.ranks)

    def check_logs() -> None:
        """Where it was not clear before what features the model has."""
        if options.new_data:
            require_examples(options, first_labels(reader, 1))
        check_measured_logs(recipe, options, reader, context.progress)

    base_rate: float | None = None
    new_data: Json | None = None
    changes: list[str] = []
    if stored is None:
        base_rate = _set_base_rate(trainer, options, reader, context, check_logs)
        periods.begin(reader.files, None, is_new_data=True)
    else:
        trainer.check_state(stored.model)
        on_first_rank(context.ranks, "looking at the logs", check_logs)
        changes, new_data = _take_up(server, trainer, stored, options, context)
        checkpoints.boundary.checkpoint_done()
        periods.begin(reader.files, stored.reader, is_new_data=options.new_data)
        if options.new_data:
            # What is resumed from now on goes on here, not where the run before was.
            checkpoints.take(None, trainer, reader.state_dict())
        _say_resumed(stored, trainer, options, context)
    columns = reader.columns
    _say_columns(columns, changes, reader, context)
    measured = Validation(trainer, options, checkpoints, context) if options.validates else None
    return Begun(
        trainer=trainer,
        reader=reader,
        columns=columns,
        watch=DenseWatch(columns, reader.config.transform),
        periods=periods,
        validation=measured,
        resumed_from=None if stored is None else str(stored),
        changes=changes,
        following=context.following,
        base_rate=base_rate,
        new_data=new_data,
    )


def _place(reader: "Reader", position: Json | None, context: RunContext) -> None:
    """Has a reader go on from a position; None: from its log's beginning."""
    if context.following is not None:
        reader.follow()
    if position is not None:
        reader.load_state_dict(position)
        if context.following is not None:
            context.following.folder.add_read(reader.position_files)
            reader.note_gone(context.following.folder.gone)
            context.following.say_notes()


def _say_columns(
    columns: Sequence[ColumnUse], changes: Sequence[str], reader: "Reader", context: RunContext
) -> None:
    for line in (*changes, *format_columns(columns)):
        context.progress.say(line)
    rate = reader.config.negative_rate
    if rate < 1:
        context.progress.say(
            f"of the examples with label 0 the share {rate:g} is trained on (--negative-rate)"
        )


def _take_up(
    server: "TrainingServer",
    trainer: Trainer,
    stored: "ModelCheckpoint",
    options: "TrainOptions",
    context: RunContext,
) -> tuple[list[str], Json | None]:
    """Has server and trainer go on from a checkpoint. Nothing refuses the run from here on but
    DATA, where it is scored; a run that is refused has not gone back.

    Returns:
        What goes on otherwise than it was stored; what the model makes of DATA, if that is asked.
    """
    entries = server.checkpoints()
    server.restore(stored.name)
    _check_same(stored, server, options)
    changes = trainer.load_state(stored.model)
    new_data = _score(server, trainer, options, context, entries)
    if options.new_data or options.resume_from is not None:
        trainer.lineage.append(ancestor_of(stored, entries))
    if options.new_data:
        if options.validates and trainer.evaluations.entries:
            context.progress.say(
                "the best model is looked for anew among those that learn from new data; that of "
                "before keeps another name: 'hps models DIR --promote best --as NAME'"
            )
        trainer.evaluations.begin_data()  # before the first checkpoint: a restart has it
    return changes, new_data


def _score(
    server: "TrainingServer",
    trainer: Trainer,
    options: "TrainOptions",
    context: RunContext,
    entries: Sequence[Json],
) -> Json | None:
    """Scores DATA before a checkpoint says that the run has begun; where it cannot be read, the
    rows are again those that were there."""
    try:
        return score_new_data(trainer, options, context)
    except HpsError as error:
        current = next((one for one in entries if one["current"]), None)
        if current is not None and (context.ranks.world is None or error.is_shared):
            with suppress(HpsError):  # what DATA has is the error to tell
                server.restore(current["tag"] or current["id"])
        raise


def _stored(options: "TrainOptions", server: "TrainingServer") -> "ModelCheckpoint | None":
    """What the run goes on from, where the server has not gone yet; None for a new run."""
    if not options.resume:
        refuse_model(options, server)
        return None
    return checkpoint_to_resume(options, server)


def _check_same(
    stored: "ModelCheckpoint", server: "TrainingServer", options: "TrainOptions"
) -> None:
    """The rows are those of the checkpoint whose dense side was read.

    Raises:
        ConfigError: another one of its name was taken in between.
    """
    current = find_listed(options.where, server.checkpoints())
    created = None if current is None else current.get("created")
    if None not in (stored.created, created) and stored.created != created:
        raise ConfigError(
            f"{options.where}: checkpoint {stored} was replaced by another one of its name while "
            "the run began; repeat the command"
        )


def _set_base_rate(
    trainer: Trainer,
    options: "TrainOptions",
    reader: "Reader",
    context: RunContext,
    check_logs: Callable[[], None],
) -> float | None:
    """Has a new model begin at the log's share of clicks, which it returns."""
    if options.resume:  # only now is it clear that there is nothing to go on from
        on_first_rank(context.ranks, "looking at the logs", check_logs)
    labels = context.labels
    if options.base_rate and labels is not None and labels.examples:
        trainer.model.set_base_rate(labels.logit)
        return labels.rate
    return None


def _say_resumed(
    stored: "ModelCheckpoint", trainer: Trainer, options: "TrainOptions", context: RunContext
) -> None:
    totals = trainer.totals
    where = ", at the beginning of DATA" if options.new_data else ""
    if options.remote is not None:
        where += "; what clients changed on the servers after it, erased rows too, is undone"
    context.progress.say(
        f"goes on from checkpoint {stored}, after {totals.batches:,} batches and "
        f"{totals.examples:,} examples{where}"
    )
