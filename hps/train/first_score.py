"""How the model of before scores a new log, measured as a whole before the first step on it.

Above it: `hps.train.run`. Below it: `evaluate_model`.
"""

from typing import TYPE_CHECKING

from hps.common.json_text import Json
from hps.errors import HpsError
from hps.train.context import RunContext
from hps.train.evaluate import evaluate_model
from hps.train.validation import format_entry

if TYPE_CHECKING:
    from hps.train.options import TrainOptions
    from hps.train.trainer import Trainer


def score_new_data(trainer: "Trainer", options: "TrainOptions", context: RunContext) -> Json | None:
    """Figures of DATA where a model goes on with new data and `progressive` is asked for.

    All of DATA is read once more, also what `valid_share` and `negative_rate` keep from the
    training. No bit of the model changes. Every rank calls it.

    Returns:
        What `evaluate_model` returns, without the distribution of scores; None of other runs.

    Raises:
        HpsError: the log cannot be read; nothing has been trained.
    """
    if not (options.progressive and options.new_data):
        return None
    held_out = () if options.held_out is None else options.held_out.files
    try:
        reader = trainer.recipe.open_reader(
            [*options.data, *held_out],
            [options.table()],
            part=context.ranks.part,
            threads=options.threads,
            on_error=options.on_error,
            batch_size=trainer.batch_to_measure,
        )
        figures = evaluate_model(trainer.model, reader, context.ranks)
    except HpsError as error:
        error.add_note("this is DATA, which --progressive scores before the first step")
        raise
    del figures["scores"]
    line = format_entry({**figures, "examples": trainer.totals.examples})
    context.progress.say(f"DATA, {figures['examples']:,} new examples, by the model {line}")
    return figures
