"""What is published while its processes are killed: rows and a bias that tell how far they are.

Above it: publishing_worker.py, which makes them; publishing_clients.py, which knows them. Below it:
hps. Batch number n erases some keys and adds 1 to others, a pure function of seed and n; the row
MARKER counts the batches, and the bias of the model is a function of that count. So whatever is
read of one version, by a look-up, by scores or from its files, names one n, and all of it must be
as after batch n: a key that no batch has pushed since it was erased reads as INITIAL.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import hps
from hps.train import TrainOptions, train

TABLE = "features"
NUM_KEYS = 2000
MARKER = NUM_KEYS  # the key whose row counts the batches
INITIAL = 0.5
KEYS = np.arange(NUM_KEYS + 1, dtype=np.uint64)
_PUSHED, _ERASED = 40, 12  # keys of a batch


def bias_of(number: int) -> float:
    """Of the model after so many batches; neighbours differ by more than scores are rounded."""
    return (number % 256 - 128) / 64


def batch_of(seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys that batch `number` (from 1) erases, and those that it pushes then."""
    random = np.random.default_rng((seed, number))
    erased = random.choice(NUM_KEYS, _ERASED, replace=False)
    # Some keys are pushed always, as popular ones are; one is erased and pushed again.
    pushed = np.unique(np.concatenate([random.zipf(1.3, _PUSHED) % NUM_KEYS, erased[:2]]))
    return KEYS[np.sort(erased)], KEYS[np.concatenate([pushed, [MARKER]])]


class States:
    """What rows are after each batch of a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rows = [np.full(NUM_KEYS + 1, INITIAL, np.float32)]
        self._stored = [np.zeros(NUM_KEYS + 1, np.bool_)]

    def rows(self, number: int) -> np.ndarray:
        """float32 [keys], as a model reads them after `number` batches."""
        self._reach(number)
        return self._rows[number]

    def stored(self, number: int) -> np.ndarray:
        """bool [keys]: which of them are there."""
        self._reach(number)
        return self._stored[number]

    def _reach(self, number: int) -> None:
        while len(self._rows) <= number:
            erased, pushed = batch_of(self._seed, len(self._rows))
            rows, stored = self._rows[-1].copy(), self._stored[-1].copy()
            rows[erased], stored[erased] = INITIAL, False
            rows[pushed] += 1
            stored[pushed] = True
            self._rows.append(rows)
            self._stored.append(stored)


def number_of(marker: float) -> int:
    """How many batches a marker's row has counted."""
    return round(float(marker) - INITIAL)


def config(path: Path) -> hps.Config:
    """Of the store that is published: small segments, so that files come and go."""
    initializer = hps.Constant(INITIAL)
    table = hps.TableConfig(name=TABLE, dim=1, optimizer=hps.SGD(lr=1.0), initializer=initializer)
    return hps.Config(
        path=path,
        tables=[table],
        dram=hps.DramCacheConfig(bytes="1MiB"),
        ssd=hps.SsdStoreConfig(segment_bytes="64KiB"),
        threads=1,
    )


def model_of(recipe: Path) -> dict[str, Any]:
    """The dense part of a logistic regression over the table, as a checkpoint has it."""
    with hps.open(recipe) as server:
        state, _ = server.checkpoint_state()
        assert state is not None
        return {name: state[name] for name in ("format_version", "recipe", "model")}


def make_recipe(folder: Path) -> Path:
    """A store of such a model, trained on a few lines."""
    log = folder / "log.libsvm"
    log.write_text("".join(f"{place % 2} {place}:1\n" for place in range(40)))
    options: dict[str, Any] = {"dram": "8MiB", "torch_threads": 1, "depth": 0}
    train(TrainOptions(data=[log], store=folder / "recipe", model="lr", **options))
    return folder / "recipe"


def apply(server: hps.ParameterServer, seed: int, number: int) -> None:
    """Batch `number`."""
    erased, pushed = batch_of(seed, number)
    server.erase(TABLE, erased)
    server.push(TABLE, pushed, np.full((len(pushed), 1), -1.0, np.float32))


def with_bias(model: dict[str, Any], number: int) -> dict[str, Any]:
    """The dense part after so many batches."""
    weights = {**model["model"], "bias": torch.tensor(bias_of(number))}
    return {**model, "model": weights}
