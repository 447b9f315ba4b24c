"""What the life of its rows, and narrow rows, cost a table in a step: a pull and a push of the same
batch; what a new period costs a table with expiry; records of waiting keys on SSD; and narrow rows
that are read from there.

Each setting is beside the same table without it, step by step; keys are Zipf over rows that are all
in DRAM. Of a table with admission the rarest keys, a part of a batch's distinct ones, wait. When a
period begins all rows are in DRAM and clean, and none dies.
Above it: benchmarks/run.py. Below it: hps's public interface.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import product
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.keys import EXAMPLES, FEATURES, ZipfIds, hashed_keys
from benchmarks.common.narrow_step import NarrowStep
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.server import TABLE, insert, require_all_in_dram, scratch_server
from benchmarks.common.timing import Samples, StepTimer, interleave
from benchmarks.life_step.cold_records import cold_row
from benchmarks.life_step.cold_rows import FLOOR, cold_rows_row

OFF = "off"
NARROW = "bfloat16 rows, outputs and gradients"
NEVER = hps.Admission(count=2**24)  # that no key of a run reaches
SETTINGS: dict[str, dict[str, Any]] = {
    "statistics": {"statistics": True},
    "expiry": {"expiry": hps.Expiry(unseen=30, min_score=0.01)},
    "admission": {"admission": NEVER},
    "bfloat16 rows": {"dtype": "bfloat16"},
    NARROW: {"dtype": "bfloat16"},
}
FLOORS = {
    ("statistics", 16): 0.85,
    ("statistics", 64): 0.93,
    ("expiry", 16): 0.85,
    ("expiry", 64): 0.93,
    ("admission", 16): 0.85,
    ("admission", 64): 0.85,
    ("bfloat16 rows", 64): 1.1,
    (NARROW, 64): 1.3,
}
PERIOD = "a period begins"
PERIOD_SECONDS = 0.05  # at most, with ten million rows
WAITING = 0.7  # of a batch's distinct keys
_BATCHES = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--period-rows", type=int, default=10_000_000)
    parser.add_argument("--cold-keys", type=int, default=2_000_000)
    parser.add_argument("--cold-rows", type=int, default=500_000)


def common_keys(ids: list[np.ndarray], share: float) -> np.ndarray:
    """The most frequent ids, so many that of a batch's distinct ids about `share` are not among
    them."""
    found, counts = np.unique(np.concatenate(ids), return_counts=True)
    ranked = found[np.argsort(-counts, kind="stable")]
    low, high = 0, len(ranked)
    while high - low > 1:
        middle = (low + high) // 2
        waiting = np.mean([1 - np.isin(np.unique(one), ranked[:middle]).mean() for one in ids])
        low, high = (middle, high) if waiting > share else (low, middle)
    return ranked[:low]


def narrow_step_of(
    server: Any, batches: list[np.ndarray], grads: np.ndarray
) -> Callable[[int], None]:
    """As step_of, with output and gradients in bfloat16."""
    keys = [torch.from_numpy(batch.view(np.int64)) for batch in batches]
    narrow_step = NarrowStep(server, torch.from_numpy(grads))
    return lambda place: narrow_step(keys[place])


def step_of(server: Any, batches: list[np.ndarray], grads: np.ndarray) -> Callable[[int], None]:
    """A step on the batch of that number."""
    out = np.empty_like(grads)

    def step(place: int) -> None:
        server.pull(TABLE, batches[place], out=out)
        server.push(TABLE, batches[place], grads)

    return step


def cell(rows: int, dim: int, threads: int, examples: int, repetitions: int) -> list[Row]:
    """All settings of one dim and number of threads."""
    drawn = ZipfIds(rows)
    ids = [drawn.batch(examples * FEATURES) for _ in range(_BATCHES)]
    batches = [hashed_keys(one) for one in ids]
    grads = np.random.default_rng(1).standard_normal((len(ids[0]), dim)).astype(np.float32)
    common = hashed_keys(common_keys(ids, WAITING))
    optimizer = hps.RowWiseAdagrad(lr=0.01)
    contenders = {}
    with ExitStack() as servers:
        for name, options in {OFF: {}, **SETTINGS}.items():
            table = hps.TableConfig(name=TABLE, dim=dim, optimizer=optimizer, **options)
            budget = 4 * rows * table.layout.row_bytes + 2**24
            server = servers.enter_context(scratch_server(table, budget, threads))
            insert(server, common if "admission" in options else np.unique(np.concatenate(batches)))
            make = narrow_step_of if name == NARROW else step_of
            timer = StepTimer(make(server, batches, grads), _BATCHES, _BATCHES)
            contenders[name] = timer.median_seconds
        samples = interleave(contenders, repetitions)
    return [
        comparison_row(
            {"setting": name, "dim": dim, "threads": threads},
            "seconds a step",
            samples[name],
            (OFF, samples[OFF]),
            floor=FLOORS.get((name, dim)),
            lower_is_better=True,
        )
        for name in SETTINGS
    ]


def period_row(rows: int, dim: int, threads: int, repetitions: int) -> Row:
    """Seconds of `advance_period`."""
    table = hps.TableConfig(
        name=TABLE, dim=dim, optimizer=hps.RowWiseAdagrad(lr=0.01), expiry=hps.Expiry(unseen=30)
    )
    seconds = []
    with ExitStack() as servers:
        budget = int(1.4 * rows * table.layout.row_bytes) + 2**24
        server = servers.enter_context(scratch_server(table, budget, threads))
        insert(server, hashed_keys(np.arange(rows)))
        server.checkpoint()
        server.advance_period()
        for _ in range(repetitions):
            start = time.perf_counter()
            server.advance_period()
            seconds.append(time.perf_counter() - start)
        require_all_in_dram(server, rows)
        assert server.num_rows(TABLE) == rows
    most = Samples((PERIOD_SECONDS,) * repetitions)
    return comparison_row(
        {"setting": PERIOD, "dim": dim, "threads": threads},
        "seconds",
        Samples(tuple(seconds)),
        (f"{PERIOD_SECONDS * 1000:.0f} ms", most),
        floor=1.0,
        lower_is_better=True,
    )


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All cells; see add_arguments for the options."""
    rows, repetitions = options["rows"], options["repetitions"]
    examples, cells = EXAMPLES, list(product(options["dims"], options["threads"]))
    if smoke:
        rows, repetitions, examples, cells = 3000, 2, 32, [(16, 1)]
        options["period_rows"] = 3000
        options["cold_keys"] = options["cold_rows"] = 3000
    found: list[Row] = []
    for dim, threads in cells:
        found += cell(rows, dim, threads, examples, repetitions)
    for threads in sorted({threads for _, threads in cells}):
        found.append(period_row(options["period_rows"], 16, threads, repetitions))
    sizes = (8, 3) if smoke else (512, 40)
    for threads in sorted({threads for _, threads in cells}):
        found.append(cold_row(options["cold_keys"], threads, sizes, repetitions))
    cold_rows = options["cold_rows"]
    for threads in sorted({threads for _, threads in cells}):
        found.append(cold_rows_row(cold_rows, cold_rows // 250, threads, repetitions, None))
        found.append(cold_rows_row(cold_rows, cold_rows // 25, threads, repetitions, FLOOR))
    axes = {
        "rows": rows,
        "period_rows": options["period_rows"],
        "cold_keys": options["cold_keys"],
        "cold_rows": options["cold_rows"],
        "examples": examples,
        "features": FEATURES,
        "waiting": WAITING,
    }
    return {"axes": axes, "rows": found}
