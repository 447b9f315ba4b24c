"""A training that is killed right after one of its checkpoints.

Above it: tests of runs that go on. Below it: `hps.ParameterServer.checkpoint`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

import hps


class Killed(BaseException):
    """No error that a run could handle."""


@contextmanager
def killed_after(num_checkpoints: int) -> Iterator[None]:
    """The block is left after so many checkpoints were taken in it; it fails if there are fewer."""
    take, taken = hps.ParameterServer.checkpoint, []

    def until_killed(self: hps.ParameterServer, **parts: Any) -> Any:
        taken.append(take(self, **parts))
        if len(taken) == num_checkpoints:
            raise Killed
        return taken[-1]

    with (
        mock.patch.object(hps.ParameterServer, "checkpoint", until_killed),
        pytest.raises(Killed),
    ):
        yield
