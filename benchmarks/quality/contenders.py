"""Trains one contender on one split of a log and measures it: all by the same code.

Above it: worker.py. Below it: `hps.train`, deepctr.py, torchrec_dlrm.py, linear.py,
figures.py.
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hps
from benchmarks.quality.figures import measure
from benchmarks.quality.logs import Array, Log, in_epochs, labels_of, write_parts
from benchmarks.quality.settings import SEQUENCE_KINDS, Scores, Settings
from hps.features import Features
from hps.models import MODELS
from hps.train import TrainOptions, train

Parts = Mapping[str, pa.Table]
# Of (log, parts, settings, seed) the probabilities of the valid and the test part.
Contender = Callable[[Log, Parts, Settings, int], dict[str, Array]]
MEASURED = ("valid", "test")


def by_hps(log: Log, parts: Parts, settings: Settings, seed: int) -> dict[str, Array]:
    """`hps train` as its users run it; epochs that are asked for are in the file, in order."""
    with tempfile.TemporaryDirectory() as folder:
        ordered = dict(parts)
        if settings.epochs is not None:
            ordered["train"] = in_epochs(parts["train"], settings.epochs, seed)
        paths = write_parts(ordered, Path(folder))
        given = _given(settings)
        if settings.patience:
            assert settings.batch_size is not None and settings.epochs is not None, settings
            given["valid"] = [paths["valid"]]
            given["eval_every"] = -(-len(parts["train"]) // settings.batch_size)
            given["patience"] = settings.patience
        store = Path(folder, "store")
        train(
            TrainOptions(
                data=[paths["train"]],
                store=store,
                **_history_of(log, settings.model),
                dram="512MiB",
                depth=0,
                seed=seed,
                threads=1,
                torch_threads=1,
                checkpoint_seconds=0,
                digest=False,
                **given,
            )
        )
        with hps.Model.load(store, "best" if settings.patience else None) as model:
            return {part: _predicted(model, paths[part]) for part in MEASURED}


def _history_of(log: Log, model: str) -> dict[str, Any]:
    """What becomes of the history: a sequence for the models that take one, else nothing."""
    if model in SEQUENCE_KINDS:
        column = f'kind = "sequence"\ntarget = "{log.target}"'
        return {"features": Features.from_toml(f"[columns.{log.history}]\n{column}\n")}
    return {"ignore": [] if log.history is None else [log.history]}


def _given(settings: Settings) -> dict[str, Any]:
    """The fields of TrainOptions that are asked for and that the model has."""
    made = MODELS[settings.model]
    names = ["model", "batch_size", "lr", "dense_lr", "init_std", "initial_accumulator"]
    names += ["dim"] if made.has_vectors else []
    names += ["hidden", "dropout"] if made.has_deep_part else []
    given = {name: getattr(settings, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _predicted(model: hps.Model, path: Path) -> Array:
    reader = model.open_reader([path], batch_size=8192)
    return np.concatenate([model.predict(batch).numpy() for batch in reader])


def by_deepctr(log: Log, parts: Parts, settings: Settings, seed: int) -> dict[str, Array]:
    """DeepCTR-Torch."""
    from benchmarks.quality.deepctr import predictions

    return predictions(log, parts, settings, seed)


def by_torchrec(log: Log, parts: Parts, settings: Settings, seed: int) -> dict[str, Array]:
    """TorchRec's DLRM."""
    from benchmarks.quality.torchrec_dlrm import predictions

    return predictions(log, parts, settings, seed)


def by_linear(log: Log, parts: Parts, settings: Settings, seed: int) -> dict[str, Array]:
    """Logistic regression over hashed features, of scikit-learn."""
    from benchmarks.quality.linear import predictions

    return predictions(log, parts, seed)


CONTENDERS: dict[str, Contender] = {
    "hps": by_hps,
    "deepctr": by_deepctr,
    "torchrec": by_torchrec,
    "linear": by_linear,
}


def run_contender(contender: str, log: Log, settings: Settings, seed: int) -> Scores:
    """Splits, trains and measures: part -> figures."""
    parts = log.split(seed)
    predicted = CONTENDERS[contender](log, parts, settings, seed)
    return {part: measure(predicted[part], labels_of(parts[part])) for part in MEASURED}
