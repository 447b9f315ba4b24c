"""Checkpoints over all ranks: one of all, or none; list, go back, let go.

Above it: pytest. Below it: folder_lab.py.
"""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import hps
from hps.cluster.folder.folders import ClusterParts
from hps.common import durable_file
from hps.errors import ClusterError
from hps.parameter_server.checkpoints import Checkpoints
from hps.parameter_server.server import ParameterServer
from hps.ssd_store.cluster.catalog import Catalog, name_of_part
from tests.cluster.folder.folder_lab import (
    Rank,
    Reference,
    generations,
    look,
    on_ranks,
    train,
    try_ranks,
)


def test_a_checkpoint_holds_what_one_store_would(tmp_path: Path, reference: Reference) -> None:
    folder = tmp_path / "cluster"
    for size in (1, 3):
        path = folder / str(size)
        infos = on_ranks(path, size, train(range(1, 4), tag="day-1"))
        assert infos[0]["tag"] == "day-1" and infos[0]["rows_written"] > 400
        assert len({info["rows_written"] for info in infos}) == 1
        opened = on_ranks(path, size, look)
        for digests, (model, reader) in opened:
            assert digests == reference.digests(3)
            assert model == {"step": 3} and reader == {"step": 3}


def test_what_no_checkpoint_holds_is_gone_after_opening(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"

    def go_too_far(rank: Rank) -> bool:
        train(range(1, 3))(rank)
        assert not rank.is_changed
        rank.step(3)
        return rank.is_changed

    assert all(on_ranks(path, 2, go_too_far))
    assert on_ranks(path, 2, look)[1] == (reference.digests(2), ({"step": 2}, {"step": 2}))


def test_a_rank_that_went_ahead_goes_back_to_the_checkpoint(
    tmp_path: Path, reference: Reference
) -> None:
    """Its store holds a newer checkpoint that no CLUSTER names, as after a death."""
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))

    def go_ahead(rank: Rank) -> None:
        if rank.world.rank == 1:
            rank.step(3)
            rank.local.parts.checkpoints.save("cut-" + 32 * "0", {})

    on_ranks(path, 2, go_ahead)

    def tags(rank: Rank) -> Any:
        held = [one["tag"] for one in rank.local.checkpoints()]
        return rank.digests(), [tag for tag in held if name_of_part(tag)]

    opened = on_ranks(path, 2, tags)
    assert opened[1][0] == reference.digests(2)
    assert "cut-" + 32 * "0" not in opened[1][1] and len(opened[1][1]) == 1


def test_untagged_checkpoints_are_kept_by_number_and_tagged_ones_until_deleted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "cluster"

    def act(rank: Rank) -> Any:
        for number in range(1, 6):
            rank.step(number)
            rank.checkpoint("day-1" if number in (1, 4) else None, reader={"step": number})
        listed = [(one["tag"], one["id"]) for one in rank.checkpoints()]
        held = {name_of_part(one["tag"]) for one in rank.local.checkpoints()}
        assert held - {None} == {one.name for one in rank.parts.catalog.checkpoints}
        state = rank.checkpoint_state("day-1"), rank.checkpoint_state(3)
        rank.delete_checkpoint("day-1")
        left = [one["id"] for one in rank.checkpoints()]
        return listed, state, left, rank.num_parts

    for listed, state, left, held in on_ranks(path, 2, act):
        assert listed == [(None, 3), ("day-1", 4), (None, 5)]
        assert state == ((None, {"step": 4}), (None, {"step": 3}))
        assert left == [3, 5] and held == 2


def test_restore_takes_all_ranks_back(tmp_path: Path, reference: Reference) -> None:
    path = tmp_path / "cluster"

    def act(rank: Rank) -> Any:
        train(range(1, 3), tag="early")(rank)
        train(range(3, 5))(rank)
        state = rank.restore("early")
        digests = rank.digests()
        current = [one["tag"] for one in rank.checkpoints() if one["current"]]
        return state, digests, current

    for state, digests, current in on_ranks(path, 2, act):
        assert state == ({"step": 2}, {"step": 2})
        assert digests == reference.digests(2) and current == ["early"]
    assert on_ranks(path, 2, look)[0][0] == reference.digests(2)  # the next opening stays there

    def go_on(rank: Rank) -> Any:
        rank.step(3)
        rank.restore()
        return rank.digests()

    assert on_ranks(path, 2, go_on)[0] == reference.digests(2)


def test_a_current_checkpoint_that_is_deleted_stays_until_another_is_taken(
    tmp_path: Path, reference: Reference
) -> None:
    path = tmp_path / "cluster"

    def act(rank: Rank) -> Any:
        train(range(1, 3), tag="day-1")(rank)
        rank.delete_checkpoint("day-1")
        return rank.checkpoints()

    assert on_ranks(path, 2, act) == [[], []]
    assert on_ranks(path, 2, look)[0][0] == reference.digests(2)
    on_ranks(path, 2, train(range(3, 4)))
    assert on_ranks(path, 2, lambda rank: rank.num_parts) == [1, 1]


