"""A world that notes what every collective carries and how long it takes, and the work between two.

Above it: rank.py. Below it: any `hps.cluster.world.world.World`. A channel belongs to one thread at
a time, so what lies between two of its calls is the work of that thread's stage.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch

from hps.cluster.world.world import Channel, ExchangingChannel, World

CHANNELS = ("keys", "rows", "control")


@dataclass(frozen=True)
class Call:
    """One collective of one rank.

    Args:
        began, ended: seconds of the clock.
        nbytes: handed over, for this rank itself, too.
    """

    began: float
    ended: float
    nbytes: int


class RecordedChannel(ExchangingChannel):
    """A channel whose calls are noted."""

    def __init__(self, inner: Channel) -> None:
        super().__init__(inner.rank, inner.size, inner.device)
        self._inner = inner
        self.calls: list[Call] = []

    def _exchange(self, rows: torch.Tensor, counts: list[int], incoming: list[int]) -> torch.Tensor:
        began = time.perf_counter()
        received = self._inner.exchange(rows, counts, incoming)
        self.calls.append(Call(began, time.perf_counter(), rows.numel() * rows.element_size()))
        return received


class RecordedWorld:
    """A world with recorded channels; all else is the world's own."""

    def __init__(self, inner: World) -> None:
        self._inner = inner
        self.keys = RecordedChannel(inner.keys)
        self.rows = RecordedChannel(inner.rows)
        self.control = RecordedChannel(inner.control)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def bytes_sent(self) -> int:
        """By keys and rows; control is not part of a step."""
        return self.keys.bytes_sent + self.rows.bytes_sent
