"""hps's own ssd_store as a contender: one table whose row image is the record.

Above it: ssd_store_bench.py. Below it: hps.ssd_store, the tier by itself, without a cache above it.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.ssd_store.page_cache import files_under
from benchmarks.ssd_store.records import Batch, Records
from hps.ssd_store import SsdStore, TableSchema

TABLE = "rows"
HEADER_BYTES = 16


def schema(record_bytes: int) -> TableSchema:
    """A table of SGD rows: a header of 16 bytes, its key among them, and weights."""
    return TableSchema(
        name=TABLE,
        dim=(record_bytes - HEADER_BYTES) // 4,
        optimizer="sgd",
        initializer="constant",
        numbers=(0.0, 0.0),
        row_bytes=record_bytes,
    )


class HpsStore:
    """The store stays open from its load on, as a server keeps it."""

    name = "hps"

    def __init__(self, folder: Path, record_bytes: int, compact_in_background: bool = True) -> None:
        self.folder = folder
        self._schema = schema(record_bytes)
        self._compacts = compact_in_background
        self.open()

    def open(self) -> None:
        """Opens it for writing."""
        self.store = SsdStore.open(
            self.folder,
            [self._schema],
            keep_last=1,
            compact_in_background=self._compacts,
        )

    def load(self, pieces: Iterable[Records]) -> None:
        for records in pieces:
            self.store.append(TABLE, records)
        self.store.checkpoint()

    def begin(self) -> None:
        """Nothing is closed between two measurements."""

    end = begin

    def get(self, batch: Batch) -> Records:
        records = np.empty((len(batch.keys), self._schema.row_bytes), np.uint8)
        found = np.empty(len(batch.keys), np.uint8)
        self.store.fetch(TABLE, batch.keys, records, found)
        assert found.all(), "hps lacks a key that was stored"
        return records

    def put(self, records: Records) -> None:
        self.store.append(TABLE, records)
        self.store.checkpoint()

    def files(self) -> list[Path]:
        return [path for path in files_under(self.folder) if path.name.startswith("segment-")]

    def close(self) -> None:
        self.store.close()
