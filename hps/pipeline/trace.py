"""A run's slices of time as a file that Perfetto and chrome://tracing open: a lane a stage.

Above it: StageClock, `hps train --trace`. Below it: a JSON array of trace events, one a line, which
both programs read even if its end is missing.
"""

import json
from collections import deque
from os import PathLike
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TextIO

from hps.errors import ConfigError, StoreError

MAX_SLICES = 2_000_000  # some 200 MB of file; what comes after is counted, not written
_FLUSH_AT = 4096
_LANES = {"network": 1, "fetch": 2, "copy": 3, "compute": 4}
# Names of a fixed palette of the viewers.
_WAIT_COLOR = "grey"


class Trace:
    """Collects slices from any thread and writes them to a file as the run goes on.

    Args:
        path: the file; overwritten.
        most: slices written at most.

    Raises:
        StoreError: the file cannot be written; also from what writes to it later.
        ConfigError: (later) it was closed before a pipeline that writes to it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Trace(f"{folder}/run.json") as trace:
    ...         trace.add("fetch", 1, 0.0, 0.5)
    ...     events = json.loads((Path(folder) / "run.json").read_text())
    >>> events[-1]["name"], events[-1]["dur"]
    ('fetch 1', 500000.0)
    """

    def __init__(self, path: str | PathLike[str], most: int = MAX_SLICES) -> None:
        self.path = Path(path)
        self.num_dropped = 0
        self.first_number = 0  # batches of earlier pipelines of the run
        self._most = most
        self._num_slices = 0
        self._origin = perf_counter()
        # append and popleft are atomic, so that stages need no lock.
        self._slices: deque[tuple[str, int, float, float]] = deque()
        self._waits: deque[tuple[str, str, float, float]] = deque()
        try:
            self._file: TextIO = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise self._refused(error) from error
        name = {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "hps pipeline"}}
        self._put("[\n" + json.dumps(name))
        for stage, lane in _LANES.items():
            self._write({"name": "thread_name", "ph": "M", "tid": lane, "args": {"name": stage}})
            sort = {"name": "thread_sort_index", "ph": "M", "tid": lane}
            self._write({**sort, "args": {"sort_index": lane}})

    def add(self, stage: str, number: int, start: float, end: float) -> None:
        """A stage worked on batch `number` from `start` to `end`, both of time.perf_counter()."""
        self._slices.append((stage, self.first_number + number, start, end))

    def add_wait(self, stage: str, side: str, start: float, end: float) -> None:
        """A stage waited for "input" or "output"."""
        self._waits.append((stage, side, start, end))

    def flush(self, at_least: int = _FLUSH_AT) -> None:
        """Writes what has been collected, if there is so much; for one thread.

        Raises:
            StoreError, ConfigError: as the class says.
        """
        if len(self._slices) + len(self._waits) < at_least:
            return
        while self._slices:
            stage, number, start, end = self._slices.popleft()
            self._write_slice(f"{stage} {number}", stage, (start, end), {"batch": number})
        while self._waits:
            stage, side, start, end = self._waits.popleft()
            self._write_slice(f"waits for {side}", stage, (start, end), None)

    def close(self) -> None:
        """Writes the rest; nothing to do the second time.

        Raises:
            StoreError: the file cannot be written; it is closed then, too.
        """
        if self._file.closed:
            return
        try:
            self.flush(0)
            if self.num_dropped:
                self._write({"name": f"{self.num_dropped} slices left out", "ph": "M", "tid": 0})
            self._put("\n]\n")
        finally:
            try:
                self._file.close()
            except OSError as error:
                raise self._refused(error) from error

    def __enter__(self) -> "Trace":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write_slice(
        self, name: str, stage: str, span: tuple[float, float], args: dict[str, int] | None
    ) -> None:
        if self._num_slices >= self._most:
            self.num_dropped += 1
            return
        self._num_slices += 1
        start, end = span
        event: dict[str, object] = {
            "name": name,
            "cat": stage if args else "wait",
            "ph": "X",
            "tid": _LANES[stage],
            "ts": round(1e6 * (start - self._origin), 1),
            "dur": round(1e6 * (end - start), 1),
        }
        event.update({"args": args} if args else {"cname": _WAIT_COLOR})
        self._write(event)

    def _write(self, event: dict[str, object]) -> None:
        self._put(",\n" + json.dumps({**event, "pid": 1}))

    def _put(self, text: str) -> None:
        if self._file.closed:
            raise ConfigError(
                f"the trace {self.path} is closed; close it after the pipelines that write to it"
            )
        try:
            self._file.write(text)
        except OSError as error:
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> StoreError:
        return StoreError(error.errno, f"cannot write the trace {self.path}: {error.strerror}")
