"""The training run behind `hps train` and the figures behind `hps evaluate`."""

from hps.train.base_rate import FirstLabels, first_labels
from hps.train.evaluate import (
    evaluate_model,
    evaluate_published,
    evaluate_remote,
    evaluate_store,
)
from hps.train.options import TrainOptions
from hps.train.run import train

__all__ = [
    "FirstLabels",
    "TrainOptions",
    "evaluate_model",
    "evaluate_published",
    "evaluate_remote",
    "evaluate_store",
    "first_labels",
    "train",
]
