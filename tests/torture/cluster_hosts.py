"""Training over two hosts whose link is cut, or of which one dies: it ends, and resumes to the same bits.

Above it: run.py. Below it: hosts.py (network namespaces), torchrun, `hps train`. Each host has its own
disk, so a host that comes back has its own rank's folder and no other. An undisturbed run is the oracle:
whatever happened meanwhile, the last run's rows and losses have its digests.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.logs import write_criteo
from tests.torture.hosts import ADDRESSES, CARD, Hosts

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 60_000
CHECKPOINT_EVERY = 20  # steps
TIMEOUT_SECONDS = 10  # of a collective of hps
JOIN_SECONDS = 60  # of torchrun's rendezvous
# What a run may take to end by itself once a host or the link is gone: both timeouts, and the work of
# processes that end and start on busy cores.
END_SECONDS = TIMEOUT_SECONDS + JOIN_SECONDS + 60.0
RUN_SECONDS = 300.0
_POLL_SECONDS = 0.05


@dataclass
class HostsReport:
    """What a recipe came to."""

    runs: int = 0
    cuts: int = 0
    kills: int = 0
    resumed: int = 0
    seconds_to_notice: float = 0.0
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.cuts} cuts, {self.kills} killed hosts, {self.resumed} resumed, noticed within "
            f"{self.seconds_to_notice:.0f} s"
        )


class Training:
    """One run of two ranks, one on each host.

    Args:
        hosts: with the log in the folder of each.
        port: of the rendezvous; a new one for each run.
        restarts: torchrun's --max-restarts.
    """

    def __init__(self, hosts: Hosts, port: int, restarts: int = 0) -> None:
        self._hosts = hosts
        self._port = port
        self._restarts = restarts
        self.processes: list[subprocess.Popen[Any]] = []

    def start(self, host: int, *flags: str) -> None:
        """torchrun on one host."""
        folder = self._hosts.folders[host]
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        words += ["--nproc-per-node", "1", "--max-restarts", str(self._restarts)]
        words += ["--rdzv-backend", "c10d", "--rdzv-id", f"run-{self._port}"]
        words += ["--rdzv-endpoint", f"{ADDRESSES[0]}:{self._port}"]
        words += ["--rdzv-conf", f"join_timeout={JOIN_SECONDS}"]
        words += ["--local-addr", ADDRESSES[host], "-m", "hps", "train", "log.tsv"]
        words += ["--store", "store", "--dim", "4", "--hidden", "16", "--batch-size", "256"]
        words += ["--dram", "8MiB", "--threads", "1", "--torch-threads", "1"]
        words += ["--cluster-timeout", str(TIMEOUT_SECONDS), "--progress-seconds", "0"]
        words += ["--checkpoint-every", str(CHECKPOINT_EVERY), "--json", "out.json", *flags]
        variables = {
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": CARD,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.processes.append(self._hosts.start(host, words, variables, folder / "said.txt"))

    def start_both(self, *flags: str) -> "Training":
        """The same on both."""
        for host in range(2):
            self.start(host, *flags)
        return self

    def wait_for_cuts(self, number: int) -> None:
        """Returns when so many more checkpoints have been committed.

        Raises:
            AssertionError: the run has ended before.
        """
        cluster = self._hosts.folders[0] / "store" / "CLUSTER"
        seen: set[int] = set()
        deadline = time.monotonic() + RUN_SECONDS
        while len(seen) < number + 1:  # the first may be of an earlier run
            assert time.monotonic() < deadline, "no checkpoints came"
            assert self.processes[0].poll() is None, f"ended early: {self.said()}"
            if cluster.exists():
                seen.add(cluster.stat().st_mtime_ns)
            time.sleep(_POLL_SECONDS)

    def wait(self, seconds: float) -> list[int] | None:
        """Exit statuses, or None if one of the processes still runs after so long."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                return None
        return [process.returncode for process in self.processes]

    def figures(self) -> dict[str, Any]:
        """What rank 0 wrote; it is on either host."""
        for folder in self._hosts.folders:
            if (folder / "out.json").exists():
                found: dict[str, Any] = json.loads((folder / "out.json").read_text())
                return found
        raise AssertionError(f"no figures were written: {self.said()}")

    def said(self) -> str:
        """The last lines of both hosts."""
        return " | ".join(
            (folder / "said.txt").read_text(errors="replace")[-1500:]
            for folder in self._hosts.folders
        )


