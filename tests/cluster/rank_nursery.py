"""Runs of `hps train` as several ranks: a process that has imported everything forks them.

Above it: the fixture `ranks` of tests/conftest.py, tests/torture/run.py. Below it: `hps.cli.main`,
torch.distributed over gloo. To import torch takes longer than such a run; under torchrun, which
tests of its own use, every rank pays for it.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import hps.config
from tests.ports import HeldPort

# What ranks are asked to run, which the command line imports only then.
_COMMANDS = ("hps.cli.main", "hps.cli.train", "hps.cli.evaluate", "hps.train", "hps.train.ranks")
_COMMANDS += ("hps.cluster.parameter_server", "hps.cluster.world.torch_world")
_COMMANDS += ("hps.parameter_server.joint_batches", "hps.reader.shuffle", "hps.reader.text_reader")
INTERRUPT_SECONDS = 60.0  # until it is felt, on a busy machine
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Job:
    """One run.

    Args:
        words: of the command line, after `hps`.
        size: ranks; 0 is one process without torchrun.
        of_rank: rank -> words that it has besides.
        dies_at: rank -> steps after which it is killed.
        variables: set in every rank's environment.
        version: rank -> of the hps that it says it is.
        plant: a bug in every rank, by name; None for none.
        signals: (rank, name) in the order in which they are sent, once rank 0 has told of its
            batches; a second one to rank 0 of a run alone once the first has been told of.
    """

    words: Sequence[str]
    size: int = 0
    of_rank: dict[int, Sequence[str]] = field(default_factory=dict)
    dies_at: dict[int, int] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    version: dict[int, str] = field(default_factory=dict)
    plant: str | None = None
    signals: Sequence[tuple[int, str]] = ()


@dataclass
class Ended:
    """What became of a run, by rank.

    Args:
        statuses: exit status, negative for a signal.
        out, err: what it wrote.
    """

    statuses: list[int]
    out: list[str]
    err: list[str]


class Nursery:
    """Starts ranks, one run after the other.

    Args:
        process: that forks them.
        folder: for what they write.
    """

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._num_runs = 0

    def run(self, job: Job) -> Ended:
        """Runs to the end of every rank."""
        self._num_runs += 1
        folder = self._folder / f"run-{self._num_runs}"
        folder.mkdir()
        with HeldPort() as port:
            message = {**vars(job), "folder": str(folder), "port": port.number}
            message["number"] = self._num_runs
            print(json.dumps(message), file=self._process.stdin, flush=True)
            assert self._process.stdout is not None
            number = 0
            while number != self._num_runs:  # the answer to a test that has given up
                number, statuses = json.loads(self._process.stdout.readline())
        texts = [
            [(folder / f"{rank}.{name}").read_text() for rank in range(len(statuses))]
            for name in ("out", "err")
        ]
        return Ended(statuses, *texts)

    def figures(self, job: Job) -> dict[str, Any]:
        """Of a run that succeeds."""
        path = self._folder / f"figures-{self._num_runs}.json"
        ended = self.run(Job(**{**vars(job), "words": [*job.words, "--json", str(path)]}))
        assert set(ended.statuses) == {0}, ended.err
        figures: dict[str, Any] = json.loads(path.read_text())
        return figures


@contextmanager
def nursery(folder: Path) -> Iterator[Nursery]:
    """A nursery, as long as the block lasts."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.rank_nursery"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Nursery(process, folder)
        assert process.stdin is not None
        process.stdin.close()


def _serve(lines: IO[str]) -> None:
    """The nursery's process: a run for each line, the exit statuses of its ranks for an answer."""
    hps.config.keep_torch_silent()
    import torch._dynamo  # DistributedDataParallel wants it, whatever it is given

    # What a rank imports for itself takes it longer than its training.
    for name in _COMMANDS:
        importlib.import_module(name)
    torch.set_num_threads(1)
    for line in lines:
        job = json.loads(line)
        ranks = range(max(1, job["size"]))
        children = []
        for rank in ranks:
            child = os.fork()
            if child == 0:
                _be_rank(job, rank)
            children.append(child)
        if job["signals"]:
            _signal(job, children, Path(job["folder"]) / "0.err")
        waits = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps([job["number"], waits]), flush=True)


