"""A cluster's folder read in one process: hps.open, and the commands that look into a store.

Above it: pytest. Below it: folder_lab.py.
"""

import json
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest

import hps
from hps.cli.main import main
from hps.common.sharding import ShardMap
from hps.ssd_store import open_store
from hps.ssd_store.cluster.catalog import NAME, Catalog, name_of_part, part_folder
from hps.ssd_store.cluster.cluster_store import ClusterStore
from tests.cluster.folder.folder_lab import (
    TABLES,
    Rank,
    Reference,
    config,
    files_of,
    generations,
    look,
    on_ranks,
    push_step,
    train,
)
from tests.logs import write_criteo


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ranks with two checkpoints; and one store with the same rows."""
    folder = tmp_path_factory.mktemp("trained")
    on_ranks(folder / "cluster", 3, train(range(1, 3), tag="day-1"))
    on_ranks(folder / "cluster", 3, train(range(3, 5), tag="day-2"))
    with hps.ParameterServer(config(folder / "one")) as server:
        for number in range(1, 5):
            for table in TABLES:
                push_step(server, table, number, ShardMap(1), 0)
    return folder


@pytest.fixture
def cluster(trained: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(trained / "cluster", tmp_path / "cluster"))


def test_a_reader_sees_what_one_store_would(trained: Path) -> None:
    generator = np.random.default_rng(5)
    with hps.open(trained / "cluster", dram="64KiB") as parts, hps.open(trained / "one") as one:
        assert parts.tables == one.tables and parts.config.seed == one.config.seed
        for table in TABLES:
            assert parts.digest(table.name) == one.digest(table.name)
            assert parts.num_rows(table.name) == one.num_rows(table.name) > 400
            stored = np.concatenate([piece[0] for piece in one.items(table.name)])
            absent = generator.integers(0, 2**64, 50, np.uint64)
            keys = generator.permutation(np.concatenate([stored, stored[:99], absent]))
            np.testing.assert_array_equal(parts.pull(table.name, keys), one.pull(table.name, keys))
            np.testing.assert_array_equal(
                parts.contains(table.name, keys), one.contains(table.name, keys)
            )
            found = np.concatenate([piece[0] for piece in parts.items(table.name, batch=100)])
            assert sorted(found.tolist()) == sorted(stored.tolist())
        figures = parts.stats()
        assert figures["tables"]["ads"]["rows"] == one.num_rows("ads")
        assert figures["ssd_store"]["files_bytes"] > 0
        assert parts.checkpoint_state() == ({"step": 4}, {"step": 4})
        assert parts.checkpoint_state("day-1") == ({"step": 2}, {"step": 2})
        with pytest.raises(hps.ConfigError, match="read-only"):
            parts.push("ads", stored[:1], np.ones((1, 4), np.float32))


def test_a_reader_of_an_older_checkpoint(trained: Path, tmp_path: Path) -> None:
    reference = Reference(tmp_path)
    for name, steps in (("day-1", 2), ("day-2", 4), (1, 2)):
        with hps.open(trained / "cluster", checkpoint=name) as server:
            assert {table: server.digest(table) for table in server.tables} == (
                reference.digests(steps)
            )
    with pytest.raises(hps.ConfigError, match=r"day-7.*1 \('day-1'\)"):
        hps.open(trained / "cluster", checkpoint="day-7")


def test_a_reader_stands_beside_a_training(tmp_path: Path) -> None:
    path, reference = tmp_path / "cluster", Reference(tmp_path / "reference")
    on_ranks(path, 2, train(range(1, 3)))
    seen: list[dict[str, str]] = []

    def act(rank: Rank) -> None:
        readers = [hps.open(path)] if rank.world.rank == 0 else []
        rank.world.control.barrier()
        for number in range(3, 7):
            rank.step(number)
            rank.checkpoint()
        for reader in readers:  # of a checkpoint that was let go meanwhile
            seen.append({name: reader.digest(name) for name in reader.tables})
            reader.close()

    on_ranks(path, 2, act)
    assert seen == [reference.digests(2)]
    with hps.open(path) as server:
        assert {name: server.digest(name) for name in server.tables} == reference.digests(6)


def test_a_missing_part_is_named(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = cluster.glob("generation-*")
    shutil.rmtree(folder / "rank-1")
    with pytest.raises(hps.StoreError, match=r"rank-1: part 1 of 3 is not here"):
        hps.open(cluster)
    assert main(["verify", str(cluster)]) == 1
    captured = capsys.readouterr()
    assert "rank-1" in captured.out and "rank-1" in captured.err


def test_an_opening_that_a_new_checkpoint_overtakes_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reference = tmp_path / "cluster", Reference(tmp_path / "reference")
    on_ranks(path, 2, train(range(1, 3)))
    load, moved = Catalog.load, []

    def load_then_move(folder: Path) -> Any:
        found = load(folder)
        if not moved and folder == path:
            moved.append(True)
            on_ranks(path, 1, look)  # the rows go elsewhere between CLUSTER and the parts
        return found

    monkeypatch.setattr(Catalog, "load", load_then_move)
    store = ClusterStore.open(path, [], read_only=True)
    monkeypatch.undo()
    assert moved and store.num_rows("ads") > 0
    store.close()
    with hps.open(path) as server:
        assert {name: server.digest(name) for name in server.tables} == reference.digests(2)


def test_before_the_first_checkpoint_a_reader_is_told_to_wait(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    on_ranks(path, 2, lambda rank: rank.step(1))
    with pytest.raises(hps.StoreError, match="no checkpoint yet"):
        hps.open(path)


def test_stats_export_and_checkpoints_work_on_it(
    cluster: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "stats.json"
    assert main(["stats", str(cluster), "--digest", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    with hps.open(trained / "one") as one:
        for name in one.tables:
            assert figures["tables"][name]["digest"] == one.digest(name)
            assert figures["tables"][name]["rows"] == one.num_rows(name)
        every = sum(one.num_rows(name) for name in one.tables)
        assert figures["ranks"]["size"] == 3 and sum(figures["ranks"]["rows"]) == every
        count = one.num_rows("ads")
    capsys.readouterr()
    assert main(["stats", str(cluster), "--checkpoint", "day-1"]) == 0
    assert re.search(r"^ranks: 3, with [1-9]\d*, \d+, \d+ rows;", capsys.readouterr().out, re.M)
    file = tmp_path / "rows.parquet"
    assert main(["export", str(cluster), str(file), "--table", "ads"]) == 0
    assert pyarrow.parquet.read_table(file).num_rows == count
    assert main(["verify", str(cluster)]) == 0
    capsys.readouterr()
    assert main(["checkpoints", str(cluster)]) == 0
    text = capsys.readouterr().out
    assert re.search(r"day-1 .*id 1.*ranks 3", text) and re.search(r"day-2 .*id 2", text)
    for words in (
        ["clone", str(cluster), str(tmp_path / "x")],
        ["import", str(file), str(cluster)],
    ):
        assert main(words) == 1
        assert "3 rank(s)" in capsys.readouterr().err


def test_checkpoints_delete_lets_go_of_every_part(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoints", str(cluster), "--delete", "day-1"]) == 0
    catalog = Catalog.load(cluster)
    assert catalog is not None and [one.tag for one in catalog.checkpoints] == ["day-2"]
    for rank in range(3):
        with hps.open(part_folder(cluster, catalog.generation, rank)) as part:
            held = [name_of_part(one["tag"]) for one in part.checkpoints()]
            assert held == [None, catalog.checkpoints[0].name]
    assert main(["checkpoints", str(cluster), "--delete", "day-1"]) == 1
    assert "day-1" in capsys.readouterr().err

    def refused(rank: Rank) -> None:
        rank.world.control.barrier()
        if rank.world.rank == 0:
            assert main(["checkpoints", str(cluster), "--delete", "day-2"]) == 1
        rank.world.control.barrier()

    on_ranks(cluster, 3, refused)
    assert "another training has the folder open" in capsys.readouterr().err
    # The current one stays, unlisted, until another is taken.
    assert main(["checkpoints", str(cluster), "--delete", "day-2"]) == 0
    assert on_ranks(cluster, 3, look)[0][1] == ({"step": 4}, {"step": 4})
    assert len(generations(cluster)) == 1


def test_a_host_whose_cluster_is_older_deletes_nothing(
    tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its copy did not come, so it would go on from less, and remove a generation that counts."""
    old, new = tmp_path / "a", tmp_path / "b"
    on_ranks([old, old], 2, train(range(1, 2), tag="day-1"))
    on_ranks([old, old], 2, train(range(2, 3), tag="day-2"))
    stale = (old / NAME).read_bytes()
    on_ranks([new, old], 2, train(range(3, 4), tag="day-3"))  # rank 0 is on the other host now
    (old / NAME).write_bytes(stale)
    before = sorted(files_of(old))
    assert len(generations(old)) == 2 and len(generations(new)) == 1
    for _ in range(2):
        assert main(["checkpoints", str(old), "--delete", "day-1"]) == 1
        told = capsys.readouterr().err
        assert "does not name this generation" in told and "on all hosts" in told
    assert sorted(files_of(old)) == before and (old / NAME).read_bytes() == stale
    assert on_ranks([new, old], 2, look)[0][0] == reference.digests(3)
    assert main(["checkpoints", str(new), "--delete", "day-1"]) == 0  # there it is known
    assert on_ranks([new, old], 2, look)[0][0] == reference.digests(3)


