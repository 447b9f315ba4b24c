"""The first examples of a log: where the output bias of a new model begins, and how many keys it
sums.

Above it: the training run, loops of one's own. Below it: a reader of its own over the same files;
the training's reader stays where it is, and counts no line twice.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hps.common.url_text import hidden_url
from hps.config import TableConfig
from hps.features.transform import FeatureTransform
from hps.reader.open import open_reader

if TYPE_CHECKING:
    from hps.reader.files import PathLike
    from hps.reader.reader import Reader
    from hps.types import Batch

NUM_EXAMPLES = 10_000
_MAX_NAMES = 3


@dataclass(frozen=True)
class FirstLabels:
    """How many of a log's first examples are clicks.

    Args:
        clicks: labels of 1.
        others: labels of 0.
        skipped: bad lines among them.
        click_share: the clicks' part of the sum of weights, one half where that is 0; None of a log
            without weights.
        keys: that a model sums of an example, on average: a feature whose mean it takes is one.
            None where there is no example.
        rare: those of them that no other place of the first examples has, on average.

    >>> FirstLabels(clicks=0, others=998).rate
    0.001
    """

    clicks: int
    others: int
    skipped: int = 0
    click_share: float | None = None
    keys: float | None = dataclasses.field(default=None, compare=False)
    rare: float | None = dataclasses.field(default=None, compare=False)

    @property
    def examples(self) -> int:
        return self.clicks + self.others

    @property
    def rate(self) -> float:
        """The share of clicks, as if there had been one more of either kind."""
        return (self._counted()[0] + 1) / (self.examples + 2)

    @property
    def logit(self) -> float:
        """log((clicks + 1) / (others + 1)): for `ClickModel.set_base_rate`."""
        clicks, others = self._counted()
        return math.log((clicks + 1) / (others + 1))

    def _counted(self) -> tuple[float, float]:
        """Clicks and others, by weights whose mean is 1."""
        if self.click_share is None:
            return self.clicks, self.others
        return self.examples * self.click_share, self.examples * (1 - self.click_share)


def first_labels(reader: "Reader", num_examples: int = NUM_EXAMPLES) -> FirstLabels:
    """Counts the labels of the first examples of a reader's log, from its beginning.

    All of the log counts, also where the reader yields one rank's part. Bad lines are passed over:
    the reader itself says what is wrong with them, when it comes to them.

    Args:
        reader: whose files, columns and order are taken; it is not moved.
        num_examples: at most.

    Raises:
        DataError: a bad line, where there is no good one and the reader does not skip them.
    """
    changes = {"on_error": "skip", "batch_size": num_examples}
    ahead = beside(reader, **changes)
    batch, skipped = next(ahead, None), ahead.counts.skipped
    ahead.close()
    if batch is None:
        if skipped and reader.config.on_error == "raise":
            next(beside(reader, **{**changes, "on_error": "raise"}), None)
        return FirstLabels(0, 0, skipped)
    clicks = int((batch.labels > 0).sum())
    others = len(batch.labels) - clicks
    return FirstLabels(clicks, others, skipped, _click_share(batch), *_key_counts(reader, batch))


def refuse_bad_line(reader: "Reader", num_examples: int = NUM_EXAMPLES) -> None:
    """Raises what a reader raises of a bad line among the first examples of its log, from its
    beginning. The reader is not moved.

    Args:
        num_examples: that are looked at.

    Raises:
        DataError: there is one, and the reader does not skip them.
    """
    if reader.config.on_error != "raise":
        return
    ahead = beside(reader, batch_size=num_examples)
    try:
        next(ahead, None)
    finally:
        ahead.close()


def _key_counts(reader: "Reader", batch: "Batch") -> tuple[float, float]:
    """Keys of an example after what a features file makes of the log, on average: all of them, and
    those that occur once in the batch. A key of n that are a mean counts as 1/n."""
    are_means: Mapping[str, Sequence[bool]] = {}
    if isinstance(reader.transform, FeatureTransform):
        are_means, batch = reader.transform.are_means, reader.transform(batch)
    total = rare = 0.0
    for table, ids in batch.features.items():
        lengths = ids.offsets.diff().reshape(-1, len(batch))
        means = torch.tensor(are_means.get(table, [False] * len(lengths)), dtype=torch.bool)
        parts = torch.ones(lengths.shape, dtype=torch.float64)
        parts[means] /= lengths[means].clamp(min=1)
        part_of_key = parts.flatten().repeat_interleave(lengths.flatten())
        _, places, counts = torch.unique(ids.keys_L, return_inverse=True, return_counts=True)
        total += float(part_of_key.sum())
        rare += float(part_of_key[counts[places] == 1].sum())
    return total / len(batch), rare / len(batch)


def _click_share(batch: "Batch") -> float | None:
    if batch.weights is None:
        return None
    if not batch.global_weight:
        return 0.5
    return math.fsum(batch.weights[batch.labels > 0].tolist()) / batch.global_weight


def beside(reader: "Reader", **changes: Any) -> "Reader":
    """Another reader of the same files and columns, which looks for no feature."""
    config = dataclasses.replace(
        reader.config,
        dense=reader.schema.num_dense,
        epochs=1,
        drop_last=False,
        part=(0, 1),
        shuffle_buffer=0,
        **changes,
    )
    tables = [
        TableConfig(name=name, dim=1, features=list(features) or None)
        for name, features in reader.schema.features().items()
    ]
    return open_reader(reader.paths, tables=tables, config=config)


def why_empty(num_skipped: int, *, is_sample: bool = False) -> str:
    """Why a log has no example.

    Args:
        num_skipped: bad lines.
        is_sample: some lines may have been left out, as `ReaderConfig.is_sample` has it.

    >>> why_empty(1200)
    'all of its 1,200 lines were skipped as bad'
    """
    if num_skipped:
        kept = " that are kept" if is_sample else ""
        return f"all of its {num_skipped:,} lines{kept} were skipped as bad"
    return "it holds no line" + (" that is kept (negative_rate, hash_range)" if is_sample else "")


def names_of(files: "Sequence[PathLike]") -> str:
    """Of the logs that were given, for a message.

    >>> names_of(["a.tsv", "b.tsv", "c.tsv", "d.tsv"])
    'a.tsv, b.tsv, c.tsv and 1 more'
    """
    more = len(files) - _MAX_NAMES
    return ", ".join(hidden_url(str(file)) for file in files[:_MAX_NAMES]) + (
        f" and {more} more" if more > 0 else ""
    )
