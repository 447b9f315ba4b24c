"""Recipe C6: readers in threads. Any number of threads read through the same objects, and each gets
what one alone would get.

Above it: test_readers.py, run.py. Below it: the front end over each kind of server, with caches so
small that reads move rows. Questions are asked once, in turn; then threads ask them again, all at
once, of the same modules, pinned batches and servers, beside a thread that changes, checkpoints and
erases other keys. Every answer must be the first one, bit for bit, and stay so while it is held.
"""

import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hps
from tests.lab import Lab
from tests.service.client.client_lab import service
from tests.torture.scratch import scratch_folder

KINDS = ("native", "gpu", "rocksdb", "read-only", "one shard", "two shards")
PLANT = "shared-output"
_READ_KEYS = 600  # that readers ask for; a writer changes those from here on
_WRITTEN_KEYS = 300
_QUESTIONS = 24
_ROUNDS = 3
_THREADS = 8
_TABLES = (
    hps.TableConfig(name="ads", dim=8, optimizer=hps.Adagrad(lr=0.1), features=["ads"]),
    hps.TableConfig(name="users", dim=5, optimizer=hps.SGD(lr=0.1), features=["users"]),
)


class SharedOutput(hps.SparseEmbedding):
    """The bug: one buffer for the outputs of all calls of a module."""

    def forward(self, *call: Any, **options: Any) -> torch.Tensor:
        found = super().forward(*call, **options)
        shared = self.__dict__.setdefault("shared", torch.empty(1 << 16))
        output: torch.Tensor = shared[: found.numel()].view(found.shape)
        return output.copy_(found)


@dataclass
class ReadersReport:
    """What a series met; `violations` must be empty."""

    runs: int = 0
    answers: int = 0
    changes: int = 0
    evictions: int = 0
    violations: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """What should have happened and has not: a series without it proves nothing."""
        return [name for name in ("answers", "changes", "evictions") if not getattr(self, name)]

    def __str__(self) -> str:
        return (
            f"readers in threads, {self.answers:,} answers beside {self.changes:,} changes and "
            f"{self.evictions:,} evictions"
        )


@dataclass
class Question:
    """What one read asks; `ask` may be called from any thread."""

    what: str
    ask: Callable[[], Any]
    expected: bytes = b""


def run_readers(seed: int, runs: int, plant: str = "") -> ReadersReport:
    """Runs of every kind in turn, drawn from seeds; with the planted bug until it is found."""
    report = ReadersReport()
    for number in range(seed, seed + runs):
        with scratch_folder() as folder:
            run_one(folder, KINDS[(number - seed) % len(KINDS)], number, report, plant)
        if plant and report.violations:
            break
    return report


def run_one(folder: Path, kind: str, seed: int, report: ReadersReport, plant: str = "") -> None:
    """One store of a kind, its readers and its writer."""
    generator = np.random.default_rng(seed)
    report.runs += 1
    with ExitStack() as stack:
        server = stack.enter_context(_server(folder, kind, generator))
        questions = _questions(server, generator, plant)
        for question in questions:
            question.expected = _bytes(question.ask())
        writer = None if kind == "read-only" else Writer(server, seed, is_remote="shard" in kind)
        _ask_in_threads(questions, writer, seed, report)
        report.evictions += server.stats()["dram_cache"]["evictions"]


def _ask_in_threads(
    questions: list[Question], writer: "Writer | None", seed: int, report: ReadersReport
) -> None:
    ended = threading.Event()
    failures: list[str] = []

    def read(number: int) -> None:
        order = random.Random(f"{seed} {number}")
        held = []
        try:
            for question in itertools.chain(*[_shuffled(questions, order)] * _ROUNDS):
                answer = question.ask()
                if _bytes(answer) != question.expected:
                    failures.append(f"{question.what}: another answer than alone")
                held.append((question, answer))
                held = held[-6:]
                if any(_bytes(answer) != old.expected for old, answer in held):
                    failures.append(f"{question.what}: changed an answer that was held")
        except Exception as error:
            failures.append(f"{question.what}: {type(error).__name__}: {error}")

    readers = [threading.Thread(target=read, args=(i,)) for i in range(_THREADS)]
    changing = threading.Thread(target=writer.run, args=(ended, failures)) if writer else None
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in [*readers, *([changing] if changing else [])]:
            thread.start()
        for thread in readers:
            thread.join()
    finally:
        ended.set()
        if changing is not None:
            changing.join()
        sys.setswitchinterval(interval)
    report.answers += _THREADS * _ROUNDS * len(questions)
    report.changes += writer.num_changes if writer else 0
    report.violations += failures


