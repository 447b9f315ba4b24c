"""What a delta costs: which rows are read for it, what is written, and when that is durable.

Above it: pytest. Below it: hps/publish.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import hps
from hps.publish import destination, source
from hps.ssd_store.store import SsdStore
from tests.publish.publish_lab import a_server, a_table, keys_of, newest, push, rows_of, served

MANY = np.arange(5000, dtype=np.uint64)


@contextmanager
def fetched_keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Those whose rows a store is asked for."""
    found: list[int] = []
    fetch = SsdStore.fetch

    def noting(self: SsdStore, table: str, keys: np.ndarray, *rows: np.ndarray) -> None:
        found.extend(keys.tolist())
        fetch(self, table, keys, *rows)

    with monkeypatch.context() as patched:
        patched.setattr(SsdStore, "fetch", noting)
        yield found


def update(server: hps.ParameterServer) -> None:
    push(server, MANY[::7], 2.0)
    push(server, keys_of(100_000), 2.0)
    same = MANY[10:20]
    server.assign("ads", same, server.pull("ads", same))
    server.erase("ads", keys_of(30))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_rows_that_this_process_has_published_are_not_read_again(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store", dram="16MiB") as server:
        push(server, MANY, 1.0)
        server.publish(place, dtype=dtype)
        for round_ in range(3):
            update(server)
            server.checkpoint()
            with fetched_keys(monkeypatch) as fetched:
                made = server.publish(place, dtype=dtype)
            assert made["kind"] == "delta" and made["removed"] == (0 if round_ else 1)
            # Of rows of new segments none was; of the key that went both sides are asked for.
            assert set(fetched) <= {30}
            assert made["changed"] <= len(MANY[::7]) + 1  # none of those that are as they were
        server.compact()
        push(server, keys_of(1), 1.0)
        server.checkpoint()
        with fetched_keys(monkeypatch) as fetched:
            made = server.publish(place, dtype=dtype)
        assert made["changed"] == 1 and len(set(fetched) - {30}) == 0
        if dtype == "float32":
            assert served(place, tmp_path / "cache") == rows_of(server)


def test_rows_that_another_process_has_published_are_read_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        push(server, MANY, 1.0)
        server.publish(place)
    with a_server(tmp_path / "store") as server:
        update(server)
        server.checkpoint()
        with fetched_keys(monkeypatch) as fetched:
            made = server.publish(place)
        changed = len(MANY[::7]) + 1
        assert (made["kind"], made["changed"], made["removed"]) == ("delta", changed, 1)
        assert set(MANY[::7].tolist()) - {30} <= set(fetched)
        assert served(place, tmp_path / "cache") == rows_of(server)


def test_marks_of_one_type_are_none_of_another(tmp_path: Path) -> None:
    """1.0 of float16 is a small number of bfloat16, with the same bits."""
    table = a_table(dim=1)
    with a_server(tmp_path / "store", table) as server:
        server.assign("ads", keys_of(1), np.full((1, 1), 1.0, np.float32))
        server.checkpoint()
        with source.Source.open(server.config.path, None) as before:
            before.marks("float16", "ads", 0).note(
                before.store.places("ads", keys_of(1)),  # type: ignore[attr-defined]
                np.array([5], np.uint64),
            )
            found = np.empty(1, np.uint64)
            for dtype, expected in (("float16", 5), ("bfloat16", 0)):
                places = before.store.places("ads", keys_of(1))  # type: ignore[attr-defined]
                before.marks(dtype, "ads", 0).find(places, found)
                assert found.tolist() == [expected]


def a_model(value: float) -> dict[str, object]:
    return {"model": {"weight": torch.full((4,), value)}}


def test_a_delta_names_the_dense_part_of_before_where_it_is_the_same(tmp_path: Path) -> None:
    place, names = tmp_path / "pub", []
    with a_server(tmp_path / "store") as server:
        for round_, value in enumerate((1.0, 1.0, 2.0, 2.0)):
            push(server, keys_of(round_), 1.0)
            server.publish(place, model=a_model(value), kind="delta" if round_ else "base")
            _, version = newest(place)
            assert version.model is not None
            names.append(version.model.weights.name)
        assert names[0] == names[1] and names[2] == names[3] and names[0] != names[2]
        assert version.folder not in names[3]
        server.publish(place, kind="base")  # which has all that it needs
        _, version = newest(place)
        assert version.model is not None and version.folder in version.model.weights.name
        assert version.model.about.name.startswith(version.folder)


def test_all_files_are_durable_before_a_version_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    seen: list[tuple[str, list[str]]] = []
    fsync: Callable[[int], None] = os.fsync
    link = os.link

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def visible(new: Path, target: Path) -> None:
        seen.append((str(target), list(synced)))
        link(new, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(os, "link", visible)
    place = tmp_path / "pub"
    with a_server(tmp_path / "store") as server:
        for number in (1, 2):
            push(server, MANY, 1.0)
            if number == 2:
                server.erase("ads", keys_of(3))
            server.publish(place, model=a_model(float(number)))
            target, before = seen[-1]
            assert target.endswith(f"version-{number:08d}.json")
            _, version = newest(place)
            kinds = {file.name.rsplit("/", 1)[1].split("-")[0] for file in version.files}
            assert kinds >= ({"rows"} if number == 1 else {"changed", "removed"})
            for file in version.files:
                assert str(place / file.name) in before
            assert str(place / version.folder) in before  # their names
            assert str((place / version.folder).parent) in before


def test_a_folder_that_cannot_be_made_durable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "pub"
    folder = place / "data" / "00000001-0a0b0c0d"
    there = destination.open_destination(place)
    with there.write("data/00000001-0a0b0c0d/rows") as file:
        file.write(b"rows")

    fsync: Callable[[int], None] = os.fsync

    def refusing(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(folder):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refusing)
    with pytest.raises(hps.StoreError, match=re.escape(f"cannot write {folder}: ")):
        there.settle(["data/00000001-0a0b0c0d/rows"])


def test_names_of_folders_that_another_process_made_become_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed before it had made them so."""
    place = tmp_path / "new" / "pub"
    (place / "data").mkdir(parents=True)
    synced: list[str] = []
    fsync: Callable[[int], None] = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    there = destination.open_destination(place)
    with there.write("data/00000001-0a0b0c0d/rows") as file:
        file.write(b"rows")
    assert str(place) in synced  # the name of `data`
    there.create("version-00000001.json", b"{}", ["data/00000001-0a0b0c0d/rows"])
    assert str(place.parent) in synced


def test_folders_are_made_one_after_the_other_each_with_a_durable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a" / "b" / "pub"
    there_at_sync: list[tuple[str, bool]] = []
    fsync: Callable[[int], None] = os.fsync

    def noting(descriptor: int) -> None:
        there_at_sync.append((os.readlink(f"/proc/self/fd/{descriptor}"), place.exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    destination.open_destination(place).create("version-00000001.json", b"{}")
    assert (str(tmp_path), False) in there_at_sync
    assert (str(tmp_path / "a"), False) in there_at_sync
    assert (str(place.parent), True) in there_at_sync
