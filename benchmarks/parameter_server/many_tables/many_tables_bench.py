"""A training step over many tables on the CPU: look-up, pooling, backward, optimizer.

26 tables of one feature each, Zipf 1.05, row-wise Adagrad, all rows in DRAM. hps gets 64-bit hashed
keys through SparseEmbeddings and RowOptimizer; the peers get the same ids, dense. Every contender
must read the same sums after its first step. python_share.py has the part of a step that is
Python's. Above it: benchmarks/run.py.
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
from benchmarks.parameter_server.many_tables.hps_tables import (
    HpsOneTable,
    HpsTables,
    tables_alone,
)
from benchmarks.parameter_server.many_tables.peers import (
    EmbeddingBags,
    EmbeddingBagsAdagrad,
    fbgemm,
    torchrec,
)
from benchmarks.parameter_server.many_tables.python_share import python_rows
from benchmarks.parameter_server.many_tables.workload import (
    TABLES,
    Shape,
    equal_shape,
    make_workload,
    mixed_shape,
)

HPS = "hps"
ONE_TABLE = "hps, the same keys in one table"
FBGEMM = "fbgemm tbe"
TORCHREC = "torchrec: fused EmbeddingBagCollection"
TORCH = "torch: EmbeddingBag(sparse) a table"
TORCH_ADAGRAD = "torch: the same + torch.optim.Adagrad"
BEST = "best of the peers"
ALONE = "the sums and updates alone, keys at no cost"
FOUND = "the same, each key found by one hash and one probe"
PEERS = {
    FBGEMM: (fbgemm, {"fbgemm_gpu"}),
    TORCHREC: (torchrec, {"fbgemm_gpu", "torchrec"}),
    TORCH: (EmbeddingBags, set()),
    TORCH_ADAGRAD: (EmbeddingBagsAdagrad, set()),
}
UNIT = "M occurrences/s"
# By kind, examples and ids of a bag.
FLOORS = {("equal", 4096, 1): 8.0, ("equal", 512, 1): 4.0, ("equal", 4096, 5): 2.5}
ONE_TABLE_FLOOR = 0.87


def shapes_of(largest: int) -> list[Shape]:
    """Every cell there is."""
    return [
        equal_shape(4096),
        equal_shape(512),
        equal_shape(4096, bag=5),
        mixed_shape(4096, largest),
        mixed_shape(512, largest),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--steps", type=int, default=16, help="timed steps a repetition")
    parser.add_argument("--batches", type=int, default=16, help="distinct batches, cycled")
    parser.add_argument("--largest", type=float, default=1e7, help="rows of the largest table")
    parser.add_argument(
        "--cells", type=int, nargs="*", help="numbers of cells to run, from 0; none: Python's share"
    )
    parser.add_argument("--without", nargs="*", default=[], help="contenders to leave out, by name")
    parser.add_argument(
        "--python-tables", type=int, nargs="*", default=[1, 8, 26, 52], help="of Python's share"
    )
    parser.add_argument("--tiny-steps", type=int, default=400, help="timed ones, of Python's share")


def peers_of(shape: Shape, options: dict[str, Any]) -> dict[str, Any]:
    """Those that take part in a cell, by name."""
    without, absent = options["without"], options["absent"].keys()
    return {
        name: make
        for name, (make, needs) in PEERS.items()
        # Its state is as large as the weights, which the largest tables leave no memory for.
        if name not in without and not needs & absent and (shape.is_equal or name != TORCH_ADAGRAD)
    }


def run_cell(shape: Shape, options: dict[str, Any]) -> list[Row]:
    """Builds everyone, checks them against each other, times them in turn."""
    work = make_workload(shape, options["batches"])
    with contextlib.ExitStack() as lifetime:
        contenders: dict[str, Contender] = {HPS: HpsTables(work, options["threads"], lifetime)}
        if shape.is_equal and ONE_TABLE not in options["without"]:
            contenders[ONE_TABLE] = HpsOneTable(work, options["threads"], lifetime)
        peers = peers_of(shape, options)
        contenders |= {name: make(work) for name, make in peers.items()}
        same_answers(contenders, apart=[TORCH_ADAGRAD])
        million, steps, repetitions = work.length / 1e6, options["steps"], options["repetitions"]
        alone = tables_alone(work, options["threads"])
        bounds = {
            ALONE: partial(alone.median_seconds, steps),
            FOUND: partial(alone.median_seconds, steps, finds=True),
        }
        samples = rates(contenders, million, len(work.batches), steps, repetitions, bounds)
        for contender in contenders.values():
            contender.check()
        del contenders, alone, bounds
    gc.collect()
    key = (shape.name, shape.examples, shape.bag)
    floors = {BEST: FLOORS.get(key), ONE_TABLE: ONE_TABLE_FLOOR}
    compared = {name: one for name, one in samples.items() if name != HPS}
    if peers:
        compared[BEST] = max((samples[name] for name in peers), key=lambda one: one.median)
    return [
        comparison_row(shape.axes, UNIT, samples[HPS], (name, one), floor=floors.get(name))
        for name, one in compared.items()
    ]


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All cells, then Python's share; see add_arguments for the options."""
    options["absent"] = absent_peers("fbgemm_gpu", "torchrec")
    options["largest"] = int(options["largest"])
    shapes = shapes_of(options["largest"])
    if options["cells"] is not None:
        shapes = [shapes[number] for number in options["cells"]]
    if smoke:
        options |= {"batches": 3, "repetitions": 2, "steps": 2}
        options |= {"python_tables": [1, 3], "tiny_steps": 10, "largest": 1000}
        shapes = [equal_shape(16, bag=2, tables=3, rows=500), mixed_shape(8, options["largest"])]
    warnings.filterwarnings("ignore", message=".*[Ss]parse invariant checks.*")
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1 if smoke else options["threads"])
    try:
        rows = [row for shape in shapes for row in run_cell(shape, options)]
        rows += python_rows(options)
    finally:
        torch.set_num_threads(threads_before)
    kept = ("threads", "batches", "steps", "largest", "python_tables", "tiny_steps")
    axes = {key: options[key] for key in kept} | {"tables": TABLES, "zipf": 1.05}
    return {"axes": axes, "rows": rows, "absent": options["absent"]}
