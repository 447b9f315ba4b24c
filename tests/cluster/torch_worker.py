"""Ranks of the tests of torch_world.py: processes that torchrun could have started.

Above it: tests/cluster/world/test_torch_world.py, which reads what they wrote. Below it: ranks.py.
One process imports everything and forks the ranks of all runs: to import torch takes longer than a
run.
"""

import json
import os
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import hps
from hps.cluster.world.torch_world import torch_world
from tests.cluster.ranks import TABLES, Model, Task, cluster_server, train
from tests.ports import HeldPort


def say(**values: Any) -> None:
    """One line for the test."""
    print(json.dumps(values), flush=True)


def check_channels(world: Any) -> None:
    """What tests/cluster/world/test_local_world.py checks of threads."""
    rank, size = world.rank, world.size
    parts = [torch.full((to + rank, 2), 10.0 * rank + to) for to in range(size)]
    received = world.rows.all_to_all(parts)
    assert all((part == 10 * of + rank).all() for of, part in enumerate(received))
    assert [len(part) for part in received] == [rank + of for of in range(size)]
    nothing = [torch.empty(0, dtype=torch.int64)] * size
    assert [len(part) for part in world.keys.all_to_all(nothing)] == [0] * size
    assert world.control.gather({"rank": rank}) == [{"rank": of} for of in range(size)]
    assert world.control.any(rank == 1) and not world.control.any(False)
    assert world.rows.bytes_sent > 0


def check_interrupt(world: Any) -> None:
    """An interrupt is felt while the others are waited for."""
    started = time.monotonic()
    if world.rank == 1:
        time.sleep(5.0)
        return world.control.barrier()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        world.control.barrier()
        raise AssertionError("the barrier ended before rank 1 came")
    except KeyboardInterrupt:
        assert time.monotonic() - started < 4.0


def end_badly(server: Any, how: str, rank: int, size: int) -> None:
    """Trains until rank 1 raises or is killed, or rank 0 stands still or leaves, in the middle."""
    model, optimizer = Model(server, size), hps.RowOptimizer(server)
    with hps.Pipeline(Task(num_batches=60).batches(rank, size), server, 2) as batches:
        for number, batch in enumerate(batches):
            if rank == (how not in ("stop", "leave")) and number == 3:
                say(ends=time.time())
                if how == "leave":
                    break
                if how != "raise":
                    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
                raise ValueError("of rank 1")
            model.loss(batch).backward()
            optimizer.step()


def be_rank(folder: Path, how: str) -> None:
    """Trains to the end of a log, then ends as it is told."""
    world = torch_world("gloo", timeout_seconds=6.0 if how == "stop" else 60.0)
    check_channels(world)
    if how == "end":
        check_interrupt(world)
        task = Task()
        with cluster_server(task, world, folder) as server:
            losses = train(server, task, 2, world.rank, world.size)
            say(losses=losses, digests={name: server.digest(name) for name in TABLES})
        world.close()
        return
    try:
        with cluster_server(Task(num_batches=60), world, folder) as server:
            end_badly(server, how, world.rank, world.size)
    except (ValueError, hps.ClusterError) as error:
        say(error=type(error).__name__, text=str(error), heard=time.time())
        if how == "raise" and world.rank == 1:
            time.sleep(5.0)  # the others are to hear of it while this process still lives
            say(slept=time.time())


def fork_rank(folder: Path, how: str, place: dict[str, str]) -> int:
    """The process id of a rank; what it says goes to a file of its own."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        for name, number in (("out", 1), ("err", 2)):
            path = folder / f"{how}-{place['RANK']}.{name}"
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        os.environ |= place
        be_rank(folder / how, how)
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(folder: Path, runs: dict[str, int]) -> None:
    """All runs at once, as they wait more than they work; says the exit statuses of each run's
    ranks."""
    torch.set_num_threads(1)
    for name in hps.__all__:  # or each rank would import it for itself
        getattr(hps, name)
    children: dict[int, tuple[str, int]] = {}  # process id -> run, rank
    with ExitStack() as held:
        for how, size in runs.items():
            port = held.enter_context(HeldPort())
            for rank in range(size):
                place = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port.number),
                }
                children[fork_rank(folder, how, place)] = how, rank
        pids = {place: pid for pid, place in children.items()}
        statuses: dict[str, dict[int, int]] = {how: {} for how in runs}
        for _ in children:
            child, status = os.waitpid(-1, 0)
            how, rank = children[child]
            statuses[how][rank] = os.waitstatus_to_exitcode(status)
            if how == "stop" and 0 not in statuses[how]:
                os.kill(pids[how, 0], signal.SIGKILL)
    say(**{how: [of[rank] for rank in range(runs[how])] for how, of in statuses.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
