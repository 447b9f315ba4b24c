"""A training step over bags of many values on the CPU: look-up, pooling, backward, optimizer.

2048 examples x 8 features x 20 ids a bag, Zipf 1.05, one table that lies in DRAM. hps gets 64-bit
hashed keys through SparseEmbedding and RowOptimizer; the peers get the same ids, dense. Every
contender must read the same sums after its first step. Above it: benchmarks/run.py.
"""

import argparse
import contextlib
import gc
import warnings
from functools import partial
from typing import Any

import torch

from benchmarks.common.contenders import Contender, rates, same_answers
from benchmarks.common.peers import absent_peers
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.server import row_bytes
from benchmarks.parameter_server.pooled_step.contenders import (
    HpsPooled,
    TorchPooled,
    fbgemm_pooled,
    hps_table,
)
from benchmarks.parameter_server.pooled_step.pooled_alone import (
    PooledAlone,
    PooledTable,
)
from benchmarks.parameter_server.pooled_step.workload import Shape, make_workload

HPS = "hps"
FBGEMM = "fbgemm tbe"
TORCH = "torch: embedding_bag(sparse)"
BEST = "best of fbgemm and torch"
ALONE = "the sums and updates alone, keys at no cost"
UNIT = "M occurrences/s"
FLOOR = 2.5

EXAMPLES = 2048
MILLION = 1_000_000
SHAPES = [
    Shape(MILLION, 16),
    Shape(MILLION, 64),
    Shape(10 * MILLION, 16),
    Shape(10 * MILLION, 64),
    Shape(MILLION, 16, "adagrad"),
    Shape(MILLION, 64, "adagrad"),
    Shape(2 * MILLION, 128),
    Shape(MILLION, 16, lengths="zipf"),
    Shape(MILLION, 64, lengths="zipf"),
    Shape(MILLION, 16, pooling="mean"),
    Shape(MILLION, 64, pooling="mean"),
    Shape(MILLION, 64, pooling="weighted"),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12, help="timed steps a repetition")
    parser.add_argument("--batches", type=int, default=12, help="distinct batches, cycled")
    parser.add_argument("--cells", type=int, nargs="*", help="numbers of cells to run, from 0")
    parser.add_argument("--without", nargs="*", default=[], help="contenders to leave out, by name")


def run_cell(shape: Shape, options: dict[str, Any]) -> list[Row]:
    """Builds everyone, checks them against each other, times them in turn."""
    work = make_workload(shape, options["examples"], options["batches"])
    with contextlib.ExitStack() as lifetime:
        contenders: dict[str, Contender] = {HPS: HpsPooled(work, options["threads"], lifetime)}
        if FBGEMM not in options["without"] and "fbgemm_gpu" not in options["absent"]:
            contenders[FBGEMM] = fbgemm_pooled(work)
        if TORCH not in options["without"]:
            contenders[TORCH] = TorchPooled(work)
        same_answers(contenders)
        million, num_batches = work.length / 1e6, len(work.batches)
        repetitions = options["repetitions"]
        bags = [(one.ids.numpy(), one.offsets.numpy()) for one in work.batches]
        table = PooledTable(shape.rows, shape.dim, row_bytes(hps_table(work)), bags)
        alone = PooledAlone([table], options["threads"])
        bounds = {ALONE: partial(alone.median_seconds, options["steps"])}
        samples = rates(contenders, million, num_batches, options["steps"], repetitions, bounds)
        for contender in contenders.values():
            contender.check()
        moved = work.bytes_moved(hps_table(work))
        seconds = million / samples[HPS].median
        notes = moved | {"memory_gb_per_s": moved["memory_bytes"] / seconds / 1e9}
        peers = {name: one for name, one in samples.items() if name not in (HPS, ALONE)}
        peers[BEST] = max(peers.values(), key=lambda one: one.median)
        peers[ALONE] = samples[ALONE]
        rows = [
            comparison_row(
                shape.axes,
                UNIT,
                samples[HPS],
                (name, one),
                floor=FLOOR if name == BEST else None,
            )
            | {"notes": notes}
            for name, one in peers.items()
        ]
        del contenders, alone, bounds
    gc.collect()
    return rows


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All cells; see add_arguments for the options."""
    options |= {"examples": EXAMPLES, "absent": absent_peers("fbgemm_gpu")}
    shapes = SHAPES
    if options["cells"]:
        shapes = [SHAPES[number] for number in options["cells"]]
    if smoke:
        options |= {"examples": 16, "batches": 3, "repetitions": 2, "steps": 2}
        shapes = [Shape(2000, 16), Shape(2000, 16, "adagrad", "zipf", "weighted")]
    warnings.filterwarnings("ignore", message=".*[Ss]parse invariant checks.*")
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1 if smoke else options["threads"])
    try:
        rows = [row for shape in shapes for row in run_cell(shape, options)]
    finally:
        torch.set_num_threads(threads_before)
    kept = ("threads", "examples", "batches", "steps")
    axes = {key: options[key] for key in kept} | {"features": 8, "mean_length": 20, "zipf": 1.05}
    return {"axes": axes, "rows": rows, "absent": options["absent"]}
