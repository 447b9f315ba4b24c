"""Several ranks at once: threads of this process, or processes joined by gloo.

Above it: cluster_bench.py, calibrate.py. Below it: rank.py. Processes get the variables that
torchrun would set; torchrun's own start is not part of what is measured.
"""

import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.cluster.rank import RankRun, RunOptions, Timed
from hps.cluster.world.local_world import local_worlds

ROOT = Path(__file__).resolve().parents[2]
_MODULE = "benchmarks.cluster.rank"


def run_threads(options: RunOptions, size: int, digests: list[str] | None = None) -> list[Timed]:
    """Every rank's figures, in rank order; the ranks are threads of this process.

    Args:
        digests: takes the table's digest, from each rank.

    Raises:
        RuntimeError: a rank failed; its error is the cause.
    """
    found: dict[int, Timed] = {}
    failed: list[BaseException] = []
    with tempfile.TemporaryDirectory() as folder:
        worlds = [None] if options.plain else local_worlds(size)
        runs = [RankRun(options, Path(folder) / "store", world) for world in worlds]

        def work(rank: int) -> None:
            try:
                found[rank] = runs[rank].run(wants_digest=digests is not None)
            except BaseException as error:
                failed.append(error)
                if worlds[rank] is not None:
                    worlds[rank].abort(str(error))

        num_threads = torch.get_num_threads()
        torch.set_num_threads(options.threads)
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(runs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.set_num_threads(num_threads)
    if failed:
        raise RuntimeError("a rank failed") from failed[0]
    if digests is not None:
        digests += [run.digest for run in runs]
    return [found[rank] for rank in range(len(runs))]


def run_threads_apart(options: RunOptions, size: int) -> list[Timed]:
    """As run_threads, in a process of its own."""
    (said,) = launch("benchmarks.cluster.ranks", [[options.to_text(), str(size)]], is_apart=True)
    return [Timed(**figures) for figures in json.loads(said)]


def run_processes(options: RunOptions, size: int) -> list[Timed]:
    """As run_threads, each rank a process; over gloo unless the run is plain.

    Raises:
        RuntimeError: a rank failed, with what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        said = launch(_MODULE, [_arguments(options, folder)] * size)
    return [Timed(**json.loads(text)) for text in said]


def run_apart(options: RunOptions, number: int) -> list[Timed]:
    """So many runs of one rank each, begun at once, that know nothing of each other."""
    with tempfile.TemporaryDirectory() as folder:
        said = launch(_MODULE, [[*_arguments(options, folder), "--by-itself"]] * number)
    return [Timed(**json.loads(text)) for text in said]


def _arguments(options: RunOptions, folder: str) -> list[str]:
    return [str(Path(folder) / "store"), options.to_text()]


def launch(module: str, arguments: Sequence[Sequence[str]], is_apart: bool = False) -> list[str]:
    """What each process of a module prints, in order.

    Args:
        arguments: of each process.
        is_apart: each is a world of its own; else they are its ranks, and meet on the loopback.

    Raises:
        RuntimeError: a process failed, with what it said.
    """
    processes = []
    size = len(arguments)
    held = [held_port() for _ in range(size if is_apart else 1)]
    ports = [port.getsockname()[1] for port in held]
    for number, own in enumerate(arguments):
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "MASTER_PORT": ports[0]}
        if is_apart:
            place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": ports[number]}
        variables = [f"{name}={value}" for name, value in place.items()]
        # Threads of torch that spin would take the cores from the others.
        variables += ["MASTER_ADDR=127.0.0.1", "OMP_NUM_THREADS=1", "OMP_WAIT_POLICY=passive"]
        processes.append(
            subprocess.Popen(
                ["env", *variables, sys.executable, "-m", module, *own],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ends: dict[int, tuple[str, str]] = {}

    def listen(rank: int) -> None:
        ends[rank] = processes[rank].communicate()

    threads = [threading.Thread(target=listen, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for port in held:
        port.close()
    for rank, process in enumerate(processes):
        if process.returncode != 0:
            raise RuntimeError(f"process {rank} of {size} of {module} failed:\n{ends[rank][1]}")
    return [ends[rank][0] for rank in range(size)]


def main() -> int:
    """Ranks as threads of this process; prints their figures as JSON."""
    options, size = RunOptions.from_text(sys.argv[1]), int(sys.argv[2])
    json.dump([asdict(timed) for timed in run_threads(options, size)], sys.stdout)
    return 0


def held_port() -> socket.socket:
    """One that torch may listen on, and that the system gives to nobody else until it is closed."""
    port = socket.socket()
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("127.0.0.1", 0))
    return port


if __name__ == "__main__":
    raise SystemExit(main())
