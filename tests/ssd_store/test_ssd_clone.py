"""A clone is one checkpoint as a store of its own; neither store ever touches the other's files."""

import resource
import threading
from pathlib import Path

import numpy as np
import pytest
from ssd_twin import dump, keys_of, make_rows, schema

import hps
from hps.cli.main import main
from hps.errors import ConfigError, CorruptionError, StoreError
from hps.ssd_store import SsdStore, clone, verify

TABLES = [schema("ads"), schema("users", 2, "adam")]
KEYS = keys_of(range(3000))
EXTRAS = {"position": b"file 3, byte 77", "dense": bytes(range(256)) * 40}


def open_store(path: Path) -> SsdStore:
    return SsdStore.open(path, TABLES, segment_bytes=2**14, keep_last=1)


def rows_of(path: Path, checkpoint: str | int | None = None) -> dict[str, dict[int, bytes]]:
    with SsdStore.open(path, [], read_only=True, checkpoint=checkpoint) as reader:
        return {table: dump(reader, table) for table in reader.schemas}


def data_files(path: Path) -> dict[str, bytes]:
    """Sealed segments and extras, with what is in them."""
    found = [*path.glob("segment-*"), *path.glob("extra-*")]
    return {file.name: file.read_bytes() for file in found}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two tables, tombstones, a tagged checkpoint and a newer one without a tag."""
    path = tmp_path / "source"
    with open_store(path) as store:
        store.append("ads", make_rows(KEYS, 1))
        store.append("users", make_rows(KEYS[:200], 2, TABLES[1].row_bytes))
        store.erase("ads", np.ascontiguousarray(KEYS[::3]))
        store.checkpoint("day-1", EXTRAS)
        store.append("ads", make_rows(KEYS[:1500], 3))
        store.erase("users", KEYS)
        store.checkpoint(None, {"position": b"later"})
    return path


@pytest.mark.parametrize("may_link", [True, False])
@pytest.mark.parametrize("checkpoint", ["day-1", 1, None])
def test_a_clone_is_exactly_one_checkpoint(
    source: Path, tmp_path: Path, may_link: bool, checkpoint: str | int | None
) -> None:
    before = {file: file.read_bytes() for file in source.iterdir() if file.is_file()}
    target = tmp_path / "deep" / "clone"
    made = clone(source, target, checkpoint, _may_link=may_link)
    assert {file: file.read_bytes() for file in source.iterdir() if file.is_file()} == before
    assert (made["files_linked"] > 0) == may_link and (made["files_copied"] > 0) != may_link
    assert verify(target) == []
    assert rows_of(target) == rows_of(source, checkpoint)
    with SsdStore.open(target, [], read_only=True) as store:
        (info,) = store.checkpoints()
        assert {**made, "current": True} == {**made, **info}
        assert (info["tag"], info["id"]) == (("day-1", 1) if checkpoint else (None, 2))
        assert store.extras() == (EXTRAS if checkpoint else {"position": b"later"})
        assert store.seed == 0 and list(store.schemas) == ["ads", "users"]
    for name, data in data_files(target).items():
        assert (source / name).read_bytes() == data
        assert (source / name).samefile(target / name) == may_link


@pytest.mark.parametrize("may_link", [True, False])
def test_training_on_in_both_changes_neither(source: Path, tmp_path: Path, may_link: bool) -> None:
    target = tmp_path / "clone"
    clone(source, target, "day-1", _may_link=may_link)
    checkpoint = rows_of(target)
    shared = data_files(target)
    assert len(shared) > 5
    with open_store(source) as left, open_store(target) as right:
        for value in range(10, 13):
            for store, offset in ((left, 0), (right, 100)):
                chosen = KEYS[value * 50 :][:1500]
                store.append("ads", make_rows(chosen, value + offset))
                store.erase("ads", np.ascontiguousarray(chosen[:: value + 1]))
                store.checkpoint()
        left.restore("day-1")
        assert dump(left, "ads") == checkpoint["ads"]
        assert dump(right, "ads") != checkpoint["ads"]
        assert left.verify() == right.verify() == []
        right_rows = dump(right, "ads")
        left.delete_checkpoint("day-1")
        left.append("ads", make_rows(KEYS, 99))
        left.checkpoint()
    assert not set(data_files(source)) & {name for name in shared if name.startswith("extra")}
    assert rows_of(target)["ads"] == right_rows
    assert rows_of(target, "day-1") == checkpoint
    assert {name: data_files(target)[name] for name in shared} == shared


def test_numbers_and_ids_go_on_behind_the_sources(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "clone"
    clone(source, target, "day-1")
    taken = set(data_files(source))
    with open_store(target) as store:
        store.append("ads", make_rows(KEYS[:5], 7))
        assert store.checkpoint()["id"] == 2
    assert not (set(data_files(target)) - taken) & taken
    again = clone(target, tmp_path / "again")
    assert again["id"] == 2 and verify(tmp_path / "again") == []
    assert rows_of(tmp_path / "again") == rows_of(target)


def test_clones_beside_a_busy_writer_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "source"
    keys = KEYS[:400]
    made = 0
    with open_store(path) as writer:
        writer.append("ads", make_rows(keys, 0))
        writer.checkpoint(None, {"value": b"0"})
        stop = threading.Event()
        values = []

        def write() -> None:
            while not stop.is_set():
                values.append(len(values) + 1)
                writer.append("ads", make_rows(keys, values[-1]))
                writer.checkpoint(None, {"value": str(values[-1]).encode()})

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for number in range(60):
                if number >= 6 and made > 1 and len(values) > 3:
                    break
                target = tmp_path / f"clone-{number}"
                clone(path, target, _may_link=bool(number % 2))
                with SsdStore.open(target, [], read_only=True) as store:
                    value = int(store.extras()["value"])
                    rows = make_rows(keys, value)
                    assert dump(store, "ads") == {
                        int(key): row.tobytes() for key, row in zip(keys, rows, strict=True)
                    }
                    made += value > 0
        finally:
            stop.set()
            thread.join()
        assert list((path / "pins").iterdir()) == []
    assert made > 1 and len(values) > 3


def test_a_target_that_holds_something_is_refused(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    for target, name in ((other, "notes.txt"), (source, "CURRENT|segment|MANIFEST|extra|index")):
        with pytest.raises(ConfigError, match=f"new or empty.*'({name})"):
            clone(source, target)
    with pytest.raises(StoreError, match=r"notes\.txt"):
        clone(source, other / "notes.txt")
    assert [file.name for file in other.iterdir()] == ["notes.txt"]
    with pytest.raises(ConfigError, match="no checkpoint 'gone'; kept are"):
        clone(source, tmp_path / "new", "gone")
    with pytest.raises(StoreError, match="no store here"):
        clone(tmp_path / "nowhere", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    open_store(tmp_path / "bare").close()
    with pytest.raises(ConfigError, match="no checkpoint to clone"):
        clone(tmp_path / "bare", tmp_path / "new")


def test_an_interrupted_clone_is_neither_a_store_nor_cloned_over(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "clone"
    clone(source, target)
    (target / "CURRENT").unlink()  # which comes last
    for read_only, error in ((True, StoreError), (False, CorruptionError)):
        with pytest.raises(error):
            SsdStore.open(target, [], read_only=read_only)
    with pytest.raises(ConfigError, match="clone was interrupted"):
        clone(source, target)


def test_a_clone_that_fails_leaves_nothing_and_can_be_repeated(
    source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "clone"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, hard))
    try:
        with pytest.raises(StoreError, match="free space"):
            clone(source, target, "day-1", _may_link=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [file.name for file in target.iterdir()] == ["LOCK"]
    clone(source, target, "day-1", _may_link=False)
    assert rows_of(target) == rows_of(source, "day-1")


@pytest.mark.parametrize("may_link", [True, False])
def test_damage_in_the_source_is_named_and_not_cloned(
    source: Path, tmp_path: Path, may_link: bool
) -> None:
    segment = sorted(source.glob("segment-*"))[1]
    whole = bytearray(segment.read_bytes())
    whole[64 + 36 * 9 + 12] ^= 1
    segment.write_bytes(whole)
    target = tmp_path / "clone"
    with pytest.raises(CorruptionError, match=f"{source.name}/{segment.name}.*record 9 "):
        clone(source, target, "day-1", _may_link=may_link)
    assert [file.name for file in target.iterdir()] == ["LOCK"]


def test_the_command_clones_what_a_trainer_can_go_on_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = hps.TableConfig(name="ads", dim=4, optimizer=hps.Adagrad(lr=0.1), features=["C1"])
    keys = np.arange(500, dtype=np.uint64)
    grads = np.ones((500, 4), np.float32)
    with hps.ParameterServer(hps.Config(path=tmp_path / "run", tables=[table])) as server:
        server.push("ads", keys, grads)
        server.checkpoint("day-1", reader={"byte": 77})
        expected = server.digest("ads")
        server.push("ads", keys, grads)
    words = ["clone", str(tmp_path / "run"), str(tmp_path / "copy"), "--checkpoint", "day-1"]
    assert main(words) == 0
    assert "day-1 with 500 rows" in capsys.readouterr().out
    with hps.ParameterServer(hps.Config(path=tmp_path / "copy", tables=[table])) as server:
        assert server.digest("ads") == expected
        assert server.checkpoint_state("day-1") == (None, {"byte": 77})
        server.push("ads", keys, grads)
        trained = server.digest("ads")
    with hps.open(tmp_path / "run") as server:
        assert server.digest("ads") == trained
    assert main(words) == 1
    assert "new or empty" in capsys.readouterr().err
