"""Folders of ranks that were exchanged, copied over one another, or put back from elsewhere: every
reader says so.

Above it: pytest. Below it: folder_lab.py.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.cli.main import main
from hps.cluster.folder.glance import glance
from hps.cluster.folder.offline import reshard
from hps.common.row_layout import Keys
from hps.common.sharding import ShardMap
from hps.service.shard.shard import Shard, ShardOptions
from hps.ssd_store import open_store
from hps.ssd_store.cluster import part_name
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.cluster.part_name import PART, PartName
from tests.cluster.folder.folder_lab import (
    TABLES,
    Rank,
    Reference,
    config,
    look,
    on_ranks,
    train,
    try_ranks,
)

ENGINES = ("segments", "rocksdb")


def owned(keys: Keys, size: int, rank: int) -> Keys:
    """The keys that a rank owns."""
    return keys[ShardMap(size).split(keys)[rank]]


def own_step(rank: Rank) -> None:
    """As many rows on each rank, so that their numbers do not tell."""
    for table in TABLES:
        candidates = np.arange(4000, dtype=np.uint64)
        keys = owned(candidates, rank.world.size, rank.world.rank)[:300]
        generator = np.random.default_rng(rank.world.rank)
        grads = generator.standard_normal((len(keys), table.dim)).astype(np.float32)
        rank.local.push(table.name, keys, grads)


def even(rank: Rank) -> None:
    """Two checkpoints of as many rows on each rank."""
    own_step(rank)
    rank.checkpoint("day-1", model={"day": 1}, reader={"day": 1})
    own_step(rank)
    rank.checkpoint("day-2", model={"day": 2}, reader={"day": 2})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings of two ranks of the same shape, whose parts have as many rows each."""
    folder = tmp_path_factory.mktemp("even")
    for name in ("cluster", "other"):
        on_ranks(folder / name, 2, even)
    return folder


@pytest.fixture
def cluster(trained: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(trained / "cluster", tmp_path / "cluster"))


def ranks_of(cluster: Path) -> list[Path]:
    """The folders of the ranks' stores."""
    return sorted(cluster.glob("generation-*/rank-*"))


def exchange(cluster: Path) -> None:
    first, second = ranks_of(cluster)
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def copy_over(cluster: Path) -> None:
    first, second = ranks_of(cluster)
    shutil.rmtree(second)
    shutil.copytree(first, second)


def put_other(cluster: Path) -> None:
    second = ranks_of(cluster)[1]
    shutil.rmtree(second)
    shutil.copytree(ranks_of(cluster.parent / "other")[1], second)


def put_plain(cluster: Path) -> None:
    second = ranks_of(cluster)[1]
    shutil.rmtree(second)
    with hps.ParameterServer(config(second)) as server:
        server.push("ads", np.arange(600, dtype=np.uint64), np.ones((600, 4), np.float32))


def put_stale(cluster: Path) -> None:
    """From a backup that was made between two checkpoints without a tag."""
    second = ranks_of(cluster)[1]
    backup = cluster.parent / "backup"
    shutil.copytree(second, backup)
    on_ranks(cluster, 2, train(range(1, 2)))
    shutil.rmtree(second)
    backup.rename(second)


def refusals(cluster: Path) -> list[tuple[str, Exception]]:
    """What each reader says, by its name; every one of them must refuse."""
    found: list[tuple[str, Exception]] = []

    def ask(name: str, act: Callable[[], object]) -> None:
        try:
            act()
        except (hps.CorruptionError, hps.StoreError) as error:
            found.append((name, error))
        else:
            raise AssertionError(f"{name} says nothing")

    def ranks(size: int) -> None:
        _, errors = try_ranks(cluster, size, look)
        assert len(errors) == size, errors
        raise next(iter(errors.values()))

    ask("open", lambda: hps.open(cluster))
    ask("as many ranks", lambda: ranks(2))
    ask("other ranks", lambda: ranks(3))
    ask("reshard", lambda: reshard(cluster, cluster.parent / "made", 3))
    ask("reshard --plain", lambda: reshard(cluster, cluster.parent / "made", None))
    assert not (cluster.parent / "made").exists()
    return found


