"""A trained model over many rows, where it is published, and a model that follows.

Above it: publishing_bench.py. Below it: hps.train, hps.Model. Most rows are assigned, not trained:
what is published of a row does not depend on how it came to be.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import numpy as np

import hps
from hps.contracts.training import TrainingServer
from hps.generate import GeneratorConfig
from hps.generate.log import LogWriter
from hps.parameter_server.server import ParameterServer
from hps.train import TrainOptions, train
from hps.train.model import Model

_PIECE = 1 << 18


class Trained:
    """A store of DeepFM over 26 features, of many rows.

    Args:
        folder: for log and store.
        num_rows: of its table.
        dim: of an embedding.
    """

    def __init__(self, folder: Path, num_rows: int, dim: int) -> None:
        log, path = folder / "log.tsv", folder / "store"
        LogWriter(GeneratorConfig(examples=20_000, keys=50_000), "criteo", 1).write(log)
        train(TrainOptions(data=[log], store=path, dim=dim, dram="256MiB"))
        (folder / "rows.txt").write_text(f"{num_rows} {dim}")
        self._take(folder)
        with self.opened() as server:
            for first in range(0, num_rows, _PIECE):
                keys = self.keys[first : first + _PIECE]
                server.assign(self.table, keys, self._values(len(keys)))
            self.save(server)

    @classmethod
    def again(cls, folder: Path) -> Self:
        """One that was made before."""
        made = cls.__new__(cls)
        made._take(folder)
        return made

    def _take(self, folder: Path) -> None:
        self.log, self.path = folder / "log.tsv", folder / "store"
        num_rows, dim = map(int, (folder / "rows.txt").read_text().split())
        self.keys = np.arange(num_rows, dtype=np.uint64) << np.uint64(20)
        self._dram = int(1.4 * num_rows * (4 * dim + 96)) + (64 << 20)
        self._random = np.random.default_rng(1)
        with hps.open(self.path) as server:
            (self.table,) = server.tables
            self.dim = server.tables[self.table].dim

    @contextmanager
    def opened(self) -> Iterator[ParameterServer]:
        """For training on."""
        with hps.open(self.path, read_only=False, dram=self._dram) as server:
            yield server

    def save(self, server: ParameterServer) -> None:
        """A checkpoint of the rows, with the dense part that is there."""
        model, reader = server.checkpoint_state()
        server.checkpoint(model=model, reader=reader)

    def touch(self, server: TrainingServer, count: int) -> None:
        """Changes so many rows."""
        places = self._random.integers(0, len(self.keys), count)
        grads = self._values(count)
        server.push(self.table, self.keys[places], grads)  # type: ignore[attr-defined]

    def _values(self, count: int) -> np.ndarray:
        return self._random.standard_normal((count, self.dim), dtype=np.float32)


class Asker:
    """Asks a model for scores of 200 candidates, again and again, from a thread.

    Attributes:
        seconds: of each call.
        first_seen: version -> when a call was first scored by it, by `time.perf_counter`.
    """

    def __init__(self, model: Model, batch: hps.Batch) -> None:
        self._model, self._batch = model, batch
        self.seconds: list[float] = []
        self.first_seen: dict[str, float] = {}
        self.error: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        try:
            while not self._over.is_set():
                started = time.perf_counter()
                _, version = self._model.predict_with_version(self._batch)
                now = time.perf_counter()
                self.seconds.append(now - started)
                self.first_seen.setdefault(version, now)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> "Asker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error
