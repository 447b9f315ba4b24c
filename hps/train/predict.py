"""Predictions of a stored model for a log, written to a file.

Above it: `hps predict`. Below it: model.py, absent_keys.py, kept_columns.py,
pyarrow.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hps.common.json_text import Json
from hps.common.row_layout import Floats
from hps.errors import ConfigError, StoreError
from hps.train.absent_keys import AbsentKeys
from hps.train.base_rate import why_empty
from hps.train.kept_columns import COLUMN, check_kept, kept_columns
from hps.train.model import Model
from hps.train.report import peak_rss_bytes, tiers_of

if TYPE_CHECKING:
    import pyarrow as pa

KINDS = (".parquet", ".csv", ".npy")
# How a log is read that is scored, where it is not read as in the training.
_SCORED: Json = {"on_error": "raise", "needs_labels": False, "weight": None, "group": None}


def kind_of(path: str | Path) -> str:
    """How predictions are written, by the file's name.

    Raises:
        ConfigError: its name ends in none of KINDS.

    >>> kind_of("scores.csv")
    '.csv'
    """
    kind = Path(path).suffix
    if kind not in KINDS:
        raise ConfigError(f"{str(path)!r} must end in one of {', '.join(KINDS)}")
    return kind


def predict_log(
    model: Model,
    data: Sequence[str | Path],
    out: str | Path,
    *,
    keep: Sequence[str] = (),
    **changes: Any,
) -> Json:
    """Scores each example of a log, in its order; labels are read and left aside.

    Args:
        model: that scores.
        data: the log's files, of the format the model was trained on; of parquet and csv
            the column of labels may be absent, of libsvm, libffm and slots the label of any line;
            weights and groups are not looked at.
        out: the file, replaced whole once all is scored: parquet or csv with the column COLUMN, or
            npy.
        keep: of parquet and csv, columns of the log that are written before it, as they are; they
            are read once more for it.
        changes: fields of `ReaderConfig` that differ from the training run's.

    Returns:
        model, checkpoint, examples, mean, seconds, examples_per_second, tiers, peak_rss_bytes,
        absent_keys as `AbsentKeys.figures` has it.

    Raises:
        ConfigError: a name that `kind_of` refuses, a log without an example, or one that has no
            such column to keep.
        DataError: a bad line: no example may be missing in what is written.
        StoreError: the file cannot be written.
    """
    kind = kind_of(out)
    start = time.perf_counter()
    reader = model.open_reader(data, **{**_SCORED, **changes})
    for path in reader.paths:
        if Path(out).exists() and path.samefile(out):
            raise ConfigError(f"{str(out)!r} is a file of DATA; name another one for the scores")
    keep = list(dict.fromkeys(keep))
    if keep:
        check_kept(reader, keep, kind)
    absent = AbsentKeys(model.loaded)
    parts: list[Floats] = [
        model.predict_with_version(batch)[0].numpy() for batch in absent.watch(reader)
    ]
    scores = np.concatenate([np.empty(0, np.float32), *parts])
    if not len(scores):
        raise ConfigError(f"DATA has no example to score, {why_empty(reader.counts.skipped)}")
    write_scores(Path(out), scores, kept_columns(reader, keep, len(scores)) if keep else {})
    seconds = time.perf_counter() - start
    absent.warn(reader)
    return {
        "model": model.recipe.kind,
        "checkpoint": model.checkpoint,
        "examples": len(scores),
        "mean": float(scores.mean(dtype=np.float64)),
        "seconds": seconds,
        "examples_per_second": len(scores) / seconds,
        "tiers": tiers_of(model.server.stats()),
        "peak_rss_bytes": peak_rss_bytes(),
        **absent.figures(),
    }


def write_scores(
    path: Path, scores: Floats, kept: "Mapping[str, pa.ChunkedArray] | None" = None
) -> None:
    """Puts float32 [n] into a file as its name says, after columns that are kept; all or nothing.

    Raises:
        StoreError: the operating system refused.
    """
    kind, path = kind_of(path), path.resolve()  # a link stays one
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            _write(beside, kind, scores, kept or {})
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            error.errno or 0, f"cannot write {path}: {error.strerror or error}"
        ) from error


def _write(path: Path, kind: str, scores: Floats, kept: "Mapping[str, pa.ChunkedArray]") -> None:
    if kind == ".npy":
        with path.open("wb") as file:
            np.save(file, scores)
        return
    import pyarrow as pa  # which takes its time to import

    table = pa.table({**kept, COLUMN: scores})
    if kind == ".csv":
        from pyarrow import csv

        csv.write_csv(table, path)
        return
    from pyarrow import parquet

    parquet.write_table(table, path)
