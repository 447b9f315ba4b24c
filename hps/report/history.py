"""History: what a training run measures as it goes, into files that are written while it runs.

Above it: `hps train --report` and `--tensorboard`. Below it: the file system; tensorboardX, for
event files alone.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from hps.errors import ConfigError, StoreError

LINES = "run.jsonl"
BEGIN, TRAIN, VALID = "begin", "train", "valid"


class Sink(Protocol):
    """Where figures go."""

    def add(self, kind: str, examples: int, values: Mapping[str, float]) -> None:
        """Takes the figures of one moment.

        Args:
            kind: "begin" where a run begins or goes on, "train", "valid".
            examples: that the model has been trained on.
            values: by name, finite or not.
        """

    def close(self) -> None:
        """Nothing more comes."""


class History:
    """Hands figures to all sinks of a run.

    Args:
        sinks: in turn.

    >>> History([]).is_empty
    True
    """

    def __init__(self, sinks: "list[Sink]") -> None:
        self._sinks = sinks

    @property
    def is_empty(self) -> bool:
        """True if nobody wants figures."""
        return not self._sinks

    def add(self, kind: str, examples: int, values: Mapping[str, float]) -> None:
        """As a sink has it."""
        for sink in self._sinks:
            sink.add(kind, examples, values)


class JsonLines:
    """One JSON object a line: time, kind, examples, and the figures that are finite.

    A run that goes on adds to what is there: a line of kind "begin" says from where; what lines
    before it say of more examples than it was undone.

    Args:
        path: of the file.
        goes_on: add to it; else what is there goes when the run begins.

    Raises:
        StoreError: it cannot be written.
    """

    def __init__(self, path: Path, *, goes_on: bool) -> None:
        self._path = path
        self._goes_on = goes_on
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._failed(error) from error

    def add(self, kind: str, examples: int, values: Mapping[str, float]) -> None:
        """Writes a line, which a reader sees at once."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        line = {"time": round(time.time(), 3), "kind": kind, "examples": examples, **finite}
        try:
            if kind == BEGIN and not self._goes_on:  # not before the run is known to begin
                self._file.truncate(0)
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(error.errno, f"cannot write {self._path}: {error.strerror}")


class TensorBoard:
    """Event files of TensorBoard: each figure a scalar under its kind, at the number of examples.

    Args:
        folder: of the run; TensorBoard shows folders side by side.

    Raises:
        ConfigError: the package tensorboardX is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--tensorboard needs the package tensorboardX; pip install 'hps-ctr[report]'"
            ) from error
        self._writer = SummaryWriter(str(folder), flush_secs=10)

    def add(self, kind: str, examples: int, values: Mapping[str, float]) -> None:
        """Writes the figures that are finite."""
        for name, value in values.items():
            if math.isfinite(value):
                self._writer.add_scalar(f"{kind}/{name}", value, examples)

    def close(self) -> None:
        self._writer.close()


@contextmanager
def open_history(
    report: str | Path | None, tensorboard: str | Path | None, *, goes_on: bool
) -> Iterator[History]:
    """The history of a run, until it ends.

    Args:
        report: folder for `run.jsonl`; None for none.
        tensorboard: folder for event files; None for none.
        goes_on: from a checkpoint: what is there stays.

    Raises:
        ConfigError: tensorboardX is not installed. StoreError: a file cannot be written.
    """
    sinks: list[Sink] = []
    with ExitStack() as held:
        for folder in (report, tensorboard):
            if folder is not None:
                make_folder(Path(folder))
        if report is not None:
            sinks.append(JsonLines(Path(report) / LINES, goes_on=goes_on))
        if tensorboard is not None:
            sinks.append(TensorBoard(Path(tensorboard)))
        for sink in sinks:
            held.callback(sink.close)
        yield History(sinks)


def make_folder(folder: Path) -> None:
    """Makes a folder if it is not there.

    Raises:
        StoreError: it cannot be made, or is no folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            error.errno, f"cannot make the folder {folder}: {error.strerror}"
        ) from error
