"""A process that is killed at any moment, while rows die and their bytes go, leaves one checkpoint
whole: its period, its rows, its counts. Two planted bugs show that the test would see it.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.ssd_store import SsdStore, verify
from hps.tiers.cached_tier import CachedTier

DIM, NUM_KEYS, BATCH_KEYS = 4, 4000, 300
EXPIRY = hps.Expiry(unseen=2, min_score=0.9, decay=0.8, nonclick=0.3, click=1.0)
DRAM_BYTES = 14_000  # some 128 rows, of several hundred that live
MOST_ROWS = 250
NUM_KILLS = 12
MOST_BATCHES = 400


def opened(path: Path, engine: str = "segments") -> hps.ParameterServer:
    table = hps.TableConfig(
        name="ads",
        dim=DIM,
        optimizer=hps.SGD(lr=1.0),
        initializer=hps.Constant(0.0),
        expiry=EXPIRY,
        max_rows=MOST_ROWS,  # as a period begins, when rows die by the rules, too
    )
    ssd = hps.SsdStoreConfig(segment_bytes=2**16, compaction_threshold=0.2, engine=engine)
    dram = hps.DramCacheConfig(bytes=DRAM_BYTES)
    return hps.ParameterServer(hps.Config(path=path, tables=[table], dram=dram, ssd=ssd))


def work(server: hps.ParameterServer, number: int) -> None:
    """Batch `number`, and what follows it: a period now and then."""
    generator = np.random.default_rng(number)
    # The popular set drifts, so that rows die and others are born.
    keys = (generator.integers(0, 600, BATCH_KEYS) + 20 * number) % NUM_KEYS
    labels = (generator.random(BATCH_KEYS) < 0.1).astype(np.float32)
    server.push("ads", keys.astype(np.uint64), -np.ones((BATCH_KEYS, DIM), np.float32), labels)
    if number % 3 == 2:
        server.advance_period()
    if number % 4 == 3:
        server.checkpoint(reader={"done": number + 1})


def seen(server: hps.ParameterServer) -> tuple[Any, ...]:
    return server.period, server.num_rows("ads"), server.digest("ads")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Any, ...]]:
    """What there is after each checkpoint of a run that nobody kills."""
    found: dict[int, tuple[Any, ...]] = {0: (0, 0, "0" * 32)}
    num_early = 0
    with opened(tmp_path_factory.mktemp("undisturbed") / "store") as server:
        for number in range(MOST_BATCHES):
            work(server, number)
            if number % 4 == 3:
                found[number + 1] = seen(server)
                num_early += server.stats()["tables"]["ads"]["rows_bounded"]
        assert server.stats()["dram_cache"]["evictions"] > 1000
        assert server.stats()["ssd_store"]["compactions"] > 5
        assert server.parts.tables.stacks["ads"].rows_expired > 1000
        assert num_early > 1000
    return found


def run_on(path: Path, first: int, engine: str) -> None:
    """Works from batch `first` on."""
    server = opened(path, engine)
    for number in range(first, MOST_BATCHES):
        work(server, number)


def killed_run(path: Path, seconds: float, first: int, engine: str) -> None:
    """A child goes on from batch `first`; it is killed after so many seconds."""
    if engine == "rocksdb":  # whose threads a fork lacks
        code = f"run_on(Path({str(path)!r}), {first}, {engine!r})"
        own = f"tests.parameter_server.{Path(__file__).stem}"
        text = f"from pathlib import Path\nfrom {own} import run_on\nprint(flush=True)\n{code}"
        command, root = [sys.executable, "-c", text], Path(__file__).parents[2]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as process:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            time.sleep(seconds)
            process.kill()
        return
    pid = os.fork()
    if pid == 0:
        try:
            run_on(path, first, engine)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def kill_and_look(
    path: Path, expected: dict[int, tuple[Any, ...]], num_kills: int, engine: str = "segments"
) -> int:
    """How many batches were done in the end; raises where a checkpoint was not whole."""
    generator = np.random.default_rng()
    done = 0
    for _ in range(num_kills):
        killed_run(path, 0.05 + 0.5 * generator.random(), done, engine)
        assert verify(path) == []
        with opened(path, engine) as server:
            reader = (
                server.restore(server.checkpoints()[-1]["id"])[1] if server.checkpoints() else None
            )
            done = reader["done"] if reader else 0
            assert seen(server) == expected[done], f"after {done} batches"
        if done >= MOST_BATCHES - 40:
            break
    return done


@pytest.mark.parametrize("engine", ["segments", "rocksdb"])
def test_a_kill_leaves_the_rows_of_a_checkpoint(
    tmp_path: Path, undisturbed: dict[int, tuple[Any, ...]], engine: str
) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    assert kill_and_look(tmp_path / "store", undisturbed, NUM_KILLS, engine) > 20


@pytest.mark.parametrize("plant", ["period", "flush"])
def test_a_planted_bug_is_found(
    tmp_path: Path,
    undisturbed: dict[int, tuple[Any, ...]],
    plant: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if plant == "period":  # an opening forgets in which period its checkpoint is
        monkeypatch.setattr(SsdStore, "follow_period", lambda self: None)
    else:  # a period begins while caches have the only image of rows
        monkeypatch.setattr(CachedTier, "begin_period", lambda self, period, horizon: None)
    with pytest.raises(AssertionError):
        for attempt in range(4):
            kill_and_look(tmp_path / str(attempt), undisturbed, NUM_KILLS)
