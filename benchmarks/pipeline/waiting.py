"""A pipeline whose stages mostly wait: real files and buffers, each held to a given rate.

Above it: pipeline_bench.py. Below it: hps.Pipeline over a server whose store, whose copies upwards
and whose log are slowed down to a rate by sleeping, as a disk or a bus would let them wait.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.keys import hashed_keys
from hps.parameter_server.opening import Tiers
from hps.ssd_store import open_store

TABLE = hps.TableConfig(name="rows", dim=16, optimizer=hps.Adagrad(lr=0.05))
ROW_BYTES = 144
BATCH_KEYS = 2000
NUM_KEYS = 60_000
_FILLING = 8  # batches at the beginning that are not timed


@dataclass(frozen=True)
class Waits:
    """Seconds a batch that each stage takes at least."""

    network: float
    fetch: float
    copy: float
    compute: float


@contextlib.contextmanager
def lasting(seconds: float) -> Iterator[None]:
    """A block that takes at least so long."""
    end = time.perf_counter() + seconds
    yield
    time.sleep(max(0.0, end - time.perf_counter()))


class SlowStore:
    """The ssd_store, its reads at a rate."""

    def __init__(self, store: Any, seconds: float) -> None:
        self._store = store
        self.seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def fetch(self, table: str, keys: Any, rows: Any, found: Any) -> None:
        """Reads, then waits."""
        with lasting(self.seconds):
            self._store.fetch(table, keys, rows, found)


class Loop:
    """A store whose rows all lie on SSD, and a log of keys in a file."""

    def __init__(self, folder: Path, num_batches: int) -> None:
        self.folder = folder
        self.num_batches = num_batches
        generator = np.random.default_rng(0)
        self._keys = hashed_keys(np.arange(NUM_KEYS))
        draws = [
            generator.choice(self._keys, BATCH_KEYS, replace=False) for _ in range(num_batches)
        ]
        np.concatenate(draws).tofile(folder / "log")
        with self._server() as (server, _):
            for first in range(0, NUM_KEYS, BATCH_KEYS):
                server.pull(TABLE.name, self._keys[first : first + BATCH_KEYS], create=True)
            server.checkpoint()

    @contextlib.contextmanager
    def _server(self) -> Iterator[tuple[Any, list[SlowStore]]]:
        stores: list[SlowStore] = []

        def slow(*args: Any, **options: Any) -> Any:
            stores.append(SlowStore(open_store(*args, **options), 0.0))
            return stores[-1]

        # Room for six batches in either cache: depth 2 needs three, and rows never stay long.
        budget = 8 * BATCH_KEYS * ROW_BYTES
        config = hps.Config(
            path=self.folder / "store",
            tables=[TABLE],
            dram=hps.DramCacheConfig(bytes=budget),
            gpu=hps.GpuCacheConfig(bytes=budget, device="cpu"),
            threads=1,
        )
        with hps.ParameterServer(config, _tiers=Tiers(open_store=slow)) as server:
            yield server, stores

    def _log(self, seconds: float) -> Iterator[hps.Batch]:
        with (self.folder / "log").open("rb") as file:
            for number in range(self.num_batches):
                with lasting(seconds):
                    keys = np.frombuffer(file.read(8 * BATCH_KEYS), np.int64)
                    ids = hps.Ids(torch.from_numpy(keys.copy()), torch.arange(BATCH_KEYS + 1))
                yield hps.Batch(
                    {TABLE.name: ids},
                    torch.zeros(BATCH_KEYS, 0),
                    torch.ones(BATCH_KEYS),
                    {"batch": number},
                )

    def run(self, depth: int, waits: Waits) -> tuple[float, dict[str, float]]:
        """Seconds a batch, and busy seconds a batch by stage."""
        with self._server() as (server, stores):
            stores[0].seconds = waits.fetch
            pin = server.pin

            def slow_pin(table: str, keys: Any) -> Any:
                with lasting(waits.copy):
                    return pin(table, keys)

            server.pin = slow_pin
            embedding, optimizer = hps.SparseEmbedding(server, TABLE.name), hps.RowOptimizer(server)
            start, before = 0.0, {}
            with hps.Pipeline(self._log(waits.network), server, depth) as batches:
                for number, batch in enumerate(batches):
                    if number == _FILLING:
                        start, before = time.perf_counter(), batches.seconds()
                    with lasting(waits.compute):
                        embedding(batch).sum().backward()
                        optimizer.step()
                seconds, after = time.perf_counter() - start, batches.seconds()
        timed = self.num_batches - _FILLING
        busy = {
            stage: (times["busy_seconds"] - before[stage]["busy_seconds"]) / timed
            for stage, times in after.items()
        }
        return seconds / timed, busy


def overhead_seconds(depth: int, num_batches: int) -> float:
    """Seconds a batch of one key, all in DRAM, no work in any stage but what cannot be left out."""
    ids = hps.Ids(torch.tensor([7]), torch.tensor([0, 1]))
    batch = hps.Batch({TABLE.name: ids}, torch.zeros(1, 0), torch.ones(1))
    with tempfile.TemporaryDirectory() as folder:
        config = hps.Config(path=folder, tables=[TABLE], threads=1)
        with (
            hps.ParameterServer(config) as server,
            hps.Pipeline((batch for _ in range(num_batches)), server, depth) as batches,
        ):
            start = time.perf_counter()
            for _ in batches:
                pass
            return (time.perf_counter() - start) / num_batches
