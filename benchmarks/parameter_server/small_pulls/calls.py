"""Times of single calls: the median and the slowest in a hundred, in turn with other calls.

Above it: small_pulls_bench.py. Below it: the clock.
"""

import time
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.common.timing import Samples

PERCENTILES = {"p50": 50.0, "p99": 99.0}
_WARM_UP = 20


def microseconds(call: Callable[[int], object], num_inputs: int, num_calls: int) -> np.ndarray:
    """Of each call, float64 [num_calls]; inputs are cycled, the first calls are not timed."""
    clock, taken = time.perf_counter_ns, np.empty(num_calls)
    for number in range(_WARM_UP):
        call(number % num_inputs)
    for number in range(num_calls):
        idx = number % num_inputs
        start = clock()
        call(idx)
        taken[number] = clock() - start
    return taken / 1e3


def in_turn(
    calls: Mapping[str, Callable[[int], object]], num_inputs: int, num_calls: int, repetitions: int
) -> dict[str, dict[str, Samples]]:
    """Of each call by its name: its percentiles by theirs, a figure a repetition."""
    found: dict[str, dict[str, list[float]]] = {
        name: {percentile: [] for percentile in PERCENTILES} for name in calls
    }
    for _ in range(repetitions):
        for name, call in calls.items():
            taken = microseconds(call, num_inputs, num_calls)
            for percentile, rank in PERCENTILES.items():
                found[name][percentile].append(float(np.percentile(taken, rank)))
    return {
        name: {percentile: Samples(tuple(one)) for percentile, one in by_percentile.items()}
        for name, by_percentile in found.items()
    }
