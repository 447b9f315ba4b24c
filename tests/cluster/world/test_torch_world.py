"""Ranks that are processes, over gloo: the bits of ranks that are threads, and nobody hangs.

Above it: pytest. Below it: tests/cluster/torch_worker.py, which forks the ranks;
hps.cluster.world.torch_world.
"""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cluster import parameter_server
from hps.cluster.world.torch_world import _Watch, torch_world
from hps.config import RankEnvironment
from tests.cluster.ranks import Task, train_ranks
from tests.ports import HeldPort

pytestmark = pytest.mark.timeout(900)  # every rank imports torch


RUNS = {"end": 2, "raise": 3, "kill": 2, "stop": 2, "leave": 2}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Of each run what each rank said, all its lines as one dict, with its exit status."""
    folder = tmp_path_factory.mktemp("ranks")
    worker = [sys.executable, "-m", "tests.cluster.torch_worker", str(folder), json.dumps(RUNS)]
    ended = subprocess.run(worker, stdout=subprocess.PIPE, text=True, timeout=800, check=True)
    statuses = _joined(ended.stdout)
    return {
        how: [
            {
                **_joined((folder / f"{how}-{rank}.out").read_text()),
                "status": statuses[how][rank],
                "errors": (folder / f"{how}-{rank}.err").read_text(),
            }
            for rank in range(size)
        ]
        for how, size in RUNS.items()
    }


def _joined(lines: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in lines.splitlines():
        found.update(json.loads(line))
    return found


Said = dict[str, list[dict[str, Any]]]


def test_processes_train_to_the_bits_of_threads(tmp_path: Path, said: Said) -> None:
    assert [one["status"] for one in said["end"]] == [0, 0], said["end"]
    threads = train_ranks(Task(), 2, 0, tmp_path / "threads")
    for rank, one in enumerate(said["end"]):
        assert one["digests"] == threads.digests
        assert one["losses"] == threads.losses[rank]


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_when_one_process_ends_the_others_say_so_at_once(said: Said, how: str) -> None:
    ranks = said[how]
    others = [rank for rank in range(len(ranks)) if rank != 1]
    for rank in others:
        assert ranks[rank]["error"] == "ClusterError", ranks
        assert f"rank {rank}: " in ranks[rank]["text"]
        assert ranks[rank]["heard"] - ranks[1]["ends"] < 30  # of the 60 that a collective may take
        assert ranks[rank]["status"] == 0, ranks
    if how == "raise":
        assert "rank 1 has left the training" in ranks[0]["text"]
        assert "ValueError: of rank 1" in ranks[0]["text"]
        assert max(ranks[rank]["heard"] for rank in others) < ranks[1]["slept"]
    else:
        assert ranks[1]["status"] == -9


def test_a_process_whose_loop_ends_earlier_is_named_at_once(said: Said) -> None:
    left, other = said["leave"]
    assert (left["status"], other["status"]) == (0, 0), said["leave"]
    assert other["heard"] - left["ends"] < 30
    for one in (left, other):
        assert one["error"] == "ClusterError"
        assert "rank 0 has left its pipeline after 3 step(s)" in one["text"]


def test_a_process_that_stands_still_is_given_up_after_the_timeout(said: Said) -> None:
    # It holds the store in which the ranks meet, which then answers nobody either.
    stopped, other = said["stop"]
    assert other["error"] == "ClusterError", other
    assert "rank 1: " in other["text"] and "look at" in other["text"]
    assert 5 < other["heard"] - stopped["ends"] < 60
    assert (stopped["status"], other["status"]) == (-9, 0)


def test_a_store_that_does_not_answer_keeps_nobody() -> None:
    answers = threading.Event()

    class SilentStore:
        def check(self, keys: list[str]) -> bool:
            answers.wait(60)
            return False

        def compare_set(self, key: str, expected: str, value: str) -> bytes:
            answers.wait(60)
            return value.encode()

    watch = _Watch(3, SilentStore())
    started = time.monotonic()
    for _ in range(5):
        watch.look("rows")
    assert time.monotonic() - started < 20
    watch.abort("a disk is full")
    assert time.monotonic() - started < 20
    with pytest.raises(hps.ClusterError, match=r"rank 3 has left the training: a disk is full"):
        watch.look("rows")
    answers.set()


def test_no_thread_is_left_in_the_store_when_a_process_ends() -> None:
    """There the C++ runtime would abort it ("terminate called without an active exception")."""
    asked, answers = threading.Event(), threading.Event()

    class SlowStore:
        def check(self, keys: list[str]) -> bool:
            asked.set()
            answers.wait(60)
            return False

    watch = _Watch(0, SlowStore())
    watch.look("rows")
    assert asked.wait(60)
    threading.Timer(0.2, answers.set).start()
    watch.close()
    assert answers.is_set() and not watch._thread.is_alive()
    watch.close()


def test_what_one_thread_of_a_rank_has_noticed_its_others_say_in_the_same_words() -> None:
    """Not that their own rank has left, which the user would look for in vain."""

    class OpenStore:
        def compare_set(self, key: str, expected: str, value: str) -> bytes:
            return value.encode()

        def check(self, keys: list[str]) -> bool:
            return False

    noticed = "rank 2: another rank has died (noticed in the keys channel)"
    watch = _Watch(2, OpenStore())
    watch.look("rows")
    watch.fail(noticed)
    watch.fail("rank 2: another rank has died (noticed in the control channel)")
    assert watch.is_aborted
    for patience in (0.0, 0.01):
        with pytest.raises(hps.ClusterError) as raised:
            watch.look("rows", patience)
        assert str(raised.value) == noticed
    watch.close()
    other = _Watch(2, OpenStore())
    other.abort("a disk is full")
    other.fail("rank 2: waited for the others")  # of what the first has brought about
    with pytest.raises(hps.ClusterError, match="but rank 2 has left the training: a disk is full"):
        other.look("rows")
    other.close()


@pytest.mark.parametrize("first", [None, "rank 0 has left the training: its disk is full"])
def test_the_first_to_leave_has_heard_of_nobody_also_where_the_store_goes_with_its_note(
    first: str | None,
) -> None:
    class LastStore:
        def compare_set(self, key: str, expected: str, value: str) -> bytes:
            return (first or value).encode()

        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("the host of the store has ended")

    watch = _Watch(1, LastStore())
    watch.abort("a disk is full")
    assert (watch.heard is None) == (first is None)


def test_without_torchrun_it_says_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(hps.ConfigError, match="torchrun --nproc-per-node"):
        torch_world()


@pytest.mark.parametrize(
    ("gpu", "backend"),
    [
        (None, "gloo"),
        (hps.GpuCacheConfig(bytes="4MiB", device="cpu"), "gloo"),
        (hps.GpuCacheConfig(bytes="4MiB"), None),
    ],
)
def test_rows_in_host_memory_travel_over_gloo_whatever_gpus_there_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: hps.GpuCacheConfig, backend: str | None
) -> None:
    class AskedError(Exception):
        pass

    def ask(asked: str | None = None) -> None:
        raise AskedError(asked)

    monkeypatch.setattr(parameter_server, "torch_world", ask)
    tables = [hps.TableConfig(name="ads", dim=4)]
    with pytest.raises(AskedError) as error:
        hps.ClusterParameterServer(hps.Config(path=tmp_path, tables=tables, gpu=gpu))
    assert error.value.args == (backend,)


@pytest.mark.parametrize(
    "there",
    [
        {"RANK": "0"},
        {"WORLD_SIZE": "2", "MASTER_ADDR": "host"},
        {"LOCAL_RANK": "0", "MASTER_PORT": "1"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "host"},
    ],
)
def test_a_place_that_is_half_set_names_what_is_there_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, str]
) -> None:
    place, address = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("MASTER_ADDR", "MASTER_PORT")
    for name in (*place, *address):
        monkeypatch.delenv(name, raising=False)
    for name, value in there.items():
        monkeypatch.setenv(name, value)
    missing = [name for name in (*place[:2], *address) if name not in there]
    told = f"variables {', '.join(there)} are set, and {', '.join(missing)} are not"
    with pytest.raises(hps.ConfigError, match=told):
        torch_world()
    assert RankEnvironment.of({"MASTER_ADDR": "host"}) is None  # of another program, perhaps


def test_ranks_that_do_not_come_are_told_of_after_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    with HeldPort() as port:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.number)}
        for name, value in {**found, **address}.items():
            monkeypatch.setenv(name, value)
        started = time.monotonic()
        with pytest.raises(hps.ClusterError, match="rank 1 of 2"):
            torch_world("gloo", timeout_seconds=1.0)
        assert time.monotonic() - started < 60


def test_what_torchrun_says_is_read_and_checked() -> None:
    found = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "TORCHELASTIC_RESTART_COUNT": "3"}
    place = RankEnvironment.of(found)
    assert place is not None
    assert (place.rank, place.size, place.local_rank, place.num_restarts) == (1, 4, 1, 3)
    assert not place.shares_store
    shared = RankEnvironment.of({**found, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert shared is not None and shared.shares_store
    assert RankEnvironment.of({}) is None
    for broken in ({"RANK": "4"}, {"RANK": "x"}, {"WORLD_SIZE": "0"}):
        with pytest.raises(hps.ConfigError):
            RankEnvironment.of({**found, **broken})
