"""Recipe I1: folders are renamed, removed, exchanged, locked by others and forked over, under a
writer that takes checkpoints; every checkpoint that was acknowledged is whole where its folder is.

Above it: run.py, test_moved_folders.py. Below it: ParameterServer over either engine. What each
folder must hold is known by its inode: the tags that were acknowledged in it, each with one value
in every row. No step may change a folder that its writer does not hold.
"""

import errno
import os
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

import hps
from hps.common.held_folder import HeldFolder
from hps.ssd_store import verify
from tests.forking import refused_in_child
from tests.torture.scratch import scratch_folder

KEYS = np.arange(64, dtype=np.uint64)
STEPS = 14
PLANTS = {"check-left-out": "rocksdb", "refusal-ignored": "segments"}
_LOST = (errno.ESTALE, errno.EIO, errno.ENOENT)  # moved or replaced; stopped by it; files are gone
NEEDED = ("checkpoints", "refused", "moved", "removed", "brought back", "others", "locks", "forks")


@dataclass
class IdentityReport:
    """What a run came to."""

    runs: int = 0
    tallies: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """What never happened, and has to for the run to prove anything."""
        return [name for name in NEEDED if not self.tallies[name]]

    def __str__(self) -> str:
        counts = ", ".join(f"{self.tallies[name]:,} {name}" for name in NEEDED)
        return f"folders that move under a writer: {counts}"


class Broken(Exception):
    """A promise that was not kept."""


class Scene:
    """One writer at one relative path, and all that befalls its folder."""

    def __init__(self, folder: Path, engine: str, chance: random.Random, plant: str = "") -> None:
        self.folder, self.engine, self.chance = folder, engine, chance
        self.ignores_refusals = plant == "refusal-ignored"
        self.tallies: Counter[str] = Counter()
        self.told: dict[int, dict[str, int]] = {}  # of each folder's inode: tag -> value
        self.attempted: dict[int, set[str]] = {}  # what may be there, too: refused in a race
        self.number = 0
        self.path = folder / "here" / "model"
        for name in ("here", "there", "aside"):
            (folder / name).mkdir()
        self.make_other(folder / "there" / "model")
        os.chdir(folder / "here")
        self.writer = self.open_writer(Path("model"))

    def open_writer(self, path: Path) -> hps.ParameterServer:
        table = hps.TableConfig(name="ads", dim=4)
        ssd = hps.SsdStoreConfig(engine=self.engine, keep_last=50)
        dram = hps.DramCacheConfig(bytes="256KiB")
        server = hps.ParameterServer(
            hps.Config(path=path, tables=[table], ssd=ssd, dram=dram, threads=2)
        )
        self.held = os.stat(path).st_ino
        self.lock = os.stat(path / "LOCK").st_ino
        self.told.setdefault(self.held, {})
        self.attempted.setdefault(self.held, set())
        return server

    def save(self, server: hps.ParameterServer) -> tuple[str, int]:
        """A checkpoint of a value of its own; (tag, value)."""
        self.number += 1
        server.assign("ads", KEYS, np.full((len(KEYS), 4), self.number, np.float32))
        tag = f"step-{self.number}"
        server.checkpoint(tag)
        return tag, self.number

    # Steps.

    def checkpoint(self) -> None:
        """Acknowledged exactly where path and LOCK lead to what the writer holds."""
        held, is_own = self.held, self.is_own()
        try:
            tag, value = self.save(self.writer)
        except hps.StoreError as error:
            self.tallies["refused"] += 1
            if is_own:
                raise Broken(f"refused though nothing had happened: {error}") from error
            if error.errno not in _LOST:
                raise Broken(f"refused, but not for what had happened: {error}") from error
            if self.ignores_refusals:
                self.told[held][f"step-{self.number}"] = self.number
            self.start_again()
            return
        self.tallies["checkpoints"] += 1
        self.told[held][tag] = value
        if not is_own:
            raise Broken(f"{tag} was acknowledged, and its path leads elsewhere")

    def is_own(self) -> bool:
        try:
            found = os.stat(self.path).st_ino
            return found == self.held and os.stat(self.path / "LOCK").st_ino == self.lock
        except OSError:
            return False

    def start_again(self) -> None:
        """The writer closes, and goes on with whatever lies at its path, as programs do."""
        self.writer.close()
        os.chdir(self.folder / "here")
        self.writer = self.open_writer(Path("model"))

    def move(self) -> None:
        if self.path.exists():
            self.path.rename(self.folder / "aside" / f"moved-{self.number}-{self.tallies['moved']}")
            self.tallies["moved"] += 1

    def remove(self) -> None:
        if self.path.exists():
            del self.told[os.stat(self.path).st_ino]
            self.told.setdefault(self.held, {})
            shutil.rmtree(self.path)
            self.tallies["removed"] += 1

    def bring_back(self) -> None:
        if self.asides() and not self.path.exists():
            self.chance.choice(self.asides()).rename(self.path)
            self.tallies["brought back"] += 1

    def asides(self) -> list[Path]:
        return sorted((self.folder / "aside").iterdir())

    def other(self) -> None:
        """Another process's store at the path, where that is free; else it is refused."""
        if not self.path.exists():
            self.make_other(self.path)
        elif os.stat(self.path).st_ino == self.held:
            try:
                self.open_other(self.path).close()
            except hps.StoreError:
                self.tallies["kept out"] += 1
            else:
                raise Broken("a second writer was let in")

    def open_other(self, path: Path) -> hps.ParameterServer:
        own = (getattr(self, "held", 0), getattr(self, "lock", 0))
        try:
            return self.open_writer(path)
        finally:
            self.held, self.lock = own

    def make_other(self, path: Path) -> None:
        server = self.open_other(path)
        tag, value = self.save(server)
        self.told[os.stat(path).st_ino][tag] = value
        server.close()
        self.tallies["others"] += 1

    def lose_lock(self) -> None:
        lock = self.path / "LOCK"
        if lock.exists() and os.stat(self.path).st_ino == self.held:
            lock.unlink()
            if self.chance.random() < 0.5:
                lock.write_bytes(self.chance.randbytes(9))
            self.tallies["locks"] += 1

    def change_folder(self) -> None:
        os.chdir(self.folder / self.chance.choice(["here", "there"]))

    def fork(self) -> None:
        verbs: list[Callable[[], object]] = [
            lambda: self.writer.push("ads", KEYS, np.ones((len(KEYS), 4), np.float32)),
            lambda: self.writer.checkpoint("child"),
            lambda: self.writer.close(),
        ]
        if wrong := refused_in_child(verbs):
            raise Broken(f"a forked child: {wrong}")
        self.tallies["forks"] += 1

    def race(self) -> None:
        """The folder moves away and back while checkpoints are taken."""
        if not self.is_own():
            return
        ends = threading.Event()
        aside = self.folder / "aside" / "racing"

        def swing() -> None:
            while not ends.is_set():
                self.path.rename(aside)
                aside.rename(self.path)

        mover = threading.Thread(target=swing)
        mover.start()
        try:
            for _ in range(3):
                self.attempted[self.held].add(f"step-{self.number + 1}")
                tag, value = self.save(self.writer)
                self.told[self.held][tag] = value
        except hps.StoreError as error:
            if error.errno not in _LOST:
                raise Broken(f"refused, but not for what had happened: {error}") from error
            self.tallies["refused in a race"] += 1
        finally:
            ends.set()
            mover.join()
        if self.tallies["refused in a race"]:
            self.start_again()

    # The end.

    def look(self) -> None:
        """Every folder that is there holds what was acknowledged in it, and nothing else."""
        here = [self.path] if self.path.exists() else []
        for path in [*here, *self.asides(), self.folder / "there" / "model"]:
            inode = os.stat(path).st_ino
            if damage := verify(path):
                raise Broken(f"verify of {path.name}: {damage}")
            told = self.told.get(inode, {})
            with hps.open(path, dram="256KiB") as reader:
                found = {one["tag"] for one in reader.checkpoints()}
            if not told.keys() <= found <= told.keys() | self.attempted.get(inode, set()):
                raise Broken(f"{path.name} holds {sorted(found)}, told were {sorted(told)}")
            for tag in list(told)[-2:]:
                with hps.open(path, checkpoint=tag, dram="256KiB") as reader:
                    values = set(reader.pull("ads", KEYS).ravel().tolist())
                if values != {float(told[tag])}:
                    raise Broken(f"{tag} of {path.name} holds {values}, told was {told[tag]}")


