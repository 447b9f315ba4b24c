"""Sparse training step on the CPU: pull, backward, optimizer, over one table that lies in DRAM.

4096 examples x 26 ids a batch, Zipf 1.05. hps gets 64-bit hashed keys through ParameterServer.pull
and push; the peers get the same ids, dense (FBGEMM, torch) or as the same 64-bit keys (TorchRec).
Every contender must read the same rows after its first step. Above it: benchmarks/run.py.
"""

import argparse
import contextlib
import gc
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.common.keys import EXAMPLES, FEATURES, ZipfIds, hashed_keys
from benchmarks.common.peers import absent_peers
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.server import row_bytes
from benchmarks.common.timing import Samples, StepTimer, interleave
from benchmarks.parameter_server.sparse_step.contender import Contender, Workload
from benchmarks.parameter_server.sparse_step.hps_server import HpsNarrow, HpsServer, hps_table
from benchmarks.parameter_server.sparse_step.memory_alone import MemoryAlone

HPS = "hps"
NARROW = "hps, bfloat16 outputs and gradients"
NARROW_ROWS = "hps, bfloat16 rows"
ALL_NARROW = "hps, bfloat16 rows, outputs and gradients"
UNIT = "M keys/s"
FBGEMM = "fbgemm tbe"
TORCH_INDEX_ADD = "torch: unique, index_add"
TORCH_SORT = "torch: sort, segment sum"
BAG = "torch: EmbeddingBag(sparse) + Adagrad"
MANAGED = "torchrec: managed collision + tbe"
BEST = "best of fbgemm and torch"
MEMORY = "the step's bytes moved, no work"
OWN = (HPS, NARROW, NARROW_ROWS, ALL_NARROW)
FLOORS_OF_ROWS = {NARROW_ROWS: 1.1, ALL_NARROW: 1.3}  # over float32 ones, at dim 64
FLOORS = {BEST: 2.9, FBGEMM + " adagrad": 3.0, MANAGED: 8.0}

NEEDS = {FBGEMM: {"fbgemm_gpu"}, MANAGED: {"fbgemm_gpu", "torchrec"}}

_MOST_ROWS_TWICE = 4_000_000  # more in two servers, beside the peers, are too many for 24 GiB

Factory = Callable[[], Contender]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, nargs="+", default=[1e6, 1e7])
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--optimizers", nargs="+", default=["rowwise_adagrad", "adagrad"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--steps", type=int, default=24, help="timed steps a repetition")
    parser.add_argument("--batches", type=int, default=50, help="distinct batches, cycled")
    parser.add_argument("--without", nargs="*", default=[], help="contenders to leave out, by name")
    parser.add_argument(
        "--peer-huge-pages", action="store_true", help="huge pages under the peers' tables, too"
    )
    parser.add_argument(
        "--ranked", action="store_true", help="dense ids ordered by popularity, not shuffled"
    )


def make_workload(rows: int, dim: int, options: dict[str, Any]) -> Workload:
    """Batches of a cell; asserts that they repeat keys as the click log they stand for does."""
    stream = ZipfIds(rows, ranked=options["ranked"])
    length = options["examples"] * FEATURES
    ids = [stream.batch(length) for _ in range(options["batches"])]
    repeated = 1 - len(np.unique(ids[0])) / length
    assert options["smoke"] or 0.55 < repeated < 0.75, f"{repeated:.2f} of a batch's keys repeat"
    generator = torch.Generator().manual_seed(0)
    return Workload(
        rows=rows,
        dim=dim,
        ids=[torch.from_numpy(batch) for batch in ids],
        keys=[torch.from_numpy(hashed_keys(batch).view(np.int64)) for batch in ids],
        grads=torch.randn(length, dim, generator=generator) * 0.01,
        peer_huge_pages=options["peer_huge_pages"],
    )


def factories(
    work: Workload, optimizer: str, threads: int, lifetime: contextlib.ExitStack
) -> dict[str, Factory]:
    """Who takes part in a cell, hps first."""
    from benchmarks.parameter_server.sparse_step.fbgemm import Fbgemm
    from benchmarks.parameter_server.sparse_step.managed_collision import ManagedCollision
    from benchmarks.parameter_server.sparse_step.plain_torch import EmbeddingBagAdagrad, PlainTorch

    numbers = np.arange(work.rows, dtype=np.int64)
    all_keys = torch.from_numpy(hashed_keys(numbers).view(np.int64))
    wide, narrow = (hps_table(work, optimizer, dtype) for dtype in ("float32", "bfloat16"))
    made: dict[str, Factory] = {HPS: lambda: HpsServer(work, wide, all_keys, threads, lifetime)}
    if work.rows <= _MOST_ROWS_TWICE:
        made[NARROW] = lambda: HpsNarrow(work, wide, all_keys, threads, lifetime)
        made[NARROW_ROWS] = lambda: HpsServer(work, narrow, all_keys, threads, lifetime)
        made[ALL_NARROW] = lambda: HpsNarrow(work, narrow, all_keys, threads, lifetime)
    if optimizer == "adagrad":
        made[FBGEMM] = lambda: Fbgemm(work, optimizer)
        made[BAG] = lambda: EmbeddingBagAdagrad(work)
    else:
        made[FBGEMM] = lambda: Fbgemm(work, optimizer)
        made[TORCH_INDEX_ADD] = lambda: PlainTorch(work, is_sorted=False)
        made[TORCH_SORT] = lambda: PlainTorch(work, is_sorted=True)
        made[MANAGED] = lambda: ManagedCollision(work, all_keys)
    return made


