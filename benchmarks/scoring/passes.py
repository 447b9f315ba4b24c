"""Whole logs scored three ways: by a training that validates, by `hps evaluate`, by `hps predict`.

Above it: scoring_bench.py. Below it: hps.train. Each repetition trains a new store, and scores the
same file with what that holds; a pass is timed by what hps itself reports of it.
"""

import shutil
from pathlib import Path

from benchmarks.common.timing import Samples, interleave
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.train import TrainOptions, evaluate_store, train
from hps.train.model import Model
from hps.train.predict import predict_log

VALIDATE = "validation of hps train"
PREDICT = "hps predict"
EVALUATE = "hps evaluate"
_DRAM = "1GiB"
_BATCH_SIZE = 4096  # that of the commands; a validation has its own


class Logs:
    """A log to train on, one to score, and the store of the newest training.

    Args:
        folder: for all of them.
        num_trained: examples that are trained on.
        num_scored: examples of the other log.
        num_keys: of all features.
    """

    def __init__(self, folder: Path, num_trained: int, num_scored: int, num_keys: int) -> None:
        config = GeneratorConfig(examples=num_trained, test_examples=num_scored, keys=num_keys)
        writer = LogWriter(config, "criteo", 1)
        self.trained, self.scored = folder / "trained.tsv", folder / "scored.tsv"
        writer.write(self.trained)
        writer.write_test(self.scored)
        self.num_scored = num_scored
        self.folder = folder
        self.store = folder / "store"


def pass_rates(logs: Logs, dim: int, repetitions: int) -> dict[str, Samples]:
    """Examples a second of each way, by its name; the passes over a store that was just trained."""

    def validate() -> float:
        shutil.rmtree(logs.store, ignore_errors=True)
        options = TrainOptions(
            data=[logs.trained],
            store=logs.store,
            valid=[logs.scored],
            format="criteo",
            dim=dim,
            dram=_DRAM,
            torch_threads=1,
        )
        figures = train(options)
        assert len(figures["evaluations"]) == 1, "one validation, at the end, is what is timed"
        assert figures["evaluations"][0]["valid_examples"] == logs.num_scored
        return logs.num_scored / float(figures["validation_seconds"])

    def evaluate() -> float:
        figures = evaluate_store([logs.scored], logs.store, dram=_DRAM, batch_size=_BATCH_SIZE)
        assert figures["examples"] == logs.num_scored
        return float(figures["examples_per_second"])

    def predict() -> float:
        with Model.load(logs.store, dram=_DRAM) as model:
            out = logs.folder / "scores.npy"
            figures = predict_log(model, [logs.scored], out, batch_size=_BATCH_SIZE)
        assert figures["examples"] == logs.num_scored
        return float(figures["examples_per_second"])

    return interleave({VALIDATE: validate, EVALUATE: evaluate, PREDICT: predict}, repetitions)
