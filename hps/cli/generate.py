"""`hps generate`: flags to a synthetic click log, and the figures of the model planted in it.

Above it: `hps.cli.main`. Below it: `hps.generate`.
"""

import argparse
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from hps.cli.output import HelpFormatter
from hps.errors import ConfigError
from hps.generate.config import FORMATS, GeneratorConfig


def add_parsers(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds `generate`."""
    parser = subparsers.add_parser(
        "generate",
        help="write a synthetic click log from a planted model",
        description="Writes a click log whose best possible AUC is known, and OUT.json with its "
        "figures. Keys of a feature follow a Zipf law; clicks follow a planted model.",
        formatter_class=HelpFormatter,
    )
    default = GeneratorConfig()
    parser.add_argument("out", type=Path, metavar="OUT", help="the log's file")
    parser.add_argument("--format", choices=FORMATS, default="criteo", help="layout of the log")
    add = parser.add_argument
    add("--examples", type=int, default=default.examples, help="lines of the log")
    add("--features", type=int, default=default.features, help="categorical features")
    add("--dense", type=int, default=default.dense, help="numeric columns")
    add("--keys", type=int, default=default.keys, help="keys of all features together")
    add("--alpha", type=float, default=default.alpha, help="exponent of the Zipf laws")
    add("--drift", type=float, default=default.drift, help="part of the keys that trade places")
    add("--click-rate", type=float, default=default.click_rate, help="mean label")
    add("--spread", type=float, default=default.spread, help="deviation of the planted log-odds")
    add("--seed", type=int, default=default.seed, help="equal seeds give equal logs")
    add("--test", type=Path, default=None, metavar="OUT2", help="held-out part, same model")
    add("--test-examples", type=int, default=default.test_examples, help="lines of OUT2")
    add("--threads", type=int, default=0, help="0: one a core; changes no byte")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the log as the flags say; returns the exit status."""
    if (arguments.test is None) != (arguments.test_examples == 0):
        raise ConfigError("generate: --test OUT2 and --test-examples N go together; give both")
    if arguments.threads < 0:
        raise ConfigError(f"generate: --threads {arguments.threads} must be at least 0")
    given = {field.name: getattr(arguments, field.name) for field in fields(GeneratorConfig)}
    config = GeneratorConfig(**given)

    from hps.generate.log import LogWriter  # numba takes its time to import

    num_threads = arguments.threads or len(os.sched_getaffinity(0))
    writer = LogWriter(config, arguments.format, num_threads)
    progress = _live_line(config.examples) if sys.stderr.isatty() else None
    _report(writer.write(arguments.out, progress))
    if arguments.test is not None:
        _report(writer.write_test(arguments.test))
    return 0


def _live_line(total: int) -> Any:
    def show(done: int) -> None:
        end = "\n" if done == total else ""
        print(f"\r{done:,} of {total:,} examples", end=end, file=sys.stderr, flush=True)

    return show


def _report(figures: dict[str, Any]) -> None:
    print(
        f"{figures['path']}: {figures['examples']:,} examples, {figures['clicks']:,} clicks, "
        f"{figures['distinct_keys']:,} distinct keys, {figures['bytes'] / 1e6:.1f} MB\n"
        f"  best possible AUC {figures['best_auc']:.4f}, logloss {figures['best_logloss']:.4f} "
        f"(the planted model's own)\n"
        f"  {figures['megabytes_per_second']:.0f} MB/s, "
        f"{figures['keys_per_second'] / 1e6:.1f} M keys/s in {figures['seconds']:.2f} s"
        f" (and {figures['compile_seconds']:.2f} s to compile or load the kernels)"
    )
