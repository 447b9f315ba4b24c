"""`make torture`: every recipe at full count, a summary, and an exit code that is 1 if one failed.

Above it: the Makefile. Below it: kills.py, damage.py, overlap.py, readers.py, identity.py,
odd_machines.py, life_models.py, life_kills.py, life_faults.py, rank_kills.py, cluster_hosts.py, the
service_*.py recipes, publishing_kills.py, the programs of tests/native, the tests that are marked
long. A recipe fails by a violation, by a premise that did not happen, or by a planted bug that it
does not find. Skips are counted and listed. Every line goes out as soon as it is known.
"""

import argparse
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.rank_nursery import nursery as rank_nursery
from tests.pipeline.planted import PLANTED as PLANTED_STAGES
from tests.torture.cluster_hosts import RECIPES as HOSTS_RECIPES
from tests.torture.cluster_hosts import ClusterLab
from tests.torture.damage import DamageLab, DamageReport, empty_when_damaged
from tests.torture.exchanged_parts import PLANTS as EXCHANGE_PLANTS
from tests.torture.exchanged_parts import run_exchanged_ranks, run_exchanged_shards
from tests.torture.faulty_calls import faulty_calls, faulty_nursery, missing_tools
from tests.torture.hosts import Hosts, missing_rights
from tests.torture.identity import PLANTS as IDENTITY_PLANTS
from tests.torture.identity import run_identity
from tests.torture.kills import run_kills
from tests.torture.life_faults import DROPS as LIFE_DROPS
from tests.torture.life_faults import K2_PLANT, faulty_workers, run_crashes, run_full_disks
from tests.torture.life_faults import NEEDED as LIFE_NEEDED
from tests.torture.life_kills import run_life_kills
from tests.torture.life_models import PLANTS as MODEL_PLANTS
from tests.torture.life_models import planted as planted_model
from tests.torture.life_models import run_models
from tests.torture.life_planted import PLANTED as LIFE_PLANTED
from tests.torture.many_clients import PLANT as MANY_PLANT
from tests.torture.many_clients import run_many_clients
from tests.torture.odd_machines import JUMPING
from tests.torture.odd_machines import MACHINES as ODD_MACHINES
from tests.torture.odd_machines import PLANTS as MACHINE_PLANTS
from tests.torture.odd_machines import missing as missing_machine
from tests.torture.odd_machines import run_machine as run_odd_machine
from tests.torture.overlap import run_overlaps
from tests.torture.planted import PLANTED
from tests.torture.publishing_kills import DROPS as DISK_DROPS
from tests.torture.publishing_kills import NEEDED as PUBLISHING_NEEDED
from tests.torture.publishing_kills import (
    NEEDED_OF_DISKS,
    NEEDED_OF_FAULTS,
    PublishingCase,
    publishing_nursery,
    run_publishing_kills,
)
from tests.torture.publishing_places import PLACES, missing_place
from tests.torture.publishing_planted import PLANTED as PUBLISHING_PLANTED
from tests.torture.rank_counts import PLANT as COUNTS_PLANT
from tests.torture.rank_counts import run_rank_counts
from tests.torture.rank_kills import PLANT as RANK_PLANT
from tests.torture.rank_kills import run_rank_kills, run_torchrun_kills
from tests.torture.readers import PLANT as READERS_PLANT
from tests.torture.readers import run_readers
from tests.torture.s3_server import PLANT as S3_PLANT
from tests.torture.s3_server import run_destinations, s3_server
from tests.torture.scratch import scratch_folder
from tests.torture.service_faults import FAULTS, NEEDED, PLANTS, run_faults
from tests.torture.service_hostile import NEEDED as HOSTILE_NEEDED
from tests.torture.service_hostile import PLANT as HOSTILE_PLANT
from tests.torture.service_hostile import run_hostile
from tests.torture.service_machine import MACHINES, run_machine
from tests.torture.service_recipes import RECIPES, run_recipe
from tests.torture.service_shards import nursery
from tests.torture.service_slow import PLANTS as SLOW_PLANTS
from tests.torture.service_slow import run_slow

