"""A shard that dies between any two of its steps, and what is left of it; clients that go on.

Above it: the tests of the shard. Below it: Shard over tiny tiers, the twin of the update log, the
oracle of tests/torture. A death is an exception out of the n-th step: a call to the store or the
log that changes something, or the replacing of the file HISTORY. From then on every such call
raises it, so that no `finally` does what a dead process could not have done.
"""

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import hps
from hps.errors import FencedError, GapError, HpsError
from hps.parameter_server.opening import Tiers
from hps.parameter_server.server import ParameterServer
from hps.service.shard.answers import Ack, Terms
from hps.service.shard.shard import Identity, Shard, ShardOptions
from hps.ssd_store import SsdStore
from hps.update_log import epoch as epoch_file
from tests.torture.oracle import NUM_CLIENTS, Oracle, OracleViolation, tables
from tests.twins.update_log import TwinLogDisk, TwinUpdateLog

DRAM_BYTES = 22_000  # two buckets a table, 128 rows, of the oracle's 1600 keys
_STORE_STEPS = ("append", "erase", "checkpoint", "restore", "delete_checkpoint")
_LOG_STEPS = ("append", "take_back", "wait", "cut", "close")


class Death(BaseException):
    """The process has died."""


class Steps:
    """Counts what a process does, and ends it at a step.

    Args:
        dies_at: number of the step, from 1; 0 is never.
        aim: only steps with this in their names are counted.
    """

    def __init__(self, dies_at: int = 0, aim: str = "") -> None:
        self.dies_at, self.aim = dies_at, aim
        self.count = 0
        self.is_dead = False
        self.last = ""
        self._lock = threading.Lock()

    def take(self, name: str) -> None:
        """One step more."""
        with self._lock:
            if not self.is_dead and self.aim in name:
                self.count += 1
                self.last = name
                self.is_dead = self.count == self.dies_at
            if self.is_dead:
                raise Death(name)


class Stepping:
    """A store or a log, of which each call that changes something is a step, before and after."""

    def __init__(self, inner: Any, steps: Steps, kind: str, names: tuple[str, ...]) -> None:
        self.inner, self.steps, self.kind, self.names = inner, steps, kind, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in self.names:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self.steps.take(f"before {self.kind}.{name}")
            result = found(*arguments, **options)
            self.steps.take(f"after {self.kind}.{name}")
            return result

        return call


class ShardLab:
    """One served store, opened again and again.

    Args:
        folder: for the store.
        seed: of deaths and of the log's moods.
        gpu: a gpu_cache on the host above the dram_cache.
        options: of the shard.
    """

    def __init__(self, folder: Path, seed: int = 0, gpu: bool = False, **options: Any) -> None:
        self.chance = random.Random(seed)
        self.logs = TwinLogDisk(seed)
        self.open_log: Any = self.logs.open
        self.options = ShardOptions(**{"log_bytes": 40_000, **options})
        self.steps = Steps()
        self.shard: Shard | None = None
        self.config = hps.Config(
            path=folder / "store",
            tables=tables(),
            dram=hps.DramCacheConfig(bytes=DRAM_BYTES),
            gpu=hps.GpuCacheConfig(bytes=60_000, device="cpu") if gpu else None,
            ssd=hps.SsdStoreConfig(segment_bytes=2**16),
            threads=1,
        )
        self._stores: list[Any] = []
        self._opened: list[Any] = []

    def tiers(self) -> Tiers:
        """Store and log, each call of which is a step of the life that is lived now."""
        return Tiers(open_store=self._open_store, open_log=self._open_log)

    def _open_store(self, *arguments: Any, **options: Any) -> Any:
        self._stores.append(SsdStore.open(*arguments, **options))
        return Stepping(self._stores[-1], self.steps, "store", _STORE_STEPS)

    def _open_log(self, *arguments: Any) -> Any:
        self.steps.take("before log.open")
        self._opened.append(self.open_log(*arguments))
        return Stepping(self._opened[-1], self.steps, "log", _LOG_STEPS)

    def open(self, dies_at: int = 0, aim: str = "") -> Shard:
        """A new life, which may end while it opens."""
        self.steps = Steps(dies_at, aim)
        self.shard = Shard(self.config, self.options, _tiers=self.tiers())
        return self.shard

    def embedded(self, **changes: Any) -> ParameterServer:
        """The store opened by ParameterServer."""
        self.steps = Steps()
        return ParameterServer(hps_config(self.config, **changes), _tiers=self.tiers())

    def kill(self) -> None:
        """What lies on disk is all that is left."""
        with self.steps._lock:
            self.steps.is_dead = True
        if self.shard is not None:
            with suppress(Death, HpsError):
                self.shard.parts.store.checkpointer.stop()
            self.shard = None
        for log in self._opened:
            if isinstance(log, TwinUpdateLog):
                log.crash(self.chance)
            else:
                log.close()  # as a kill that lets the log's thread finish
        for store in self._stores:
            store.close()
        self._opened.clear()
        self._stores.clear()
        self.steps = Steps()


def hps_config(config: hps.Config, **changes: Any) -> hps.Config:
    """A config with other fields."""
    fields = ("path", "tables", "dram", "gpu", "ssd", "seed", "threads")
    return hps.Config(**{**{name: getattr(config, name) for name in fields}, **changes})


