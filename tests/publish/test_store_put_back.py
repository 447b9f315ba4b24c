"""A store that was put back from a copy while a publisher has its newer checkpoint open.

Above it: pytest. Below it: hps/publish/publisher.py.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hps
from hps.errors import MismatchError
from hps.publish.publisher import Publisher
from hps.publish.source import Source
from hps.publish.store_origin import StoreOrigin
from tests.publish.publish_lab import a_server, push, rows_of, served

MANY = np.arange(5000, dtype=np.uint64)


def test_nothing_follows_a_checkpoint_that_the_store_does_not_hold_any_more(
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
            made = publisher.publish()
            assert served(place, tmp_path / "cache") == rows_of(server)
        assert made["kind"] == "base" and "is gone" in made["why_base"]


def test_nothing_is_taken_over_from_a_store_whose_path_a_clone_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoints are of the same times and lineage, its files others under the same names."""
    place, store, clone = tmp_path / "pub", tmp_path / "store", tmp_path / "clone"
    with a_server(store) as server:
        push(server, MANY, 1.0)
        server.checkpoint()
    hps.ssd_store.clone(store, clone)
    with Publisher(StoreOrigin(store), place) as publisher:
        publisher.publish()
        opened = publisher._before
        assert opened is not None
        found: list[Source | None] = []
        find = StoreOrigin.find

        def noting(*given: Any) -> Source | None:
            found.append(find(*given))
            return found[-1]

        monkeypatch.setattr(StoreOrigin, "find", noting)
        store.rename(tmp_path / "elsewhere")
        clone.rename(store)
        with a_server(store) as server:
            push(server, MANY[200:300], 3.0)
            server.checkpoint()
            made = publisher.publish()
            assert served(place, tmp_path / "cache") == rows_of(server)
        assert made["kind"] == "delta" and made["changed"] == 100
        assert found and found[0] is not None and found[0] is not opened  # but opened anew


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
