"""Whole training steps of a Pipeline with rows on a device: milliseconds a step, each stage's
share, and a profile of a few steps, kernel by kernel.

Above it: tools/gpu.sh (`python -m benchmarks.gpu_cache.pipeline_steps`). Below it: hps.Pipeline,
hps.SparseEmbedding, hps.RowOptimizer, torch's profiler. Batches are drawn from Zipf's law over
tables whose rows are all in the gpu_cache ("hits"), or of which it holds a quarter ("misses"). The
model is the sum of what is pooled, so that nothing but rows takes time. Device "cpu" is the host
build, by which this is tested.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.keys import ZipfIds, hashed_keys
from hps import _C
from hps.plan.sizes import PLAN_BYTES, SUMS_BYTES

CASES = ("hits", "misses")
_WARM_UP = 5
_KEYS_A_BAG = 2
_PROFILED = 3  # steps


class Steps:
    """A server with tables alike, and steps over it.

    Args:
        folder: of its store.
        case: "hits" or "misses".
        options: of the command line.
    """

    def __init__(self, folder: Path, case: str, options: argparse.Namespace) -> None:
        self.options = options
        self.names = [f"table{i}" for i in range(options.tables)]
        optimizer = hps.RowWiseAdagrad(lr=0.01)
        tables = [
            hps.TableConfig(name=name, dim=options.dim, optimizer=optimizer, features=[name])
            for name in self.names
        ]
        row_bytes = _C.row_layout(optimizer.kind, options.dim)["row_bytes"] + 5
        slots = 1.5 * options.rows if case == "hits" else 0.25 * options.rows
        occurrences = options.tables * options.examples * _KEYS_A_BAG
        a_key = PLAN_BYTES * (options.depth + 3) + SUMS_BYTES + 4 * options.dim
        batch_bytes = 2**22 + a_key * occurrences
        config = hps.Config(
            path=folder / case,
            tables=tables,
            dram=hps.DramCacheConfig(
                bytes=int(2 * options.tables * options.rows * row_bytes) + 2**20
            ),
            gpu=hps.GpuCacheConfig(
                bytes=int(options.tables * (slots * row_bytes + 65_536)) + batch_bytes,
                device=options.device,
                batch_bytes=batch_bytes,
            ),
        )
        self.server = hps.ParameterServer(config)
        self._ids = ZipfIds(options.rows)
        self._embeddings = [hps.SparseEmbedding(self.server, name) for name in self.names]
        self._optimizer = hps.RowOptimizer(self.server)

    def batches(self, count: int) -> list[hps.Batch]:
        """Of the host, each with memory of its own."""
        return [self._batch() for _ in range(count)]

    def _batch(self) -> hps.Batch:
        examples = self.options.examples
        offsets = torch.arange(0, examples * _KEYS_A_BAG + 1, _KEYS_A_BAG)
        features = {}
        for name in self.names:
            keys = hashed_keys(self._ids.batch(examples * _KEYS_A_BAG)).view(np.int64)
            features[name] = hps.Ids(torch.from_numpy(keys), offsets.clone())
        return hps.Batch(features, dense=torch.zeros(examples, 0), labels=torch.ones(examples))

    def fill(self) -> None:
        """Creates every row, so that what is timed are steps and no first ones."""
        most = 1 << 16
        for name in self.names:
            for start in range(0, self.options.rows, most):
                end = min(self.options.rows, start + most)
                self.server.pull(name, hashed_keys(np.arange(start, end)), create=True)

    def run(self, batches: list[hps.Batch]) -> Iterator[hps.Pipeline]:
        """A step a batch; yields after each one."""
        with hps.Pipeline(batches, self.server, depth=self.options.depth) as pipeline:
            for batch in pipeline:
                outputs = [embedding(batch) for embedding in self._embeddings]
                torch.stack([output.sum() for output in outputs]).sum().backward()
                self._optimizer.step()
                yield pipeline

    def settle(self) -> None:
        """Waits for the device."""
        if self.options.device.startswith("cuda"):
            torch.cuda.synchronize()


def measure(steps: Steps, case: str) -> dict[str, Any]:
    """Milliseconds of steps of one case, and of the stages beside them."""
    options = steps.options
    ends: list[float] = []
    batches = steps.batches(_WARM_UP + options.steps)
    busy: dict[str, dict[str, float]] = {}
    for number, pipeline in enumerate(steps.run(batches)):
        if number == _WARM_UP - 1:
            steps.settle()
            busy = pipeline.seconds()
            ends.append(time.perf_counter())
        elif number >= _WARM_UP:
            ends.append(time.perf_counter())
        if number == len(batches) - 1:
            steps.settle()
            ends[-1] = time.perf_counter()
            after = pipeline.seconds()
    gaps = 1e3 * np.diff(ends)
    stages = {
        stage: {
            name.replace("_seconds", "_ms"): 1e3 * (seconds - busy[stage][name]) / options.steps
            for name, seconds in of_stage.items()
        }
        for stage, of_stage in after.items()
    }
    cache = steps.server.stats()["gpu_cache"]
    occurrences = options.tables * options.examples * _KEYS_A_BAG
    mean = 1e3 * (ends[-1] - ends[0]) / options.steps
    return {
        "case": case,
        "device": _device_name(options.device),
        "tables": options.tables,
        "dim": options.dim,
        "rows": options.rows,
        "occurrences": occurrences,
        "depth": options.depth,
        "steps": options.steps,
        "ms_a_step": mean,
        "median_ms_between_steps": float(np.median(gaps)),
        "occurrences_per_microsecond": occurrences / mean / 1e3,
        "stages": stages,
        "gpu_cache": {name: cache[name] for name in ("hits", "misses", "evictions", "write_backs")},
    }


def profile(steps: Steps, case: str, folder: Path) -> None:
    """Writes a table, kernel by kernel, and a trace of a few steps."""
    is_cuda = steps.options.device.startswith("cuda")
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if is_cuda:
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    run = steps.run(steps.batches(_WARM_UP + _PROFILED))
    for _ in range(_WARM_UP):
        next(run)
    steps.settle()
    with torch.profiler.profile(activities=kinds) as profiler:
        for _ in run:
            pass
        steps.settle()
    order = "self_cuda_time_total" if is_cuda else "self_cpu_time_total"
    text = profiler.key_averages().table(sort_by=order, row_limit=100, max_name_column_width=80)
    (folder / f"profile_{case}.txt").write_text(f"{_PROFILED} steps of {case}\n{text}\n")
    profiler.export_chrome_trace(str(folder / f"profile_{case}.json"))


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def arguments(words: list[str] | None) -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cuda:N, or cpu for the host build")
    parser.add_argument("--tables", type=int, default=10)
    parser.add_argument("--rows", type=int, default=500_000, help="of a table")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--examples", type=int, default=16_384, help="of a batch")
    parser.add_argument("--steps", type=int, default=40, help="that are timed")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--profile", type=Path, help="a folder, for the profile of a few steps")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints a line a case; the figures as in --json."""
    options, found = arguments(words), []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            steps = Steps(Path(folder), case, options)
            with steps.server:
                steps.fill()
                found.append(measure(steps, case))
                if options.profile is not None:
                    options.profile.mkdir(parents=True, exist_ok=True)
                    profile(steps, case, options.profile)
        one = found[-1]
        busy = {stage: round(times["busy_ms"], 3) for stage, times in one["stages"].items()}
        print(f"{case}: {one['ms_a_step']:.3f} ms a step; busy ms {busy}", flush=True)
        if options.json is not None:  # what there is, should the next case fail
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
