"""Training on several ranks: what travels, what the exchange costs, and how far it would scale.

All ranks share this machine's cores. Above it: benchmarks/run.py. Below it: rank.py (one rank's
run), ranks.py (threads, or processes over gloo), simulator.py, fed by calibrate.py.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

from benchmarks.cluster.calibrate import alone, slowdown, steps_of, this_machine, wire_costs
from benchmarks.cluster.rank import RunOptions, Timed
from benchmarks.cluster.ranks import (
    run_apart,
    run_processes,
    run_threads,
    run_threads_apart,
)
from benchmarks.cluster.simulator import Machine, Simulation, Step
from benchmarks.cluster.workload import Workload
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from hps.cluster.exchange.hot_rows import PERIOD_STEPS
from hps.config import num_cores

BYTES_FLOOR = 1 / 1.1
SHARED_FLOOR = 0.8  # of one rank's throughput, with as many threads in all
EXCHANGE_FLOOR = 0.97  # of throughput without the exchange's code; asked on a GPU
CLOSENESS_FLOOR = 0.85  # of the simulation and the measurement, the smaller over the larger
CHECKED_RANKS = (1, 2, 4)
SHOWN_RANKS = (1, 2, 4, 8, 16, 32, 64)
# A rank on a host of its own, as this one, on a network of 25 Gb/s.
NETWORK_BYTES_PER_SECOND = 25e9 / 8
NETWORK_LATENCY = 50e-6
Runs = Callable[[RunOptions, int], list[Timed]]
_SMOKE_RUNS: tuple[Runs, Runs] = (run_threads, run_processes)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--keys", type=float, default=1e6, help="of all features")
    parser.add_argument("--batch-size", type=int, default=8192, help="examples of all ranks")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30, help="timed ones of a repetition")
    parser.add_argument("--threads", type=int, default=2, help="of all ranks together")
    parser.add_argument("--hot-rows", type=int, default=2000)
    parser.add_argument("--repetitions", type=int, default=5)


def seconds_of(ranks: Sequence[Timed]) -> float:
    """Of a step: that of the slowest rank."""
    return max(rank.seconds for rank in ranks)


def bytes_row(axes: dict[str, Any], ranks: Sequence[Timed], exact: bool = True) -> Row:
    """What all ranks send beside the distinct keys, rows and gradients that have to travel."""
    least = Samples((sum(rank.least_bytes for rank in ranks) / len(ranks),))
    sent = Samples((sum(rank.bytes_sent for rank in ranks) / len(ranks),))
    baseline = ("distinct keys, their rows and gradients, counted", least)
    floor = BYTES_FLOOR if exact else None
    figure = {"figure": "sent by a rank", **axes}
    return comparison_row(figure, "bytes a step", sent, baseline, floor=floor, lower_is_better=True)


def throughput_rows(
    options: RunOptions, form: str, runs: Runs, repetitions: int, threads: int
) -> tuple[list[Row], str]:
    """Two ranks beside one with as many threads in all; one rank with the exchange beside none."""
    whole, half = replace(options, threads=threads), replace(options, threads=max(1, threads // 2))
    contenders = {
        "2 ranks": (half, 2),
        "1 rank": (whole, 1),
        "1 rank, no exchange": (replace(whole, plain=True), 1),
    }
    found = repeat(contenders, runs, repetitions)
    rates = {
        name: Samples(tuple(options.log.batch_size / seconds_of(ranks) for ranks in made))
        for name, made in found.items()
    }
    unit = "examples/s"
    figure = {"figure": "2 ranks that share the cores", "ranks are": form}
    rows = [
        comparison_row(figure, unit, rates["2 ranks"], (name, rates[name]), floor=SHARED_FLOOR)
        for name in ("1 rank", "1 rank, no exchange")
    ]
    figure = {"figure": "1 rank with the exchange", "ranks are": form}
    baseline = ("without", rates["1 rank, no exchange"])
    rows.append(comparison_row(figure, unit, rates["1 rank"], baseline))
    return rows, stage_table(form, found)


def repeat(
    contenders: dict[str, tuple[RunOptions, int]], runs: Runs, repetitions: int
) -> dict[str, list[list[Timed]]]:
    """Every contender once a repetition, in turn."""
    found: dict[str, list[list[Timed]]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, (options, size) in contenders.items():
            found[name].append(runs(options, size))
    return found


def stage_table(form: str, found: dict[str, list[list[Timed]]]) -> str:
    """Milliseconds a step by stage, and what of them is spent in collectives."""
    lines = [f"ranks as {form}, ms a step (medians over repetitions, means over ranks)"]
    for name, made in found.items():
        ranks = [rank for repetition in made for rank in repetition]
        stages = {stage: median(rank.busy[stage] for rank in ranks) for stage in ranks[0].busy}
        waits = {
            channel: median(rank.waits[channel] for rank in ranks) for channel in ranks[0].waits
        }
        text = ", ".join(f"{stage} {1e3 * value:.2f}" for stage, value in stages.items())
        within = ", ".join(f"{channel} {1e3 * value:.2f}" for channel, value in waits.items())
        seconds = median(seconds_of(repetition) for repetition in made)
        # Threads of one process have its processor time in common.
        total = max if form == "threads" else sum
        cpu = median(total([rank.cpu_seconds for rank in repetition]) for repetition in made)
        lines.append(
            f"  {name}: {1e3 * seconds:.2f}; busy {text}; in collectives {within or 'none'}; "
            f"processor {1e3 * cpu:.2f}"
        )
    return "\n".join(lines)


def format_rows(options: RunOptions, hot_rows: int, runs: Runs, repetitions: int) -> list[Row]:
    """Hot rows on every rank, and narrower formats, beside neither: throughput and bytes."""
    # Which rows are hot is found out first.
    options = replace(options, warm_up=options.warm_up + PERIOD_STEPS)
    contenders = {"as it is": (options, 2)}
    changes: dict[str, dict[str, Any]] = {
        f"{hot_rows} hot rows": {"hot_rows": hot_rows},
        "bfloat16": {"row_wire": "bfloat16", "gradient_wire": "bfloat16"},
        "int8": {"row_wire": "int8", "gradient_wire": "int8"},
    }
    contenders |= {
        name: (replace(options, cluster=cluster), 2) for name, cluster in changes.items()
    }
    found = repeat(contenders, runs, repetitions)
    rows = []
    for name in changes:
        rates = [
            Samples(tuple(options.log.batch_size / seconds_of(ranks) for ranks in found[each]))
            for each in (name, "as it is")
        ]
        sent = [
            Samples(tuple(mean(rank.bytes_sent for rank in ranks) for ranks in found[each]))
            for each in (name, "as it is")
        ]
        axes = {"figure": f"2 ranks, {name}", "ranks are": "processes"}
        rows.append(comparison_row(axes, "examples/s", rates[0], ("as it is", rates[1])))
        baseline = ("as it is", sent[1])
        rows.append(comparison_row(axes, "bytes a step", sent[0], baseline, lower_is_better=True))
    return rows


def side_by_side(options: RunOptions, ranks: int, runs: Runs, smoke: bool) -> list[Timed]:
    """As many runs of one rank, at once, with parts of that size, that know none of the others."""
    part = alone(options, ranks)
    return runs(part, 1) if smoke else run_apart(part, ranks)


def simulated(
    machine: Machine, options: RunOptions, steps: Sequence[Step], size: int, seeds: int
) -> float:
    """Seconds a step; the median of several draws."""
    return median(
        Simulation(machine, steps, size, options.depth, seed).seconds_per_step()
        for seed in range(seeds)
    )


def simulator_rows(
    options: RunOptions, runs: Runs, repetitions: int, smoke: bool
) -> tuple[list[Row], str]:
    """Ranks that share this machine, simulated and measured; then ranks on hosts of their own."""
    repeated = range(repetitions)
    single = {n: [runs(alone(options, n), 1)[0] for _ in repeated] for n in CHECKED_RANKS}
    steps = {n: [step for one in single[n] for step in steps_of(one)] for n in CHECKED_RANKS}
    wire = wire_costs(10, (2,)) if smoke else wire_costs(200)
    machines = {}
    for size in CHECKED_RANKS[1:]:
        many = [one for _ in repeated for one in side_by_side(options, size, runs, smoke)]
        slowed = slowdown(single[size], many, size / num_cores())
        machines[size] = this_machine(num_cores(), slowed, wire)
    machines[1] = machines[CHECKED_RANKS[1]]
    contenders = {str(size): (options, size) for size in CHECKED_RANKS}
    found = repeat(contenders, runs, repetitions)
    rows = []
    for size in CHECKED_RANKS:
        predicted = simulated(machines[size], options, steps[size], size, 1 if smoke else 5)
        measured = Samples(tuple(1e3 * seconds_of(ranks) for ranks in found[str(size)]))
        rows.append(closeness_row(size, 1e3 * predicted, measured))
    text = scaling_table(machines[1], options, steps, (1, 2) if smoke else SHOWN_RANKS)
    return rows, "\n".join([*(f"{n} ranks: {of}" for n, of in sorted(machines.items())), text])


def closeness_row(size: int, predicted_ms: float, measured: Samples) -> Row:
    """A prediction beside measurements; the ratio is the smaller over the larger."""
    closeness = [min(predicted_ms / ms, ms / predicted_ms) for ms in measured.values]
    middle = measured.median
    return {
        "figure": "simulated step",
        "ranks": size,
        "value": predicted_ms,
        "unit": "ms",
        "baseline": "measured",
        "baseline_value": middle,
        "ratio": min(predicted_ms / middle, middle / predicted_ms),
        "floor": CLOSENESS_FLOOR,
        "repetitions": len(measured.values),
        "spread": {
            "value": [predicted_ms, predicted_ms],
            "baseline_value": measured.spread,
            "ratio": [min(closeness), max(closeness)],
        },
    }


def scaling_table(
    machine: Machine, options: RunOptions, steps: dict[int, list[Step]], sizes: Sequence[int]
) -> str:
    """Ranks on hosts like this one: each with the whole batch's quarter, and one batch for all."""
    hosts = replace(
        machine,
        ranks_per_host=1,
        latency_seconds=NETWORK_LATENCY,
        bytes_per_second=NETWORK_BYTES_PER_SECOND,
    )
    part = options.log.batch_size // CHECKED_RANKS[-1]
    lines = [
        f"simulated: a host of {machine.cores} cores a rank, 25 Gb/s, {part} examples a rank",
        f"  {'ranks':>5} {'ms a step':>10} {'examples/s':>12} {'of linear':>10}",
    ]
    first = 0.0
    for size in sizes:
        seconds = simulated(hosts, options, steps[CHECKED_RANKS[-1]], size, 1)
        rate = part * size / seconds
        first = first or rate
        share = rate / first / size
        lines.append(f"  {size:>5} {1e3 * seconds:>10.2f} {rate:>12,.0f} {share:>10.2f}")
    return "\n".join(lines)


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """All parts; see add_arguments for the options."""
    if smoke:
        options |= {"keys": 5000, "batch_size": 64, "steps": 3, "repetitions": 1, "hot_rows": 20}
        options |= {"threads": 1}
    log = Workload(
        keys=int(options["keys"]), batch_size=options["batch_size"], distinct=4 if smoke else 12
    )
    run_options = RunOptions(
        log=log,
        dim=options["dim"],
        steps=options["steps"],
        warm_up=4 if smoke else 12,
        dram="8MiB" if smoke else "256MiB",
    )
    repetitions, threads = options["repetitions"], options["threads"]
    rows: list[Row] = []
    tables = []
    for size in (2, 3):
        axes = {"ranks": size, "ranks are": "threads"}
        rows.append(bytes_row(axes, run_threads(run_options, size)))
    forms: dict[str, Runs] = {"threads": run_threads_apart, "processes": run_processes}
    if smoke:  # each process takes seconds to start
        forms["threads"] = run_threads
        forms["processes"] = lambda options, size: _SMOKE_RUNS[size == 2](options, size)
    for form, runs in forms.items():
        found, table = throughput_rows(run_options, form, runs, repetitions, threads)
        rows += found
        tables.append(table)
    runs = run_threads if smoke else run_processes
    rows += format_rows(run_options, options["hot_rows"], runs, repetitions)
    found, table = simulator_rows(run_options, runs, repetitions, smoke)
    axes = {name: options[name] for name in ("keys", "batch_size", "dim", "steps", "threads")}
    return {"axes": axes, "rows": rows + found, "tables": [*tables, table]}
