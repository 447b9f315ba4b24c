"""Another number of ranks, other hosts: rows move to their new owners, nothing is lost.

Above it: pytest. Below it: folder_lab.py. A host is a folder of its own.
"""

import errno
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.ssd_store.cluster.catalog import Catalog, part_folder
from hps.ssd_store.store import SsdStore
from tests.cluster.folder.folder_lab import (
    TABLES,
    Rank,
    Reference,
    config,
    files_of,
    generations,
    look,
    on_ranks,
    train,
    try_ranks,
)


def rank_digests(rank: Rank) -> dict[str, str]:
    return rank.digests()


def test_any_number_of_ranks_goes_on_where_another_stopped(
    tmp_path: Path, reference: Reference
) -> None:
    """2 -> 3 -> 1 -> 2, with training in between: as one store that trained it all."""
    path = tmp_path / "cluster"
    for number, size in enumerate((2, 3, 1, 2)):
        if number:
            expected = (reference.digests(2 * number), ({"step": 2 * number},) * 2)
            assert on_ranks(path, size, look) == [expected] * size
        on_ranks(path, size, train(range(2 * number + 1, 2 * number + 3)))
        assert len(generations(path)) == 1
        catalog = Catalog.load(path)
        assert catalog is not None and catalog.ranks == size
    assert on_ranks(path, 2, rank_digests)[0] == reference.digests(8)


def test_every_row_lies_with_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 4)))

    def owned(rank: Rank) -> Any:
        from hps.common.sharding import ShardMap

        counts = []
        for table in TABLES:
            keys = np.concatenate([part[0] for part in rank.local.items(table.name)])
            places = ShardMap(3).split(keys)
            assert len(places[rank.world.rank]) == len(keys)
            counts.append(len(keys))
        return counts

    counts = on_ranks(path, 3, owned)
    assert all(min(of_rank) > 50 for of_rank in counts)


def test_tagged_checkpoints_of_other_ranks_stay_and_can_be_gone_back_to(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3), tag="early"))
    on_ranks(path, 2, train(range(3, 4)))

    def look_at_both(rank: Rank) -> Any:
        state = rank.checkpoint_state("early")
        return state, [(one["tag"], one["ranks"]) for one in rank.checkpoints()]

    for state, listed in on_ranks(path, 3, look_at_both):
        assert state == ({"step": 2}, {"step": 2})
        assert listed == [("early", 2), (None, 3)]
    assert len(generations(path)) == 2
    with hps.open(path, checkpoint="early") as server:
        assert {name: server.digest(name) for name in server.tables} == reference.digests(2)

    def go_back(rank: Rank) -> Any:
        rank.step(4)  # in no checkpoint
        state = rank.restore("early")
        rows = sum(rank.world.control.gather(rank.local.num_rows("ads")))
        listed = [(one["tag"], one["ranks"], one["current"]) for one in rank.checkpoints()]
        digests = rank.digests()
        rank.step(3)
        return state, listed, digests, rank.digests(), rows

    for state, listed, digests, stepped, rows in on_ranks(path, 3, go_back):
        assert state == ({"step": 2}, {"step": 2})
        assert listed == [("early", 3, True), (None, 3, False)]
        assert digests == reference.digests(2) and stepped == reference.digests(3) and rows > 200
    assert len(generations(path)) == 1
    assert on_ranks(path, 3, look)[0] == (reference.digests(2), ({"step": 2}, {"step": 2}))

    def forward(rank: Rank) -> Any:
        rank.restore(2)
        return rank.digests()

    assert on_ranks(path, 3, forward)[0] == reference.digests(3)


def test_a_tagged_checkpoint_of_other_ranks_goes_with_its_folder(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3), tag="early"))
    on_ranks(path, 2, train(range(3, 4)))
    on_ranks(path, 3, lambda rank: rank.delete_checkpoint("early"))
    assert len(generations(path)) == 1
    assert on_ranks(path, 3, rank_digests)[0] == reference.digests(3)


