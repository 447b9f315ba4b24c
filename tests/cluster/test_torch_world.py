"""Ranks that are processes, over gloo: the bits of ranks that are threads, and nobody hangs.

Above it: pytest. Below it: torch_worker.py, a process a rank; hps.cluster.torch_world.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cluster.torch_world import torch_world
from hps.config import RankEnvironment
from tests.cluster.ranks import Task, train_ranks

pytestmark = pytest.mark.timeout(120)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_processes(size: int, folder: Path, how: str) -> list[dict[str, Any]]:
    """What each rank said, all lines as one dict, with its exit status and the end's time."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.torch_worker", str(folder), how],
            env={
                **os.environ,
                **address,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    said = []
    try:
        for process in processes:
            output, errors = process.communicate(timeout=90)
            lines = {}
            for line in output.splitlines():
                lines.update(json.loads(line))
            said.append({**lines, "status": process.returncode, "stderr": errors})
    finally:
        for process in processes:
            process.kill()
    return said


def test_processes_train_to_the_bits_of_threads(tmp_path: Path) -> None:
    said = run_processes(2, tmp_path / "processes", "end")
    assert [one["status"] for one in said] == [0, 0], said
    threads = train_ranks(Task(), 2, 0, tmp_path / "threads")
    for rank in (0, 1):
        assert said[rank]["digests"] == threads.digests
        assert said[rank]["losses"] == threads.losses[rank]


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_when_one_process_ends_the_others_say_so_at_once(tmp_path: Path, how: str) -> None:
    said = run_processes(3, tmp_path, how)
    for rank in (0, 2):
        assert said[rank]["error"] == "ClusterError", said
        assert f"rank {rank}: " in said[rank]["text"]
        assert said[rank]["heard"] - said[1]["ends"] < 4
        assert said[rank]["status"] == 0, said
    if how == "raise":
        assert "rank 1 has left the training" in said[0]["text"]
        assert "ValueError: of rank 1" in said[0]["text"]
        assert max(said[rank]["heard"] for rank in (0, 2)) < said[1]["slept"]
    else:
        assert said[1]["status"] == -9


def test_without_torchrun_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(hps.ConfigError, match="torchrun --nproc-per-node"):
        torch_world()


def test_ranks_that_do_not_come_are_told_of_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in {**found, **address}.items():
        monkeypatch.setenv(name, value)
    started = time.monotonic()
    with pytest.raises(hps.ClusterError, match="rank 1 of 2"):
        torch_world("gloo", timeout_seconds=1.0)
    assert time.monotonic() - started < 20


def test_what_torchrun_says_is_read_and_checked() -> None:
    found = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "3"}
    place = RankEnvironment.of(found)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.num_restarts) == (1, 4, 1, 3)
    assert place.shares_store
    cured = RankEnvironment.of({**found, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    assert cured is not None and not cured.shares_store
    assert RankEnvironment.of({}) is None
    for broken in ({"RANK": "4"}, {"RANK": "x"}, {"WORLD_SIZE": "0"}):
        with pytest.raises(hps.ConfigError):
            RankEnvironment.of({**found, **broken})
