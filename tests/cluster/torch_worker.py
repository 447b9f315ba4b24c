"""One rank of the tests of torch_world.py: a process that torchrun could have started.

Above it: test_torch_world.py, which starts several and reads what they print. Below it: ranks.py.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import hps
from hps.cluster.torch_world import torch_world
from tests.cluster.ranks import TABLES, Model, Task, cluster_server, train


def say(**values: Any) -> None:
    """One line for the test."""
    print(json.dumps(values), flush=True)


def check_channels(world: Any) -> None:
    """What test_local_world.py checks of threads."""
    rank, size = world.rank, world.size
    parts = [torch.full((to + rank, 2), 10.0 * rank + to) for to in range(size)]
    received = world.rows.all_to_all(parts)
    assert all((part == 10 * of + rank).all() for of, part in enumerate(received))
    assert [len(part) for part in received] == [rank + of for of in range(size)]
    assert [len(part) for part in world.keys.all_to_all([torch.empty(0).long()] * size)] == [0] * size
    assert world.control.gather({"rank": rank}) == [{"rank": of} for of in range(size)]
    assert world.control.any(rank == 1) and not world.control.any(False)
    assert world.rows.bytes_sent > 0


def end_badly(server: Any, how: str, rank: int, size: int) -> None:
    """Trains until rank 1 raises, or is killed, in the middle."""
    model, optimizer = Model(server, size), hps.RowOptimizer(server)
    with hps.Pipeline(Task(num_batches=60).batches(rank, size), server, 2) as batches:
        for number, batch in enumerate(batches):
            if rank == 1 and number == 7:
                say(ends=time.time())
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("of rank 1")
            model.loss(batch).backward()
            optimizer.step()


def main(folder: Path, how: str) -> None:
    """Trains to the end of a log, then ends as it is told."""
    torch.set_num_threads(1)
    with_timeout = {"timeout_seconds": 60.0}
    world = torch_world("gloo", **with_timeout)
    check_channels(world)
    task = Task()
    with cluster_server(task, world, folder) as server:
        losses = train(server, task, 2, world.rank, world.size)
        say(losses=losses, digests={name: server.digest(name) for name in TABLES})
    if how == "end":
        world.close()
        return
    try:
        with cluster_server(Task(num_batches=60), world, folder) as server:
            end_badly(server, how, world.rank, world.size)
    except (ValueError, hps.ClusterError) as error:
        say(error=type(error).__name__, text=str(error), heard=time.time())
        if how == "raise" and world.rank == 1:
            time.sleep(5)  # the others are to hear of it while this process still lives
            say(slept=time.time())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
