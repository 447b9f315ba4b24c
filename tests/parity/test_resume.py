"""A run that is killed and resumed ends with the bits of one never interrupted."""

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.train import TrainOptions, train
from tests.logs import write_criteo

ROOT = Path(__file__).resolve().parents[2]
# Imports all once, then forks a run for each line that it reads, and kills it so many seconds after
# so many batches; writes the signal that ended it.
SCRIPT = """
import json, os, signal, sys, time
import torch
from hps.train import train
from hps.train.progress import Progress
from tests.parity.test_resume import options

class Tell(Progress):
    def update(self, totals, logits, batch, stats):
        if totals.batches >= batches:
            os.write(told, b"!")
            is_last = totals.batches >= 63  # it is not done before it is killed
            if seconds == 0 or is_last:
                time.sleep(60)

torch.set_num_threads(1)
for line in sys.stdin:
    log, store, depth, batches, seconds = json.loads(line)
    hears, told = os.pipe()
    child = os.fork()
    if child == 0:
        train(options(log, store, resume_if_any=True, depth=depth), Tell(1))
        os._exit(0)
    os.close(told)
    if batches > 0:
        os.read(hears, 1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.close(hears)
    status = os.waitpid(child, 0)[1]
    print(os.WTERMSIG(status), flush=True)
"""


def options(log: str | Path, store: str | Path, **changes: Any) -> TrainOptions:
    """Dropout, Adam's moments on the dense side, a scheduler on both: all must be taken up."""
    values: dict[str, Any] = {
        "data": [log],
        "store": store,
        "dim": 8,
        "batch_size": 64,
        "hidden": (16,),
        "dropout": 0.3,
        "dram": "512KiB",
        "optimizer": "adam",
        "scheduler": "cosine",
        "scheduler_steps": 100,
        "checkpoint_every": 8,
        "epochs": 2,
        "seed": 5,
    }
    return TrainOptions(**{**values, **changes})


class Nursery:
    """Trains on a log into a store, at a depth, until it is killed."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def train(
        self, log: Path, store: Path, depth: int, *, batches: int = 0, seconds: float = 0.0
    ) -> int:
        """The signal that has ended the run, `seconds` after so many batches; 0 where it has ended
        by itself. It goes no further than its last batch but one."""
        assert self._process.stdin is not None and self._process.stdout is not None
        order = json.dumps([str(log), str(store), depth, batches, seconds])
        print(order, file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Nursery(process)
        assert process.stdin is not None
        process.stdin.close()


def _examples_of(batches: int) -> int:
    """Examples in the first batches: an epoch of 2,000 is 31 batches of 64 and one of 16."""
    epochs, rest = divmod(batches, 32)
    return 2000 * epochs + 64 * rest


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A log, and the figures of a run over it that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    log = write_criteo(folder / "log.txt", 2000, num_keys=3000)
    figures = train(options(log, folder / "store", depth=0))
    assert figures["tiers"]["dram_cache"]["evictions"] > 0
    return log, figures


def same_bits(figures: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on when a run was interrupted."""
    names = ("digests", "loss_digest", "train_logloss", "rows", "total_examples")
    return {name: figures[name] for name in names}


GPU = {"gpu": "300KiB", "device": "cpu", "dram": "200KiB"}


@pytest.mark.parametrize(
    ("depth", "kills", "tiers"),
    [(0, [20], {}), (2, [13, 45], {}), (8, [13, 45], {}), (4, [20], GPU)],
)
def test_killed_run_resumes_to_the_same_bits(
    tmp_path: Path,
    whole: tuple[Path, dict[str, Any]],
    nursery: Nursery,
    depth: int,
    kills: list[int],
    tiers: dict[str, Any],
) -> None:
    """The last one goes on with a tier more than it was killed with."""
    log, expected = whole
    store = tmp_path / "store"
    for batches in kills:
        assert nursery.train(log, store, depth, batches=batches) == signal.SIGKILL
    resumed = train(options(log, store, resume=True, depth=depth, **tiers))
    assert resumed["resumed_from"] is not None
    last_checkpoint = kills[-1] // 8 * 8
    assert 0 < last_checkpoint < kills[-1]  # each kill lost some batches, but not all
    assert resumed["examples"] == expected["examples"] - _examples_of(last_checkpoint)
    assert resumed["tiers"]["dram_cache"]["evictions"] > 0
    assert same_bits(resumed) == same_bits(expected)


@pytest.mark.parametrize("depth", [0, 2, 8])
def test_a_run_killed_at_any_moment_resumes_to_the_same_bits(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]], nursery: Nursery, depth: int
) -> None:
    """In whatever stage, step or checkpoint; also before there is a checkpoint, or a store."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    log, expected = whole
    store = tmp_path / "store"
    first = chance.uniform(0, expected["seconds"] / 2)
    assert nursery.train(log, store, depth, seconds=first) == signal.SIGKILL
    batches, seconds = chance.randrange(9, 60), chance.uniform(0, 0.02)
    assert nursery.train(log, store, depth, batches=batches, seconds=seconds) == signal.SIGKILL
    resumed = train(options(log, store, resume=True, depth=depth))
    assert resumed["resumed_from"] is not None
    assert same_bits(resumed) == same_bits(expected)


def test_a_run_that_was_killed_while_its_store_was_made_begins_anew(
    tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    log, expected = whole
    made, left = tmp_path / "made", tmp_path / "left"
    with hps.ParameterServer(hps.Config(path=made, tables=[hps.TableConfig(name="other", dim=4)])):
        left.mkdir()
        shutil.copy(next(made.glob("MANIFEST-*")), left)  # CURRENT would have named it next
    resumed = train(options(log, left, resume_if_any=True))
    assert resumed["resumed_from"] is None
    assert same_bits(resumed) == same_bits(expected)
