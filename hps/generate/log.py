"""Writes a generated log: blocks of examples made by threads, written in order.

Above it: `hps generate`. Below it: kernels.py, planted.py, hps.metrics for the planted model's own
figures. Which thread makes a block changes nothing, so a log depends on its config alone.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import numpy.typing as npt

from hps.common.json_text import Json
from hps.errors import ConfigError
from hps.generate import kernels
from hps.generate.config import FORMATS, GeneratorConfig
from hps.generate.planted import make_block, plant
from hps.metrics import BinaryMetrics

BLOCK_EXAMPLES = 4096
ROW_GROUP_EXAMPLES = 1 << 16
Formatter = Callable[[kernels.PlantedModel, kernels.Block, npt.NDArray[np.uint8]], int]
FORMATTERS: dict[str, Formatter] = {
    "criteo": kernels.write_criteo,
    "libsvm": lambda model, block, text: kernels.write_weighted(model, block, text, False),
    "libffm": lambda model, block, text: kernels.write_weighted(model, block, text, True),
    "slots": kernels.write_slots,
}

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A run of examples that goes to one file."""

    path: Path
    first: int
    count: int


class LogWriter:
    """Writes logs of one config in one format.

    Args:
        config: what the log looks like.
        log_format: one of hps.generate.FORMATS.
        num_threads: threads that make blocks.

    Raises:
        ConfigError: an unknown format.
    """

    def __init__(self, config: GeneratorConfig, log_format: str, num_threads: int) -> None:
        if log_format not in FORMATS:
            raise ConfigError(f"generate: format={log_format!r} must be one of {FORMATS}")
        self.config = config
        self.log_format = log_format
        self.num_threads = num_threads
        started = time.perf_counter()
        self.model = plant(config)
        self._make_text(0, 1)
        self.compile_seconds = time.perf_counter() - started

    def write(self, path: Path, progress: Callable[[int], None] | None = None) -> Json:
        """Writes the log and, beside it, PATH.json with its figures, which are returned."""
        return self._write(Part(path, 0, self.config.examples), progress)

    def write_test(self, path: Path) -> Json:
        """Writes the held-out part: the examples that follow the log's last one."""
        return self._write(Part(path, self.config.examples, self.config.test_examples), None)

    def _write(self, part: Part, progress: Callable[[int], None] | None) -> Json:
        started = time.perf_counter()
        metrics = BinaryMetrics()
        seen = np.zeros(self.config.keys, np.uint8)
        part.path.parent.mkdir(parents=True, exist_ok=True)
        if self.log_format == "parquet":
            self._write_parquet(part, metrics, seen, progress)
        else:
            with part.path.open("wb") as file:
                self._write_text(file, part, (metrics, seen), progress)
        seconds = time.perf_counter() - started
        best = metrics.compute()
        num_bytes = part.path.stat().st_size
        figures = {
            "path": part.path.name,
            "format": self.log_format,
            "config": asdict(self.config),
            "examples": part.count,
            "clicks": best["positives"],
            "distinct_keys": int(np.count_nonzero(seen)),
            "best_auc": best["auc"],
            "best_logloss": best["logloss"],
            "bytes": num_bytes,
            "seconds": seconds,
            "compile_seconds": self.compile_seconds,
            "keys_per_second": part.count * self.config.features / seconds,
            "megabytes_per_second": num_bytes / seconds / 1e6,
        }
        Path(f"{part.path}.json").write_text(json.dumps(figures, indent=1) + "\n")
        return figures

    def _write_text(
        self,
        file: IO[bytes],
        part: Part,
        sinks: tuple[BinaryMetrics, npt.NDArray[np.uint8]],
        progress: Callable[[int], None] | None,
    ) -> None:
        metrics, seen = sinks

        def make(first: int, count: int) -> tuple[kernels.Block, memoryview]:
            block, text = self._make_text(first, count)
            kernels.mark_seen(self.model, block.ids, seen)
            return block, text

        done = 0
        for block, text in self._in_order(make, part, BLOCK_EXAMPLES):
            file.write(text)
            metrics.update(block.logits, block.labels)
            done += len(block.labels)
            if progress is not None:
                progress(done)

    def _make_text(self, first: int, count: int) -> tuple[kernels.Block, memoryview]:
        block = self._draw(first, count)
        if self.log_format == "parquet":
            return block, memoryview(b"")
        # A generous bound for every format: names, two numbers and separators a column.
        line_bytes = 64 + 52 * self.config.dense + 40 * self.config.features
        text = np.empty(count * line_bytes, np.uint8)
        num_bytes = FORMATTERS[self.log_format](self.model, block, text)
        return block, text[:num_bytes].data

    def _draw(self, first: int, count: int) -> kernels.Block:
        block = make_block(count, self.config.features, self.config.dense)
        kernels.draw_examples(self.model, first, block, np.empty((count, 3)))
        return block

    def _in_order(
        self, make: Callable[[int, int], T], part: Part, block_examples: int
    ) -> Iterator[T]:
        """The blocks of a part, made ahead by the threads, given in order."""
        end = part.first + part.count
        waiting: deque[Future[T]] = deque()
        with ThreadPoolExecutor(self.num_threads) as pool:
            for first in range(part.first, end, block_examples):
                waiting.append(pool.submit(make, first, min(block_examples, end - first)))
                if len(waiting) > 2 * self.num_threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _write_parquet(
        self,
        part: Part,
        metrics: BinaryMetrics,
        seen: npt.NDArray[np.uint8],
        progress: Callable[[int], None] | None,
    ) -> None:
        """Columns label (int8), I1.. (float32, log1p of the count, 0 if missing) and C1.. (int64,
        the 64 bits of the key)."""
        import pyarrow
        import pyarrow.parquet

        dense_names = [f"I{column + 1}" for column in range(self.config.dense)]
        key_names = [f"C{feature + 1}" for feature in range(self.config.features)]
        fields = [pyarrow.field("label", pyarrow.int8())]
        fields += [pyarrow.field(name, pyarrow.float32()) for name in dense_names]
        fields += [pyarrow.field(name, pyarrow.int64()) for name in key_names]
        schema = pyarrow.schema(fields)

        def make(first: int, count: int) -> tuple[kernels.Block, pyarrow.Table]:
            block = self._draw(first, count)
            kernels.mark_seen(self.model, block.ids, seen)
            keys = np.empty(block.ids.shape, np.uint64)
            kernels.fill_keys(self.model, block.ids, keys)
            dense = np.log1p(np.maximum(block.dense, 0)).astype(np.float32)
            arrays = [block.labels.astype(np.int8), *dense.T, *keys.view(np.int64).T]
            columns = [pyarrow.array(np.ascontiguousarray(array)) for array in arrays]
            return block, pyarrow.Table.from_arrays(columns, schema=schema)

        done = 0
        with pyarrow.parquet.ParquetWriter(part.path, schema) as writer:
            for block, table in self._in_order(make, part, ROW_GROUP_EXAMPLES):
                writer.write_table(table)
                metrics.update(block.logits, block.labels)
                done += len(block.labels)
                if progress is not None:
                    progress(done)
