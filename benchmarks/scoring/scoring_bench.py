"""Scoring with a trained DeepFM: validation and `hps predict` beside `hps evaluate` of the same
examples, and requests of a few raw rows beside a plain torch model that is given dense ids.

One generated log of criteo's format. Requests are dicts of raw columns, as a server gets them:
`hps.Model.predict` hashes their text and looks up rows; the torch model has the same weights in an
nn.Embedding, and its ids are made before anything is timed. One torch thread; of several threads of
requests all share one model. Above it: benchmarks/run.py. Below it: passes.py, requests.py.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.report import Row, comparison_row
from benchmarks.scoring.passes import EVALUATE, PREDICT, VALIDATE, Logs, pass_rates
from benchmarks.scoring.requests import HPS, PERCENTILES, TORCH, call_rates, request_times

# Both do what `hps evaluate` does, and hold their own.
PASS_FLOOR = 0.95
# Threads that share a model make at least the calls of one.
RATE_FLOOR = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--examples", type=float, default=100_000, help="that are trained on")
    parser.add_argument("--scored", type=float, default=200_000, help="that are scored, V")
    parser.add_argument("--keys", type=float, default=1e6)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 512], help="rows of a request")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 2, 8], help="threads")
    parser.add_argument("--calls", type=int, default=1000, help="of a caller, for one row")
    parser.add_argument("--repetitions", type=int, default=7)


def pass_rows(logs: Logs, options: dict[str, Any]) -> list[Row]:
    """Examples a second of whole logs."""
    rates = pass_rates(logs, options["dim"], options["repetitions"])
    return [
        comparison_row(
            {"what": name, "rows": logs.num_scored, "callers": 1, "percentile": ""},
            "examples/s",
            rates[name],
            (EVALUATE, rates[EVALUATE]),
            floor=PASS_FLOOR,
        )
        for name in (VALIDATE, PREDICT)
    ]


def request_rows(logs: Logs, options: dict[str, Any]) -> list[Row]:
    """Milliseconds of single calls."""
    found = []
    for size in options["sizes"]:
        calls = max(20, options["calls"] // (1 + size // 16))
        for callers in options["callers"]:
            times = request_times(logs, size, callers, calls, options["repetitions"])
            found += [
                comparison_row(
                    {"what": HPS, "rows": size, "callers": callers, "percentile": percentile},
                    "ms",
                    times[HPS][percentile],
                    (TORCH, times[TORCH][percentile]),
                    lower_is_better=True,
                )
                for percentile in PERCENTILES
            ]
    return found


def rate_rows(logs: Logs, options: dict[str, Any]) -> list[Row]:
    """Calls a second of several threads that share a model, beside one thread's."""
    found = []
    for callers in options["callers"]:
        if callers == 1:
            continue
        several, one = call_rates(logs, callers, options["calls"], options["repetitions"])
        found.append(
            comparison_row(
                {"what": HPS, "rows": 1, "callers": callers, "percentile": ""},
                "calls/s",
                several,
                ("hps.Model.predict of one thread", one),
                floor=RATE_FLOOR,
            )
        )
    return found


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Whole logs, then requests; see add_arguments for the options."""
    if smoke:
        options |= {"examples": 2000, "scored": 2000, "keys": 2000, "dim": 4, "repetitions": 1}
        options |= {"callers": [1, 2], "calls": 10, "sizes": [1, 20]}
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            sizes = (int(options[name]) for name in ("examples", "scored", "keys"))
            logs = Logs(Path(folder), *sizes)
            rows = pass_rows(logs, options) + request_rows(logs, options)
            rows += rate_rows(logs, options)
    finally:
        torch.set_num_threads(threads_before)
    kept = ("examples", "scored", "keys", "dim", "sizes", "callers", "calls")
    return {"axes": {name: options[name] for name in kept} | {"model": "deepfm"}, "rows": rows}
