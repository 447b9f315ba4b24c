"""LMDB as a peer: one transaction a batch, synced when it commits.

Above it: ssd_store_bench.py. Below it: the package lmdb. Reads go through its map of the file, so
it is opened anew for each measurement: pages that are mapped could not be dropped.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from benchmarks.ssd_store.page_cache import files_under
from benchmarks.ssd_store.records import KEY_BYTES, Batch, Records, key_list

MAP_BYTES = 1 << 36


class LmdbPeer:
    """A B+ tree in one mapped file."""

    name = "LMDB"

    def __init__(self, folder: Path, record_bytes: int) -> None:
        self._folder = folder
        self._value_bytes = record_bytes - KEY_BYTES
        self._environment: Any = None

    def begin(self) -> None:
        self._environment = lmdb.open(str(self._folder), map_size=MAP_BYTES, readahead=False)

    def end(self) -> None:
        self._environment.close()
        self._environment = None

    def _pairs(self, records: Records) -> list[tuple[bytes, bytes]]:
        keys = key_list(records[:, :KEY_BYTES].copy().view(np.uint64)[:, 0])
        rest = np.ascontiguousarray(records[:, KEY_BYTES:])
        values = rest.view(f"V{self._value_bytes}")[:, 0].tolist()
        return list(zip(keys, values, strict=True))

    def load(self, pieces: Iterable[Records]) -> None:
        """Records must come in the order of their keys."""
        self.begin()
        for records in pieces:
            with self._environment.begin(write=True) as transaction:
                transaction.cursor().putmulti(self._pairs(records), append=True)
        self.end()

    def get(self, batch: Batch) -> Records:
        with self._environment.begin() as transaction:
            pairs = transaction.cursor().getmulti(key_list(batch.keys))
        records = np.empty((len(pairs), KEY_BYTES + self._value_bytes), np.uint8)
        records[:, :KEY_BYTES] = batch.keys.view(np.uint8).reshape(-1, KEY_BYTES)
        joined = np.frombuffer(b"".join(value for _, value in pairs), np.uint8)
        records[:, KEY_BYTES:] = joined.reshape(len(pairs), self._value_bytes)
        return records

    def put(self, records: Records) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(self._pairs(records))

    def files(self) -> list[Path]:
        return [path for path in files_under(self._folder) if path.name == "data.mdb"]

    def close(self) -> None:
        """`end` has closed it."""
