"""Logs of some columns and models trained on them, which then get others.

Above it: tests/train/test_changed_features.py, test_changed_logs.py. Below it: `hps.train`.
"""

import functools
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import hps
from hps.train import TrainOptions, train

SMALL = {"dim": 4, "hidden": (8, 4), "batch_size": 64, "dram": "8MiB", "torch_threads": 1}
RATES = {"lr": 0.2, "dense_lr": 0.02, "init_std": 0.3, "depth": 0}
LABELLED = "label"
OLD = ("app", "os", "price", "age")
NO_DEEP_PART = {"lr": {"dim": None, "hidden": None}, "fm": {"hidden": None}}


def columns(seed: int = 0, count: int = 256) -> dict[str, Any]:
    """Every column that a log of these tests may have."""
    random = np.random.default_rng(seed)
    of_keys = {name: random.integers(0, 9, count).tolist() for name in ("app", "os", "slot")}
    of_keys["слот"] = random.integers(0, 3, count).tolist()
    clicks = [int(app < 4) for app in of_keys["app"]]
    dense = {name: random.random(count).tolist() for name in ("price", "age", "size")}
    return {LABELLED: clicks, **of_keys, **dense}


def write(path: Path, names: Sequence[str], seed: int = 0) -> Path:
    values = columns(seed)
    pq.write_table(pa.table({name: values[name] for name in (LABELLED, *names)}), path)
    return path


def run(log: Path, store: Path, kind: str | None = None, **changes: Any) -> dict[str, Any]:
    shape = {} if kind is None else NO_DEEP_PART.get(kind, {})
    options = {"data": [log], "store": store, "model": kind, **SMALL, **RATES, **shape, **changes}
    return train(TrainOptions(**options))


def change(log: Path, store: Path, **changes: Any) -> dict[str, Any]:
    """Goes on with the columns of a log."""
    own = {"dim": None, "hidden": None, "lr": None, "dense_lr": None}
    flags = {"resume": True, "new_data": True, "change_features": True, **own, **changes}
    return run(log, store, **flags)


@functools.cache  # many tests begin with the same one
def _once_trained(kind: str, names: tuple[str, ...]) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory()
    _train(Path(folder.name), kind, names)
    return folder


def _train(folder: Path, kind: str, names: Sequence[str], **changes: Any) -> None:
    run(write(folder / "old.parquet", names), folder / "store", kind, epochs=3, **changes)


def trained(folder: Path, kind: str, names: Sequence[str] = OLD, **changes: Any) -> Path:
    """A store with a model of these columns, whose every weight has moved."""
    if changes or ":" in kind:
        _train(folder, kind, names, **changes)
    else:
        shutil.copytree(_once_trained(kind, tuple(names)).name, folder, dirs_exist_ok=True)
    return folder / "store"


def changed(folder: Path, store: Path, names: Sequence[str], **changes: Any) -> Path:
    """A copy of the store whose model has the columns of another log, and was not trained yet."""
    copy = folder / "changed"
    shutil.copytree(store, copy)
    log = write(folder / "new.parquet", names)
    with hps.Model.load(store, dram="8MiB") as model:
        totals = model.server.checkpoint_state()[0]["totals"]
    figures = change(log, copy, limit=totals["examples"], **changes)
    assert figures["examples"] == 0
    return copy


def logits(store: Path, values: dict[str, Any]) -> torch.Tensor:
    with hps.Model.load(store, dram="8MiB") as model, torch.no_grad():
        return model.module(model.batch_of(values)).double()


def only(names: Sequence[str], **instead: Any) -> dict[str, Any]:
    """The values of some columns of another log than the one that was trained on."""
    values = columns(seed=1)
    return {name: instead.get(name, values[name]) for name in names}


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the order of sums."""
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=3e-6)
    assert expected.std() > 1000 * 3e-6  # scores differ, or this would say nothing


def nothing(count: int = 256) -> pa.Array:
    """A column of keys in which no example has one."""
    return pa.nulls(count, pa.int64())
