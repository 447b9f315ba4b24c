"""How a click log is to be read: frozen, keyword-only, checked when made.

Above it: `open_reader`. Below it: nothing.
"""

import os
from dataclasses import dataclass

from hps.config import MAX_THREADS
from hps.errors import ConfigError

FORMATS = ("criteo", "parquet", "libsvm", "libffm", "slots")
MAX_BATCH_SIZE = 2**24
MAX_DENSE = 2**16
MAX_PARTS = 2**16


@dataclass(frozen=True, kw_only=True)
class ReaderConfig:
    """The log's format and how it is cut into batches.

    Args:
        format: "criteo", "parquet", "libsvm", "libffm" or "slots".
        batch_size: examples in a batch; the last of an epoch may have fewer.
        dense: numbers in an example. None: 13 for criteo, else as the log has it.
        label: parquet only: the column of labels.
        hash_keys: hash the raw text of keys that are numbers too.
        on_error: "raise" at a bad line, or "skip" it and count.
        epochs: how often the whole log is read. No batch spans two epochs.
        shuffle_files: seed by which the order of the files is drawn, another for each epoch; None
            reads them as they are given.
        drop_last: leave out an epoch's last batch if it is not full.
        threads: that parse; 0 takes the cores this process may use. Never changes a batch.
        part: (rank, size): of a batch of G examples the reader yields examples G * rank // size up
            to G * (rank + 1) // size alone, maybe none. Positions and counts stay those of the
            whole batches, so that any number of parts goes on from them.

    Raises:
        ConfigError: a field outside its limits.

    >>> ReaderConfig(format="criteo", batch_size=512).epochs
    1
    """

    format: str
    batch_size: int = 4096
    dense: int | None = None
    label: str = "label"
    hash_keys: bool = False
    on_error: str = "raise"
    epochs: int = 1
    shuffle_files: int | None = None
    drop_last: bool = False
    threads: int = 0
    part: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"ReaderConfig.format={self.format!r} must be one of {FORMATS}")
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(f"ReaderConfig.on_error={self.on_error!r} must be 'raise' or 'skip'")
        if not isinstance(self.label, str) or not self.label:
            raise ConfigError(f"ReaderConfig.label={self.label!r} must be the name of a column")
        self._check_number("batch_size", self.batch_size, 1, MAX_BATCH_SIZE)
        self._check_number("epochs", self.epochs, 1, 2**31)
        self._check_number("threads", self.threads, 0, MAX_THREADS)
        if self.shuffle_files is not None:
            self._check_number("shuffle_files", self.shuffle_files, 0, 2**63)
        if self.dense is not None:
            self._check_number("dense", self.dense, 0, MAX_DENSE)
        if not isinstance(self.part, tuple) or len(self.part) != 2:
            raise ConfigError(f"ReaderConfig.part={self.part!r} must be two numbers: rank, size")
        self._check_number("part[1]", self.part[1], 1, MAX_PARTS)
        self._check_number("part[0]", self.part[0], 0, self.part[1] - 1)

    def _check_number(self, name: str, value: object, least: int, most: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise ConfigError(
                f"ReaderConfig.{name}={value!r} must be a whole number from {least} to {most}"
            )

    def own_part(self, num_examples: int) -> tuple[int, int]:
        """First example of the own part of a batch, and the one after its last.

        >>> ReaderConfig(format="criteo", part=(1, 3)).own_part(100)
        (33, 66)
        """
        rank, size = self.part
        return num_examples * rank // size, num_examples * (rank + 1) // size

    def num_threads(self) -> int:
        """Threads that parse, after 0 has been resolved to the cores at hand."""
        return self.threads or min(len(os.sched_getaffinity(0)), MAX_THREADS)
