"""One shard's files of a version: written once a folder, dropped, abandoned, begun again.

Above it: pytest. Below it: Shard.write_part over a real store.
"""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.publish.options import PublishOptions
from hps.publish.places import PublishPlaces
from hps.publish.table_files import HashedFile
from hps.service.shard import publishing
from hps.service.shard.publishing import PartOrder, PartWriting
from hps.service.shard.shard import Identity, Shard
from tests.publish.publish_lab import a_table

KEYS = np.arange(500, dtype=np.uint64)


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    """With 500 rows in a checkpoint."""
    config = hps.Config(path=tmp_path / "store", tables=[a_table()])
    made = Shard(config)
    try:
        session = made.open_session("a")
        identity = Identity("a", session.incarnation, 1)
        made.push(identity, "ads", KEYS, np.ones((len(KEYS), 4), np.float32))
        made.checkpoint("one")
        yield made
    finally:
        made.close()


def an_order(shard: Shard, place: Path, number: int = 1) -> PartOrder:
    """A base of the newest checkpoint."""
    return PartOrder(
        place=str(place),
        folder=f"data/{number:08d}-00000000",
        created=shard.checkpoints()[-1]["created"],
        before=None,
        is_base=True,
    )


def names(place: Path, order: PartOrder) -> list[str]:
    folder = place / order.folder
    return sorted(one.name for one in folder.iterdir()) if folder.exists() else []


