"""The gRPC service on loopback: pulls and pushes of 100,000 keys, beside what else could serve.

One server process and one client process with four requests in flight; keys are distinct, so that
every contender moves the same keys and values. Above it: benchmarks/run.py. Below it: field.py,
one file a contender.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.common.machine import machine
from benchmarks.common.report import Row, comparison_row
from benchmarks.common.timing import Samples
from benchmarks.service import bare_grpc, hps_service
from benchmarks.service.contender import Setting
from benchmarks.service.driver import Order
from benchmarks.service.field import Cost, Outcome, Team, find_peers, measure, start
from benchmarks.service.workload import Workload

FLOORS = {
    "pull": {bare_grpc.NAME: 0.7, "Redis": 1.0, "Arrow Flight": 0.8},
    "push, memory": {bare_grpc.NAME: 0.5, "Redis": 1.0},
}
LOGGING = ("redis_peer",)  # the peers that have a log of their own
MANY_CLIENTS = 8
DURABLE_FLOOR = 0.5
SHARDS_FLOOR = 1.5
SHARDS_CORES = 4  # two servers and two clients, each with a core of its own
UNIT = "requests/s"
HPS = hps_service.NAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--rows", type=float, default=1e6, help="stored keys")
    parser.add_argument("--batch", type=int, default=100_000, help="keys a request")
    parser.add_argument("--seconds", type=float, default=1.0, help="of one repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--folder", help="on the disk for logs and stores; a temporary one if not")


def beside(figure: str, outcome: Outcome) -> Iterator[Row]:
    """hps's rate beside each contender's, then its CPU time beside that of those it rests on."""
    floors = FLOORS.get(figure, {})
    mine = outcome.costs[HPS]
    for name, samples in outcome.rates.items():
        if name == HPS:
            continue
        axes = {"figure": figure, "clients": 1, "shards": 1}
        baseline = (name, samples)
        row = comparison_row(axes, UNIT, outcome.rates[HPS], baseline, floor=floors.get(name))
        theirs = outcome.costs[name]
        yield row | {"notes": {"hps": mine.percentiles(), name: theirs.percentiles()}}
    if bare_grpc.NAME in outcome.costs:
        yield cpu_row(figure, (HPS, mine), (bare_grpc.NAME, outcome.costs[bare_grpc.NAME]))


def cpu_row(figure: str, value: tuple[str, Cost], baseline: tuple[str, Cost]) -> Row:
    """CPU time a key of servers and clients together; the notes have each part."""
    samples = [Samples((cost.total_us,)) for _, cost in (value, baseline)]
    axes = {"figure": f"{figure}, CPU", "clients": 1, "shards": 1}
    named = (baseline[0], samples[1])
    row = comparison_row(axes, "CPU us a key", samples[0], named, lower_is_better=True)
    return row | {"notes": {name: cost.us_a_key() for name, cost in (value, baseline)}}


def single(setting: Setting, options: dict[str, Any], absent: dict[str, str]) -> Iterator[Row]:
    """One server, one client; then eight clients."""
    there, reasons = find_peers()
    absent |= reasons
    files = ["hps_service", "bare_grpc", "embedded", *there]
    with contextlib.ExitStack() as scope:
        teams = {}
        for file in files:
            own = Setting(setting.workload, f"{setting.folder}/{file}")
            teams[file] = Team(file, own)
            scope.callback(teams[file].close)
        start(teams.values())
        kinds = [("pull", "memory", files), ("push", "memory", files)]
        logging = [file for file in LOGGING if file in there]
        kinds += [("push", ack, ["hps_service", *logging]) for ack in ("logged", "durable")]
        for verb, ack, takers in kinds:
            order = Order(verb, ack, options["seconds"])
            runs = {teams[file].name: (teams[file], order) for file in takers}
            figure = "pull" if verb == "pull" else f"push, {ack}"
            yield from beside(figure, measure(runs, options["repetitions"]))
        yield from many_clients(teams["hps_service"], options)


def many_clients(team: Team, options: dict[str, Any]) -> Iterator[Row]:
    """Durable beside logged pushes of eight clients with one request in flight each."""
    runs = {}
    for ack in ("durable", "logged"):
        order = Order("push", ack, options["seconds"], in_flight=1, clients=MANY_CLIENTS)
        runs[ack] = (team, order)
    outcome = measure(runs, options["repetitions"])
    axes = {"figure": "push, durable", "clients": MANY_CLIENTS, "shards": 1}
    baseline = ("hps, logged", outcome.rates["logged"])
    yield comparison_row(axes, UNIT, outcome.rates["durable"], baseline, floor=DURABLE_FLOOR)
    tails = {ack: cost.percentiles() for ack, cost in outcome.costs.items()}
    for percentile in ("p50_ms", "p99_ms"):
        durable, logged = (Samples((tails[ack][percentile],)) for ack in ("durable", "logged"))
        axes["figure"] = f"push, durable, {percentile.removesuffix('_ms')}"
        yield comparison_row(axes, "ms", durable, ("hps, logged", logged), lower_is_better=True)


def shards(setting: Setting, options: dict[str, Any], cores: int) -> Iterator[Row]:
    """Two shards and two clients beside one shard with one and with two clients."""
    floor = SHARDS_FLOOR if cores >= SHARDS_CORES else None
    with contextlib.ExitStack() as scope:
        teams = {}
        for name, num_shards, clients in (
            ("two", 2, 2), ("one shard, one client", 1, 1), ("one shard, two clients", 1, 2),
        ):  # fmt: skip
            own = Setting(setting.workload, f"{setting.folder}/{name}", num_shards)
            teams[name] = Team("hps_service", own, clients)
            scope.callback(teams[name].close)
        start(teams.values())
        for verb, ack in (("pull", "memory"), ("push", "memory"), ("push", "logged")):
            order = Order(verb, ack, options["seconds"])
            runs = {name: (team, order) for name, team in teams.items()}
            outcome = measure(runs, options["repetitions"])
            figure = "pull" if verb == "pull" else f"push, {ack}"
            for name in list(teams)[1:]:
                axes = {"figure": figure, "clients": 2, "shards": 2}
                baseline = (name, outcome.rates[name])
                yield comparison_row(axes, UNIT, outcome.rates["two"], baseline, floor=floor)
                costs = [(key, outcome.costs[key]) for key in ("two", name)]
                yield cpu_row(figure, *costs) | {"clients": 2, "shards": 2}


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Rows of every figure."""
    if smoke:
        options |= {"rows": 3000, "batch": 500, "seconds": 0.02, "repetitions": 2}
    workload = Workload(rows=int(options["rows"]), batch=options["batch"])
    absent: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        found = [*single(Setting(workload, f"{folder}/single"), options, absent)]
        cores = machine()["cores"]
        found += shards(Setting(workload, f"{folder}/shards"), options, cores)
    axes = {name: options[name] for name in ("rows", "batch", "seconds", "repetitions")}
    return {"axes": axes | {"dim": workload.dim, "in_flight": 4}, "rows": found, "absent": absent}