def test_evaluate_measures_the_same_over_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_criteo(tmp_path / "log.txt", 600)
    one, parts, out = tmp_path / "one", tmp_path / "parts", tmp_path / "out.json"
    words = ["train", str(log), "--store", str(one), "--dim", "4", "--batch-size", "100"]
    assert main([*words, "--hidden", "8", "--dram", "16MiB", "--threads", "1"]) == 0
    assert main(["reshard", str(one), str(parts), "--ranks", "3"]) == 0
    measured = []
    for store, more in ((one, []), (parts, []), (parts, ["--gpu", "8MiB", "--device", "cpu"])):
        assert main(["evaluate", str(log), "--store", str(store), *more, "--json", str(out)]) == 0
        figures = json.loads(out.read_text())
        measured.append([figures[name] for name in ("auc", "logloss", "rows", "checkpoint")])
    assert measured[0] == measured[1] == measured[2] and measured[0][2] > 500


def test_compact_frees_space_of_every_part(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parts keep their tags, so that the ranks find the checkpoint."""

    def overwrite(rank: Rank) -> dict[str, str]:
        for table in TABLES:
            for keys, rows, state in list(rank.local.items(table.name, state=True)):
                rank.local.assign(table.name, keys, rows, state)
                rank.local.parts.checkpoints.save("one-segment", {})
        rank.local.delete_checkpoint("one-segment")
        rank.step(5)  # a third of these rows are dead now
        rank.checkpoint()
        for listed in rank.checkpoints()[:-1]:
            rank.delete_checkpoint(listed["id"])
        return rank.digests()

    expected = on_ranks(cluster, 3, overwrite)[0]
    assert main(["compact", str(cluster)]) == 0
    text = capsys.readouterr().out
    before, after = (
        int(number.replace(",", "")) for number in re.findall(r": ([\d,]+) bytes", text)
    )
    assert "nothing to free" not in text and "of room and frees" in text
    assert after < before
    assert on_ranks(cluster, 3, look)[0][0] == expected

    def refused(rank: Rank) -> None:
        if rank.world.rank == 0:
            assert main(["compact", str(cluster)]) == 1
        rank.world.control.barrier()

    on_ranks(cluster, 3, refused)
    assert "another training has the folder open" in capsys.readouterr().err
    assert main(["compact", str(cluster), "--table", "nope"]) == 1


def state_of(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Of every file the time of its last change, and its bytes."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}


def test_compact_decides_by_part_names_checkpoints_and_writes_nothing_when_dry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Part 0 has something to free; part 1 would grow: a checkpoint holds what was overwritten."""
    path = tmp_path / "cluster"

    def rewrite(rank: Rank) -> dict[str, str]:
        rank.step(1)
        if rank.world.rank == 1:
            _assign_anew(rank, 1)
        rank.checkpoint("day-1")
        rank.checkpoint()
        if rank.world.rank == 0:
            _assign_anew(rank, 1)
            rank.local.checkpoint("once")  # a segment of its own
            _assign_anew(rank, 2)
        else:
            _assign_anew(rank, 2)
        rank.checkpoint("day-2")
        if rank.world.rank == 0:
            rank.local.delete_checkpoint("once")
        return rank.digests()

    expected = on_ranks(path, 2, rewrite)[0]
    parts = sorted(path.glob("generation-*/rank-*"))
    gains = []
    for part in parts:
        with closing(open_store(part, [], read_only=True)) as store:
            space = store.space_of_compact()
            gains.append(space["freed_bytes"] - space["written_bytes"])
    assert gains[0] > 0 > gains[1], gains
    before = state_of(path)
    assert main(["compact", str(path), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert state_of(path) == before
    assert f"of room and frees {gains[0]:,} bytes" in text
    assert "are held by checkpoints (day-1, id:2): 'hps checkpoints" in text
    assert main(["compact", str(path)]) == 0
    assert {file: is_as for file, is_as in state_of(parts[1]).items()} == {
        file: is_as for file, is_as in before.items() if parts[1] in file.parents
    }
    assert capsys.readouterr().out.startswith(text.partition(" bytes before")[0])
    assert on_ranks(path, 2, look)[0][0] == expected


def _assign_anew(rank: Rank, step: int) -> None:
    """Appends the same rows again, every `step`-th."""
    for table in TABLES:
        for keys, rows, state in list(rank.local.items(table.name, state=True)):
            rank.local.assign(table.name, keys[::step], rows[::step], state[::step])


def test_verify_names_a_damaged_file(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder,) = cluster.glob("generation-*")
    segment = max((folder / "rank-2").glob("segment-*"), key=lambda file: file.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    assert main(["verify", str(cluster)]) == 1
    captured = capsys.readouterr()
    assert segment.name in captured.out and captured.err.startswith("hps: error: ")
    text = bytearray((cluster / "CLUSTER").read_bytes())
    text[-3] ^= 1
    (cluster / "CLUSTER").write_bytes(text)
    assert main(["verify", str(cluster)]) == 1
    assert "CLUSTER" in capsys.readouterr().err
