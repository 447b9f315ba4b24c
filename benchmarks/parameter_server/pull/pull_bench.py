"""Pull alone: uniform random keys over rows in DRAM, beside a prefetched gather of the same rows.

The gather has row numbers instead of keys, so it bounds what any look-up can reach. Both sides lie
on the same kind of page; a batch is as long as the sparse step's. Above it: benchmarks/run.py.
"""

import argparse
import contextlib
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.huge_pages import huge_page_bytes
from benchmarks.common.keys import EXAMPLES, FEATURES, hashed_keys
from benchmarks.common.report import comparison_row
from benchmarks.common.server import TABLE, insert, require_all_in_dram, row_bytes, scratch_server
from benchmarks.common.timing import StepTimer, interleave
from benchmarks.parameter_server.pull.gather import PlainGather

DIM = 16
HEADER_BYTES = 16
BUDGET_OVER_ROWS = 1.3
GATHER = "prefetched plain gather, 1 thread"
UNIT = "M rows/s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, default=1e7)
    parser.add_argument("--repetitions", type=int, default=11)
    parser.add_argument("--steps", type=int, default=40, help="timed calls a repetition")
    parser.add_argument("--batches", type=int, default=50, help="distinct batches, cycled")


class Puller:
    """A server with every row in DRAM, and how much of its table lies on huge pages."""

    def __init__(self, rows: int, threads: int, lifetime: contextlib.ExitStack) -> None:
        table = hps.TableConfig(name=TABLE, dim=DIM, optimizer=hps.RowWiseAdagrad())
        budget = int(BUDGET_OVER_ROWS * rows * row_bytes(table))
        before = huge_page_bytes()
        self.server: Any = lifetime.enter_context(scratch_server(table, budget, threads))
        insert(self.server, torch.from_numpy(hashed_keys(np.arange(rows)).view(np.int64)))
        self.huge_part = (huge_page_bytes() - before) / budget
        require_all_in_dram(self.server, rows)
        assert self.server.num_rows(TABLE) == rows

    def check(self, keys: torch.Tensor) -> None:
        """A key reads as its own row wherever it is in a batch."""
        forward = torch.as_tensor(self.server.pull(TABLE, keys)).clone()
        backward = torch.as_tensor(self.server.pull(TABLE, keys.flip(0).contiguous()))
        assert torch.equal(forward, backward.flip(0)) and len(torch.unique(forward[:, 0])) > 1


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Two rows: one thread beside the gather, two threads beside one."""
    if smoke:
        options |= {"rows": 20_000, "repetitions": 2, "steps": 3, "batches": 4}
    rows = int(options["rows"])
    length = (64 if smoke else EXAMPLES) * FEATURES
    random = np.random.default_rng(0)
    ids = [random.integers(0, rows, length) for _ in range(options["batches"])]
    keys = [torch.from_numpy(hashed_keys(batch).view(np.int64)) for batch in ids]
    with contextlib.ExitStack() as lifetime:
        pullers = {threads: Puller(rows, threads, lifetime) for threads in (1, 2)}
        stride = row_bytes(hps.TableConfig(name=TABLE, dim=DIM, optimizer=hps.RowWiseAdagrad()))
        before = huge_page_bytes()
        gather = PlainGather(rows, stride, HEADER_BYTES, length)
        huge_part = (huge_page_bytes() - before) / (rows * stride)
        same_pages = all(abs(one.huge_part - huge_part) < 0.1 for one in pullers.values())
        assert smoke or same_pages, f"gather {huge_part:.2f} on huge pages, tables not alike"
        gather.check(ids[0])
        gather.tune(ids)
        out = torch.empty(length, DIM)
        steps = {GATHER: lambda idx: gather(ids[idx])}
        for threads, puller in pullers.items():
            puller.check(keys[0])
            steps[f"hps, {threads} thread" + "s" * (threads > 1)] = (
                lambda idx, server=puller.server: server.pull(TABLE, keys[idx], out=out)
            )
        timers = {name: StepTimer(step, len(ids), options["steps"]) for name, step in steps.items()}
        samples = interleave(
            {n: lambda t=timer: length / 1e6 / t.median_seconds() for n, timer in timers.items()},
            options["repetitions"],
        )
        for puller in pullers.values():
            require_all_in_dram(puller.server, rows)
    one, two = samples["hps, 1 thread"], samples["hps, 2 threads"]
    result = [
        comparison_row({"threads": 1}, UNIT, one, (GATHER, samples[GATHER]), floor=0.45),
        comparison_row({"threads": 2}, UNIT, two, ("hps, 1 thread", one), floor=1.7),
    ]
    result[0]["notes"] = {
        "prefetch_distance": gather.distance,
        "streaming_stores": gather.is_streaming,
        "huge_page_part_of_gather": huge_part,
        "huge_page_part_of_hps": pullers[1].huge_part,
    }
    return {"axes": {"rows": rows, "dim": DIM, "keys_a_batch": length}, "rows": result}
