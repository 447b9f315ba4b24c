"""The training run behind `hps train` and the figures behind `hps evaluate`."""

from hps.train.evaluate import evaluate_model, evaluate_remote, evaluate_store
from hps.train.options import TrainOptions
from hps.train.run import train

__all__ = ["TrainOptions", "evaluate_model", "evaluate_remote", "evaluate_store", "train"]