KILLS = 1000
RESTORE_KILLS = 300
LIFE_KILLS = {"segments": 500, "rocksdb": 200}
LIFE_MODELS = 3  # seeds
LIFE_SEQUENCES = 10  # of each machine over each kind of tiers
LIFE_CRASHES = 10  # checkpoints
LIFE_DISKS = {"stores": 10, "runs": 40}
OVERLAPS = 1000
MACHINE_RUNS = 10
IDENTITIES = {"segments": 400, "rocksdb": 100}
READERS = 120
RANK_KILLS = 60
RANK_COUNT_KILLS = 40
TORCHRUN_KILLS = 5
EXCHANGES = {"ranks": 400, "shards": 100}
EXCHANGES_OF_A_WHOLE = 50
SERVICE_KILLS = {"K1": 1000, "N1": 100, "N2": 100, "N3": 100, "N4": 100}
PUBLISHING_KILLS = {"folder": 300, "s3": 40, "s3-server": 20}
PUBLISHING_DISKS = 60
S3_TESTS = 5
MACHINE_KILLS = {"M1": 500, "R1": 500}
MANY_CLIENTS = 10
SERVICE_FAULTS = 30
ATTACKS = 10_000
SLOW_RUNS = 5
BIT_FLIPS = 10_000
SWAPS = 2_000
NATIVE_PROGRAMS = (
    "ssd_crash_test",
    "ssd_disk_test",
    "update_log_crash_test",
    "update_log_disk_test",
    "update_log_damage_test",
)


@dataclass
class Result:
    """What one recipe, or one planted bug, came to."""

    recipe: str
    what: str
    runs: int = 0
    problems: list[str] = field(default_factory=list)
    skips: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        verdict = "ok" if not self.problems else f"FAILED: {self.problems[0]}"
        return f"{self.recipe:3} {self.runs:7,} {self.seconds:6.0f} s  {self.what}: {verdict}"


Recipe = Callable[[int], Iterator[Result]]


def _kills(seed: int) -> Iterator[Result]:
    for restores, kills in ((False, KILLS), (True, RESTORE_KILLS)):
        report = run_kills(seed, kills, restores=restores)
        premise = [f"{what} never happened" for what in report.missing(restores)]
        what = f"{'with restores, ' if restores else ''}{report}"
        yield Result("K1", what, report.kills, report.violations + premise)
    for name, plant in PLANTED.items():
        report = run_kills(seed, 100, restores=plant.needs_restores, plant=name)
        yield _planted("K1", name, report.kills, report.violations)


def _life_kills(seed: int) -> Iterator[Result]:
    for engine, kills in LIFE_KILLS.items():
        report = run_life_kills(seed, kills, engine=engine)
        premise = [f"no {what}" for what in report.missing_life()]
        what = f"life cycle on, {engine}: {report}"
        yield Result("K1", what, report.kills, report.violations + premise)
    for name in LIFE_PLANTED:
        report = run_life_kills(seed, 200, plant=name)
        yield _planted("K1", name, report.kills, report.violations)


def _life_models(seed: int) -> Iterator[Result]:
    for number in range(LIFE_MODELS):
        report = run_models(seed + number, LIFE_SEQUENCES)
        premise = [f"no {what}" for what in report.missing()]
        what = f"life cycle on, against a dict: {report}"
        yield Result("C3", what, report.tallies["steps"], report.violations + premise)
    for name in MODEL_PLANTS:
        with planted_model(name):
            found = run_models(seed, 5)
        yield _planted("C3", name, found.tallies["steps"], found.violations)


