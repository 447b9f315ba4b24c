"""A cluster's folder: who may open it, what it refuses, what it removes and what it never does.

Above it: pytest. Below it: folder_lab.py.
"""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cluster.folder.folders import open_parts
from hps.cluster.world.local_world import local_worlds
from hps.ssd_store.cluster.catalog import (
    NAME,
    Catalog,
    ClusterCheckpoint,
    PartSize,
    new_generation,
    new_name,
)
from hps.ssd_store.promoted import Promotions
from tests.cluster.folder.folder_lab import (
    TABLES,
    Rank,
    Reference,
    config,
    generations,
    look,
    on_ranks,
    train,
    try_ranks,
)


def refused(paths: Any, size: int, **options: Any) -> list[str]:
    """The messages of all ranks, each of which was refused."""
    _, errors = try_ranks(paths, size, look, **options)
    assert len(errors) == size, errors
    assert all(isinstance(error, hps.HpsError) for error in errors.values()), errors
    return [f"{type(errors[rank]).__name__}: {errors[rank]}" for rank in range(size)]


def test_a_second_training_is_kept_out_and_told_the_process(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    is_open, may_end = threading.Barrier(3), threading.Event()

    def hold(rank: Rank) -> None:
        is_open.wait(30)
        may_end.wait(30)

    first = threading.Thread(target=on_ranks, args=(path, 2, hold))
    first.start()
    is_open.wait(30)
    before = generations(path)
    for message in refused(path, 2):
        assert "another training has the folder open (process" in message
    may_end.set()
    first.join()
    assert generations(path) == before and len(before) == 1
    on_ranks(path, 2, look)  # the lock went with the ranks


def test_ranks_whose_configs_differ_are_told_the_field_and_both_values(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    faster = hps.TableConfig(name="ads", dim=4, optimizer=hps.Adagrad(lr=0.2), features=["C1"])
    _, errors = try_ranks(path, 3, look, options_of={2: {"tables": [faster, TABLES[1]]}})
    assert len(errors) == 3
    for error in errors.values():
        assert isinstance(error, hps.ConfigError)
        assert "tables.ads.optimizer.lr: it is 0.1 on rank 0 and 0.2 on rank 2" in str(error)
    _, errors = try_ranks(path, 2, look, options_of={1: {"seed": 12}})
    assert all("seed: it is 11 on rank 0 and 12 on rank 1" in str(e) for e in errors.values())
    assert not path.exists()


def test_a_store_of_one_process_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with hps.ParameterServer(config(path)) as server:
        server.checkpoint()
    for message in refused(path, 2):
        assert "hps reshard" in message and "--ranks 2" in message


def test_one_process_may_not_write_into_a_clusters_folder(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 2)))
    before = sorted(file.name for file in path.iterdir())
    with pytest.raises(hps.ConfigError, match=r"2 rank.*torchrun.*--plain"):
        hps.ParameterServer(config(path))
    with pytest.raises(hps.ConfigError, match=r"2 rank.*torchrun.*--plain"):
        hps.open(path, read_only=False)
    assert sorted(file.name for file in path.iterdir()) == before


def test_a_lost_cluster_file_never_costs_the_rows(tmp_path: Path, reference: Reference) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))
    text = (path / NAME).read_bytes()
    (path / NAME).unlink()
    for message in refused(path, 2):
        assert message.startswith("CorruptionError") and "no rank sees that file" in message
    (path / NAME).write_bytes(text)
    assert on_ranks(path, 2, look)[0][0] == reference.digests(2)


def test_any_flipped_bit_in_cluster_is_found(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 1, train(range(1, 2)))
    text = (path / NAME).read_bytes()
    for place in range(0, len(text), 37):
        (path / NAME).write_bytes(text[:place] + bytes([text[place] ^ 16]) + text[place + 1 :])
        with pytest.raises(hps.CorruptionError, match=NAME):
            Catalog.load(path)
    for length in range(0, len(text), 101):
        (path / NAME).write_bytes(text[:length])
        with pytest.raises(hps.CorruptionError, match=NAME):
            Catalog.load(path)
    for message in refused(path, 2):
        assert message.startswith("CorruptionError")


def test_the_highest_serial_counts_and_a_fork_is_refused(
    tmp_path: Path, reference: Reference
) -> None:
    hosts = [tmp_path / "a", tmp_path / "b"]
    on_ranks(hosts, 2, train(range(1, 3)))
    stale = (hosts[0] / NAME).read_bytes()
    on_ranks(hosts[::-1], 2, train(range(3, 4)))
    (hosts[0] / NAME).write_bytes(stale)  # as if its copy had not come
    old, new = Catalog.load(hosts[0]), Catalog.load(hosts[1])
    assert old is not None and new is not None and old.serial < new.serial
    assert on_ranks(hosts[::-1], 2, look)[0][0] == reference.digests(3)
    told = new.to_json()
    told["next_id"] += 1
    Catalog.from_json(told).save(hosts[0])
    for message in refused(hosts[::-1], 2):
        assert message.startswith("CorruptionError") and "same serial" in message


