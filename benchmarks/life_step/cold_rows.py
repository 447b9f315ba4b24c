"""Pulls of rows that lie on SSD alone: rows of 1 KiB beside the same with bfloat16 weights, which
are half as long.

Above it: life_step_bench.py. Below it: hps's public interface. Keys are uniform, DRAM holds a
fiftieth of the rows, and the disk is read past the page cache.
"""

import statistics
import tempfile
import time
from contextlib import ExitStack

import numpy as np

import hps
from benchmarks.common.keys import hashed_keys
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.server import FILL_KEYS, TABLE
from benchmarks.common.timing import interleave

NARROW, WIDE = "cold rows in bfloat16", "float32 rows of 1 KiB"
FLOOR = 1.3  # where a block that is read has more than one of the rows
_DIM = 252  # and a header of 16 bytes
_PART_IN_DRAM = 50


class _ColdRows:
    """A store of `rows` rows, of which few are in DRAM."""

    def __init__(self, dtype: str, rows: int, threads: int, lifetime: ExitStack) -> None:
        table = hps.TableConfig(
            name=TABLE, dim=_DIM, optimizer=hps.RowWiseAdagrad(lr=0.01), dtype=dtype
        )
        budget = rows // _PART_IN_DRAM * table.layout.row_bytes + 2**22
        config = hps.Config(
            path=lifetime.enter_context(tempfile.TemporaryDirectory()),
            tables=[table],
            dram=hps.DramCacheConfig(bytes=budget),
            ssd=hps.SsdStoreConfig(direct_io=True),
            threads=threads,
        )
        self._server = lifetime.enter_context(hps.ParameterServer(config))
        for first in range(0, rows, FILL_KEYS):
            keys = hashed_keys(np.arange(first, min(first + FILL_KEYS, rows)))
            self._server.pull(TABLE, keys, create=True)
        self._server.checkpoint()
        self._rows, self._drawn = rows, np.random.default_rng(7)

    def seconds(self, keys: int, calls: int) -> float:
        """The median of pulls of `keys` distinct keys."""
        seconds = []
        for _ in range(calls):
            drawn = hashed_keys(self._drawn.choice(self._rows, keys, replace=False))
            start = time.perf_counter()
            self._server.pull(TABLE, drawn)
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)


def cold_rows_row(rows: int, keys: int, threads: int, repetitions: int, floor: float | None) -> Row:
    """Seconds of a pull of `keys` of `rows` rows."""
    with ExitStack() as lifetime:
        narrow = _ColdRows("bfloat16", rows, threads, lifetime)
        wide = _ColdRows("float32", rows, threads, lifetime)
        samples = interleave(
            {NARROW: lambda: narrow.seconds(keys, 5), WIDE: lambda: wide.seconds(keys, 5)},
            repetitions,
        )
    return comparison_row(
        {"setting": f"{NARROW}, {keys} keys", "dim": _DIM, "threads": threads},
        "seconds a pull",
        samples[NARROW],
        (WIDE, samples[WIDE]),
        floor=floor,
        lower_is_better=True,
    )
