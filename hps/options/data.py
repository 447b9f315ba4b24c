"""Options of what is trained on and measured on, and how it is read.

Above it: groups.py. Below it: declare.py, hps.reader.config. A None is what was not given: then a
new model has its default, and one that goes on what it was trained with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hps.options.declare import named, option, switch
from hps.options.values import DATA, FOLDER, PATH, SWITCH, WORD, choice, either, number, whole
from hps.reader.config import (
    FORMATS,
    LOG1P,
    MAX_BATCH_SIZE,
    MAX_DENSE,
    MAX_SHUFFLE_BUFFER,
    NO_TRANSFORM,
    SIGNED_LOG1P,
)

if TYPE_CHECKING:
    from hps.features.features import Features
    from hps.reader.files import PathLike

EPOCH = "epoch"
BEST_BY = ("auc", "logloss")
VALID_BY = ("hash", "files")
ON_ERROR = ("raise", "skip")
_TRANSFORMS = (NO_TRANSFORM, LOG1P, SIGNED_LOG1P)
DATA_HELP = "the log's files in order, URLs, or patterns; .gz and .zst are unpacked"
DELIMITER_HELP = (
    "csv only: the character between columns; if not given, that of comma, tab, semicolon and bar "
    "of which the header has most"
)


def _is_features(value: object) -> bool:
    from hps.features.features import Features  # which --help does not wait for

    return isinstance(value, Features)


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """What is trained on, in which order."""

    data: "Sequence[PathLike]" = option(
        (),
        DATA,
        DATA_HELP,
        many="*",
        metavar="DATA",
        replaced_by="follow",
    )
    follow: str | Path | None = option(
        None,
        FOLDER,
        "instead of DATA: a folder of logs, or its URL, whose files are read in the order of their "
        "names, then those that appear there; --resume goes on where the model is",
        metavar="FOLDER",
    )
    poll: float = option(
        1.0,
        number(0.01),
        "seconds between two looks into the folder of --follow while the run waits for files",
        metavar="SECONDS",
    )
    follow_until_idle: float | None = option(
        None,
        number(0),
        "end a run with --follow once it has waited so long and no file came; 0: as soon as all "
        "files are read; if not given, a signal ends it",
        metavar="SECONDS",
    )
    follow_retry: float = option(
        600.0,
        number(0),
        "how long an object store of --follow that does not answer is asked again, by ever longer "
        "waits of up to 10 seconds, before the run ends",
        metavar="SECONDS",
    )
    test: "Sequence[PathLike]" = option(
        (),
        DATA,
        "a log of the same format to measure AUC and logloss on, after training",
        many="+",
        metavar="DATA",
    )
    format: str | None = option(
        None,
        choice(FORMATS),
        "format of DATA; if not given, found from the files, with --resume that of the model",
        choices=FORMATS,
    )
    batch_size: int | None = option(
        None,
        whole(1, MAX_BATCH_SIZE),
        f"examples in a batch, over all ranks, 1 to {MAX_BATCH_SIZE}; if not given, the largest "
        "power of two from 32 to 4096 with which DATA makes 200 steps, or that of the stored model",
        metavar="N",
    )
    delimiter: str | None = option(
        None,
        WORD,
        DELIMITER_HELP,
        metavar="C",
    )
    epochs: int = option(1, whole(1, 2**31), "passes over the log", metavar="N")
    shuffle_files: bool = switch("read files in an order drawn from --seed, another each epoch")
    shuffle_buffer: int = option(
        0,
        whole(0, MAX_SHUFFLE_BUFFER),
        "shuffle the examples within each N of DATA, in whole batches, by --seed; N examples lie "
        f"in memory; 0 to {MAX_SHUFFLE_BUFFER}, 0: the log's order",
        metavar="N",
    )
    limit: int = option(
        0,
        whole(0, 2**62),
        "stop after the step with the model's Nth example since its beginning; 0: no limit",
        metavar="N",
    )
    on_error: str = option(
        "raise",
        choice(ON_ERROR),
        "at a bad line: stop and name it, or leave it out and count it (skipped lines)",
        choices=ON_ERROR,
    )
    allow_empty: bool = switch("accept a log without examples")
    negative_rate: float | None = option(
        None,
        number(most=1, above=0),
        "share of the examples with label 0 to train on, above 0, at most 1; --test, evaluate and "
        "predict read all and correct for it, and rows that count take one as 1/R shows; if not "
        "given, 1, or that of the model",
        metavar="R",
    )
    features: "Features | str | Path | None" = option(
        None,
        replace(PATH, wanted="the path of a features file, or hps.Features"),
        "features file: what the columns of DATA are and what is made of them; 'hps features' "
        "writes one; with --resume that of the stored model",
        metavar="FILE",
        also=_is_features,
    )


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """How raw values become keys and dense values; part of the model."""

    hash_keys: bool | None = option(
        None,
        SWITCH,
        "hash keys that are whole numbers with their feature; the default for parquet and csv",
        const=True,
        flags=("--hash-keys", "--raw-keys"),
        off_help="use whole numbers as keys unchanged; the default for libsvm, libffm and slots",
    )
    shared_vocabulary: bool | None = option(
        None, SWITCH, "make equal values of different features one key", const=True
    )
    dense: int | None = option(
        None,
        whole(0, MAX_DENSE),
        f"numeric columns, 0 to {MAX_DENSE}; if not given, 13 for criteo, else as in the log",
        metavar="N",
    )
    dense_transform: str | None = option(
        None,
        choice(_TRANSFORMS),
        "take the logarithm of dense values of parquet, csv and slots, as is done for criteo",
        const=SIGNED_LOG1P,
        flags=("--dense-log",),
    )
    dense_columns: Sequence[str] | None = option(
        None,
        WORD,
        "columns of numbers that are dense values; parquet, csv, and fields of libffm; if not "
        "given, of parquet and csv those of floats and decimals",
        many="+",
        metavar="COLUMN",
    )


@dataclass(frozen=True, kw_only=True)
class ColumnOptions:
    """Columns that are no features, by name; part of the model, too."""

    label: str | None = option(
        None,
        WORD,
        "column of labels, 0 or 1; parquet and csv only; 'label' if not given",
        metavar="COLUMN",
    )
    weight: str | None = option(
        None,
        WORD,
        "column of weights of the examples in the loss, each at least 0; parquet and csv only; all "
        "count alike if not given",
        metavar="COLUMN",
    )
    group: str | None = option(
        None,
        WORD,
        "column of groups, such as users, to measure GAUC within on --test; parquet and csv only; "
        "it stays a feature unless --ignore names it",
        metavar="COLUMN",
    )
    ignore: Sequence[str] | None = option(
        None,
        WORD,
        "column to leave out; parquet and csv only; may be repeated",
        many="append",
        metavar="COLUMN",
    )


@dataclass(frozen=True, kw_only=True)
class ValidationOptions:
    """What the model is measured on while it is trained."""

    valid: "Sequence[PathLike]" = option(
        (),
        DATA,
        "a log of the same format to measure the model on while it is trained; the best one is "
        "kept under the tag 'best'",
        many="+",
        metavar="DATA",
    )
    valid_share: float | None = option(
        None,
        number(above=0, below=1),
        "instead of --valid: the share of DATA to validate on and not to train on, chosen as "
        "--valid-by says; above 0, below 1",
        metavar="S",
        excludes="valid",
    )
    valid_by: str = named(
        VALID_BY,
        "hash",
        "how --valid-share chooses: examples, by a hash of each, or the last files of DATA, in the "
        "order in which they are given, a pattern's by name",
    )
    eval_every: int | str = option(
        EPOCH,
        either(EPOCH, whole(1, 2**62)),
        "batches between two validations, or epoch: at the end of each; one more at the end",
        metavar="N",
    )
    patience: int = option(
        0,
        whole(0, 2**31),
        "end the run after K validations in a row that were no better than the best; 0: never",
        metavar="K",
    )
    best_by: str = named(BEST_BY, "auc", "what makes a model the best one")
    progressive: bool = switch(
        "measure, by file of DATA, how the model scores examples before it is trained on them; "
        "with --new-data also all of DATA before the first step"
    )
