"""What rows cost in memory: none evicted at 1.3 x their bytes, load at the first eviction, RSS.

Every figure comes from a process of its own. Above it: benchmarks/run.py. Below it: worker.py.
"""

import argparse
import json
from typing import Any

import numpy as np

from benchmarks.common.modules import run_module
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples

BUCKET_SLOTS = 64
INDEX_BYTES = 16
CONSTANT_BYTES = 64 << 20
LOAD_ASKED_FOR = 0.86
SPILLED_OVER_BUDGET = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, nargs="+", default=[2e4, 2e5, 1e6, 4e6])
    parser.add_argument("--spill-rows", type=float, default=1e6, help="rows the budget is for")
    parser.add_argument("--repetitions", type=int, default=5)


def work(**options: Any) -> dict[str, Any]:
    """Runs worker.py with these options; True stands for a bare switch."""
    words: list[object] = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    return dict(json.loads(run_module("benchmarks.parameter_server.memory.worker", *words)))


def one_bucket_load(slots: int, seed: int) -> float:
    """Load at which a table with one bucket of 64 a key first overflows, by simulation."""
    buckets = slots // BUCKET_SLOTS
    chosen = np.random.default_rng(seed).integers(0, buckets, slots)
    order = np.argsort(chosen, kind="stable")
    starts = np.searchsorted(chosen[order], np.arange(buckets))
    rank = np.arange(slots) - starts[chosen[order]]
    return float(order[rank == BUCKET_SLOTS].min() / slots)


def budget_rows(rows: int, dim: int, keys: str, repetitions: int) -> list[Row]:
    """Rows that stay in DRAM with a budget of 1.3 times their bytes, and what a row then costs."""
    runs = [
        work(rows=rows, budget_rows=rows, dim=dim, keys=keys, first=seed << 40)
        for seed in range(repetitions)
    ]
    assert all(run["num_rows"] == rows for run in runs), "rows are missing"
    kept = Samples(tuple(rows - run["evictions"] for run in runs))
    asked = Samples((float(rows),) * repetitions)
    cost = Samples(tuple(run["budget_bytes"] / rows for run in runs))
    dense = Samples((4.0 * dim + 4,) * repetitions)
    axes = {"rows": rows, "dim": dim, "keys": keys}
    return [
        comparison_row(
            {"figure": "rows kept at 1.3 x"} | axes, "rows", kept, ("rows stored", asked), floor=1.0
        ),
        comparison_row(
            {"figure": "budget a row"} | axes,
            "bytes",
            cost,
            ("dense table and accumulator, without keys", dense),
            lower_is_better=True,
        ),
    ]


def load_rows(rows: int, keys: str, repetitions: int) -> list[Row]:
    """Load at the first eviction, beside the load asked for and a table without a second bucket."""
    runs = [
        work(
            rows=2 * rows,
            budget_rows=rows,
            budget_factor=1.0,
            keys=keys,
            first=seed << 40,
            stop_at_eviction=True,
        )
        for seed in range(repetitions)
    ]
    assert all(run["evictions"] > 0 for run in runs), "no row was evicted; the table never filled"
    loads = Samples(tuple(run["stored_rows"] / run["capacity_rows"] for run in runs))
    asked = Samples((LOAD_ASKED_FOR,) * repetitions)
    simulated = [one_bucket_load(run["capacity_rows"], seed) for seed, run in enumerate(runs)]
    axes = {"figure": "load at first eviction", "rows": rows, "dim": 16, "keys": keys}
    single = ("one bucket of 64 a key, simulated", Samples(tuple(simulated)))
    return [
        comparison_row(axes, "of the slots", loads, ("asked for", asked), floor=1.0),
        comparison_row(axes, "of the slots", loads, single),
    ]


def rss_row(rows: int, stored: int, repetitions: int) -> Row:
    """Peak RSS of a process that stores `stored` rows with a budget for `rows`."""
    runs = [work(rows=stored, budget_rows=rows, first=seed << 40) for seed in range(repetitions)]
    spilled = stored > 2 * rows
    assert all((run["evictions"] > 0) == spilled for run in runs), "spilled where it should not"
    budget = runs[0]["budget_bytes"] + INDEX_BYTES * stored
    peaks = Samples(tuple(float(run["peak_rss_bytes"]) for run in runs))
    allowed = Samples((float(budget + CONSTANT_BYTES),) * repetitions)
    where = "RSS, spilled" if spilled else "RSS, all in DRAM"
    row = comparison_row(
        {"figure": where, "rows": stored, "dim": 16, "keys": "hashed"},
        "bytes",
        peaks,
        (f"budget + {INDEX_BYTES} B x stored rows + {CONSTANT_BYTES >> 20} MiB", allowed),
        floor=1.0,
        lower_is_better=True,
    )
    row["notes"] = {
        "budget_bytes": runs[0]["budget_bytes"],
        "constant_bytes_measured": peaks.median - budget,
        "rss_at_start_bytes": runs[0]["rss_at_start_bytes"],
    }
    return row


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All figures; see add_arguments for the options."""
    repetitions = 1 if smoke else options["repetitions"]
    sizes = [20_000] if smoke else [int(rows) for rows in options["rows"]]
    spill = 20_000 if smoke else int(options["spill_rows"])
    rows: list[Row] = []
    for size in sizes:
        for keys in ("hashed",) if smoke else ("sequential", "hashed"):
            rows += budget_rows(size, 16, keys, repetitions)
            rows += load_rows(size, keys, repetitions)
    if not smoke:
        rows += budget_rows(max(200_000, sizes[0]), 64, "hashed", repetitions)
    rows += [rss_row(spill, stored, repetitions) for stored in (spill, SPILLED_OVER_BUDGET * spill)]
    axes = {"rows": sizes, "spill_rows": spill, "budget_over_rows": 1.3, "threads": 2}
    return {"axes": axes, "rows": rows}