def _life_faults(seed: int) -> Iterator[Result]:
    if reason := missing_tools():
        yield Result("K2", "life cycle on, faulty disks", skips={reason: 2})
        return
    with faulty_workers() as process:
        for number in range(LIFE_CRASHES):
            report = run_crashes(process, seed + number)
            premise = [f"no {what}" for what in report.missing(LIFE_NEEDED["K2"])]
            runs = report.tallies["deaths"]
            yield Result("K2", f"life cycle on: {report}", runs, report.violations + premise)
        found = run_crashes(process, seed, plant=K2_PLANT)
        yield _planted("K2", K2_PLANT, found.tallies["deaths"], found.violations)
        for number in range(LIFE_DISKS["stores"]):
            report = run_full_disks(process, seed + number, LIFE_DISKS["runs"])
            premise = [f"no {what}" for what in report.missing(LIFE_NEEDED["F2"])]
            runs = report.tallies["runs"]
            yield Result("F2", f"life cycle on: {report}", runs, report.violations + premise)
        found = run_full_disks(process, seed, 100, LIFE_DROPS)
        yield _planted("F2", LIFE_DROPS, found.tallies["runs"], found.violations)


def _rank_kills(seed: int) -> Iterator[Result]:
    with scratch_folder() as folder:
        names = ("ranks", "kills", "plant", "static", "c10d", "counts", "counts-plant")
        places = [folder / name for name in names]
        for place in places:
            place.mkdir()
        with rank_nursery(places[0]) as ranks:
            report = run_rank_kills(ranks, places[1], seed, RANK_KILLS)
            premise = [f"no {what}" for what in report.missing()]
            yield Result("K1", f"cluster: {report}", report.kills, report.violations + premise)
            found = run_rank_kills(ranks, places[2], seed, 4, RANK_PLANT)
            yield _planted("K1", RANK_PLANT, found.kills, found.violations)
            counts = run_rank_counts(ranks, places[5], seed, RANK_COUNT_KILLS)
            premise = [f"no {what}" for what in counts.missing()]
            yield Result("K1", f"cluster: {counts}", counts.kills, counts.violations + premise)
            counts = run_rank_counts(ranks, places[6], seed, 3, COUNTS_PLANT)
            yield _planted("K1", COUNTS_PLANT, counts.kills, counts.violations)
            for place, flags in ((places[3], ()), (places[4], ("--standalone",))):
                report = run_torchrun_kills(ranks, place, seed, TORCHRUN_KILLS, flags)
                premise = [] if report.kills == TORCHRUN_KILLS else [f"{report.kills} kills only"]
                what = f"cluster, torchrun {' '.join(flags)}: {report}"
                yield Result("K1", what, report.kills, report.violations + premise)


