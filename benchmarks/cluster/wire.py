"""Collectives alone: what an exchange of so many bytes costs each of several processes.

Above it: calibrate.py, which starts the processes. Below it: hps.cluster.world.torch_world.
"""

import json
import sys
import time
from statistics import median
from typing import Any

import torch

from hps.cluster.world.torch_world import torch_world


def measure(channel: Any, nbytes: int, repetitions: int) -> dict[str, float]:
    """Median seconds, and mean processor seconds, of an exchange of `nbytes` handed over."""
    part = max(1, nbytes // channel.size)
    counts = [part] * channel.size
    rows = torch.zeros(part * channel.size, dtype=torch.uint8)
    durations, cpu = [], 0.0
    for number in range(-3, repetitions):
        if number == 0:
            cpu = time.process_time()
        began = time.perf_counter()
        channel.exchange(rows, counts, counts)
        durations.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    return {"seconds": median(durations[3:]), "cpu_seconds": cpu / repetitions}


def main() -> int:
    """One rank; prints the costs of each size as JSON."""
    options = json.loads(sys.argv[1])
    world = torch_world("gloo", timeout_seconds=120.0)
    found = [measure(world.rows, size, options["repetitions"]) for size in options["bytes"]]
    world.close()
    json.dump(found, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
