"""What hps's store costs beside its reads: opening after a kill or a close, locality.

Above it: ssd_store_bench.py. Below it: hps_store.py. Two targets are plain numbers, so the baseline
of those rows is the number.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.ssd_store import page_cache
from benchmarks.ssd_store.hps_store import TABLE, HpsStore
from benchmarks.ssd_store.measure import cold
from benchmarks.ssd_store.records import Data, ZipfBatches

RECOVERY_KEYS = 10.0  # M keys/s
OPEN_SECONDS = 0.3
TRACE_BATCHES = 20

# Stores a row again and dies: what the last clean close has left behind is out of date.
_KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from benchmarks.ssd_store.hps_store import HpsStore
from benchmarks.ssd_store.records import Data
size = int(sys.argv[2])
store = HpsStore(Path(sys.argv[1]), size)  # named, or it would be closed before the kill
store.put(Data(1, size).records(np.arange(1)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def _die_open(store: HpsStore, data: Data) -> None:
    command = [sys.executable, "-c", _KILLED, str(store.folder), str(data.record_bytes)]
    done = subprocess.run(command, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == -signal.SIGKILL, f"the process ended by {done.returncode}"


def _open_seconds(store: HpsStore, is_cold: bool) -> float:
    if is_cold:
        page_cache.drop(page_cache.files_under(store.folder))
    start = time.perf_counter()
    store.open()
    return time.perf_counter() - start


def opening(store: HpsStore, data: Data, repetitions: int) -> list[Row]:
    """Recovery after a kill, opening after a clean close; the store is open before and after."""
    rows = []
    store.close()
    for cache in ("warm", "cold"):
        rates, seconds = [], []
        for _ in range(repetitions):
            _die_open(store, data)
            rates.append(data.rows / 1e6 / _open_seconds(store, cache == "cold"))
            assert store.store.num_rows(TABLE) == data.rows
            assert store.store.stats()["snapshot_bytes"] == 0, "the store was closed, not killed"
            store.close()
            seconds.append(_open_seconds(store, cache == "cold"))
            assert store.store.num_rows(TABLE) == data.rows
            store.close()
        axes = {"record_bytes": data.record_bytes, "rows": data.rows, "cache": cache}
        rows.append(
            comparison_row(
                {"figure": "recovery after a kill", **axes},
                "M keys/s",
                Samples(tuple(rates)),
                ("target: 10 M keys/s", Samples((RECOVERY_KEYS,) * repetitions)),
                floor=1.0 if cache == "warm" else None,
            )
        )
        rows.append(
            comparison_row(
                {"figure": "open after a clean close", **axes},
                "s",
                Samples(tuple(seconds)),
                ("target: 0.3 s", Samples((OPEN_SECONDS,) * repetitions)),
                floor=1.0 if cache == "warm" else None,
                lower_is_better=True,
            )
        )
    store.open()
    return rows


def locality(shuffled: HpsStore, folder: Path, data: Data, sizes: tuple[int, int]) -> Row:
    """Cold reads of Zipf batches: rows appended hot together, beside rows appended in no order.

    Args:
        shuffled: the store whose rows lie in no order.
        folder: for the other one.
        data: of both.
        sizes: draws a batch, and repetitions.
    """
    size, repetitions = sizes
    zipf = ZipfBatches(data, size)
    together = HpsStore(folder, data.record_bytes)
    together.name = "hps, hot together"
    together.load(data.in_order(zipf.hot_together(data.rows, size * TRACE_BATCHES)))
    batches = [zipf.next() for _ in range(repetitions)]
    samples, _ = cold([together, shuffled], batches, checks=False)
    together.close()
    return comparison_row(
        {
            "figure": "locality of appends",
            "record_bytes": data.record_bytes,
            "rows": data.rows,
            "keys": "zipf",
        },
        "M keys/s",
        samples[together.name],
        ("rows appended in no order", samples[shuffled.name]),
    )
