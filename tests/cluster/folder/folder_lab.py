"""Ranks as threads over a cluster's folder, with rows whose right values are known.

Above it: tests of folders, checkpoints and resharding. Below it: local_world.py, RankParts over
open_parts, without the exchange of keys: each rank pushes the keys that it owns.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hps
from hps.checkpoint.over_parts import CheckpointsOverParts
from hps.cluster.folder.checkpoints import RankParts
from hps.cluster.folder.folders import open_parts
from hps.cluster.world.local_world import local_worlds
from hps.cluster.world.world import World
from hps.common.sharding import ShardMap
from hps.errors import ClusterError
from hps.ssd_store.cluster.catalog import name_of_part

SEED = 11
TABLES = [
    hps.TableConfig(name="ads", dim=4, optimizer=hps.Adagrad(lr=0.1), features=["C1"]),
    hps.TableConfig(name="wide", dim=1, optimizer=hps.Adam(lr=0.01), features=["C2"]),
]
KEYS_A_STEP = 200
Paths = Path | Sequence[Path]


def config(path: Path, **others: Any) -> hps.Config:
    """Small tiers, segments of 64 KiB."""
    fields: dict[str, Any] = {
        "tables": TABLES,
        "dram": hps.DramCacheConfig(bytes="256KiB"),
        "ssd": hps.SsdStoreConfig(segment_bytes=2**16),
        "seed": SEED,
        "threads": 1,
        **others,
    }
    return hps.Config(path=path, **fields)


class Rank:
    """One rank without an exchange: it pushes what it owns."""

    def __init__(self, given: hps.Config, world: World) -> None:
        self.world = world
        self.parts = open_parts(given, world)
        self.local = self.parts.local
        self._checkpoints = CheckpointsOverParts(RankParts(self.parts))
        self.checkpoint = self._checkpoints.checkpoint
        self.restore = self._checkpoints.restore
        self.checkpoint_state = self._checkpoints.checkpoint_state
        self.checkpoints = self._checkpoints.checkpoints
        self.delete_checkpoint = self._checkpoints.delete_checkpoint

    @property
    def is_changed(self) -> bool:
        """As ClusterParameterServer has it."""
        return self.parts.is_unsaved or self.local.is_changed

    def step(self, number: int) -> None:
        """One step of a training whose rows depend on the steps' numbers alone."""
        for table in TABLES:
            push_step(self.local, table, number, ShardMap(self.world.size), self.world.rank)

    def digests(self) -> dict[str, str]:
        """Of each table over all ranks; collective."""
        parts = [self.local.digest(table.name) for table in TABLES]
        told = self.world.control.gather(parts)
        return {
            table.name: add_digests([part[number] for part in told])
            for number, table in enumerate(TABLES)
        }

    @property
    def num_parts(self) -> int:
        """Parts of checkpoints in this rank's store."""
        return sum(name_of_part(one["tag"]) is not None for one in self.local.checkpoints())

    def close(self) -> None:
        self.parts.close()


def push_step(
    server: hps.ParameterServer, table: hps.TableConfig, number: int, owners: ShardMap, rank: int
) -> None:
    """The keys of one step that a rank owns, with their gradients."""
    generator = np.random.default_rng([number, table.dim])
    keys = np.unique(generator.integers(0, 2**64, KEYS_A_STEP, np.uint64))
    keys[: KEYS_A_STEP // 2] = np.arange(KEYS_A_STEP // 2)  # these come in every step
    grads = generator.standard_normal((len(keys), table.dim)).astype(np.float32)
    own = owners.split(keys)[rank]
    server.push(table.name, keys[own], grads[own])


def add_digests(parts: Sequence[str]) -> str:
    """The digest of tables of disjoint keys, taken together."""
    low = sum(int(part[16:], 16) for part in parts) % 2**64
    high = sum(int(part[:16], 16) for part in parts) % 2**64
    return f"{high:016x}{low:016x}"


class Reference:
    """What one store holds after each number of steps."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[int, dict[str, str]] = {}

    def digests(self, steps: int) -> dict[str, str]:
        """Of each table after steps 1, 2, ... steps."""
        if steps not in self._known:
            with hps.ParameterServer(config(self._path / str(steps))) as server:
                for number in range(1, steps + 1):
                    for table in TABLES:
                        push_step(server, table, number, ShardMap(1), 0)
                self._known[steps] = {table.name: server.digest(table.name) for table in TABLES}
        return self._known[steps]


def on_ranks(paths: Paths, size: int, act: Callable[[Rank], Any], **options: Any) -> list[Any]:
    """Opens `size` ranks, runs `act` on each, closes them; what act returned, in rank order.

    Raises the error of the first rank that failed by itself, with all of them in `errors_of`.
    """
    results, errors = try_ranks(paths, size, act, **options)
    for error in sorted(errors.values(), key=lambda one: isinstance(one, ClusterError)):
        raise error
    return results


def try_ranks(
    paths: Paths,
    size: int,
    act: Callable[[Rank], Any],
    options_of: dict[int, dict[str, Any]] | None = None,
    **options: Any,
) -> tuple[list[Any], dict[int, BaseException]]:
    """As on_ranks, but returns (results, the error of each rank that failed)."""
    folders = [paths] * size if isinstance(paths, Path) else list(paths)
    results: list[Any] = [None] * size
    errors: dict[int, BaseException] = {}

    def run(world: Any) -> None:
        rank = None
        try:
            own = {**options, **(options_of or {}).get(world.rank, {})}
            rank = Rank(config(folders[world.rank], **own), world)
            results[world.rank] = act(rank)
        except BaseException as error:
            errors[world.rank] = error
            if isinstance(error, Exception) and not isinstance(error, hps.HpsError):
                world.abort(repr(error))  # of the test itself, so that no rank waits for it
        finally:
            if rank is not None:
                rank.close()

    threads = [
        threading.Thread(target=run, args=(world,))
        for world in local_worlds(size, timeout_seconds=60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results, errors


def train(steps: range, **checkpoint: Any) -> Callable[[Rank], Any]:
    """Steps, then a checkpoint with the last step's number as model and position."""

    def act(rank: Rank) -> Any:
        for number in steps:
            rank.step(number)
        last = steps[-1] if len(steps) else 0
        model = {"step": last} if rank.world.rank == 0 else None
        reader = {"step": last} if rank.world.rank == 0 else None
        return rank.checkpoint(**{"model": model, "reader": reader, **checkpoint})

    return act


def look(rank: Rank) -> tuple[dict[str, str], Any]:
    """(digests, (model, reader) of the newest checkpoint)."""
    return rank.digests(), rank.checkpoint_state()


def generations(path: Path) -> list[str]:
    """The folders of generations that are there."""
    return sorted(folder.name for folder in path.glob("generation-*"))


def files_of(path: Path) -> Iterator[Path]:
    """Every file under a folder."""
    return (file for file in sorted(path.rglob("*")) if file.is_file())