def test_folders_of_two_trainings_are_not_mixed(tmp_path: Path) -> None:
    hosts = [tmp_path / "a", tmp_path / "b"]
    for host in hosts:
        on_ranks(host, 1, train(range(1, 2)))
    for message in refused(hosts, 2):
        assert "different trainings" in message


def test_generations_of_another_training_are_left_alone(tmp_path: Path) -> None:
    """Another training's host joins this one's: what lies there is not this one's to remove."""
    hosts = [tmp_path / "a", tmp_path / "b"]
    on_ranks(hosts[0], 1, train(range(1, 2)))
    foreign = hosts[1] / new_generation(new_name(), 1)
    (foreign / "rank-0").mkdir(parents=True)
    own = Catalog.load(hosts[0])
    assert own is not None
    leftover = hosts[1] / new_generation(own.cluster, 9)
    (leftover / "rank-0").mkdir(parents=True)
    on_ranks(hosts, 2, look)
    assert foreign.exists() and not leftover.exists()


def test_a_part_with_other_rows_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 2)))
    catalog = Catalog.load(path)
    assert catalog is not None
    told = catalog.to_json()
    told["cuts"][0]["parts"][1]["rows"] += 1
    Catalog.from_json(told).save(path)
    for message in refused(path, 2):
        assert message.startswith("CorruptionError") and "rank-1" in message
    for message in refused(path, 3):  # on the way to other ranks, too
        assert message.startswith("CorruptionError") and "rank-1" in message


def test_a_training_that_ended_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, lambda rank: rank.step(1))
    first = generations(path)

    def is_empty(rank: Rank) -> int:
        return sum(rank.local.num_rows(table.name) for table in TABLES)

    assert on_ranks(path, 3, is_empty) == [0, 0, 0]
    assert len(generations(path)) == 1 and generations(path) != first


def test_a_failed_opening_leaves_no_lock_and_no_open_store(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 2)))
    world = local_worlds(1)[0]
    wrong = [hps.TableConfig(name="ads", dim=9, features=["C1"])]
    for _ in range(2):
        with pytest.raises(hps.ConfigError, match="dim"):
            open_parts(config(path, tables=wrong), world)
    on_ranks(path, 2, look)


def test_a_store_whose_owner_is_another_rank_now_moves(
    tmp_path: Path, reference: Reference
) -> None:
    """The two stores of one folder change their names: found out, not taken for each other's."""
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))
    (folder,) = path.glob("generation-*")
    shutil.move(folder / "rank-0", folder / "x")
    shutil.move(folder / "rank-1", folder / "rank-0")
    shutil.move(folder / "x", folder / "rank-1")
    for message in refused(path, 2):
        assert message.startswith("CorruptionError")


def test_changes_of_a_catalog() -> None:
    def checkpoint(
        number: int, tag: str | None = None, generation: str = "g1"
    ) -> ClusterCheckpoint:
        return ClusterCheckpoint(
            id=number, name=f"{number:032x}", tag=tag, created=float(number),
            generation=generation, parts=(PartSize(1, 2), PartSize(3, 4)),
        )  # fmt: skip

    none = Promotions()
    catalog = Catalog.begin("c" * 32).started("g1", 2, 7)
    for one in (
        checkpoint(1, "a"),
        checkpoint(2),
        checkpoint(3),
        checkpoint(4),
        checkpoint(5, "a"),
    ):
        catalog = catalog.with_checkpoint(one, 2, none)
    assert [one.id for one in catalog.checkpoints] == [3, 4, 5]
    assert (catalog.serial, catalog.current_id, catalog.next_id) == (6, 5, 6)
    hidden = catalog.without(checkpoint(5, "a"), none)
    assert hidden.described(none) == catalog.described(none)[:2]
    assert hidden.current == checkpoint_hidden(checkpoint(5, "a"))
    assert [one.id for one in hidden.with_current(checkpoint(3)).checkpoints] == [3, 4]
    moved = catalog.with_checkpoint(checkpoint(6), 2, none).moved(checkpoint(6, None, "g2"), none)
    assert [one.id for one in moved.checkpoints] == [5, 6] and moved.generations == {"g1", "g2"}
    assert Catalog.from_json(moved.to_json()) == moved


def checkpoint_hidden(checkpoint: ClusterCheckpoint) -> ClusterCheckpoint:
    import dataclasses

    return dataclasses.replace(checkpoint, is_deleted=True)
