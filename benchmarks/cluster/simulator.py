"""A cluster simulated: ranks with the stages of a pipeline, hosts with so many cores, a network.

Above it: cluster_bench.py. Below it: nothing; the costs come from calibrate.py. Every rank has a
thread a stage, as hps.Pipeline has. A thread runs the operations of its stage, batch after batch:
work, which shares the cores of the host with all else that is busy there, and collectives, which
end when every rank has come. Stages wait for each other as those of a pipeline of that depth do.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

STAGES = ("network", "fetch", "compute")


@dataclass(frozen=True)
class Work:
    """Seconds of one core."""

    seconds: float


@dataclass(frozen=True)
class Collective:
    """What every rank joins.

    Args:
        channel: by name; its collectives follow each other.
        nbytes: handed over by a rank, its own part included.
    """

    channel: str
    nbytes: float


Operation = Work | Collective
Step = dict[str, tuple[Operation, ...]]  # stage -> what it does for one batch


@dataclass(frozen=True)
class Machine:
    """Hosts and what joins them.

    Args:
        cores: of a host.
        ranks_per_host: that share them.
        slowdown: of a core's work when all cores of the host are busy.
        call_seconds: a core's work for a collective, alone; then for each other rank; then for each
            byte to another rank.
        latency_seconds: from the last rank's coming to everybody's going on.
        bytes_per_second: that a host can send to others.
    """

    cores: int
    ranks_per_host: int
    slowdown: float = 1.0
    call_seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    latency_seconds: float = 0.0
    bytes_per_second: float = float("inf")

    def rate(self, num_busy: int) -> float:
        """What part of a core each of so many busy threads of a host gets."""
        if num_busy <= 1 or self.cores == 1:
            return 1.0 / max(1, num_busy)
        busy_cores = min(num_busy, self.cores)
        slowed = 1.0 + (self.slowdown - 1.0) * (busy_cores - 1) / (self.cores - 1)
        return busy_cores / num_busy / slowed


@dataclass
class _Host:
    """Threads that share cores: all go at the same rate, so work is measured by one count of it."""

    done: float = 0.0  # what each thread that has been busy all the time has done
    at: float = 0.0  # when that was so
    busy: list[tuple[float, int, "_Thread"]] = field(default_factory=list)  # a heap, by its end


class _Thread:
    """One stage of one rank."""

    def __init__(self, host: _Host, operations: Iterator["Operation | Callable[[], bool]"]) -> None:
        self.host = host
        self.operations = operations
        self.blocked: Callable[[], bool] | None = None


@dataclass
class _Meeting:
    come: list[_Thread] = field(default_factory=list)
    nbytes: float = 0.0


class Simulation:
    """One run of several ranks.

    Args:
        machine: what it runs on.
        steps: to draw from: recorded ones; each rank draws for each batch.
        size: ranks.
        depth: batches prepared ahead; 0 has one thread a rank.
        seed: of the draws.
    """

    def __init__(
        self, machine: Machine, steps: Sequence[Step], size: int, depth: int = 2, seed: int = 0
    ) -> None:
        self._machine = machine
        self._steps = steps
        self._size = size
        self._depth = depth
        self._chance = random.Random(seed)
        self._now = 0.0
        self._order = itertools.count()  # breaks ties
        num_hosts = -(-size // machine.ranks_per_host)
        self._hosts = [_Host() for _ in range(num_hosts)]
        self._meetings: dict[str, _Meeting] = {}
        self._leaving: list[tuple[float, int, list[_Thread]]] = []  # a heap of ended collectives
        self._waiting: list[_Thread] = []  # for another stage of their rank
        self._finished: list[list[float]] = [[] for _ in range(size)]  # moments of each rank

    def seconds_per_step(self, num_steps: int = 40, warm_up: int = 10) -> float:
        """Simulates so many batches; those that fill and drain the queues are not counted."""
        ahead = 2 * self._depth + 2
        threads = [
            thread
            for rank in range(self._size)
            for thread in self._threads(rank, warm_up + num_steps + ahead)
        ]
        for thread in threads:
            self._advance(thread)
        while True:
            self._wake()
            if not self._next_event():
                break
        assert not self._waiting, "the simulated stages wait for each other for ever"
        moments = [max(ends) for ends in zip(*self._finished, strict=True)]
        return (moments[warm_up + num_steps - 1] - moments[warm_up - 1]) / num_steps

    def _threads(self, rank: int, count: int) -> list[_Thread]:
        host = self._hosts[rank // self._machine.ranks_per_host]
        drawn = [self._chance.choice(self._steps) for _ in range(count)]
        if self._depth == 0:
            return [_Thread(host, self._in_turn(rank, drawn))]
        done = dict.fromkeys(STAGES, 0)
        return [_Thread(host, self._stage(rank, stage, drawn, done)) for stage in STAGES]

    def _in_turn(self, rank: int, drawn: list[Step]) -> Iterator[Operation | Callable[[], bool]]:
        for step in drawn:
            for stage in STAGES:
                yield from self._with_calls(step[stage])
            self._finished[rank].append(self._now)

    def _stage(
        self, rank: int, stage: str, drawn: list[Step], done: dict[str, int]
    ) -> Iterator[Operation | Callable[[], bool]]:
        depth = self._depth
        for number, step in enumerate(drawn):
            if stage == "network":
                # Its queue holds `depth` batches.
                yield lambda number=number: done["fetch"] >= number - depth
            elif stage == "fetch":
                # A batch is pinned beside `depth` others at most.
                yield (
                    lambda number=number: (
                        done["network"] > number and done["compute"] >= number - depth
                    )
                )
            else:
                yield lambda number=number: done["fetch"] > number
            yield from self._with_calls(step[stage])
            done[stage] += 1
            if stage == "compute":
                self._finished[rank].append(self._now)

    def _with_calls(self, operations: Sequence[Operation]) -> Iterator[Operation]:
        """The operations, and the work of their collectives."""
        alone, a_rank, a_byte = self._machine.call_seconds
        for operation in operations:
            if isinstance(operation, Collective):
                foreign = operation.nbytes * (1 - 1 / self._size)
                others = self._size - 1
                yield Work((alone + a_rank * others + a_byte * foreign) if others else 0.0)
            yield operation

    def _advance(self, thread: _Thread) -> None:
        """Starts the thread's next operation; none is left where it ends."""
        for operation in thread.operations:
            if isinstance(operation, Work):
                if operation.seconds > 0:
                    self._start_work(thread, operation.seconds)
                    return
            elif isinstance(operation, Collective):
                if self._size > 1:
                    self._join(thread, operation)
                    return
            elif not operation():
                thread.blocked = operation
                self._waiting.append(thread)
                return

    def _start_work(self, thread: _Thread, seconds: float) -> None:
        host = thread.host
        self._settle(host)
        heapq.heappush(host.busy, (host.done + seconds, next(self._order), thread))

    def _settle(self, host: _Host) -> None:
        """Brings the host's count of work up to now."""
        if host.busy:
            host.done += (self._now - host.at) * self._machine.rate(len(host.busy))
        host.at = self._now

    def _join(self, thread: _Thread, collective: Collective) -> None:
        meeting = self._meetings.setdefault(collective.channel, _Meeting())
        meeting.come.append(thread)
        meeting.nbytes = max(meeting.nbytes, collective.nbytes)
        if len(meeting.come) == self._size:
            del self._meetings[collective.channel]
            machine = self._machine
            others = max(0, self._size - machine.ranks_per_host) / self._size
            leaving = others * meeting.nbytes * min(self._size, machine.ranks_per_host)
            moment = self._now + machine.latency_seconds + leaving / machine.bytes_per_second
            heapq.heappush(self._leaving, (moment, next(self._order), meeting.come))

    def _wake(self) -> None:
        """Lets go on whoever waited for another stage that has come so far."""
        has_woken = True
        while has_woken:
            has_woken = False
            waiting, self._waiting = self._waiting, []
            for thread in waiting:
                if thread.blocked is not None and thread.blocked():
                    thread.blocked = None
                    has_woken = True
                    self._advance(thread)
                else:
                    self._waiting.append(thread)

    def _next_event(self) -> bool:
        """Goes on to whatever ends next; False when nothing is under way."""
        best: tuple[float, _Host | None] | None = None
        for host in self._hosts:
            if host.busy:
                left = host.busy[0][0] - host.done
                moment = host.at + left / self._machine.rate(len(host.busy))
                if best is None or moment < best[0]:
                    best = (moment, host)
        if self._leaving and (best is None or self._leaving[0][0] <= best[0]):
            self._now, _, threads = heapq.heappop(self._leaving)
            for thread in threads:
                self._advance(thread)
            return True
        if best is None or best[1] is None:
            return False
        self._now, host = best[0], best[1]
        self._settle(host)
        _, _, thread = heapq.heappop(host.busy)
        self._advance(thread)
        return True
