"""Writes a generated log: blocks of examples made by threads, written in order.

Above it: `hps generate`. Below it: kernels.py, planted.py, tally.py for the figures. Which thread
makes a block changes nothing, so a log depends on its config alone.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from hps.generate.tally import Part, SeenKeys, Tally, period_parts, refuse_other_periods, told

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

Add = Callable[[kernels.Block, kernels.Whole], None]
T = TypeVar("T")


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
        and libffm also PATH.features.toml, which says what is what. Several periods are a file
        each, see `period_parts`; there is no file PATH then.

        Raises:
            ConfigError: a file lies there that would be read as another period.
        """
        if self.config.periods == 1:
            figures = self._write(Part(path, 0, self.config.examples), progress)
        else:
            figures = self._write_periods(path, progress)
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
        for place, count in enumerate(self.model.spans.tolist()):
            first = num_dense + int(bases[place])
            fields[f"C{place + 1}"] = f"{first}-{first + count - 1}"
        return Features(columns=[Column(name=name, kind=DENSE) for name in dense], fields=fields)

    def write_test(self, path: Path) -> Json:
        """Writes the held-out part: the examples that follow the log's last one."""
        return self._write(Part(path, self.config.examples, self.config.test_examples), None)

    def _write(self, part: Part, progress: Callable[[int], None] | None) -> Json:
        started = time.perf_counter()
        tally = Tally(self.config)
        self._write_part(part, SeenKeys(self.model), [tally], progress)
        return self._tell(part.path, tally, time.perf_counter() - started)

    def _write_periods(self, path: Path, progress: Callable[[int], None] | None) -> Json:
        parts = period_parts(path, self.config)
        refuse_other_periods(path, parts)
        started = time.perf_counter()
        whole, seen = Tally(self.config), SeenKeys(self.model)
        periods: list[Json] = []
        for part in parts:
            tally = Tally(self.config)
            self._write_part(part, seen, [tally, whole], progress)
            whole.end_part(tally)
            new_keys = int(tally.keys[1])
            periods.append({"path": part.path.name, **tally.counts(), "new_keys": new_keys})
        seconds = time.perf_counter() - started
        return self._tell(path, whole, seconds, {"periods": periods})

    def _write_part(
        self,
        part: Part,
        seen: SeenKeys,
        tallies: Sequence[Tally],
        progress: Callable[[int], None] | None,
    ) -> None:
        """Writes a file; the first tally is its own, others get its blocks, too."""
        seen.begin()
        tally = tallies[0]
        part.path.parent.mkdir(parents=True, exist_ok=True)

        def add(block: kernels.Block, found: kernels.Whole) -> None:
            for one in tallies:
                one.add(block)
            seen.add(found, tally.keys)
            if progress is not None:
                progress(part.first + tally.num_examples)

        if self.log_format == "parquet":
            self._write_parquet(part, seen, add)
        else:
            with part.path.open("wb") as file:
                self._write_text(file, part, seen, add)
        tally.num_bytes = part.path.stat().st_size

    def _tell(self, path: Path, tally: Tally, seconds: float, more: Json | None = None) -> Json:
        """Writes the figures of a log beside it, and returns them."""
        figures = {
            "path": path.name,
            "format": self.log_format,
            "config": told(self.config),
            **tally.counts(),
            **(more or {}),
            "seconds": seconds,
            "compile_seconds": self.compile_seconds,
            **tally.rates(seconds),
        }
        Path(f"{path}.json").write_text(json.dumps(figures, indent=1) + "\n")
        return figures

    def _write_text(self, file: IO[bytes], part: Part, seen: SeenKeys, add: Add) -> None:
        def make(first: int, count: int) -> tuple[kernels.Block, kernels.Whole, memoryview]:
            block, text = self._make_text(first, count)
            return block, seen.find(block), text

        for block, found, text in self._in_order(
            make, part, self._at_once(BLOCK_EXAMPLES, BLOCK_VALUES)
        ):
            file.write(text)
            add(block, found)

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

    def _write_parquet(self, part: Part, seen: SeenKeys, add: Add) -> None:
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

        def make(first: int, count: int) -> tuple[kernels.Block, kernels.Whole, pyarrow.Table]:
            block = draw_block(self.model, first, count)
            found = seen.find(block)
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
            return block, found, pyarrow.Table.from_arrays(columns, schema=schema)

        block_examples = self._at_once(ROW_GROUP_EXAMPLES, ROW_GROUP_VALUES)
        with pyarrow.parquet.ParquetWriter(part.path, schema) as writer:
            for block, found, table in self._in_order(make, part, block_examples):
                writer.write_table(table)
                add(block, found)
