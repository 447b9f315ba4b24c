"""How long a get waits while compaction runs in the background, at its default pace.

Above it: ssd_store_bench.py. Below it: hps_store.py. A get counts as "during" if compaction wrote
rows while it ran.
"""

import time
from pathlib import Path

import numpy as np

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.ssd_store.hps_store import HpsStore
from benchmarks.ssd_store.records import Data

MOST_BYTES = 4e8
OVERWRITTEN_PART = 0.7
MOST_RATIO = 2.0


def _compacted(store: HpsStore) -> int:
    return int(store.store.stats()["bytes_compacted"])


def _timed_get(store: HpsStore, data: Data, batch: tuple[int, int]) -> float:
    wanted = data.uniform(*batch)
    start = time.perf_counter()
    store.get(wanted)
    return time.perf_counter() - start


def _p99(seconds: list[float]) -> Samples:
    return Samples((float(np.quantile(seconds, 0.99)),))


def compaction(folder: Path, data: Data, shape: tuple[int, int, float]) -> Row | None:
    """p99 of a warm get during compaction, beside that without.

    Args:
        folder: for the store.
        data: what it holds; fewer rows where they take more than MOST_BYTES.
        shape: keys a get; gets of each kind; seconds after which those made so far must do.
    """
    size, gets, patience = shape
    data = Data(min(data.rows, int(MOST_BYTES / data.record_bytes)), data.record_bytes)
    store = HpsStore(folder, data.record_bytes, compact_in_background=False)
    store.load(data.in_order(data.by_place()))
    random = np.random.default_rng(4)
    overwritten = random.choice(data.rows, int(data.rows * OVERWRITTEN_PART), replace=False)
    without = [_timed_get(store, data, (size, seed)) for seed in range(2, 2 + gets)]
    store.close()
    store = HpsStore(folder, data.record_bytes)
    during: list[float] = []
    gets_before = 0
    end = time.perf_counter() + patience
    while len(during) < gets and time.perf_counter() < end:
        # Compaction is through with what there was, or never had enough to do.
        if len(during) == gets_before:
            store.load(data.in_order(overwritten))
        gets_before = len(during)
        for seed in range(2, 2 + gets // 4):
            before = _compacted(store)
            seconds = _timed_get(store, data, (size, seed))
            if _compacted(store) > before:
                during.append(seconds)
    store.close()
    if not during:
        return None  # too little data for compaction to take as long as a get
    axes = {"figure": "get p99", "record_bytes": data.record_bytes, "rows": data.rows}
    row = comparison_row(
        {**axes, "keys": "uniform", "cache": "warm"},
        "s",
        _p99(during),
        ("without compaction", _p99(without)),
        floor=1 / MOST_RATIO,
        lower_is_better=True,
    )
    row["notes"] = {"gets_during": len(during), "gets_without": len(without)}
    return row
