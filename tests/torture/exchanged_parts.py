"""Recipe X1: stores of ranks and of shards that were exchanged, copied, or put back from an older
time: every reader refuses by name, or is right.

Above it: run.py, test_exchanged_parts.py. Below it: tests/cluster/folder/folder_lab.py (ranks as
threads), tests/service/client/client_lab.py (shards). Parts have as many rows each, so that numbers
do not tell. Of shard 0 no older copy is drawn: docs/service.md says why nobody can tell it from a
checkpoint that died.
"""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cluster.folder.offline import reshard
from hps.common.sharding import ShardMap
from hps.service.client.shards import Shards
from hps.service.shard.core import ServedStore
from hps.ssd_store.cluster.cluster_store import verify_cluster
from hps.ssd_store.cluster.part_name import ExpectedPart
from tests.cluster.folder.folder_lab import TABLES, Rank, config, look, on_ranks
from tests.service.client.client_lab import ADS, service

PLANTS = ("ranks-not-compared", "shards-not-compared")
KINDS = ("own", "other part", "older", "other whole", "plain", "missing")
_ROWS = 60  # of each part
_NAMED = re.compile(r"rank-\d|shard ?\d|shard\d")
Digests = dict[str, str]


@dataclass
class ExchangeReport:
    """What happened.

    Args:
        refused, right: readings of each kind.
        kinds: of what was put in the place of a part, and how often.
        violations: what must not be.
    """

    refused: int = 0
    right: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def missing(self, kinds: tuple[str, ...] = KINDS) -> list[str]:
        """What a run must have seen to prove anything."""
        seen = {"reading refused": self.refused, "reading right": self.right}
        seen |= {kind: self.kinds.get(kind, 0) for kind in kinds}
        return [what for what, number in seen.items() if not number]

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {number}" for kind, number in sorted(self.kinds.items()))
        return f"{self.refused} readings refused, {self.right} right; put in place: {kinds}"

    def note(self, what: str, act: Callable[[], Digests], truth: Digests) -> None:
        """One reading: it refuses by name, or gives these digests."""
        try:
            found = act()
        except hps.HpsError as error:
            self.refused += 1
            if _NAMED.search(str(error)) is None:
                self.violations.append(f"{what}: refused without a name: {error}")
            return
        self.right += 1
        if found != truth:
            self.violations.append(f"{what}: rows of {found}, they were {truth}")


# Ranks.


def _push_evenly(rank: Rank) -> None:
    """As many new rows on each rank."""
    candidates = np.random.default_rng(len(rank.local.checkpoints())).integers(
        0, 2**63, 40 * _ROWS, np.uint64
    )
    keys = candidates[ShardMap(rank.world.size).split(candidates)[rank.world.rank]][:_ROWS]
    for table in TABLES:
        rank.local.push(table.name, keys, np.ones((_ROWS, table.dim), np.float32))


def _digests(path: Path, checkpoint: str | None = None) -> Digests:
    with hps.open(path, checkpoint=checkpoint, dram="1MiB") as server:
        return {name: server.digest(name) for name in server.tables}


@dataclass
class _Moments:
    """Copies of one whole, the oldest first, and the digests of its newest checkpoint at each."""

    folders: list[Path]
    truths: list[Digests]


def _train_ranks(folder: Path, size: int) -> _Moments:
    moments = _Moments([], [])
    for number in range(3):

        def act(rank: Rank, number: int = number) -> None:
            _push_evenly(rank)
            # Checkpoints with a tag, which stay, and without one, which are let go.
            rank.checkpoint("day" if number == 0 else None, reader={"day": number})

        on_ranks(folder / "now", size, act)
        moments.folders.append(Path(shutil.copytree(folder / "now", folder / f"moment-{number}")))
        moments.truths.append(_digests(folder / "now"))
    return moments


def _ranks_of(path: Path) -> list[Path]:
    return sorted(path.glob("generation-*/rank-*"))


def run_exchanged_ranks(
    folder: Path, seed: int, rounds: int, plant: str | None = None
) -> ExchangeReport:
    """Folders of ranks, each with something drawn in the place of its parts; one reader each.

    Args:
        folder: empty.
        seed: of what is drawn.
        rounds: so many.
        plant: the bug to plant, or None.
    """
    draw, report = random.Random(seed), ExchangeReport()
    size = draw.choice((2, 3))
    wholes = [_train_ranks(folder / name, size) for name in ("one", "other")]
    plain = folder / "plain"
    with hps.ParameterServer(config(plain)) as server:
        for table in TABLES:
            keys = np.arange(3 * _ROWS, dtype=np.uint64)
            server.push(table.name, keys, np.ones((3 * _ROWS, table.dim), np.float32))
    mine, others = wholes
    with _planted(plant):
        for number in range(rounds):
            path = Path(shutil.copytree(mine.folders[-1], folder / f"round-{number}"))
            targets = _ranks_of(path)
            drawn = []
            for rank in sorted(draw.sample(range(size), draw.randint(1, size))):
                kind = draw.choice(KINDS)
                source = {
                    "own": _ranks_of(mine.folders[-1])[rank],
                    "other part": _ranks_of(mine.folders[-1])[draw.randrange(size)],
                    "older": _ranks_of(mine.folders[draw.randrange(2)])[rank],
                    "other whole": _ranks_of(others.folders[-1])[rank],
                    "plain": plain,
                    "missing": None,
                }[kind]
                drawn.append(f"{rank}: {kind}")
                report.kinds[kind] = report.kinds.get(kind, 0) + 1
                shutil.rmtree(targets[rank])
                if source is not None:
                    shutil.copytree(source, targets[rank])
            _read(draw, path, (mine, size), f"seed {seed}, round {number}, {drawn}", report)
            shutil.rmtree(path)
    return report