def patch_history(monkeypatch: Any, lab: ShardLab) -> None:
    """Makes the replacing of HISTORY a step, too."""
    inner = epoch_file.replace_durably

    def replace(path: Path, data: bytes) -> None:
        lab.steps.take("before HISTORY")
        inner(path, data)
        lab.steps.take("after HISTORY")

    monkeypatch.setattr(epoch_file, "replace_durably", replace)


class TestClient:
    """Client w of the oracle: batch k is mutation 2k - 1 (table sgd) and 2k (table adagrad).

    Args:
        number: w.
        seed: of what it does besides pushing.
    """

    __test__ = False

    def __init__(self, number: int, oracle: Oracle, seed: int) -> None:
        self.number, self.oracle = number, oracle
        self.name = f"client-{number}"
        self.chance = random.Random(seed * 31 + number)
        self.incarnation: int | None = None
        self.sent = 0  # highest sequence that was ever sent
        self.acknowledged = 0  # highest that a kill may not lose
        self.next = 1
        self.repeats = self.gaps = self.went_back = 0
        self.errors: list[BaseException] = []

    def connect(self, shard: Shard) -> None:
        """Opens or goes on with the session; the shard's mark says where to go on."""
        is_new = self.incarnation is None or self.chance.random() < 0.3
        try:
            session = shard.open_session(self.name, None if is_new else self.incarnation)
        except FencedError:  # a newer one was logged, and the shard died before it said so
            session = shard.open_session(self.name)
        self.incarnation = session.incarnation
        mark = session.marks.applied
        if not self.acknowledged <= mark <= self.sent:
            raise OracleViolation(
                f"{self.name} is at {mark}; acknowledged {self.acknowledged}, sent {self.sent}"
            )
        self.went_back += mark < self.next - 1
        self.next = mark + 1

    def push(self, shard: Shard, sequence: int, terms: Terms) -> Any:
        """The mutation of a sequence, which is a pure function of it."""
        table = "sgd" if sequence % 2 else "adagrad"
        places = self.oracle.places(self.number, (sequence + 1) // 2)
        if table == "adagrad":
            places = np.unique(places)
        assert self.incarnation is not None
        identity = Identity(self.name, self.incarnation, sequence)
        grads = self.oracle.gradients(self.number, places)
        self.sent = max(self.sent, sequence)
        return shard.push(identity, table, self.oracle.keys[places], grads, terms=terms)

    def work(self, shard: Shard, count: int) -> None:
        """Pushes, and sometimes pushes again, or too early."""
        for _ in range(count):
            ack = self.chance.choice([Ack.MEMORY, Ack.LOGGED, Ack.LOGGED, Ack.DURABLE])
            terms = Terms(ack, 30.0)
            applied = self.push(shard, self.next, terms)
            if applied.is_repeat:
                raise OracleViolation(f"{self.name}: {self.next} was said to be a repeat")
            if ack != Ack.MEMORY:
                self.acknowledged = max(self.acknowledged, self.next)
            marks = applied.marks
            if not marks.durable <= marks.logged <= marks.applied == self.next:
                raise OracleViolation(f"{self.name}: {marks} at {self.next}")
            if {Ack.LOGGED: marks.logged, Ack.DURABLE: marks.durable}.get(ack, self.next) < (
                self.next
            ):
                raise OracleViolation(f"{self.name}: {marks} acknowledges {self.next} as {ack}")
            self.next += 1
            if self.chance.random() < 0.2:
                old = self.chance.randint(max(1, self.next - 5), self.next - 1)
                if not self.push(shard, old, terms).is_repeat:
                    raise OracleViolation(f"{self.name}: {old} came twice and was applied twice")
                self.repeats += 1
            if self.chance.random() < 0.05:
                self._push_too_early(shard)

    def _push_too_early(self, shard: Shard) -> None:
        sent = self.sent
        try:
            self.push(shard, self.next + 1, Terms(Ack.MEMORY, 0.05))
        except GapError as error:
            if error.mark != self.next - 1:
                raise OracleViolation(f"{self.name}: a gap said mark {error.mark}") from error
            self.gaps += 1
            self.sent = sent
        else:
            raise OracleViolation(f"{self.name}: a gap was passed over")

    def live(self, shard: Shard, count: int) -> None:
        """work() as a thread; what it raises is kept, but for a death."""
        try:
            self.work(shard, count)
        except Death:
            return
        except BaseException as error:
            self.errors.append(error)


def run_together(workers: list[Callable[[], None]]) -> None:
    """Each in a thread of its own, until all have ended."""
    threads = [threading.Thread(target=worker) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def check_rows(shard: Any, oracle: Oracle, marks: list[int]) -> None:
    """The rows of both tables are those of exactly these marks, client by client.

    Raises:
        OracleViolation: they are not.
    """
    limits = np.array([mark // 2 + 2 for mark in marks])
    for name, expected in (
        ("sgd", [(mark + 1) // 2 for mark in marks]),
        ("adagrad", [mark // 2 for mark in marks]),
    ):
        found = oracle.find_in(shard, name, limits)
        if list(found) != expected:
            raise OracleViolation(f"{name} is at {found}, the marks say {expected}")


def make_clients(oracle: Oracle, seed: int) -> list[TestClient]:
    """One for each column of the oracle."""
    return [TestClient(number, oracle, seed) for number in range(NUM_CLIENTS)]