def same_answers(contenders: dict[str, Contender]) -> None:
    """Steps everyone once on batch 0 and compares what each then reads."""
    for contender in contenders.values():
        contender.step(0)
    (first, reference), *others = ((name, one.rows_of(0)) for name, one in contenders.items())
    for name, rows in others:
        if name in OWN:  # a first step of Adagrad has only the sign of what was rounded
            agrees = float(torch.isclose(reference, rows, 2**-7, 1e-3).float().mean()) > 0.97
        else:
            agrees = torch.allclose(reference, rows, rtol=1e-4, atol=1e-6)
        assert agrees, f"{name} differs from {first}"


def rates(
    contenders: dict[str, Contender], memory: MemoryAlone, work: Workload, options: dict[str, Any]
) -> tuple[dict[str, Samples], dict[str, StepTimer]]:
    """Interleaved repetitions, in millions of requested keys a second; memory's among them."""
    timers = {
        name: StepTimer(contender.step, len(work.ids), options["steps"])
        for name, contender in contenders.items()
    }
    million = work.length / 1e6
    for timer in timers.values():
        timer.median_seconds()
    measures = {n: lambda t=timer: million / t.median_seconds() for n, timer in timers.items()}
    measures[MEMORY] = lambda: million / memory.median_seconds(options["steps"])
    return interleave(measures, options["repetitions"]), timers


def cell_rows(axes: dict[str, Any], samples: dict[str, Samples]) -> list[Row]:
    """A row a peer, and one for the best of FBGEMM and torch on dense ids."""
    suffix = " adagrad" if axes["optimizer"] == "adagrad" else ""
    compared = {name: one for name, one in samples.items() if name not in OWN}
    dense = {name: one for name, one in compared.items() if name not in (MANAGED, MEMORY)}
    if not suffix and dense:
        compared[BEST] = max(dense.values(), key=lambda one: one.median)
    rows = [
        comparison_row(axes, UNIT, samples[HPS], (name, one), floor=FLOORS.get(name + suffix))
        for name, one in compared.items()
    ]
    if NARROW in samples and dense:  # beside peers in float32
        best = max(dense.values(), key=lambda one: one.median)
        narrow = {**axes, "output": "bfloat16"}
        floor = FLOORS[BEST] if axes["dim"] == 64 and not suffix else None
        rows.append(comparison_row(narrow, UNIT, samples[NARROW], (BEST, best), floor=floor))
        rows.append(comparison_row(narrow, UNIT, samples[NARROW], (HPS, samples[HPS])))
    for name, output in ((NARROW_ROWS, "float32"), (ALL_NARROW, "bfloat16")):
        if name in samples:
            floor = FLOORS_OF_ROWS[name] if axes["dim"] == 64 else None
            wide = (HPS, samples[HPS])
            place = {**axes, "row_dtype": "bfloat16", "output": output}
            rows.append(comparison_row(place, UNIT, samples[name], wide, floor=floor))
    return rows


def run_cell(axes: dict[str, Any], work: Workload, options: dict[str, Any]) -> list[Row]:
    """Builds everyone, checks them against each other, times them in turn."""
    absent = options["absent"]
    with contextlib.ExitStack() as lifetime:
        made = factories(work, axes["optimizer"], options["threads"], lifetime)
        contenders = {}
        for name, make in made.items():
            needs = NEEDS.get(name, set())
            if not needs & absent.keys() and name not in options["without"]:
                contenders[name] = make()
        same_answers(contenders)
        table = hps_table(work, axes["optimizer"])
        memory = MemoryAlone(work, row_bytes(table), options["threads"])
        samples, timers = rates(contenders, memory, work, options)
        for contender in contenders.values():
            contender.check()
        rows = cell_rows(axes, samples)
        for row in rows:
            timer = timers.get(row["baseline"])
            if timer is not None:
                row["notes"] = {"baseline_slowest_step_seconds": timer.slowest_seconds}
        del contenders, made, timers, memory
    gc.collect()
    return rows


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All cells; see add_arguments for the options."""
    options |= {
        "smoke": smoke,
        "examples": EXAMPLES,
        "absent": absent_peers("fbgemm_gpu", "torchrec"),
    }
    if smoke:
        options |= {"rows": [5000], "dims": [16], "examples": 64, "batches": 4}
        options |= {"repetitions": 2, "steps": 2}
    warnings.filterwarnings("ignore", message=".*[Ss]parse invariant checks.*")
    rows: list[Row] = []
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1 if smoke else options["threads"])
    try:
        for num_rows, dim in itertools.product(map(int, options["rows"]), options["dims"]):
            work = make_workload(num_rows, dim, options)
            for optimizer in options["optimizers"]:
                axes = {"rows": num_rows, "dim": dim, "optimizer": optimizer}
                rows += run_cell(axes, work, options)
    finally:
        torch.set_num_threads(threads_before)
    kept = (
        "rows",
        "dims",
        "optimizers",
        "threads",
        "examples",
        "batches",
        "steps",
        "ranked",
        "peer_huge_pages",
    )
    axes = {key: options[key] for key in kept} | {"features": FEATURES, "zipf": 1.05}
    return {"axes": axes, "rows": rows, "absent": options["absent"]}
