"""Recipe K1 of publishing: SIGKILL of publisher and server of a model, under load.

Above it: test_publishing_kills.py, run.py. Below it: publishing_worker.py, in processes that are
killed; publishing_workload.py. A publisher makes versions without end, `hps serve-model` follows
them, clients ask for rows and scores, an operator goes back and forth. Every reply must be as after
one batch, that of its version, whoever served it; whatever is at the destination after a kill must
be whole, and as the publisher has acknowledged it; one lineage must go on through all kills.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import hps
from hps.publish.destination import open_destination
from hps.publish.version import DATA, chain_of, listed_versions
from hps.service.client.options import ClientConfig
from hps.serving.client import ModelServerClient
from tests.ports import HeldPort
from tests.torture.faulty_calls import Faults
from tests.torture.publishing_clients import Knowledge, PublishingReport, asking
from tests.torture.publishing_places import PLACES
from tests.torture.publishing_worker import PUBLISH, PublishingLedger
from tests.torture.publishing_workload import KEYS, make_recipe
from tests.torture.scratch import scratch_folder
from tests.torture.service_nursery import Order
from tests.torture.service_shards import START_SECONDS, Nursery, ShardFailure

KILLS_PER_PLACE = 25
NAME = "ads"
NEEDED = (
    "publishers killed", "servers killed", "starts killed", "versions published", "bases",
    "look-ups", "scores", "requests cut", "changes of version", "caches used",
    "ahead of what was acknowledged",
)  # fmt: skip
NEEDED_OF_DISKS = ("writes without space", "requests without space")
DROPS = "full-disk-ignored"  # a bug of faulty_calls.cc
NEEDED_OF_FAULTS = ("outages", "requests refused", "answers cut", "answers late")
_LONGEST_LIFE = 0.5  # seconds between a start and the next kill
_LONGEST_START = 0.25  # of a server that is killed while it starts
_PART_OF_STARTS = 0.3
_SPACE_BYTES = 300_000  # that a disk has at most which is about to be full
_END_SECONDS = 60.0


def _bytes_of(folder: Path) -> int:
    """That a folder takes, in which files come and go."""
    total = 0
    for name, _, files in os.walk(folder):
        for file in files:
            with suppress(FileNotFoundError):
                total += Path(name, file).stat().st_blocks * 512
    return total


@dataclass(frozen=True)
class PublishingCase:
    """What is tortured, and how.

    Args:
        seed: of keys and moments.
        plant: a bug of publishing_planted.py, or "".
        who: has it.
        place: the destination's kind, a name of PLACES.
        has_full_disk: the disk of the server's local copies is full at times; then requests may be
            refused for that. The nursery has the faulty calls.
    """

    seed: int
    plant: str = ""
    who: str = ""
    place: str = "folder"
    has_full_disk: bool = False


class Process:
    """A publisher or a server that is killed and started again."""

    def __init__(self, nursery: Nursery, output: Path, order: Order) -> None:
        self._nursery = nursery
        self.output = output
        self.order = replace(order, output=str(output))
        self.pid = 0
        output.write_text("")

    def start(self) -> None:
        """Starts it; of a server `wait_until_ready` tells when it listens."""
        self.output.write_text("")
        self.pid = self._nursery.ask(self.order)

    def wait_until_ready(self) -> None:
        """Returns when it listens; ShardFailure if it does not."""
        deadline = time.monotonic() + START_SECONDS
        while "listening on" not in (said := self.output.read_text()):
            if time.monotonic() > deadline or self.has_ended():
                raise ShardFailure(f"it did not start: {said}")
            time.sleep(0.002)

    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0] == "Z"

    def kill(self) -> None:
        """SIGKILL; ShardFailure if it had ended by itself."""
        pid, self.pid = self.pid, 0
        if not pid:
            return
        os.kill(pid, 9)
        if not os.WIFSIGNALED(self._nursery.ask(Order(reap=pid))):
            raise ShardFailure(f"it ended by itself: {self.output.read_text()}")


class Run:
    """One destination with its processes, killed and looked at."""

    def __init__(
        self, nursery: Nursery, folder: Path, case: PublishingCase, report: PublishingReport
    ) -> None:
        self._nursery, self._folder, self._case, self._report = nursery, folder, case, report
        self._chance = random.Random(case.seed)
        self._knowledge = Knowledge(case.seed, report, may_lack_space=case.has_full_disk)
        self._faults = Faults(folder / "faults")
        self._faults["drops"] = int(case.plant == DROPS)
        self._ledger = PublishingLedger(folder / "ledger")
        self._cache = folder / "cache"
        self._lineages: set[str] = set()

    def run(self, kills: int) -> None:
        """Kills so many times, then lets everything come to its end."""
        with ExitStack() as opened:
            case = self._case
            found = opened.enter_context(PLACES[case.place](self._folder, case.seed))
            self._place, self._set_faults = found.url, found.set_faults
            port = opened.enter_context(HeldPort())
            recipe = make_recipe(self._folder)
            given = [PUBLISH, str(self._folder / "store"), str(recipe), found.url]
            given += [str(case.seed), str(self._folder / "ledger")]
            self._publisher = self._process("publisher", given, found.environment)
            environment = {**found.environment, **self._faults.environment(self._cache)}
            dram = "48KiB" if case.has_full_disk else "1MiB"
            flags = ["--listen", port.address, "--name", NAME, "--dram", dram]
            flags += ["--cache-dir", str(self._cache), "--poll-seconds", "0.02"]
            self._server = self._process("server", ["serve-model", found.url, *flags], environment)
            opened.callback(self._end)
            opened.callback(lambda: self._report.tallies.update(found.faults))
            opened.callback(self._count_refusals)
            config = ClientConfig(addresses=[port.address], deadline=30.0)
            self._operator = opened.enter_context(ModelServerClient(config))
            try:
                self._torture(config, kills)
            except ShardFailure as error:
                self._violate(str(error))

    def _torture(self, config: ClientConfig, kills: int) -> None:
        self._publisher.start()
        self._wait_for(lambda: self._ledger.acknowledged[0] > 0, "the first version")
        self._server.start()
        self._server.wait_until_ready()
        self._set_faults(True)
        with asking(config, self._knowledge):
            for _ in range(kills):
                self._live()
                self._kill()
                if self._report.violations:
                    return
            self._go_to_the_end()

    def _process(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> Process:
        plant = self._case.plant if self._case.who == name else ""
        order = Order(arguments, "", plant, dict(environment))
        return Process(self._nursery, self._folder / f"{name}.output", order)

    def _end(self) -> None:
        for process in (self._publisher, self._server):
            with suppress(ShardFailure):
                process.kill()
        self._report.tallies.update(self._ledger.tallies)

    def _count_refusals(self) -> None:
        self._report.tallies["writes without space"] += self._faults["refusals"]

    def _live(self) -> None:
        """For a while nobody is killed; the operator may change the version meanwhile."""
        end = time.monotonic() + self._chance.random() * _LONGEST_LIFE
        if self._case.has_full_disk:
            space = self._chance.randrange(_SPACE_BYTES)
            self._faults["disk_bytes"] = max(1, _bytes_of(self._cache) + space)
            end += _LONGEST_LIFE
        if self._chance.random() < 0.6:
            self._operate()
        time.sleep(max(0.0, end - time.monotonic()))
        self._faults["disk_bytes"] = 0

    def _operate(self) -> None:
        """Goes to a version or follows; a version may go while it is chosen."""
        try:
            state = self._operator.versions()
            self._check_error(state["error"])
            if self._chance.random() < 0.5:
                self._operator.follow()
                return
            numbers = [one["number"] for one in state["versions"]]
            number = self._chance.choice(numbers[len(numbers) // 2 :])
            found = self._operator.go_to(number)
        except hps.ConfigError as error:
            if "is not kept" not in str(error):
                self._report.violations.append(f"operator: {error}")
            return
        except hps.StoreError as error:
            if not self._may_fail:
                self._report.violations.append(f"operator: {error}")
            return
        if (found["served"], found["following"]) != (number, False):
            self._report.violations.append(f"went to version {number} and serves {found['served']}")
        self._report.tallies["changes of version"] += 1

    def _check_error(self, error: str) -> None:
        """Of a follower: what it met is never damage."""
        if "CorruptionError" in error or (error and not self._may_fail):
            self._report.violations.append(f"the server's follower: {error}")

    @property
    def _may_fail(self) -> bool:
        """Whether the server may lack what it needs of a version: its destination is at fault, or
        its disk."""
        return self._case.place != "folder" or self._case.has_full_disk

    def _kill(self) -> None:
        victims = self._chance.choice(
            ([self._publisher], [self._server], [self._publisher, self._server])
        )
        self._report.kills += 1
        for victim in victims:
            victim.kill()
        if self._publisher in victims:
            self._report.tallies["publishers killed"] += 1
            self._look_at_place()
            self._publisher.start()
        if self._server in victims:
            self._report.tallies["servers killed"] += 1
            self._start_server()

    def _start_server(self) -> None:
        self._set_faults(False)
        before = {one.name for one in self._cache.glob("rows-*")}
        self._server.start()
        while self._chance.random() < _PART_OF_STARTS:
            time.sleep(self._chance.random() * _LONGEST_START)
            self._server.kill()
            self._report.tallies["starts killed"] += 1
            self._server.start()
        self._server.wait_until_ready()
        self._set_faults(True)
        after = {one.name for one in self._cache.glob("rows-*")}
        self._report.tallies["caches used" if before & after else "caches rebuilt"] += 1

    def _look_at_place(self) -> None:
        """What is visible is whole: rows, dense part, all of one batch."""
        self._set_faults(False)
        try:
            destination = open_destination(self._place)
            numbers = listed_versions(destination)
            version, number = self._ledger.acknowledged
            if numbers != list(range(numbers[0], numbers[-1] + 1)) or numbers[-1] < version:
                self._violate(f"versions {numbers} are there; {version} was acknowledged")
                return
            self._lineages.add(chain_of(destination)[-1].lineage)
            if len(self._lineages) > 1:
                self._violate(f"another lineage: {self._lineages}")
            with hps.Model.load(self._place, dram="1MiB") as model:
                stored, rows = self._knowledge.read(model)
                found = self._knowledge.check(model.version, KEYS, rows, "files")
                self._knowledge.check_stored(model.version, stored)
                self._knowledge.check_bias(model.version, model.module.output_bias.item())
            self._report.tallies["ahead of what was acknowledged"] += numbers[-1] > version
            if numbers[-1] == version and found != number:
                self._violate(f"version {version} has batch {found}, acknowledged was {number}")
        except hps.HpsError as error:
            self._violate(f"{type(error).__name__}: {error}")
        finally:
            self._set_faults(True)

    def _violate(self, text: str) -> None:
        where = f"seed {self._case.seed}, kill {self._report.kills}"
        self._report.violations.append(f"{where}: {text}")

    def _wait_for(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _END_SECONDS
        while not holds():
            if time.monotonic() > deadline or (self._publisher.pid and self._publisher.has_ended()):
                said = self._publisher.output.read_text() + self._server.output.read_text()
                raise ShardFailure(f"{what} did not come: {said[-2000:]}")
            time.sleep(0.01)

    def _go_to_the_end(self) -> None:
        """All goes on: a version comes, is served, and nothing is left of the dead."""
        self._set_faults(False)
        last = self._ledger.acknowledged[0]
        self._wait_for(lambda: self._ledger.acknowledged[0] > last, "a version after the kills")
        self._publisher.kill()
        self._look_at_place()
        self._set_faults(False)
        destination = open_destination(self._place)
        newest = listed_versions(destination)[-1]
        self._operator.follow()
        self._wait_for(lambda: self._operator.versions()["served"] == newest, "the newest version")
        folders = destination.folders(DATA)
        if len(folders) > len(listed_versions(destination)) + 1:  # that of the last kill
            self._violate(f"data of the dead stays: {folders}")
        self._server.kill()
        self._server.start()
        self._server.wait_until_ready()
        # A folder of copies that has no lock yet is taken for that of a process that begins.
        begun = [one for one in self._cache.glob("fetched-*") if not list(one.iterdir())]
        left = sorted(one.name for one in self._cache.iterdir() if one not in begun)
        if len(left) != 1 or not left[0].startswith("rows-"):
            self._violate(f"the cache holds {left}")


def run_publishing_kills(process: Nursery, case: PublishingCase, kills: int) -> PublishingReport:
    """Kills until `kills` are reached; a place with a violation is left for a new one.

    Args:
        process: where publishers and servers come from.
        case: the first place's; the seeds of further ones follow. One with a planted bug ends with
            the first violation.
        kills: how many; one may meet both.
    """
    report = PublishingReport()
    places = 0
    while report.kills < kills and not (case.plant and report.violations):
        found = PublishingReport()
        with scratch_folder() as folder:
            here = replace(case, seed=case.seed + places)
            Run(process, folder, here, found).run(min(KILLS_PER_PLACE, kills - report.kills))
        places += 1
        report.add(found)
    report.tallies["places"] += places
    return report


@contextmanager
def publishing_nursery(environment: dict[str, str] | None = None) -> Iterator[Nursery]:
    """Ends with the block."""
    process = Nursery(environment, "tests.torture.publishing_worker")
    try:
        yield process
    finally:
        process.close()