_STEPS = {
    Scene.checkpoint: 5,
    Scene.move: 2,
    Scene.remove: 1,
    Scene.bring_back: 2,
    Scene.other: 3,
    Scene.lose_lock: 1,
    Scene.change_folder: 1,
    Scene.fork: 1,
    Scene.race: 1,
}


def run_identity(seed: int, runs: int, engine: str, plant: str = "") -> IdentityReport:
    """Random lives of one path; with a plant the first violation ends the run.

    Args:
        seed: of the steps.
        runs: how many scenes.
        engine: of all stores.
        plant: one of PLANTS, or "".
    """
    report = IdentityReport()
    started_in = Path.cwd()
    for number in range(runs):
        chance = random.Random(f"{seed} {number} {engine}")
        report.runs += 1
        with scratch_folder() as folder:
            try:
                _play(folder, engine, chance, plant, report)
            except (Broken, hps.HpsError, OSError) as error:
                what = f"{type(error).__name__}: {error}"
                report.violations.append(f"seed {seed}, {engine}, scene {number}: {what}")
            finally:
                os.chdir(started_in)
        if plant and report.violations:
            break
    return report


def _play(
    folder: Path, engine: str, chance: random.Random, plant: str, report: IdentityReport
) -> None:
    scene = Scene(folder, engine, chance, plant)
    bug = mock.patch.object(HeldFolder, "check", lambda self: None)
    if plant == "check-left-out":
        bug.start()
    try:
        for step in chance.choices(list(_STEPS), list(_STEPS.values()), k=STEPS):
            step(scene)
        scene.look()
    finally:
        report.tallies.update(scene.tallies)
        scene.writer.close()
        if plant == "check-left-out":
            bug.stop()
    scene.look()
