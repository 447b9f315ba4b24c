"""Recipe N5: one slow disk, and what the keys of the other shards notice of it.

Above it: test_service_faults.py, run.py. Below it: faulty_calls.py, service_shards.py. One client
pushes to all shards at a steady pace, and pulls keys of shard 0 alone. The disk of shard 1 is slow
in every other stretch of time: pulls must take as long as in the stretches between. In a last
stretch it pushes as fast as it can: what waits for the slow shard must stay within its window.
"""

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import hps
from hps.common.sharding import ShardMap
from tests.torture.faulty_calls import Faults
from tests.torture.scratch import scratch_folder
from tests.torture.service_oracle import ServiceOracle
from tests.torture.service_shards import Nursery, Shard, create_tables

MOST_SLOWER = 1.2  # of the p99 beside a slow shard to that beside a quick one
ATTEMPTS = 5  # the best one counts: a busy machine makes any p99 slower, a bug all of them
STRETCHES = 6  # of an attempt, quick and slow in turn
STRETCH_SECONDS = 0.15
DELAY_US = 20_000
PACE_SECONDS = 0.005
WINDOW_BYTES = 16 << 10
MOST_WAITING = 16 * WINDOW_BYTES  # a window a shard, and answers that nobody has looked at yet
FLOOD_SECONDS = 0.5  # until the window holds; where it does not, until MOST_WAITING are waiting
LONGEST_FLOOD = 5.0
Connect = Callable[[list[str], str], Any]
_DEADLINE = 60.0


def connect(addresses: list[str], name: str) -> Any:
    """A client with a small window."""
    return hps.RemoteParameterServer(
        addresses, client_id=name, deadline=_DEADLINE, window=WINDOW_BYTES
    )


def connect_unbounded(addresses: list[str], name: str) -> Any:
    """The planted bug: a client that takes all it is given."""
    return hps.RemoteParameterServer(
        addresses, client_id=name, deadline=_DEADLINE, window=WINDOW_BYTES << 10
    )


class OneAtATime:
    """The planted bug: a client that has one call under way, whatever shards it goes to."""

    def __init__(self, addresses: list[str], name: str) -> None:
        self._remote = connect(addresses, name)
        self._turn = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote, name)

    def pull(self, *arguments: Any) -> Any:
        with self._turn:
            return self._remote.pull(*arguments)

    def push_async(self, *arguments: Any, **options: Any) -> Any:
        with self._turn:
            answer = self._remote.push_async(*arguments, **options)
            answer.result()
            return answer


PLANTS: dict[str, Connect] = {
    "one-shard-after-the-other": OneAtATime,
    "no-window": connect_unbounded,
}


@dataclass
class SlowReport:
    """What the attempts found; `violations` must be empty."""

    slower: list[float] = field(default_factory=list)  # ratio of p99s, an attempt each
    slow_pushes: float = 0.0  # how much slower the slow shard's own pushes were
    delays: int = 0
    pulls: int = 0
    most_waiting_bytes: int = 0
    violations: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """What should have happened and has not."""
        happened = {
            "delays of the disk": self.delays and self.pulls,
            "pushes that the slow disk holds up": self.slow_pushes > 2,
        }
        return [what for what, has_happened in happened.items() if not has_happened]

    def __str__(self) -> str:
        return (
            f"one slow disk: p99 of the other shard's pulls times {min(self.slower):.2f}, the slow "
            f"shard's pushes times {self.slow_pushes:.1f} ({self.pulls:,} pulls, at most "
            f"{self.most_waiting_bytes:,} bytes waiting)"
        )


class Pushing(threading.Thread):
    """Pushes to all shards at a pace, or as many at once as the client lets it."""

    def __init__(self, remote: Any, oracle: ServiceOracle) -> None:
        super().__init__(daemon=True)
        self.pace_seconds = PACE_SECONDS
        self._remote, self._oracle = remote, oracle
        self._ends = threading.Event()
        self._waiting: deque[Any] = deque()
        self.most_waiting_bytes = 0
        self.error: hps.HpsError | None = None

    def run(self) -> None:
        number = 0
        try:
            while not self._ends.is_set():
                number += 1
                table, keys, grads = self._oracle.push_of(0, number)
                answer = self._remote.push_async(table, keys, grads, ack="durable")
                self._waiting.append((keys.nbytes + grads.nbytes, answer))
                while self._waiting and self._waiting[0][1].done():
                    self._waiting.popleft()[1].result()
                waiting = sum(size for size, _ in self._waiting)
                self.most_waiting_bytes = max(self.most_waiting_bytes, waiting)
                time.sleep(self.pace_seconds)
            for _, answer in self._waiting:
                answer.result()
        except hps.HpsError as error:
            self.error = error

    def end(self) -> None:
        """What was begun is answered when this returns."""
        self._ends.set()
        self.join()


