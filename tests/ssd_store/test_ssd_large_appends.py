"""Appends that several threads share, footers of more keys than are kept, files removed later.

Above it: pytest. Below it: hps.ssd_store; small appends are everywhere else.
"""

import os
from pathlib import Path

import numpy as np
from ssd_twin import keys_of, make_rows, schema

from hps.ssd_store import SsdStore

ROWS = 150_000  # more than one append installs at once; two of them exceed the keys that are kept


def rows_twice(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of which every key comes twice, far apart or near, and the keys in order."""
    keys = keys_of(range(ROWS // 2))
    print(f"seed {seed}")
    order = np.random.default_rng(seed).permutation(np.concatenate([keys, keys]))
    rows = make_rows(order, 1)
    rows[:, -4:] = np.arange(ROWS, dtype=np.uint32)[:, None].view(np.uint8)
    return rows, keys


def newest(pieces: list[np.ndarray]) -> dict[int, bytes]:
    """What a plain dict holds after the same appends."""
    return {
        int(key): row.tobytes()
        for rows in pieces
        for key, row in zip(rows[:, :8].copy().view(np.uint64)[:, 0], rows, strict=True)
    }


def held(store: SsdStore, keys: np.ndarray, row_bytes: int) -> dict[int, bytes]:
    rows = np.zeros((len(keys), row_bytes), np.uint8)
    found = np.zeros(len(keys), np.uint8)
    store.fetch("ads", keys, rows, found)
    assert found.all()
    return {int(key): row.tobytes() for key, row in zip(keys, rows, strict=True)}


def test_an_append_shared_by_threads_keeps_the_last_row_of_each_key(tmp_path: Path) -> None:
    for threads in (1, 5):
        folder = tmp_path / f"store{threads}"
        pieces = []
        with SsdStore.open(folder, [schema()], threads=threads) as store:
            for seed in range(2):
                rows, keys = rows_twice(seed)
                store.append("ads", rows)
                pieces.append(rows)
            expected = newest(pieces)
            row_bytes = pieces[0].shape[1]
            assert held(store, keys, row_bytes) == expected, "not sealed yet"
            assert store.num_rows("ads") == len(keys)
            store.checkpoint()
        for snapshot in folder.glob("index-*"):
            snapshot.unlink()  # so that the footer must tell
        assert len(list(folder.glob("segment-*"))) == 1, "one footer, of kept keys and of others"
        with SsdStore.open(folder, [schema()], read_only=True) as store:
            assert held(store, keys, row_bytes) == expected


def removed_and_open() -> int:
    """Descriptors of this process that keep the space of segments without a name."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except FileNotFoundError:
            continue
    return sum("/segment-" in link and link.endswith("(deleted)") for link in links)


def test_the_space_of_removed_segments_is_back_before_the_next_append(tmp_path: Path) -> None:
    rows = make_rows(keys_of(range(1000)), 3)
    with SsdStore.open(tmp_path / "store", [schema()], keep_last=1) as store:
        names = set()
        for _ in range(20):
            store.append("ads", rows)
            assert removed_and_open() == 0
            store.checkpoint()
            names |= {path.name for path in (tmp_path / "store").glob("segment-*")}
            assert len(list((tmp_path / "store").glob("segment-*"))) == 1
        assert len(names) == 20, "no segment was removed"
    assert removed_and_open() == 0