class Writer:
    """Changes keys that no reader asks for, until the readers have ended."""

    def __init__(self, server: Any, seed: int, *, is_remote: bool) -> None:
        self._server = server
        self._random = np.random.default_rng(seed)
        self._is_remote = is_remote
        self.num_changes = 0

    def run(self, ended: threading.Event, failures: list[str]) -> None:
        verbs = itertools.cycle([self._push, self._assign, self._create, self._erase])
        try:
            for verb in verbs:
                table = _TABLES[self.num_changes % 2]
                verb(table, self._keys(int(self._random.integers(1, 60))))
                self.num_changes += 1
                if self.num_changes % 16 == 8 and not self._is_remote:
                    self._server.checkpoint(tag="beside")
                if ended.is_set():
                    return
        except Exception as error:
            failures.append(f"the writer: {type(error).__name__}: {error}")

    def _keys(self, count: int) -> Any:
        keys = self._random.integers(_READ_KEYS, _READ_KEYS + _WRITTEN_KEYS, count)
        return keys.astype(np.uint64)

    def _push(self, table: hps.TableConfig, keys: Any) -> None:
        grads = self._random.standard_normal((len(keys), table.dim)).astype(np.float32)
        self._server.push(table.name, keys, grads)

    def _assign(self, table: hps.TableConfig, keys: Any) -> None:
        rows = self._random.standard_normal((len(keys), table.dim)).astype(np.float32)
        self._server.assign(table.name, keys, rows)

    def _create(self, table: hps.TableConfig, keys: Any) -> None:
        self._server.pull(table.name, keys, create=True)

    def _erase(self, table: hps.TableConfig, keys: Any) -> None:
        self._server.erase(table.name, keys)


@contextmanager
def _server(folder: Path, kind: str, generator: np.random.Generator) -> Iterator[Any]:
    """An open server of a kind, over rows that were pushed to."""
    if "shard" in kind:
        count = 1 if kind == "one shard" else 2
        with service(folder, count, _TABLES) as made, made.client() as client:
            _fill(client, generator)
            yield client
        return
    lab = Lab("native" if kind == "read-only" else kind, folder)
    with lab.server(*_TABLES, scale=1.2) as server:
        _fill(server, generator)
        if kind != "read-only":
            yield server
    if kind == "read-only":
        budget = lab.config(*_TABLES, scale=1.2).dram.bytes
        with lab.open(str(budget)) as server:
            yield server


def _fill(server: Any, generator: np.random.Generator) -> None:
    keys = np.arange(_READ_KEYS + _WRITTEN_KEYS, dtype=np.uint64)
    for table in _TABLES:
        for first in range(0, len(keys), 100):
            grads = generator.standard_normal((100, table.dim)).astype(np.float32)
            server.push(table.name, keys[first : first + 100], grads)


def _questions(server: Any, generator: np.random.Generator, plant: str) -> list[Question]:
    """Reads of every sort; those of one table and pooling go through one module."""
    modules = {}
    for table in _TABLES:
        for pooling in ("sum", "mean", None):
            kind = SharedOutput if plant else hps.SparseEmbedding
            modules[table.name, pooling] = kind(server, table.name, pooling).eval()
    questions = []
    for number in range(_QUESTIONS):
        table = _TABLES[number % 2]
        keys = torch.from_numpy(generator.integers(0, _READ_KEYS, int(generator.integers(4, 400))))
        if number % 3 == 0:
            questions.append(_pull(server, table, keys, has_out=number % 2 == 0))
        elif number % 3 == 1:
            module = modules[table.name, ("sum", "mean")[number % 2]]
            questions.append(_bags(module, keys, generator))
        else:
            questions.append(_batch(server, modules[table.name, None], keys, number))
    return questions


def _pull(server: Any, table: hps.TableConfig, keys: torch.Tensor, *, has_out: bool) -> Question:
    def ask() -> Any:
        server.num_rows(table.name)
        if not bool(server.contains(table.name, keys).all()):
            raise AssertionError("a key that nobody erased is gone")
        out = torch.empty(len(keys), table.dim) if has_out else None
        return server.pull(table.name, keys, out=out)

    return Question(f"pull of {len(keys)} keys", ask)


def _bags(
    module: hps.SparseEmbedding, keys: torch.Tensor, generator: np.random.Generator
) -> Question:
    """Two features of bags; every other time with weights."""
    num_bags = 2 * (1 + len(keys) // 8)
    inner = np.sort(generator.integers(0, len(keys) + 1, num_bags - 1))
    offsets = torch.from_numpy(np.concatenate([[0], inner, [len(keys)]]))
    is_weighted = bool(generator.integers(2))
    weights = torch.from_numpy(generator.random(len(keys), np.float32)) if is_weighted else None

    def ask() -> Any:
        with torch.no_grad():
            return module(keys, offsets, weights, num_features=2)

    return Question(f"{num_bags} bags of {module.table}", ask)


def _batch(server: Any, module: hps.SparseEmbedding, keys: torch.Tensor, number: int) -> Question:
    """One Batch object for all threads; every other time with pinned rows."""
    ids = hps.Ids(keys_L=keys, offsets=torch.arange(len(keys) + 1))
    batch = hps.Batch({module.table: ids}, torch.zeros(len(keys), 0), torch.ones(len(keys)))
    if number % 4 == 2:
        few = torch.arange(number, number + 3)
        batch.features = {module.table: hps.Ids(few, torch.arange(4))}
        batch.dense, batch.labels = torch.zeros(3, 0), torch.ones(3)
        batch.rows = {module.table: server.pin(module.table, few)}

    def ask() -> Any:
        with torch.no_grad():
            return module(batch)

    return Question(f"a batch of {module.table}", ask)


def _shuffled(questions: list[Question], order: random.Random) -> list[Question]:
    return order.sample(questions, len(questions))


def _bytes(answer: Any) -> bytes:
    return answer.numpy().tobytes() if isinstance(answer, torch.Tensor) else answer.tobytes()
