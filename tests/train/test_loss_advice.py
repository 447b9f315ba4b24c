"""A training that has diverged is told, and so is a validation worse than a constant.

Above it: pytest. Below it: hps/train/loss_advice.py, the training run.
"""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.train import TrainOptions, train
from hps.train.progress import Progress

pytestmark = pytest.mark.usefixtures("one_torch_thread")

DIVERGED = "warning: the mean logloss of this run is "
WORSE = ", and worse than the share of clicks for every example"


def said_by(folder: Path, **changes: Any) -> str:
    log = folder / "log.tsv"
    LogWriter(GeneratorConfig(examples=4000, keys=500), "criteo", 1).write(log)
    said = StringIO()
    options = TrainOptions(
        data=[log],
        valid_share=0.25,
        store=folder / "store",
        dim=4,
        hidden=(8,),
        dram="8MiB",
        depth=0,
        batch_size=64,
        **changes,
    )
    train(options, Progress(0, said))
    return said.getvalue()


def test_a_training_that_learns_is_not_warned_of(tmp_path: Path) -> None:
    said = said_by(tmp_path)
    assert DIVERGED not in said and WORSE not in said
    assert "validation after" in said


def test_a_training_that_has_diverged_is_told(tmp_path: Path) -> None:
    said = said_by(tmp_path, lr=1e4)
    assert DIVERGED in said and "lower --lr" in said
    (line,) = [line for line in said.splitlines() if "validation after" in line]
    assert line.endswith(WORSE)