def test_the_model_reaches_every_rank_whole(tmp_path: Path) -> None:
    weights = torch.arange(300_000, dtype=torch.float32)

    def act(rank: Rank) -> Any:
        rank.step(1)
        rank.checkpoint("day-1", model={"weights": weights} if rank.world.rank == 0 else None)
        return rank.checkpoint_state("day-1")[0]["weights"]

    for found in on_ranks(tmp_path / "cluster", 3, act):
        assert torch.equal(found, weights)


def test_ranks_that_call_different_verbs_or_tags_are_told(tmp_path: Path) -> None:
    path = tmp_path / "cluster"

    def differ(rank: Rank) -> None:
        rank.checkpoint("day-1" if rank.world.rank else "day-2")

    _, errors = try_ranks(path, 2, differ)
    assert all("different checkpoints" in str(error) for error in errors.values())
    assert len(errors) == 2

    def mix(rank: Rank) -> None:
        rank.checkpoint() if rank.world.rank else rank.restore("day-1")

    _, errors = try_ranks(path, 2, mix)
    assert len(errors) == 2 and all("same verbs" in str(one) for one in errors.values())


@pytest.mark.parametrize("model", [object(), {"a": object()}])
def test_a_model_that_cannot_be_read_back_is_refused_on_all_ranks(
    tmp_path: Path, model: Any
) -> None:
    def act(rank: Rank) -> None:
        rank.step(1)
        rank.checkpoint("day-1", model=model if rank.world.rank == 0 else None)

    _, errors = try_ranks(tmp_path / "cluster", 2, act)
    assert all(isinstance(error, hps.ConfigError) for error in errors.values())
    assert "rank 0: model" in str(errors[1])


def test_a_full_disk_under_one_rank_leaves_the_checkpoint_before(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster"
    save, fails = Checkpoints.save, [True]

    def full(self: Checkpoints, tag: str | None, *others: Any, **named: Any) -> Any:
        path = self._tables.config.path
        if fails[0] and path.name == "rank-1":
            raise hps.StoreError(errno.ENOSPC, f"{path}: the disk is full")
        return save(self, tag, *others, **named)

    def act(rank: Rank) -> Any:
        train(range(1, 3))(rank)
        monkeypatch.setattr(Checkpoints, "save", full)
        rank.step(3)
        with pytest.raises(hps.StoreError, match="rank-1: the disk is full") as refusal:
            rank.checkpoint("day-3")
        assert ("rank 1: " in str(refusal.value)) == (rank.world.rank == 0)
        assert [one["tag"] for one in rank.checkpoints()] == [None]
        assert rank.is_changed
        rank.world.control.barrier()
        fails[0] = False
        rank.world.control.barrier()
        rank.checkpoint("day-3")  # there is space again
        return [one["tag"] for one in rank.checkpoints()], rank.num_parts

    for tags, held in on_ranks(path, 2, act):
        assert tags == [None, "day-3"] and held == 2
    assert on_ranks(path, 2, look)[0][0] == reference.digests(3)


def test_a_full_disk_under_cluster_leaves_the_checkpoint_before(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))

    def full(file: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    def act(rank: Rank) -> None:
        rank.step(3)
        monkeypatch.setattr(durable_file, "write_durably", full)
        with pytest.raises(hps.StoreError, match="No space left"):
            rank.checkpoint()
        assert rank.is_changed and not rank.parts.failure
        assert rank.num_parts == 1  # the part is let go at once

    on_ranks(path, 2, act)
    monkeypatch.undo()
    assert on_ranks(path, 2, look)[0][0] == reference.digests(2)


def test_whatever_keeps_cluster_from_being_written_leaves_no_part(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what no disk says, a want of memory: the ranks know it, and the old one stands."""
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))
    save, fails = Catalog.save, [True]

    def fail(self: Catalog, folder: Path) -> None:
        if fails[0]:
            raise MemoryError("no memory for CLUSTER")
        save(self, folder)

    def act(rank: Rank) -> Any:
        rank.step(3)
        monkeypatch.setattr(Catalog, "save", fail)
        with pytest.raises((MemoryError, ClusterError), match="no memory for CLUSTER"):
            rank.checkpoint("day-3")
        assert rank.is_changed and not rank.parts.failure
        held = rank.num_parts
        rank.world.control.barrier()
        fails[0] = False
        rank.world.control.barrier()
        rank.checkpoint("day-3")
        return held, rank.num_parts

    assert on_ranks(path, 2, act) == [(1, 2), (1, 2)]
    assert on_ranks(path, 2, look)[0][0] == reference.digests(3)


def test_a_rank_that_dies_while_cluster_is_written_costs_neither_checkpoint(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may be on the disk: the others must let no part go, and take no other checkpoint."""
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))
    write = ClusterParts._write

    def die(self: ClusterParts, *arguments: Any, **options: Any) -> None:
        if self.world.rank == 1:
            raise SystemExit("the rank is gone")
        write(self, *arguments, **options)

    def act(rank: Rank) -> None:
        rank.step(3)
        rank.world.control.barrier()
        monkeypatch.setattr(ClusterParts, "_write", die)
        try:
            rank.checkpoint()
        except BaseException:
            rank.world.abort("it ends")
            assert rank.world.rank == 1 or (rank.num_parts == 2 and rank.parts.failure)
            raise

    _, errors = try_ranks(path, 2, act)
    assert isinstance(errors[0], ClusterError) and isinstance(errors[1], SystemExit)
    monkeypatch.undo()
    assert on_ranks(path, 2, look)[0][0] == reference.digests(3)  # it had been written


