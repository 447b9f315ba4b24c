"""One measurement of memory in a process of its own: fills a store, prints what it took as JSON.

Above it: memory_bench.py, which starts it as `python -m benchmarks.parameter_server.memory.worker`.
Below it: hps's public interface with numpy arrays, so that no tensor library weighs on the figures.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import hps
from benchmarks.common.keys import hashed_keys
from benchmarks.common.server import TABLE, dram, row_bytes, scratch_server

INSERT_KEYS = 1 << 16
SEARCH_KEYS = 1 << 8


def status_bytes(name: str) -> int:
    """A figure of /proc/self/status: VmRSS (now) or VmHWM (the most so far)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"/proc/self/status has no {name}")


def make_keys(kind: str, first: int, count: int) -> np.ndarray:
    """uint64 [count] distinct keys: the numbers from `first` on, as they are or hashed."""
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return hashed_keys(numbers) if kind == "hashed" else numbers


def fill(server: Any, kind: str, first: int, rows: int, stop_at_eviction: bool) -> int:
    """Stores new rows; returns how many. It can stop before the first piece that evicts."""
    piece_keys = SEARCH_KEYS if stop_at_eviction else INSERT_KEYS
    out = None
    for start in range(0, rows, piece_keys):
        keys = make_keys(kind, first + start, min(piece_keys, rows - start))
        if out is None or len(out) != len(keys):
            out = np.empty((len(keys), server.tables[TABLE].dim), np.float32)
        server.pull(TABLE, keys, out=out, create=True)
        if stop_at_eviction and dram(server)["evictions"] > 0:
            return start
    return rows


def main() -> int:
    """Reads the options, fills, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, required=True, help="rows to store")
    parser.add_argument("--budget-rows", type=int, required=True, help="rows the budget is for")
    parser.add_argument("--budget-factor", type=float, default=1.3)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--keys", choices=("sequential", "hashed"), default="hashed")
    parser.add_argument("--first", type=int, default=0, help="number of the first key")
    parser.add_argument("--stop-at-eviction", action="store_true")
    options = parser.parse_args()
    at_start = status_bytes("VmRSS")
    table = hps.TableConfig(name=TABLE, dim=options.dim, optimizer=hps.RowWiseAdagrad())
    budget = int(options.budget_factor * options.budget_rows * row_bytes(table))
    with scratch_server(table, budget, threads=2) as server:
        stored = fill(server, options.keys, options.first, options.rows, options.stop_at_eviction)
        tier = dram(server)
        figures = {
            "budget_bytes": budget,
            "row_bytes": row_bytes(table),
            "stored_rows": stored,
            "num_rows": server.num_rows(TABLE),
            "evictions": tier["evictions"],
            "capacity_rows": tier["capacity_rows"],
            "rss_at_start_bytes": at_start,
            "peak_rss_bytes": status_bytes("VmHWM"),
        }
    json.dump(figures, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
