"""Small reads as inference makes them, all rows in DRAM: microseconds a call, median and 99th
percentile.

pull() of a few keys beside torch's embedding() over a plain tensor; one example's pooled features
through SparseEmbedding and SparseEmbeddings, in eval mode without gradients, beside
nn.EmbeddingBag. Keys are hashed to 64 bits for hps, ids are dense for torch; both read the same
rows, Zipf 1.05, from 1000 different inputs. One thread, as where several requests are
answered at once. Above it: benchmarks/run.py.
"""

import argparse
import contextlib
import gc
import itertools
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.server import TABLE
from benchmarks.common.timing import Samples
from benchmarks.parameter_server.small_pulls.calls import PERCENTILES, in_turn
from benchmarks.parameter_server.small_pulls.pooled import (
    BAG_A_TABLE,
    JOINT,
    ONE_BAG,
    ONE_TABLE,
    TABLES,
    Bags,
    pooled_calls,
)
from benchmarks.parameter_server.small_pulls.rows import Rows, keys_of, zipf_ids

UNIT = "us"
EMBEDDING = "torch: functional.embedding"
NUMPY = "pull, numpy"
TENSOR = "pull, tensor"
# By keys: hps may take so many times as long as torch.
FLOORS = {26: 0.25, 512: 0.33}
POOLED_FLOOR = 0.25
BAGS = [Bags(26, 1), Bags(8, 20)]
# Of each module of hps, what it stands beside.
BESIDE = {ONE_TABLE: [ONE_BAG], TABLES: [ONE_BAG, BAG_A_TABLE], JOINT: [ONE_BAG, BAG_A_TABLE]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, default=1e6)
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 26, 128, 512], help="of a pull")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--calls", type=int, default=3000, help="timed calls a repetition")
    parser.add_argument("--inputs", type=int, default=1000, help="distinct inputs, cycled")


def rows_of(
    axes: dict[str, object],
    value: dict[str, Samples],
    baseline: tuple[str, dict[str, Samples]],
    floor: float | None,
) -> list[Row]:
    """A row a percentile; the floor is the median's."""
    name, samples = baseline
    return [
        comparison_row(
            axes | {"percentile": percentile},
            UNIT,
            value[percentile],
            (name, samples[percentile]),
            floor=floor if percentile == "p50" else None,
            lower_is_better=True,
        )
        for percentile in PERCENTILES
    ]


def same_rows(calls: dict[str, Callable[[int], Any]]) -> None:
    """Everyone reads the same from the first inputs; sums in another order may differ a little."""
    for idx in range(3):
        (first, reference), *others = (
            (name, torch.as_tensor(call(idx)).flatten().clone()) for name, call in calls.items()
        )
        for name, rows in others:
            assert torch.allclose(reference, rows, rtol=1e-4, atol=1e-5), f"{name}, not as {first}"


def pull_rows(dim: int, options: dict[str, Any]) -> list[Row]:
    """pull() of so many keys, as numpy array and as tensor, beside embedding()."""
    result = []
    num_inputs = options["inputs"]
    with contextlib.ExitStack() as lifetime:
        rows = Rows(options["rows"], dim, 1, options["threads"], lifetime)
        server, weights = rows.server, rows.weights
        for length in options["keys"]:
            ids = list(zipf_ids(options["rows"], length, num_inputs))
            tensors = [keys_of(one) for one in ids]
            arrays = [one.numpy() for one in tensors]
            calls: dict[str, Callable[[int], Any]] = {
                NUMPY: lambda idx, keys=arrays: server.pull(TABLE, keys[idx]),
                TENSOR: lambda idx, keys=tensors: server.pull(TABLE, keys[idx]),
                EMBEDDING: lambda idx, ids=ids: torch.nn.functional.embedding(ids[idx], weights),
            }
            same_rows(calls)
            samples = in_turn(calls, num_inputs, options["calls"], options["repetitions"])
            for name in (NUMPY, TENSOR):
                axes = {"what": name, "dim": dim, "keys": str(length)}
                beside = (EMBEDDING, samples[EMBEDDING])
                result += rows_of(axes, samples[name], beside, FLOORS.get(length))
        rows.check()
    gc.collect()
    return result


def pooled_rows(bags: Bags, dim: int, options: dict[str, Any]) -> list[Row]:
    """One example through the modules, beside nn.EmbeddingBag."""
    result = []
    shape = {key: options[key] for key in ("rows", "inputs", "threads")} | {"dim": dim}
    with contextlib.ExitStack() as lifetime, torch.no_grad():
        calls, read = pooled_calls(bags, shape, lifetime)
        same_rows(calls)
        samples = in_turn(calls, options["inputs"], options["calls"], options["repetitions"])
        for name, others in BESIDE.items():
            axes = {"what": name, "dim": dim, "keys": bags.text}
            for other in others:
                result += rows_of(axes, samples[name], (other, samples[other]), POOLED_FLOOR)
        for rows in read:
            rows.check()
        del calls, read
    gc.collect()
    return result


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Pulls, then modules; see add_arguments for the options."""
    options["rows"] = int(options["rows"])
    if smoke:
        options |= {"rows": 2600, "dims": [16], "keys": [1, 26], "repetitions": 2}
        options |= {"calls": 20, "inputs": 10}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1 if smoke else options["threads"])
    try:
        rows = [row for dim in options["dims"] for row in pull_rows(dim, options)]
        for bags, dim in itertools.product(BAGS, options["dims"]):
            rows += pooled_rows(bags, dim, options)
    finally:
        torch.set_num_threads(threads_before)
    kept = ("rows", "dims", "keys", "threads", "calls", "inputs")
    return {"axes": {key: options[key] for key in kept} | {"zipf": 1.05}, "rows": rows}
