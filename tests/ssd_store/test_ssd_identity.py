"""A store is the folder that was opened: what takes its path is never changed, and nothing that the
path does not lead to any more is acknowledged."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ssd_twin import dump, keys_of, make_rows, schema

from hps.errors import StoreError
from hps.ssd_store import SsdStore, verify
from tests.forking import in_forked_child, refused_in_child

KEYS = keys_of(range(300))
OTHERS = keys_of(range(1000, 1100))


def make(store_class: Any, path: Path, value: int, **options: Any) -> Any:
    """A store with one checkpoint, open."""
    store = store_class.open(path, [schema()], **options)
    store.append("ads", make_rows(KEYS, value))
    store.checkpoint("first")
    return store


def files_of(path: Path) -> dict[str, tuple[int, int]]:
    """Of each file under a folder its length and the time of its last change."""
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder) / name
            found[str(file.relative_to(path))] = (file.stat().st_size, file.stat().st_mtime_ns)
    return found


def append_and_checkpoint(store: Any, value: int) -> None:
    """Refused at the first of them that meets it: an engine may look before any change."""
    store.append("ads", make_rows(KEYS, value))
    store.checkpoint("lost")


def move_away(path: Path) -> None:
    path.rename(path.with_name("moved"))


def remove(path: Path) -> None:
    shutil.rmtree(path)


TAKEN = [(move_away, "was moved to"), (remove, "was removed")]


@pytest.mark.parametrize(("lose", "said"), TAKEN)
def test_nothing_is_committed_into_a_store_that_took_the_path(
    store_class: Any, tmp_path: Path, lose: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "model"
    first = make(store_class, path, 1)
    lose(path)
    innocent = store_class.open(path, [schema()])
    innocent.append("ads", make_rows(OTHERS, 2))
    innocent.checkpoint("theirs")
    before = files_of(path)
    with pytest.raises(StoreError, match=f"{said}.*another one has its path now") as refused:
        append_and_checkpoint(first, 3)
    assert refused.value.errno == errno.ESTALE
    assert "nothing was committed" in str(refused.value)
    with pytest.raises(StoreError, match="stopped"):
        first.append("ads", make_rows(KEYS[:50], 3))
    first.close()
    assert files_of(path) == before
    assert verify(path) == []
    innocent.append("ads", make_rows(OTHERS, 4))
    innocent.checkpoint("more")
    innocent.close()
    with store_class.open(path, [schema()], read_only=True) as reader:
        assert set(dump(reader, "ads")) == set(OTHERS.tolist())
        assert [one["tag"] for one in reader.checkpoints()] == ["theirs", "more"]


def test_what_was_acknowledged_before_the_move_is_whole_where_it_is_now(
    store_class: Any, tmp_path: Path
) -> None:
    store = make(store_class, tmp_path / "model", 1)
    expected = dump(store, "ads")
    move_away(tmp_path / "model")
    with pytest.raises(StoreError, match=r"was moved to .*moved; nothing was committed"):
        append_and_checkpoint(store, 2)
    store.close()
    assert not (tmp_path / "model").exists()
    with store_class.open(tmp_path / "moved", [schema()]) as again:
        assert dump(again, "ads") == expected
        assert [one["tag"] for one in again.checkpoints()] == ["first"]


@pytest.mark.parametrize("verb", ["checkpoint", "restore", "delete_checkpoint", "compact"])
def test_no_verb_commits_in_a_folder_that_was_moved(
    store_class: Any, tmp_path: Path, verb: str
) -> None:
    store = make(store_class, tmp_path / "model", 1)
    store.append("ads", make_rows(KEYS, 2))
    store.checkpoint("second")
    move_away(tmp_path / "model")
    with pytest.raises(StoreError, match="was moved to"):
        getattr(store, verb)(*(() if verb == "compact" else ("first",)))
    store.close()
    with store_class.open(tmp_path / "moved", [schema()], read_only=True) as again:
        assert [(one["tag"], one["current"]) for one in again.checkpoints()] == [
            ("first", False),
            ("second", True),
        ]


def test_reads_go_on_from_the_folder_that_was_opened(store_class: Any, tmp_path: Path) -> None:
    store = make(store_class, tmp_path / "model", 1, segment_bytes=2**14)
    expected = dump(store, "ads")
    move_away(tmp_path / "model")
    make(store_class, tmp_path / "model", 2).close()
    with pytest.raises(StoreError, match="was moved to"):
        store.checkpoint()
    assert dump(store, "ads") == expected
    assert store.contains("ads", KEYS).all()
    store.close()


def test_figures_are_of_the_folder_that_was_opened(store_class: Any, tmp_path: Path) -> None:
    store = make(store_class, tmp_path / "model", 1)
    store.append("ads", make_rows(OTHERS, 2))
    store.checkpoint("second")
    expected = store.space_of_compact()
    assert expected["freed_bytes"] + expected["held_bytes"] > 0
    move_away(tmp_path / "model")
    assert store.space_of_compact() == expected
    store.close()


def damage_rows(path: Path) -> str:
    """Cuts a file of rows short; its name."""
    file = next(iter([*path.glob("segment-*"), *path.rglob("cut-*/db/*.sst")]))
    file.write_bytes(file.read_bytes()[:-100])
    return file.name


def test_verify_looks_at_the_folder_that_was_opened(store_class: Any, tmp_path: Path) -> None:
    path = tmp_path / "model"
    store = make(store_class, path, 1)
    move_away(path)
    make(store_class, path, 2).close()
    damage_rows(path)
    assert len(verify(path)) == 1 and store.verify() == []
    name = damage_rows(tmp_path / "moved")
    ((file, _),) = store.verify()
    assert Path(file).name == name and Path(file).is_relative_to(path)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.verify()


def test_a_relative_path_goes_on_meaning_the_same_folder(
    store_class: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    make(store_class, there / "model", 2).close()
    before = files_of(there)
    monkeypatch.chdir(here)
    store = store_class.open("model", [schema()])
    monkeypatch.chdir(there)
    store.append("ads", make_rows(OTHERS, 1))
    store.checkpoint("kept")
    store.append("ads", make_rows(OTHERS, 2))
    store.checkpoint("kept too")
    assert store.verify() == []
    store.close()
    assert files_of(there) == before
    with store_class.open(here / "model", [schema()], read_only=True) as reader:
        assert [one["tag"] for one in reader.checkpoints()] == ["kept", "kept too"]


def test_a_link_to_the_folder_that_leads_elsewhere_is_a_folder_replaced(
    store_class: Any, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        make(store_class, tmp_path / name, 1).close()
    (tmp_path / "model").symlink_to("one")
    store = store_class.open(tmp_path / "model", [schema()])
    (tmp_path / "model").unlink()
    (tmp_path / "model").symlink_to("two")
    before = files_of(tmp_path / "two")
    with pytest.raises(StoreError, match="another one has its path now"):
        store.checkpoint()
    store.close()
    assert files_of(tmp_path / "two") == before


def test_a_second_writer_is_kept_out_without_a_lock_file(store_class: Any, tmp_path: Path) -> None:
    first = make(store_class, tmp_path, 1)
    (tmp_path / "LOCK").unlink()
    with pytest.raises(StoreError, match="open for writing by another process"):
        store_class.open(tmp_path, [schema()])
    assert not (tmp_path / "LOCK").exists()
    with pytest.raises(StoreError, match=r"LOCK: the file.*was removed; nothing was committed"):
        append_and_checkpoint(first, 2)
    first.close()
    with store_class.open(tmp_path, [schema()]) as second:
        assert [one["tag"] for one in second.checkpoints()] == ["first"]
        second.append("ads", make_rows(OTHERS, 3))
        second.checkpoint("second")
    assert verify(tmp_path) == []


def test_a_lock_file_that_was_replaced_stops_the_writer(store_class: Any, tmp_path: Path) -> None:
    store = make(store_class, tmp_path, 1)
    (tmp_path / "copy").write_text("1 somewhere")
    (tmp_path / "copy").replace(tmp_path / "LOCK")
    with pytest.raises(StoreError, match="was replaced by another one; nothing was committed"):
        store.checkpoint("second")
    store.close()


def test_a_folder_that_comes_back_before_a_commit_is_the_same(
    store_class: Any, tmp_path: Path
) -> None:
    with make(store_class, tmp_path / "model", 1) as store:
        move_away(tmp_path / "model")
        (tmp_path / "moved").rename(tmp_path / "model")
        store.append("ads", make_rows(OTHERS, 2))
        store.checkpoint("second")
        assert len(store.checkpoints()) == 2


def test_a_reader_reads_on_and_unpins_in_the_folder_that_it_holds(
    store_class: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    make(store_class, path, 1).close()
    reader = store_class.open(path, [schema()], read_only=True)
    expected = dump(reader, "ads")
    (pin,) = (path / "pins").iterdir()
    move_away(path)
    make(store_class, path, 2).close()
    same_name = path / "pins" / pin.name
    same_name.write_text("another reader's")
    assert dump(reader, "ads") == expected
    assert reader.contains("ads", KEYS).all()
    assert reader.extras("first") == {}
    reader.close()
    assert same_name.exists()
    assert list((tmp_path / "moved" / "pins").iterdir()) == []


def test_a_close_leaves_nothing_in_a_store_that_took_the_path(tmp_path: Path) -> None:
    path = tmp_path / "model"
    store = make(SsdStore, path, 1, snapshot_rows=1)
    move_away(path)
    make(SsdStore, path, 2, snapshot_rows=2**30).close()
    before = [files_of(path), files_of(tmp_path / "moved")]
    store.close()
    assert store.closing_bytes == 0
    assert [files_of(path), files_of(tmp_path / "moved")] == before


def test_a_forked_child_is_refused_and_takes_nothing_from_its_parent(
    store_class: Any, tmp_path: Path
) -> None:
    store = make(store_class, tmp_path, 1)
    rows = make_rows(OTHERS, 2)
    verbs: list[Callable[[], object]] = [
        lambda: store.append("ads", rows),
        lambda: store.checkpoint("child"),
        lambda: store.erase("ads", KEYS),
        lambda: store.contains("ads", KEYS),
        lambda: dump(store, "ads"),
        lambda: store.restore("first"),
        lambda: store.delete_checkpoint("first"),
        lambda: store.compact(),
        lambda: store.stats(),
        lambda: store.checkpoints(),
    ]

    before = files_of(tmp_path)
    assert refused_in_child(verbs) == []
    assert in_forked_child(lambda: str(store.close())) == "None"
    assert files_of(tmp_path) == before
    with pytest.raises(StoreError, match=f"open for writing by process {os.getpid()}"):
        store_class.open(tmp_path, [schema()])
    store.append("ads", rows)
    store.checkpoint("second")
    store.close()
    with store_class.open(tmp_path, [schema()]) as again:
        assert [one["tag"] for one in again.checkpoints()] == ["first", "second"]


@pytest.mark.parametrize("text", [b"\xff\xfe\x00 \x80host", b"", b"1" * 10_000])
def test_a_lock_with_any_bytes_gives_one_clear_error(
    store_class: Any, tmp_path: Path, text: bytes
) -> None:
    with make(store_class, tmp_path, 1) as _:
        (tmp_path / "LOCK").write_bytes(text)
        with pytest.raises(StoreError, match="open for writing by") as refused:
            store_class.open(tmp_path, [schema()])
        assert len(str(refused.value)) < 1000


def test_a_pin_with_any_bytes_keeps_everything(store_class: Any, tmp_path: Path) -> None:
    with make(store_class, tmp_path, 1) as store:
        pin = tmp_path / "pins" / "reader-12-34"
        pin.write_bytes(b"checkpoint \xff\xfe")
        with pin.open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            store.append("ads", make_rows(OTHERS, 1))
            store.checkpoint()
            assert store.delete_checkpoint("first") == ["process 12"]
