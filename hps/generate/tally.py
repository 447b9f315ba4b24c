"""What a generated log's figures are made of, and the names of its files.

Above it: log.py. Below it: kernels.py, hps.metrics for the planted model's own figures.
"""

import re
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.generate.config import GeneratorConfig
from hps.generate.kernels import Block, Marks, PlantedModel, Whole, find_unmarked, set_marks
from hps.metrics import BinaryMetrics

_LEAST_DIGITS = 3


@dataclass(frozen=True)
class Part:
    """A run of examples that goes to one file."""

    path: Path
    first: int
    count: int


def period_parts(path: Path, config: GeneratorConfig) -> list[Part]:
    """The periods of a log, each a file whose name is the log's and a number, before its suffix.

    >>> config = GeneratorConfig(examples=10, periods=3)
    >>> [(str(part.path), part.first, part.count) for part in period_parts(Path("log.tsv"), config)]
    [('log-000.tsv', 0, 4), ('log-001.tsv', 4, 3), ('log-002.tsv', 7, 3)]
    """
    count = config.periods
    digits = max(_LEAST_DIGITS, len(str(count - 1)))
    firsts = [-(-number * config.examples // count) for number in range(count + 1)]
    return [
        Part(path.with_name(f"{path.stem}-{number:0{digits}}{path.suffix}"), first, end - first)
        for number, (first, end) in enumerate(pairwise(firsts))
    ]


def refuse_other_periods(path: Path, parts: list[Part]) -> None:
    """Refuses a folder with files that would be read as further periods of the log.

    Raises:
        ConfigError: there is one; names it.
    """
    name = re.compile(rf"{re.escape(path.stem)}-\d{{{_LEAST_DIGITS},}}{re.escape(path.suffix)}")
    own = {part.path.name for part in parts}
    folder = path.parent
    for other in sorted(folder.iterdir()) if folder.is_dir() else ():
        if name.fullmatch(other.name) and other.name not in own:
            raise ConfigError(
                f"generate: {other} would be read as another period of {path}, which has "
                f"{len(parts)} (--periods); remove it, or give another OUT"
            )


class SeenKeys:
    """Which keys a log has had so far, and in which of its files last.

    Args:
        model: whose keys they are; a byte each, two where there are 256 periods or more.
    """

    def __init__(self, model: PlantedModel) -> None:
        self._model = model
        dtype = np.min_scalar_type(int(model.periods[0]))
        self._marks: Marks = np.zeros(int(model.spans.sum()), dtype)
        self._mark = 0

    def begin(self) -> None:
        """What comes is of the next file."""
        self._mark += 1

    def find(self, block: Block) -> Whole:
        """The keys of a block that its file may not have had yet; threads may do so at once."""
        return find_unmarked(self._model, block, self._marks, self._mark)

    def add(self, found: Whole, counts: Whole) -> None:
        """Takes up what `find` returned; adds to counts, int64 [2], the keys that the file has not
        had before, and those that no file has."""
        set_marks(found, self._marks, self._mark, counts)


class Tally:
    """What the figures of a part, or of all parts of a log, are made of."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.metrics = BinaryMetrics()
        self.keys = np.zeros(2, np.int64)  # of the part; of these new to the log
        self.num_examples = 0
        self.num_values = 0
        self.num_bytes = 0
        self._config = config

    def add(self, block: Block) -> None:
        """Takes up a block but for the keys that it has."""
        self.metrics.update(block.logits, block.labels)
        self.num_examples += len(block.labels)
        self.num_values += len(block.ids)

    def end_part(self, part: "Tally") -> None:
        """Takes up what is left of a part whose blocks were added here, too."""
        self.keys += part.keys[1]
        self.num_bytes += part.num_bytes

    def counts(self) -> Json:
        """What it has, and how well the planted model predicts it."""
        best = self.metrics.compute()
        bags: Json = {}
        if self._config.bag is not None:
            num_bags = self.num_examples * self._config.features
            bags = {"values": self.num_values, "mean_bag": self.num_values / max(num_bags, 1)}
        return {
            "examples": self.num_examples,
            **bags,
            "clicks": best["positives"],
            "distinct_keys": int(self.keys[0]),
            "best_auc": best["auc"],
            "best_logloss": best["logloss"],
            "bytes": self.num_bytes,
        }

    def rates(self, seconds: float) -> Json:
        """How fast it was made."""
        return {
            "keys_per_second": self.num_values / seconds,
            "megabytes_per_second": self.num_bytes / seconds / 1e6,
        }


def told(config: GeneratorConfig) -> Json:
    """The fields of a config that its log depends on."""
    given = asdict(config)
    if config.bag is None:
        del given["bag"], given["bag_lengths"]
    return given