@dataclass
class Stretch:
    """Milliseconds of the calls in one stretch of time."""

    pulls: list[float] = field(default_factory=list)
    slow_shard: float = 0.0  # of a push to the shard whose disk may be slow

    @property
    def p99(self) -> float:
        """Of the pulls."""
        return float(np.percentile(self.pulls, 99))


def _milliseconds(call: Any, *arguments: Any, **options: Any) -> float:
    began = time.perf_counter()
    call(*arguments, **options)
    return 1000 * (time.perf_counter() - began)


def _stretch(remote: Any, other: Any, oracle: ServiceOracle) -> Stretch:
    """Pulls keys of shard 0, then one push to shard 1 by another client."""
    mine, theirs = (oracle.keys[places] for places in ShardMap(2).split(oracle.keys))
    found = Stretch()
    deadline = time.perf_counter() + STRETCH_SECONDS
    while time.perf_counter() < deadline:
        found.pulls.append(_milliseconds(remote.pull, "sgd", mine[:48]))
    grads = np.zeros((48, oracle.num_clients + 1), np.float32)
    found.slow_shard = _milliseconds(other.push, "sgd", theirs[:48], grads, ack="durable")
    return found


def _attempt(
    clients: tuple[Any, Any], oracle: ServiceOracle, faults: Faults, report: SlowReport
) -> tuple[float, float]:
    """How much slower are (pulls of shard 0 at p99, pushes to shard 1) when its disk is slow."""
    found: dict[int, list[Stretch]] = {0: [], DELAY_US: []}
    for number in range(STRETCHES):
        delay = DELAY_US * (number % 2)
        faults["delay_us"] = delay
        found[delay].append(_stretch(*clients, oracle))
        report.pulls += len(found[delay][-1].pulls)
    faults["delay_us"] = 0
    p99, push = (
        [statistics.median(getattr(s, name) for s in found[delay]) for delay in (0, DELAY_US)]
        for name in ("p99", "slow_shard")
    )
    return p99[1] / p99[0], push[1] / push[0]


def run_slow(
    process: Nursery, seed: int, attempts: int = ATTEMPTS, connect: Connect = connect
) -> SlowReport:
    """Attempts until one finds pulls quick enough.

    Args:
        process: a faulty_nursery.
        seed: of the keys.
        attempts: at most so many.
        connect: makes the client that pushes and pulls; OneAtATime is the planted bug.
    """
    report = SlowReport()
    with scratch_folder() as folder:
        faults = Faults(folder / "faults")
        found = [Shard(process, folder, index, 2, "") for index in range(2)]
        found[1].environment = faults.environment(found[1].store)
        try:
            _run_slow(found, faults, ServiceOracle(seed, 2), (attempts, connect), report)
        finally:
            for shard in found:
                shard.end()
    return report


def _run_slow(
    found: list[Shard],
    faults: Faults,
    oracle: ServiceOracle,
    how: tuple[int, Connect],
    report: SlowReport,
) -> None:
    for shard in found:
        shard.start()
    for shard in found:
        shard.wait_until_ready()
    create_tables(found)
    addresses = [shard.address for shard in found]
    attempts, make = how
    with closing(make(addresses, "both")) as remote, connect(addresses, "one") as other:
        pushing = Pushing(remote, oracle)
        pushing.start()
        for _ in range(attempts):
            slower, slow_pushes = _attempt((remote, other), oracle, faults, report)
            report.slower.append(slower)
            report.slow_pushes = max(report.slow_pushes, slow_pushes)
            report.delays = faults["delays"]
            if slower <= MOST_SLOWER and not report.missing():
                break
        _flood(pushing, faults)
    report.most_waiting_bytes = pushing.most_waiting_bytes
    _judge(report, pushing)


def _flood(pushing: Pushing, faults: Faults) -> None:
    """The last stretch."""
    faults["delay_us"] = DELAY_US
    pushing.pace_seconds = 0.0
    began = time.monotonic()
    while time.monotonic() < began + FLOOD_SECONDS or (
        WINDOW_BYTES * 8 < pushing.most_waiting_bytes <= MOST_WAITING
        and time.monotonic() < began + LONGEST_FLOOD
    ):
        time.sleep(0.01)
    faults["delay_us"] = 0
    pushing.end()


def _judge(report: SlowReport, pushing: Pushing) -> None:
    if pushing.error is not None:
        report.violations.append(f"a push failed: {pushing.error}")
    if min(report.slower) > MOST_SLOWER:
        report.violations.append(f"a slow shard makes pulls of the other {report.slower} as slow")
    if report.most_waiting_bytes > MOST_WAITING:
        report.violations.append(f"{report.most_waiting_bytes} bytes were waiting")