class Blocked:
    """Writes that wait until they may go on; those of the first file that is begun, or of all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go, self.has_begun = threading.Event(), threading.Event()
        write = HashedFile.write

        def slowly(file: HashedFile, data: Any) -> int:
            self.has_begun.set()
            assert self.may_go.wait(60)
            return write(file, data)

        monkeypatch.setattr(HashedFile, "write", slowly)


def test_what_is_asked_for_again_is_written_once(shard: Shard, tmp_path: Path) -> None:
    order = an_order(shard, tmp_path / "pub")
    first = shard.write_part(order, 60)
    assert first.has_ended and first.error is None and first.rows == 500 and first.num_bytes > 0
    assert shard.write_part(order, 0) is first
    (table,) = first.files or ()
    assert [file.rows for file in table.files] == [500]
    assert names(tmp_path / "pub", order) == [table.files[0].name.rpartition("/")[2]]
    other = replace(order, options=PublishOptions(dtype="int8"))
    with pytest.raises(hps.ConfigError, match="with another checkpoint or other options"):
        shard.write_part(other, 0)


def test_an_order_that_says_nothing_or_another_folder_is_refused(shard: Shard) -> None:
    order = an_order(shard, Path("/nowhere"))
    for folder in ("data/1-0", "../x", "data/00000001-00000000/x", ""):
        with pytest.raises(hps.ConfigError, match="must be as data/00000007-1f2e3d4c"):
            replace(order, folder=folder)
    with pytest.raises(hps.ConfigError, match="give is_base, or before"):
        replace(order, is_base=False)


def test_a_checkpoint_that_is_gone_is_named(shard: Shard, tmp_path: Path) -> None:
    order = replace(an_order(shard, tmp_path / "pub"), created=1.5)
    writing = shard.write_part(order, 60)
    assert isinstance(writing.error, hps.ConfigError) and "created at 1.5" in str(writing.error)
    with pytest.raises(hps.ConfigError, match=r"created at 1\.5 is not kept any more"):
        shard.describe_part(1.5)


def test_a_destination_that_refuses_is_told_and_nothing_is_left(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, write = an_order(shard, tmp_path / "pub"), HashedFile.write

    def fail(file: HashedFile, data: Any) -> int:
        write(file, data)
        raise OSError(28, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(HashedFile, "write", fail)
        writing = shard.write_part(order, 60)
    assert isinstance(writing.error, hps.StoreError) and writing.error.errno == 28
    assert names(tmp_path / "pub", order) == []
    assert shard.write_part(order, 0).error is writing.error  # a lost answer is given again
    again = replace(order, folder="data/00000001-00000001")
    assert shard.write_part(again, 60).error is None


def test_a_writing_that_is_dropped_leaves_nothing(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, blocked = an_order(shard, tmp_path / "pub"), Blocked(monkeypatch)
    writing = shard.write_part(order, 0)
    assert blocked.has_begun.wait(60) and not writing.has_ended
    shard.drop_part(order.place, order.folder, 0)
    blocked.may_go.set()
    assert writing.wait(60) and "given up" in str(writing.error)
    assert names(tmp_path / "pub", order) == []
    shard.drop_part(order.place, order.folder, 60)
    shard.drop_part(order.place, "data/00000009-00000000", 60)  # nothing is there
    done = shard.write_part(order, 60)
    assert done.files is not None and len(names(tmp_path / "pub", order)) == 1
    shard.drop_part(order.place, order.folder, 60)
    assert names(tmp_path / "pub", order) == []


def test_a_writing_that_nobody_asks_for_ends(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, blocked = an_order(shard, tmp_path / "pub"), Blocked(monkeypatch)
    writing = shard.write_part(order, 0)
    assert blocked.has_begun.wait(60)
    monkeypatch.setattr(publishing, "ABANDONED_SECONDS", 0.0)
    blocked.may_go.set()
    assert writing.wait(60) and "nobody has asked for data/00000001" in str(writing.error)
    assert names(tmp_path / "pub", order) == []


def test_only_so_many_are_written_at_once(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = [an_order(shard, tmp_path / "pub", number) for number in (1, 2, 3)]
    blocked = Blocked(monkeypatch)
    for order in orders[:2]:
        shard.write_part(order, 0)
    with pytest.raises(hps.CapacityError, match=r"2 versions are being written .* data/00000001"):
        shard.write_part(orders[2], 0)
    blocked.may_go.set()
    for order in orders[:2]:
        assert shard.write_part(order, 60).error is None
    assert shard.write_part(orders[2], 60).error is None


def test_a_shard_that_closes_ends_its_writings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: Shard
) -> None:
    order, blocked = an_order(shard, tmp_path / "pub"), Blocked(monkeypatch)
    writing = shard.write_part(order, 0)
    assert blocked.has_begun.wait(60)
    closing = threading.Thread(target=shard.close)
    closing.start()
    blocked.may_go.set()
    closing.join(60)
    assert not closing.is_alive() and writing.has_ended and writing.files is None
    assert names(tmp_path / "pub", order) == []
    with pytest.raises(hps.StoreError, match="is closed"):
        shard.write_part(replace(order, folder="data/00000002-00000000"), 0)


def test_a_process_that_was_killed_leaves_files_that_its_next_one_removes(
    shard: Shard, tmp_path: Path
) -> None:
    order = an_order(shard, tmp_path / "pub")
    folder = tmp_path / "pub" / order.folder
    folder.mkdir(parents=True)
    for name in ("rows-ads-s0-123456-0.arrow", "changed-a-s1-x-s0-abcdef-12.arrow"):
        (folder / name).write_text("half")
    others = ["model.bin", "rows-ads-s1-123456-0.arrow"]
    for name in others:
        (folder / name).write_text("another's")
    writing = shard.write_part(order, 60)
    own = [file.name.rpartition("/")[2] for one in writing.files or () for file in one.files]
    assert names(tmp_path / "pub", order) == sorted([*others, *own])
    # Of a version that is visible nothing is touched, whoever asks for its folder.
    (tmp_path / "pub" / "version-00000001.json").write_text("{}")
    shard.drop_part("elsewhere", order.folder, 0)
    shard.parts.publishing._writings.clear()  # as another process
    refused = shard.write_part(order, 60)
    assert "version 1 is published already" in str(refused.error)
    assert names(tmp_path / "pub", order) == sorted([*others, *own])


def test_what_was_published_last_stays_open_for_a_while(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = shard.parts.publishing._kept
    opened: list[Any] = []
    source_open = publishing.Source.open
    monkeypatch.setattr(
        publishing.Source,
        "open",
        lambda *args, **how: opened.append(args) or source_open(*args, **how),
    )
    first = an_order(shard, tmp_path / "pub")
    assert shard.write_part(first, 60).error is None and list(kept) == [first.place]
    session = shard.open_session("a")
    shard.push(Identity("a", session.incarnation, 2), "ads", KEYS[:3], np.ones((3, 4), np.float32))
    shard.checkpoint("two")
    second = replace(an_order(shard, tmp_path / "pub", 2), is_base=False, before=first.created)
    writing = shard.write_part(second, 60)
    (table,) = writing.files or ()
    assert table.changed is not None and table.changed[0].rows == 3 and len(opened) == 2
    for number in range(3):
        shard.write_part(replace(first, place=str(tmp_path / f"p{number}")), 60)
    assert list(kept) == [str(tmp_path / "p1"), str(tmp_path / "p2")]
    shard.parts.publishing._let_go(0)  # as the timer does
    assert not kept


def test_a_fault_of_the_program_ends_a_writing(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any, **how: Any) -> None:
        raise AssertionError("a bug")

    monkeypatch.setattr(publishing, "write_tables", fail)
    writing: PartWriting = shard.write_part(an_order(shard, tmp_path / "pub"), 60)
    assert writing.has_ended and "a bug" in writing.trace


def test_a_part_is_durable_before_it_is_told_of(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    place = tmp_path / "pub"
    order = an_order(shard, place)
    writing = shard.write_part(order, 60)
    (table,) = writing.files or ()
    wanted = [str(place / file.name) for file in table.files]
    assert wanted and {*wanted, str(place / order.folder), str(place / "data")} <= set(synced)


def test_places_are_compared_part_by_part() -> None:
    places = PublishPlaces(["s3://bucket/ctr/", "/srv/pub"])
    for place, plain in (
        ("s3://bucket/ctr", "s3://bucket/ctr"),
        ("S3://bucket/ctr/a/", "s3://bucket/ctr/a"),
        ("/srv/pub/x", "/srv/pub/x"),
        ("file:///srv/pub", "/srv/pub"),
        ("local:///srv/pub/y", "/srv/pub/y"),
    ):
        assert places.check(place) == plain
    for place in (
        "s3://bucket/ctrl",
        "s3://bucket",
        "/srv/public",
        "/",
        "gs://bucket/ctr",
        "s3a://bucket/ctr",
    ):
        with pytest.raises(hps.ConfigError, match="not among the places"):
            places.check(place)
    for place in (
        "/srv/pub/../etc",
        "/srv//pub",
        "srv/pub",
        "",
        "s3://bucket/ctr/./x",
        "s3://bucket/ctr/x::file:///etc",
        "s3://bucket/ctr?x",
        "/srv/pub/a\0b",
    ):
        with pytest.raises(hps.ConfigError, match="must be a URL such as"):
            places.check(place)
    with pytest.raises(hps.ConfigError, match="takes no login") as caught:
        places.check("s3://key:secret@bucket/ctr")
    assert "secret" not in str(caught.value)
    with pytest.raises(hps.ConfigError, match="more than 2048 bytes"):
        places.check("s3://bucket/ctr/" + "x" * 3000)
