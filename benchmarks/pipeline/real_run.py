"""A training run whose rows lie on a cold disk: the loop of `hps train` over a store made before.

Above it: pipeline_bench.py, which starts each run as a process of its own, as `hps train` is. Below
it: hps.Pipeline, DeepFM, a generated log. Rows are read past the page cache (direct I/O), DRAM
holds a tenth of them. Nothing of a timed run is saved, so every run starts from the same store.
"""

import argparse
import json
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import hps
from benchmarks.common.modules import run_module
from benchmarks.common.server import row_bytes
from hps.config import limit_idle_spinning, num_cores
from hps.models import DeepFM
from hps.pipeline import Trace
from hps.reader import Reader, ReaderConfig, open_reader

_WARM_UP = 8


class _LeaveUnsaved(hps.HpsError):
    """Thrown through a server's `with` block, which then saves no checkpoint."""


@dataclass(frozen=True)
class Timed:
    """One run.

    Args:
        seconds: a batch.
        busy: stage -> busy seconds a batch.
        cpu_seconds: of the whole process, a batch.
    """

    seconds: float
    busy: dict[str, float]
    cpu_seconds: float

    @property
    def bound_seconds(self) -> float:
        """What no overlap can be faster than: the longest stage, and the cores all busy."""
        return max(*self.busy.values(), self.cpu_seconds / num_cores())


class RealRun:
    """A log, and a store that has been trained on it once, in a folder.

    Args:
        options: sizes of the log and the run.
        is_here: all in this process, for a smoke test.
    """

    def __init__(self, folder: Path, options: dict[str, Any], is_here: bool = False) -> None:
        self._folder = folder
        self._options = options
        self._run_module = partial(run_module, is_here=is_here)
        self._table = hps.TableConfig(
            name="rows", dim=options["dim"] + 1, optimizer=hps.Adagrad(lr=0.02)
        )

    def make(self) -> None:
        """Writes the log and stores every row of it."""
        sizes = ["--examples", int(self._options["examples"]), "--keys", int(self._options["keys"])]
        self._run_module("hps", "generate", self._folder / "log.tsv", *sizes)
        ample = int(1.3 * self._options["keys"] * row_bytes(self._table)) + (1 << 20)
        with self._server(ample) as server:
            for batch in self._reader():
                keys = batch.features[self._table.name].keys_L
                server.pull(self._table.name, keys, create=True)

    def run_apart(self, depth: int, torch_threads: int, trace: Path | None = None) -> Timed:
        """`run` in a process of its own, unless `is_here`."""
        limit_idle_spinning()  # as hps train does; the process inherits it
        words = ["benchmarks.pipeline.real_run", self._folder, json.dumps(self._options)]
        words += ["--depth", depth, "--torch-threads", torch_threads]
        words += [] if trace is None else ["--trace", trace]
        return Timed(**json.loads(self._run_module(*words)))

    def run(self, depth: int, trace_path: Path | None) -> Timed:
        """Trains on the log once; the first batches are not timed."""
        timed = None
        with hps.open(self._folder / "store") as stored:
            num_rows = stored.num_rows(self._table.name)
        # Of a small log a tenth would not hold a batch of 26 keys an example.
        rows = max(num_rows // 10, 2 * 26 * self._options["batch_size"])
        dram_bytes = rows * row_bytes(self._table)
        with suppress(_LeaveUnsaved), self._server(dram_bytes, direct_io=True) as server:
            with nullcontext() if trace_path is None else Trace(trace_path) as trace:
                timed = self._train(server, depth, trace)
            assert server.stats()["dram_cache"]["evictions"] > 0
            raise _LeaveUnsaved
        assert timed is not None
        return timed

    def _server(self, dram_bytes: int, direct_io: bool = False) -> Any:
        return hps.ParameterServer(
            hps.Config(
                path=self._folder / "store",
                tables=[self._table],
                dram=hps.DramCacheConfig(bytes=dram_bytes),
                ssd=hps.SsdStoreConfig(direct_io=direct_io),
            )
        )

    def _reader(self) -> Reader:
        config = ReaderConfig(format="criteo", batch_size=self._options["batch_size"])
        return open_reader(self._folder / "log.tsv", tables=[self._table], config=config)

    def _train(self, server: Any, depth: int, trace: Trace | None) -> Timed:
        torch.manual_seed(0)
        reader = self._reader()
        features = {name: len(columns) for name, columns in reader.features.items()}
        model = DeepFM(server, features, reader.num_dense)
        rows, dense = hps.RowOptimizer(server), torch.optim.Adam(model.parameters(), lr=0.001)
        criterion = torch.nn.BCEWithLogitsLoss()
        start = cpu_start = 0.0
        before: dict[str, dict[str, float]] = {}
        num_batches = 0
        with hps.Pipeline(reader, server, depth, trace=trace) as batches:
            for num_batches, batch in enumerate(batches, 1):
                criterion(model(batch), batch.labels).backward()
                rows.step()
                dense.step()
                dense.zero_grad()
                if num_batches == _WARM_UP:
                    start, cpu_start = time.perf_counter(), time.process_time()
                    before = batches.seconds()
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
            after = batches.seconds()
        timed = num_batches - _WARM_UP
        busy = {
            stage: (times["busy_seconds"] - before[stage]["busy_seconds"]) / timed
            for stage, times in after.items()
        }
        return Timed(seconds / timed, busy, cpu / timed)


def main() -> int:
    """One run; prints its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("options", type=json.loads)
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--torch-threads", type=int, required=True)
    parser.add_argument("--trace", type=Path, default=None)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.torch_threads)
    timed = RealRun(arguments.folder, arguments.options).run(arguments.depth, arguments.trace)
    json.dump(asdict(timed), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
