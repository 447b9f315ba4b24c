"""Publishers and followers that die at any moment: nothing is half visible, and all goes on.

Above it: pytest. Below it: hps/publish, PublishedRows. A process that is killed does nothing more:
from the moment of its death each of its operations at the destination fails, cleaning up included.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.publish import publisher as publisher_module
from hps.publish import version as version_module
from hps.publish.destination import open_destination
from hps.publish.fetch import fetched, remove_abandoned
from hps.publish.publisher import Publisher
from hps.publish.store_origin import StoreOrigin
from hps.publish.version import chain_of, listed_versions
from hps.train.published_rows import PublishedRows, RowMemory
from tests.publish.publish_lab import a_server, keys_of, push, rows_of, served


class Killed(BaseException):
    """The process has died."""


class Mortal:
    """A destination whose user dies before its n-th operation, or in the middle of a write."""

    def __init__(self, place: Any, dies_at: int | None) -> None:
        self._place = place
        self._dies_at = dies_at
        self.num_operations = 0
        self.shown = place.shown

    def _count(self) -> None:
        self.num_operations += 1
        if self._dies_at is not None and self.num_operations >= self._dies_at:
            raise Killed

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._place, name)

        def counted(*given: Any) -> Any:
            self._count()
            return verb(*given)

        return counted

    @contextmanager
    def write(self, name: str) -> Iterator[Any]:
        self._count()
        with self._place.write(name) as stream:
            yield stream
            self._count()  # bytes are there, and nothing has made them durable


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A store of which version 1 is published, and which has changed since."""
    with a_server(tmp_path / "store") as server:
        push(server, np.arange(300, dtype=np.uint64), 1.0)
        server.publish(tmp_path / "pub")
        push(server, keys_of(1, 2, 900), 1.0)
        server.erase("ads", keys_of(5))
        server.checkpoint(tag="now")
    return tmp_path


def publish_and_die(
    world: Path, monkeypatch: pytest.MonkeyPatch, dies_at: int | None, kind: str
) -> int:
    """One attempt; the operations that it made."""
    mortal = Mortal(open_destination(world / "pub"), dies_at)
    with monkeypatch.context() as patched:
        patched.setattr(publisher_module, "open_destination", lambda place: mortal)
        options = publisher_module.PublishOptions(kind=kind)
        with Publisher(StoreOrigin(world / "store"), world / "pub", options) as publisher:
            try:
                publisher.publish()
            except Killed:
                assert dies_at is not None
    return mortal.num_operations


def check_after(world: Path, before: dict[int, bytes], after: dict[int, bytes]) -> None:
    """What is visible is whole; the next publisher publishes what the store has."""
    numbers = listed_versions(open_destination(world / "pub"))
    assert numbers in ([1], [1, 2])
    found = served(world / "pub", world / "cache")
    assert found == (before if numbers == [1] else after)
    with a_server(world / "store") as server:
        push(server, keys_of(7), 1.0)
        server.publish(world / "pub")
        push(server, keys_of(7), 1.0)
        server.publish(world / "pub")
        assert served(world / "pub", world / "cache") == rows_of(server)
    folders = open_destination(world / "pub").folders("data")
    assert len(folders) == len(listed_versions(open_destination(world / "pub")))


