"""A store that was put back from a copy while a publisher has its newer checkpoint open.

Above it: pytest. Below it: hps/publish/publisher.py.
"""

import shutil
from pathlib import Path

import numpy as np

from hps.publish.publisher import Publisher
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
