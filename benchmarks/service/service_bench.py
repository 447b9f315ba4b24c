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
from benchmarks.service import bare_grpc, embedded, hps_service
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
TWO_SHARDS = "two shards"


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
    parts = (bare_grpc.NAME, embedded.NAME)  # of the transport, and of the rows and their log
    for name in parts:
        if name in outcome.costs:
            yield cpu_row(figure, (HPS, mine), (name, outcome.costs[name]))
    if all(name in outcome.costs for name in parts):
        yield limit_row(figure, outcome)


def limit_row(figure: str, outcome: Outcome) -> Row:
    """What cores that bare gRPC keeps busy leave of its requests, if each costs the work on rows
    and log besides, and nothing else: a service that is faster has a cheaper transport."""
    bare, work = (outcome.costs[name].total_us for name in (bare_grpc.NAME, embedded.NAME))
    rates = outcome.rates[bare_grpc.NAME]
    left = Samples(tuple(rate * bare / (bare + work) for rate in rates.values))
    axes = {"figure": f"{figure}, limit", "clients": 1, "shards": 1}
    notes = {"bare gRPC, CPU us a key": bare, "rows and log, CPU us a key": work}
    return comparison_row(axes, UNIT, left, (bare_grpc.NAME, rates)) | {"notes": notes}


def cpu_row(figure: str, value: tuple[str, Cost], baseline: tuple[str, Cost]) -> Row:
    """CPU time a key of servers and clients together; the notes have each part."""
    samples = [Samples((cost.total_us,)) for _, cost in (value, baseline)]
    axes = {"figure": f"{figure}, CPU", "clients": 1, "shards": 1}
    named = (baseline[0], samples[1])
    row = comparison_row(axes, "CPU us a key", samples[0], named, lower_is_better=True)
    return row | {"notes": {name: cost.us_a_key() for name, cost in (value, baseline)}}


@contextlib.contextmanager
def teams_of(setting: Setting, files: list[str]) -> Iterator[dict[str, Team]]:
    """Running contenders by their file, hps's two shards as TWO_SHARDS."""
    with contextlib.ExitStack() as scope:
        teams = {}
        shards = {TWO_SHARDS: 2} | dict.fromkeys(files, 1)
        for name, num_shards in shards.items():
            own = Setting(setting.workload, f"{setting.folder}/{name}", num_shards)
            file = "hps_service" if name == TWO_SHARDS else name
            teams[name] = Team(file, own, drivers=2 if file == "hps_service" else 1)
            scope.callback(teams[name].close)
        start(teams.values())
        yield teams


def single(teams: dict[str, Team], options: dict[str, Any]) -> Iterator[Row]:
    """One server, one client; then eight clients."""
    ours = {"hps_service": teams["hps_service"].by(1)}
    others = {name: teams[name] for name in teams if name not in (TWO_SHARDS, "hps_service")}
    logging = {name: team for name, team in others.items() if name in LOGGING}
    kinds = [("pull", "memory", others), ("push", "memory", others)]
    kinds += [("push", ack, logging) for ack in ("logged", "durable")]
    for verb, ack, peers in kinds:
        order = Order(verb, ack, options["seconds"])
        runs = {team.name: (team, order) for team in (ours | peers).values()}
        yield from beside(figure_of(verb, ack), measure(runs, options["repetitions"]))
    yield from many_clients(ours["hps_service"], options)


def figure_of(verb: str, ack: str) -> str:
    """Name of a figure."""
    return "pull" if verb == "pull" else f"push, {ack}"


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


def shards(teams: dict[str, Team], options: dict[str, Any], cores: int) -> Iterator[Row]:
    """Two shards and two clients beside one shard with one and with two clients."""
    floor = SHARDS_FLOOR if cores >= SHARDS_CORES else None
    one = teams["hps_service"]
    compared = {
        TWO_SHARDS: teams[TWO_SHARDS],
        "one shard, one client": one.by(1),
        "one shard, two clients": one,
    }
    for verb, ack in (("pull", "memory"), ("push", "memory"), ("push", "logged")):
        order = Order(verb, ack, options["seconds"])
        runs = {name: (team, order) for name, team in compared.items()}
        outcome = measure(runs, options["repetitions"])
        for name in list(compared)[1:]:
            axes = {"figure": figure_of(verb, ack), "clients": 2, "shards": 2}
            baseline = (name, outcome.rates[name])
            yield comparison_row(axes, UNIT, outcome.rates[TWO_SHARDS], baseline, floor=floor)
            costs = [(key, outcome.costs[key]) for key in (TWO_SHARDS, name)]
            yield cpu_row(axes["figure"], *costs) | {"clients": 2, "shards": 2}


def run(smoke: bool, **options: Any) -> dict[str, Any]:
    """Rows of every figure."""
    if smoke:
        options |= {"rows": 3000, "batch": 500, "seconds": 0.02, "repetitions": 1}
    workload = Workload(rows=int(options["rows"]), batch=options["batch"])
    there, absent = find_peers()
    files = ["hps_service", "bare_grpc", "kept_grpc", "embedded", *there]
    with (
        tempfile.TemporaryDirectory(dir=options["folder"]) as folder,
        teams_of(Setting(workload, folder), files) as teams,
    ):
        found = [*single(teams, options), *shards(teams, options, machine()["cores"])]
    axes = {name: options[name] for name in ("rows", "batch", "seconds", "repetitions")}
    return {"axes": axes | {"dim": workload.dim, "in_flight": 4}, "rows": found, "absent": absent}
