"""What overlapping the stages brings: beside the longest stage, beside depth 0, and its own cost.

Above it: benchmarks/run.py. Below it: waiting.py (stages that wait at a given rate), lookahead.py
(hit rates), real_run.py (a training run over a cold disk).
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples, interleave
from benchmarks.pipeline.lookahead import lookahead_rows
from benchmarks.pipeline.real_run import RealRun, Timed
from benchmarks.pipeline.waiting import Loop, Waits, overhead_seconds

STAGES = ("network", "fetch", "copy", "compute")
LONG, SHORT = 0.012, 0.008  # seconds a batch of the longest stage, and of the others
MOST_OVERHEAD = 150e-6  # seconds a batch
DEPTH = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--examples", type=float, default=400_000)
    parser.add_argument("--keys", type=float, default=5e6, help="keys of the generated log")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--waiting-batches", type=int, default=60)
    parser.add_argument("--overhead-batches", type=int, default=3000)
    parser.add_argument("--trace-keys", type=int, default=1_000_000, help="of the hit rates")
    parser.add_argument("--trace-batch", type=int, default=16_384)
    parser.add_argument("--trace-batches", type=int, default=120)
    parser.add_argument("--trace-dram", default="4MiB")
    parser.add_argument("--torch-threads", type=int, default=2)
    parser.add_argument("--folder", default=None, help="where log and stores lie while it runs")
    parser.add_argument("--trace", type=Path, default=None, help="a trace of the real run, as JSON")


def waiting_rows(folder: Path, options: dict[str, Any]) -> list[Row]:
    """Stages that wait: the step beside the longest stage, each stage in turn being that."""
    loop = Loop(folder, options["waiting_batches"])
    rows = []
    for longest in STAGES:
        waits = Waits(**{stage: LONG if stage == longest else SHORT for stage in STAGES})
        steps, stages, in_turn = [], [], []
        for _ in range(options["repetitions"]):
            in_turn.append(loop.run(0, waits)[0])
            seconds, busy = loop.run(DEPTH, waits)
            steps.append(1e3 * seconds)
            stages.append(1e3 * max(busy.values()))
        baseline = ("busy ms of the longest stage", Samples(tuple(stages)))
        row = comparison_row(
            {"figure": "step of stages that wait", "longest": longest},
            "ms",
            Samples(tuple(steps)),
            baseline,
            floor=1 / 1.10,
            lower_is_better=True,
        )
        rows.append({**row, "notes": {"depth_0_ms": 1e3 * Samples(tuple(in_turn)).median}})
    return rows


def overhead_row(options: dict[str, Any]) -> Row:
    """What a batch costs more at depth 2 than at depth 0 where there is nothing to overlap."""
    count = options["overhead_batches"]
    seconds = interleave(
        {
            "in turn": lambda: overhead_seconds(0, count),
            "ahead": lambda: overhead_seconds(DEPTH, count),
        },
        options["repetitions"],
    )
    pairs = zip(seconds["ahead"].values, seconds["in turn"].values, strict=True)
    # A negative difference is noise; the ratio needs something above 0.
    extra = Samples(tuple(1e6 * max(ahead - in_turn, 1e-7) for ahead, in_turn in pairs))
    most = Samples((1e6 * MOST_OVERHEAD,) * len(extra.values))
    return comparison_row(
        {"figure": "scheduling of a batch"},
        "us",
        extra,
        ("the limit", most),
        floor=1.0,
        lower_is_better=True,
    )


def real_rows(folder: Path, options: dict[str, Any], smoke: bool) -> tuple[list[Row], str]:
    """The real run: beside the bound of its stages and cores, and beside depth 0."""
    sizes = {name: options[name] for name in ("examples", "keys", "dim", "batch_size")}
    real = RealRun(folder, sizes, is_here=smoke)
    real.make()
    threads = options["torch_threads"]
    in_turn: list[Timed] = []
    ahead: list[Timed] = []
    for number in range(options["repetitions"]):
        in_turn.append(real.run_apart(0, threads))
        ahead.append(real.run_apart(DEPTH, threads, options["trace"] if number == 0 else None))
    examples = options["batch_size"]
    rates = Samples(tuple(examples / one.seconds for one in ahead))
    bounds = Samples(tuple(examples / one.bound_seconds for one in in_turn))
    before = Samples(tuple(examples / one.seconds for one in in_turn))
    axes = {"figure": "real run, cold disk, DRAM for 1/10 of the rows"}
    rows = [
        comparison_row(
            axes,
            "examples/s",
            rates,
            ("longest stage, or cores, at depth 0", bounds),
            floor=0.9,
        ),
        comparison_row(axes, "examples/s", rates, ("depth 0", before), floor=0.97),
    ]
    return rows, _stage_table({"depth 0": in_turn[-1], f"depth {DEPTH}": ahead[-1]})


def _stage_table(runs: dict[str, Timed]) -> str:
    lines = ["real run, ms a batch (last repetition)"]
    for name, run in runs.items():
        stages = ", ".join(f"{stage} {1e3 * busy:.1f}" for stage, busy in run.busy.items())
        lines.append(
            f"  {name}: {1e3 * run.seconds:.1f}; busy {stages}; cpu {1e3 * run.cpu_seconds:.1f}"
        )
    return "\n".join(lines)


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All parts; see add_arguments for the options."""
    if smoke:
        options |= {"examples": 1500, "keys": 20_000, "batch_size": 64, "repetitions": 1}
        options |= {"waiting_batches": 14, "overhead_batches": 50, "torch_threads": 1}
        options |= {"trace_keys": 5000, "trace_batch": 500, "trace_batches": 40}
        options |= {"trace_dram": "60KiB"}
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        (Path(folder) / "waiting").mkdir()
        rows = waiting_rows(Path(folder) / "waiting", options)
        rows.append(overhead_row(options))
        rows += lookahead_rows(options)
        real, table = real_rows(Path(folder), options, smoke)
    axes = {key: options[key] for key in ("examples", "keys", "dim", "batch_size", "torch_threads")}
    return {"axes": {**axes, "depth": DEPTH}, "rows": [*rows, *real], "tables": [table]}
