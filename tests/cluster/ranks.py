"""Logical ranks for tests: a thread each, a watchdog over all, and a small model to train on them.

Above it: the tests of hps/cluster. Below it: hps.cluster.world.local_world, the public names of
hps.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hps
from hps.cluster.world.local_world import LocalWorld, local_worlds
from tests.lab import Lab, table

PATIENCE_SECONDS = 30.0


@dataclass
class Failure:
    """What a rank raised."""

    error: BaseException


def run_ranks(
    size: int, body: Callable[[LocalWorld], Any], timeout_seconds: float = PATIENCE_SECONDS
) -> list[Any]:
    """What `body` returns on each rank, or a Failure where it raised; nobody hangs.

    Args:
        timeout_seconds: of the ranks' collectives; the watchdog waits longer than twice that.
    """
    results: list[Any] = [None] * size

    def run(world: LocalWorld) -> None:
        try:
            results[world.rank] = body(world)
        except BaseException as error:
            results[world.rank] = Failure(error)

    threads = [
        threading.Thread(target=run, args=(world,), name=f"rank {world.rank}", daemon=True)
        for world in local_worlds(size, timeout_seconds)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * timeout_seconds + PATIENCE_SECONDS)
    stuck = [thread for thread in threads if thread.is_alive()]
    if stuck:
        frames = sys._current_frames()
        where = "\n".join(
            f"{thread.name}:\n" + "".join(traceback.format_stack(frames[thread.ident]))
            for thread in threading.enumerate()
            if thread.ident in frames and thread is not threading.current_thread()
        )
        pytest.fail(f"{[thread.name for thread in stuck]} hang\n{where}")
    return results


def successes(results: list[Any]) -> list[Any]:
    """The results, where no rank raised; else the first error that is not of another rank."""
    errors = [result.error for result in results if isinstance(result, Failure)]
    for error in sorted(errors, key=lambda error: isinstance(error, hps.ClusterError)):
        raise error
    return results


# Threads of tests before this one in the same process, some of which wait for ever on purpose.
EARLIER: set[threading.Thread] = set()


def stage_threads() -> list[str]:
    """Pipelines' threads that live, of this test."""
    own = set(threading.enumerate()) - EARLIER
    return [thread.name for thread in own if thread.name.startswith("hps ")]


TABLES = ("users", "ads")
ADAGRAD = hps.Adagrad(lr=0.1, initial_accumulator_value=0.1)


