"""Recipes F1 and F2 of the service: a sync that fails, a disk that is full, under a real server.

Above it: test_service_faults.py, run.py. Below it: faulty_calls.py, service_shards.py,
service_clients.py.
"""

import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hps
from tests.torture.faulty_calls import Faults
from tests.torture.oracle import OracleViolation
from tests.torture.scratch import scratch_folder
from tests.torture.service_clients import Ledger, ack_of, let_go
from tests.torture.service_kills import ServiceReport
from tests.torture.service_oracle import NUM_CLIENTS, ServiceOracle
from tests.torture.service_shards import Nursery, Shard, ShardFailure, config, create_tables

DEADLINE = 3.0  # of a call, in seconds: so long clients try a shard whose log has failed
LONGEST_REFUSAL = 5 * DEADLINE  # until a typed error is told
LONGEST_WAIT = 60.0  # for what must happen in time
MOST_ROOM = 300_000  # bytes that the disk still has when it is said to be full


class StubbornPusher(threading.Thread):
    """One client that gives a push again when it was refused, not when it is kept for later.

    Args:
        client: its number.
        remote: its connection.
        oracle: of the batches.
        ledger: told of every push.
        gives_up: ends at the first refusal, which `refusal` then is.
    """

    def __init__(
        self, client: int, remote: Any, oracle: ServiceOracle, ledger: Ledger, gives_up: bool
    ) -> None:
        super().__init__(daemon=True)
        self._client, self._remote, self._oracle = client, remote, oracle
        self._ledger = ledger
        self._gives_up = gives_up
        self._ends = threading.Event()
        self.refusals = 0
        self.refusal: hps.HpsError | None = None
        self.longest = 0.0  # seconds until a refusal

    def run(self) -> None:
        while not self._ends.is_set() and not (self._gives_up and self.refusals):
            number = self._ledger.begin(self._client)
            ack = ack_of(self._client, number)
            if self._push(number, ack):
                self._ledger.acknowledge(self._client, number, ack)

    def _push(self, number: int, ack: str) -> bool:
        """Until it is acknowledged; False if it never was and will not be given again."""
        table, keys, grads = self._oracle.push_of(self._client, number)
        while True:
            began = time.monotonic()
            try:
                self._remote.push(table, keys, grads, ack=ack)
            except hps.HpsError as error:
                self.refusals += 1
                self.refusal = error
                self.longest = max(self.longest, time.monotonic() - began)
            else:
                return True
            is_kept = isinstance(self.refusal, hps.RemoteError)
            if self._gives_up or is_kept or self._ends.is_set():
                return False
            time.sleep(0.01)

    def end(self) -> None:
        """The push under way is the last."""
        self._ends.set()


class FaultRun:
    """One shard with faulty calls and four clients.

    Args:
        process: a faulty_nursery.
        folder: for the store.
        seed: of keys and moments.
        plant: a bug of service_planted.py, DROPS, or "".
        gives_up: clients end when they are refused.
    """

    def __init__(
        self, process: Nursery, folder: Path, seed: int, plant: str, *, gives_up: bool
    ) -> None:
        self.chance = random.Random(seed)
        self.faults = Faults(folder / "faults")
        self.faults["drops"] = int(plant == DROPS)
        self.shard = Shard(process, folder, 0, 1, "" if plant == DROPS else plant)
        self.shard.environment = self.faults.environment(self.shard.store)
        self.oracle = ServiceOracle(seed, 1)
        self.ledger = Ledger()
        self._gives_up = gives_up
        self.clients: list[StubbornPusher] = []
        self.reader: Any = None
        self._scope = contextlib.ExitStack()

    def __enter__(self) -> "FaultRun":
        self._scope.callback(self.shard.end)
        self.shard.start()
        self.shard.wait_until_ready()
        create_tables([self.shard])
        self.reader = self._connect("reader")
        for client in range(NUM_CLIENTS):
            remote = self._connect(f"client-{client}")
            self.clients.append(
                StubbornPusher(client, remote, self.oracle, self.ledger, self._gives_up)
            )
            self._scope.callback(self.end)
        for pusher in self.clients:
            pusher.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._scope.close()

    def _connect(self, name: str) -> Any:
        remote = hps.RemoteParameterServer([self.shard.address], client_id=name, deadline=DEADLINE)
        self._scope.callback(let_go, remote)
        return remote

    def end(self) -> None:
        """No client pushes any more."""
        for pusher in self.clients:
            pusher.end()
        for pusher in self.clients:
            pusher.join()

    def until(self, what: str, happens: Callable[[], bool]) -> None:
        """Waits for it.

        Raises:
            OracleViolation: it does not happen in time.
        """
        deadline = time.monotonic() + LONGEST_WAIT
        while not happens():
            if time.monotonic() > deadline:
                raise OracleViolation(f"not within {LONGEST_WAIT} s: {what}")
            time.sleep(0.005)

    def pull(self) -> None:
        """Reads go on, whatever becomes of pushes."""
        for table in ("sgd", "adagrad"):
            self.reader.pull(table, self.oracle.keys)

    def check_refusals(self) -> None:
        """Every refusal was typed, and told in time.

        Raises:
            OracleViolation: one was not.
        """
        for pusher in self.clients:
            if pusher.longest > LONGEST_REFUSAL:
                raise OracleViolation(f"a refusal took {pusher.longest:.1f} s")
            if type(pusher.refusal) not in (type(None), hps.StoreError, hps.RemoteError):
                raise OracleViolation(f"refused with {type(pusher.refusal)}: {pusher.refusal}")

    def check_store(self, *, exact: bool) -> None:
        """Kills the shard; what is on its disk must be what was acknowledged.

        Raises:
            OracleViolation: it is not.
        """
        kept, begun = self.ledger.kept, self.ledger.begun
        self.shard.kill()
        with contextlib.closing(hps.ParameterServer(config(self.shard.store))) as server:
            marks = self.oracle.marks(server, 0, begun)
        if (marks < kept).any() or (exact and not np.array_equal(marks, begun)):
            raise OracleViolation(f"the store is at {marks}; acknowledged {kept}, sent {begun}")


