"""The figures on --test, measured after training; what goes wrong there loses none of the others.

Above it: closing.py. Below it: `evaluate_model`.
"""

from typing import TYPE_CHECKING

from hps.common.json_text import Json
from hps.errors import HpsError
from hps.stops import StopWaiting, name_of
from hps.train.context import RunContext
from hps.train.evaluate import evaluate_model

if TYPE_CHECKING:
    from hps.train.options import TrainOptions
    from hps.train.trainer import Trainer


class TestFailed(Exception):
    """This rank alone has failed, or another one is gone: the ranks' collectives are over."""


def measure_test(trainer: "Trainer", options: "TrainOptions", context: RunContext) -> Json:
    """AUC, logloss and calibration of the model as it has been trained. Every rank calls it.

    Returns:
        The figures; or `test_error`, what went wrong, in words; or `stopped`, by which signal.

    Raises:
        TestFailed: what went wrong leaves the ranks out of step; the others have been told.
    """
    ranks = context.ranks
    try:
        size: Json = {"batch_size": trainer.batch_to_measure, "part": ranks.part}
        reader = trainer.recipe.open_reader(options.test, [options.table()], **size)
        test = evaluate_model(trainer.model, reader, ranks, context.stops)
    except StopWaiting as stop:
        return {"stopped": name_of(stop.signal_number)}
    except Exception as error:  # any: the model is trained and saved, and its figures are at hand
        text = str(error) if isinstance(error, HpsError) else f"{type(error).__name__}: {error}"
        if ranks.world is not None and not getattr(error, "is_shared", False):
            ranks.world.abort(text)
            raise TestFailed(text) from error
        return {"test_error": text}
    return {
        "test_auc": test["auc"],
        "test_logloss": test["logloss"],
        "test_normalized_entropy": test["normalized_entropy"],
        "test_gauc": test.get("gauc"),
        "test_groups": test.get("groups"),
        "test_calibration": test["calibration"],
        "test_skipped_lines": reader.counts.skipped,
        "scores": {"log": "--test", **test["scores"]},
    }
