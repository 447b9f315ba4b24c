"""Surveys a log: what each column would be taken for, and what its first examples hold.

Above it: `hps features`. Below it: measure.py (the first examples), toml_text.py, the readers.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hps.common.json_text import Json
from hps.config import TableConfig
from hps.errors import ConfigError
from hps.features.column import CATEGORICAL, DENSE, IGNORED, LABEL, SEQUENCE
from hps.features.dense import numbers_of
from hps.features.measure import first_examples
from hps.features.raw import RawColumns
from hps.features.rules import VERSION
from hps.features.toml_text import table_lines, toml_value
from hps.metrics import BinaryMetrics
from hps.reader.column_use import DENSE as DENSE_USE
from hps.reader.column_use import FEATURE, NOT_READ
from hps.reader.column_use import IGNORED as IGNORED_USE
from hps.reader.column_use import LABEL as LABEL_USE
from hps.reader.config import WITH_COLUMNS, ReaderConfig
from hps.reader.files import PathLike, find_files
from hps.reader.find_format import find_format
from hps.reader.first_texts import FirstTexts
from hps.reader.keys import key_of
from hps.reader.open import open_reader
from hps.reader.reader import Reader
from hps.reader.record_reader import RecordReader, unread_columns
from hps.types import Batch

NUM_EXAMPLES = 100_000
LEAK = 'it tells the label nearly alone; if it is known only afterwards: kind = "ignored"'
MISSING_LEAK = (
    "that it is missing tells the label nearly alone; if it is known only afterwards: "
    'kind = "ignored"'
)
UNIQUE = (
    "nearly each example has a value of its own, of which nothing is learned unless it comes "
    'again: kind = "ignored" leaves it out'
)
_DIGITS = "{}: read as text, and to be given as text where it is scored"
_POINTED = (
    "all its first numbers are whole, and written with a point, as pandas writes whole numbers "
    "beside missing ones; if it is an id: write it without the point, and kind = 'categorical'"
)
_DIVIDED = (
    "many texts hold {0!r}; if they are several values each: kind = 'sequence', separator = '{0}'"
)
_DATES = "dates: later ones are keys that a model has not seen; kind = 'ignored' leaves them out"
_TABLE = "features"
_LEAK_AUC = 0.95  # of one column alone: no property of an example tells clicks so well
_LEAK_EXAMPLES = 1000  # with fewer it may be chance
_UNIQUE_SHARE = 0.98  # of values that are no other example's
_PRIOR_EXAMPLES = 10.0  # by which a key's share of clicks is drawn to that of all
_KINDS = {LABEL_USE: LABEL, IGNORED_USE: IGNORED, DENSE_USE: DENSE, FEATURE: CATEGORICAL}


@dataclass(frozen=True)
class SurveyedColumn:
    """One column.

    Args:
        name: of it.
        said: what a features file says of it, to change nothing.
        figures: of the first examples, by name. Of a feature: `keys`, distinct ones; `mean_length`,
            keys of an example; `missing`, the share of examples without one (of criteo, with an
            empty one); `auc`, of each key's share of clicks in the first half, on the second. Of a
            dense column: `missing`; `mean`, `std`, `min` and `max` of its numbers as the log has
            them; `correlation` of what a model sees of them with the label; `auc`, of the number
            as a score, or of its opposite where that is better. Of either, where some are missing,
            `missing_auc`, of whether it is.
        note: of what is made of it, or why nothing is; "" for what needs no saying.
        warning: what there is to think of before it is trained on, by its texts.
    """

    name: str
    said: Json
    figures: dict[str, float] = field(default_factory=dict)
    note: str = ""
    warning: str = ""


@dataclass(frozen=True)
class Survey:
    """What the columns of a log are.

    Args:
        source: the log, in words.
        format: of the log.
        examples: that were looked at.
        clicks: labels of 1 among them.
        columns: in the order in which the reader has them.
    """

    source: str
    format: str
    examples: int
    clicks: int
    columns: list[SurveyedColumn]

    def to_dict(self) -> Json:
        """Plain values."""
        return asdict(self)

    @property
    def leaks(self) -> list[str]:
        """Names of columns that tell the label so well that they may be known only after it."""
        if self.examples < _LEAK_EXAMPLES:
            return []
        return [one.name for one in self.columns if one.figures.get("auc", 0.0) >= _LEAK_AUC]

    def warnings(self) -> dict[str, str]:
        """Name of a column -> what there is to think of before it is trained on."""
        found = dict.fromkeys(self.leaks, LEAK)
        for one in self.columns:
            if one.warning:
                found.setdefault(one.name, one.warning)
        if self.examples < _LEAK_EXAMPLES:
            return found
        for one in self.columns:
            figures = one.figures
            if figures.get("missing_auc", 0.0) >= _LEAK_AUC:
                found.setdefault(one.name, MISSING_LEAK)
        for one in self.columns:
            there = self.examples * (1 - one.figures.get("missing", 0.0))
            is_single = "keys" in one.figures and "mean_length" not in one.figures
            if is_single and one.figures["keys"] >= max(_UNIQUE_SHARE * there, 100):
                found.setdefault(one.name, UNIQUE)
        return found

    def to_toml(self) -> str:
        """A features file that changes nothing until it is edited; figures are its comments.

        Raises:
            ConfigError: a name that is not UTF-8.
        """
        rate = f", {self.clicks / self.examples:.2%} of them clicks" if self.examples else ""
        lines = [
            "# What each column is, and what is made of it; docs/features.md lists all that can be",
            "# said. As it stands this file changes nothing: a column is what it would be without.",
            f"# Figures are of the first {self.examples:,} examples{rate}, of",
            f"# {_comment(self.source)} ({self.format}).",
            f"version = {VERSION}",
        ]
        warnings = self.warnings()
        for column in self.columns:
            head, *rest = table_lines("columns", column.name, column.said)
            told = _told(column.figures)
            lines += ["", head, *([f"# {told}"] if told else [])]
            if column.note:
                lines.append(f"# {_comment(column.note)}")
            if column.name in warnings:
                lines.append(f"# {warnings[column.name]}")
            lines += rest
        return "\n".join(lines) + "\n"


def survey(
    paths: PathLike | Sequence[PathLike],
    config: ReaderConfig,
    num_examples: int = NUM_EXAMPLES,
) -> Survey:
    """Looks at the beginning of a log.

    Args:
        paths: the log's files.
        config: how it is read.
        num_examples: that are looked at.

    Raises:
        ConfigError: a log without an example; what open_reader raises.
        DataError: a bad line, unless they are skipped.
    """
    files = find_files(paths)
    table = TableConfig(name=_TABLE, dim=1)
    if config.format is None:
        config = replace(config, format=find_format(files, config.dense))
    unread = unread_columns(files[0], config) if config.format == "parquet" else {}
    config = replace(config, ignore=(*config.ignore, *unread))
    reader = open_reader(files, tables=[table], config=config)
    seen = _seeing_missing(reader, table)
    batch = first_examples(seen, num_examples, config.on_error)
    source = str(files[0]) + (f" and {len(files) - 1} more" if len(files) > 1 else "")
    if batch is None:
        raise ConfigError(f"{source}: DATA has no example to look at")
    raw = RawColumns.of(seen)
    labels = batch.labels.numpy()
    dense = _dense_figures(batch, raw, labels)
    features = _feature_figures(batch, raw, labels)
    columns = []
    texts = FirstTexts(reader) if isinstance(reader, RecordReader) else None
    divided = {} if texts is None else texts.divided()
    dates = () if texts is None else texts.dates()
    for use in reader.columns:
        kind = _KINDS.get(use.kind, use.kind)
        said: Json = {"kind": kind}
        figures: dict[str, float] = {}
        if kind == DENSE:
            figures = dense[use.name]
            if raw.is_logged:
                said["log"] = True
        elif kind == CATEGORICAL:
            figures = features[use.name]
            if "mean_length" in figures or "list" in use.type:
                said["kind"] = SEQUENCE
        why = reader.digit_texts.get(use.name)
        note = "" if why is None else _DIGITS.format(why)
        warning = _DATES if use.name in dates else ""
        if use.name in reader.pointed_wholes:
            warning = _POINTED
        if use.name in divided:
            warning = _DIVIDED.format(divided[use.name])
        if use.name in unread:
            note = f"{NOT_READ}, {use.type}: write it as whole numbers, floats or text to use it"
        columns.append(SurveyedColumn(use.name, said, figures, note, warning))
    return Survey(source, reader.format, len(batch), int((labels > 0).sum()), columns)


def _seeing_missing(reader: Reader, table: TableConfig) -> Reader:
    """A reader of the same log that tells missing numbers from others."""
    if reader.format not in WITH_COLUMNS:
        return reader
    config = replace(reader.config, nan_columns=reader.dense_columns or ())
    return open_reader(reader.paths, tables=[table], config=config)


def _dense_figures(
    batch: Batch, raw: RawColumns, labels: NDArray[np.float32]
) -> dict[str, dict[str, float]]:
    all_numbers = numbers_of(batch.dense.numpy(), raw)
    found = {}
    for place, name in enumerate(raw.dense):
        values = batch.dense.numpy()[:, place]
        there = ~np.isnan(all_numbers[:, place])
        figures = {"missing": 1 - float(there.mean()), **_missing_auc(~there, labels)}
        if there.any():
            seen = values[there].astype(np.float64)
            numbers = all_numbers[there, place].astype(np.float64)
            figures |= {"mean": float(numbers.mean()), "std": float(numbers.std())}
            figures |= {"min": float(numbers.min()), "max": float(numbers.max())}
            clicks = labels[there].astype(np.float64)
            if seen.min() < seen.max() and clicks.min() < clicks.max():
                figures["correlation"] = float(np.corrcoef(seen, clicks)[0, 1])
                auc = _auc_of(seen, clicks)
                figures["auc"] = max(auc, 1 - auc)
        found[name] = figures
    return found


def _feature_figures(
    batch: Batch, raw: RawColumns, labels: NDArray[np.float32]
) -> dict[str, dict[str, float]]:
    (ids,) = batch.features.values()
    keys, offsets = ids.keys_L.numpy().view(np.uint64), ids.offsets.numpy()
    count = len(batch)
    found = {}
    for place, name in enumerate(raw.features):
        own = offsets[place * count : (place + 1) * count + 1]
        bag_keys, lengths = keys[own[0] : own[-1]], np.diff(own)
        distinct, numbers = np.unique(bag_keys, return_inverse=True)
        missing = lengths == 0
        if raw.format == "criteo":
            missing = bag_keys == np.uint64(key_of(name, ""))
        figures = {"keys": float(len(distinct)), "missing": float(missing.mean())}
        figures |= _missing_auc(missing, labels)
        if len(lengths) and lengths.max() > 1:
            figures["mean_length"] = float(lengths.mean())
        auc = _auc(numbers, np.repeat(np.arange(count), lengths), len(distinct), labels)
        found[name] = figures if auc is None else {**figures, "auc": auc}
    return found


def _missing_auc(missing: NDArray[np.bool_], labels: NDArray[np.float32]) -> dict[str, float]:
    """How well it tells clicks that a value is missing; nothing where all or none are."""
    if missing.all() or not missing.any() or labels.min() == labels.max():
        return {}
    auc = _auc_of(missing.astype(np.float64), labels)
    return {"missing_auc": max(auc, 1 - auc)}


def _auc(
    numbers: NDArray[np.int64],
    rows: NDArray[np.int64],
    num_keys: int,
    labels: NDArray[np.float32],
) -> float | None:
    """How well a feature alone tells clicks: AUC, on the second half of the examples, of the mean
    over an example's keys of their shares of clicks in the first half. None where there are no
    clicks in a half, or clicks alone."""
    count, half = len(labels), len(labels) // 2
    if any(len(part) == 0 or part.min() == part.max() for part in (labels[:half], labels[half:])):
        return None
    is_first = rows < half
    shown = np.bincount(numbers[is_first], minlength=num_keys)
    clicked = np.bincount(numbers[is_first], labels[rows[is_first]], minlength=num_keys)
    share = float(labels[:half].mean())
    rates = (clicked + _PRIOR_EXAMPLES * share) / (shown + _PRIOR_EXAMPLES)
    sums = np.bincount(rows, rates[numbers], minlength=count)
    lengths = np.bincount(rows, minlength=count)
    scores = np.where(lengths > 0, sums / np.maximum(lengths, 1), share)
    return _auc_of(scores[half:], labels[half:])


def _auc_of(scores: NDArray[np.float64], labels: NDArray[np.floating[Any]]) -> float:
    metrics = BinaryMetrics()
    metrics.update(scores, labels)
    return float(metrics.compute()["auc"])


def _told(figures: dict[str, float]) -> str:
    """Figures in words.

    >>> _told({"missing": 0.25, "mean": 3.0, "std": 1.5, "min": 0.0, "max": 9.0})
    '25.0% missing, mean 3, standard deviation 1.5, from 0 to 9'
    """
    words = {
        "keys": "{:,.0f} distinct keys",
        "mean_length": "{:.3g} keys an example",
        "missing": "{:.1%} missing",
        "mean": "mean {:.4g}",
        "std": "standard deviation {:.4g}",
        "min": "from {:.6g}",
        "max": "to {:.6g}",
        "auc": "AUC alone {:.3f}",
        "correlation": "correlation with the label {:+.3f}",
    }
    told = [
        text.format(figures[name])
        for name, text in words.items()
        if name in figures and math.isfinite(figures[name])
    ]
    return ", ".join(told).replace(", to ", " to ")


def _comment(text: str) -> str:
    """Text as a comment may hold it: on one line, in UTF-8."""
    return toml_value(text.encode("utf-8", "replace").decode())[1:-1]
