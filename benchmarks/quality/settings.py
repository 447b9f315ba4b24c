"""What a run of any contender is asked for, and what it says.

Above it: contenders.py, the benchmarks. Below it: nothing.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SEQUENCE_KINDS = ("din",)  # models that take the history; hps may have them


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of one training, in the words of `hps train`; the same for hps and its peers.

    What is None is left to `hps train`, whose default it then is; a peer needs all of them.

    Args:
        model: kind, of `hps.models.MODELS`.
        dim, hidden, dropout: of the model.
        batch_size: examples a step.
        epochs: passes, each in another order.
        lr: of rows, Adagrad.
        dense_lr: of all other weights, Adam.
        init_std: of rows.
        initial_accumulator: of rows, the sum of squared gradients of Adagrad; a peer's is 0.
        patience: 0: all epochs, and the last model is measured. Else hps validates after each
            epoch, ends after as many that were no better, and its best model is measured; batch
            size and epochs are to be given then.
    """

    model: str = "deepfm"
    dim: int | None = None
    hidden: Sequence[int] | None = None
    dropout: float | None = None
    batch_size: int | None = None
    epochs: int | None = None
    lr: float | None = None
    dense_lr: float | None = None
    init_std: float | None = None
    initial_accumulator: float | None = None
    patience: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: who trains what on which log.

    Args:
        contender: a name of `contenders.CONTENDERS`.
        log: name of the data set.
        seed: of the split, the orders and the weights.
        examples: how much of the data set, as `data_sets.load` has it.
        criteo: file of the data set "criteo".
    """

    contender: str
    log: str
    seed: int
    settings: Settings
    examples: int = 0
    criteo: str | None = None

    def key(self, version: str) -> str:
        """A name for what comes out: equal jobs of equal versions have equal ones."""
        text = json.dumps([asdict(self), version], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


Scores = dict[str, Any]
