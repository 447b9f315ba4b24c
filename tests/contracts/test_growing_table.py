"""A dram_cache's table grows while batches are pinned, iterated over and written back.

Above it: pytest. Below it: hps.ParameterServer over the native dram_cache, whose budget is much
larger than its rows.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hps
from hps.contracts.updates import RowUpdate

DIM = 16


def keys(first: int, end: int) -> np.ndarray:
    return np.arange(first, end, dtype=np.uint64) * np.uint64(2654435761)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[hps.ParameterServer]:
    tables = [hps.TableConfig(name="t", dim=DIM, optimizer=hps.SGD(lr=1.0))]
    dram = hps.DramCacheConfig(bytes="256MiB")
    with hps.ParameterServer(hps.Config(path=tmp_path, tables=tables, dram=dram)) as server:
        yield server


def growths(server: hps.ParameterServer) -> int:
    return int(server.parts.tables.stacks["t"].cache.num_growths)


def grow(server: hps.ParameterServer, value: float = 0.0) -> None:
    before = growths(server)
    for first in range(10**6, 10**6 + 200_000, 10_000):
        rows = np.full((10_000, DIM), value, np.float32)
        server.assign("t", keys(first, first + 10_000), rows)
    assert growths(server) > before


def test_a_step_on_rows_pinned_before_a_growth_is_tried_on_those_rows(
    server: hps.ParameterServer,
) -> None:
    hot = keys(1, 101)
    server.assign("t", hot, np.full((100, DIM), 3e38, np.float32))
    pinned = [server.pin("t", hot[i : i + 1]) for i in range(100)]
    grow(server)
    for i, rows in enumerate(pinned):
        update = RowUpdate("t", hot[i : i + 1], np.full((1, DIM), -1e38, np.float32), rows)
        with pytest.raises(hps.NonFiniteError):
            server.apply([update])
        rows.release()
    assert (server.pull("t", hot) == np.float32(3e38)).all()


def test_a_good_step_on_rows_pinned_before_a_growth_is_done(server: hps.ParameterServer) -> None:
    hot = keys(1, 201)
    server.assign("t", hot, np.zeros((200, DIM), np.float32))
    rows = server.pin("t", hot)
    grow(server, 3e38)  # what lies where these rows lay would overflow
    server.apply([RowUpdate("t", hot, np.full((200, DIM), -1e38, np.float32), rows)])
    rows.release()
    assert (server.pull("t", hot) == np.float32(1e38)).all()


def test_an_iterator_that_is_kept_does_not_hold_the_table_small(
    server: hps.ParameterServer,
) -> None:
    server.push("t", keys(0, 1000), np.ones((1000, DIM), np.float32))
    pieces = server.items("t", 100)
    next(pieces)
    with server.pin("t", keys(0, 100_000)):
        assert growths(server) > 0


def test_every_row_once_though_the_table_grows_between_two_pieces(
    server: hps.ParameterServer,
) -> None:
    """Rows that are read for the first time take slots, and change nothing that is iterated."""
    ours = keys(0, 5000)
    server.push("t", ours, np.ones((5000, DIM), np.float32))
    before, seen = growths(server), []
    for number, (found, _) in enumerate(server.items("t", 500)):
        seen.append(found)
        fresh = keys(10**7 + number * 20_000, 10**7 + (number + 1) * 20_000)
        server.pull("t", fresh)
    assert growths(server) > before
    assert np.array_equal(np.sort(np.concatenate(seen)), np.sort(ours))
