"""Few files lie on the way of a batch, and no file is entered again and again.

Above it: pytest. Below it: walks.py; a server, in this process.
"""

from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.service.shard.shard import Shard
from tests.service.serving import serving
from tests.walks import Walk, in_new_threads

_MOST_OF_A_PULL = 9
_MOST_OF_A_SERVED_PUSH = 14
_MOST_VISITS = 2
_TABLES = (hps.TableConfig(name="ads", dim=4),)


def check(walk: Walk, most: int) -> None:
    """Few files, none of them often."""
    visits = Counter(walk.stays)
    assert 3 <= len(visits) <= most, walk.stays
    assert max(visits.values()) <= _MOST_VISITS, walk.stays


@pytest.mark.parametrize("first", [0, 50], ids=["rows in memory", "rows that are missing"])
def test_a_pull(tmp_path: Path, first: int) -> None:
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=_TABLES)) as server:
        server.pull("ads", np.arange(100, dtype=np.uint64))
        keys = np.arange(first, first + 100, dtype=np.uint64)
        walk = Walk(arrays=(keys,))
        with walk.followed():
            server.pull("ads", keys)
    check(walk, _MOST_OF_A_PULL)
    assert walk.stays[-2:] == ["tiers/top_tier.py", "common/arrays.py"]


def test_a_served_push(tmp_path: Path) -> None:
    walk = Walk(begins="service/server/row_handlers.py:push")
    keys, grads = np.arange(100, dtype=np.uint64), np.ones((100, 4), np.float32)
    shard = Shard(hps.Config(path=tmp_path, tables=_TABLES))
    with (
        closing(shard),
        in_new_threads(walk.note),
        serving(shard) as local,
        hps.RemoteParameterServer([local.server.address]) as remote,
    ):
        remote.push("ads", keys, grads)
    walk.files.insert(0, "service/server/calls.py")  # whose own the message is
    check(walk, _MOST_OF_A_SERVED_PUSH)
    assert "update_log/records.py" in walk.stays and "tiers/top_tier.py" in walk.stays


def test_a_walk_back_and_forth_is_seen() -> None:
    walk = Walk()
    walk.files = ["a.py", "b.py", "b.py", "a.py", "c.py", "a.py"]
    assert walk.stays == ["a.py", "b.py", "a.py", "c.py", "a.py"]
    with pytest.raises(AssertionError):
        check(walk, 9)
