"""Training over two hosts whose link is cut, or of which one dies: it resumes to the same bits.

Above it: run.py. Below it: hosts.py (network namespaces), torchrun, `hps train`. Each host has its
own disk, so a host that comes back has its own rank's folder and no other. An undisturbed run is
the oracle: whatever happened meanwhile, the last run's rows and losses have its digests.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
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
# What ranks may take to end by themselves once a host or the link is gone: the timeout of a
# collective, a look at whoever may have said why, and the end of a process on busy cores.
END_SECONDS = 3 * TIMEOUT_SECONDS + 30.0
RUN_SECONDS = 300.0
_POLL_SECONDS = 0.05
TOLD = ("another rank has died", "waited for the others")
# torchrun may miss its rendezvous first, and then ends its ranks before they can tell.
ENDED_BY_TORCHRUN = "closing signal SIGTERM"
SAID = 3000  # characters of what was said that are shown


@dataclass
class HostsReport:
    """What a recipe came to."""

    runs: int = 0
    cuts: int = 0
    kills: int = 0
    resumed: int = 0
    seconds_to_notice: float = 0.0
    violations: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """What had to happen and did not."""
        happened = {"cut or kill": self.cuts + self.kills, "resumed training": self.resumed}
        return [f"no {what}" for what, count in happened.items() if not count]

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
        timeout: seconds of a collective.
    """

    def __init__(self, hosts: Hosts, port: int, restarts: int, timeout: int) -> None:
        self._hosts = hosts
        self._port = port
        self._restarts = restarts
        self._timeout = timeout
        self.processes: list[subprocess.Popen[Any]] = []

    def start(self, host: int, *flags: str) -> None:
        """torchrun on one host."""
        folder = self._hosts.folders[host]
        words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        words += ["--nproc-per-node", "1", "--max-restarts", str(self._restarts)]
        words += ["--rdzv-backend", "c10d", "--rdzv-id", f"run-{self._port}"]
        words += ["--rdzv-endpoint", f"{ADDRESSES[0]}:{self._port}"]
        words += ["--rdzv-conf", f"is_host={int(host == 0)},join_timeout={JOIN_SECONDS}"]
        words += ["--local-addr", ADDRESSES[host], "-m", "hps", "train", "log.tsv"]
        words += ["--store", "store", "--dim", "4", "--hidden", "16", "--batch-size", "256"]
        words += ["--dram", "8MiB", "--threads", "1", "--torch-threads", "1"]
        words += ["--cluster-timeout", str(self._timeout), "--progress-seconds", "0"]
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

    def wait_for_checkpoints(self, number: int) -> None:
        """Returns when so many more checkpoints have been committed.

        Raises:
            AssertionError: the run has ended before.
        """
        cluster = self._hosts.folders[0] / "store" / "CLUSTER"
        seen: set[int] = set()
        deadline = time.monotonic() + RUN_SECONDS
        while len(seen) < number + 1:  # the first may be of an earlier run
            assert time.monotonic() < deadline, "no checkpoints came"
            assert self.processes[0].poll() is None, f"ended early: {self.said()[-SAID:]}"
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

    def wait_for_ranks(self, seconds: float) -> list[str]:
        """Waits until no rank is left; the command lines of those that still are after so long.

        torchrun's own process is none of them: without a word from the host of the rendezvous it
        waits as long as TCP does.
        """
        deadline = time.monotonic() + seconds
        while True:
            lines = [line for host in range(2) for line in self._hosts.running(host)]
            ranks = [line for line in lines if "torch.distributed.run" not in line]
            if not ranks or time.monotonic() > deadline:
                return ranks
            time.sleep(_POLL_SECONDS)

    def figures(self) -> dict[str, Any]:
        """What rank 0 wrote; it is on either host."""
        for folder in self._hosts.folders:
            if (folder / "out.json").exists():
                found: dict[str, Any] = json.loads((folder / "out.json").read_text())
                return found
        raise AssertionError(f"no figures were written: {self.said()[-SAID:]}")

    def said(self) -> str:
        """What both hosts have said."""
        logs = [folder / "said.txt" for folder in self._hosts.folders]
        return " | ".join(log.read_text(errors="replace") for log in logs if log.exists())


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

    def _training(self, restarts: int = 0, timeout: int = TIMEOUT_SECONDS) -> Training:
        self._next_port += 1
        return Training(self._hosts, self._next_port, restarts, timeout)

    def _clear(self) -> None:
        for folder in self._hosts.folders:
            shutil.rmtree(folder / "store", ignore_errors=True)
            (folder / "out.json").unlink(missing_ok=True)
            (folder / "said.txt").unlink(missing_ok=True)

    def _undisturbed(self) -> dict[str, Any]:
        self._clear()
        training = self._training().start_both()
        statuses = training.wait(RUN_SECONDS)
        assert statuses == [0, 0], (
            f"an undisturbed run ended with {statuses}: {training.said()[-SAID:]}"
        )
        figures = training.figures()
        assert figures["total_examples"] == EXAMPLES
        return figures

    def cut_link(self, timeout: int = TIMEOUT_SECONDS) -> HostsReport:
        """The link is cut in the middle: both sides end by themselves; then both are started again.

        Args:
            timeout: of a collective; one that never comes is a planted bug.
        """
        report = HostsReport(runs=1, cuts=1)
        self._clear()
        training = self._training(timeout=timeout).start_both()
        training.wait_for_checkpoints(self._chance.randint(2, 4))
        self._hosts.cut()
        self._end(report, training, "without its link")
        self._hosts.mend()
        self._resume(report)
        return report

    def killed_host(self, loses_a_checkpoint: bool = False) -> HostsReport:
        """Host 1 dies and comes back; torchrun's restart of the other takes it in.

        Args:
            loses_a_checkpoint: a planted bug: its disk comes back as of an earlier checkpoint.
        """
        report = HostsReport(runs=1, kills=1)
        self._clear()
        training = self._training(restarts=3).start_both()
        training.wait_for_checkpoints(1)
        store, kept = (self._hosts.folders[1] / name for name in ("store", "kept"))
        if loses_a_checkpoint:
            shutil.rmtree(kept, ignore_errors=True)
            copy_living(store, kept)
        training.wait_for_checkpoints(self._chance.randint(1, 3))
        began = time.monotonic()
        self._hosts.kill(1)
        if loses_a_checkpoint:
            shutil.rmtree(store)
            kept.rename(store)
        training.processes.pop().wait()
        training.start(1)
        statuses = training.wait(RUN_SECONDS)
        report.seconds_to_notice = time.monotonic() - began
        if statuses == [0, 0]:
            self._compare(report, training)
        else:
            report.violations.append(
                f"the run did not go on ({statuses}): {training.said()[-SAID:]}"
            )
            self._stop(training)
        return report

    def killed_rendezvous(self) -> HostsReport:
        """Host 0 dies, and with it the rendezvous: the other ends; then both are started again."""
        report = HostsReport(runs=1, kills=1)
        self._clear()
        training = self._training(restarts=3).start_both()
        training.wait_for_checkpoints(self._chance.randint(2, 4))
        self._hosts.kill(0)
        self._end(report, training, "without the other host", (*TOLD, ENDED_BY_TORCHRUN))
        self._resume(report)
        return report

    def _end(
        self, report: HostsReport, training: Training, how: str, told: tuple[str, ...] = TOLD
    ) -> None:
        """Waits until the ranks of a run that cannot go on have ended: by themselves, with an
        error that tells of the other rank in one of the words `told`."""
        began = time.monotonic()
        left = training.wait_for_ranks(END_SECONDS)
        report.seconds_to_notice = time.monotonic() - began
        said = training.said()
        self._stop(training)
        if left:
            report.violations.append(f"ranks {how} are still there after {END_SECONDS:g} s: {left}")
        elif any(process.returncode == 0 for process in training.processes):
            report.violations.append(f"a run {how} ended well")
        elif not any(words in said for words in told):
            report.violations.append(f"no error tells of the other rank: {said[-SAID:]}")

    def _stop(self, training: Training) -> None:
        for host, process in enumerate(training.processes):
            if process.poll() is None:
                self._hosts.kill(host)
                process.wait()

    def _resume(self, report: HostsReport) -> None:
        training = self._training().start_both("--resume")
        statuses = training.wait(RUN_SECONDS)
        if statuses == [0, 0]:
            self._compare(report, training)
        else:
            report.violations.append(f"resuming ended with {statuses}: {training.said()[-SAID:]}")
            self._stop(training)

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


def copy_living(source: Path, target: Path) -> None:
    """Copies a store that is being written; what goes away meanwhile is not in the copy."""

    def ignore_gone(path: str, name: str) -> None:
        with suppress(FileNotFoundError):
            shutil.copy2(path, name)

    shutil.copytree(source, target, copy_function=ignore_gone)


@dataclass(frozen=True)
class HostsRecipe:
    """One fault, how often in `make torture`, and the planted bug that it must find."""

    name: str
    what: str
    count: int
    run: Callable[[ClusterLab], HostsReport]
    bug: str = ""
    planted: Callable[[ClusterLab], HostsReport] | None = None


RECIPES = (
    HostsRecipe(
        "H1",
        "a cut link",
        2,
        ClusterLab.cut_link,
        "collectives have no timeout",
        lambda lab: lab.cut_link(timeout=10**6),
    ),
    HostsRecipe(
        "H2",
        "a host that dies and comes back",
        2,
        ClusterLab.killed_host,
        "the host's disk has lost the newest checkpoint",
        lambda lab: lab.killed_host(loses_a_checkpoint=True),
    ),
    HostsRecipe("H2", "the host of the rendezvous dies", 1, ClusterLab.killed_rendezvous),
)
