"""The walk of a batch: the files of hps that keys or values are handed to on their way, in order.

Above it: tests/test_walks.py. Below it: sys.setprofile. A file is on the walk if one of its
functions is called with the batch: its arrays, the message that they came in, or an object that
holds them. What is asked on the way (is there room, who has the turn) is not.
"""

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import hps

ROOT = Path(hps.__file__).parent
_DEPTH = 2  # of objects within objects


class Walk:
    """Follows arrays through the calls of one thread, or of all that begin while it is entered.

    Args:
        begins: names the function of hps, as "file:name", whose arguments are to be followed; None
            follows `arrays`.
        arrays: that are followed.
    """

    def __init__(self, begins: str | None = None, arrays: tuple[np.ndarray, ...] = ()) -> None:
        self._begins = begins
        self._followed: list[Any] = [_bytes_of(array) for array in arrays]
        self.files: list[str] = []

    @property
    def stays(self) -> list[str]:
        """The files in the order of the walk, one that was left and entered again named again."""
        return [file for file, _ in itertools.groupby(self.files)]

    @contextmanager
    def followed(self) -> Iterator[None]:
        """For a `with` block whose calls count, in this thread."""
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """What a profiler is told."""
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(ROOT):
            return
        file = path.relative_to(ROOT).as_posix()
        arguments = [value for name, value in frame.f_locals.items() if name != "self"]
        if f"{file}:{frame.f_code.co_name}" == self._begins and not self._followed:
            self._followed = [_bytes_of(value) for value in arguments if _has_bytes(value)]
        if self._followed and any(self._holds(value, _DEPTH) for value in arguments):
            self.files.append(file)

    def _holds(self, value: object, depth: int) -> bool:
        if _has_bytes(value):
            own = _bytes_of(value)
            return any(np.shares_memory(own, followed) for followed in self._followed)
        if depth == 0:
            return False
        if isinstance(value, list | tuple):
            return any(self._holds(part, depth - 1) for part in value[:20])
        if not type(value).__module__.startswith("hps"):
            return False
        names = getattr(type(value), "__slots__", None) or getattr(value, "__dict__", ())
        return any(self._holds(getattr(value, name, None), depth - 1) for name in names)


def _has_bytes(value: object) -> bool:
    return isinstance(value, np.ndarray | bytes) and len(value) > 0


def _bytes_of(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else np.frombuffer(value, np.uint8)


def in_new_threads(note: Callable[[FrameType, str, object], None]) -> Any:
    """For a `with` block: threads that begin in it tell `note` of their calls."""

    @contextmanager
    def told() -> Iterator[None]:
        threading.setprofile(note)
        try:
            yield
        finally:
            threading.setprofile(None)  # type: ignore[arg-type]

    return told()
