"""A training that publishes, as a process of its own: what it does, it does beside who follows.

Above it: publishing_bench.py, which starts it, tells it what to do line by line and reads its
answers, JSON. Below it: followed_model.py.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from benchmarks.publishing.followed_model import Trained
from hps.parameter_server.server import ParameterServer

_UPDATES_A_SECOND = 20


class Load:
    """Changes rows at a pace, from a thread, for as long as it is entered."""

    def __init__(self, trained: Trained, server: ParameterServer, changes: int) -> None:
        self._trained, self._server = trained, server
        self._piece = max(1, changes // _UPDATES_A_SECOND)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.lock = threading.Lock()  # a checkpoint is of a moment between two changes
        self.last = 0.0  # when the newest change was acknowledged

    def _work(self) -> None:
        while not self._over.wait(1 / _UPDATES_A_SECOND):
            with self.lock:
                self._trained.touch(self._server, self._piece)
                self.last = time.perf_counter()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


class TrainerProcess:
    """The other end: one answer an order."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, *order: Any) -> dict[str, Any]:
        """What the trainer answers; `moment` by `time.perf_counter`, which processes share."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, order)) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def trainer_process(folder: Path) -> Iterator[TrainerProcess]:
    """A process over a store that `Trained` has made."""
    command = [sys.executable, "-m", "benchmarks.publishing.trainer_process", str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        if process.stdout.readline().strip() != "ready":
            raise SystemExit("the trainer did not start")
        yield TrainerProcess(process)
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def main(folder: str) -> None:
    """Obeys `base PLACE`, `touch COUNT`, `delta PLACE`, `load CHANGES` and `unload`, to the end of
    standard input."""
    torch.set_num_threads(1)
    trained = Trained.again(Path(folder))
    load: Load | None = None
    with trained.opened() as server:
        model, _ = server.checkpoint_state()
        print("ready", flush=True)
        for line in sys.stdin:
            verb, *words = line.split()
            made: Any = {}
            if verb == "touch":
                trained.touch(server, int(words[0]))
            elif verb == "load":
                load = Load(trained, server, int(words[0])).__enter__()
            elif load is not None and verb == "unload":
                load.__exit__()
                load = None
            else:
                with nullcontext() if load is None else load.lock:
                    moment = time.perf_counter() if load is None else load.last
                    trained.touch(server, 1)
                made = dict(server.publish(words[0], kind=verb, keep=1000, model=model)) | {
                    "moment": moment
                }
            print(json.dumps(made, default=str), flush=True)
        if load is not None:
            load.__exit__()
        trained.save(server)  # with the dense part, which a checkpoint at the end is without


if __name__ == "__main__":
    main(sys.argv[1])
