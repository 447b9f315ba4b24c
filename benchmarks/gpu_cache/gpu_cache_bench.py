"""The gpu_cache alone: look-ups, inserts with eviction, updates by slot, whole steps.

With device "cuda:N" on a GPU, each figure beside torch's nearest operation and beside the least
time that memory needs for its bytes (on_device.py). Without one, device "cpu": the host build of
the same kernels beside dram_cache. With --null-device no kernel at all: the host's part of a step
(null_device.py). Above it: benchmarks/run.py. Below it: hps/gpu_cache.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common.keys import EXAMPLES, FEATURES, ZipfIds, hashed_keys
from benchmarks.common.report import comparison_row
from benchmarks.common.server import FILL_KEYS
from benchmarks.common.timing import StepTimer, interleave
from benchmarks.gpu_cache.options import LR, UNIT, cache_options
from hps import _C


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:N on a machine with a GPU")
    parser.add_argument(
        "--null-device",
        action="store_true",
        help="the host's part of a step: a device that does nothing, over 1, 10 and 26 tables",
    )
    parser.add_argument("--rows", type=float, default=4e6, help="slots of the tables, about")
    parser.add_argument("--repetitions", type=int, default=21)


def insert(cache: Any, keys: Any, *, dirty: bool = True) -> None:
    """Takes slots for keys that are not there; their rows are initialised, or found below."""
    plan = cache.make_plan(keys, None)
    cache.find(plan, 0, -1)
    assert cache.reserve(plan)
    cache.victims(plan)
    count = plan.num_missing
    rows = np.zeros((count, cache.row_bytes), np.uint8)
    found = np.full(count, 0 if dirty else 1, np.uint8)
    rows.view(np.uint64)[:, 0] = cache.missing_keys(plan)
    cache.fill(plan, rows, found, LR, True)
    cache.release(plan)


class HostStep:
    """Pull and push of Zipf batches on one of the host's caches, with every row in it."""

    def __init__(self, cache: Any, rows: int, batches: list[np.ndarray], dim: int) -> None:
        self._cache, self._batches = cache, batches
        for _ in range(2):  # a dram_cache that grows may put a row out on its way
            for start in range(0, rows, FILL_KEYS):
                insert(cache, hashed_keys(np.arange(start, min(rows, start + FILL_KEYS))))
        assert cache.num_rows == rows, "a row gave way; not all are there"
        self._plan = cache.make_plan(batches[0], None)
        self._out = np.zeros((len(batches[0]), dim), np.float32)
        self._grads = np.full((len(batches[0]), dim), 1e-3, np.float32)

    def pull(self, idx: int) -> None:
        """Look-up and gather of a batch."""
        assert self._cache.pull(self._plan, self._batches[idx], self._out) == 0

    def step(self, idx: int) -> None:
        """Pull, then the update with the pull's plan."""
        self.pull(idx)
        if self._plan.num_unique == 0:
            self._cache.make_plan(self._batches[idx], self._plan)
            self._cache.find(self._plan, 0, -1)
        self._cache.push(self._plan, self._grads, LR)

    @property
    def out(self) -> np.ndarray:
        """What the last pull read."""
        return self._out


def run_on_host(smoke: bool, rows: int, repetitions: int) -> dict[str, Any]:
    """The host build of the kernels beside dram_cache: pull, and pull with push."""
    num_threads = 2
    length = (64 if smoke else EXAMPLES) * FEATURES
    ids = ZipfIds(rows)
    batches = [hashed_keys(ids.batch(length)) for _ in range(4 if smoke else 30)]
    result = []
    for dim in (16, 64):
        pool = _C.ThreadPool(num_threads)
        options = cache_options(dim, int(1.3 * rows))
        caches = {
            "gpu_cache": _C.GpuCache(pool=pool, **options),
            "dram_cache": _C.DramCache(pool=pool, instruction_set="auto", **options),
        }
        steps = {name: HostStep(one, rows, batches, dim) for name, one in caches.items()}
        for operation in ("pull", "step"):
            timers: dict[str, Callable[[], float]] = {}
            for name, step in steps.items():
                timer = StepTimer(getattr(step, operation), len(batches), 3 if smoke else 20)
                timers[name] = lambda t=timer: length / 1e6 / t.median_seconds()
            samples = interleave(timers, repetitions)
            for step in steps.values():
                getattr(step, operation)(0)
            mine, theirs = (steps[name].out for name in caches)
            assert operation == "step" or np.array_equal(mine, theirs), "different rows"
            axes = {"device": "cpu", "operation": operation, "dim": dim, "load": 0.77}
            baseline = ("dram_cache, 2 threads", samples["dram_cache"])
            result.append(comparison_row(axes, UNIT, samples["gpu_cache"], baseline, floor=0.5))
    return {
        "axes": {"operation": ["pull", "step"], "dim": [16, 64], "keys": [length], "rows": [rows]},
        "rows": result,
    }


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Rows as the device has them."""
    if smoke:
        options |= {"rows": 20_000, "repetitions": 2}
    rows, repetitions = int(options["rows"]), options["repetitions"]
    if options["null_device"]:
        from benchmarks.gpu_cache.null_device import run_null_device

        return run_null_device(smoke, repetitions)
    if options["device"] == "cpu":
        return run_on_host(smoke, min(rows, 10**6), repetitions)
    from benchmarks.gpu_cache.on_device import run_on_device

    return run_on_device(options["device"], rows, repetitions)