def _exchanges(seed: int) -> Iterator[Result]:
    runs = zip((run_exchanged_ranks, run_exchanged_shards), EXCHANGE_PLANTS, strict=True)
    for (name, count), (run_some, plant) in zip(EXCHANGES.items(), runs, strict=True):
        for number in range(count // EXCHANGES_OF_A_WHOLE):
            with scratch_folder() as folder:
                report = run_some(folder, seed + number, EXCHANGES_OF_A_WHOLE)
            premise = [f"no {what}" for what in report.missing(())]
            what = f"exchanged and copied parts of {name}: {report}"
            yield Result("X1", what, EXCHANGES_OF_A_WHOLE, report.violations + premise)
        with scratch_folder() as folder:
            report = run_some(folder, seed, EXCHANGES_OF_A_WHOLE, plant)
        yield _planted("X1", plant, EXCHANGES_OF_A_WHOLE, report.violations)


def _service_kills(seed: int) -> Iterator[Result]:
    with nursery() as process:
        for name, recipe in RECIPES.items():
            report = run_recipe(process, name, seed, SERVICE_KILLS[name])
            premise = [f"no {what}" for what in report.missing(recipe.needed)]
            what = f"service, {recipe.what}: {report}"
            yield Result(name, what, report.kills, report.violations + premise)
            for plant in recipe.plants:
                found = run_recipe(process, name, seed, 100, plant)
                yield _planted(name, plant, found.kills, found.violations)


def _publishing_kills(seed: int) -> Iterator[Result]:
    with publishing_nursery() as process:
        for place in PLACES:
            kills = PUBLISHING_KILLS[place]
            what = f"publisher and server of a model, versions in {place}"
            if reason := missing_place(place):
                yield Result("K1", what, skips={reason: kills})
                continue
            report = run_publishing_kills(process, PublishingCase(seed, place=place), kills)
            needed = PUBLISHING_NEEDED + (NEEDED_OF_FAULTS if place == "s3" else ())
            premise = [f"no {name}" for name in report.missing(needed)]
            yield Result("K1", f"{what}: {report}", report.kills, report.violations + premise)
        for name, plant in PUBLISHING_PLANTED.items():
            case = PublishingCase(seed, name, plant.who)
            found = run_publishing_kills(process, case, 100)
            yield _planted("K1", name, found.kills, found.violations)


def _publishing_disks(seed: int) -> Iterator[Result]:
    what = "a model's server whose copies have a full disk at times"
    if reason := missing_tools():
        yield Result("F2", what, skips={reason: PUBLISHING_DISKS + 1})
        return
    with faulty_calls() as environment, publishing_nursery(environment) as process:
        case = PublishingCase(seed, has_full_disk=True)
        report = run_publishing_kills(process, case, PUBLISHING_DISKS)
        premise = [f"no {name}" for name in report.missing(NEEDED_OF_DISKS)]
        yield Result("F2", f"{what}: {report}", report.kills, report.violations + premise)
        case = PublishingCase(seed, DISK_DROPS, "server", has_full_disk=True)
        found = run_publishing_kills(process, case, 100)
        yield _planted("F2", DISK_DROPS, found.kills, found.violations)


def _destinations(seed: int) -> Iterator[Result]:
    what = "the tests of destinations against a real S3 server"
    if reason := missing_place("s3-server"):
        yield Result("S3", what, skips={reason: S3_TESTS + 1})
        return
    with scratch_folder() as folder, s3_server(folder) as server:
        runs, problems = run_destinations(server)
        yield Result("S3", f"{what}, {server.endpoint}", runs, problems)
        runs, problems = run_destinations(server, S3_PLANT)
        yield _planted("S3", S3_PLANT, runs, problems)


def _service_machines(seed: int) -> Iterator[Result]:
    with nursery() as process:
        for name, recipe in MACHINES.items():
            report = run_machine(process, name, seed, MACHINE_KILLS[name])
            premise = [f"no {what}" for what in report.missing(recipe.needed)]
            what = f"service, {recipe.what}: {report}"
            yield Result(name, what, report.tallies["kills"], report.violations + premise)
            found = run_machine(process, name, seed, MACHINE_KILLS[name], recipe.plant)
            yield _planted(name, recipe.plant, found.tallies["kills"], found.violations)
        for number in range(MANY_CLIENTS):
            clients = run_many_clients(process, seed + number)
            premise = [f"no {what}" for what in clients.missing()]
            what = f"service, {len(clients.done)} clients at once, the server killed: {clients}"
            yield Result("L1", what, sum(clients.done), clients.errors + premise)
        clients = run_many_clients(process, seed, MANY_PLANT)
        yield _planted("L1", MANY_PLANT, sum(clients.done), clients.errors)


def _service_hostile(seed: int) -> Iterator[Result]:
    with nursery() as process:
        report = run_hostile(process, seed, ATTACKS)
        premise = [f"no answer {what}" for what in report.missing(HOSTILE_NEEDED)]
        what = f"service, hostile requests: {report}"
        yield Result("Q1", what, report.tallies["requests"], report.violations + premise)
        found = run_hostile(process, seed, 1000, HOSTILE_PLANT)
        yield _planted("Q1", HOSTILE_PLANT, found.tallies["requests"], found.violations)


def _service_faults(seed: int) -> Iterator[Result]:
    if reason := missing_tools():
        yield Result("F", "faulty disks under a service", skips={reason: len(FAULTS) + 1})
        return
    with faulty_nursery() as process:
        for name in FAULTS:
            report = run_faults(process, name, seed, SERVICE_FAULTS)
            premise = [f"no {what}" for what in report.missing(NEEDED[name])]
            problems = report.violations + premise
            yield Result(name, f"service: {report}", report.tallies["runs"], problems)
            found = run_faults(process, name, seed, 20, PLANTS[name])
            yield _planted(name, PLANTS[name], found.tallies["runs"], found.violations)
        for number in range(SLOW_RUNS):
            slow = run_slow(process, seed + number)
            premise = [f"no {what}" for what in slow.missing()]
            yield Result("N5", f"service, {slow}", len(slow.slower), slow.violations + premise)
        for bug, connect in SLOW_PLANTS.items():
            slow = run_slow(process, seed, 2, connect)
            yield _planted("N5", bug, len(slow.slower), slow.violations)


def _hosts(seed: int) -> Iterator[Result]:
    if reason := missing_rights():
        runs = sum(recipe.count for recipe in HOSTS_RECIPES)
        yield Result("H", "two hosts in network namespaces", skips={reason: runs})
        return
    with scratch_folder() as folder, Hosts(folder) as hosts:
        lab = ClusterLab(hosts, seed)
        for recipe in HOSTS_RECIPES:
            for _ in range(recipe.count):
                report = recipe.run(lab)
                what = f"training on two hosts, {recipe.what}: {report}"
                yield Result(recipe.name, what, report.runs, report.violations + report.missing())
            if recipe.planted is not None:
                found = recipe.planted(lab)
                yield _planted(recipe.name, recipe.bug, found.runs, found.violations)


def _overlaps(seed: int) -> Iterator[Result]:
    report = run_overlaps(seed, OVERLAPS)
    premise = [f"no {what}" for what in report.missing()]
    yield Result("C2", str(report), report.runs, report.violations + premise)
    for name in PLANTED_STAGES:
        report = run_overlaps(seed, 100, plant=name)
        yield _planted("C2", f"rule {name} not kept", report.runs, report.violations)


def _identities(seed: int) -> Iterator[Result]:
    for engine, runs in IDENTITIES.items():
        report = run_identity(seed, runs, engine)
        premise = [f"no {what}" for what in report.missing()]
        yield Result("I1", f"{engine}: {report}", report.runs, report.violations + premise)
    for name, engine in IDENTITY_PLANTS.items():
        report = run_identity(seed, 100, engine, name)
        yield _planted("I1", name, report.runs, report.violations)


def _odd_machines(seed: int) -> Iterator[Result]:
    for machine in ODD_MACHINES:
        recipe = "O2" if machine == JUMPING else "O1"
        if reason := missing_machine(machine):
            yield Result(recipe, machine, skips={reason: MACHINE_RUNS})
            continue
        said = [run_odd_machine(machine, seed + number) for number in range(MACHINE_RUNS)]
        problems = [one for one in said if one != "ok"]
        yield Result(recipe, f"store, log and readers: {machine}", MACHINE_RUNS, problems)
    for bug, machine in MACHINE_PLANTS.items():
        recipe = "O2" if machine == JUMPING else "O1"
        if reason := missing_machine(machine):
            yield Result(recipe, bug, skips={reason: 1})
            continue
        said = [one for one in (run_odd_machine(machine, seed, bug),) if one != "ok"]
        yield _planted(recipe, bug, 1, said)


def _readers(seed: int) -> Iterator[Result]:
    report = run_readers(seed, READERS)
    premise = [f"no {what}" for what in report.missing()]
    yield Result("C6", str(report), report.runs, report.violations + premise)
    found = run_readers(seed, 30, READERS_PLANT)
    yield _planted("C6", READERS_PLANT, found.runs, found.violations)


def _truncations(seed: int) -> Iterator[Result]:
    yield _damage("T1", seed, lambda lab: lab.truncate(tail=0, stride=1))
    yield _damage("T1", seed, lambda lab: lab.tear_manifest(stride=1))
    with scratch_folder() as folder:
        report = DamageLab(folder, seed, reader=empty_when_damaged).truncate(tail=1, stride=1000)
        yield _planted("T1", "damage taken for emptiness", report.samples, report.violations)


def _damages(seed: int) -> Iterator[Result]:
    yield _damage("B1", seed, lambda lab: lab.flip_bits(BIT_FLIPS))
    yield _damage("B1", seed, lambda lab: lab.swap_blocks(SWAPS))
    with scratch_folder() as folder:
        report = DamageLab(folder, seed).flip_bits(200, mends_checksums=True)
        yield _planted("B1", "checksums ignored", report.samples, report.violations)


def _damage(recipe: str, seed: int, run: Callable[[DamageLab], DamageReport]) -> Result:
    with scratch_folder() as folder:
        report = run(DamageLab(folder, seed))
    return Result(recipe, str(report), report.samples, report.violations, dict(report.skips))


def _planted(recipe: str, bug: str, runs: int, violations: list[str]) -> Result:
    problems = [] if violations else ["the bug was NOT found"]
    return Result(recipe, f"planted bug '{bug}' is found", runs, problems)


def _long_tests(seed: int) -> Iterator[Result]:
    """The tests that `make test` leaves out, in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "long"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    has_held = done.returncode == 0 and passed is not None
    problems = [] if has_held else [done.stdout[-2000:] + done.stderr[-2000:]]
    yield Result("-m long", "long tests", int(passed[1]) if passed else 0, problems)


def parse_native(line: str) -> Result | None:
    """The result in a line that a native recipe program prints (tests/native/torture_lab.h)."""
    kind, _, rest = line.partition(" ")
    if kind == "recipe":
        recipe, runs, violations, what = rest.split(" ", 3)
        problems = [f"{violations} violations"] if int(violations) else []
        return Result(recipe, what, int(runs), problems)
    if kind == "planted":
        recipe, verdict, bug = rest.split(" ", 2)
        problems = [] if verdict == "found" else ["the bug was NOT found"]
        return Result(recipe, f"planted bug '{bug.split(':')[0]}' is found", 0, problems)
    return None


def native(program: Path) -> Iterator[Result]:
    """Runs a native recipe program at full count; what it says besides is passed on."""
    process = subprocess.Popen(
        [program, "full"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    has_failed = False
    for line in process.stdout:
        result = parse_native(line.rstrip("\n"))
        if result is None:
            print(line, end="", flush=True)
        else:
            has_failed = has_failed or bool(result.problems)
            yield result
    if process.wait() != 0 and not has_failed:
        yield Result("K-F", program.name, 0, [f"exit code {process.returncode}"])


def run(recipes: list[Recipe], seed: int) -> int:
    """Runs recipes one after the other, prints each result and a summary; the exit code."""
    results: list[Result] = []
    started = time.perf_counter()
    print(f"seed {seed}\nid     runs   time  what", flush=True)
    for recipe in recipes:
        last = time.perf_counter()
        for result in recipe(seed):
            now = time.perf_counter()
            result.seconds, last = now - last, now
            results.append(result)
            print(result, flush=True)
    skips = [(result.recipe, why, n) for result in results for why, n in result.skips.items()]
    print(f"\nskipped: {sum(n for _, _, n in skips)}")
    for name, why, number in skips:
        print(f"  {name}: {number} {why}")
    failed = [result for result in results if result.problems]
    for result in failed:
        print(f"FAILED {result.recipe}, {result.what}")
        print("".join(f"  {problem}\n" for problem in result.problems[:10]), end="")
    num_runs = sum(result.runs for result in results)
    seconds = time.perf_counter() - started
    names = " ".join(dict.fromkeys(result.recipe for result in results))
    print(
        f"{len(results) - len(failed)} of {len(results)} parts hold ({names}), {num_runs:,} runs, "
        f"{seconds:.0f} s"
    )
    return 1 if failed or not results else 0


def main() -> int:
    """The command line of `make torture`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--native", type=Path, required=True, help="folder of the native tests")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    options = parser.parse_args()
    programs = [options.native / name for name in NATIVE_PROGRAMS]
    recipes: list[Recipe] = [lambda _, program=program: native(program) for program in programs]
    recipes += [_truncations, _damages, _overlaps, _readers, _identities, _odd_machines, _kills]
    recipes += [_life_models, _life_kills, _life_faults]
    recipes += [_rank_kills, _exchanges, _service_kills, _service_machines, _service_faults]
    recipes += [
        _service_hostile,
        _publishing_kills,
        _publishing_disks,
        _destinations,
        _hosts,
        _long_tests,
    ]
    return run(recipes, options.seed)


if __name__ == "__main__":
    sys.exit(main())
