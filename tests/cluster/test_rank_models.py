"""Which checkpoints over several ranks take a model over: those whose rows it fits on every rank.

Above it: pytest. Below it: tests/cluster/folder/folder_lab.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.checkpoint.dense_mark import DENSE, DenseMark
from hps.cluster.folder.offline import reshard
from hps.ssd_store import open_store
from hps.ssd_store.cluster.catalog import Catalog
from hps.train.checkpoints import newest_with_model
from tests.cluster.folder.folder_lab import Rank, config, on_ranks, train, try_ranks

FINAL = ({"step": 2}, {"step": 2})


def erase_own(rank: Rank) -> None:
    """Rows of this rank."""
    keys = next(iter(rank.local.items("ads")))[0][:5]
    assert rank.local.erase("ads", keys).all()


def pruned(rank: Rank) -> dict[str, Any]:
    erase_own(rank)
    return rank.checkpoint("pruned")


def taken(*changes: Callable[[Rank], Any]) -> Callable[[Rank], Any]:
    """Changes, then what the checkpoint says, and the state of the newest checkpoint."""

    def act(rank: Rank) -> Any:
        for change in changes:
            change(rank)
        info = rank.checkpoint("later")
        return info.get("model_from"), rank.checkpoint_state()

    return act


def push_on_one(rank: Rank) -> None:
    if rank.world.rank == rank.world.size - 1:
        keys = next(iter(rank.local.items("ads")))[0][:5]
        rank.local.push("ads", keys, np.ones((len(keys), 4), np.float32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two ranks that have trained two steps."""
    on_ranks(tmp_path / "cluster", 2, train(range(1, 3), tag="final"))
    return tmp_path / "cluster"


def test_a_model_goes_with_rows_that_no_rank_has_trained_on(path: Path) -> None:
    infos = on_ranks(path, 2, pruned)
    assert [info["model_from"] for info in infos] == ["final", "final"]
    with hps.open(path) as reader:
        rows = reader.num_rows("ads")
        found = newest_with_model(reader)
        assert found is not None and found.name == "pruned" and found.model == FINAL[0]
        with hps.open(path, checkpoint="final") as before:
            assert before.num_rows("ads") == rows + 10
    for size in (3, 2):  # after a move of the rows, too
        assert on_ranks(path, size, taken(erase_own)) == [("final", FINAL)] * size


def test_a_model_of_a_checkpoint_without_a_tag_is_named_by_the_id_that_the_command_line_takes(
    tmp_path: Path,
) -> None:
    on_ranks(tmp_path / "cluster", 2, train(range(1, 3)))
    infos = on_ranks(tmp_path / "cluster", 2, pruned)
    assert [info["model_from"] for info in infos] == ["id:1", "id:1"]


def test_a_push_on_one_rank_ends_it_for_all_until_a_model_is_given(path: Path) -> None:
    assert on_ranks(path, 2, taken(push_on_one)) == [(None, (None, None))] * 2
    assert on_ranks(path, 3, taken(erase_own)) == [(None, (None, None))] * 3
    with hps.open(path) as reader, pytest.raises(hps.ConfigError, match="--checkpoint final"):
        newest_with_model(reader)
    on_ranks(path, 3, train(range(3, 4), tag="again"))
    newer = ({"step": 3}, {"step": 3})
    assert on_ranks(path, 3, taken(erase_own)) == [("again", newer)] * 3

    def back(rank: Rank) -> None:
        push_on_one(rank)
        rank.restore("final")  # of two ranks

    assert on_ranks(path, 3, taken(back, erase_own)) == [("final", FINAL)] * 3


def test_a_checkpoint_that_fails_leaves_the_model_with_its_own_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(catalog: Catalog, folder: Path) -> None:
        raise hps.StoreError(28, "the disk is full")

    def act(rank: Rank) -> Any:
        push_on_one(rank)
        rank.world.control.barrier()
        if rank.world.rank == 0:
            monkeypatch.setattr(Catalog, "save", fail)
        rank.world.control.barrier()
        with pytest.raises(hps.StoreError, match="full"):
            rank.checkpoint("new", model={"step": 9}, reader={"step": 9})
        rank.world.control.barrier()
        if rank.world.rank == 0:
            monkeypatch.undo()
        rank.world.control.barrier()
        trained = taken()(rank)
        rank.restore("final")
        return trained, taken(erase_own)(rank)

    assert on_ranks(path, 2, act) == [((None, (None, None)), ("final", FINAL))] * 2


def test_a_resharded_model_stays_with_its_rows(path: Path, tmp_path: Path) -> None:
    on_ranks(path, 2, pruned)
    reshard(path, tmp_path / "plain", None)
    with hps.ParameterServer(config(tmp_path / "plain")) as server:
        assert server.checkpoint_state() == FINAL
        server.assign("ads", np.array([5], np.uint64), np.ones((1, 4), np.float32))
        assert server.checkpoint("assigned")["model_from"] == "final"
    reshard(tmp_path / "plain", tmp_path / "three", 3)
    assert on_ranks(tmp_path / "three", 3, taken(erase_own)) == [("final", FINAL)] * 3
    assert on_ranks(tmp_path / "three", 3, taken(push_on_one)) == [(None, (None, None))] * 3


def test_models_of_an_older_hps_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster"
    monkeypatch.setattr(DenseMark, "blobs", lambda mark: {})
    on_ranks(path, 2, train(range(1, 3), tag="final"))
    monkeypatch.undo()
    for folder in path.glob("generation-*/rank-*"):
        store = open_store(folder, [], read_only=True, rows=False)
        assert DENSE not in store.extras(None)
        store.close()
    for size in (2, 3):
        assert on_ranks(path, size, taken(erase_own)) == [("final", FINAL)] * size
    _, errors = try_ranks(path, 3, taken(push_on_one))
    assert not errors