@dataclass(frozen=True)
class Task:
    """What is trained: global batches from a seed, over two tables.

    Args:
        seed: of the batches.
        num_batches: of the log.
        num_examples: of a global batch, at most.
        optimizer: of both tables.
        accumulate: batches a step.
        kind: of tiers, as tests.lab.Lab takes it.
        scale: the caches' budgets, in the smallest there are.
        options: of the cluster.
    """

    seed: int = 1
    num_batches: int = 8
    num_examples: int = 40
    num_keys: int = 120
    optimizer: Any = ADAGRAD
    accumulate: int = 1
    kind: str = "native"
    scale: float = 4.0
    options: hps.ClusterConfig | None = None

    def tables(self) -> list[hps.TableConfig]:
        """Two tables of one kind."""
        return [table(self.optimizer, name=name, dim=4) for name in TABLES]

    def batches(self, rank: int = 0, size: int = 1) -> Iterator[hps.Batch]:
        """A rank's contiguous part of each global batch; some parts are empty."""
        generator = np.random.default_rng(self.seed)
        for number in range(self.num_batches):
            # A batch of fewer examples than ranks leaves some without any.
            most = 2 if number == 2 else self.num_examples
            num_examples = int(generator.integers(1, most))
            first, end = rank * num_examples // size, (rank + 1) * num_examples // size
            features = {}
            for name in TABLES:
                lengths = generator.integers(0, 4, num_examples)
                offsets = np.concatenate([[0], np.cumsum(lengths)])
                keys = generator.integers(0, self.num_keys, offsets[-1]).astype(np.uint64)
                keys = (keys * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
                own = torch.from_numpy(keys[offsets[first] : offsets[end]].copy())
                bags = torch.from_numpy(offsets[first : end + 1] - offsets[first])
                features[name] = hps.Ids(own, bags)
            labels = torch.from_numpy(generator.random(num_examples).round().astype("f"))
            dense = torch.full((end - first, 1), float(num_examples))
            yield hps.Batch(features, dense, labels[first:end], {"batch": number + 1})


class Model:
    """Two embeddings and fixed dense weights: what changes are rows."""

    def __init__(self, server: Any, size: int = 1) -> None:
        self._size = size
        self._embeddings = [hps.SparseEmbedding(server, name) for name in TABLES]
        generator = torch.Generator().manual_seed(5)
        weights = torch.randn(4 * len(TABLES), generator=generator)
        self._weights = weights.to(server.device)

    def loss(self, batch: hps.Batch) -> torch.Tensor:
        """The rank's part of the global batch's mean loss, times the ranks."""
        rows = torch.cat([embedding(batch) for embedding in self._embeddings], dim=1)
        logits = (rows * self._weights).sum(dim=1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels, reduction="sum"
        )
        num_examples = float(batch.dense[0, 0]) if len(batch) else 1.0
        return loss * (self._size / num_examples)


@contextmanager
def cluster_server(task: Task, world: LocalWorld, folder: Path) -> Iterator[Any]:
    """A rank's server, without folders of a cluster."""
    own = folder / f"rank-{world.rank}"
    own.mkdir(parents=True, exist_ok=True)
    with (
        Lab(task.kind, own).server(*task.tables(), scale=task.scale) as local,
        hps.ClusterParameterServer.over(local, world, task.options) as server,
    ):
        yield server


def train(server: Any, task: Task, depth: int, rank: int = 0, size: int = 1) -> list[float]:
    """Trains to the end of the log; the rank's losses."""
    model, optimizer, losses = Model(server, size), hps.RowOptimizer(server), []
    num_gathered = 0
    with hps.Pipeline(task.batches(rank, size), server, depth, task.accumulate) as batches:
        for batch in batches:
            loss = model.loss(batch)
            loss.backward()
            losses.append(loss.item())
            num_gathered += 1
            if num_gathered == task.accumulate:
                optimizer.step()
                num_gathered = 0
        if num_gathered:
            optimizer.step()
    return losses


@dataclass
class Outcome:
    """What all ranks came to: rows by table and key, digests, evictions."""

    rows: dict[str, dict[int, Any]]
    digests: dict[str, str]
    evictions: int
    losses: list[list[float]]


def rows_of(server: Any) -> dict[str, dict[int, Any]]:
    """This rank's rows and state: table -> key -> float32 vector."""
    found: dict[str, dict[int, Any]] = {}
    for name in server.tables:
        found[name] = {
            int(key): np.concatenate([row, state])
            for keys, rows, states in server.items(name, state=True)
            for key, row, state in zip(keys, rows, states, strict=True)
        }
    return found


def train_ranks(task: Task, size: int, depth: int, folder: Path) -> Outcome:
    """Trains a task on ranks that are threads; the whole table afterwards."""

    def body(world: LocalWorld) -> Any:
        with cluster_server(task, world, folder / f"{size}-ranks") as server:
            losses = train(server, task, depth, world.rank, size)
            assert server.pins == 0 and server.num_open_pipelines == 0
            digests = {name: server.digest(name) for name in TABLES}
            counts = {name: server.num_rows(name) for name in TABLES}
            evictions = sum(
                tier["evictions"]
                for name, tier in server.stats().items()
                if name in ("dram_cache", "gpu_cache")
            )
            return rows_of(server), digests, counts, evictions, losses

    results = successes(run_ranks(size, body))
    rows: dict[str, dict[int, Any]] = {name: {} for name in TABLES}
    for own, *_ in results:
        for name in TABLES:
            assert not rows[name].keys() & own[name].keys()  # a key has one owner
            rows[name].update(own[name])
    _, digests, counts, *_ = results[0]
    assert all(result[1] == digests and result[2] == counts for result in results)
    assert counts == {name: len(rows[name]) for name in TABLES}
    evictions = sum(result[3] for result in results)
    return Outcome(rows, digests, evictions, [result[4] for result in results])


def train_alone(task: Task, folder: Path) -> Outcome:
    """The same on one ParameterServer."""
    folder.mkdir(parents=True, exist_ok=True)
    with Lab(task.kind, folder).server(*task.tables(), scale=task.scale) as server:
        losses = train(server, task, depth=0)
        digests = {name: server.digest(name) for name in TABLES}
        return Outcome(rows_of(server), digests, 0, [losses])


def largest_difference(one: Outcome, other: Outcome) -> float:
    """Between two tables of the same keys, over all floats of their rows."""
    largest = 0.0
    for name in TABLES:
        assert one.rows[name].keys() == other.rows[name].keys()
        for key, row in one.rows[name].items():
            largest = max(largest, float(np.abs(row - other.rows[name][key]).max()))
    return largest
