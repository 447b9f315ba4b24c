"""A store that was put back from a copy while a publisher has its newer checkpoint open.

Above it: pytest. Below it: hps/publish/publisher.py.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.errors import MismatchError, StoreError
from hps.publish.destination import open_destination
from hps.publish.publisher import Publisher
from hps.publish.source import Source
from hps.publish.store_origin import StoreOrigin
from hps.publish.version import listed_versions
from hps.train import TrainOptions, train
from tests.publish.publish_lab import SMALL, a_server, push, rows_of, served, write_log

MANY = np.arange(5000, dtype=np.uint64)


def test_a_store_that_was_put_back_is_published_once_publishing_starts_again(
    tmp_path: Path,
) -> None:
    """Its numbers of segments are used again, so that what they hold would seem the same."""
    place, store, copy = tmp_path / "pub", tmp_path / "store", tmp_path / "copy"
    with a_server(store) as server:
        push(server, MANY, 1.0)
        server.checkpoint()
    shutil.copytree(store, copy)
    with Publisher(StoreOrigin(store), place) as publisher:
        publisher.publish()
        with a_server(store) as server:
            push(server, MANY[:100], 2.0)
            server.checkpoint()
        publisher.publish()
        shutil.rmtree(store)
        copy.rename(store)
        with a_server(store) as server:
            push(server, MANY[200:300], 3.0)
            server.checkpoint()
            for _ in range(2):
                with pytest.raises(StoreError, match="another folder has taken this path"):
                    publisher.publish()
            assert listed_versions(open_destination(place)) == [1, 2]
            with Publisher(StoreOrigin(store), place) as again:
                made = again.publish()
            assert served(place, tmp_path / "cache") == rows_of(server)
        assert made["kind"] == "base" and "is gone" in made["why_base"]


def test_a_clone_that_has_taken_the_path_of_a_store_is_refused_until_publishing_starts_again(
    tmp_path: Path,
) -> None:
    """Its checkpoints are of the same times and lineage, its files others under the same names; and
    the store may still be trained, elsewhere."""
    place, store, clone = tmp_path / "pub", tmp_path / "store", tmp_path / "clone"
    elsewhere = tmp_path / "elsewhere"
    with a_server(store) as server:
        push(server, MANY, 1.0)
        server.checkpoint()
    hps.ssd_store.clone(store, clone)
    with Publisher(StoreOrigin(store), place) as publisher:
        publisher.publish()
        store.rename(elsewhere)
        clone.rename(store)
        with pytest.raises(StoreError, match=f"{store}: another folder.*start again"):
            publisher.publish()
        store.rename(clone)
        elsewhere.rename(store)
        assert publisher.publish()["kind"] is None  # it is back: publishing goes on
    store.rename(elsewhere)
    clone.rename(store)
    with a_server(store) as server, Publisher(StoreOrigin(store), place) as again:
        push(server, MANY[200:300], 3.0)
        server.checkpoint()
        made = again.publish()
        assert served(place, tmp_path / "cache") == rows_of(server)
    assert made["kind"] == "delta" and made["changed"] == 100


def test_a_server_publishes_nothing_of_a_clone_that_has_taken_its_path(tmp_path: Path) -> None:
    place, store, clone = tmp_path / "pub", tmp_path / "store", tmp_path / "clone"
    with a_server(store) as server:
        push(server, MANY, 1.0)
        server.checkpoint()
        hps.ssd_store.clone(store, clone)
        store.rename(tmp_path / "elsewhere")
        clone.rename(store)
        with pytest.raises(hps.StoreError, match=str(store)):
            server.publish(place)
    assert not list(place.glob("version-*"))


def test_a_run_publishes_nothing_of_a_clone_that_takes_its_path_before_the_first_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clone has the checkpoint that is to be published; the run's own store is elsewhere."""
    log, place, store = write_log(tmp_path / "a.libsvm", 1), tmp_path / "pub", tmp_path / "store"
    opened = StoreOrigin.open

    def after_a_clone(self: StoreOrigin, *asked: Any, **more: Any) -> Source:
        hps.ssd_store.clone(store, tmp_path / "clone")
        store.rename(tmp_path / "elsewhere")
        (tmp_path / "clone").rename(store)
        return opened(self, *asked, **more)

    monkeypatch.setattr(StoreOrigin, "open", after_a_clone)
    figures = train(TrainOptions(data=[log], store=store, publish=str(place), **SMALL))
    assert figures["published"] == [] and f"{store}: the folder" in figures["publish_error"]
    assert not list(place.glob("version-*"))


def test_changes_since_a_checkpoint_of_another_store_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with a_server(tmp_path / name) as server:
            push(server, MANY, 1.0)
            server.checkpoint()
    with (
        Source.open(tmp_path / "a", None) as one,
        Source.open(tmp_path / "b", None) as other,
        pytest.raises(MismatchError, match="is of another store than"),
    ):
        one.changes_since(other, "ads")
