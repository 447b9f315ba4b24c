"""`hps train` on generated logs of bags: near the planted model's AUC, resumed to the same bits."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

import hps
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.train import TrainOptions, evaluate_store, train
from hps.train.shape_rules import what_it_lacks

CONFIG = GeneratorConfig(
    examples=20_000, test_examples=10_000, features=4, dense=3, keys=100, bag=2.0, seed=2
)


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize(
    ("log_format", "model"),
    [
        ("slots", "deepfm"),
        ("libffm", "dlrm"),
        ("parquet", "wide_deep"),
        ("parquet", "dcn_v2"),
        ("slots", "lr"),
        ("parquet", "fm"),
        ("libffm", "autoint"),
    ],
)
def test_every_model_comes_near_the_planted_auc(
    tmp_path: Path, log_format: str, model: str
) -> None:
    log, test = tmp_path / "log", tmp_path / "test"
    writer = LogWriter(CONFIG, log_format, 1)
    writer.write(log)
    best = writer.write_test(test)["best_auc"]
    options: dict[str, Any] = {
        "data": [log],
        "format": log_format,
        "model": model,
        "dim": 8,
        "hidden": (32,),
        "batch_size": 128,
        "lr": 0.05,
        "dense_lr": 0.005,
        "dram": "16MiB",
        "threads": 1,
        "depth": 1,
    }
    options |= dict.fromkeys(what_it_lacks(model))
    whole = train(TrainOptions(**options, store=tmp_path / "whole", test=[test]))
    # The planted model has pairs of keys, which lr cannot see.
    assert best - whole["test_auc"] < {"lr": 0.05, "fm": 0.03}.get(model, 0.02)
    train(TrainOptions(**options, store=tmp_path / "parts", limit=9_990))
    resumed = train(TrainOptions(**options, store=tmp_path / "parts", resume=True))
    assert resumed["resumed_from"] == "'final'" and 0 < resumed["examples"] < 20_000
    for figure in ("digests", "loss_digest", "train_logloss"):
        assert resumed[figure] == whole[figure]
    measured = evaluate_store([test], tmp_path / "parts")
    assert measured["auc"] == whole["test_auc"]
    with hps.open(tmp_path / "parts") as server:
        stored, _ = server.checkpoint_state("final")
        features = stored["recipe"]["features"]["features"]
        assert len(features) == 4 + (3 if log_format == "libffm" else 0)
