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
from hps.features.column import DENSE, Column
from hps.features.features import Features
from hps.generate import kernels
from hps.generate.config import BAG_FORMATS, FORMATS, GeneratorConfig
from hps.generate.planted import draw_block, plant
from hps.metrics import BinaryMetrics

BLOCK_EXAMPLES = 4096
ROW_GROUP_EXAMPLES = 1 << 16
# Of bags, by which blocks and row groups are smaller than the examples above.
BLOCK_VALUES = 1 << 18
ROW_GROUP_VALUES = 1 << 21
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


class Tally:
    """What the figures of a part are made of, block by block."""

    def __init__(self, config: GeneratorConfig) -> None:
        self.metrics = BinaryMetrics()
        self.seen = np.zeros(config.keys, np.uint8)
        self.num_examples = 0
        self.num_values = 0

    def add(self, block: kernels.Block) -> None:
        """Takes up a block but for the keys that it has, which threads mark in `seen`."""
        self.metrics.update(block.logits, block.labels)
        self.num_examples += len(block.labels)
        self.num_values += len(block.ids)


class LogWriter:
    """Writes logs of one config in one format.

    Args:
        config: what the log looks like.
        log_format: one of hps.generate.FORMATS.
        num_threads: threads that make blocks.

    Raises:
        ConfigError: an unknown format, or one that has no bags for a config that has.
    """

    def __init__(self, config: GeneratorConfig, log_format: str, num_threads: int) -> None:
        if log_format not in FORMATS:
            raise ConfigError(f"generate: format={log_format!r} must be one of {FORMATS}")
        if config.bag is not None and log_format not in BAG_FORMATS:
            raise ConfigError(
                f"generate: a column of {log_format} holds one value, so bag={config.bag:g} "
                f"(--bag) cannot be written; give --format {', '.join(BAG_FORMATS[:-1])} or "
                f"{BAG_FORMATS[-1]}, or leave --bag out"
            )
        self.config = config
        self.log_format = log_format
        self.num_threads = num_threads
        started = time.perf_counter()
        self.model = plant(config)
        self._make_text(0, 1)
        self.compile_seconds = time.perf_counter() - started

    def write(self, path: Path, progress: Callable[[int], None] | None = None) -> Json:
        """Writes the log and, beside it, PATH.json with its figures, which are returned; of libsvm
        and libffm also PATH.features.toml, which says what is what."""
        figures = self._write(Part(path, 0, self.config.examples), progress)
        features = self._features()
        if features is not None:
            written = Path(f"{path}.features.toml")
            written.write_text(features.to_toml())
            figures["features"] = written.name
        return figures

    def _features(self) -> Features | None:
        """What a features file has to say of the log, so that its columns are what was drawn: which
        indices of libsvm, and which fields of libffm are what. None of other formats."""
        num_dense, bases = self.config.dense, self.model.bases
        dense = [f"I{place + 1}" for place in range(num_dense)]
        if self.log_format == "libffm" and dense:
            columns = [Column(name=str(place), kind=DENSE) for place in range(num_dense)]
            return Features(columns=columns)
        if self.log_format != "libsvm":
            return None
        fields: dict[str, object] = dict(zip(dense, range(num_dense), strict=True))
        for place, count in enumerate(self.model.cardinalities.tolist()):
            first = num_dense + int(bases[place])
            fields[f"C{place + 1}"] = f"{first}-{first + count - 1}"
        return Features(columns=[Column(name=name, kind=DENSE) for name in dense], fields=fields)

    def write_test(self, path: Path) -> Json:
        """Writes the held-out part: the examples that follow the log's last one."""
        return self._write(Part(path, self.config.examples, self.config.test_examples), None)

    def _write(self, part: Part, progress: Callable[[int], None] | None) -> Json:
        started = time.perf_counter()
        tally = Tally(self.config)
        part.path.parent.mkdir(parents=True, exist_ok=True)
        if self.log_format == "parquet":
            self._write_parquet(part, tally, progress)
        else:
            with part.path.open("wb") as file:
                self._write_text(file, part, tally, progress)
        seconds = time.perf_counter() - started
        best = tally.metrics.compute()
        num_bytes = part.path.stat().st_size
        given, bags = asdict(self.config), {}
        if self.config.bag is None:
            del given["bag"], given["bag_lengths"]
        else:
            num_bags = tally.num_examples * self.config.features
            bags = {"values": tally.num_values, "mean_bag": tally.num_values / max(num_bags, 1)}
        figures = {
            "path": part.path.name,
            "format": self.log_format,
            "config": given,
            "examples": part.count,
            **bags,
            "clicks": best["positives"],
            "distinct_keys": int(np.count_nonzero(tally.seen)),
            "best_auc": best["auc"],
            "best_logloss": best["logloss"],
            "bytes": num_bytes,
            "seconds": seconds,
            "compile_seconds": self.compile_seconds,
            "keys_per_second": tally.num_values / seconds,
            "megabytes_per_second": num_bytes / seconds / 1e6,
        }
        Path(f"{part.path}.json").write_text(json.dumps(figures, indent=1) + "\n")
        return figures

    def _write_text(
        self,
        file: IO[bytes],
        part: Part,
        tally: Tally,
        progress: Callable[[int], None] | None,
    ) -> None:
        def make(first: int, count: int) -> tuple[kernels.Block, memoryview]:
            block, text = self._make_text(first, count)
            kernels.mark_seen(self.model, block, tally.seen)
            return block, text

        for block, text in self._in_order(make, part, self._at_once(BLOCK_EXAMPLES, BLOCK_VALUES)):
            file.write(text)
            tally.add(block)
            if progress is not None:
                progress(tally.num_examples)

    def _make_text(self, first: int, count: int) -> tuple[kernels.Block, memoryview]:
        block = draw_block(self.model, first, count)
        if self.log_format == "parquet":
            return block, memoryview(b"")
        # A generous bound for every format: names, two numbers and separators a column or value.
        most_bytes = count * (64 + 52 * self.config.dense) + 40 * len(block.ids)
        text = np.empty(most_bytes, np.uint8)
        num_bytes = FORMATTERS[self.log_format](self.model, block, text)
        return block, text[:num_bytes].data

    def _at_once(self, examples: int, values: int) -> int:
        """Examples of a block: as many, or with bags as have about so many values."""
        if self.config.bag is None:
            return examples
        return max(1, min(examples, int(values / self.config.mean_values)))

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
        self, part: Part, tally: Tally, progress: Callable[[int], None] | None
    ) -> None:
        """Columns label (int8), I1.. (float32, log1p of the count, 0 if missing) and C1.. (int64,
        the 64 bits of the key; with bags lists of these)."""
        import pyarrow
        import pyarrow.parquet

        is_list = self.config.bag is not None
        key_type = pyarrow.list_(pyarrow.int64()) if is_list else pyarrow.int64()
        dense_names = [f"I{column + 1}" for column in range(self.config.dense)]
        key_names = [f"C{feature + 1}" for feature in range(self.config.features)]
        fields = [pyarrow.field("label", pyarrow.int8())]
        fields += [pyarrow.field(name, pyarrow.float32()) for name in dense_names]
        fields += [pyarrow.field(name, key_type) for name in key_names]
        schema = pyarrow.schema(fields)

        def make(first: int, count: int) -> tuple[kernels.Block, pyarrow.Table]:
            block = draw_block(self.model, first, count)
            kernels.mark_seen(self.model, block, tally.seen)
            keys = np.empty(len(block.ids), np.uint64)
            offsets = np.empty(len(block.offsets), np.int64)
            kernels.fill_keys(self.model, block, keys, offsets)
            dense = np.log1p(np.maximum(block.dense, 0)).astype(np.float32)
            arrays = [block.labels.astype(np.int8), *dense.T]
            columns = [pyarrow.array(np.ascontiguousarray(array)) for array in arrays]
            for bag in range(0, len(offsets) - 1, count):
                places = offsets[bag : bag + count + 1]
                values = pyarrow.array(keys[places[0] : places[-1]].view(np.int64))
                ends = (places - places[0]).astype(np.int32)
                columns.append(pyarrow.ListArray.from_arrays(ends, values) if is_list else values)
            return block, pyarrow.Table.from_arrays(columns, schema=schema)

        block_examples = self._at_once(ROW_GROUP_EXAMPLES, ROW_GROUP_VALUES)
        with pyarrow.parquet.ParquetWriter(part.path, schema) as writer:
            for block, table in self._in_order(make, part, block_examples):
                writer.write_table(table)
                tally.add(block)
                if progress is not None:
                    progress(tally.num_examples)