@pytest.mark.parametrize("kind", ["auto", "base"])
def test_a_publisher_that_dies_at_any_operation_leaves_nothing_half_visible(
    world: Path, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import shutil

    monkeypatch = pytest.MonkeyPatch()
    before = served(world / "pub", world / "cache")
    with hps.open(world / "store") as server:
        after = rows_of(server)
    trial = tmp_path_factory.mktemp("trial")
    shutil.copytree(world, trial / "all", dirs_exist_ok=True)
    num_operations = publish_and_die(trial / "all", monkeypatch, None, kind)
    assert num_operations > 6
    for dies_at in range(1, num_operations + 1):
        copy = trial / f"{dies_at}"
        shutil.copytree(world, copy)
        publish_and_die(copy, monkeypatch, dies_at, kind)
        check_after(copy, before, after)


def test_a_version_that_were_visible_before_its_data_is_would_be_found(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: data that is written behind the version's file."""
    commit = publisher_module._commit
    monkeypatch.setattr(
        publisher_module,
        "_commit",
        lambda place, version, names: (
            commit(place, version, names),
            place.remove(version.folder),
        ),
    )
    publish_and_die(world, monkeypatch, None, "auto")
    with pytest.raises(hps.CorruptionError, match="is missing, and a version names it"):
        served(world / "pub", world / "cache")


def test_a_follower_that_dies_in_a_change_begins_again_from_what_it_had(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, cache = open_destination(world / "pub"), world / "cache"
    cache.mkdir()
    rows = PublishedRows.open(place, 1, cache, RowMemory("16MiB"))
    with a_server(world / "store") as server:
        server.publish(world / "pub")
        expected = rows_of(server)
    version = chain_of(place)[-1]
    assign: Callable[..., None] = rows.server.assign

    def die(*given: Any) -> None:
        assign(*given)
        raise Killed

    with rows.changes(place, version) as changes, pytest.raises(Killed):
        monkeypatch.setattr(rows.server, "assign", die)
        rows.apply(version, changes)
    rows.server.parts.publishing.close()
    rows.server.parts.tables.shut()  # as a kill: nothing is saved
    with PublishedRows.open(place, None, cache, RowMemory("16MiB")) as again:
        assert again.version.number == 2
        assert rows_of(again.server) == expected
    assert len(list(cache.iterdir())) == 1


def test_copies_of_a_process_that_died_go_and_those_of_a_living_one_stay(tmp_path: Path) -> None:
    for name, has_lock, age in (
        ("fetched-dead", True, 0.0),
        ("fetched-old", False, 3600.0),
        ("fetched-beginning", False, 0.0),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "0").write_bytes(b"rows")
        if has_lock:
            (folder / "held").touch()
        then = time.time() - age
        os.utime(folder, (then, then))
    with fetched(open_destination(tmp_path), [], tmp_path):
        remove_abandoned(tmp_path)
        left = sorted(one.name for one in tmp_path.iterdir())
        assert len(left) == 2 and "fetched-beginning" in left
        assert not {"fetched-dead", "fetched-old"} & set(left)


def test_a_reader_that_finds_a_version_gone_says_so(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_destination(world / "pub")
    load = version_module.load_version
    (place.local("version-00000001.json") or Path()).unlink()
    with pytest.raises(hps.ConfigError, match="version 1 is not kept; there is none"):
        load(place, 1)


def test_a_change_that_fails_half_way_is_not_saved_as_the_version_before(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, cache = open_destination(world / "pub"), world / "cache"
    cache.mkdir()
    second: dict[int, bytes] = {}
    with a_server(world / "store") as server:
        server.publish(world / "pub", kind="delta")
        second = rows_of(server)
        push(server, np.arange(50, dtype=np.uint64), 1.0)
        server.publish(world / "pub", kind="delta")
    versions = chain_of(place)
    rows = PublishedRows.open(place, 1, cache, RowMemory("16MiB"))
    with rows.changes(place, versions[1]) as changes:
        rows.apply(versions[1], changes)  # which is not saved yet
    assign: Callable[..., None] = rows.server.assign

    def fail(table: str, keys: Any, weights: Any) -> None:
        assign(table, keys[:10], weights[:10])
        raise hps.StoreError(28, "no space left")

    with rows.changes(place, versions[2]) as changes, pytest.raises(hps.StoreError):
        monkeypatch.setattr(rows.server, "assign", fail)
        rows.apply(versions[2], changes)
    rows.close()
    with PublishedRows.open(place, 2, cache, RowMemory("16MiB")) as again:
        assert rows_of(again.server) == second