def check_refused(cluster: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, error in refusals(cluster):
        message = str(error)
        assert "rank-" in message and words in message, (name, message)
        assert "back" in message or "copy that folder" in message, (name, message)
    assert main(["verify", str(cluster)]) == 1
    captured = capsys.readouterr()
    assert words in captured.out and "rank-" in captured.err
    commands = (["stats"], ["export", str(cluster.parent / "out.parquet"), "--table", "ads"])
    for name, *rest in commands:
        assert main([name, str(cluster), *rest]) == 1
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("damage", [exchange, copy_over])
def test_every_reader_refuses_exchanged_and_copied_folders_of_ranks(
    cluster: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with hps.open(cluster) as server:
        assert server.num_rows("ads") == 600
    damage(cluster)
    before = {file: file.stat().st_mtime_ns for file in cluster.glob("generation-*/*/CURRENT")}
    check_refused(cluster, "that of rank 0 of 2", capsys)
    for arguments in (["compact"], ["checkpoints", "--delete", "day-1"]):
        assert main([arguments[0], str(cluster), *arguments[1:]]) == 1
        assert "that of rank 0 of 2" in capsys.readouterr().err
    assert {file: file.stat().st_mtime_ns for file in before} == before
    if damage is exchange:
        with pytest.raises(hps.CorruptionError, match="that of rank 1 of 2"):
            glance(cluster)
        exchange(cluster)
        with hps.open(cluster) as server:
            assert server.num_rows("ads") == 600


def test_every_reader_refuses_a_folder_of_another_training(
    trained: Path, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained / "other", cluster.parent / "other")
    other = Catalog.load(trained / "other")
    assert other is not None
    put_other(cluster)
    check_refused(cluster, f"of cluster {other.cluster[:8]}", capsys)
    assert main(["compact", str(cluster)]) == 1


def test_every_reader_refuses_a_store_of_one_process_in_the_place_of_a_rank(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_plain(cluster)
    check_refused(cluster, "a store with last", capsys)


def test_every_reader_refuses_a_folder_from_an_older_backup(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_stale(cluster)
    check_refused(cluster, "that of rank 1 of 2", capsys)
    with hps.open(cluster, checkpoint="day-2") as server:  # which the backup has
        assert server.num_rows("ads") == 600


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_without_a_name_open_where_their_keys_are_their_own(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch, reference: Reference
) -> None:
    if engine == "rocksdb":
        pytest.importorskip("rocksdict")
    path = tmp_path / "cluster"
    options = {"ssd": hps.SsdStoreConfig(engine=engine, segment_bytes=2**16)}
    monkeypatch.setattr(PartName, "blobs", lambda name: {})  # as an older hps writes them
    on_ranks(path, 2, train(range(1, 3), tag="first"), **options)
    on_ranks(path, 2, even, **options)
    monkeypatch.undo()
    for folder in ranks_of(path):
        store = open_store(folder, [], read_only=True, rows=False)
        assert all(PART not in store.extras(one["id"]) for one in store.checkpoints())
        store.close()
    assert main(["verify", str(path)]) == 0
    with hps.open(path, checkpoint="first") as server:
        assert {name: server.digest(name) for name in server.tables} == reference.digests(2)
    on_ranks(path, 2, look, **options)
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    on_ranks(copy, 3, look, **options)
    exchange(path)
    for name, error in refusals_of_unnamed(path, options):
        assert isinstance(error, hps.CorruptionError), name
        assert "rows, CLUSTER expects" in str(error) or "belongs to rank" in str(error), name
    assert main(["verify", str(path)]) == 1


def refusals_of_unnamed(path: Path, options: dict[str, Any]) -> list[tuple[str, BaseException]]:
    found: list[tuple[str, BaseException]] = []
    for name in ("day-1", "day-2"):
        with pytest.raises(hps.CorruptionError) as caught:
            hps.open(path, checkpoint=name).close()
        found.append((name, caught.value))
    for size in (2, 3):
        _, errors = try_ranks(path, size, look, **options)
        assert len(errors) == size, (size, errors)
        found += [(f"{size} ranks", error) for error in errors.values()]
    return found


def test_each_part_of_each_checkpoint_is_named_wherever_its_rows_came_from(tmp_path: Path) -> None:
    path, made = tmp_path / "cluster", tmp_path / "made"
    on_ranks(path, 2, train(range(1, 3), tag="day-1"))
    on_ranks(path, 3, train(range(3, 4), tag="day-2"))

    def go_back(rank: Rank) -> None:
        rank.restore("day-1")

    on_ranks(path, 3, go_back)
    reshard(path, made, 2)
    for cluster in (path, made):
        catalog = Catalog.load(cluster)
        assert catalog is not None
        for checkpoint in catalog.checkpoints:
            for part in part_name.parts_of(cluster, catalog, checkpoint):
                store = open_store(part.folder, [], read_only=True, rows=False)
                assert PartName.of(store.extras(part.tag)) == part.name
                store.close()
    assert main(["verify", str(path)]) == 0 and main(["verify", str(made)]) == 0


def test_a_death_between_the_parts_and_cluster_is_no_reason_to_refuse(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(catalog: Catalog, path: Path) -> None:
        raise OSError(5, "the machine died")

    with hps.open(cluster) as server:
        before = server.digest("ads")
    monkeypatch.setattr(Catalog, "save", die)
    _, errors = try_ranks(cluster, 2, train(range(1, 3)))
    assert len(errors) == 2
    monkeypatch.undo()
    with hps.open(cluster) as server:
        assert server.digest("ads") == before
    assert main(["verify", str(cluster)]) == 0
    assert main(["compact", str(cluster)]) == 0
    digests, _ = on_ranks(cluster, 2, look)[0]
    assert digests["ads"] == before


def test_reshard_refuses_the_store_of_one_shard_among_others(tmp_path: Path) -> None:
    shard = Shard(config(tmp_path / "shard"), ShardOptions(index=1, count=2))
    shard.checkpoint("one")
    shard.close()
    with pytest.raises(hps.ConfigError, match=r"shard 1 of 2.*hps export"):
        reshard(tmp_path / "shard", tmp_path / "made", 2)
