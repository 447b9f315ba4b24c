"""`hps reshard`: one checkpoint for another number of ranks, in a folder of its own.

Above it: pytest. Below it: folder_lab.py.
"""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import hps
from hps.cli.main import main
from hps.cluster.folder.offline import reshard
from hps.ssd_store.store import SsdStore
from tests.cluster.folder.folder_lab import (
    TABLES,
    Reference,
    files_of,
    look,
    on_ranks,
    train,
)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Two ranks with two checkpoints."""
    path = tmp_path / "cluster"
    on_ranks(path, 2, train(range(1, 3), tag="day-1"))
    on_ranks(path, 2, train(range(3, 5), tag="day-2"))
    return path


def digests_of(path: Path, **options: Any) -> dict[str, str]:
    with hps.open(path, **options) as server:
        return {name: server.digest(name) for name in server.tables}


def test_there_and_back_again_nothing_changes(
    cluster: Path, tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 ranks -> 3 -> one store -> 1 rank: digests (rows and states), model, position, tables."""
    before = {file: file.read_bytes() for file in files_of(cluster)}
    three, plain, one = tmp_path / "three", tmp_path / "plain", tmp_path / "one"
    out = tmp_path / "made.json"
    assert main(["reshard", str(cluster), str(three), "--ranks", "3", "--json", str(out)]) == 0
    assert "day-2 with" in capsys.readouterr().out
    made = json.loads(out.read_text())
    assert made["ranks"] == 3 and made["rows"] == sum(made["parts"]) and min(made["parts"]) > 50
    assert main(["reshard", str(three), str(plain), "--plain"]) == 0
    assert main(["reshard", str(plain), str(one), "--ranks", "1"]) == 0
    assert {file: file.read_bytes() for file in files_of(cluster)} == before
    for path in (three, plain, one):
        assert digests_of(path) == reference.digests(4)
        with hps.open(path) as server:
            assert server.checkpoint_state("day-2") == ({"step": 4}, {"step": 4})
            assert list(server.tables.values()) == TABLES and server.config.seed == 11
        assert main(["verify", str(path)]) == 0
    expected = (reference.digests(4), ({"step": 4}, {"step": 4}))
    assert on_ranks(three, 3, look) == [expected] * 3  # in place: nothing moves
    on_ranks(one, 1, train(range(5, 6)))
    assert digests_of(one) == reference.digests(5)
    with hps.open(plain, read_only=False) as server:
        assert server.num_rows("ads") > 400


def test_an_older_checkpoint_becomes_a_folder_of_its_own(
    cluster: Path, tmp_path: Path, reference: Reference
) -> None:
    for name, target in (("day-1", "by-tag"), (1, "by-id")):
        made = reshard(cluster, tmp_path / target, 3, name)
        assert made["tag"] == "day-1"
        assert digests_of(tmp_path / target, checkpoint="day-1") == reference.digests(2)


def test_a_target_that_holds_something_is_refused(cluster: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "notes").write_text("mine")
    for path in (target, target / "notes"):
        with pytest.raises(hps.ConfigError, match="holds something"):
            reshard(cluster, path, 2)
    assert (target / "notes").read_text() == "mine"
    (target / "notes").unlink()
    assert reshard(cluster, target, 2)["ranks"] == 2


def test_what_cannot_be_is_refused_in_one_line(
    cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    with hps.ParameterServer(hps.Config(path=empty, tables=TABLES)):
        pass
    for words, message in (
        ([str(cluster), "--ranks", "2", "--checkpoint", "day-7"], "day-7"),
        ([str(tmp_path / "nowhere"), "--ranks", "2"], "nowhere"),
        ([str(empty), "--ranks", "2"], "no checkpoint"),
        ([str(empty), "--plain", "--checkpoint", "day-7"], "day-7"),
    ):
        assert main(["reshard", words[0], str(tmp_path / "out"), *words[1:]]) == 1, words
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
        assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_a_target_inside_of_the_source_is_refused(cluster: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(cluster)
    before = sorted(cluster.rglob("*"))
    for target in (cluster / "x", cluster / "x" / "y", tmp_path / "alias" / "x", cluster):
        with pytest.raises(hps.ConfigError, match="outside of it"):
            reshard(cluster, target, 2)
    assert sorted(cluster.rglob("*")) == before


def test_a_missing_part_is_named(cluster: Path, tmp_path: Path) -> None:
    (folder,) = cluster.glob("generation-*")
    for rank in (1, 0):
        shutil.rmtree(folder / f"rank-{rank}")
        with pytest.raises(hps.StoreError, match=f"rank-{rank}"):
            reshard(cluster, tmp_path / "out", 3)
        assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_no_target_and_the_source_whole(
    cluster: Path, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = SsdStore.append

    def full(self: SsdStore, table: str, rows: Any) -> None:
        if self.path.name == "rank-1" and table == "wide":
            raise hps.StoreError(errno.ENOSPC, f"{self.path}: the disk is full")
        append(self, table, rows)

    monkeypatch.setattr(SsdStore, "append", full)
    with pytest.raises(hps.StoreError, match="rank-1: the disk is full"):
        reshard(cluster, tmp_path / "out", 3)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["cluster"]
    monkeypatch.undo()
    assert digests_of(cluster) == reference.digests(4)


def test_a_killed_run_leaves_no_target_and_the_next_one_succeeds(
    cluster: Path, tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A death just before the rename: what is left is there under another name, and goes."""
    target = tmp_path / "out"
    rename, copies = Path.rename, []

    def die(self: Path, other: Path) -> Any:
        if self.parent.name == "out.partial":
            shutil.copytree(self.parent, tmp_path / "left")
            copies.append(self)
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", die)
    reshard(cluster, target, 3)
    monkeypatch.undo()
    assert copies
    shutil.rmtree(target)
    (tmp_path / "left").rename(tmp_path / "out.partial")
    reshard(cluster, target, 2)
    assert digests_of(target) == reference.digests(4)
    assert not (tmp_path / "out.partial").exists()


def test_two_runs_do_not_share_a_target(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, seen = tmp_path / "out", []
    checkpoint = SsdStore.checkpoint

    def run_another(self: SsdStore, *arguments: Any) -> Any:
        if not seen:
            seen.append(True)
            with pytest.raises(hps.StoreError, match="another"):
                reshard(cluster, target, 1)
        return checkpoint(self, *arguments)

    monkeypatch.setattr(SsdStore, "checkpoint", run_another)
    reshard(cluster, target, 2)
    assert seen and len(digests_of(target)) == 2
