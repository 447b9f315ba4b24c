"""Hit rates with a look-ahead, beside LRU, LRU that knows the same window, and the optimum.

Above it: pipeline_bench.py. Below it: hps.Pipeline over a real server, policies.py.
"""

import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import hps
from benchmarks.common.keys import ZipfIds, hashed_keys
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.pipeline.policies import lru_hits, optimal_hits

WINDOW = 8
TABLE = hps.TableConfig(name="rows", dim=4, optimizer=hps.SGD(lr=0.1))
# Name -> exponent of the popularity, ranks by which the popular keys move on at each batch.
TRACES = {"static": (1.05, 0), "drifting": (0.9, 50)}


def trace(name: str, options: dict[str, Any]) -> list[np.ndarray]:
    """The distinct ids of each batch."""
    alpha, drift = TRACES[name]
    num_keys, length = options["trace_keys"], options["trace_batch"]
    ranks = ZipfIds(num_keys, alpha, seed=1, ranked=True)
    order = np.random.default_rng(2).permutation(num_keys)
    draws = (ranks.batch(length) + drift * number for number in range(options["trace_batches"]))
    return [np.unique(order[draw % num_keys]) for draw in draws]


def _batches(ids: list[np.ndarray]) -> Iterator[hps.Batch]:
    for one in ids:
        keys = torch.from_numpy(hashed_keys(one).view(np.int64))
        features = {TABLE.name: hps.Ids(keys, torch.arange(len(keys) + 1))}
        yield hps.Batch(features, torch.zeros(len(keys), 0), torch.ones(len(keys)))


def hps_hits(ids: list[np.ndarray], lookahead: int, dram_bytes: int) -> dict[str, Any]:
    """The dram_cache's counters over the second half of the batches."""
    with tempfile.TemporaryDirectory() as folder:
        dram = hps.DramCacheConfig(bytes=dram_bytes)
        with hps.ParameterServer(hps.Config(path=folder, tables=[TABLE], dram=dram)) as server:
            before: dict[str, Any] = {}
            with hps.Pipeline(_batches(ids), server, depth=1, lookahead=lookahead) as batches:
                for number, _ in enumerate(batches):
                    if number == len(ids) // 2:
                        before = server.stats()["dram_cache"]
            after = server.stats()["dram_cache"]
    counted = {name: after[name] - before[name] for name in ("hits", "misses", "spared")}
    return {**counted, "capacity_rows": after["capacity_rows"]}


def _rate(counted: dict[str, Any]) -> float:
    return float(counted["hits"] / (counted["hits"] + counted["misses"]))


def lookahead_rows(options: dict[str, Any]) -> list[Row]:
    """Each trace beside each rule."""
    rows = []
    for name in TRACES:
        ids = trace(name, options)
        half = len(ids) // 2 + 1
        asked = sum(len(one) for one in ids[half:])
        ahead = hps_hits(ids, WINDOW, options["trace_dram"])
        plain = hps_hits(ids, 0, options["trace_dram"])
        assert ahead["spared"] > 0 == plain["spared"]
        capacity = ahead["capacity_rows"]
        rules = {
            f"LRU that knows {WINDOW} batches": (lru_hits(ids, capacity, WINDOW), 0.98),
            "LRU": (lru_hits(ids, capacity), None),
            "the optimum, offline": (optimal_hits(ids, capacity), None),
        }
        value = Samples((_rate(ahead),))
        for rule, (hits, floor) in rules.items():
            rate = sum(hits[half:]) / asked
            floor = 1 - 0.003 / rate if rule == "LRU" else floor
            axes = {"figure": f"hit rate, look-ahead {WINDOW}", "trace": name}
            row = comparison_row(axes, "of keys", value, (rule, Samples((rate,))), floor=floor)
            rows.append({**row, "notes": {"without look-ahead": _rate(plain), **ahead}})
    return rows