class ClusterLab:
    """Recipes over one pair of hosts.

    Args:
        hosts: open.
        seed: of the moments at which things happen.
    """

    def __init__(self, hosts: Hosts, seed: int) -> None:
        self._hosts = hosts
        self._chance = random.Random(seed)
        self._next_port = 29_400
        for folder in hosts.folders:
            write_criteo(folder / "log.tsv", EXAMPLES)
        self._expected = self._undisturbed()

    def _training(self, restarts: int = 0) -> Training:
        self._next_port += 1
        return Training(self._hosts, self._next_port, restarts)

    def _clear(self) -> None:
        for folder in self._hosts.folders:
            shutil.rmtree(folder / "store", ignore_errors=True)
            (folder / "out.json").unlink(missing_ok=True)
            (folder / "said.txt").unlink(missing_ok=True)

    def _undisturbed(self) -> dict[str, Any]:
        self._clear()
        training = self._training().start_both()
        statuses = training.wait(RUN_SECONDS)
        assert statuses == [0, 0], f"an undisturbed run ended with {statuses}: {training.said()}"
        figures = training.figures()
        assert figures["total_examples"] == EXAMPLES
        return figures

    def cut_link(self, mends_clock: Callable[[], object] = lambda: None) -> HostsReport:
        """The link is cut in the middle: both sides end by themselves; then both are started again.

        Args:
            mends_clock: done before the second start; for a planted bug.
        """
        report = HostsReport(runs=1)
        self._clear()
        training = self._training().start_both()
        training.wait_for_cuts(self._chance.randint(2, 4))
        self._hosts.cut()
        report.cuts = 1
        began = time.monotonic()
        statuses = training.wait(END_SECONDS)
        report.seconds_to_notice = time.monotonic() - began
        said = training.said()
        for host in range(2):
            if training.processes[host].poll() is None:
                self._hosts.kill(host)
        self._hosts.mend()
        if statuses is None:
            report.violations.append(f"a cut link is waited for longer than {END_SECONDS:g} s")
        elif 0 in statuses:
            report.violations.append(f"a run without its link ended with {statuses}")
        elif "ClusterError" not in said and "left the training" not in said:
            report.violations.append(f"no error tells of the other rank: {said}")
        mends_clock()
        self._resume(report)
        return report

    def killed_host(self, host: int, before: Callable[[], object] = lambda: None) -> HostsReport:
        """One host dies and comes back; torchrun's restart of the other takes it in.

        Args:
            host: 1; host 0 has the rendezvous, and with it all ends.
            before: done before the host comes back; for a planted bug.
        """
        report = HostsReport(runs=1, kills=1)
        self._clear()
        training = self._training(restarts=3).start_both()
        training.wait_for_cuts(self._chance.randint(2, 4))
        began = time.monotonic()
        self._hosts.kill(host)
        before()
        if host == 0:
            statuses = training.wait(END_SECONDS)
            report.seconds_to_notice = time.monotonic() - began
            if statuses is None:
                self._hosts.kill(1)
                report.violations.append("the other host does not end without the rendezvous")
            self._resume(report)
            return report
        training.start(host)
        training.processes[host] = training.processes.pop()
        statuses = training.wait(RUN_SECONDS)
        report.seconds_to_notice = time.monotonic() - began
        if statuses is None or any(statuses):
            for other in range(2):
                if training.processes[other].poll() is None:
                    self._hosts.kill(other)
            said = training.said()
            report.violations.append(f"the run did not go on ({statuses}): {said}")
            self._resume(report)
            return report
        self._compare(report, training)
        return report

    def _resume(self, report: HostsReport) -> None:
        training = self._training().start_both("--resume")
        statuses = training.wait(RUN_SECONDS)
        if statuses is None or any(statuses):
            for host in range(2):
                if training.processes[host].poll() is None:
                    self._hosts.kill(host)
            report.violations.append(f"resuming ended with {statuses}: {training.said()}")
            return
        self._compare(report, training)

    def _compare(self, report: HostsReport, training: Training) -> None:
        """The figures of the last run beside those of the undisturbed one."""
        figures = training.figures()
        if figures["examples"] < EXAMPLES:
            report.resumed += 1
        else:
            report.violations.append("the run began anew, though there were checkpoints")
        for name in ("digests", "loss_digest", "total_examples"):
            if figures[name] != self._expected[name]:
                report.violations.append(
                    f"{name} is {figures[name]}, not {self._expected[name]} as undisturbed"
                )

    def lose_a_cut(self) -> Callable[[], None]:
        """A planted bug: host 1's disk comes back as it was at an earlier cut, silently."""
        kept = self._hosts.folders[1] / "kept"
        store = self._hosts.folders[1] / "store"

        def put_back() -> None:
            for part in store.glob("*/rank-*"):
                newest = max(part.glob("segment-*"), key=lambda file: file.stat().st_mtime_ns)
                newest.write_bytes(b"")

        shutil.rmtree(kept, ignore_errors=True)
        return put_back
