"""The data of the ssd_store benchmark: records of one size, and batches of keys to read or write.

Above it: every file of this folder. Below it: benchmarks/common/keys.py. A record is what each
store keeps of a key, the key's eight bytes included; it cannot be compressed and tells whose it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.keys import ZipfIds, hashed_keys

ALPHA = 1.05
KEY_BYTES = 8
_PIECE_BYTES = 1 << 24
Keys = NDArray[np.uint64]
Records = NDArray[np.uint8]


def key_list(keys: Keys) -> list[bytes]:
    """Keys as bytes, without a loop; most significant first, so that their order is kept."""
    found: list[bytes] = keys.astype(">u8").view("V8").tolist()
    return found


@dataclass(frozen=True)
class Batch:
    """Distinct keys of one call, and how many were asked for before they were made distinct.

    `places` has the numbers of the rows, in the order of the keys.
    """

    keys: Keys
    places: NDArray[np.int64]
    requested: int


@dataclass(frozen=True)
class Data:
    """`rows` records of `record_bytes` bytes (a multiple of 16); row i has the key of place i."""

    rows: int
    record_bytes: int

    def records(self, places: NDArray[np.int64]) -> Records:
        """uint8 [n, record_bytes] of some rows."""
        keys = hashed_keys(places)
        words = self.record_bytes // 8
        columns = np.arange(words, dtype=np.uint64) * np.uint64(0xD6E8FEB86659FD93)
        found = (keys[:, None] ^ columns) * np.uint64(0x9E3779B97F4A7C15)
        found[:, 0] = keys
        return found.view(np.uint8).reshape(len(places), self.record_bytes)

    def in_order(self, places: NDArray[np.int64]) -> Iterator[Records]:
        """All rows of `places`, in pieces."""
        step = max(1, _PIECE_BYTES // self.record_bytes)
        for first in range(0, len(places), step):
            yield self.records(places[first : first + step])

    def by_place(self) -> NDArray[np.int64]:
        """Places from 0 on; their keys are in no order, as rows that are evicted."""
        return np.arange(self.rows)

    def by_key(self) -> NDArray[np.int64]:
        """Places in the order of their keys."""
        return np.argsort(hashed_keys(self.by_place()))

    def uniform(self, size: int, seed: int, is_sorted: bool = True) -> Batch:
        """`size` distinct keys, each as likely as any other; sorted by key, or in random order."""
        random = np.random.default_rng(seed)
        places = random.choice(self.rows, size, replace=False, shuffle=True)
        return _batch(places, size, is_sorted)


class ZipfBatches:
    """The distinct keys of batches of Zipf draws, sorted by key.

    Args:
        data: of which rows.
        size: draws a batch.
        seed: which rows are popular, and the draws.
    """

    def __init__(self, data: Data, size: int, seed: int = 0) -> None:
        self._ids = ZipfIds(data.rows, ALPHA, seed)
        self._size = size

    def next(self) -> Batch:
        return _batch(np.unique(self._ids.batch(self._size)), self._size, is_sorted=True)

    def hot_together(self, rows: int, draws: int) -> NDArray[np.int64]:
        """Places ordered by how often a trace of `draws` has them, most often first."""
        counts = np.bincount(self._ids.batch(draws), minlength=rows)
        return np.argsort(-counts, kind="stable")


def _batch(places: NDArray[np.int64], requested: int, is_sorted: bool) -> Batch:
    keys = hashed_keys(places)
    if is_sorted:
        order = np.argsort(keys)
        keys, places = keys[order], places[order]
    return Batch(keys, places.astype(np.int64), requested)
