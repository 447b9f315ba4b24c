"""History: what a training run measures as it goes, into files that are written while it runs.

Above it: `hps train --report` and `--tensorboard`. Below it: the file system; tensorboardX, for
event files alone.
"""

import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Protocol

from hps.errors import ConfigError, HpsError, StoreError

LINES = "run.jsonl"
FIGURES, PAGE = "run.json", "report.html"
OTHERS = (FIGURES, PAGE)
_FLUSH_SECONDS = 10.0
BEGIN, TRAIN, VALID = "begin", "train", "valid"


class Sink(Protocol):
    """Where figures go."""

    name: str
    """What it is, in words."""

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
    """Hands figures to all sinks of a run. One that fails is left out from then on: what is told of
    a training may not end it.

    Args:
        sinks: in turn.
        say: told of a sink that has failed.

    >>> History([]).is_empty
    True
    """

    def __init__(self, sinks: "list[Sink]", say: Callable[[str], None] = print) -> None:
        self._sinks = sinks
        self._say = say

    @property
    def is_empty(self) -> bool:
        """True if nobody wants figures."""
        return not self._sinks

    def add(self, kind: str, examples: int, values: Mapping[str, float]) -> None:
        """As a sink has it."""
        self._each(lambda sink: sink.add(kind, examples, values))

    def close(self) -> None:
        """Nothing more comes."""
        self._each(lambda sink: sink.close())

    def _each(self, act: "Callable[[Sink], None]") -> None:
        for sink in list(self._sinks):
            try:
                act(sink)
            except (HpsError, OSError) as error:
                self._sinks.remove(sink)
                self._say(f"warning: {error}; the training goes on without {sink.name}")
                with suppress(HpsError, OSError):
                    sink.close()


class JsonLines:
    """One JSON object a line: time, kind, examples, and the figures that are finite.

    A run that goes on adds to what is there: a line of kind "begin" says from where; what lines
    before it say of more examples than it was undone.

    Args:
        path: of the file.
        goes_on: add to it; else what is there goes when the run begins.

    Raises:
        ConfigError: the folder is another program's, or another run is writing there.
        StoreError: it cannot be written.
    """

    name = "--report"

    def __init__(self, path: Path, *, goes_on: bool) -> None:
        self._path = path
        self._goes_on = goes_on
        try:
            _check_own(path)
            self._file = path.open("ab", buffering=0)  # a line that fails is not tried again
        except OSError as error:
            raise self._failed(error) from error
        if not _is_alone(self._file):
            self._file.close()
            raise ConfigError(
                f"--report {path.parent}: another run is writing there; give each run a folder of "
                "its own (hps report DIR1 DIR2 shows them side by side)"
            )

    def add(self, kind: str, examples: int, values: Mapping[str, float]) -> None:
        """Writes a line, which a reader sees at once."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        line = {"time": round(time.time(), 3), "kind": kind, "examples": examples, **finite}
        try:
            if kind == BEGIN and not self._goes_on:  # not before the run is known to begin
                self._file.truncate(0)
            data = (json.dumps(line) + "\n").encode()
            if self._file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        self._file.close()

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(error.errno, f"cannot write {self._path}: {error.strerror}")


def _is_alone(file: IO[bytes]) -> bool:
    """Keeps other runs out of a file until it is closed, however this process ends; False if one
    has it. A file system that locks no files grants it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    return True


def _check_own(path: Path) -> None:
    """Refuses a folder that another program's files lie in.

    Raises:
        ConfigError: names it, and what is there.
    """
    if not path.parent.is_dir():
        return  # to open the file says so
    own = {LINES, *OTHERS}
    others = sorted(one.name for one in path.parent.iterdir() if one.name not in own)
    is_line = True
    if path.exists():
        with path.open("rb") as file:
            first = file.readline(4096)
        is_line = not first or (b'"kind"' in first and b'"examples"' in first)
    if not is_line or (others and not path.exists()):
        what = f"{LINES} of another program" if not is_line else ", ".join(others[:3])
        raise ConfigError(
            f"--report {path.parent}: it holds {what}; name a new folder, or that of a run"
        )


class TensorBoard:
    """Event files of TensorBoard: each figure a scalar under its kind, at the number of examples.

    Written in the caller's thread: tensorboardX's own waits for ever once its thread has failed.

    Args:
        folder: of the run; TensorBoard shows folders side by side.

    Raises:
        ConfigError: the package tensorboardX is not installed. StoreError: it cannot be written.
    """

    name = "--tensorboard"

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.proto.summary_pb2 import Summary
        except ImportError as error:
            raise ConfigError(
                "--tensorboard needs the package tensorboardX; pip install 'hps-ctr[report]'"
            ) from error
        self._event, self._summary, self._folder = Event, Summary, folder
        self._flushed = time.monotonic()
        try:
            self._writer = EventsWriter(str(folder / "events"))
        except OSError as error:
            raise self._failed(error) from error

    def add(self, kind: str, examples: int, values: Mapping[str, float]) -> None:
        """Writes the figures that are finite."""
        scalars = [
            self._summary.Value(tag=f"{kind}/{name}", simple_value=value)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        summary = self._summary(value=scalars)
        try:
            self._writer.write_event(
                self._event(wall_time=time.time(), step=examples, summary=summary)
            )
            if time.monotonic() - self._flushed >= _FLUSH_SECONDS:
                self._writer.flush()
                self._flushed = time.monotonic()
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        try:
            self._writer.close()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(
            error.errno, f"cannot write event files in {self._folder}: {error.strerror}"
        )


@contextmanager
def open_history(
    report: str | Path | None,
    tensorboard: str | Path | None,
    *,
    goes_on: bool,
    say: Callable[[str], None] = print,
    others: Sequence[Sink] = (),
) -> Iterator[History]:
    """The history of a run, until it ends.

    Args:
        report: folder for `run.jsonl`; None for none.
        tensorboard: folder for event files; None for none.
        goes_on: from a checkpoint: what is there stays.
        say: told of what can be written no more.
        others: sinks beside the files.

    Raises:
        ConfigError: tensorboardX is not installed, or the folder of the report is another
            program's or another run's that is under way. StoreError: a file cannot be written.
    """
    sinks = list(others)
    for folder in (report, tensorboard):
        if folder is not None:
            make_folder(Path(folder))
    history = History(sinks, say)
    try:  # closes those that are made, also where the next cannot be
        if report is not None:
            sinks.append(JsonLines(Path(report) / LINES, goes_on=goes_on))
        if tensorboard is not None:
            sinks.append(TensorBoard(Path(tensorboard)))
        yield history
    finally:
        history.close()


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