def test_a_disk_that_fills_in_such_a_restore_bars_checkpoints_until_one_succeeds(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3), tag="early"))
    on_ranks(path, 2, train(range(3, 4)))
    append = SsdStore.append

    def full(self: SsdStore, table: str, rows: Any) -> None:
        if self.path.name == "rank-2" and table == "wide":
            raise hps.StoreError(errno.ENOSPC, f"{self.path}: the disk is full")
        append(self, table, rows)

    def act(rank: Rank) -> Any:
        rank.world.control.barrier()
        monkeypatch.setattr(SsdStore, "append", full)
        with pytest.raises(hps.StoreError, match="rank-2: the disk is full"):
            rank.restore("early")
        with pytest.raises(hps.ConfigError, match="restore"):
            rank.checkpoint()
        rank.restore()
        return rank.digests()

    assert on_ranks(path, 3, act)[0] == reference.digests(3)
    monkeypatch.undo()
    assert on_ranks(path, 3, rank_digests)[0] == reference.digests(3)
    with hps.open(path, checkpoint="early") as server:
        assert {name: server.digest(name) for name in server.tables} == reference.digests(2)


def test_ranks_that_change_hosts_find_their_rows(tmp_path: Path, reference: Reference) -> None:
    """Each host has a folder of its own: a rank does not see its old store, another one does."""
    hosts = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    on_ranks(hosts[:2], 2, train(range(1, 3)))
    assert (hosts[1] / "CLUSTER").read_bytes() == (hosts[0] / "CLUSTER").read_bytes()
    expected = (reference.digests(2), ({"step": 2}, {"step": 2}))
    assert on_ranks(hosts[1::-1], 2, look) == [expected] * 2
    for host, rank in ((hosts[0], 1), (hosts[1], 0)):
        assert [file.name for file in host.glob("*/*")] == [f"rank-{rank}"]
    on_ranks(hosts[1::-1], 2, train(range(3, 4)))
    found = on_ranks([hosts[2], hosts[0], hosts[1]], 3, rank_digests)
    assert found == [reference.digests(3)] * 3


def test_a_part_that_no_rank_sees_is_named(tmp_path: Path) -> None:
    hosts = [tmp_path / "a", tmp_path / "b"]
    on_ranks(hosts, 2, train(range(1, 3)))
    before = {file: file.read_bytes() for file in files_of(hosts[0]) if file.name != "LOCK"}
    lost = tmp_path / "elsewhere"
    hosts[1].rename(lost)
    for size in (1, 2, 3):
        refuse(hosts[0], size, "part 1 of 2 is missing", "rank-1")
    after = {file: file.read_bytes() for file in files_of(hosts[0]) if file.name != "LOCK"}
    assert after == before  # nothing was removed, or made
    lost.rename(hosts[1])
    hosts[0].rename(lost)  # rank 0's: the other one knows of the checkpoint, too
    refuse(hosts[1], 2, "part 0 of 2 is missing", "rank-0")
    lost.rename(hosts[0])
    on_ranks(hosts, 2, look)


def refuse(path: Path, size: int, *words: str) -> None:
    """Opens a folder on ranks, all of which must be refused with these words."""
    _, errors = try_ranks(path, size, look)
    assert len(errors) == size
    for error in errors.values():
        assert isinstance(error, hps.StoreError)
        assert all(word in str(error) for word in words), error


def test_a_disk_that_fills_in_a_reshard_leaves_the_old_generation(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))
    old = generations(path)
    append = SsdStore.append

    def full(self: SsdStore, table: str, rows: Any) -> None:
        if self.path.name == "rank-2" and table == "wide":
            raise hps.StoreError(errno.ENOSPC, f"{self.path}: the disk is full")
        append(self, table, rows)

    monkeypatch.setattr(SsdStore, "append", full)
    _, errors = try_ranks(path, 3, look)
    assert len(errors) == 3 and all("rank-2: the disk is full" in str(e) for e in errors.values())
    assert generations(path) == old
    monkeypatch.undo()
    assert on_ranks(path, 2, rank_digests)[0] == reference.digests(2)
    assert generations(path) == old
    assert on_ranks(path, 3, rank_digests)[0] == reference.digests(2)