def _failed_sync(run: FaultRun, report: ServiceReport) -> None:
    """F1: one sync of the log fails."""
    time.sleep(run.chance.random() * 0.2)
    run.faults["syncs_to_fail"] = 1
    run.until("a sync of the log", lambda: run.faults["failed_syncs"] > 0)
    time.sleep(0.1)  # what had been acknowledged before is told
    acknowledged = run.ledger.acknowledged

    def has_gone_on() -> bool:
        return not np.array_equal(acknowledged, run.ledger.acknowledged)

    run.until(
        "a refusal of every client",
        lambda: has_gone_on() or all(pusher.refusals for pusher in run.clients),
    )
    if has_gone_on():
        raise OracleViolation(
            f"after a failed sync {run.ledger.acknowledged} were acknowledged, not {acknowledged}"
        )
    run.pull()
    run.end()
    run.check_refusals()
    report.tallies["failed syncs"] += run.faults["failed_syncs"]
    report.tallies["refused pushes"] += sum(pusher.refusals for pusher in run.clients)
    run.check_store(exact=False)


def _full_disk(run: FaultRun, report: ServiceReport) -> None:
    """F2: the disk is full after some more bytes; then there is space again."""
    time.sleep(run.chance.random() * 0.05)
    used = sum(file.stat().st_blocks * 512 for file in run.shard.store.rglob("*"))
    run.faults["disk_bytes"] = used + int(run.chance.random() * MOST_ROOM)
    least = DROPPED_CALLS if run.faults["drops"] else 1
    run.until("calls that find the disk full", lambda: run.faults["refusals"] >= least)
    if not run.faults["drops"]:
        run.until("a refused push", lambda: any(pusher.refusals for pusher in run.clients))
    run.pull()
    time.sleep(run.chance.random() * 0.1)
    acknowledged = run.ledger.acknowledged
    run.faults["disk_bytes"] = 0
    run.until(
        "pushes of all clients after there was space again",
        lambda: bool((run.ledger.acknowledged > acknowledged + 2).all()),
    )
    run.end()
    run.check_refusals()
    for refusal in (pusher.refusal for pusher in run.clients):
        if refusal is not None and os.strerror(errno.ENOSPC) not in str(refusal):
            raise OracleViolation(f"of a full disk it was said: {refusal!r}")
    run.reader.flush()
    report.tallies["refused calls"] += run.faults["refusals"]
    report.tallies["refused pushes"] += sum(pusher.refusals for pusher in run.clients)
    run.check_store(exact=True)


FAULTS = {"F1": _failed_sync, "F2": _full_disk}
NEEDED = {"F1": ("failed syncs", "refused pushes"), "F2": ("refused calls", "refused pushes")}
DROPS = "full-disk-ignored"  # a bug of faulty_calls.cc
DROPPED_CALLS = 8  # of which some are writes that somebody will miss
PLANTS = {"F1": "failed-sync-ignored", "F2": DROPS}


def run_faults(process: Nursery, name: str, seed: int, runs: int, plant: str = "") -> ServiceReport:
    """Runs F1 or F2 so many times, on new stores; with a plant until the first violation.

    Args:
        process: a faulty_nursery.
        name: of the recipe.
        seed: of the first run; the others follow.
        runs: how many.
        plant: a bug of PLANTS, or "".
    """
    report = ServiceReport()
    for number in range(seed, seed + runs):
        report.tallies["runs"] += 1
        with scratch_folder() as folder:
            try:
                with FaultRun(process, folder, number, plant, gives_up=name == "F1") as run:
                    FAULTS[name](run, report)
            except (OracleViolation, ShardFailure, hps.HpsError) as error:
                where = f"{name}, seed {number}"
                report.violations.append(f"{where}: {type(error).__name__}: {error}")
        if plant and report.violations:
            break
    return report
