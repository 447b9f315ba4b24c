"""Contender: what every store does that takes part in the ssd_store benchmark.

Above it: measure.py. Below it: hps_store.py, rocksdb_peer.py, lmdb_peer.py, record_file.py.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from benchmarks.ssd_store.records import Batch, Records


class Contender(Protocol):
    """A store of records of one size in a folder of its own.

    Keys come as an array and records go out as one: conversions are part of what is measured, done
    by the calls that handle many at once.
    """

    name: str

    def load(self, pieces: Iterable[Records]) -> None:
        """Stores all records, durably."""

    def begin(self) -> None:
        """Opens what `end` has closed, its own caches empty."""

    def get(self, batch: Batch) -> Records:
        """uint8 [n, record_bytes]: the records of a batch, in its order."""

    def end(self) -> None:
        """Lets go of files and caches where the next contender could not work beside it."""

    def files(self) -> list[Path]:
        """The files whose pages decide whether it is cold."""

    def close(self) -> None:
        """For good."""


class Writer(Protocol):
    """Who also stores batches, each of them durable when `put` returns."""

    name: str

    def begin(self) -> None:
        """Opens what `end` has closed."""

    def put(self, records: Records) -> None:
        """Stores records in place of those of the same keys."""

    def end(self) -> None:
        """As a Contender's."""
