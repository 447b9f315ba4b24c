"""How a training run ends: its last checkpoint, and what is measured after it.

Above it: `hps.train.run`. Below it: `StepCheckpoints`, the server of the run, final_figures.py.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hps.checkpoint.names import FINAL_TAG
from hps.common.json_text import Json
from hps.train.final_figures import measure_test
from hps.train.periods import period_of
from hps.train.report import peak_rss_bytes

if TYPE_CHECKING:
    from hps.contracts.training import TrainingServer
    from hps.train.context import RunContext
    from hps.train.loop import LoopEnd
    from hps.train.options import TrainOptions
    from hps.train.step_checkpoints import StepCheckpoints
    from hps.train.trainer import Trainer


def save_end(
    checkpoints: "StepCheckpoints",
    trainer: "Trainer",
    ended: "LoopEnd",
    *,
    is_changed: bool,
    say: Callable[[str], object],
    tag: str | None = None,
) -> None:
    """The last checkpoint: tagged as the run wants it, or without a tag where the run was stopped
    and has trained since the one before. A run that had nothing to train on leaves none, unless
    the user gave a tag that the model does not have yet.

    Args:
        is_changed: the run has trained, or validated.
        say: told what the user would not expect.
        tag: that the user gave; None: "final".
    """
    if ended.stopped:
        if not checkpoints.boundary.is_saved:
            checkpoints.take(None, trainer, ended.position)
    elif is_changed or (tag is not None and not checkpoints.is_current(tag)):
        if not is_changed:
            say(f"there was nothing to train on: checkpoint {tag!r} is the model as it was")
        checkpoints.take_named(tag or FINAL_TAG, trainer, ended.position, say)


def add_end_figures(
    figures: Json,
    server: "TrainingServer",
    trainer: "Trainer",
    options: "TrainOptions",
    context: "RunContext",
) -> None:
    """Adds what is measured after training. In place: where measuring fails, the rest is kept.

    Raises:
        TestFailed: as `measure_test`.
    """
    figures["period"] = period_of(server)
    own = trainer.recipe.tables
    tables = [name for name in server.tables if name in own]  # servers may have those of others
    of_tables = server.stats().get("tables", {})
    expired = sum(int(of_tables.get(name, {}).get("expired_rows", 0)) for name in tables)
    figures["expired_rows"] = sum(context.ranks.gather(expired))
    figures["rows"] = sum(server.num_rows(name) for name in tables)
    if not figures["stopped"]:
        if options.digest:
            figures["digests"] = {name: server.digest(name) for name in tables}
        if options.test:
            figures |= measure_test(trainer, options, context)
    figures["peak_rss_bytes"] = sum(context.ranks.gather(peak_rss_bytes()))
