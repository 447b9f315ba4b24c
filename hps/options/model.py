"""Options of what the model is and how it learns.

Above it: groups.py. Below it: declare.py. A None is what was not given: then a new model has its
default, and one that goes on what it was trained with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hps.common.model_names import KINDS, OWN
from hps.common.optimizers import OPTIMIZERS
from hps.config import MAX_DIM, ROW_DTYPES
from hps.options.declare import named, option, switch
from hps.options.values import MODEL, SWITCH, number, whole, whole_of, widths

SCHEDULERS = ("constant", "warmup", "cosine")
PRECISIONS = ("float32", "bfloat16", "float16")
_RATE = number(above=0)
# 0 is what a model without embeddings has; it is not said on the command line.
_DIM = replace(
    whole(0, MAX_DIM), wanted=whole(1, MAX_DIM).wanted, convert=lambda text: whole_of(text) or None
)


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What the model is."""

    model: str | None = option(
        None,
        MODEL,
        f"kind of the model: {', '.join(KINDS)}, or one of your own as {OWN}, whose file is run; "
        "if not given, deepfm, with --resume that of the stored model; the same holds for the "
        "four flags below; docs/models.md",
        metavar="MODEL",
    )
    dim: int | None = option(
        None,
        _DIM,
        f"floats of an embedding; 1 to {MAX_DIM}, with the first-order column of deepfm, wide_deep "
        "and fm; not of lr, which has none; tables of a features file may have dims of their own; "
        "if not given, 16, or the stored one",
        metavar="N",
    )
    hidden: Sequence[int] | None = option(
        None,
        widths(1, 2**20),
        "widths of the deep layers, each 1 to 1048576; '': none; not of lr and fm, which have "
        "none; if not given, 256,128, or the stored ones",
        metavar="N,N,...",
    )
    dropout: float | None = option(
        None,
        number(0, below=1),
        "dropout of the deep layers, from 0 to below 1; not of lr and fm; if not given, 0.0, or "
        "the stored one",
        metavar="P",
    )
    embedding_dropout: float | None = option(
        None,
        number(0, below=1),
        "dropout of the pooled embeddings' elements in training, from 0 to below 1; if not given, "
        "0.0, or the stored one",
        metavar="P",
    )
    base_rate: bool = option(
        True,
        SWITCH,
        "start a new model's output bias at 0 or at its drawn value, not at the log's share of "
        "clicks (base rate: %(default)s)",
        const=False,
        flags=("--no-base-rate",),
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """How rows and dense part learn."""

    optimizer: str | None = named(
        tuple(OPTIMIZERS),
        None,
        "optimizer of rows; if not given, adagrad, with --resume the stored one",
    )
    row_dtype: str | None = named(
        ROW_DTYPES,
        None,
        "type of the rows' weights in every tier; bfloat16 halves most of a row's bytes and rounds "
        "at random, docs/narrow_rows.md; if not given, float32, or the stored one",
    )
    lr: float | None = option(
        None,
        _RATE,
        "learning rate of rows, above 0; if not given, 0.05 (sgd 0.02, adam 0.001), of Adagrad "
        "less where examples have more than 16 keys, with --resume the stored one",
        metavar="RATE",
    )
    initial_accumulator: float | None = option(
        None,
        number(0),
        "sum of squared gradients at which Adagrad and FTRL begin a new row, at least 0: the "
        "larger, the slower it learns at first; if not given, of Adagrad (c / examples of a "
        "step)^2 with c 0.3, or more where keys are rare, of ftrl 0; or the stored one",
        metavar="A",
    )
    dense_lr: float | None = option(
        None,
        _RATE,
        "learning rate of the dense part's Adam, above 0; if not given, 0.001, or the stored one",
        metavar="RATE",
    )
    weight_decay: float | None = option(
        None,
        number(0),
        "decay of the rows that a step updates: their weights are multiplied by 1 - lr * W first, "
        "at least 0; not of ftrl; if not given, 0.0, or the stored one",
        metavar="W",
    )
    dense_weight_decay: float | None = option(
        None,
        number(0),
        "weight decay of the dense part, as AdamW has it, at least 0; if not given, 0.0, or the "
        "stored one",
        metavar="W",
    )
    init_std: float | None = option(
        None,
        number(0),
        "standard deviation of new rows' weights, at least 0; if not given, 0.01, or the stored "
        "one",
        metavar="STD",
    )
    scheduler: str = named(SCHEDULERS, "constant", "schedule of both learning rates")
    scheduler_steps: int = option(
        0, whole(0, 2**62), "number of steps of warmup or cosine, at least 1", metavar="N"
    )
    accumulate: int = option(1, whole(1, 2**31), "batches in a step, at least 1", metavar="N")
    precision: str = named(PRECISIONS, "float32", "number format of the dense part's forward pass")
    compile: bool = switch(
        "compile the model with torch.compile; needs a C++ compiler, in one process alone"
    )
    seed: int | None = option(
        None,
        whole(0, 2**64 - 1),
        "seed of rows, dense weights and dropout, 0 to 2^64 - 1; equal seeds give equal bits; if "
        "not given, 0, with --resume that of the stored model",
        metavar="N",
    )
