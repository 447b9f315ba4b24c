"""Logical ranks as threads of one process: for tests, benchmarks and the simulator.

Above it: a caller that makes the threads, one a rank. Below it: a meeting place a channel, where
the last rank that comes wakes the others. Nothing is shared: what one rank sends is copied.
"""

import threading
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar, cast

import torch

from hps.cluster.world.halts import Halt
from hps.cluster.world.world import ExchangingChannel
from hps.errors import ClusterError

TIMEOUT_SECONDS = 120.0


class _Fate:
    """What became of the ranks, known to all of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.gone: dict[int, str] = {}  # rank -> why it has left
        self.halts: dict[int, Halt] = {}
        self.num_meetings: dict[int, int] = {}  # rank -> how often it has gone on after a halt
        self._waiting: list[threading.Condition] = []

    def condition(self) -> threading.Condition:
        """One over the lock, to wait on; who leaves wakes it."""
        self._waiting.append(threading.Condition(self.lock))
        return self._waiting[-1]

    def leave(self, rank: int, reason: str) -> None:
        """The rank takes part in nothing any more."""
        with self.lock:
            self.gone.setdefault(rank, reason)
            for condition in self._waiting:
                condition.notify_all()

    def halt(self, halt: Halt) -> None:
        """A rank enters no further collective for now."""
        with self.lock:
            self.halts[halt.rank] = halt
            for condition in self._waiting:
                condition.notify_all()

    def go_on(self, rank: int) -> None:
        """All have halted."""
        with self.lock:
            del self.halts[rank]
            self.num_meetings[rank] = self.num_meetings.get(rank, 0) + 1


T = TypeVar("T")


@dataclass
class _Round:
    brought: dict[int, object] = field(default_factory=dict)
    num_taken: int = 0


class _Meeting:
    """Where ranks meet, again and again: all bring something, then each sees what all brought."""

    def __init__(self, name: str, size: int, fate: _Fate, timeout_seconds: float) -> None:
        self._name = name
        self._size = size
        self.fate = fate
        self._changed = fate.condition()
        self._timeout = timeout_seconds
        self._met = [0] * size  # meetings so far, of each rank
        self._rounds: dict[int, _Round] = {}

    def meet(self, rank: int, brought: T) -> list[T]:
        """What every rank brought, in rank order; waits for all of them.

        Raises:
            ClusterError: a rank has left, or has not come in time.
        """
        deadline = monotonic() + self._timeout
        with self.fate.lock:
            if rank in self.fate.gone:  # it takes part in nothing any more
                self._refuse_gone(rank)
            number = self._met[rank]
            self._met[rank] += 1
            current = self._rounds.setdefault(number, _Round())
            current.brought[rank] = brought
            if len(current.brought) == self._size:
                self._changed.notify_all()
            while len(current.brought) < self._size:
                self._refuse_gone(rank)
                self._refuse_halted(rank, number + 1)
                left = deadline - monotonic()
                if left <= 0 or not self._changed.wait(left):
                    late = [r for r in range(self._size) if r not in current.brought]
                    raise ClusterError(
                        f"rank {rank}: waited {self._timeout:g} s for ranks {late} "
                        f"({self._name} channel); look at what they do, or raise the timeout"
                    )
            current.num_taken += 1
            if current.num_taken == self._size:
                del self._rounds[number]
            return [cast("T", current.brought[other]) for other in range(self._size)]

    def _refuse_gone(self, rank: int) -> None:
        for other, reason in self.fate.gone.items():
            why = f" ({reason})" if reason else ""
            who = "this rank" if other == rank else f"rank {other}"
            raise ClusterError(
                f"rank {rank}: {who} has left the training{why} while the {self._name} channel "
                f"waited for it; look at the error of rank {other}"
            )

    def _refuse_halted(self, rank: int, number: int) -> None:
        if rank in self.fate.halts:
            return
        for halt in self.fate.halts.values():
            if halt.number == self.fate.num_meetings.get(rank, 0):
                halt.refuse(rank, self._name, number)


class LocalChannel(ExchangingChannel):
    """One rank's end of a channel between threads."""

    def __init__(self, rank: int, size: int, meeting: _Meeting) -> None:
        super().__init__(rank, size)
        self._meeting = meeting

    def _exchange(self, rows: torch.Tensor, counts: list[int], incoming: list[int]) -> torch.Tensor:
        own = self.rank
        parts = [
            part if other == own else part.clone()
            for other, part in enumerate(torch.split(rows.detach(), counts))
        ]
        try:
            brought = self._meeting.meet(own, parts)
        except ClusterError as error:
            self._meeting.fate.leave(own, str(error))
            raise
        received = [parts_of[own] for parts_of in brought]
        sizes = [len(part) for part in received]
        if sizes != incoming:
            raise ClusterError(
                f"rank {own}: {sizes} rows came from the ranks where {incoming} were expected: "
                "the ranks do not run the same program"
            )
        return torch.cat(received)


class LocalWorld:
    """All ranks, as one thread of the process sees them; see `hps.cluster.world.world.World`.

    Args:
        rank, size: of the thread.
        meetings: of the three channels.
        fate: what all ranks share.
    """

    def __init__(self, rank: int, size: int, meetings: dict[str, _Meeting], fate: _Fate) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = rank
        self._fate = fate
        self.keys = LocalChannel(rank, size, meetings["keys"])
        self.rows = LocalChannel(rank, size, meetings["rows"])
        self.control = LocalChannel(rank, size, meetings["control"])

    def halt(self, words: str, *, is_last: bool = False) -> None:
        """As World has it."""
        channels = {"rows": self.rows, "control": self.control}
        if is_last:
            channels["keys"] = self.keys
        entered = {name: channel.num_entered for name, channel in channels.items()}
        number = self._fate.num_meetings.get(self.rank, 0)
        self._fate.halt(Halt(self.rank, words, number, entered))

    def go_on(self) -> None:
        """As World has it."""
        self._fate.go_on(self.rank)

    def close(self) -> None:
        """Who still waits for this rank, or will, gets ClusterError."""
        self._fate.leave(self.rank, "it has closed its world")

    @property
    def is_aborted(self) -> bool:
        """As World has it."""
        return self.rank in self._fate.gone

    def abort(self, reason: str = "") -> None:
        """As World has it."""
        self._fate.leave(self.rank, reason)


def local_worlds(size: int, timeout_seconds: float = TIMEOUT_SECONDS) -> list[LocalWorld]:
    """One world a rank, each for a thread of its own.

    Args:
        size: ranks.
        timeout_seconds: a collective waits no longer for a rank.

    >>> import threading
    >>> worlds = local_worlds(2)
    >>> seen = {}
    >>> def run(world):
    ...     seen[world.rank] = world.control.gather(10 * world.rank)
    >>> threads = [threading.Thread(target=run, args=(world,)) for world in worlds]
    >>> for thread in threads:
    ...     thread.start()
    >>> for thread in threads:
    ...     thread.join()
    >>> seen[0] == seen[1] == [0, 10]
    True
    """
    fate = _Fate()
    meetings = {
        name: _Meeting(name, size, fate, timeout_seconds) for name in ("keys", "rows", "control")
    }
    return [LocalWorld(rank, size, meetings, fate) for rank in range(size)]