def test_what_cannot_be_let_go_after_a_checkpoint_fails_no_rank(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3), tag="day"))
    delete = ParameterServer.delete_checkpoint

    def damaged(self: ParameterServer, tag: Any) -> Any:
        if self.config.path.name == "rank-1":
            raise hps.CorruptionError(f"{self.config.path}: damaged")
        return delete(self, tag)

    def act(rank: Rank) -> int:
        rank.world.control.barrier()
        monkeypatch.setattr(ParameterServer, "delete_checkpoint", damaged)
        train(range(3, 4), tag="day")(rank)
        return rank.num_parts

    assert on_ranks(path, 2, act) == [1, 2]
    monkeypatch.undo()
    assert on_ranks(path, 2, look)[0][0] == reference.digests(3)
    assert on_ranks(path, 2, lambda rank: rank.num_parts) == [1, 1]


def test_after_a_failed_sync_nobody_goes_on(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CLUSTER may be the new one or the old one: neither checkpoint may lose its parts."""
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))

    def fail(folder: Path) -> None:
        raise durable_file.SyncError(errno.EIO, "Input/output error in fsync", str(folder))

    def act(rank: Rank) -> None:
        rank.step(3)
        rank.world.control.barrier()
        monkeypatch.setattr(durable_file, "sync", fail)
        for _ in range(2):
            with pytest.raises(hps.StoreError):
                rank.checkpoint()
        assert rank.parts.failure and rank.num_parts == 2

    on_ranks(path, 2, act)
    monkeypatch.undo()
    assert on_ranks(path, 2, look)[0][0] in (reference.digests(2), reference.digests(3))


def test_a_restore_that_fails_on_one_rank_bars_checkpoints_until_one_succeeds(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster"
    restore, fails = ParameterServer.restore, [True]

    def damaged(self: ParameterServer, tag: Any = None) -> Any:
        if fails[0] and self.config.path.name == "rank-1":
            raise hps.CorruptionError(f"{self.config.path}: damaged")
        return restore(self, tag)

    def act(rank: Rank) -> Any:
        train(range(1, 3), tag="early")(rank)
        train(range(3, 4))(rank)
        rank.world.control.barrier()
        monkeypatch.setattr(ParameterServer, "restore", damaged)
        with pytest.raises(hps.CorruptionError, match="rank-1: damaged"):
            rank.restore("early")
        with pytest.raises(hps.ConfigError, match="restore"):
            rank.checkpoint()
        rank.world.control.barrier()
        fails[0] = False
        rank.restore()
        return rank.digests()

    assert on_ranks(path, 2, act)[0] == reference.digests(3)


def test_a_rank_that_dies_in_a_checkpoint_frees_the_others(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3)))
    save = Checkpoints.save

    def die(self: Checkpoints, tag: str | None, *others: Any, **named: Any) -> Any:
        if self._tables.config.path.name == "rank-1":
            raise SystemExit("the rank is gone")
        return save(self, tag, *others, **named)

    def act(rank: Rank) -> None:
        rank.step(3)
        rank.world.control.barrier()
        monkeypatch.setattr(Checkpoints, "save", die)
        rank.checkpoint()

    _, errors = try_ranks(path, 2, act)
    assert isinstance(errors[1], SystemExit) and isinstance(errors[0], ClusterError)
    assert "the rank is gone" in str(errors[0])  # told at once, not after a time
    monkeypatch.undo()
    assert on_ranks(path, 2, look)[0] == (reference.digests(2), ({"step": 2}, {"step": 2}))
    kept = on_ranks(path, 2, lambda rank: rank.num_parts)
    assert kept == [1, 1]  # what rank 0 had saved is gone


def test_a_catalog_says_who_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 2), tag="day-1"))
    catalog = Catalog.load(path)
    assert catalog is not None
    assert (catalog.version, catalog.ranks, catalog.seed) == (hps.__version__, 2, 11)
    assert catalog.serial == 2 and [catalog.generation] == generations(path)
    (checkpoint,) = catalog.checkpoints
    assert checkpoint.tag == "day-1" and len(checkpoint.parts) == 2
    assert min(part.rows for part in checkpoint.parts) > 100