def _read(
    draw: random.Random, path: Path, whole: tuple[_Moments, int], what: str, report: ExchangeReport
) -> None:
    """One reader, drawn, and `hps verify` before it."""
    mine, size = whole
    newest, oldest = mine.truths[-1], mine.truths[0]
    wrong = verify_cluster(path)
    made = path.with_name(f"{path.name}-made")

    def resharded() -> Digests:
        reshard(path, made, draw.choice((None, 2, 3)))
        return _digests(made)

    reader = draw.choice(("open", "open day", "ranks", "reshard"))
    act: Callable[[], Digests] = {
        "open": lambda: _digests(path),
        "open day": lambda: _digests(path, "day"),
        "ranks": lambda: on_ranks(path, draw.choice((size, size + 1)), look)[0][0],
        "reshard": resharded,
    }[reader]
    before = report.refused
    report.note(f"{what}, {reader}", act, oldest if reader == "open day" else newest)
    if report.refused > before and not wrong:
        report.violations.append(f"{what}: {reader} refuses what verify finds well")
    shutil.rmtree(made, ignore_errors=True)


# Shards.


def _train_shards(folder: Path) -> _Moments:
    moments = _Moments([], [])
    for number in range(2):
        with service(folder / "now", 2) as servers, servers.client() as client:
            candidates = np.random.default_rng(number).integers(0, 2**63, 40 * _ROWS, np.uint64)
            for places in ShardMap(2).split(candidates):
                keys = candidates[places[:_ROWS]]
                client.push(ADS.name, keys, np.ones((_ROWS, ADS.dim), np.float32))
            client.checkpoint("day" if number == 0 else None, reader={"day": number})
            moments.truths.append({ADS.name: client.digest(ADS.name)})
        moments.folders.append(Path(shutil.copytree(folder / "now", folder / f"moment-{number}")))
    return moments


def run_exchanged_shards(
    folder: Path, seed: int, rounds: int, plant: str | None = None
) -> ExchangeReport:
    """As run_exchanged_ranks, of the stores of two shards, read by a client."""
    draw, report = random.Random(seed), ExchangeReport()
    mine, others = (_train_shards(folder / name) for name in ("one", "other"))
    with _planted(plant):
        for number in range(rounds):
            path = Path(shutil.copytree(mine.folders[-1], folder / f"round-{number}"))
            shard = draw.randrange(2)
            kind = draw.choice(("own", "other part", "other whole", *(["older"] if shard else [])))
            source = {
                "own": mine.folders[-1] / f"shard{shard}",
                "other part": mine.folders[-1] / f"shard{1 - shard}",
                "other whole": others.folders[-1] / f"shard{shard}",
                "older": mine.folders[0] / f"shard{shard}",
            }[kind]
            report.kinds[kind] = report.kinds.get(kind, 0) + 1
            shutil.rmtree(path / f"shard{shard}")
            shutil.copytree(source, path / f"shard{shard}")

            def read(path: Path = path) -> Digests:
                with service(path, 2) as servers, servers.client() as client:
                    return {ADS.name: client.digest(ADS.name)}

            what = f"seed {seed}, round {number}, shard {shard}: {kind}"
            report.note(what, read, mine.truths[-1])
            shutil.rmtree(path)
    return report


@contextmanager
def _planted(plant: str | None) -> Iterator[None]:
    """As an hps whose readers do not compare the names of parts."""
    with pytest.MonkeyPatch.context() as patch:
        if plant == "ranks-not-compared":
            patch.setattr(ExpectedPart, "_check_name", lambda part, name: None)
            patch.setattr(ExpectedPart, "check_owned", lambda part, table, keys: None)
        if plant == "shards-not-compared":
            patch.setattr(Shards, "_lacking_part", lambda client, replies: "")
            patch.setattr(ServedStore, "_find_history", _any_history)
        yield


def _any_history(store: Any) -> Any:
    """The history that is there, of whichever shard."""
    return store.server.parts.checkpoints.history
