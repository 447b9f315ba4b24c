"""Whatever moment all ranks die at, each opening finds one checkpoint: the old one or the new one.

Above it: pytest. Below it: folder_lab.py, checkpoint_worker.py. A death is a copy of the folder
between
two steps (what the system would still write after SIGKILL), or SIGKILL itself.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hps.cluster.folder import housekeeping
from hps.common import durable_file
from hps.parameter_server.checkpoints import Checkpoints
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.store import SsdStore
from tests.cluster.folder.folder_lab import Rank, Reference, generations, look, on_ranks, train

ROOT = Path(__file__).resolve().parents[3]


class Deaths:
    """Copies a folder before and after every step that changes it, one step at a time."""

    def __init__(self, path: Path, copies: Path, patch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.copies = copies
        self.steps: list[str] = []
        self._patch = patch
        self._lock = threading.RLock()

    def watch(self, owner: Any, name: str, called: str = "") -> None:
        """Has a function or method be one of the steps, which is called so, or by its name."""
        act: Callable[..., Any] = getattr(owner, name)

        def step(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._copy(f"before {called or name}")
                result = act(*arguments, **options)
                self._copy(f"after {called or name}")
                return result

        self._patch.setattr(owner, name, step)

    def guard(self, owner: Any, name: str) -> None:
        """Has a function run between two steps, not beside one."""
        act: Callable[..., Any] = getattr(owner, name)

        def alone(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                return act(*arguments, **options)

        self._patch.setattr(owner, name, alone)

    def _copy(self, step: str) -> None:
        shutil.copytree(self.path, self.copies / str(len(self.steps)))
        self.steps.append(step)

    def folders(self) -> list[Path]:
        return [self.copies / str(number) for number in range(len(self.steps))]


def watch_all(deaths: Deaths) -> None:
    """Every step of a checkpoint, a restore, an opening that changes files."""
    deaths.watch(Checkpoints, "save", "save of a part")
    deaths.watch(Checkpoints, "restore")
    deaths.watch(Checkpoints, "delete", "delete_checkpoint")
    deaths.watch(SsdStore, "append")
    deaths.watch(SsdStore, "checkpoint")
    deaths.watch(durable_file, "write_durably")
    deaths.watch(Catalog, "save")
    deaths.watch(housekeeping.shutil, "rmtree")
    deaths.guard(SsdStore, "open")
    deaths.guard(SsdStore, "close")


def test_a_death_at_any_step_of_a_checkpoint_leaves_the_old_one_or_the_new_one(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3), tag="day-1"))
    with pytest.MonkeyPatch.context() as patch:
        deaths = Deaths(path, tmp_path / "copies", patch)
        watch_all(deaths)
        on_ranks(path, 2, train(range(3, 5), tag="day-1"))
    old = (reference.digests(2), ({"step": 2}, {"step": 2}))
    new = (reference.digests(4), ({"step": 4}, {"step": 4}))
    found = []
    for folder in deaths.folders():
        opened = on_ranks(folder, 2, look)
        assert opened[0] == opened[1] and opened[0] in (old, new)
        found.append(opened[0] == new)
        kept = on_ranks(folder, 2, lambda rank: rank.num_parts)
        assert kept == [1, 1]  # no leftover
    # Old at first, new at the end, and the change is CLUSTER's.
    assert found == sorted(found) and not found[0] and found[-1]
    assert deaths.steps[found.index(True)] == "after save"
    saves = [i for i, step in enumerate(deaths.steps) if step == "after save of a part"]
    assert len(saves) == 2 and not any(found[i] for i in saves)
    assert "after delete_checkpoint" in deaths.steps


def test_a_death_at_any_step_of_a_restore_leaves_one_checkpoint(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3), tag="early"))
    on_ranks(path, 2, train(range(3, 4), tag="late"))
    with pytest.MonkeyPatch.context() as patch:
        deaths = Deaths(path, tmp_path / "copies", patch)
        watch_all(deaths)
        on_ranks(path, 2, lambda rank: rank.restore("early"))
    early, late = reference.digests(2), reference.digests(3)
    found = []
    for folder in deaths.folders():
        opened = [digests for digests, _ in on_ranks(folder, 2, look)]
        assert opened[0] == opened[1] and opened[0] in (early, late)
        found.append(opened[0] == early)
    assert found == sorted(found) and not found[0] and found[-1]
    assert deaths.steps.count("after restore") == 2


def test_a_death_at_any_step_of_a_restore_from_other_ranks_leaves_one_checkpoint(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 1, train(range(1, 3), tag="early"))
    on_ranks(path, 1, train(range(3, 4)))
    on_ranks(path, 2, look)
    with pytest.MonkeyPatch.context() as patch:
        deaths = Deaths(path, tmp_path / "copies", patch)
        watch_all(deaths)
        on_ranks(path, 2, lambda rank: rank.restore("early"))
    assert deaths.steps.count("after append") >= 2
    early, late = reference.digests(2), reference.digests(3)
    found = []
    for folder in deaths.folders():
        opened = on_ranks(folder, 2, lambda rank: (rank.digests(), rank.num_parts))
        digests, num_parts = opened[0]
        assert opened[0] == opened[1] and digests in (early, late)
        found.append(digests == early)
        assert num_parts == 1 + found[-1]  # the late one stays, the early one comes
    assert found == sorted(found) and not found[0] and found[-1]


@pytest.mark.parametrize("size", [1, 3])
def test_a_death_at_any_step_of_a_reshard_leaves_the_rows(
    tmp_path: Path, reference: Reference, size: int
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3), tag="day-1"))
    with pytest.MonkeyPatch.context() as patch:
        deaths = Deaths(path, tmp_path / "copies", patch)
        watch_all(deaths)
        on_ranks(path, size, look)
    steps = deaths.steps
    assert steps.count("after append") >= size and steps.count("after rmtree") == 1
    expected = (reference.digests(2), ({"step": 2}, {"step": 2}))
    sizes = set()
    for number, folder in enumerate(deaths.folders()):
        catalog = Catalog.load(folder)
        assert catalog is not None
        sizes.add(catalog.ranks)
        again = (2, size)[number % 2]  # as before, or as the one that died
        assert on_ranks(folder, again, look) == [expected] * again
        assert len(generations(folder)) == 1  # leftovers are gone
    assert sizes == {2, size}


def test_new_folders_are_durable_before_cluster_names_their_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power may drop names that were not synced: of the folders, then of CLUSTER."""
    path, events = tmp_path / "cluster", []
    fsync, replace = durable_file._fsync, Path.replace

    def real(file: Path) -> Path:  # it is named through the folder's descriptor
        return file.resolve()

    def told_sync(descriptor: int, file: Path) -> None:
        fsync(descriptor, file)
        events.append(("sync", real(file)))

    def told_replace(self: Path, target: Path) -> Any:
        events.append(("replace", real(target)))
        return replace(self, target)

    monkeypatch.setattr(durable_file, "_fsync", told_sync)
    monkeypatch.setattr(Path, "replace", told_replace)
    on_ranks(path, 2, train(range(1, 2)))
    on_ranks(path, 3, look)
    commits = [i for i, event in enumerate(events) if event == ("replace", path / "CLUSTER")]
    assert len(commits) == 3  # the start, the checkpoint, the move
    for before, commit in ((0, commits[1]), (commits[1], commits[2])):
        synced = [file for what, file in events[before:commit] if what == "sync"]
        assert {path, path.parent, path / "CLUSTER.new"} <= set(synced)
        assert any(file.match("cluster/generation-*") for file in synced)
    for commit in commits:
        assert ("sync", path) in events[commit:]


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Forks a process of ranks for each number of them that it is told."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.folder.checkpoint_worker", str(tmp_path / "cluster")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    yield process
    process.communicate()
    assert process.returncode == 0


