"""A reader that takes over another one's index: it is the index that its own checkpoint has.

Above it: pytest, Hypothesis. Below it: csrc/ssd_store/table_follow.cc.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hps
from hps.ssd_store.store import SsdStore
from tests.publish.publish_lab import a_server, a_table, push

KEYS = st.lists(st.integers(0, 400), min_size=1, max_size=30)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), KEYS),
        st.tuples(st.just("erase"), KEYS),
        st.tuples(st.just("advance"), st.integers(1, 2)),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("checkpoint"), st.none()),
    ),
    max_size=12,
)


def contents(store: SsdStore, table: str) -> dict[int, bytes]:
    found = {}
    for images in store.scan(table):
        keys = images.view(np.uint64)[:, 0].tolist()
        found.update(zip(keys, (image.tobytes() for image in images), strict=True))
    assert len(found) == store.num_rows(table)
    return found


def rows_by_key(store: SsdStore, table: str, keys: np.ndarray) -> tuple[bytes, bytes]:
    """Which of the keys have a row, and the rows."""
    images = np.zeros((len(keys), store.schemas[table].row_bytes), np.uint8)
    found = np.empty(len(keys), np.uint8)
    store.fetch(table, keys, images, found)
    assert store.contains(table, keys).tobytes() == found.tobytes()
    images[found == 0] = 0
    return found.tobytes(), images.tobytes()


def do(server: hps.ParameterServer, verb: str, what: object) -> None:
    if verb == "push":
        push(server, np.array(what, np.uint64), 1.0)
        push(server, np.array(what, np.uint64), 1.0, "users")
    elif verb == "erase":
        for table in ("ads", "users"):
            server.erase(table, np.array(what, np.uint64))
    elif verb == "advance":
        assert isinstance(what, int)
        server.advance_period(to=server.period + what)
    elif verb == "compact":
        server.compact()
    else:
        server.checkpoint()


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_the_index_is_that_of_the_checkpoint(steps: list[tuple[str, object]]) -> None:
    tables = (a_table(), a_table("users", 2, expiry=hps.Expiry(unseen=2)))
    with tempfile.TemporaryDirectory() as folder, a_server(Path(folder) / "s", *tables) as server:
        for first in range(0, 6000, 2000):  # so that what follows is a small part
            push(server, np.arange(first, first + 2000, dtype=np.uint64), 1.0)
            push(server, np.arange(first, first + 2000, dtype=np.uint64), 1.0, "users")
            server.checkpoint()
        path = server.config.path
        with (
            SsdStore.open(path, [], read_only=True) as before,
            SsdStore.open(path, [], read_only=True) as lender,
        ):
            for verb, what in steps:
                do(server, verb, what)
            server.checkpoint()
            sharing = {"beside": lender, "shares_index": True}
            with (
                SsdStore.open(path, [], read_only=True) as alone,
                SsdStore.open(path, [], read_only=True, beside=before) as beside,
                SsdStore.open(path, [], read_only=True, **sharing) as sharer,
                SsdStore.open(path, [], read_only=True, beside=lender) as later,
            ):
                for table in ("ads", "users"):
                    expected = contents(alone, table)
                    assert contents(beside, table) == contents(sharer, table) == expected
                    assert contents(later, table) == expected  # read anew
                    keys = np.arange(0, 6400, dtype=np.uint64)
                    there = [int(key) in expected for key in keys]
                    assert beside.contains(table, keys).tolist() == there
                    own, other = (one.stats()["tables"][table] for one in (beside, alone))
                    assert own["live_bytes"] == other["live_bytes"]
                    assert rows_by_key(sharer, table, keys) == rows_by_key(alone, table, keys)
                    assert rows_by_key(lender, table, keys) == rows_by_key(before, table, keys)
                    assert lender.num_rows(table) == before.num_rows(table)


def test_little_is_read_where_little_has_changed(tmp_path: Path) -> None:
    with a_server(tmp_path / "s") as server:
        push(server, np.arange(50_000, dtype=np.uint64), 1.0)
        server.checkpoint()
        with SsdStore.open(tmp_path / "s", [], read_only=True) as before:
            push(server, np.arange(10, dtype=np.uint64), 1.0)
            server.checkpoint()
            with (
                SsdStore.open(tmp_path / "s", [], read_only=True) as alone,
                SsdStore.open(tmp_path / "s", [], read_only=True, beside=before) as beside,
            ):
                assert alone.num_rows("ads") == beside.num_rows("ads") == 50_000
                assert 0 < beside.stats()["bytes_read"] < 4096  # of footers; all have 400,000


def test_a_reader_of_another_store_is_of_no_use_and_does_no_harm(tmp_path: Path) -> None:
    for name, count in (("a", 3000), ("b", 2000)):
        with a_server(tmp_path / name) as server:
            push(server, np.arange(count, dtype=np.uint64), 1.0)
    with (
        SsdStore.open(tmp_path / "a", [], read_only=True) as other,
        SsdStore.open(tmp_path / "b", [], read_only=True, beside=other) as store,
    ):
        assert store.num_rows("ads") == 2000


def test_a_damaged_footer_is_told_as_without_another_reader(tmp_path: Path) -> None:
    with a_server(tmp_path / "s") as server:
        push(server, np.arange(50_000, dtype=np.uint64), 1.0)
        server.checkpoint()
        with SsdStore.open(tmp_path / "s", [], read_only=True) as before:
            push(server, np.arange(10, dtype=np.uint64), 1.0)
            server.checkpoint()
            newest = max(server.config.path.glob("segment-*"))
            data = bytearray(newest.read_bytes())
            data[-60] ^= 1
            newest.write_bytes(data)
            with pytest.raises(hps.CorruptionError, match=newest.name):
                SsdStore.open(tmp_path / "s", [], read_only=True, beside=before)
