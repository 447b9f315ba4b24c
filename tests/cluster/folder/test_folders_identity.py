"""A cluster's folder is the one that was opened: no checkpoint is told of that its path lacks,
and no other cluster is changed."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cluster.folder.housekeeping import FolderLock
from hps.cluster.parameter_server import ClusterParameterServer
from hps.cluster.world.local_world import local_worlds
from hps.common.held_folder import HeldFolder
from hps.config import RankEnvironment
from hps.errors import StoreError
from hps.ssd_store.cluster.catalog import Catalog
from hps.ssd_store.cluster.cluster_store import verify_cluster
from hps.train.run_mark import RunMark
from tests.cluster.folder.folder_lab import Rank, config, files_of, on_ranks, train, try_ranks
from tests.forking import refused_in_child


def states_of(path: Path) -> dict[str, tuple[int, int]]:
    """Of each file its length and the time of its last change."""
    return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in files_of(path)}


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved"))


def remove(path: Path) -> None:
    shutil.rmtree(path)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("lose", [move_away, remove])
def test_no_checkpoint_goes_into_a_cluster_that_took_the_path(
    tmp_path: Path, lose: Callable[[Path], None], ranks: int
) -> None:
    path = tmp_path / "model"
    before: dict[str, tuple[int, int]] = {}

    def act(rank: Rank) -> None:
        train(range(1, 3), tag="kept")(rank)
        rank.world.control.barrier()
        if rank.world.rank == 0:
            lose(path)
            on_ranks(path, 1, train(range(5, 6), tag="theirs"))
            before.update(states_of(path))
        rank.world.control.barrier()
        train(range(3, 4), tag="lost")(rank)

    _, errors = try_ranks(path, ranks, act)
    assert len(errors) == ranks
    said = "was moved to" if lose is move_away else "was removed"
    assert any(said in str(error) for error in errors.values()), errors
    assert states_of(path) == before
    assert verify_cluster(path) == []
    with hps.open(path) as reader:
        assert [one["tag"] for one in reader.checkpoints()] == ["theirs"]
    if lose is move_away:
        assert verify_cluster(tmp_path / "moved") == []
        with hps.open(tmp_path / "moved") as reader:
            assert [one["tag"] for one in reader.checkpoints()] == ["kept"]


@pytest.mark.parametrize("verb", ["checkpoint", "delete_checkpoint", "restore"])
def test_no_catalog_is_written_for_a_folder_that_was_moved(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "model"

    def act(rank: Rank) -> None:
        for number in (1, 2):
            train(range(number, number + 1), tag=f"step-{number}")(rank)
        move_away(path)
        with pytest.raises(StoreError, match="was moved to"):
            getattr(rank, verb)("step-1")

    on_ranks(path, 1, act)
    assert not path.exists()
    catalog = Catalog.load(tmp_path / "moved")
    assert catalog is not None and catalog.current is not None
    assert catalog.current.tag == "step-2"
    assert [one.tag for one in catalog.listed] == ["step-1", "step-2"]
    assert verify_cluster(tmp_path / "moved") == []


def test_a_cluster_by_a_relative_path_stays_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    on_ranks(tmp_path / "there" / "model", 1, train(range(5, 6), tag="theirs"))
    before = states_of(tmp_path / "there")
    monkeypatch.chdir(tmp_path / "here")

    def act(rank: Rank) -> None:
        os.chdir(tmp_path / "there")
        train(range(1, 3), tag="kept")(rank)

    on_ranks(Path("model"), 1, act)
    assert states_of(tmp_path / "there") == before
    with hps.open(tmp_path / "here" / "model") as reader:
        assert [one["tag"] for one in reader.checkpoints()] == ["kept"]


def test_a_second_training_is_kept_out_without_a_lock_file(tmp_path: Path) -> None:
    path = tmp_path / "model"

    def act(rank: Rank) -> None:
        train(range(1, 2), tag="kept")(rank)
        (path / "LOCK").unlink()
        _, errors = try_ranks(path, 1, train(range(1, 2)))
        assert "another training has the folder open" in str(errors[0])
        with pytest.raises(StoreError, match=r"LOCK: the file.*(removed|replaced)"):
            train(range(2, 3), tag="lost")(rank)

    on_ranks(path, 1, act)
    on_ranks(path, 2, train(range(2, 3), tag="next"))
    assert verify_cluster(path) == []


@pytest.mark.parametrize("text", [b"\xff\xfe\x00", b"run \xff\n", b""])
def test_a_lock_with_any_bytes_gives_one_clear_error(tmp_path: Path, text: bytes) -> None:
    held = FolderLock(tmp_path, "one")
    (tmp_path / "LOCK").write_bytes(text)
    other = FolderLock(tmp_path, "two")
    with pytest.raises(StoreError, match="another training has the folder open"):
        other.check()
    other.close()
    held.close()


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        (fcntl, "flock", OSError(errno.ENOLCK, "No locks available")),
        (HeldFolder, "try_lock", StoreError(errno.EIO, "the folder cannot be locked")),
        (HeldFolder, "try_lock", hps.ConfigError("refused")),
    ],
)
def test_a_lock_that_the_system_refuses_is_told_by_a_typed_error_and_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, error: Exception
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise error

    def descriptors() -> list[str]:
        links = list(Path("/proc/self/fd").iterdir())
        return [str(link.readlink()) for link in links if link.is_symlink()]

    with monkeypatch.context() as patch:
        patch.setattr(place, name, refuse)
        with pytest.raises(hps.HpsError) as refused:  # which is alive below, with its frames
            FolderLock(tmp_path, "one")
    if isinstance(error, OSError):
        assert isinstance(refused.value, StoreError) and refused.value.errno == error.errno
    assert not [link for link in descriptors() if link.startswith(str(tmp_path))]
    held = FolderLock(tmp_path, "two")
    assert held.is_holder
    held.close()


def test_a_run_mark_with_any_bytes_is_another_runs(tmp_path: Path) -> None:
    (tmp_path / "RUN").write_bytes(b"\xff\xfe\x80")
    (world,) = local_worlds(1)
    place = RankEnvironment.of(
        {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "1"}
    )
    assert not RunMark(tmp_path, "run").is_restart(world, place)


def test_a_forked_child_is_refused_every_verb_of_a_rank(tmp_path: Path) -> None:
    (world,) = local_worlds(1)
    server = ClusterParameterServer(config(tmp_path / "model"), world)
    server.checkpoint("first")

    def leave_block() -> None:
        with server:
            pass

    verbs = [
        lambda: server.checkpoint("child"),
        lambda: server.restore("first"),
        lambda: server.stats(),
        leave_block,
        lambda: server.close(),
    ]
    before = states_of(tmp_path)
    assert refused_in_child(verbs) == []
    assert states_of(tmp_path) == before
    server.checkpoint("second")
    server.close()
    assert verify_cluster(tmp_path / "model") == []