def test_kills_at_random_leave_one_checkpoint_on_any_number_of_ranks(
    tmp_path: Path, reference: Reference, nursery: subprocess.Popen[str]
) -> None:
    path = tmp_path / "cluster"
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    told = num_moved = 0
    for number in range(6):
        size = (2, 3, 1)[number % 3]
        told = max(told, kill_at_random(nursery, generator, size, is_training=number % 2 == 0))

        def check(rank: Rank) -> Any:
            _, reader = rank.checkpoint_state()
            return rank.digests(), 0 if reader is None else reader["step"]

        before = generations(path)
        opened = on_ranks(path, size % 3 + 1, check)
        num_moved += generations(path) != before
        digests, step = opened[0]
        assert all(one == opened[0] for one in opened)
        assert step >= told, "a checkpoint that was told of is lost"
        if step:
            assert digests == reference.digests(step)
        assert len(generations(path)) == 1
    assert told > 0 and num_moved > 0


def kill_at_random(
    nursery: subprocess.Popen[str], generator: random.Random, size: int, *, is_training: bool
) -> int:
    """The number of the last checkpoint that the ranks told of before they died.

    They die after their first checkpoint, or else while the stores are opened and rows move.
    """
    assert nursery.stdin is not None and nursery.stdout is not None
    nursery.stdin.write(f"{size}\n")
    nursery.stdin.flush()
    word, number = nursery.stdout.readline().split()
    assert word == "opening"
    while is_training and word != "committed":
        word, told = nursery.stdout.readline().split()
    last = int(told) if is_training else 0
    seconds = generator.uniform(0.0, 0.2)
    timer = threading.Timer(seconds, os.kill, (int(number), signal.SIGKILL))
    timer.start()
    while (line := nursery.stdout.readline()) != f"killed {int(signal.SIGKILL)}\n":
        assert line, "the nursery died"
        last = max(last, int(line.split()[1]))
    return last
