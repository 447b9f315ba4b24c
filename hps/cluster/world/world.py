"""World and Channel: what the ranks of a training do together, whatever carries it.

Above it: cluster/parameter_server.py, cluster/exchange/key_exchange.py, checkpoints and folders,
`hps.train`. Below it: the two that keep it, local_world.py (logical ranks, threads of one process)
and torch_world.py (processes of torchrun).
"""

import json
from abc import ABC, abstractmethod
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hps.common.arrays import HOST
from hps.common.json_text import parse_json
from hps.errors import ClusterError

Counts = NDArray[np.int64]  # of rows or keys: of each rank, or of ranks by table
T = TypeVar("T")


class Channel(Protocol):
    """One ordered stream of collectives: every rank calls the same verbs in the same order.

    Used by one thread of a rank at a time. Every verb waits for the other ranks, and raises
    ClusterError where one of them is gone or does not come in time.
    """

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def device(self) -> str:
        """Where the tensors of `exchange` and `all_to_all` lie, as torch names it."""

    @property
    def is_queued(self) -> bool:
        """True if tensors of a device are exchanged in the order of the work on them, as NCCL has
        it: the host waits neither for that nor for the other ranks. Else they are of the host."""

    @property
    def bytes_sent(self) -> int:
        """Payload to other ranks so far."""

    @property
    def num_entered(self) -> int:
        """Exchanges that this rank has entered so far."""

    @property
    def seconds(self) -> float:
        """Spent in this channel so far, waiting for the other ranks included."""

    def exchange(
        self, rows: torch.Tensor, counts: list[int], incoming: list[int] | None = None
    ) -> torch.Tensor:
        """Sends runs of rows, one for each rank; returns what came, in rank order.

        Args:
            rows: [sum of counts, ...], contiguous; dtype and trailing shape as everywhere.
            counts: rows for each rank, which are in rank order.
            incoming: rows to come from each rank where the caller knows; else they are asked for.

        Returns:
            [sum of incoming, ...], new memory.

        Cost: the rows of other ranks travel once; without `incoming` one more collective.
        """

    def exchange_counts(self, counts: list[int]) -> list[int]:
        """A whole number for each rank; returns those that each rank gave for this one."""

    def all_to_all(
        self, parts: list[torch.Tensor], counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        """As `exchange`, with a tensor for each rank and one from each."""

    def gather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank; what JSON holds."""

    def any(self, flag: bool) -> bool:
        """True if it is on any rank."""

    def barrier(self) -> None:
        """Returns when every rank has come here."""


class World(Protocol):
    """All ranks, as one of them sees them: three channels that may be used beside each other."""

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def local_rank(self) -> int:
        """The number of this rank among those of its host."""

    @property
    def keys(self) -> Channel:
        """For the network stage: keys, on the host."""

    @property
    def rows(self) -> Channel:
        """For the compute stage: rows and gradients, where the training computes."""

    @property
    def control(self) -> Channel:
        """For the training loop's thread, on the host: start, agreements, checkpoints, the end."""

    def halt(self, words: str, *, is_last: bool = False) -> None:
        """Says that this rank enters no collective of rows and control before it goes on.

        A rank that waits in one that this rank does not come to raises ClusterError at once, with
        these words; ranks that have halted, too, do not.

        Args:
            words: what this rank has done, after its number.
            is_last: nor any of keys, and it does not go on.
        """

    def go_on(self) -> None:
        """After all ranks have halted and met: every rank calls it, at its own time."""

    def close(self) -> None:
        """Lets go, when all is done; nothing to do the second time."""

    @property
    def is_aborted(self) -> bool:
        """True after `abort`, and once a collective of this rank has failed: it is out of step with
        the others for good, and they have been told."""

    def abort(self, reason: str = "") -> None:
        """After an error: the other ranks' collectives raise ClusterError, as do this one's.

        Args:
            reason: what the others are told.
        """


def counts_by_rank(counts: list[list[int]]) -> Counts:
    """Of each table its rows for each rank, as int64 [ranks, tables], contiguous."""
    return np.ascontiguousarray(np.array(counts, np.int64).T)


class ExchangingChannel(ABC):
    """A channel whose verbs are all made of `exchange`.

    Args:
        rank, size, device: as Channel has them.
    """

    def __init__(self, rank: int, size: int, device: str = "cpu") -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self.bytes_sent = 0
        self.num_entered = 0
        self.seconds = 0.0
        self.is_queued = device != HOST

    def exchange(
        self, rows: torch.Tensor, counts: list[int], incoming: list[int] | None = None
    ) -> torch.Tensor:
        """As Channel has it."""
        if incoming is None:
            incoming = self.exchange_counts(counts)
        row_bytes = rows.element_size() * (rows[:1].numel() if len(rows) else 0)
        self.bytes_sent += row_bytes * (len(rows) - counts[self.rank])
        self.num_entered += 1
        start = perf_counter()
        try:
            return self._exchange(rows, counts, incoming)
        finally:
            self.seconds += perf_counter() - start

    @abstractmethod
    def _exchange(self, rows: torch.Tensor, counts: list[int], incoming: list[int]) -> torch.Tensor:
        """Sends and receives."""

    def exchange_counts(self, counts: list[int]) -> list[int]:
        """As Channel has it."""
        single = [1] * self.size
        numbers = torch.tensor(counts, dtype=torch.int64, device=self.device)
        received: list[int] = self.exchange(numbers, single, single).tolist()
        return received

    def all_to_all(
        self, parts: list[torch.Tensor], counts: list[int] | None = None
    ) -> list[torch.Tensor]:
        """As Channel has it."""
        sizes = [len(part) for part in parts]
        incoming = self.exchange_counts(sizes) if counts is None else counts
        return list(torch.split(self.exchange(torch.cat(parts), sizes, incoming), incoming))

    def gather(self, value: T) -> list[T]:
        """As Channel has it."""
        text = bytearray(json.dumps(value).encode())
        data = torch.frombuffer(text, dtype=torch.uint8).to(self.device)
        parts = self.all_to_all([data] * self.size)
        texts = [part.cpu().numpy().tobytes() for part in parts]
        return [parse_json(text, "what a rank sent", error=ClusterError) for text in texts]

    def any(self, flag: bool) -> bool:
        """As Channel has it."""
        return any(self.exchange_counts([int(flag)] * self.size))

    def barrier(self) -> None:
        """As Channel has it."""
        self.any(False)