def test_another_layout_or_seed_is_refused_before_anything_moves(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 2)))
    other_dim = [hps.TableConfig(name="ads", dim=5, optimizer=hps.Adagrad()), TABLES[1]]
    other_kind = [hps.TableConfig(name="ads", dim=4, optimizer=hps.SGD()), TABLES[1]]
    for size in (2, 3):
        for refused, change in (
            ("dim", {"tables": other_dim}),
            ("optimizer", {"tables": other_kind}),
            ("seed", {"seed": 12}),
        ):
            _, errors = try_ranks(path, size, look, **change)
            assert len(errors) == size
            for error in errors.values():
                assert isinstance(error, hps.ConfigError) and refused in str(error), error
    assert len(generations(path)) == 1
    on_ranks(path, 2, look)


def test_tables_that_the_config_leaves_out_move_too(tmp_path: Path, reference: Reference) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))

    def one_table(rank: Rank) -> None:
        rank.checkpoint()

    on_ranks(path, 3, one_table, tables=TABLES[:1])
    with hps.open(path) as server:
        assert {name: server.digest(name) for name in server.tables} == reference.digests(2)
        assert server.tables["wide"] == TABLES[1]


def test_stores_of_another_engine_move_too(tmp_path: Path, reference: Reference) -> None:
    pytest.importorskip("rocksdict")
    path = tmp_path / "cluster"
    rocksdb = {"ssd": hps.SsdStoreConfig(segment_bytes=2**16, engine="rocksdb")}
    on_ranks(path, 2, train(range(1, 3), tag="early"), **rocksdb)
    on_ranks(path, 2, train(range(3, 4)), **rocksdb)
    with hps.open(path) as server:
        assert {name: server.digest(name) for name in server.tables} == reference.digests(3)
    expected = (reference.digests(3), ({"step": 3}, {"step": 3}))
    assert on_ranks(path, 3, look, **rocksdb) == [expected] * 3

    def go_back(rank: Rank) -> Any:
        rank.restore("early")
        return rank.digests()

    assert on_ranks(path, 3, go_back, **rocksdb)[0] == reference.digests(2)
    _, errors = try_ranks(path, 3, look)
    assert len(errors) == 3 and all("engine" in str(error) for error in errors.values())
    assert on_ranks(path, 1, look)[0][0] == reference.digests(2)  # a move may change the engine


def test_a_reader_keeps_the_generation_that_it_reads(tmp_path: Path, reference: Reference) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))
    with hps.open(path) as reader:
        on_ranks(path, 1, look)
        assert len(generations(path)) == 2
        assert {name: reader.digest(name) for name in reader.tables} == reference.digests(2)
    on_ranks(path, 1, look)
    assert len(generations(path)) == 1


def test_two_keys_in_two_parts_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 2)))
    catalog = Catalog.load(path)
    assert catalog is not None and catalog.current is not None
    # Rank 1's store becomes a copy of rank 0's, with a count that fits.
    folders = [part_folder(path, catalog.generation, rank) for rank in (0, 1)]
    shutil.rmtree(folders[1])
    shutil.copytree(folders[0], folders[1])
    first = catalog.current.parts[0]
    told = catalog.to_json()
    told["cuts"][0]["parts"] = [vars(first), vars(first)]
    Catalog.from_json(told).save(path)
    _, errors = try_ranks(path, 1, look)
    assert isinstance(
        errors[0], hps.CorruptionError
    ) and "rank-1: the store here is that of rank 0" in str(errors[0])


def test_config_of_budgets_may_differ_between_ranks(tmp_path: Path, reference: Reference) -> None:
    path = tmp_path / "cluster"
    small = {"dram": hps.DramCacheConfig(bytes="64KiB")}
    on_ranks(path, 2, train(range(1, 2)))
    results, errors = try_ranks(path, 2, rank_digests, options_of={1: small})
    assert not errors and results[0] == reference.digests(1)
    assert config(path).dram.bytes != 65536
