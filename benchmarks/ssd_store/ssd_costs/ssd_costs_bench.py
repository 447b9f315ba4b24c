"""What the SSD tier's promises cost: checkpoints of few rows beside all, checksums beside none.

Above it: benchmarks/run.py. Below it: checksum_cost.py, the store of benchmarks/ssd_store. No other
store takes part.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.ssd_store.hps_store import TABLE, HpsStore
from benchmarks.ssd_store.records import Data
from benchmarks.ssd_store.ssd_costs import checksum_cost
from benchmarks.ssd_store.ssd_store_bench import rows_of

CHECKPOINT_BYTES = 2.6e8
CHECKPOINT_RATIO = 20.0
DIRTY_PART = 0.01


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, default=5e6, help="fewer where records are large")
    parser.add_argument("--records", default="64,256,1024", help="bytes of a record, key included")
    parser.add_argument("--batch", type=int, default=100_000, help="keys a call")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="timed calls a repetition")
    parser.add_argument("--folder", help="on the disk that is measured; a temporary one if not")


def checkpoints(folder: Path, data: Data, repetitions: int) -> Row:
    """Seconds until changes are durable: of a hundredth of the rows, and of all of them.

    The store is compacted before and after the large one: it leaves as many dead rows, and appends
    that follow at once would wait until the bound on space holds. Of three small ones after that
    the last counts: the first ones remove the files that went before them.
    """
    store = HpsStore(folder, data.record_bytes)
    store.load(data.in_order(data.by_place()))
    few, all_seconds = [], []
    random = np.random.default_rng(3)
    num_dirty = max(1, int(data.rows * DIRTY_PART))
    for _ in range(repetitions):
        store.store.compact()
        all_seconds.append(_checkpoint(store, data, data.by_place()))
        store.store.compact()
        small = [random.choice(data.rows, num_dirty, replace=False) for _ in range(3)]
        few.append([_checkpoint(store, data, places) for places in small][-1])
    store.close()
    return comparison_row(
        {"figure": "checkpoint", "record_bytes": data.record_bytes, "rows": data.rows},
        "s",
        Samples(tuple(few)),
        ("all rows dirty", Samples(tuple(all_seconds))),
        floor=CHECKPOINT_RATIO,
        lower_is_better=True,
    )


def _checkpoint(store: HpsStore, data: Data, places: np.ndarray) -> float:
    """Seconds of appending the records of these places and a checkpoint."""
    pieces = list(data.in_order(places))
    start = time.perf_counter()
    for records in pieces:
        store.store.append(TABLE, records)
    store.store.checkpoint()
    return time.perf_counter() - start


def with_and_without(options: dict[str, Any], absent: dict[str, str]) -> list[Row]:
    """What checksums cost, for each size of records."""
    try:
        libraries = checksum_cost.libraries()
    except FileNotFoundError as error:
        absent["hps without checksums"] = str(error)
        return []
    found = []
    for record_bytes in options["records"]:
        data = Data(rows_of(record_bytes, options["rows"]), record_bytes)
        with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
            found += checksum_cost.checksum_cost(libraries, Path(folder), data, options)
    return found


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Rows of both, for each size of records."""
    if smoke:
        options |= {"rows": 20_000, "records": "64", "batch": 2000, "repetitions": 1, "steps": 1}
    options["is_smoke"] = smoke
    options["records"] = [int(size) for size in options["records"].split(",")]
    absent: dict[str, str] = {}
    found: list[Row] = []
    for record_bytes in options["records"]:
        rows = min(rows_of(record_bytes, options["rows"]), int(CHECKPOINT_BYTES / record_bytes))
        with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
            data = Data(rows, record_bytes)
            found.append(checkpoints(Path(folder), data, options["repetitions"]))
    found += with_and_without(options, absent)
    axes = {name: options[name] for name in ("rows", "records", "batch", "repetitions")}
    return {"axes": axes, "rows": found, "absent": absent}
