"""Ranks whose interpreter ends as that of a program does, while gloo's threads are late.

Above it: tests/cluster/world/test_lent.py. Below it: late_threads.cc, the compiler,
hps.cluster.world.torch_world. Run as a program it forks the ranks of all runs.
"""

import atexit
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import hps
from hps.cluster.world.torch_world import TorchWorld, torch_world
from tests.ports import HeldPort

ROOT = Path(__file__).resolve().parents[2]
SIZE = 2
# How a run ends: all close; nobody does; rank 0 waits in vain, and rank 1 is killed as rank 0 ends.
ENDS = ("closed", "unclosed", "left")
_SOURCE = Path(__file__).with_name("late_threads.cc")
_WANTED_SECONDS = 2.0
_ALIVE: list[TorchWorld] = []  # as long as the interpreter, as a training's is


def missing_tools() -> str:
    """Why gloo's threads cannot be late here; "" if they can."""
    return "" if shutil.which("g++") else "no g++ to build tests/cluster/late_threads.cc"


def run_ends(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Of each of `ENDS` what its ranks said, with their exit status and standard error."""
    with tempfile.TemporaryDirectory() as built:
        library = Path(built) / "late_threads.so"
        command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
        subprocess.run([*command, "-ldl"], check=True)
        ended = subprocess.run(
            [sys.executable, "-m", "tests.cluster.ending_ranks", str(folder)],
            cwd=ROOT,
            env={**os.environ, "LD_PRELOAD": str(library)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        )
    statuses = json.loads(ended.stdout)
    return {
        how: [
            {
                **json.loads((folder / f"{how}-{rank}.out").read_text() or "{}"),
                "status": statuses[how][rank],
                "errors": (folder / f"{how}-{rank}.err").read_text(),
            }
            for rank in range(SIZE)
        ]
        for how in ENDS
    }


def _tell_at_end(pipe: int) -> None:
    """The last that runs before Python ends: has rank 1 end; waits until a thread wants the GIL,
    or none has for a while; says how many have."""
    os.write(pipe, b"!")
    late = ctypes.CDLL(None)
    deadline = time.monotonic() + _WANTED_SECONDS
    while not late.NumWanted() and time.monotonic() < deadline:
        time.sleep(0.001)
    print(json.dumps({"wanted": late.NumWanted()}), flush=True)


def _be_rank(how: str, rank: int, pipe: tuple[int, int]) -> int:
    late = ctypes.CDLL(None)
    atexit.register(_tell_at_end, pipe[1])
    world = torch_world("gloo", timeout_seconds=60.0)
    _ALIVE.append(world)
    late.ArmLateThreads()  # before the first collective: each of them counts
    if how == "left":
        late.GoOn()
        if rank == 1:
            world.abort("it has a reason")
            os.read(pipe[0], 1)
            os._exit(0)
        try:
            world.control.barrier()
        except hps.ClusterError:
            return 0
        raise AssertionError("the barrier ended, and rank 1 did not come")
    world.control.barrier()
    late.GoOn()
    if how == "closed":
        world.close()
    return 0


def main(folder: Path) -> int:
    """All runs at once, as they wait more than they work; says the exit statuses; in a child: one
    rank."""
    torch.set_num_threads(1)
    children: dict[str, list[int]] = {}
    with ExitStack() as held:
        for how in ENDS:
            pipe = os.pipe()
            port = held.enter_context(HeldPort())
            children[how] = []
            for rank in range(SIZE):
                child = os.fork()
                if child == 0:
                    for name, number in (("out", 1), ("err", 2)):
                        path = folder / f"{how}-{rank}.{name}"
                        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
                    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                    os.environ |= {"WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1"}
                    os.environ["MASTER_PORT"] = str(port.number)
                    return _be_rank(how, rank, pipe)
                children[how].append(child)
        statuses = {
            how: [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in of]
            for how, of in children.items()
        }
    print(json.dumps(statuses), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