def _signal(job: dict[str, Any], children: Sequence[int], told: Path) -> None:
    """Sends the job's signals; who does not end of them is killed."""

    def await_told(text: str, count: int) -> None:
        deadline = time.monotonic() + INTERRUPT_SECONDS
        while not told.exists() or told.read_text().count(text) < count:
            assert time.monotonic() < deadline, f"rank 0 has not told of {text!r}"
            time.sleep(0.02)

    await_told(" examples ", 3)
    for number, (rank, name) in enumerate(job["signals"]):
        if number and not job["size"]:
            await_told("once more ends at once", 1)
        os.kill(children[rank], signal.Signals[name])
    deadline = time.monotonic() + INTERRUPT_SECONDS
    left = set(children)
    while left and time.monotonic() < deadline:
        left = {
            child
            for child in left
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        }
        time.sleep(0.02)
    for child in left:
        os.kill(child, signal.SIGKILL)


def _be_rank(job: dict[str, Any], rank: int) -> None:
    """Runs the command as one rank; does not return."""
    for name, number in (("out", 1), ("err", 2)):
        file = os.open(f"{job['folder']}/{rank}.{name}", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
    if job["size"]:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(job["size"]),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(job["size"]),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(job["port"]),
        }
    os.environ |= job["variables"]
    # A shell that starts the tests in the background has them ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        _plant(job, str(rank))
        from hps.cli.main import main

        status = main([*job["words"], *job["of_rank"].get(str(rank), ())])
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _plant(job: dict[str, Any], rank: str) -> None:
    """What is to go wrong on this rank."""
    import hps.train.start
    from hps.train.trainer import Trainer

    if rank in job["version"]:
        hps.train.start.__version__ = job["version"][rank]
    if job["plant"] == "generators-forgotten":
        Trainer._take_random = lambda self, of_ranks: None  # type: ignore[method-assign]
    if job["plant"] == "bit-lost-in-moves":
        from hps.cluster.folder import reshard

        pieces = reshard._pieces

        def with_a_flaw(*arguments: Any) -> Iterator[Any]:
            for rows in pieces(*arguments):
                rows[:, rows.shape[1] // 2] ^= 1
                yield rows

        reshard._pieces = with_a_flaw
    if job["plant"] == "keys-noticed-first":
        _notice_keys_first(is_behind=rank in job["dies_at"])
    if rank in job["dies_at"]:
        kill_after(Trainer, job["dies_at"][rank])


def _notice_keys_first(is_behind: bool) -> None:
    """The network stages of two ranks wait for that of the third, which reads no more after eight
    batches; their training loops come to speak of its death after them."""
    from hps.cluster.world.torch_world import _Watch
    from hps.pipeline.work import StageWork

    read, look, reads = StageWork.read, _Watch.look, iter(range(8))

    def read_some(self: Any) -> Any:
        if next(reads, None) is None:
            threading.Event().wait()
        return read(self)

    def look_late(self: Any, name: str, patience_seconds: float = 0.0, number: int = 0) -> None:
        deadline = time.monotonic() + INTERRUPT_SECONDS
        if patience_seconds and name != "keys":
            while not self.is_aborted and time.monotonic() < deadline:
                time.sleep(0.01)
        look(self, name, patience_seconds, number)

    if is_behind:
        StageWork.read = read_some  # type: ignore[method-assign]
    _Watch.look = look_late  # type: ignore[method-assign]


def kill_after(trainer: Any, num_steps: int, last_words: str = "") -> None:
    """Has the process killed in the step after so many."""
    step, taken = trainer.step, iter(range(num_steps))

    def step_or_die(self: Any) -> None:
        if next(taken, None) is None:
            print(last_words, end="\n" if last_words else "", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        step(self)

    trainer.step = step_or_die


if __name__ == "__main__":
    _serve(sys.stdin)
